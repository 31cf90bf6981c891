"""What `gaploop label` writes: labels set, taken back, imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gaploop.core.errors import UnusableInputError
from gaploop.scripts.options import emit, jsonable, progress

if TYPE_CHECKING:
    from gaploop.core.labels import LabelEvent
    from gaploop.datasets.labels.labelled import FolderLabels
    from gaploop.datasets.layout import EpisodeRow
    from gaploop.scripts.label import LabelConfig


def is_chosen(config: LabelConfig) -> bool:
    """Say whether takes are named."""
    named = config.episode is not None or config.episodes or config.uid or config.where
    return bool(named)


def named_author(given: str) -> str:
    """Return who says something: the name given, or the login name.

    Raises:
        UnusableInputError: nobody knows who that is.
    """
    import getpass

    try:
        return given.strip() or getpass.getuser()
    except (KeyError, OSError):
        raise UnusableInputError("Who says so? Name yourself with --author=NAME.") from None


def template(config: LabelConfig) -> LabelEvent:
    """Return an event by the author, of now, to be filled in.

    Raises:
        UnusableInputError: nobody knows who that is, or an option is out of range.
    """
    from gaploop.core.labels import LabelEvent

    author = named_author(config.author)
    return LabelEvent(
        "", "outcome", "unlabelled", author, config.source, "", config.confidence, config.note
    )


def set_labels(config: LabelConfig, folder: FolderLabels, takes: Sequence[EpisodeRow]) -> int:
    """Label takes; return the exit code."""
    from dataclasses import replace

    from gaploop.core import labels

    if not is_chosen(config):
        raise UnusableInputError(
            "Which takes? Name them with --episode, --episodes, --uid or --where; "
            "all of them: --where='episode>=0'"
        )
    said = template(config)
    values = {n: _value(n, v) for n in labels.FIELDS if (v := getattr(config, n)) is not None}
    own = labels.standing(e for e in folder.events if e.author == said.author)
    new = [
        replace(said, uid=take.info.uid, field=name, value=value)
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


def undo(config: LabelConfig, folder: FolderLabels, takes: Sequence[EpisodeRow]) -> int:
    """Take back the author's last act about these takes; return the exit code."""
    from gaploop.core import labels

    said = template(config)
    uids = {take.info.uid for take in takes}
    act = labels.last_act([e for e in folder.events if e.uid in uids], said.author)
    if not act:
        people = ", ".join(sorted({e.author for e in folder.events if e.source != "auto"}))
        raise UnusableInputError(
            f"{folder.root}: {said.author} has said nothing that isn't taken back. "
            f"Name another with --author: {people or 'nobody has labelled it yet'}."
        )
    new = [labels.retraction(event, said.at, config.note) for event in act]
    return _write(config, folder, new, len(new), "taken back")


def import_labels(config: LabelConfig, folder: FolderLabels, takes: Sequence[EpisodeRow]) -> int:
    """Import a CSV file; return the exit code."""
    from gaploop.datasets.labels.label_import import read_labels
    from gaploop.scripts.options import print_error

    if config.import_ is None:
        raise UnusableInputError("Import what? Name the file with --import=labels.csv.")
    found = read_labels(folder, config.import_, template(config))
    if found.ignored:
        print_error(f"these columns mean nothing here: {', '.join(found.ignored)}", "label")
    uids = {take.info.uid for take in takes}
    new = [e for e in found.events if e.uid in uids]
    return _write(config, folder, new, len(new) + found.same, "imported", found.whole_history)


def _write(
    config: LabelConfig,
    folder: FolderLabels,
    new: Sequence[LabelEvent],
    stated: int,
    verb: str = "labelled",
    merged: bool = False,
) -> int:
    """Write events down and say what that changed; 1 where nothing was said about anything."""
    from gaploop.datasets.labels.labelled import add_columns, lacks_columns, say
    from gaploop.scripts._label_report import written

    adds = bool(new) and lacks_columns(folder)
    shown = True
    if new and not config.dry_run:
        with progress("Writing labels"):
            shown = say(add_columns(folder) if adds else folder, new, merged=merged)
    answer, text = written(
        folder, new, stated, verb, config.dry_run, merged=merged, shown=shown, adds=adds
    )
    give(config, answer, text)
    return 0 if stated else 1


def give(config: LabelConfig, answer: Any, text: str = "") -> None:
    """Print an answer, and write it to the folder that was named for it."""
    from gaploop.core.files import writable_folder, write_json

    if config.output_dir is not None:
        write_json(writable_folder(config.output_dir) / "label.json", jsonable(answer))
    emit(config.json, answer, text)
