"""Two studies side by side: what differs, what each found, and why."""
