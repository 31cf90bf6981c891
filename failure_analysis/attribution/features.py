"""A failed take as a row of numbers: what the rules say, and how far every signal is from usual.

All is relative to the station's reference, so that a row means the same on another task, arm or
camera. A distance counts from `LOUD_Z` spreads on, by its logarithm. What can't be seen is 0, and
flags say so.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Final

import numpy as np

from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import FailureMode, GapDimension
from gaploop.failure_analysis.attribution.rules import RuleEvidence, rule_evidence
from gaploop.failure_analysis.reference import Reference
from gaploop.failure_analysis.signals.registry import TakeSignals, registry

LOUD_Z: Final = 2.0
"""Spreads from which on a signal of its own counts, without a rule."""
LOUDEST: Final = 5.0
FAINTEST: Final = 0.05
"""What a dimension scores for which nothing speaks: nine of them together hardly count."""
PLACED: Final = "placed"
"""What evidence for a restated task would gain if nothing else were unusual: the object rests where
it was meant to, whatever else is wrong. Only two causes at once are judged by it."""
SOURCES: Final = ("motion", "currents", "scene", "images")
LEFT_OUT: Final = frozenset({"force", "policy"})
"""Sources that few takes have: nothing was learned about them."""


@cache
def names() -> tuple[str, ...]:
    """Return the names of a row's entries."""
    return (
        "one",
        *(f"left.{d.value}" for d in GapDimension),
        *(f"{side}.{name}" for name in _signals() for side in ("above", "below")),
        *(f"mode.{mode.value}" for mode in FailureMode),
        *(f"unseen.{source}" for source in SOURCES),
        PLACED,
    )


@cache
def _signals() -> tuple[str, ...]:
    return tuple(sorted(n for n, s in registry().items() if s.source not in LEFT_OUT))


def features(
    measured: TakeSignals, reference: Reference, mode: FailureMode | None
) -> tuple[FloatArray, RuleEvidence]:
    """Return a failed take's row, shape (n,), in the order of `names()`, and what rules say."""
    rules = rule_evidence(measured, reference, mode)
    task = rules.left[GapDimension.TASK_SPECIFICATION]
    sides: list[float] = []
    for name in _signals():
        z = reference.z(name, measured[name])
        loud = min(math.log1p(max(abs(z) - LOUD_Z, 0.0)), LOUDEST) if not math.isnan(z) else 0.0
        sides += (loud, 0.0) if z > 0 else (0.0, loud)
    known = {registry()[n].source for n in reference.signals if n in registry()}
    values = [
        1.0,
        *(_log_odds(rules.left[d]) for d in GapDimension),
        *sides,
        *(float(mode is m) for m in FailureMode),
        *(float(source in measured.unseen or source not in known) for source in SOURCES),
        _log_odds(max(rules.placed, task)) - _log_odds(task),
    ]
    return np.array(values), rules


def _log_odds(strength: float) -> float:
    return math.log(math.expm1(strength) + FAINTEST)
