"""What every importer hands over, and how it gets into the journal: once, whole, in order."""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gaploop.collect.journal import JournalWriter
from gaploop.core import journal_format
from gaploop.core.files import json_lines, writable_folder
from gaploop.core.journal_format import TakeHeader, append_truth
from gaploop.core.paths import inside
from gaploop.core.take import TakeInfo
from gaploop.core.types import FloatArray
from gaploop.core.vocabulary import Outcome


@dataclass(frozen=True)
class ImportedTake:
    """One stretch of a foreign log.

    Attributes:
        channels: telemetry column to unit.
        t_ns: times since the take began [ns], shape (n,).
        values: in the order of `channels`, NaN where missing, shape (n, n_channels).
        truth: what the source says about it; goes to `truth.jsonl` and nowhere else.
    """

    info: TakeInfo
    channels: Mapping[str, str]
    t_ns: NDArray[np.int64]
    values: FloatArray
    truth: Mapping[str, Any]


@dataclass(frozen=True)
class ImportReport:
    """How many takes an import wrote, how many were there, and what was left out and why."""

    written: int
    present: int
    notes: tuple[str, ...] = ()


def import_uid(t0_ns: int, *origin: object) -> str:
    """Return the uid of an imported take: the same for the same origin, sorted by its time.

    Args:
        t0_ns: when the take began [ns since 1970, UTC], or any number that sorts.
        origin: what tells it from every other take, such as file digest and row.
    """
    digest = hashlib.sha256(repr(origin).encode()).digest()
    value = (t0_ns // 1_000_000 & ((1 << 48) - 1)) << 80 | int.from_bytes(digest[:10], "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


def write_takes(
    journal: Path,
    takes: Sequence[ImportedTake],
    notes: Sequence[str] = (),
    on_take: Callable[[], None] | None = None,
) -> ImportReport:
    """Write takes into the journal; those that are there already are left alone."""
    writable_folder(journal, "Journal")
    truths = journal / journal_format.TRUTH
    known = set(json_lines(truths, "a truth record", lambda value, _where: str(value["uid"])))
    written = 0
    for take in takes:
        folder = inside(journal, take.info.uid, "uid")
        if not (folder / journal_format.END).exists():
            if folder.exists():
                shutil.rmtree(folder)  # an import that was killed: its uid makes it ours
            if take.info.uid not in known:
                append_truth(journal, take.info.uid, take.truth)
            with JournalWriter(journal, TakeHeader(take.info, channels=take.channels)) as writer:
                writer.telemetry_block(take.t_ns, take.values)
                writer.seal(Outcome.UNLABELLED, "imported")
            written += 1
        if on_take is not None:
            on_take()
    return ImportReport(written, len(takes) - written, tuple(notes))
