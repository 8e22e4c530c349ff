"""A run from its folder to its card: taken up, measured, saved, resumed."""
