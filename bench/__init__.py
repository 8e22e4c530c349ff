"""Side-by-side benchmarks: ours and a peer, alternating in one process, reported as a ratio."""
