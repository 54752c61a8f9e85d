"""How one training step is timed, weighed and counted."""
