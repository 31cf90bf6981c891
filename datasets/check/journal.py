"""Rules of `check` for a journal: every take readable, sealed ones whole and unchanged."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.core import journal_format, labels
from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import sha256
from gaploop.core.journal_format import TakeEnd, TakeHeader, read_end, read_header, read_take
from gaploop.datasets.check.findings import Findings
from gaploop.datasets.video import count_frames

_RESTORE: Final = "Restore the take's folder from a copy, or discard the take."


def check_journal(journal: Path, findings: Findings) -> None:
    """Check every take of a journal, and its labels."""
    try:
        list(labels.read(journal / journal_format.LABELS))
    except (UnusableInputError, OSError) as error:
        findings.error("bad_labels", journal_format.LABELS, str(error), "Mend that line.")
        return
    for folder in journal_format.take_folders(journal):
        try:
            header, end = read_header(folder), read_end(folder)
        except (UnusableInputError, *DAMAGE) as error:
            findings.error("bad_take", folder.name, str(error), _RESTORE)
            continue
        if header.info.uid != folder.name:
            text = f"Its header names {header.info.uid}."
            findings.error("bad_take", folder.name, text, "Rename the folder to that uid.")
        if end is None:
            findings.warn(
                "unsealed",
                folder.name,
                "Never sealed, so no dataset takes it: a crash or kill ended it, or it goes on.",
                f"gaploop repair {shlex.quote(str(journal))}",
            )
        else:
            _check_sealed(folder, header, end, findings)


def _check_sealed(folder: Path, header: TakeHeader, end: TakeEnd, findings: Findings) -> None:
    present = {path.name: path for path in folder.iterdir()}
    for name, digest in end.checksums.items():
        path = present.get(name)
        if path is None:
            findings.error("missing_file", f"{folder.name}/{name}", "It is missing.", _RESTORE)
        elif sha256(path) != digest:
            text = "It is not what was sealed: its checksum differs."
            findings.error("changed_file", f"{folder.name}/{name}", text, _RESTORE)
    try:
        take = read_take(folder)
    except (UnusableInputError, *DAMAGE) as error:
        findings.error("bad_take", folder.name, str(error), _RESTORE)
        return
    rows = {"frames": (len(take.frames), end.frames)}
    rows["telemetry rows"] = (len(take.telemetry), end.telemetry_rows)
    for what, (found, sealed) in rows.items():
        if found != sealed:
            text = f"{found} {what} can be read, {sealed} were sealed."
            findings.error("row_count", folder.name, text, _RESTORE)
    if not np.isfinite(take.frames.state).all():
        findings.error(
            "not_finite", folder.name, "NaN or infinite joint state.", "Discard the take."
        )
    for camera in header.cameras:
        _check_video(folder, camera, end.frames, findings)
        if end.dropped.get(camera):
            text = (
                f"{camera}: {end.dropped[camera]} of {end.frames} pictures were dropped; those "
                "rows stand beside the picture before."
            )
            mend = "Use it if that will do. With fewer or smaller pictures the encoder keeps up."
            findings.warn("dropped_pictures", folder.name, text, mend)


def _check_video(folder: Path, camera: str, frames: int, findings: Findings) -> None:
    path = journal_format.camera_path(folder, camera)
    where = f"{folder.name}/{path.name}"
    if not path.exists():
        return  # reported by its checksum
    try:
        found = count_frames(path)
    except UnusableInputError as error:
        findings.error("unreadable", where, str(error), _RESTORE)
        return
    if found != frames:
        text = f"{found} pictures for {frames} frames."
        findings.error("video_frames", where, text, "Discard the take.")
