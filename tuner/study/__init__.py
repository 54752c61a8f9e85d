"""One study from its first session to its last: its folder, its stores, and what a resume finds of it."""
