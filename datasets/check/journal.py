"""A journal: every take is readable, sealed ones are whole and unchanged; and its labels."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.core import errors, journal_format, labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import sha256
from gaploop.datasets.check.findings import Findings
from gaploop.datasets.video import count_frames

_RESTORE: Final = "Restore the take's folder from a copy, or discard the take."


def check_journal(journal: Path, findings: Findings) -> None:
    """Check every take of a journal: readable, sealed ones whole and unchanged; and its labels."""
    try:
        list(labels.read(journal / journal_format.LABELS))
    except (UnusableInputError, OSError) as error:
        findings.error("bad_labels", journal_format.LABELS, str(error), "Fix that line.")
        return
    for folder in journal_format.take_folders(journal):
        try:
            header, end = journal_format.read_header(folder), journal_format.read_end(folder)
        except (UnusableInputError, *errors.DAMAGE) as error:
            findings.error("bad_take", folder.name, str(error), _RESTORE)
            continue
        if header.info.uid != folder.name:
            text = f"Its header names {header.info.uid}."
            findings.error("bad_take", folder.name, text, "Rename the folder to that uid.")
        if end is None:
            text = "Not sealed, so not published: a crash or kill ended it, or it is still open."
            fix = f"gaploop check {shlex.quote(str(journal))} --fix"
            findings.warn("unsealed", folder.name, text, fix)
            continue
        present = {path.name: path for path in folder.iterdir()}
        for name, digest in end.checksums.items():
            path = present.get(name)
            if path is None:
                findings.error("missing_file", f"{folder.name}/{name}", "It is missing.", _RESTORE)
            elif sha256(path) != digest:
                text = "It was changed after sealing: its checksum differs."
                findings.error("changed_file", f"{folder.name}/{name}", text, _RESTORE)
        try:
            take = journal_format.read_take(folder)
        except (UnusableInputError, *errors.DAMAGE) as error:
            findings.error("bad_take", folder.name, str(error), _RESTORE)
            continue
        for what, found, sealed in (
            ("frames", len(take.frames), end.frames),
            ("telemetry rows", len(take.telemetry), end.telemetry_rows),
        ):
            if found != sealed:
                text = f"{found} {what} can be read, {sealed} were sealed."
                findings.error("row_count", folder.name, text, _RESTORE)
        if not np.isfinite(take.frames.state).all():
            text = "NaN or infinite joint state."
            findings.error("not_finite", folder.name, text, "Discard the take.")
        for camera in header.cameras:
            video = journal_format.camera_path(folder, camera)
            where = f"{folder.name}/{video.name}"
            try:
                pictures = count_frames(video) if video.exists() else end.frames  # told above
                if pictures != end.frames:
                    text = f"{pictures} pictures for {end.frames} frames."
                    findings.error("video_frames", where, text, "Discard the take.")
            except UnusableInputError as error:
                findings.error("unreadable", where, str(error), _RESTORE)
            if end.dropped.get(camera):
                text = f"{camera}: {end.dropped[camera]} of {end.frames} pictures were dropped; "
                text += "those rows have the previous picture."
                fix = "Use the take if that is good enough. Fewer or smaller pictures prevent it."
                findings.warn("dropped_pictures", folder.name, text, fix)
