"""How far a campaign has come with the people that it asks for, and how many takes one may add."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gaploop.collect.campaign import CampaignProgress, Quota, efforts, sealed_takes, still_missing
from gaploop.core.consent import consent_ids
from gaploop.core.participants import ParticipantQuotas
from gaploop.core.station import Costs
from gaploop.core.vocabulary import TakeKind

FEWEST_PEOPLE: Final = 5
"""Smaller groups aren't counted in what is printed: k-anonymity (Sweeney, 2002) with k = 5."""


@dataclass(frozen=True)
class BandProgress:
    """One band: takes of its people, at least how many are asked for, and how many people they are.

    `people` is None where telling would single somebody out.
    """

    kind: str
    band: str
    have: int
    wanted: int
    people: int | None


@dataclass(frozen=True)
class Participants:
    """Who took part so far: bands and takes that count by consent id, and takes that are `left`."""

    quotas: ParticipantQuotas
    bands: Mapping[str, Mapping[str, str]]
    takes: Counter[str]
    left: int

    def progress(self) -> tuple[BandProgress, ...]:
        """Return every band that is asked for; groups that would single somebody out not told."""
        found: list[BandProgress] = []
        for kind, wanted in self.quotas.bands.items():
            came = [id_ for id_, n in self.takes.items() if n]
            people = {
                band: {id_ for id_ in came if self.bands.get(id_, {}).get(kind) == band}
                for band in wanted
            }
            small = {b for b, ids in people.items() if 0 < len(ids) < FEWEST_PEOPLE}
            if len(small) == 1:  # one alone could be told from the others' sum
                rest = [b for b in wanted if len(people[b]) >= FEWEST_PEOPLE]
                small |= set(sorted(rest, key=lambda b: len(people[b]))[:1])
            for band, least in wanted.items():
                have = sum(self.takes[id_] for id_ in people[band])
                shown = None if band in small else len(people[band])
                found.append(BandProgress(kind, band, have, least, shown))
        return tuple(found)

    def room(self, id_: str) -> int:
        """Return how many takes of this person the plan has room for.

        As many as leave enough for what other bands still lack, and no more than `most_each`.
        """
        rooms = [self.left]
        if self.quotas.most_each:
            rooms.append(self.quotas.most_each - self.takes[id_])
        for kind in self.quotas.bands:
            own = self.bands[id_].get(kind)
            others = [p for p in self.progress() if p.kind == kind and p.band != own]
            rooms.append(self.left - sum(max(0, p.wanted - p.have) for p in others))
        return max(0, min(rooms))


def participants(
    journal: Path,
    order: Sequence[Quota],
    quotas: ParticipantQuotas,
    bands: Mapping[str, Mapping[str, str]],
    left: int,
) -> Participants:
    """Return who took part in a campaign, from its journal and what is known of their bands."""
    items = {quota.plan for quota in order}
    takes = Counter[str]()
    for take in sealed_takes(journal, TakeKind.DEMONSTRATION):
        if take.counts and take.info.plan in items:
            takes.update(consent_ids(take.info.consent))
    return Participants(quotas, bands, takes, left)


def first_takes(order: Sequence[Quota], have: Mapping[str, int], most: int) -> list[Quota]:
    """Return the order with no more than `most` takes of it left to record."""
    shortened = []
    for quota, lacking in zip(order, still_missing(order, have), strict=True):
        now = min(lacking, most)
        most -= now
        shortened.append(replace(quota, takes=quota.takes - lacking + now))
    return shortened


PROGRAMME: Final = (150, 200, 250, 300)
"""Takes that collection programmes for one remedy ask for."""
WELCOME_S: Final = 900.0
"""Consent, briefing and trying out, for each person [s]. Assumed."""
TAKES_EACH: Final = 15
"""Takes of one person where the plan doesn't limit them. Assumed."""


@dataclass(frozen=True)
class ProgrammeCost:
    """What so many takes cost at a station: an operator's hours, welcoming people included [h].

    `money` has the station and fees in it, too; None without an hourly rate.
    """

    takes: int
    people: int
    hours: float
    money: float | None


def programme_costs(
    now: CampaignProgress, order: Sequence[Quota], most_each: int, costs: Costs
) -> tuple[ProgrammeCost, ...]:
    """Return what the plan's takes, and programmes of 150 to 300, cost.

    Times are those that the station file states, else those of the takes so far, else assumed.
    """
    take_s, reset_s, setup_s = (
        seen if stated is None else stated
        for stated, seen in (
            (costs.take_s, now.take_s), (costs.reset_s, now.reset_s), (costs.setup_s, now.setup_s)
        )
    )  # fmt: skip
    setups_s = sum(efforts(order)) * setup_s
    each_s = now.attempts_per_take * (take_s + reset_s) + setups_s / max(1, now.wanted)
    welcome_s = WELCOME_S if costs.welcome_s is None else costs.welcome_s
    found = []
    for takes in sorted({now.wanted, *PROGRAMME}):
        people = math.ceil(takes / (most_each or TAKES_EACH))
        hours = (takes * each_s + people * welcome_s) / 3600.0
        rate = costs.rate_per_hour
        money = None if rate is None else hours * rate + people * (costs.fee_per_person or 0.0)
        found.append(ProgrammeCost(takes, people, hours, money))
    return tuple(found)
