"""The command `gaploop label`."""

import getpass
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from gaploop.core import labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_json
from gaploop.core.labels import FIELDS, LabelEvent
from gaploop.core.station import load_station
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.labels import (
    LabelStore,
    history,
    open_labelled,
    queried_values,
    repeats,
    value_of,
    where,
)
from gaploop.datasets.layout import EpisodeRow, numbers
from gaploop.scripts import options
from gaploop.scripts.options import counted, emit, progress, required

SET: Final = ("outcome", "failure_mode", "phase", "dimensions")
"""Options that set a label."""
NOT_SHOWN: Final = (
    "Another process is changing the dataset: the labels are saved, and its columns show them "
    "after the next label or publication."
)
MOST_ROWS: Final = 500
"""More episodes than this are counted, not listed: nobody reads them, and drawing them is slow."""
_MOST_VALUES: Final = 8
_MOST_STATEMENTS: Final = 4
_MOST_NUMBERS: Final = 10
POSITIONAL: Final = "root"
RARE = ("history", "undo", "note", "success_detector")
EXAMPLE: Final = """
gaploop label recordings/pick
gaploop label recordings/pick --where='outcome=failure failure_mode=slip,drift'
gaploop label recordings/pick --episodes=3 --outcome=failure --failure_mode=slip \\
    --dimensions='{"contact_dynamics": 0.8}' --author=ana
gaploop label recordings/pick --where=lighting=dim --phase=approach --author=ana
gaploop label recordings/pick --undo --author=ana
gaploop label recordings/pick --episodes=3 --history
gaploop label recordings/pick --success_detector=station.yaml
"""


@dataclass
class LabelConfig:
    """Label the episodes of a dataset or journal, and show their labels.

    Without anything to set it shows the labels that count. Labels are events that are only ever
    added: an engineer's label outranks an operator's, an operator's an automatic one, and within
    a source the newest counts. They survive deleting, splitting and merging with gaploop edit.
    Which episodes: --episodes, --where, or both. Exit code 1: there are none.
    """

    root: Path | None = None
    """Folder of the dataset or journal."""
    episodes: str = ""
    """These, such as 3, '[0, 3]' or '0:30'; in a journal the episodes at these places, oldest first
    from 0. Or episodes by their uids, or the beginnings of them."""
    where: str = ""
    """Those of which this is true, such as 'failure_mode=slip,drift lighting=dim'."""
    outcome: str | None = None
    """Set how it ended: success, failure, discarded, interrupted or unlabelled."""
    failure_mode: str | None = None
    """Set what was seen, such as slip; none clears it."""
    phase: str | None = None
    """Set when: approach, grasp, transport, place or retreat; none clears it."""
    dimensions: dict[str, float] | None = None
    """Set why: gap dimension to weight from 0 to 1; '{}' clears it."""
    author: str = ""
    """Who labels; your login name unless given."""
    note: str = ""
    """In your own words; with --outcome=discarded it is the reason."""
    undo: bool = False
    """Take back what the author labelled last, all of that one command."""
    history: bool = False
    """Show who labelled what when, what counts and why."""
    success_detector: Path | None = None
    """Of this station file: learn from the labels here to tell success by an episode's last
    pictures, and measure how often that is wrong (docs/teleoperate/unattended.md). Written beside
    the file, for gaploop rollout and gate."""
    json: bool = False
    """Print one JSON object."""


def run(config: LabelConfig) -> int:
    """Do the one thing that is asked for."""
    root = required(config.root, "Which folder? Name it: gaploop label DIR")
    sets = any(getattr(config, name) is not None for name in SET)
    if sets + config.undo + config.history + (config.success_detector is not None) > 1:
        raise UnusableInputError(
            "Setting labels, --undo, --history and --success_detector are done one at a time."
        )
    given = [n for n in ("author", "note") if getattr(config, n) != getattr(LabelConfig, n)]
    if given and not (sets or config.undo):  # it would be lost
        raise UnusableInputError(
            f"--{given[0]} goes with a label to set, such as --outcome=failure, or with --undo."
        )
    store = open_labelled(root)
    takes = store.select(config.episodes) if config.episodes else list(store.episodes)
    if config.where:
        wanted = set(where(config.where, takes))
        takes = [e for e in takes if e.index in wanted]
    if sets:
        return _set_labels(config, store, takes)
    if config.undo:
        return _undo(config, store, takes)
    if config.history:
        return _history(config, store, takes)
    if config.success_detector is not None:
        return _learn(config, config.success_detector, store, takes)
    return _show(config, store, takes)


