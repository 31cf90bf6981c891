"""The two kinds of stream a take is written to: Arrow batches and encoded pictures.

Batches go out at least every `WRITE_EVERY_S` of the take and reach the disk (fdatasync) at
least every `SYNC_EVERY_S` of wall time. Pictures go out in Matroska clusters of 100 ms and are
synced when the take is sealed: a kill of the process loses none of them, a power cut may.
"""

from __future__ import annotations

import os
import time
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
import numpy as np
import pyarrow as pa

from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.types import FloatArray, Image

WRITE_EVERY_S: Final = 0.25
"""Rows wait at most this long for their batch, in take time and in wall time [s]."""
SYNC_EVERY_S: Final = 0.4
"""Written batches wait at most this long for the disk, in wall time [s]."""
BATCH_ROWS: Final = 512
"""Rows that a batch may hold: a second and a half at 300 Hz, far above `WRITE_EVERY_S`."""
END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Arrow IPC streaming format: continuation marker and a metadata length of 0."""
CODEC: Final = "h264"
_X264: Final = {"preset": "ultrafast", "tune": "zerolatency", "g": "10", "threads": "1"}
_MATROSKA: Final = {"cluster_time_limit": "100", "flush_packets": "1"}


class ArrowStream:
    """An Arrow IPC stream of numeric columns, written one whole batch per write(2).

    Args:
        path: the file; it must not exist.
        schema: columns; lists are of fixed size, and `t_ns`, if there, is first.
        widths: how many numbers of a row each column takes.
    """

    def __init__(self, path: Path, schema: pa.Schema, widths: tuple[int, ...]) -> None:
        self.rows = 0
        self._schema, self._widths = schema, widths
        self._buffer = np.empty((BATCH_ROWS, sum(widths)))
        self._times = np.empty(BATCH_ROWS, dtype=np.int64)
        self._is_time_first = schema.names[0] == "t_ns"
        self._filled = 0
        self._first_s = 0.0
        self._written_at_s = self._synced_at_s = time.monotonic()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self.handle = os.open(path, flags, 0o644)
        self._write(schema.serialize())

    def append(self, values: FloatArray, t_s: float) -> None:
        """Add a row, shape (sum of widths,), at take time `t_s` [s]."""
        if not self._filled:
            self._first_s = t_s
        self._buffer[self._filled] = values
        self._filled += 1
        self.rows += 1
        self._write_if_due(t_s)

    def append_after_time(self, t_ns: int, values: FloatArray) -> None:
        """Add a row whose first column is `t_ns` [ns], kept as an integer."""
        t_s = t_ns * 1e-9
        if not self._filled:
            self._first_s = t_s
        self._times[self._filled] = t_ns
        self._buffer[self._filled, 1:] = values
        self._filled += 1
        self.rows += 1
        self._write_if_due(t_s)

    def _write_if_due(self, t_s: float) -> None:
        due = t_s - self._first_s >= WRITE_EVERY_S or self._filled == BATCH_ROWS
        if due or time.monotonic() - self._written_at_s >= WRITE_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait, and sync if it is time to."""
        if self._filled:
            self._write(self._batch().serialize())
            self._filled = 0
        self._written_at_s = time.monotonic()
        if self._written_at_s - self._synced_at_s >= SYNC_EVERY_S:
            os.fdatasync(self.handle)
            self._synced_at_s = time.monotonic()

    def finish(self) -> None:
        """Write what waits and the end-of-stream mark."""
        self.flush()
        self._write(END_OF_STREAM)

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    def _write(self, data: Any) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.handle, view) :]

    def _batch(self) -> pa.RecordBatch:
        block, arrays, start = self._buffer[: self._filled], [], 0
        for spec, width in zip(self._schema, self._widths, strict=True):
            columns = block[:, start : start + width]
            if start == 0 and self._is_time_first:
                arrays.append(pa.array(self._times[: self._filled]))
            elif pa.types.is_fixed_size_list(spec.type):
                flat = pa.array(np.ascontiguousarray(columns).reshape(-1))
                arrays.append(_lists(flat, width, len(block)))
            else:
                values = np.ascontiguousarray(columns[:, 0])
                arrays.append(_scalars(values, spec.type))
            start += width
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _scalars(values: FloatArray, kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(values.astype(bool))
    if pa.types.is_integer(kind):
        return pa.array(values.astype(np.int64))
    return pa.array(values, from_pandas=True)  # NaN becomes null


def _lists(flat: pa.Array, width: int, rows: int) -> pa.Array:
    """Return fixed-size lists; a width of 0 carries no length of its own."""
    if width:
        return pa.FixedSizeListArray.from_arrays(flat, width)
    return pa.array([[] for _ in range(rows)], type=pa.list_(pa.float64(), 0))


class VideoStream:
    """One camera's pictures, encoded as they come; picture k is shown at k/fps.

    Raises:
        UnusableInputError: an odd width or height.
    """

    def __init__(self, path: Path, width: int, height: int, fps: float) -> None:
        if width % 2 or height % 2:
            raise UnusableInputError(
                f"{path.stem}: pictures of {width}×{height} can't be encoded; width and height "
                "must be even. Change the camera's size."
            )
        self.pictures = 0
        self._shape = (height, width, 3)
        self._last: tuple[Image, av.VideoFrame] | None = None
        rate = Fraction(fps).limit_denominator(1000)
        self._container = av.open(str(path), "w", format="matroska", options=_MATROSKA)
        self._stream = self._container.add_stream("libx264", rate=rate, options=_X264)
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = "yuv420p"
        self._time_base = 1 / rate
        self._stream.codec_context.time_base = self._time_base
        self._closed = False

    def check(self, picture: Image, camera: str) -> None:
        """Raise DeviceError unless `picture` is uint8 RGB of the stream's size."""
        if picture.shape != self._shape or picture.dtype != np.uint8:
            raise DeviceError(
                f"Camera '{camera}' gave {picture.dtype} {picture.shape}, not uint8 {self._shape}. "
                "Set its size and restart."
            )

    def encode(self, picture: Image) -> None:
        """Write the next picture."""
        frame = self._converted(picture)
        frame.pts, frame.time_base = self.pictures, self._time_base
        self._container.mux(self._stream.encode(frame))
        self.pictures += 1

    def _converted(self, picture: Image) -> av.VideoFrame:
        """Return the picture in yuv420p; a camera slower than the rows converts once."""
        if self._last is None or self._last[0] is not picture:
            rgb = av.VideoFrame.from_ndarray(picture, format="rgb24")
            self._last = (picture, rgb.reformat(format="yuv420p"))
        return self._last[1]

    def close(self) -> None:
        """Flush the encoder and close; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self.pictures:
            self._container.mux(self._stream.encode(None))
        self._container.close()
