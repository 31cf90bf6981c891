"""Which takes are listed, and in which order: what needs a person comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from gaploop.core.vocabulary import Outcome, set_up
from gaploop.datasets.labels.query import where
from gaploop.datasets.layout import EpisodeRow
from gaploop.failure_analysis.diagnosis_record import NO_MODE, UNKNOWN_MODE, TakeDiagnosis

ANY: Final = ""
SETTLED: Final = (Outcome.SUCCESS, Outcome.DISCARDED)
"""Outcomes that nobody has to look into."""


class Who(StrEnum):
    """What has been said about a take, as a filter."""

    NEEDS_YOU = "needs you"
    UNLABELLED = "unlabelled"
    LABELLED = "labelled by you"
    DISAGREEMENT = "people disagree"
    UNSURE = "no clear cause"


@dataclass(frozen=True)
class Filter:
    """Which takes are listed; an empty word asks for nothing.

    A dimension is one that they are tagged with, or that is suggested first; a condition is as
    `lighting=dim`. The text is words that stand in uid, task, conditions, operator, session or
    policy, or a query such as `lighting=dim phase=grasp`.
    """

    outcome: str = ANY
    mode: str = ANY
    dimension: str = ANY
    condition: str = ANY
    session: str = ANY
    policy: str = ANY
    who: str = ANY
    text: str = ANY


@dataclass(frozen=True)
class Listed:
    """One take as the list shows it to a labeller, with the diagnosis, if there is one."""

    episode: EpisodeRow
    done: bool
    differ: bool
    found: TakeDiagnosis | None

    @property
    def uid(self) -> str:
        """Its uid."""
        return self.episode.info.uid

    @property
    def needs(self) -> bool:
        """Whether the labeller still has to look at it."""
        return not self.done and self.episode.outcome not in SETTLED

    @property
    def mode(self) -> str:
        """The mode that is labelled, or else suggested."""
        seen = self.found and self.found.mode not in (NO_MODE, UNKNOWN_MODE)
        suggested = self.found.mode if self.found and seen else ""
        return self.episode.failure_mode or suggested

    @property
    def why(self) -> str:
        """The heaviest dimension that is labelled on a failure, or else suggested, or ""."""
        weights = self.episode.info.dimensions
        if weights and self.episode.outcome == Outcome.FAILURE:
            return max(weights, key=lambda name: weights[name])
        return self.found.top if self.found else ""

    @property
    def maybe(self) -> str:
        """The leading dimension of a diagnosis that abstains, while nobody named a cause, or ""."""
        settled = self.episode.outcome in SETTLED
        if self.found is None or not self.found.abstained or self.why or settled:
            return ""
        return self.found.leaning


def choose(takes: Sequence[Listed], by: Filter) -> list[Listed]:
    """Return the takes that a filter asks for, those that need a person first.

    Raises:
        UnusableInputError: its text is a query that can't be understood.
    """
    found, words = {t.episode.index for t in takes}, list[str]()
    if "=" in by.text:
        found = set(where(by.text, [t.episode for t in takes], "Search"))
    else:
        words = by.text.casefold().split()
    chosen = []
    for take in takes:
        info = take.episode.info
        yes = take.episode.index in found
        if words:
            known = (info.uid, info.task, info.operator, info.session, info.policy, info.plan)
            searched = (*known, *_conditions(info.conditions), f"#{take.episode.index}")
            haystack = " ".join(searched).casefold()
            yes = all(word in haystack for word in words)
        if (
            yes
            and by.outcome in (ANY, take.episode.outcome)
            and by.mode in (ANY, take.mode)
            and by.session in (ANY, info.session)
            and by.policy in (ANY, info.policy)
            and (by.dimension in (ANY, take.why) or by.dimension in info.dimensions)
            and (by.condition == ANY or by.condition in _conditions(info.conditions))
            and (by.who == ANY or _WHO[Who(by.who)](take))
        ):
            chosen.append(take)
    return sorted(chosen, key=_urgency)


def _urgency(take: Listed) -> tuple[int, float, int]:
    """Return what the list is sorted by: group, how clear the suggestion is, episode.

    First what people disagree on, then what the labeller hasn't seen, the least clear first; last
    what is done, and what went well.
    """
    if take.differ:
        return 0, 0.0, take.episode.index
    if not take.needs:
        return (3 if take.done else 4), 0.0, take.episode.index
    if take.found is None or take.found.abstained:
        return 1, 0.0, take.episode.index
    return 2, max(take.found.dimensions.values()), take.episode.index


_WHO: Final[Mapping[Who, Callable[[Listed], bool]]] = {
    Who.NEEDS_YOU: lambda t: t.needs,
    Who.UNLABELLED: lambda t: not t.episode.failure_mode and t.episode.outcome not in SETTLED,
    Who.LABELLED: lambda t: t.done,
    Who.DISAGREEMENT: lambda t: t.differ,
    Who.UNSURE: lambda t: t.found is not None and t.found.abstained,
}


def _conditions(conditions: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in set_up(conditions).items()]


MOST_OPTIONS: Final = 200
"""A list that is longer is no help; the search finds the others."""


def offered(takes: Sequence[Listed]) -> dict[str, list[str]]:
    """Return what the filters offer: field of `Filter` to values, the most frequent first."""
    infos = [t.episode.info for t in takes]
    values = {
        "outcome": [t.episode.outcome.value for t in takes],
        "mode": [t.mode for t in takes],
        "dimension": [t.why for t in takes],
        "condition": [c for info in infos for c in _conditions(info.conditions)],
        "session": [info.session for info in infos],
        "policy": [info.policy for info in infos],
    }
    counts = {name: Counter(v for v in found if v) for name, found in values.items()}
    return {name: [v for v, _ in n.most_common(MOST_OPTIONS)] for name, n in counts.items()}