def named_author(given: str) -> str:
    """Return who says something: the name given, or the login name.

    Raises:
        UnusableInputError: nobody knows who that is.
    """
    try:
        return given.strip() or getpass.getuser()
    except (KeyError, OSError):
        raise UnusableInputError("Who says so? Name yourself with --author=NAME.") from None


def _template(config: LabelConfig) -> LabelEvent:
    """Return an event by the author, of now, to be filled in."""
    author = named_author(config.author)
    return LabelEvent("", "outcome", "unlabelled", author, "engineer", note=config.note)


def _set_labels(config: LabelConfig, store: LabelStore, takes: Sequence[EpisodeRow]) -> int:
    if not (config.episodes or config.where):
        raise UnusableInputError(
            "Which episodes? Name them with --episodes or --where; all of them: --episodes=0:"
        )
    said = _template(config)
    values = {n: v for n in SET if (v := getattr(config, n)) is not None}
    for name in values:
        if values[name] == "none":
            values[name] = labels.NOTHING_SAID[name]
    if config.outcome == Outcome.DISCARDED and config.note:
        values["discard_reason"] = config.note
    own = labels.standing(e for e in store.events if e.author == said.author)
    new = [
        replace(said, uid=take.info.uid, field=name, value=value)
        for take in takes
        for name, value in values.items()
    ]
    return _write(config, store, [e for e in new if not repeats(e, own.get(e.key))], len(new))


def _undo(config: LabelConfig, store: LabelStore, takes: Sequence[EpisodeRow]) -> int:
    """Take back the author's last act about these episodes."""
    said = _template(config)
    uids = {take.info.uid for take in takes}
    own = [e for e in store.events if e.author == said.author and e.uid in uids]
    back = [e for e in own if e.at == own[-1].at and e.retracts]
    if not store.stale().isdisjoint(e.uid for e in back):  # killed before it could say so
        return _write(config, store, [], len(back), "taken back")
    act = labels.last_act([e for e in store.events if e.uid in uids], said.author)
    if not act:
        people = ", ".join(sorted({e.author for e in store.events if e.source != "auto"}))
        raise UnusableInputError(
            f"{store.root}: {said.author} has no label left to take back. "
            f"Name another with --author: {people or 'nobody has labelled it yet'}."
        )
    new = [labels.retraction(event, said.at, config.note) for event in act]
    return _write(config, store, new, len(new), "taken back")


def _learn(config: LabelConfig, file: Path, store: LabelStore, takes: Sequence[EpisodeRow]) -> int:
    """Measure a detector of success and write it beside a station's file."""
    from gaploop.failure_analysis.success import as_json, learn, success_path

    with progress("Looking at last pictures") as advance:
        found = learn(store, takes, load_station(file), advance)
    path = success_path(file)
    write_json(path, as_json(found))
    shown = found.shown()
    emit(
        config.json,
        {"file": path, "how": found.how, "camera": found.camera}
        | {"false_success": found.false_success, "false_failure": found.false_failure}
        | {"shown": shown},
        f"Told by {'object and target' if found.how == 'tracked' else 'the picture'} at the end, "
        f"camera {found.camera}, on episodes that it wasn't fitted to: {found.words()}.\n"
        f"A difference in success shows {shown.value:.0%} of itself in such labels: a gate needs "
        f"about {shown.value**-2:.1f} times the attempts (at worst {shown.low**-2:.1f}).\n"
        f"Written to {path}; rollout and gate use it with --station={file}.",
    )
    return 0


def _write(
    config: LabelConfig,
    store: LabelStore,
    new: Sequence[LabelEvent],
    stated: int,
    verb: str = "labelled",
) -> int:
    """Write events down and say what that changed; 1 where nothing was said about anything.

    `stated` counts what was there already, too.
    """
    adds, shown = bool(new) and store.lacks_columns, True
    if new or not store.lacks_columns:
        with progress("Writing labels"):
            shown = (store.add_columns() if adds else store).say(new)
    uids = list(dict.fromkeys(e.uid for e in new))
    store.refresh()  # others may have labelled meanwhile
    after = labels.standing(store.events)
    above = [after[e.key] for e in new if e.key in after and after[e.key].rank > e.rank]
    known = {e.info.uid: e for e in store.episodes}
    episodes, unchanged = [known[uid].index for uid in uids], stated - len(new)
    lines = []
    if not new:
        was = "set" if verb == "labelled" else verb
        why = f"These labels are {was} already." if unchanged else "No episode is chosen."
        lines.append(f"Nothing to write. {why}")
    else:
        said = list(dict.fromkeys(f"{e.field} = {_shown(e.value)}" for e in new))
        values = "; ".join([*said[:_MOST_STATEMENTS], *(["…"] if said[_MOST_STATEMENTS:] else [])])
        be = "is" if len(uids) == 1 else "are"
        which = numbers(episodes, _MOST_NUMBERS)
        lines.append(
            f"{counted(len(uids), store.what)} {be} {verb} ({which}) by {new[0].author}: {values}"
        )
        lines += [f"{unchanged} labels were set already."] if unchanged else []
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
    lines += [] if shown else [NOT_SHOWN]
    answer = {"dataset": store.root, "episodes": episodes, "uids": uids, "events": len(new)}
    answer |= {"unchanged": unchanged, "outranked": len(above), "columns": shown}
    answer |= {"author": new[0].author if new else ""}
    emit(config.json, answer, "\n".join(lines))
    return 0 if stated else 1


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        words = (f"{n} {v:g}" if isinstance(v, float) else f"{n} {v}" for n, v in value.items())
        return ", ".join(words) or "none"
    return str(value) or "none"


