"""Where models and batches come from."""
