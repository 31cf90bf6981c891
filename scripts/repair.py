"""The command `gaploop repair`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gaploop.core.errors import UnusableInputError
from gaploop.scripts.options import emit

if TYPE_CHECKING:
    from gaploop.collect.recovery import RecoveryReport


@dataclass
class RepairedFolder:
    """What is repaired."""

    root: Path | None = None
    """Folder of the journal (`gaploop repair DIR` is short for it)."""


@dataclass
class RepairConfig:
    """Make takes whole that a crash, a kill or a power cut left in a journal unsealed.

    Keeps of each the longest stretch that all its streams hold, with one picture per row, and
    seals it as interrupted; label it otherwise and it is published. Sealed takes are never
    touched, nor those that are being recorded; running it again changes nothing. Exit code 1
    where a take can't be recovered. `record` does the same when it starts.
    """

    dataset: RepairedFolder = field(default_factory=RepairedFolder)
    json: bool = False
    """Print {"recovered", "open", "failed", "headless"}."""


EXAMPLE = """
gaploop repair recordings/journal
gaploop repair recordings/journal --json | jq '.recovered[].duration_s'
"""


def run(config: RepairConfig) -> int:
    """Repair the journal; 1 if a take could not be recovered."""
    from gaploop.collect.recovery import recover
    from gaploop.core.files import existing_folder

    root = config.dataset.root
    if root is None:
        raise UnusableInputError("Which folder? Name it: gaploop repair JOURNAL")
    _require_journal(existing_folder(root, "Journal"))
    report = recover(root)
    emit(config.json, report, _words(report, root))
    return int(bool(report.failed))


def _require_journal(root: Path) -> None:
    """Refuse what isn't a journal, with what can be done about a dataset."""
    from gaploop.core import journal_format
    from gaploop.datasets import layout

    if layout.is_dataset(root):
        raise UnusableInputError(
            f"{root} is a dataset; repair mends journals. Look into it with: gaploop check {root}"
        )
    has_streams = next(root.glob(f"*/{journal_format.FRAMES}"), None) is not None
    if not has_streams and not journal_format.is_journal(root):
        raise UnusableInputError(
            f"{root} holds no takes. Name the folder that record was given with --journal."
        )


def _words(report: RecoveryReport, root: Path) -> str:
    lines = [
        f"{take.uid}: {take.duration_s:.2f} s recovered ({take.frames} frames, "
        f"{take.telemetry_rows} telemetry rows); {take.cut_s:.2f} s cut off."
        for take in report.recovered
    ]
    lines += [f"{uid}: is being recorded, left alone." for uid in report.open]
    lines += [f"{uid}: not recovered: {why}" for uid, why in report.failed]
    lines += [f"{uid}: holds nothing yet; it may be deleted." for uid in report.headless]
    return "\n".join(lines) or f"{root}: every take is sealed."
