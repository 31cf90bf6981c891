"""The command `gaploop label`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.scripts.options import emit, jsonable

if TYPE_CHECKING:
    from gaploop.core.labels import LabelEvent
    from gaploop.datasets.labelled import Labelled
    from gaploop.datasets.layout import Episode

EXAMPLE: Final = """
gaploop label recordings/pick
gaploop label recordings/pick --where='outcome==failure and contact_dynamics>0.5'
gaploop label recordings/pick --episode=3 --outcome=failure --failure_mode=slip \\
    --dimensions='{"contact_dynamics": 0.8}' --author=ana
gaploop label recordings/pick --where='lighting==dim' --phase=approach --author=ana --dry_run
gaploop label recordings/pick --undo --author=ana
gaploop label --roots='[recordings]' --where='outcome==failure'
gaploop label recordings/pick --episode=3 --history
gaploop label recordings/pick --agreement
gaploop label recordings/pick --export=labels.csv      edit it, then: --import=labels.csv
"""
_SET: Final = ("outcome", "failure_mode", "phase", "dimensions", "discard_reason")


@dataclass
class LabelledFolder:
    """What is labelled."""

    root: Path | None = None
    """Folder of the dataset or journal (`gaploop label DIR` is short for it)."""


@dataclass
class LabelConfig:
    """Label the takes of a dataset or journal, and show what was said about them.

    Without anything to set it shows the labels that stand. Labels are events that are only ever
    added: an engineer's word stands above an operator's, that above an automatic one, and of one
    source the newest. They survive deleting, splitting and merging with gaploop edit. Which takes:
    --episode, --episodes, --uid, --where, or several of them. Exit code 1 where there are none.
    """

    dataset: LabelledFolder = field(default_factory=LabelledFolder)
    episode: int | None = None
    """This episode; in a journal the take at this place, oldest first from 0."""
    episodes: str = ""
    """These episodes, such as '[0, 3]' or '0:30'."""
    uid: list[str] = field(default_factory=list)
    """These takes by their uids, or the beginnings of them."""
    where: str = ""
    """Those of which this is true, such as 'failure_mode in [slip, drift] and lighting==dim'."""
    roots: list[str] = field(default_factory=list)
    """With --where: search these many datasets, as gaploop survey does, and label nothing."""
    outcome: str | None = None
    """Set how it ended: success, failure, discarded, interrupted or unlabelled."""
    failure_mode: str | None = None
    """Set what was seen, such as slip; none clears it."""
    phase: str | None = None
    """Set when: approach, grasp, transport, place or retreat; none clears it."""
    dimensions: dict[str, float] | None = None
    """Set why: gap dimension to weight from 0 to 1; '{}' clears it."""
    discard_reason: str | None = None
    """Set why it is discarded, in words."""
    author: str = ""
    """Who says so; your login name unless given."""
    source: str = "engineer"
    """engineer, operator or auto."""
    confidence: float = 1.0
    """How sure, from 0 to 1."""
    note: str = ""
    """In your own words."""
    undo: bool = False
    """Take back what the author said last, all of that one command."""
    dry_run: bool = False
    """Say what would be written, and write nothing."""
    history: bool = False
    """Show who said what when, what counts and why."""
    agreement: bool = False
    """Show how far people agree: raw, and Cohen's or Fleiss' kappa, with 95 % intervals."""
    export: Path | None = None
    """Write a CSV file with one row per take; with --history one per event."""
    import_: Path | None = None
    """Read such a file, or any with uid or episode and label columns; all of it or nothing."""
    output_dir: Path | None = None
    """Write what --json prints to label.json there."""
    json: bool = False
    """Print one JSON object."""


def run(config: LabelConfig) -> int:
    """Do the one thing that is asked for."""
    from gaploop.datasets.labelled import open_labelled

    if config.roots:
        return _search_many(config)
    if config.dataset.root is None:
        raise UnusableInputError("Which folder? Name it: gaploop label DIR")
    setting = [name for name in _SET if getattr(config, name) is not None]
    jobs = {
        _set: bool(setting),
        _undo: config.undo,
        _import: config.import_ is not None,
        _agreement: config.agreement,
        _export: config.export is not None,
    }
    asked = [job for job, yes in jobs.items() if yes]
    if len(asked) > 1:
        raise UnusableInputError(
            "Setting labels, --undo, --import, --agreement and --export are done one at a time."
        )
    folder = open_labelled(config.dataset.root)
    job = asked[0] if asked else _history if config.history else _show
    return job(config, folder, _chosen(config, folder))


def _search_many(config: LabelConfig) -> int:
    from dataclasses import replace

    from gaploop.scripts import survey

    searched = {name: getattr(config, name) for name in ("roots", "where", "output_dir", "json")}
    plain = replace(LabelConfig(), **searched)
    if not config.where or plain != config:
        raise UnusableInputError(
            "--roots searches many datasets: give it --where alone. To set labels name one "
            "dataset: gaploop label DIR"
        )
    return survey.run(
        survey.SurveyConfig(config.roots, config.where, config.output_dir, config.json)
    )


def _chosen(config: LabelConfig, folder: Labelled) -> list[Episode]:
    """Return the takes that are named; all of them where none is."""
    from gaploop.datasets.labelled import chosen
    from gaploop.datasets.query import where

    indices = [] if config.episode is None else [config.episode]
    if config.episodes:
        from gaploop.datasets.lerobot_import import parse_episodes

        indices += parse_episodes(config.episodes, len(folder.episodes))
    named = indices or config.uid
    found = chosen(folder, indices, config.uid) if named else list(folder.episodes)
    if not config.where:
        return found
    wanted = set(where(config.where, found))
    return [e for e in found if e.index in wanted]


def _is_chosen(config: LabelConfig) -> bool:
    named = config.episode is not None or config.episodes or config.uid or config.where
    return bool(named)


def _template(config: LabelConfig) -> LabelEvent:
    """Return an event by the author, of now, to be filled in.

    Raises:
        UnusableInputError: nobody knows who that is, or an option is out of range.
    """
    import getpass

    from gaploop.core.labels import LabelEvent

    try:
        author = config.author.strip() or getpass.getuser()
    except (KeyError, OSError):
        raise UnusableInputError("Who says so? Name yourself with --author=NAME.") from None
    return LabelEvent(
        "", "outcome", "unlabelled", author, config.source, "", config.confidence, config.note
    )


def _set(config: LabelConfig, folder: Labelled, takes: Sequence[Episode]) -> int:
    from dataclasses import replace

    from gaploop.core import labels

    if not _is_chosen(config):
        raise UnusableInputError(
            "Which takes? Name them with --episode, --episodes, --uid or --where; "
            "all of them: --where='episode>=0'"
        )
    template = _template(config)
    values = {n: _value(n, v) for n in _SET if (v := getattr(config, n)) is not None}
    own = labels.standing(e for e in folder.events if e.author == template.author)
    new = [
        replace(template, uid=take.info.uid, field=name, value=value)
        for take in takes
        for name, value in values.items()
    ]
    return _write(config, folder, [e for e in new if not _same(e, own.get(e.key))], len(new))


def _value(name: str, value: Any) -> Any:
    from gaploop.core.labels import NOTHING_SAID

    return NOTHING_SAID[name] if value == "none" and name != "discard_reason" else value


def _same(event: LabelEvent, before: LabelEvent | None) -> bool:
    """Say whether an author says what they said last, in the same way."""
    from dataclasses import replace

    return before is not None and replace(before, at=event.at) == event


def _undo(config: LabelConfig, folder: Labelled, takes: Sequence[Episode]) -> int:
    from gaploop.core import labels

    template = _template(config)
    uids = {take.info.uid for take in takes}
    act = labels.last_act([e for e in folder.events if e.uid in uids], template.author)
    if not act:
        people = ", ".join(sorted({e.author for e in folder.events if e.source != "auto"}))
        raise UnusableInputError(
            f"{folder.root}: {template.author} has said nothing that isn't taken back. "
            f"Name another with --author: {people or 'nobody has labelled it yet'}."
        )
    new = [labels.retraction(event, template.at, config.note) for event in act]
    return _write(config, folder, new, len(new), "taken back")


def _import(config: LabelConfig, folder: Labelled, takes: Sequence[Episode]) -> int:
    from gaploop.datasets.label_import import read_labels
    from gaploop.scripts.options import print_error

    if config.import_ is None:
        raise UnusableInputError("Import what? Name the file with --import=labels.csv.")
    found = read_labels(folder, config.import_, _template(config))
    if found.ignored:
        print_error(f"these columns mean nothing here: {', '.join(found.ignored)}", "label")
    uids = {take.info.uid for take in takes}
    new = [e for e in found.events if e.uid in uids]
    return _write(config, folder, new, len(new) + found.same, "imported", found.whole_history)


def _write(
    config: LabelConfig,
    folder: Labelled,
    new: Sequence[LabelEvent],
    stated: int,
    verb: str = "labelled",
    merged: bool = False,
) -> int:
    """Write events down and say what that changed; 1 where nothing was said about anything."""
    from gaploop.datasets.labelled import add_columns, lacks_columns, say
    from gaploop.scripts._label_report import written

    adds = bool(new) and lacks_columns(folder)
    shown = True
    if new and not config.dry_run:
        shown = say(add_columns(folder) if adds else folder, new, merged=merged)
    answer, text = written(
        folder, new, stated, verb, config.dry_run, merged=merged, shown=shown, adds=adds
    )
    _answer(config, answer, text)
    return 0 if stated else 1


def _show(config: LabelConfig, folder: Labelled, takes: Sequence[Episode]) -> int:
    from gaploop.scripts._label_report import current, print_current

    _answer(config, current(folder, takes))
    if not config.json:
        print_current(folder, takes, config.where)
    return 0 if takes else 1


def _history(config: LabelConfig, folder: Labelled, takes: Sequence[Episode]) -> int:
    from gaploop.scripts._label_report import histories, print_histories

    found = histories(folder, takes)
    _answer(config, {"dataset": folder.root, "takes": found})
    if not config.json:
        print_histories(folder, found)
    return 0


def _agreement(config: LabelConfig, folder: Labelled, takes: Sequence[Episode]) -> int:
    from gaploop.datasets.agreement import agreement
    from gaploop.scripts._label_report import print_agreement

    found = agreement(folder.events, [take.info.uid for take in takes])
    _answer(config, {"dataset": folder.root, "fields": found})
    if not config.json:
        print_agreement(folder, found)
    return 0 if found else 1


def _export(config: LabelConfig, folder: Labelled, takes: Sequence[Episode]) -> int:
    from gaploop.core.files import writable_folder
    from gaploop.datasets.label_csv import export_events, export_takes

    if config.export is None:
        raise UnusableInputError("Export to where? Name the file with --export=labels.csv.")
    writable_folder(config.export.absolute().parent, "Folder", "--export")
    if config.history:
        uids = {take.info.uid for take in takes}
        rows = export_events([e for e in folder.events if e.uid in uids], config.export)
    else:
        rows = export_takes(folder, takes, config.export)
    what = "events" if config.history else f"{folder.what}s"
    text = f"{config.export}: {rows} {what}. Read it back with: --import={config.export}"
    _answer(config, {"file": config.export, "rows": rows}, text)
    return 0


def _answer(config: LabelConfig, answer: Any, text: str = "") -> None:
    from gaploop.core.files import writable_folder, write_json

    if config.output_dir is not None:
        write_json(writable_folder(config.output_dir) / "label.json", jsonable(answer))
    emit(config.json, answer, text)
