"""Sets a stack's keys in a config or launch script that the user already has, and leaves all else as it is."""
