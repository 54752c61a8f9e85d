"""What each `tune` command does; cli.py only parses and shows."""
