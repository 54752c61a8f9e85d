"""One file for each stack: it reads an exported file with the stack's own code and lets that place recompute."""
