"""A campaign on its way: how far it has come, with whom, and how many takes a person may add."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gaploop.collect.campaign import (
    CampaignProgress,
    Quota,
    campaign_progress,
    efforts,
    held,
    sealed_takes,
    still_missing,
)
from gaploop.collect.scene_setup import words
from gaploop.core import consent as consents
from gaploop.core.consent import Use, consent_ids, refused
from gaploop.core.errors import UnusableInputError
from gaploop.core.plan import ParticipantQuotas, Plan
from gaploop.core.station import Costs, Station
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Domain, TakeKind

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


@dataclass(frozen=True)
class Campaign:
    """A plan on its way: its takes in order, one quota for each stretch of one set-up."""

    plan: Plan
    order: tuple[Quota, ...]
    journal: Path
    station: Station

    def people(self) -> Participants | None:
        """Return who took part so far; None where the plan doesn't ask."""
        asked = self.plan.participants
        if asked is None:
            return None
        now = self.progress()
        bands = consents.read_bands(consents.default_register())
        return participants(self.journal, self.order, asked, bands, now.wanted - now.have)

    def costs(self) -> tuple[ProgrammeCost, ...]:
        """Return what programmes with participants cost here; empty where the plan asks none."""
        asked = self.plan.participants
        if asked is None:
            return ()
        return programme_costs(self.progress(), self.order, asked.most_each, self.station.costs)

    def progress(self) -> CampaignProgress:
        """Return how far it has come, from the journal."""
        return campaign_progress(self.journal, self.order)

    def as_json(self) -> dict[str, Any]:
        """Return how far it has come and what comes next, as `--json` prints it."""
        now = self.progress()
        people, following = self.people(), None
        if now.left:
            first = now.left[0]
            following = {
                "item": first.plan,
                "conditions": first.conditions,
                "takes": first.takes,
                "words": words(first.conditions, self.station.grid),
            }
        return {
            "plan": self.plan.id,
            "have": now.have,
            "wanted": now.wanted,
            "left_s": now.left_s,
            "measured": now.measured,
            "attempts_per_take": now.attempts_per_take,
            "setups": now.setups,
            "participants": people.progress() if people else (),
            "costs": self.costs(),
            "next": following,
        }


def takes_now(campaign: Campaign, consent: str) -> list[Quota]:
    """Return the campaign's order, no longer than those who take part now may add to it.

    Raises:
        UnusableInputError: nobody is named, a person's bands aren't known, or their takes would
            keep out people who are still asked for.
    """
    people = campaign.people()
    if people is None:
        return list(campaign.order)
    ids = consent_ids(consent)
    if not ids:
        raise UnusableInputError(
            f"Plan '{campaign.plan.id}' asks who takes part. Name them with --consent=ID; new "
            "ones: gaploop consent add … --bands='{age_band: 30-44, handedness: left, …}'."
        )
    for id_ in ids:
        missing = [kind for kind in people.quotas.bands if kind not in people.bands.get(id_, {})]
        if missing:
            raise UnusableInputError(
                f"Plan '{campaign.plan.id}' asks for {', '.join(missing)}, not known of {id_}. Add "
                f"it with: gaploop consent add {id_} … --bands='{{{missing[0]}: …}}'."
            )
    room = min(people.room(id_) for id_ in ids)
    if not room and people.left:
        lacking = [f"{p.kind} {p.band}" for p in people.progress() if p.have < p.wanted]
        raise UnusableInputError(
            f"No takes left for {consent} in plan '{campaign.plan.id}' (at most "
            f"{people.quotas.most_each or 'any number'} each). Still needed: "
            f"{', '.join(lacking) or 'other people'}."
        )
    return first_takes(
        campaign.order, held(campaign.journal, TakeKind.DEMONSTRATION, campaign.order), room
    )


def require_consents(quotas: Sequence[Quota], station: Station, consent: str) -> None:
    """Refuse to record people who haven't agreed; those of the embedded cell are simulated.

    Args:
        consent: ids of participants, separated by commas, or "".

    Raises:
        UnusableInputError: what can't be recorded, why, and how to fix it.
    """
    if not consent_ids(consent) and station.domain is not Domain.REAL:
        return
    register = consents.load_register()
    for quota in quotas:
        info = TakeInfo(
            "",
            domain=station.domain,
            conditions=quota.conditions,
            dimensions=quota.dimensions,
            consent=consent,
        )
        reason = register.refusal(info, Use.RECORD)
        if reason:
            what = f"Plan item '{quota.plan}'" if quota.plan else "The takes"
            raise refused(reason, Use.RECORD, what)
