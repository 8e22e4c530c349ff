"""Every analysis of a run, from its folder alone; `diagnose` in run.py gathers them."""
