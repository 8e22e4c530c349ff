"""Pass@k and Avg@n of a policy on held-out problems, with intervals."""