def _show(config: LabelConfig, store: LabelStore, takes: Sequence[EpisodeRow]) -> int:
    """Show the labels that stand, as a table with counts below; 1 where no episode is chosen."""
    said = labels.standing(store.events)
    origin = ("author", "source", "at", "confidence", "note")
    rows, table = [], Table(title=escape(f"{store.root}"), title_justify="left")
    for column in (store.what, "outcome", "failure mode", "phase", "dimensions", "said by"):
        table.add_column(column, overflow="fold")
    for take in takes:
        stand = {n: event for n in FIELDS if (event := said.get((take.info.uid, n))) is not None}
        rows.append(
            {
                store.what: take.index,
                "uid": take.info.uid,
                **{name: value_of(take, name, said) for name in FIELDS},
                "conditions": dict(take.info.conditions),
                "labels": {n: {k: getattr(e, k) for k in origin} for n, e in stand.items()},
            }
        )
        if len(rows) <= MOST_ROWS:
            people = dict.fromkeys(_who(vars(e)) for e in stand.values())
            words = (take.outcome.value, take.failure_mode, take.phase)
            cells = [str(take.index), *words, _shown(take.info.dimensions), ", ".join(people)]
            table.add_row(*(escape(c) if c != "none" else "" for c in cells))
    counts = {n: Counter(row[n] for row in rows) for n in ("outcome", "failure_mode")}
    emit(config.json, {"dataset": store.root, "takes": rows, "counts": counts})
    console = options.console(quiet=config.json)
    if takes:
        console.print(table)
    if len(takes) > MOST_ROWS:
        console.print(f"… and {len(takes) - MOST_ROWS} more: narrow it with --where, or use --json")
    parts = ", ".join(f"{n} {name}" for name, n in counts["outcome"].most_common())
    of_all = f"{len(takes)} of {len(store.episodes)} {store.what}s"
    lines = [f"{of_all}: {parts}" if parts else f"{of_all}."]
    if config.where and not takes:
        for name, found in queried_values(config.where, store.episodes).items():
            shown = ", ".join(f"{v} ({n})" for v, n in found.most_common(_MOST_VALUES))
            lines.append(f"  {name} is: {shown}{', …' if len(found) > _MOST_VALUES else ''}")
    console.print(escape("\n".join(lines)), soft_wrap=True, highlight=False)
    return 0 if takes else 1


def _history(config: LabelConfig, store: LabelStore, takes: Sequence[EpisodeRow]) -> int:
    """Show for each episode who said what when (UTC), which counts and why."""
    console = options.console(highlight=False, soft_wrap=True, quiet=config.json)
    found: list[dict[str, Any]] = []
    for take in (t for t in takes if store.about(t.info.uid)):
        entries = history(store.about(take.info.uid))
        events = [{**vars(e.event), "counts": e.counts, "why": e.why} for e in entries]
        found.append({store.what: take.index, "uid": take.info.uid, "events": events})
        console.print(f"[bold]{store.what} {take.index}[/]  {take.info.uid}")
        width = max(len(_who(event)) for event in events)
        for event in events:
            value = _shown(event["value"])
            sure = "" if event["confidence"] == 1 else f" ({event['confidence']:g})"
            said = event["field"] if event["retracts"] else f"{event['field']} = {value}{sure}"
            note = f'  "{event["note"]}"' if event["note"] else ""
            when = event["at"][:19].replace("T", " ")
            line = f"{when}  {_who(event):<{width}}  {said}: {event['why']}{note}"
            mark = "[green]✓[/] " if event["counts"] else "  "
            console.print(f"  {mark}{escape(line)}")
    if not found:
        console.print("Nobody has labelled these.")
    emit(config.json, {"dataset": store.root, "takes": found})
    return 0


def _who(event: Mapping[str, Any]) -> str:
    return f"{event['author']} ({event['source']})"
