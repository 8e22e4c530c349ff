"""Which problems, in which order."""
