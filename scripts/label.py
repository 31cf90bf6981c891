"""The command `gaploop label`."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from gaploop.core import labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder
from gaploop.core.labels import LabelEvent
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.labels.label_csv import export_events, export_takes, read_labels
from gaploop.datasets.labels.store import LabelStore, open_labelled, repeats
from gaploop.datasets.layout import EpisodeRow
from gaploop.scripts.check import are_many
from gaploop.scripts.options import emit, print_error, progress, required

SET: Final = ("outcome", "failure_mode", "phase", "dimensions")
"""Options that set a label."""
_MOST_DATASETS: Final = 20
POSITIONAL: Final = "roots"
RARE = ("history", "export", "import", "undo", "note")
EXAMPLE: Final = """
gaploop label recordings/pick
gaploop label recordings/pick --where='outcome=failure failure_mode=slip,drift'
gaploop label recordings/pick --episodes=3 --outcome=failure --failure_mode=slip \\
    --dimensions='{"contact_dynamics": 0.8}' --author=ana
gaploop label recordings/pick --where=lighting=dim --phase=approach --author=ana
gaploop label recordings/pick --undo --author=ana
gaploop label recordings --where=outcome=failure
gaploop label recordings/pick --episodes=3 --history
gaploop label recordings/pick --export=labels.csv      edit it, then: --import=labels.csv
"""


@dataclass
class LabelConfig:
    """Label the takes of a dataset or journal, and show their labels.

    Without anything to set it shows the labels that count. Labels are events that are only ever
    added: an engineer's label outranks an operator's, an operator's an automatic one, and within
    a source the newest counts. They survive deleting, splitting and merging with gaploop edit.
    Which takes: --episodes, --where, or both. Exit code 1: there are none. In several datasets
    (`gaploop label A B`, or a folder above datasets) --where finds takes, and labels nothing.
    """

    roots: list[str] = field(default_factory=list)
    """Folder of the dataset or journal; or several datasets, named as for gaploop check."""
    episodes: str = ""
    """These, such as 3, '[0, 3]' or '0:30'; in a journal the takes at these places, oldest first
    from 0. Or takes by their uids, or the beginnings of them."""
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
    """Show who labelled what when, what counts and why; and how far people agree: raw, and
    Cohen's or Fleiss' kappa, with 95 % intervals."""
    export: Path | None = None
    """Write a CSV file with one row per take; with --history one per event."""
    import_: Path | None = None
    """Read such a file, or any with uid or episode and label columns; all of it or nothing."""
    json: bool = False
    """Print one JSON object."""


def run(config: LabelConfig) -> int:
    """Do the one thing that is asked for."""
    from gaploop.datasets.labels.query import where
    from gaploop.scripts import _label_report

    required(config.roots, "Which folder? Name it: gaploop label DIR")
    if are_many(config.roots):
        searched = {name: getattr(config, name) for name in ("roots", "where", "json")}
        if not config.where or replace(LabelConfig(), **searched) != config:
            raise UnusableInputError(
                "Many datasets are searched: give --where alone. To set labels name one dataset: "
                "gaploop label DIR"
            )
        return _search(config)
    jobs = {
        _set_labels: any(getattr(config, name) is not None for name in SET),
        _undo: config.undo,
        _import_labels: config.import_ is not None,
        _export: config.export is not None,
    }
    asked = [job for job, yes in jobs.items() if yes]
    if len(asked) > 1 or (config.history and asked not in ([], [_export])):
        raise UnusableInputError(
            "Setting labels, --undo, --import, --export and --history are done one at a time; only "
            "--history --export go together."
        )
    said = ("author", "note")
    given = [n for n in said if getattr(config, n) != getattr(LabelConfig, n)]
    if given and not {_set_labels, _undo, _import_labels}.intersection(asked):
        raise UnusableInputError(  # it would be lost
            f"--{given[0]} goes with a label to set, such as --outcome=failure, with --undo or "
            "with --import."
        )
    store = open_labelled(Path(config.roots[0]))
    takes = store.select(config.episodes) if config.episodes else list(store.episodes)
    if config.where:
        wanted = set(where(config.where, takes))
        takes = [e for e in takes if e.index in wanted]
    if asked:
        return asked[0](config, store, takes)
    if config.history:
        from gaploop.datasets.labels.agreement import agreement

        found = _label_report.histories(store, takes)
        agreed = agreement(store.events, [take.info.uid for take in takes])
        emit(config.json, {"dataset": store.root, "takes": found, "agreement": agreed})
        if not config.json:
            _label_report.print_histories(store, found)
            _label_report.print_agreement(agreed)
        return 0
    emit(config.json, _label_report.current(store, takes))
    if not config.json:
        _label_report.print_current(store, takes, config.where)
    return 0 if takes else 1


def _search(config: LabelConfig) -> int:
    """Find episodes in many datasets; 1 where one couldn't be searched."""
    from gaploop.datasets.check.findings import numbers
    from gaploop.datasets.survey.sources import find_datasets
    from gaploop.datasets.survey.stream import find

    sources, results = find_datasets(config.roots), []
    with progress("Reading metadata", len(sources)) as advance:
        for one in find(config.where, sources):
            results.append(one)
            advance()
    hits = [one for one in results if len(one.episodes)]
    skipped = [one for one in results if one.skipped]
    answer = {
        "where": config.where,
        "datasets": len(results),
        "episodes": sum(one.scanned for one in results),
        "found": sum(len(one.episodes) for one in results),
        "frames": sum(one.frames for one in results),
        "by_dataset": [{**asdict(one), "episodes": one.episodes.tolist()} for one in results],
    }
    lines = [f"{one.dataset}: {numbers(one.episodes.tolist())}" for one in hits[:_MOST_DATASETS]]
    if len(hits) > _MOST_DATASETS:
        lines.append(f"… and {len(hits) - _MOST_DATASETS} more datasets; all with --json.")
    lines += [f"Not searched: {one.dataset}: {one.skipped}" for one in skipped[:_MOST_DATASETS]]
    lines.append(
        f"{answer['found']} of {answer['episodes']} episodes in {len(hits)} of {len(results)} "
        f"datasets, {answer['frames']} frames."
    )
    emit(config.json, answer, "\n".join(lines))
    return int(bool(skipped))


