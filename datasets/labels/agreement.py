"""How far labellers agree: raw agreement and kappa, with intervals, for each field.

Kappa is agreement beyond what their habits alone would give: Cohen's for two, Fleiss' for more
(statsmodels). Its interval is Wilson's for the raw agreement, carried through kappa with the
agreement by chance held: bootstrap and asymptotic intervals shrink to nothing where people agree
on few takes (docs/data/labels.md has the coverage of each, simulated).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np

from gaploop.core import labels
from gaploop.core.labels import LabelEvent
from gaploop.core.statistics import rate

FIELDS: Final = ("outcome", "failure_mode", "phase", "dimensions")
NOTHING: Final = "none"


@dataclass(frozen=True)
class Agreement:
    """How far some labellers agree on one field.

    Attributes:
        field: a label field; of dimensions, the one with the largest weight counts.
        method: cohen or fleiss.
        takes: how many all of them have labelled.
        raw: share of pairs of labels that agree, 0 to 1; NaN without takes.
        raw_interval: of `raw`, 95 % (Wilson).
        kappa: agreement beyond chance, at most 1; NaN where all of them always said the same word,
            or without takes.
        kappa_interval: of `kappa`, 95 %.
    """

    field: str
    authors: tuple[str, ...]
    method: str
    takes: int
    raw: float
    raw_interval: tuple[float, float]
    kappa: float
    kappa_interval: tuple[float, float]


def agreement(events: Iterable[LabelEvent], uids: Iterable[str]) -> list[Agreement]:
    """Return for each field how far all labellers agree on some takes, then how far each two do.

    A labeller's last word on a take counts, also where somebody else's stands. Automatic labels
    are left out: they are no second opinion.
    """
    wanted = set(uids)
    people = [e for e in events if e.source != labels.SOURCES[0] and e.uid in wanted]
    words: dict[str, dict[str, dict[str, str]]] = {name: {} for name in FIELDS}  # author, take
    for author in sorted({e.author for e in people}):
        for (uid, name), e in labels.standing(e for e in people if e.author == author).items():
            if name in words:
                words[name].setdefault(author, {})[uid] = main_word(e.value, NOTHING)
    found = []
    for name, said in words.items():
        groups = [tuple(said), *combinations(said, 2)] if len(said) > 2 else [tuple(said)]
        for authors in (g for g in groups if len(g) > 1):
            common = sorted(set.intersection(*(set(said[a]) for a in authors)))
            method = "cohen" if len(authors) == 2 else "fleiss"
            if not common:
                none = (math.nan, math.nan)
                found.append(Agreement(name, authors, method, 0, math.nan, none, math.nan, none))
                continue
            labelled = [[said[a][uid] for a in authors] for uid in common]
            every, codes = np.unique(labelled, return_inverse=True)
            codes = codes.reshape(len(common), len(authors))
            counts = np.stack([(codes == k).sum(axis=1) for k in range(len(every))], axis=1)
            pairs = len(authors) * (len(authors) - 1)
            raw = float((counts * (counts - 1)).sum() / pairs / len(common))
            interval = rate(raw * len(common), len(common))
            ends = (interval.low, interval.high)
            kappa, kappa_interval = math.nan, (math.nan, math.nan)
            if len(every) > 1:  # else chance alone would agree
                # By chance: of two people, as often as each says a word (Cohen 1960); of more, as
                # often as all of them do (Fleiss 1971).
                shares = [(codes[:, [k]] == np.arange(len(every))).mean(axis=0) for k in (0, -1)]
                if len(authors) > 2:
                    shares = [counts.sum(axis=0) / codes.size] * 2
                chance = float(shares[0] @ shares[1])
                kappa = (raw - chance) / (1 - chance)
                low, high = (max(-1.0, (end - chance) / (1 - chance)) for end in ends)
                kappa_interval = low, min(high, 1.0)
            found.append(
                Agreement(name, authors, method, len(common), raw, ends, kappa, kappa_interval)
            )
    return found


def main_word(value: Any, nothing: str = "") -> str:
    """Return what a label says in one word: of dimensions, the one with the largest weight."""
    if isinstance(value, Mapping):
        return max(value, key=lambda name: (value[name], name), default=nothing)
    return str(value) or nothing
