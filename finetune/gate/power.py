"""How often a comparison will promote, and how long it will take, by all rules of its suite."""

from __future__ import annotations

from typing import Final

import numpy as np

from gaploop.core.suite import Suite
from gaploop.core.types import FloatArray
from gaploop.finetune.gate.design import GateDesign, PowerPoint
from gaploop.finetune.gate.statements import Outcomes, reached, statements

DRAWS: Final = 500
"""Simulated comparisons per point of the power curve: ±4 points at 95 %."""
CURVE: Final = (-0.1, 0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
"""Differences in success at which power is printed."""


def power_curve(suite: Suite, design: GateDesign, seed: int = 0) -> tuple[PowerPoint, ...]:
    """Return what simulated comparisons come to, by true difference.

    Attempts are independent, every task has the baseline's expected success, the candidate
    differs in all of them alike, and nobody is ever unsafe.

    Args:
        suite: tasks and rules.
        design: margin and longest comparison.
        seed: of what is drawn.
    """
    rules = suite.rules
    rng = np.random.default_rng([seed, 7])
    points = [d for d in sorted({*CURVE, rules.gain}) if 0 <= rules.baseline_rate + d <= 1]
    return tuple(_point(suite, design, difference, rng) for difference in points)


def _point(
    suite: Suite, design: GateDesign, difference: float, rng: np.random.Generator
) -> PowerPoint:
    base, kinds = suite.rules.baseline_rate, len(suite.tasks)
    shape = (DRAWS, -(-design.max_pairs // kinds), kinds, 2)
    success = rng.random(shape, dtype=np.float32) < np.array([base, base + difference])
    passed, rounds = promotions(Outcomes(success, np.zeros_like(success)), suite, design.margin)
    return PowerPoint(difference, float(passed.mean()), float(rounds.mean()) * kinds)


def promotions(outcomes: Outcomes, suite: Suite, margin: float) -> tuple[FloatArray, FloatArray]:
    """Return which comparisons pass by all the rules of `judge_hardware`, and their rounds.

    Args:
        outcomes: of many comparisons, success of shape (comparisons, rounds, tasks, 2).
        suite: tasks and rules.
        margin: of `GateDesign`.

    Returns:
        whether each passed, and after how many rounds it ended, each of shape (comparisons,).
    """
    no, yes = reached(statements(outcomes, suite, margin), outcomes, suite)
    decided = no | yes
    at = decided.argmax(-1)
    rows = np.arange(len(at))
    passed = decided[rows, at] & ~no[rows, at]
    rounds: FloatArray = np.where(decided[rows, at], at + 1.0, outcomes.rounds)
    return passed.astype(np.float64), rounds
