"""What is found in a model: its lists of blocks, their units, and which of them can be recomputed how."""
