"""What may be tried: policies, the shape of a model, and encodings of a policy as parameters."""
