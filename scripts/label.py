"""The command `gaploop label`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.labels import FIELDS
from gaploop.scripts._label_write import give, import_labels, set_labels, undo

if TYPE_CHECKING:
    from gaploop.datasets.labels.labelled import FolderLabels
    from gaploop.datasets.layout import EpisodeRow

RARE = (
    "uid", "roots", "discard_reason", "source", "confidence", "agreement", "export", "import",
)  # fmt: skip
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
    from gaploop.datasets.labels.labelled import open_labelled

    if config.roots:
        return _search_many(config)
    if config.dataset.root is None:
        raise UnusableInputError("Which folder? Name it: gaploop label DIR")
    setting = [name for name in FIELDS if getattr(config, name) is not None]
    jobs = {
        set_labels: bool(setting),
        undo: config.undo,
        import_labels: config.import_ is not None,
        _agreement: config.agreement,
        _export: config.export is not None,
    }
    asked = [job for job, yes in jobs.items() if yes]
    if len(asked) > 1 or (config.history and asked not in ([], [_export])):
        raise UnusableInputError(
            "Setting labels, --undo, --import, --agreement, --export and --history are done one at "
            "a time; only --history --export go together."
        )
    _check_said(config, asked)
    folder = open_labelled(config.dataset.root)
    job = asked[0] if asked else _history if config.history else _show
    return job(config, folder, _chosen(config, folder))


def _check_said(config: LabelConfig, asked: Sequence[Any]) -> None:
    """Refuse what would be said about a label where none is set: it would be lost."""
    said = ("author", "source", "confidence", "note", "dry_run")
    given = [n for n in said if getattr(config, n) != getattr(LabelConfig, n)]
    if given and not {set_labels, undo, import_labels}.intersection(asked):
        raise UnusableInputError(
            f"--{given[0]} goes with a label to set, such as --outcome=failure, with --undo or "
            "with --import."
        )


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


def _chosen(config: LabelConfig, folder: FolderLabels) -> list[EpisodeRow]:
    """Return the takes that are named; all of them where none is."""
    from gaploop.datasets.labels.labelled import chosen
    from gaploop.datasets.labels.query import where

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


def _show(config: LabelConfig, folder: FolderLabels, takes: Sequence[EpisodeRow]) -> int:
    from gaploop.scripts._label_report import current, print_current

    give(config, current(folder, takes))
    if not config.json:
        print_current(folder, takes, config.where)
    return 0 if takes else 1


def _history(config: LabelConfig, folder: FolderLabels, takes: Sequence[EpisodeRow]) -> int:
    from gaploop.scripts._label_report import histories, print_histories

    found = histories(folder, takes)
    give(config, {"dataset": folder.root, "takes": found})
    if not config.json:
        print_histories(folder, found)
    return 0


def _agreement(config: LabelConfig, folder: FolderLabels, takes: Sequence[EpisodeRow]) -> int:
    from gaploop.datasets.labels.agreement import agreement
    from gaploop.scripts._label_report import print_agreement

    found = agreement(folder.events, [take.info.uid for take in takes])
    give(config, {"dataset": folder.root, "fields": found})
    if not config.json:
        print_agreement(folder, found)
    return 0 if found else 1


def _export(config: LabelConfig, folder: FolderLabels, takes: Sequence[EpisodeRow]) -> int:
    from gaploop.core.files import writable_folder
    from gaploop.datasets.labels.label_csv import export_events, export_takes

    if config.export is None:
        raise UnusableInputError("Export to where? Name the file with --export=labels.csv.")
    if config.export.exists():
        raise UnusableInputError(
            f"{config.export} exists, and somebody may have edited it. Read it in first with "
            f"--import={config.export}, or name another with --export."
        )
    writable_folder(config.export.absolute().parent, "Folder", "--export")
    if config.history:
        uids = {take.info.uid for take in takes}
        rows = export_events([e for e in folder.events if e.uid in uids], config.export)
    else:
        rows = export_takes(folder, takes, config.export)
    what = "events" if config.history else f"{folder.what}s"
    text = f"{config.export}: {rows} {what}. Read it back with: --import={config.export}"
    give(config, {"file": config.export, "rows": rows}, text)
    return 0
