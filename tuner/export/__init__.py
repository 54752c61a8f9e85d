"""One file per training stack that a policy can be exported to."""
