"""What `gaploop label` prints: tables for people, the same as JSON types for programs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from gaploop.core import labels
from gaploop.core.labels import FIELDS, LabelEvent
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.check.findings import numbers
from gaploop.datasets.labels.agreement import Agreement
from gaploop.datasets.labels.query import queried_values
from gaploop.datasets.labels.store import LabelStore, history, value_of
from gaploop.datasets.layout import EpisodeRow
from gaploop.scripts import options

NOT_SHOWN: Final = (
    "Another process is changing the dataset: the labels are saved, and its columns show them "
    "after the next label or publication."
)
MOST_ROWS: Final = 500
"""More takes than this are counted, not listed: nobody reads them, and drawing them is slow."""
_MOST_VALUES: Final = 8
_MOST_STATEMENTS: Final = 4
_MOST_NUMBERS: Final = 10
_METHODS: Final = {"cohen": "Cohen's", "fleiss": "Fleiss'"}


def written(
    store: LabelStore,
    new: Sequence[LabelEvent],
    stated: int,
    verb: str,
    *,
    shown: bool,
    adds: bool,
) -> tuple[dict[str, Any], str]:
    """Return what was written as JSON types and in words.

    Args:
        store: as it was before.
        new: what was written.
        stated: how many statements were made, those that were there already among them.
        shown: the columns show it.
        adds: the dataset got gap columns first.
    """
    uids = list(dict.fromkeys(e.uid for e in new))
    after = labels.standing([*store.events, *new])
    above = [after[e.key] for e in new if e.key in after and after[e.key].rank > e.rank]
    known = {e.info.uid: e for e in store.episodes}
    episodes, unchanged = [known[uid].index for uid in uids], stated - len(new)
    answer = {
        "dataset": store.root,
        "episodes": episodes,
        "uids": uids,
        "events": len(new),
        "unchanged": unchanged,
        "outranked": len(above),
        "author": new[0].author if new else "",
        "columns": shown,
    }
    lines = []
    if not new:
        why = "These labels are set already." if unchanged else "No take is chosen."
        lines.append(f"Nothing to write. {why}")
    else:
        said = list(dict.fromkeys(f"{e.field} = {_shown(e.value)}" for e in new))
        values = "; ".join(said[:_MOST_STATEMENTS])
        values += "; …" if len(said) > _MOST_STATEMENTS else ""
        be = "is" if len(uids) == 1 else "are"
        takes = options.counted(len(uids), store.what)
        people = ", ".join(sorted({e.author for e in new}))
        which = numbers(episodes, _MOST_NUMBERS)
        lines.append(f"{takes} {be} {verb} ({which}) by {people}: {values}")
        if unchanged:
            lines.append(f"{unchanged} labels were set already.")
    if above:
        who = ", ".join(sorted({f"{e.author} ({e.source})" for e in above}))
        lines.append(f"{len(above)} of these don't count: labels of {who} outrank them.")
    odd = []
    for uid in uids:
        outcome, mode = (after.get((uid, name)) for name in ("outcome", "failure_mode"))
        ended = outcome.value if outcome is not None else known[uid].outcome.value
        if ended == Outcome.SUCCESS and mode is not None and mode.value:
            odd.append(known[uid].index)
    if odd:
        lines.append(
            f"A success with a failure mode: {store.what} {numbers(odd, _MOST_NUMBERS)}. If it "
            "was one, clear the mode with --failure_mode=none."
        )
    if adds:
        lines.append(
            "Added gap columns to meta/episodes, with a uid for each "
            "episode. Edit with gaploop edit: LeRobot's own edit tool drops them."
        )
    if not shown:
        lines.append(NOT_SHOWN)
    return answer, "\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        words = (f"{n} {v:g}" if isinstance(v, float) else f"{n} {v}" for n, v in value.items())
        return ", ".join(words) or "none"
    return str(value) or "none"


def current(store: LabelStore, takes: Sequence[EpisodeRow]) -> dict[str, Any]:
    """Return the labels that stand, as JSON types."""
    said = labels.standing(store.events)
    origin = ("author", "source", "at", "confidence", "note")
    rows = [
        {
            store.what: take.index,
            "uid": take.info.uid,
            **{name: value_of(take, name, said) for name in FIELDS},
            "conditions": dict(take.info.conditions),
            "labels": {
                name: {n: getattr(event, n) for n in origin}
                for name in FIELDS
                if (event := said.get((take.info.uid, name))) is not None
            },
        }
        for take in takes
    ]
    counts = {
        name: dict(Counter(row[name] for row in rows)) for name in ("outcome", "failure_mode")
    }
    return {"dataset": store.root, "takes": rows, "counts": counts}


def print_current(store: LabelStore, takes: Sequence[EpisodeRow], where: str) -> None:
    """Print the labels that stand as a table, with counts below."""
    said = labels.standing(store.events)
    table = Table(title=escape(f"{store.root}"), title_justify="left")
    for column in (store.what, "outcome", "failure mode", "phase", "dimensions", "said by"):
        table.add_column(column, overflow="fold")
    for take in takes[:MOST_ROWS]:
        who = [said[key] for name in FIELDS if (key := (take.info.uid, name)) in said]
        people = dict.fromkeys(f"{e.author} ({e.source})" for e in who)
        values = (take.outcome.value, take.failure_mode, take.phase, _shown(take.info.dimensions))
        cells = [str(take.index), *(v if v != "none" else "" for v in values), ", ".join(people)]
        table.add_row(*map(escape, cells))
    console = options.console()
    if takes:
        console.print(table)
    if len(takes) > MOST_ROWS:
        console.print(f"… and {len(takes) - MOST_ROWS} more: narrow it with --where, or use --json")
    outcomes = Counter(take.outcome.value for take in takes)
    parts = ", ".join(f"{n} {name}" for name, n in outcomes.most_common())
    counted = f"{len(takes)} of {len(store.episodes)} {store.what}s"
    lines = [f"{counted}: {parts}" if parts else f"{counted}."]
    if where and not takes:
        for name, counts in queried_values(where, store.episodes).items():
            shown = ", ".join(f"{v} ({n})" for v, n in counts.most_common(_MOST_VALUES))
            lines.append(f"  {name} is: {shown}{', …' if len(counts) > _MOST_VALUES else ''}")
    for line in lines:
        console.print(escape(line), soft_wrap=True, highlight=False)


def histories(store: LabelStore, takes: Sequence[EpisodeRow]) -> list[dict[str, Any]]:
    """Return each take's events with what became of them; takes without any are left out."""
    return [
        {
            store.what: take.index,
            "uid": take.info.uid,
            "events": [
                {**vars(entry.event), "counts": entry.counts, "why": entry.why}
                for entry in history(store.about(take.info.uid))
            ],
        }
        for take in takes
        if store.about(take.info.uid)
    ]


