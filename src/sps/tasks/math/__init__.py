"""Mathematical answers: reading, spelling and comparing them."""
