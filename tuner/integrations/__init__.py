"""Policies in training stacks, for what their configs cannot say: each file needs that stack, torch and PyYAML only."""