def print_histories(store: LabelStore, found: Sequence[Mapping[str, Any]]) -> None:
    """Print for each take who said what when (UTC), which counts and why."""
    console = options.console(highlight=False, soft_wrap=True)
    if not found:
        console.print("Nobody has labelled these.")
    for take in found:
        console.print(f"[bold]{store.what} {take[store.what]}[/]  {take['uid']}")
        width = max(len(_who(event)) for event in take["events"])
        for event in take["events"]:
            value = _shown(event["value"])
            sure = "" if event["confidence"] == 1 else f" ({event['confidence']:g})"
            said = event["field"] if event["retracts"] else f"{event['field']} = {value}{sure}"
            note = f'  "{event["note"]}"' if event["note"] else ""
            when = event["at"][:19].replace("T", " ")
            line = f"{when}  {_who(event):<{width}}  {said}: {event['why']}{note}"
            mark = "[green]✓[/] " if event["counts"] else "  "
            console.print(f"  {mark}{escape(line)}")


def _who(event: Mapping[str, Any]) -> str:
    return f"{event['author']} ({event['source']})"


def print_agreement(found: Sequence[Agreement]) -> None:
    """Print how far labellers agree, field by field; nothing where there aren't two."""
    console = options.console(highlight=False)
    if not found:
        return
    shown = [a for a in found if a.takes or len(a.authors) > 2]
    width = max(len(", ".join(a.authors)) for a in shown or found)
    for a in shown:
        people = f"{a.field:<12}  {', '.join(a.authors):<{width}}"
        if not a.takes:
            console.print(f"{people}  no take is labelled by all of them", soft_wrap=True)
            continue
        low, high = a.raw_interval
        below, above = a.kappa_interval
        kappa = f"{_METHODS[a.method]} kappa {a.kappa:.2f} [{below:.2f}, {above:.2f}]"
        if math.isnan(a.kappa):
            kappa = "no kappa: all gave the same label throughout"
        raw = f"{a.takes:>4} takes  agree {a.raw:>4.0%} [{low:.0%}, {high:.0%}]"
        console.print(escape(f"{people}  {raw}  {kappa}"), soft_wrap=True)
    console.print("In brackets: 95 % intervals. Kappa: 1 is full agreement, 0 is chance.")
