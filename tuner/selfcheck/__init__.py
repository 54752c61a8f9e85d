"""`tune export --check`: what an exported config really recomputes, found out by the stack's own code."""
