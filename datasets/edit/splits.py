"""Which takes go into which part of a split, with no session in two parts.

Takes of one session share light, table, operator and the day's calibration: with some of it in
the part that a policy learns from and some in the part that it is judged by, the judgement is
flattering. Takes without a session stand for themselves.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.datasets.layout import EpisodeRow

type Parts = dict[str, list[int]]
"""Name of each part to the episodes in it."""

NAME: Final = """name episodes: --splits='{"train": "0:40", "test": "40:"}'"""
_FIELDS: Final[dict[str, Callable[[EpisodeRow], object]]] = {
    **{name: attrgetter(name) for name in ("outcome", "failure_mode", "phase")},
    "dimension": lambda e: max(e.info.dimensions, key=lambda d: e.info.dimensions[d], default=""),
    **{name: attrgetter(f"info.{name}") for name in ("kind", "domain", "session", "operator")},
    **{n: attrgetter(f"info.{n}") for n in ("station", "calibration", "policy", "plan", "task")},
}


def session_of(episode: EpisodeRow) -> str:
    """Return what tells a take's session from others; a take without one is its own."""
    return episode.info.session or f"take {episode.info.uid}"


def shared_sessions(parts: Parts, episodes: Sequence[EpisodeRow]) -> list[str]:
    """Return the sessions that are in more than one part."""
    session = {e.index: session_of(e) for e in episodes}
    seen: dict[str, set[str]] = {}
    for name, indices in parts.items():
        for index in indices:
            seen.setdefault(session[index], set()).add(name)
    return sorted(s for s, names in seen.items() if len(names) > 1)


def by_share(episodes: Sequence[EpisodeRow], shares: Mapping[str, float], seed: int = 0) -> Parts:
    """Split at random by shares of the takes, which add up to 1; one seed gives the same parts.

    Sessions stay together, which may miss the shares.

    Raises:
        UnusableInputError: shares that don't add up, or fewer sessions than parts.
    """
    bad = [s for s in shares.values() if not 0 < s < 1]
    if bad or len(shares) < 2 or abs(sum(shares.values()) - 1) > 1e-6:
        text = ", ".join(f"{name}: {share:g}" for name, share in shares.items())
        raise UnusableInputError(
            f"Shares {{{text}}} must be two or more numbers between 0 and 1 that add up to 1."
        )
    groups: dict[str, list[int]] = {}
    for episode in episodes:
        groups.setdefault(session_of(episode), []).append(episode.index)
    if len(groups) < len(shares):
        names = ", ".join(sorted(groups)[:3])
        raise UnusableInputError(
            f"The {len(episodes)} takes are of {len(groups)} session{'s'[: len(groups) != 1]} "
            f"({names}), too few for {len(shares)} parts that share no session. "
            f"Record in another session, or {NAME}."
        )
    drawn = [groups[key] for key in sorted(groups)]
    random.Random(seed).shuffle(drawn)
    drawn.sort(key=len, reverse=True)  # stable: equal ones stay shuffled
    parts: Parts = {name: [] for name in shares}
    for left, group in zip(range(len(drawn), 0, -1), drawn, strict=True):
        empty = [name for name in parts if not parts[name]]
        open_to = empty if left == len(empty) else list(parts)
        wanted = {name: shares[name] * len(episodes) - len(parts[name]) for name in open_to}
        parts[max(open_to, key=lambda name: wanted[name])] += group
    return {name: sorted(indices) for name, indices in parts.items()}


def by_field(episodes: Sequence[EpisodeRow], name: str) -> Parts:
    """Split by a field such as `outcome`, or a condition: one part for each value.

    Raises:
        UnknownChoiceError: no take has such a condition.
        UnusableInputError: all takes have the same value, or two values the same folder.
    """
    conditions = {key for e in episodes for key in e.info.conditions}
    if name not in _FIELDS and name not in conditions:
        raise unknown_choice("field", name, [*_FIELDS, *conditions], "--splits")
    read: Callable[[EpisodeRow], object]
    read = _FIELDS.get(name, lambda e: e.info.conditions.get(name, ""))
    parts: Parts = {}
    values: dict[str, str] = {}
    for episode in episodes:
        value = read(episode)
        text = str(value) if isinstance(value, str) else json.dumps(value)
        part = re.sub(r"[^\w.+=-]+", "_", text).strip("_.") or "none"  # a folder's name
        if values.setdefault(part, text) != text:
            raise UnusableInputError(
                f"--splits={name}: '{values[part]}' and '{text}' would both go to {part}. "
                "Make them one word with gaploop edit retag, or name the parts: --splits='{…}'."
            )
        parts.setdefault(part, []).append(episode.index)
    if len(parts) < 2:
        raise UnusableInputError(
            f"All {len(episodes)} takes have {name} '{next(iter(parts))}': nothing to split."
            " Split by something in which they differ."
        )
    return dict(sorted(parts.items()))
