"""A run on disk and as a process: its folder, its records, its lock, being asked to stop."""
