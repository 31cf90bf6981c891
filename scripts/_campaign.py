"""A campaign as `gaploop record --plan` shows it: progress, what to set up, who has to agree."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from gaploop.collect.campaign import CampaignProgress, Quota, campaign_progress, held
from gaploop.collect.participants import (
    Participants,
    ProgrammeCost,
    first_takes,
    participants,
    programme_costs,
)
from gaploop.collect.scene_setup import change_words, sketch_text, words
from gaploop.core import consent_store
from gaploop.core.consent import Use, consent_ids, refused
from gaploop.core.errors import UnusableInputError
from gaploop.core.plan import Plan
from gaploop.core.station import Station
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Domain, TakeKind
from gaploop.scripts import options

log = logging.getLogger(__name__)

_BAR = 18


@dataclass(frozen=True)
class Campaign:
    """A plan on its way: its takes in order, one quota for each stretch of one set-up."""

    plan: Plan
    order: tuple[Quota, ...]
    journal: Path
    station: Station

    def participants(self) -> Participants | None:
        """Return who took part so far; None where the plan doesn't ask."""
        asked = self.plan.participants
        if asked is None:
            return None
        now = self.progress()
        bands = consent_store.read_bands(consent_store.default_register())
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
        """Return what `--json` says about it."""
        now = self.progress()
        people, following = self.participants(), None
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

    def as_text(self) -> str:
        """Return a table with a bar for every set-up, what comes next, and the time left.

        And where the plan asks for participants, how far each band is, and what programmes cost.
        """
        now = self.progress()
        tables = [_table(now, self.station.grid)]
        if people := self.participants():
            tables.append(_people_table(people))
            tables.append(_cost_table(self.costs(), self.station.costs.currency))
        return "\n".join([*options.as_lines(*tables), _summary(now, self.station.grid)])


def _table(now: CampaignProgress, grid: tuple[int, int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, ratio in (("purpose", 2), ("set-up", 5), ("takes", 1), ("", 2)):
        table.add_column(name, ratio=ratio, justify="right" if name == "takes" else "left")
    for dimension, setups in now.by_dimension().items():
        have = sum(min(s.have, s.wanted) for s in setups)
        wanted = sum(s.wanted for s in setups)
        if len(setups) > 1:
            table.add_row(dimension, "in all", f"{have}/{wanted}", _bar(have, wanted))
        for n, setup in enumerate(setups):
            name = dimension if len(setups) == 1 else f"  {n + 1}"
            said, bar = words(setup.conditions, grid), _bar(setup.have, setup.wanted)
            table.add_row(name, said, f"{setup.have}/{setup.wanted}", bar)
    return table


def _people_table(people: Participants) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("participants", "band", "takes", "", "people"):
        table.add_column(name)
    for p in people.progress():
        count = "few" if p.people is None else str(p.people)
        row = (p.kind.replace("_", " "), p.band, f"{p.have}/{p.wanted}", _bar(p.have, p.wanted))
        table.add_row(*row, count)
    return table


def _cost_table(costs: Sequence[ProgrammeCost], currency: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("programme", "people", "operator's hours", currency):
        table.add_column(name, justify="right")
    for c in costs:
        money = "no rate" if c.money is None else f"{c.money:,.0f}"
        table.add_row(f"{c.takes} takes", str(c.people), f"{c.hours:.1f}", money)
    return table


def takes_now(campaign: Campaign, consent: str) -> list[Quota]:
    """Return the campaign's order, no longer than those who take part now may add to it.

    Raises:
        UnusableInputError: nobody is named, a person's bands aren't known, or their takes would
            keep out people who are still asked for.
    """
    people = campaign.participants()
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


def _bar(have: int, wanted: int) -> str:
    done = min(_BAR, _BAR * have // max(1, wanted))
    return "█" * done + "░" * (_BAR - done)


def _summary(now: CampaignProgress, grid: tuple[int, int]) -> str:
    text = f"{now.have} of {now.wanted} takes."
    if not now.left:
        return f"{text} The plan is filled."
    first = now.left[0]
    basis = f"from {now.measured} takes" if now.measured else "assumed, before any take"
    text += f" About {_duration(now.left_s)} left ({basis})."
    text += f"\nNext: {words(first.conditions, grid)}, {options.counted(first.takes, 'take')}."
    sketch = sketch_text(first.conditions, grid)
    return f"{text}\n{sketch}" if sketch else text


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def require_person(
    station: Station, auto_start: bool, stdin_is_terminal: bool | None = None
) -> None:
    """Refuse a campaign on a real station where nobody can say that it is set up.

    Unless `auto_start`, which says that something else does it.

    Raises:
        UnusableInputError: there is a set-up to confirm and nobody to ask.
    """
    terminal = sys.stdin.isatty() if stdin_is_terminal is None else stdin_is_terminal
    if station.domain is Domain.REAL and not auto_start and not terminal:
        raise UnusableInputError(
            "--plan asks for set-ups that a person confirms with Enter, and stdin is no terminal. "
            "Run it in a terminal, or give --auto_start where something else sets the station up."
        )


def telling_set_ups(grid: tuple[int, int]) -> Callable[[Quota, Quota | None], bool]:
    """Return what says which set-up comes next, where the embedded cell sets itself up."""

    def set_up(quota: Quota, before: Quota | None) -> bool:
        was = None if before is None else before.conditions
        change = change_words(was, quota.conditions, grid)
        if before is None or change != "nothing to change":
            log.info("Set up: %s (%s).", change, options.counted(quota.takes, "take"))
        return True

    return set_up


def require_consents(quotas: Sequence[Quota], station: Station, consent: str) -> None:
    """Refuse to record people who haven't agreed; those of the embedded cell are simulated.

    Args:
        consent: ids of participants, separated by commas, or "".

    Raises:
        UnusableInputError: what can't be recorded, why, and how to fix it.
    """
    if not consent_ids(consent) and station.domain is not Domain.REAL:
        return
    register = consent_store.load_register()
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
