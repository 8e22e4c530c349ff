"""python -m sps."""

from sps.cli import main

main()
