"""Which real takes are kept aside, and what the errors on them say of sessions and dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gaploop.core.errors import UnusableInputError

UNTAGGED: Final = "untagged"


@dataclass(frozen=True)
class TakeNote:
    """What deciding needs to know of a take.

    Attributes:
        dimensions: gap dimension to weight.
        index: episode index in its dataset.
    """

    uid: str
    session: str = ""
    dimensions: Mapping[str, float] = field(default_factory=dict)
    index: int = -1


def choose(takes: Sequence[TakeNote], share: float, seed: int = 0) -> frozenset[str]:
    """Return the uids of the takes to keep aside.

    Whole sessions where there are several, since takes of one sitting are alike and would make
    the error look better than it is on another day; single takes otherwise. No dimension is
    left without a take to train on, and dimensions that nobody is held out of yet go first.

    Args:
        share: how much of them, above 0 and below 1.
        seed: decides between groups that serve equally well.

    Raises:
        UnusableInputError: a share out of range, or too few takes to split.
    """
    if not 0 < share < 1:
        raise UnusableInputError(
            f"--held_out={share:g} must be above 0 and below 1; episodes are written as '[3]'."
        )
    groups = list(grouped(takes).values())
    if len(groups) < 2:
        raise UnusableInputError(
            f"{len(takes)} real take can't be split into takes to learn from and takes to hold "
            "out. Record more, or leave --held_out out."
        )
    order = np.random.default_rng((seed, len(takes))).permutation(len(groups)).tolist()
    wanted = max(1.0, share * len(takes))
    aside: list[TakeNote] = []
    while order:
        held, room = {d for t in aside for d in t.dimensions}, wanted - len(aside)

        def serves(i: int, held: set[str] = held, room: float = room) -> tuple[float, int]:
            # Where no session is small enough, the smallest.
            new = len({d for t in groups[i] for d in t.dimensions} - held)
            return min(0.0, room - len(groups[i])), new

        best = max(order, key=serves)
        order.remove(best)
        trial = [*aside, *groups[best]]
        gone = {t.uid for t in trial}
        kept = [t for t in takes if t.uid not in gone]
        left = {d for t in kept for d in t.dimensions}
        is_enough = bool(kept) and all(d in left for t in trial for d in t.dimensions)
        if is_enough and (not aside or len(trial) <= wanted):
            aside = trial
    if not aside:
        raise UnusableInputError(
            "No session can be held out without leaving a gap dimension untrained. Name "
            "episodes with --held_out, or record another session."
        )
    return frozenset(t.uid for t in aside)


def folds(takes: Sequence[TakeNote], n: int, seed: int = 0) -> list[frozenset[str]]:
    """Divide takes into `n` parts of about equal size, sessions whole where there are enough.

    Raises:
        UnusableInputError: fewer takes than parts.
    """
    groups = list(grouped(takes).values())
    if len(groups) < n:
        groups = [[t] for t in takes]
    if len(groups) < n:
        raise UnusableInputError(
            f"{len(takes)} real takes are too few to choose --mix.real by. Record more, or give "
            "a number, such as --mix.real=0.5."
        )
    order = np.random.default_rng((seed, len(takes), n)).permutation(len(groups))
    parts: list[set[str]] = [set() for _ in range(n)]
    for place in sorted(order.tolist(), key=lambda i: -len(groups[i])):
        min(parts, key=len).update(t.uid for t in groups[place])
    return [frozenset(p) for p in parts]


def grouped(takes: Iterable[TakeNote]) -> dict[str, list[TakeNote]]:
    """Return takes by session; by themselves where there is one session only."""
    by_session: dict[str, list[TakeNote]] = {}
    for take in takes:
        by_session.setdefault(take.session or take.uid, []).append(take)
    if len(by_session) > 1:
        return by_session
    return {t.uid: [t] for group in by_session.values() for t in group}


def by_group(errors: Mapping[str, float], takes: Iterable[TakeNote]) -> dict[str, dict[str, float]]:
    """Return the mean error of each `session` and each `dimension`.

    Args:
        errors: uid to error.
    """
    parts: dict[str, dict[str, list[float]]] = {"session": {}, "dimension": {}}
    for take in takes:
        if take.uid not in errors:
            continue
        error = errors[take.uid]
        parts["session"].setdefault(take.session or UNTAGGED, []).append(error)
        for dimension in take.dimensions or (UNTAGGED,):
            parts["dimension"].setdefault(str(dimension), []).append(error)
    return {
        kind: {name: float(np.mean(values)) for name, values in sorted(found.items())}
        for kind, found in parts.items()
    }
