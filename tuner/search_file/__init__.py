"""search.yaml from text to typed config, and what is said of what is wrong in it."""
