"""One offline HTML file for runs and comparisons, plots as files, live progress, trackers."""
