"""Reach: the ratio of weight change, IRL phase to RL phase. Needs no torch."""

from __future__ import annotations

# Measured (docs/results_small.md): a phase of AdamW changes the weights by lr * steps**0.65 times a
# constant, between a random walk and a straight line; twice that in IRL: its gradients agree more.
_PULL, _DRIFT = 2.0, 0.65


def reach(lr: float, steps: int, rl_lr: float, rl_steps: int) -> float:
    """The expected ratio of weight change, IRL phase to RL phase.

    From 0.7 on it was measured to undo what RL teaches.
    """
    return _PULL * lr / rl_lr * (steps / rl_steps) ** _DRIFT


def lr_of_reach(wanted: float, steps: int, rl_lr: float, rl_steps: int) -> float:
    """The IRL learning rate whose reach is the wanted one."""
    return wanted / reach(1.0, steps, rl_lr, rl_steps)
