"""Trials with what was set in each."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.take import Take
from gaploop.core.vocabulary import CONDITIONS, Outcome, TakeKind, set_up

if TYPE_CHECKING:
    from gaploop.datasets.layout import EpisodeRow

NOMINAL: Final = "nominal"
"""Level of a condition that wasn't set: the station as it usually is."""
OTHER: Final = "other"
"""Level that rare ones are gathered in."""
FEWEST: Final = 3
"""Trials of a level that gets an estimate of its own."""
MOST_LEVELS: Final = 6
"""Different numbers in a condition above which they are gathered in ranges."""
ABOUT: Final = ("task", "policy", "operator", "station", "domain")
"""What is known about an episode besides its conditions and may cost success."""
SCENES: Final = ("scene", "seed")
"""Free conditions that name a scene; where two sets have them, their trials pair up."""


type Attempt = Take | EpisodeRow
"""What is known about an attempt, and how it ended."""


@dataclass(frozen=True)
class Trials:
    """Trials under equal circumstances, one row of a table.

    Attributes:
        levels: factor to its level in these trials, such as lighting to dim.
        cluster: trials of one cluster aren't independent; "" where nothing is known.
        t0_ns: when they began [ns since 1970, UTC], 0 if unknown.
    """

    levels: Mapping[str, str]
    successes: int
    trials: int
    cluster: str = ""
    t0_ns: int = 0
    uid: str = ""


def attempted[A: Take | EpisodeRow](attempts: Iterable[A]) -> tuple[list[A], str]:
    """Return the takes that say how often the robot succeeds, and in words which these are.

    Rollouts of policies where there are any: demonstrations succeed because people choose them.
    """
    judged = [a for a in attempts if a.outcome in (Outcome.SUCCESS, Outcome.FAILURE)]
    rollouts = [a for a in judged if a.info.kind == TakeKind.ROLLOUT]
    if not rollouts:
        return judged, "episodes that ended in success or failure"
    left = len(judged) - len(rollouts)
    return rollouts, "rollouts" + (
        f"; {left} episodes that aren't rollouts left out" if left else ""
    )


def trials_of(attempts: Iterable[Attempt]) -> tuple[Trials, ...]:
    """Return one row a take: its conditions, and task, policy, operator, station, domain."""
    attempts = list(attempts)
    raw = []
    for attempt in attempts:
        about = {name: str(getattr(attempt.info, name)) for name in ABOUT}
        known = {name: value for name, value in about.items() if value}
        raw.append({**set_up(attempt.info.conditions), **known})
    names = list(dict.fromkeys(name for row in raw for name in row))
    order = [*CONDITIONS, *sorted(set(names) - set(CONDITIONS) - set(ABOUT)), *ABOUT]
    columns = {
        name: _levels([row.get(name) for row in raw], name) for name in order if name in names
    }
    return tuple(
        Trials(
            {name: levels[n] for name, levels in columns.items()},
            int(a.outcome == Outcome.SUCCESS),
            1,
            a.info.session,  # one light, wear and mood: less than as many sessions would say
            a.info.t0_ns,
            a.info.uid,
        )
        for n, a in enumerate(attempts)
    )


def _levels(values: Sequence[Any], name: str) -> list[str]:
    """Return values as levels; what is nominal has one name, many numbers become ranges."""
    if name in ABOUT or name in SCENES:  # names, also where they are numbers
        return ["unknown" if value in (None, "") else str(value) for value in values]
    sizes = [_size(value) for value in values]
    different = {s for s in sizes if s}
    if None in sizes or len(different) <= MOST_LEVELS:
        return [_word(value) for value in values]
    known = sorted(s for s in sizes if s)
    edges = [known[round(share * (len(known) - 1))] for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    spans = list(itertools.pairwise(edges))

    def span_words(size: float) -> str:
        low, high = next((span for span in spans if size <= span[1]), spans[-1])
        return f"{low:.3g} to {high:.3g}"

    return [span_words(size) if size else NOMINAL for size in sizes]


def _size(value: Any) -> float | None:
    """Return how far from nominal a value is: its amount, a camera offset's length [m]; or None."""
    if value is None or _word(value) == NOMINAL:
        return 0.0
    if isinstance(value, int | float):
        return float(value)
    return math.hypot(*value[:3]) if _is_offset(value) else None


def _is_offset(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) >= 3
        and all(isinstance(v, int | float) for v in value)
    )


def _word(value: Any) -> str:
    if value is None or value in ("", "nominal", "default", "none", False):
        return NOMINAL
    if isinstance(value, float | int) and not isinstance(value, bool):
        return f"{value:g}" if value else NOMINAL
    if _is_offset(value):
        if not any(value):
            return NOMINAL
        shown = value if any(value[3:]) else value[:3]  # an offset [m, rad] that may have no turn
        return ", ".join(f"{v:g}" for v in shown)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


def without(rows: Sequence[Trials], factors: Collection[str]) -> tuple[Trials, ...]:
    """Return rows without some of their factors."""
    return tuple(
        replace(row, levels={f: v for f, v in row.levels.items() if f not in factors})
        for row in rows
    )


def gathered(rows: Sequence[Trials]) -> tuple[Trials, ...]:
    """Return rows whose rare levels are one, `other`, so that each level has some trials."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        counts.update(dict.fromkeys(row.levels.items(), row.trials))
    rare = {pair for pair, n in counts.items() if n < FEWEST and pair[1] != NOMINAL}
    if not rare:
        return tuple(rows)
    return tuple(
        replace(row, levels={f: OTHER if (f, v) in rare else v for f, v in row.levels.items()})
        for row in rows
    )
