"""What to try next: a search space as an Optuna study, and samplers by name."""
