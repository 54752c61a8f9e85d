"""What `tune check` says: from a diagnosis to sentences and tables."""
