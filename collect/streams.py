"""A take's streams of rows: Arrow batches, each written with one write(2), and events as lines.

Appending only copies the row; a `Flusher` writes and syncs behind the recorder's back, in two
threads, so that the control loop never waits for the disk.
"""

from __future__ import annotations

import io
import json
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from gaploop.core import platform_calls
from gaploop.core.journal_format import batch_checksum
from gaploop.core.messages import FloatArray
from gaploop.teleop.stopping import CleanupStep, one_line

log = logging.getLogger(__name__)

WRITE_EVERY_S: Final = 0.25
"""Rows wait at most this long for their batch, in take time and in wall time [s]."""
BATCH_ROWS: Final = 512
"""Rows that a batch may hold: a second and a half at 300 Hz, far above `WRITE_EVERY_S`."""


class _Block:
    """Rows that wait for their batch."""

    def __init__(self, width: int) -> None:
        self.values = np.empty((BATCH_ROWS, width))
        self.times = np.empty(BATCH_ROWS, dtype=np.int64)
        self.filled = 0
        self.first_s = 0.0


class ArrowStream:
    """An Arrow IPC stream of numeric columns. One thread appends; any may flush.

    Args:
        path: the file; it must not exist.
        schema: columns; lists are of fixed size, and `t_ns`, if there, is first.
        on_due: called when rows have waited long enough.
    """

    def __init__(self, path: Path, schema: pa.Schema, on_due: Callable[[], None]) -> None:
        self.rows = 0
        self._schema, self._on_due = schema, on_due
        is_list = pa.types.is_fixed_size_list
        self._widths = [spec.type.list_size if is_list(spec.type) else 1 for spec in schema]
        self._filling, self._spare = _Block(sum(self._widths)), _Block(sum(self._widths))
        self._start = int(schema.names[0] == "t_ns")
        """The first column of `append`'s values."""
        self._swapping, self._writing = threading.Lock(), threading.Lock()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self.handle = os.open(path, flags, 0o644)
        self._unsynced = True
        self._encoded = io.BytesIO()
        self._encoder = pa.ipc.new_stream(self._encoded, schema)
        self._write(self._take_encoded())

    def append(self, values: FloatArray, t_s: float, t_ns: int = 0) -> None:
        """Add a row at take time `t_s` [s]; a column `t_ns` [ns] is kept as an integer."""
        if self.handle < 0:
            return
        with self._swapping:
            block = self._filling
            if not block.filled:
                block.first_s = t_s
            block.times[block.filled] = t_ns
            block.values[block.filled, self._start :] = values
            block.filled += 1
            self.rows += 1
            is_full = block.filled == BATCH_ROWS
            is_due = t_s - block.first_s >= WRITE_EVERY_S
        if is_full:
            self.flush()
        elif is_due:
            self._on_due()

    def flush(self) -> None:
        """Write the rows that wait; raises OSError where the disk doesn't take them."""
        with self._writing:
            with self._swapping:
                block = self._filling
                if not block.filled:
                    return
                self._filling, self._spare = self._spare, block
            try:
                batch = self._batch(block)
                self._encoder.write_batch(batch, custom_metadata=batch_checksum(batch))
                self._write(self._take_encoded())
            finally:
                block.filled = 0

    def sync(self) -> None:
        """Wait until what was written is on the disk; raises OSError."""
        if self.handle >= 0 and self._unsynced:
            self._unsynced = False
            platform_calls.sync(self.handle, data_only=True)

    def finish(self) -> None:
        """Write what waits and the end-of-stream mark."""
        self.flush()
        with self._writing:
            self._encoder.close()
            self._write(self._take_encoded())

    def close(self) -> None:
        """Close the file; safe to call twice."""
        with self._writing:
            if self.handle >= 0:
                os.close(self.handle)
                self.handle = -1
                # A writer and its streams know each other, so that only a rare full collection
                # frees them: the rows' half a megabyte goes now.
                with self._swapping:
                    self._filling = self._spare = _Block(0)
                self._on_due = lambda: None

    def _take_encoded(self) -> bytes:
        """Return what the encoder made since the last time: the schema, a batch or the end."""
        data = self._encoded.getvalue()
        self._encoded.seek(0)
        self._encoded.truncate()
        return data

    def _write(self, data: Any) -> None:
        view = memoryview(data)
        self._unsynced = True
        while view:
            view = view[os.write(self.handle, view) :]

    def _batch(self, waiting: _Block) -> pa.RecordBatch:
        block, arrays, start = waiting.values[: waiting.filled], [], 0
        for spec, width in zip(self._schema, self._widths, strict=True):
            values = np.ascontiguousarray(block[:, start : start + width]).reshape(-1)
            if start < self._start:
                arrays.append(pa.array(waiting.times[: waiting.filled]))
            elif not width:  # a list that carries no length of its own
                arrays.append(pa.array([[]] * len(block), type=spec.type))
            elif pa.types.is_fixed_size_list(spec.type):
                arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(values), width))
            else:  # NaN becomes null
                arrays.append(pa.array(values, type=spec.type, from_pandas=True))
            start += width
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class EventStream:
    """Events as JSON lines. Made with its first event: most takes have none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[str] = []
        self._unsynced = False
        self._using = threading.Lock()

    def append(self, t_s: float, name: str, details: dict[str, Any]) -> None:
        """Add an event at take time `t_s` [s]."""
        line = json.dumps({"t_s": t_s, "event": name, **details}, default=str) + "\n"
        with self._using:
            self._waiting.append(line)

    def flush(self) -> None:
        """Write the events that wait, one thread at a time; raises OSError."""
        with self._using:
            lines, self._waiting = self._waiting, []
        if lines:
            with self._path.open("a") as stream:
                stream.write("".join(lines))
            self._unsynced = True

    def sync(self) -> None:
        """Wait until what was written is on the disk; raises OSError."""
        if self._unsynced:
            self._unsynced = False
            with self._path.open("a") as stream:
                platform_calls.sync(stream.fileno(), data_only=True)


AFTER_S: Final = 0.02
"""What isn't urgent waits this long for the episode to begin: it would hold the interpreter [s]."""


