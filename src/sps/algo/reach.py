"""How far an IRL phase moves the weights next to the RL phase before it; needs no torch."""

from __future__ import annotations

# Measured (docs/results.md): the weights go lr * steps**0.65 far in a phase of AdamW, between a
# random walk and a straight line, and twice as far in IRL, whose gradients agree more.
_PULL, _DRIFT = 2.0, 0.65


def reach(lr: float, steps: int, rl_lr: float, rl_steps: int) -> float:
    """Ratio of weight change, IRL phase to RL phase; expected.

    From 0.7 on it was measured to undo what RL teaches.
    """
    return _PULL * lr / rl_lr * (steps / rl_steps) ** _DRIFT


def lr_of_reach(wanted: float, steps: int, rl_lr: float, rl_steps: int) -> float:
    """The IRL learning rate whose reach is the wanted one."""
    return wanted / reach(1.0, steps, rl_lr, rl_steps)
