"""Pass@k and Avg@n of a policy on held-out problems, with intervals."""

from sps import make_callable

make_callable(__name__)  # `sps.evaluate(...)`
