"""A training step on tensors that have a shape and no data: what it does to memory, without doing it."""
