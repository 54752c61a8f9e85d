"""The only files that ask which hardware this is."""