def _export(config: LabelConfig, store: LabelStore, takes: Sequence[EpisodeRow]) -> int:
    file = required(config.export, "Export to where? Name the file with --export=labels.csv.")
    if file.exists():
        raise UnusableInputError(
            f"{file} exists, and somebody may have edited it. Read it in first with "
            f"--import={file}, or name another with --export."
        )
    writable_folder(file.absolute().parent, "Folder", "--export")
    if config.history:
        uids, what = {take.info.uid for take in takes}, "events"
        rows = export_events([e for e in store.events if e.uid in uids], file)
    else:
        rows, what = export_takes(store, takes, file), f"{store.what}s"
    text = f"{file}: {rows} {what}. Read it back with: --import={file}"
    emit(config.json, {"file": file, "rows": rows}, text)
    return 0


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
            "Which takes? Name them with --episodes or --where; all of them: --episodes=0:"
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
    """Take back the author's last act about these takes."""
    said = _template(config)
    uids = {take.info.uid for take in takes}
    act = labels.last_act([e for e in store.events if e.uid in uids], said.author)
    if not act:
        people = ", ".join(sorted({e.author for e in store.events if e.source != "auto"}))
        raise UnusableInputError(
            f"{store.root}: {said.author} has no label left to take back. "
            f"Name another with --author: {people or 'nobody has labelled it yet'}."
        )
    new = [labels.retraction(event, said.at, config.note) for event in act]
    return _write(config, store, new, len(new), "taken back")


def _import_labels(config: LabelConfig, store: LabelStore, takes: Sequence[EpisodeRow]) -> int:
    file = required(config.import_, "Import what? Name the file with --import=labels.csv.")
    found = read_labels(store, file, _template(config))
    if found.ignored:
        print_error(
            f"columns that aren't labels, ignored: {', '.join(found.ignored)}", "gaploop label"
        )
    uids = {take.info.uid for take in takes}
    new = [e for e in found.events if e.uid in uids]
    return _write(config, store, new, len(new) + found.same, "imported", found.whole_history)


def _write(
    config: LabelConfig,
    store: LabelStore,
    new: Sequence[LabelEvent],
    stated: int,
    verb: str = "labelled",
    merged: bool = False,
) -> int:
    """Write events down and say what that changed; 1 where nothing was said about anything."""
    from gaploop.scripts._label_report import written

    adds = bool(new) and store.lacks_columns
    shown = True
    if new:
        with progress("Writing labels"):
            shown = (store.add_columns() if adds else store).say(new, merged=merged)
    answer, text = written(store, new, stated, verb, merged=merged, shown=shown, adds=adds)
    emit(config.json, answer, text)
    return 0 if stated else 1
