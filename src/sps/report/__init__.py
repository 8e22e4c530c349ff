"""One offline HTML file for runs and comparisons, plots as files, live progress, trackers."""

from sps import make_callable

make_callable(__name__)  # `sps.report(...)`
