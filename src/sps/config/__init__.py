"""The recipe: every key, its default, and what cannot be."""
