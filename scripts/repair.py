"""The command `gaploop repair`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gaploop.core import journal_format
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder
from gaploop.scripts.options import TakesFolder, emit, progress

if TYPE_CHECKING:
    from gaploop.datasets.repair.dataset import RepairReport


@dataclass
class RepairConfig:
    """Repair a damaged dataset, or a journal with open takes.

    A dataset: keeps every episode that is whole (of a cut-off file the ones before the cut),
    fixes names, rebuilds metadata and statistics, attaches labels that an edit tool dropped.
    Without --yes or --output_dir it only shows what it would do. With --yes it does it, and keeps
    the old folder next to it, as DIR.damaged-1. Intact data files are left unchanged. Where an
    episode or a file would be left out, it lists them and asks; with nobody to ask it changes
    nothing, unless --drop=true.

    A journal: of each take that a crash, a kill or a power cut left unsealed, keeps the longest
    stretch that all its streams hold and seals it as interrupted. Sealed takes are never touched.

    Running it again changes nothing. Exit code 0 where the folder is sound at the end, 1 where
    there is something to do, or something that it can't fix.
    """

    dataset: TakesFolder = field(default_factory=TakesFolder)
    yes: bool = False
    """Repair the dataset in place; the folder before is kept."""
    drop: bool = False
    """Leave out episodes and files of which nothing whole can be had, without asking."""
    output_dir: Path | None = None
    """Write the repaired dataset here instead; the damaged one is left unchanged."""
    labels_from: Path | None = None
    """Dataset or journal in which the takes still have their labels; found by gap.take."""
    task: str = ""
    """Name of tasks that nothing names any more."""
    rename_map: dict[str, str] = field(default_factory=dict)
    """Feature to its new name, such as '{state: observation.state}'."""
    deep: bool = False
    """Decode every picture, not only those that check decodes: finds damaged ones in large sets."""
    json: bool = False
    """Print {"ok", "actions", "lost", "left", "written", "kept"}; for a journal {"recovered",
    "open", "failed", "headless"}."""


EXAMPLE = """
gaploop repair recordings/pick_place
gaploop repair recordings/pick_place --yes
gaploop repair edited --labels_from=recordings/pick_place --output_dir=edited_labelled
gaploop repair recordings/journal
"""


def run(config: RepairConfig) -> int:
    """Repair the folder; 1 if something is left to do."""
    from gaploop.collect.recovery import recover
    from gaploop.datasets.repair.dataset import looks_like_dataset

    root = existing_folder(config.dataset.folder("repair"), "Folder")
    if looks_like_dataset(root):
        return _repair_dataset(config, root)
    has_streams = next(root.glob(f"*/{journal_format.FRAMES}"), None) is not None
    if not has_streams and not journal_format.is_journal(root):
        raise UnusableInputError(
            f"{root} holds neither a dataset nor takes. Name a dataset's folder, or the one that "
            "record was given with --journal."
        )
    only_for_datasets = {
        "--drop": config.drop,
        "--output_dir": config.output_dir is not None,
        "--labels_from": config.labels_from is not None,
        "--task": bool(config.task),
        "--rename_map": bool(config.rename_map),
        "--deep": config.deep,
    }
    given = [name for name, is_given in only_for_datasets.items() if is_given]
    if given:
        raise UnusableInputError(
            f"{', '.join(given)}: only for datasets, and {root} is a journal. Its takes are sealed "
            f"where they are: gaploop repair {shlex.quote(str(root))}"
        )
    with progress("Sealing takes"):
        report = recover(root)
    lines = [
        f"{take.uid}: {take.duration_s:.2f} s recovered ({take.frames} frames, "
        f"{take.telemetry_rows} telemetry rows); {take.cut_s:.2f} s cut off."
        for take in report.recovered
    ]
    lines += [f"{uid}: is being recorded, left alone." for uid in report.open]
    lines += [f"{uid}: not recovered: {why}" for uid, why in report.failed]
    lines += [f"{uid}: holds nothing yet; it may be deleted." for uid in report.headless]
    emit(config.json, report, "\n".join(lines) or f"{root}: every take is sealed.")
    return int(bool(report.failed))


def _repair_dataset(config: RepairConfig, root: Path) -> int:
    from gaploop.datasets.repair.dataset import RepairOptions, plan, repair

    options = RepairOptions(config.labels_from, config.task, config.deep, config.rename_map)
    writes = config.yes or config.output_dir is not None

    def repaired(drop: bool) -> RepairReport:
        with progress("Repairing" if writes else "Finding what to repair"):
            if not writes:
                return plan(root, options)
            return repair(root, options, config.output_dir, may_lose=lambda _lost: drop)

    report = repaired(config.drop)
    if writes and report.written is None and report.lost and not config.json and _has_person():
        text = "".join(f"\n  {what}" for what in report.lost)
        if input(f"This would be left out:{text}\nLeave it out? [y/N] ").strip().lower() == "y":
            report = repaired(True)
    undone = bool(report.actions) and report.written is None
    ok = not report.left and not undone
    lines = []
    if not report.actions and not report.left:
        lines.append(f"{root}: nothing to repair.")
    elif not report.actions:
        lines.append(f"{root}: nothing that repair can fix.")
    elif undone:
        lines.append(f"{root}: what repair would do (nothing is changed):")
    lines += [f"  {action.what}" for action in report.actions]
    if report.left:
        lines.append("What it can't fix:")
    for finding in report.left:
        lines += [f"  {finding.where}: {finding.message}", f"    → {finding.fix}"]
    where = shlex.quote(str(root))
    if report.written is not None:
        before = f"; before: {report.kept}" if report.kept else ""
        lines.append(f"Written: {report.written}{before}")
    elif undone and report.lost:
        lines.append("It would leave out what may still be had from where the dataset came from:")
        lines += [f"  {what}" for what in report.lost]
        lines.append(f"Get it and repair again; or: gaploop repair {where} --yes --drop=true")
    elif undone:
        lines.append(f"Do it with: gaploop repair {where} --yes   or --output_dir=DIR")
    answer = {
        "ok": ok,
        "actions": report.actions,
        "lost": report.lost,
        "left": [finding.to_json() for finding in report.left],
        "written": report.written,
        "kept": report.kept,
    }
    emit(config.json, answer, "\n".join(lines))
    return int(not ok)


def _has_person() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()
