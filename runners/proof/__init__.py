"""The proof that a policy trains the same model."""
