"""sps: train reasoning models with RL without losing exploration."""

__version__ = "0.1.0"
