"""Runs one trial and measures it."""
