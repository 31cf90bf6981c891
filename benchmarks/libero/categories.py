"""How a rollout failed, from what only simulation knows. Pure: a trace in, a word out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gaploop.core.messages import FloatArray

UNTOUCHED = "untouched"
NOT_LIFTED = "touched but not lifted"
DROPPED = "dropped"
MISPLACED = "misplaced"
FROZEN = "frozen"
TIME_OUT = "time-out"
CATEGORIES: Final = (UNTOUCHED, NOT_LIFTED, DROPPED, MISPLACED, FROZEN, TIME_OUT)

LIFTED_M: Final = 0.03
"""An object is lifted when it is so much higher than it stood [m]."""
STILL_M: Final = 0.005
"""A hand that keeps within so much of one place stands still [m]."""
STILL_STEPS: Final = 40
"""For so long, at the end: 2 s at LIBERO's 20 Hz."""


@dataclass(frozen=True)
class StepState:
    """What simulation knows after a step; one entry for each predicate of the goal.

    Attributes:
        hand_m: place of the hand [m], shape (3,).
        closing: the gripper was told to close.
        touched: the gripper touches the object that the predicate is about.
        height_m: of that object [m].
        met: the predicate holds.
    """

    hand_m: FloatArray
    closing: bool
    touched: tuple[bool, ...]
    height_m: tuple[float, ...]
    met: tuple[bool, ...]


def category(trace: Sequence[StepState]) -> str:
    """Return how a rollout that didn't succeed failed, one of `CATEGORIES`.

    It is about the first predicate of the goal that doesn't hold at the end. In this order:

    1. `dropped`: the object was lifted, then left the gripper while that was told to close.
    2. `misplaced`: it was lifted, then left the gripper because that was opened.
    3. `frozen`: the hand stood still for the last two seconds.
    4. `untouched`, `touched but not lifted`.
    5. `time-out`: it was in the gripper, off the ground, when time ran out.

    Args:
        trace: the scene before the first step, and after each; at least one.
    """
    k = trace[-1].met.index(False) if False in trace[-1].met else 0
    touched = np.array([s.touched[k] for s in trace])
    height = np.array([s.height_m[k] for s in trace])
    carried = touched & (height > height[0] + LIFTED_M)
    if carried.any() and not touched[-1]:
        # What counts is the last time that it was held and the moment that it no longer was.
        left = int(np.flatnonzero(touched)[-1]) + 1
        return DROPPED if trace[left].closing else MISPLACED
    hand = np.array([s.hand_m for s in trace[-STILL_STEPS - 1 :]])
    if len(hand) > STILL_STEPS and np.linalg.norm(hand - hand[-1], axis=1).max() < STILL_M:
        return FROZEN
    if not touched.any():
        return UNTOUCHED
    return TIME_OUT if carried.any() else NOT_LIFTED
