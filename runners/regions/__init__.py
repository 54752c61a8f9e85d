"""What a policy puts in the place of a forward: recompute regions of each kind, offloaded and compiled calls."""