class Flusher:
    """Calls `write` when told and every `WRITE_EVERY_S`, and `syncs` after each.

    `first` is done once before anything else, `AFTER_S` after the start.
    """

    def __init__(
        self,
        first: Callable[[], None],
        write: Callable[[], None],
        syncs: Sequence[Callable[[], None]],
    ) -> None:
        self.fault: Exception | None = None
        """What ended one of the threads: from then on nothing is brought to the disk."""
        self._first, self._write, self._syncs = first, write, syncs
        self._due, self._over, self._written = (threading.Event() for _ in range(3))
        self._threads = [
            threading.Thread(target=self._guard, args=(loop,), name=name, daemon=True)
            for name, loop in (
                ("journal", self._keep_writing),
                ("journal sync", self._keep_syncing),
            )
        ]
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Have what waits written soon."""
        self._due.set()

    def stop(self) -> None:
        """End both threads, after what they are doing; safe to call twice."""
        self._over.set()
        self._due.set()
        self._written.set()
        for thread in self._threads:
            thread.join()

    def _guard(self, loop: Callable[[], None]) -> None:
        with CleanupStep() as attempt:
            loop()
        if attempt.error is not None:
            log.warning("The journal's thread ended (%s).", one_line(attempt.error))
            self.fault = attempt.error

    def _keep_writing(self) -> None:
        self._over.wait(AFTER_S)
        self._first()
        self._written.set()
        while not self._over.is_set():
            self._due.wait(WRITE_EVERY_S)
            self._due.clear()
            self._write()
            self._written.set()

    def _keep_syncing(self) -> None:
        """Sync apart from writing: a disk that takes its time must not hold the rows up."""
        while self._written.wait() and not self._over.is_set():
            self._written.clear()
            for sync in self._syncs:
                sync()
