"""One step of training as a timeline: its data, and the page, table and text that show it."""
