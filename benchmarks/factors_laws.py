"""What the statistics across takes promise, measured on made-up trials whose truth is known.

Coverage: an interval of 95 % holds the truth in 95 of 100 sets of trials. False alarms: where no
factor matters, a table calls one a cost or gain in at most 5 of 100.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from scipy.special import expit

from gaploop.core.statistics import rate
from gaploop.failure_analysis.factors import Trials, factor_table

COSTS: Final = {"lighting": {"dim": -0.5}, "distractors": {"2": -1.0, "4": -2.0}}
"""Planted effects, in log odds."""
SESSIONS: Final = 10
SESSION_SPREAD: Final = 0.7
"""Standard deviation between sessions, in log odds."""


def made_up_takes(
    rng: np.random.Generator, takes: int, *, planted: bool, sessions: bool
) -> list[Trials]:
    """Return single trials under randomly drawn conditions.

    Args:
        rng: draws everything.
        takes: how many.
        planted: conditions have the effects of `COSTS`; else none has any.
        sessions: takes come in sessions that differ.
    """
    shift = rng.normal(0.0, SESSION_SPREAD, SESSIONS) if sessions else np.zeros(SESSIONS)
    rows = []
    for k in range(takes):
        levels = {
            "lighting": str(rng.choice(["nominal", "dim"])),
            "distractors": str(rng.choice(["nominal", "2", "4"])),
            "operator": str(rng.choice(["ana", "bo", "cy"])),
        }
        session = k * SESSIONS // takes
        cost = sum(COSTS[f].get(v, 0.0) for f, v in levels.items() if f in COSTS) if planted else 0
        won = int(rng.random() < expit(0.8 + cost + shift[session]))
        rows.append(Trials(levels, won, 1, f"s{session}" if sessions else ""))
    return rows


def true_difference(rows: list[Trials], factor: str, level: str, spread: float = 0.0) -> float:
    """Return the planted difference in rates over those of some trials that are at a level.

    Args:
        rows: the trials.
        factor: a factor of `COSTS`.
        level: a level of it.
        spread: standard deviation between sessions in log odds, averaged over.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(21)
    weights = weights / weights.sum()
    others = np.array([
        sum(COSTS[f].get(v, 0.0) for f, v in r.levels.items() if f in COSTS and f != factor)
        for r in rows if r.levels[factor] == level
    ])  # fmt: skip
    odds = 0.8 + others[:, None] + spread * nodes[None, :]
    return float(np.mean((expit(odds + COSTS[factor][level]) - expit(odds)) @ weights))


def _covers(rng: np.random.Generator, takes: int, sessions: bool) -> tuple[int, int]:
    rows = made_up_takes(rng, takes, planted=True, sessions=sessions)
    spread = SESSION_SPREAD if sessions else 0.0
    hits = [
        e.difference.low <= true_difference(rows, e.factor, e.level, spread) <= e.difference.high
        for e in factor_table(rows).effects
        if e.factor in COSTS
    ]
    return sum(hits), len(hits)


def _cries(rng: np.random.Generator, takes: int, sessions: bool) -> tuple[int, int]:
    rows = made_up_takes(rng, takes, planted=False, sessions=sessions)
    return int(any(e.verdict != "not shown" for e in factor_table(rows).effects)), 1


LAWS: Final[Mapping[str, tuple[str, Callable[[np.random.Generator], tuple[int, int]]]]] = {
    "intervals of factors, 60 takes": ("95 % hold the truth", lambda g: _covers(g, 60, False)),
    "intervals of factors, 300 takes": ("95 % hold the truth", lambda g: _covers(g, 300, False)),
    "intervals of factors, 300 takes in 10 sessions that differ": (
        "95 % hold the truth",
        lambda g: _covers(g, 300, True),
    ),
    "no factor matters, 60 takes": ("at most 5 % alarms", lambda g: _cries(g, 60, False)),
    "no factor matters, 300 takes in 10 sessions that differ": (
        "at most 5 % alarms",
        lambda g: _cries(g, 300, True),
    ),
}
"""Law to what is promised and one draw of it: how often it came true, of how many."""


def measure_law(name: str, repeats: int, seed: int) -> dict[str, Any]:
    """Return how often a law's event came true over many sets of made-up trials."""
    promised, draw = LAWS[name]
    rng = np.random.default_rng([seed, *name.encode()])
    counts = np.array([draw(rng) for _ in range(repeats)]).sum(axis=0)
    share = rate(float(counts[0]), float(counts[1]))
    return {
        "promised": promised,
        "share": share.value,
        "interval": [share.low, share.high],
        "of": int(counts[1]),
    }
