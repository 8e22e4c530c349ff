"""python -m bench [name ...]: run benchmarks, print a table each, write bench/results/NAME.json."""

import importlib
import sys

CPU = ["engine", "rl_step", "store", "verify"]

for name in sys.argv[1:] or CPU:
    importlib.import_module(f"bench.{name}").main()
