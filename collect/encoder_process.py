"""The process that encodes: from pictures in shared memory to videos that a kill leaves readable.

It reads orders as JSON lines:

    {"open": uid, "folder": …}        a take begins
    {"show": uid, "slots": [3, -1]}   one row: a slot per camera, -1 for the picture before
    {"close": uid}                    no more rows

It answers `{"free": [[camera, slot]]}` after every picture, `{"closed": uid, "videos": {camera:
VideoStream.summary()}}` and `{"fault": uid, "why": …}`. When the orders end, because the recorder
was killed, it finishes the open files: pictures that were handed over are not lost. Each camera has
a thread.
"""

import contextlib
import json
import math
import mmap
import os
import queue
import sys
import threading
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from gaploop.core import platform_calls
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.messages import DEPTH_CODEC, Image, is_depth
from gaploop.core.statistics import PictureSample
from gaploop.teleop.stopping import CleanupStep, one_line

# -- a camera's video ----------------------------------------------------------------------------
#
# Which options survive a kill was measured: flushed packet by packet, a Matroska file loses a tenth
# of a second; without the flush most files could not be opened at all. Without B-frames
# (zerolatency) packets stand in the order of the rows, so that publishing can copy them.

CODEC: Final = "h264"
SOFTWARE: Final = "libx264"
LOSSLESS: Final = DEPTH_CODEC
_ENCODERS: Final = {
    SOFTWARE: (
        "yuv420p",
        {"preset": "ultrafast", "tune": "zerolatency", "g": "10", "threads": "1"},
    ),
    LOSSLESS: ("gray16le", {"level": "3", "threads": "1"}),
}
MATROSKA: Final = {"live": "1", "cluster_time_limit": "100", "flush_packets": "1"}
"""A file that only grows. Else FFmpeg writes its header anew as it closes the file, and where the
power goes just then, the whole video can be gone. The price is an index: a player that seeks reads
from the start."""


def check_sizes(cameras: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise UnusableInputError where a camera's pictures have an odd width or height."""
    for camera, spec in cameras.items():
        if spec["width"] % 2 or spec["height"] % 2:
            raise UnusableInputError(
                f"{camera}: pictures of {spec['width']}×{spec['height']} can't be encoded; width "
                "and height must be even. Change the camera's size."
            )


_PIXEL_BYTES: Final = {"rgb24": 3, "gray16le": 2}


class _Frame:
    """A frame in FFmpeg's own memory, used again and again: its routines read beyond a row's end,
    which in memory that isn't theirs may be no memory at all."""

    def __init__(self, width: int, height: int, kind: str) -> None:
        self.frame = av.VideoFrame(width, height, kind)
        self._planes = []
        for plane in self.frame.planes:
            rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
            self._planes.append(rows[:, : plane.width * _PIXEL_BYTES.get(kind, 1)])

    def fill(self, values: Image) -> None:
        """Copy all planes, one after another, shape (bytes,)."""
        start = 0
        for rows in self._planes:
            rows[:] = values[start : start + rows.size].reshape(rows.shape)
            start += rows.size


class VideoStream:
    """One camera's pictures, encoded as they come; picture k is shown at k/fps.

    The file must not exist; width and height are even [pixels].

    Raises:
        DeviceError: the file can't be written, or the encoder doesn't open.
    """

    def __init__(
        self, path: Path, width: int, height: int, fps: float, encoder: str = SOFTWARE
    ) -> None:
        self.pictures = 0
        self._path = path
        self._is_lossless = encoder == LOSSLESS
        self._last: tuple[Image, av.VideoFrame] | None = None
        self._sample = PictureSample()
        self._closing, self._is_named = threading.Lock(), False
        rate = Fraction(fps).limit_denominator(1000)
        self._time_base = 1 / rate
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            platform_calls.lock(self._handle)  # repair leaves a file alone that is written
            self._container = av.open(str(path), "w", format="matroska", options=MATROSKA)
        except (OSError, av.FFmpegError) as error:
            raise self._fault(error) from None
        self._format, self._options = _ENCODERS[encoder]
        self._reformatter = VideoReformatter()
        self._rgb: _Frame | None = None
        self._stream: av.VideoStream = self._container.add_stream(
            encoder, rate=rate, options=self._options
        )
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = self._format
        self._stream.codec_context.time_base = self._time_base

    def encode(self, picture: Image) -> None:
        """Write the next picture; its memory isn't needed any more afterwards. Raises DeviceError.

        It is RGB, uint8, shape (height, width, 3); of depth uint16, shape (height, width).
        """
        if self._last is None or self._last[0] is not picture:
            self._last = (picture, self._converted(picture))
        self._write(self._last[1])

    def _converted(self, picture: Image) -> av.VideoFrame:
        """Return the picture as the encoder wants it; it is overwritten by the next one."""
        height, width = picture.shape[:2]
        if self._rgb is None:
            self._rgb = _Frame(width, height, "gray16le" if self._is_lossless else "rgb24")
        self._rgb.fill(picture.reshape(-1).view(np.uint8))
        if self._is_lossless:
            return self._rgb.frame
        self._sample.add(picture)
        return self._reformatter.reformat(self._rgb.frame, format=self._format)

    def summary(self) -> dict[str, Any]:
        """Return the number of pictures and, but of depth, their statistics for the seal."""
        return {"pictures": self.pictures, "statistics": self._sample.stated()}

    def repeat_picture(self) -> None:
        """Write the picture before once more, so that the count keeps step with the rows.

        Raises DeviceError where there is none before, or the file can't be written.
        """
        if self._last is None:
            raise DeviceError(f"{self._path}: no picture to repeat. Record the episode again.")
        self._write(self._last[1])

    def forget_source(self) -> None:
        """Let go of the last picture's memory, which somebody else is about to use."""
        if self._last is not None:
            self._last = (np.empty(0, np.uint8), self._last[1])

    def _write(self, frame: av.VideoFrame) -> None:
        frame.pts, frame.time_base = self.pictures, self._time_base
        try:
            self._container.mux(self._stream.encode(frame))
        except av.FFmpegError as error:
            raise self._fault(error) from None
        self.pictures += 1

    def sync(self) -> None:
        """Wait until what was written is on the disk, the file's name too; raises OSError.

        Any thread may ask.
        """
        with self._closing:
            if self._handle >= 0:
                platform_calls.sync(self._handle, data_only=True)
                if not self._is_named:
                    platform_calls.sync_path(self._path.parent)
                    self._is_named = True

    def close(self) -> None:
        """Finish and close the file; safe to call twice.

        Raises DeviceError where the end can't be written; the file is readable up to there.
        """
        with self._closing:
            if self._handle < 0:
                return
            try:
                if self.pictures:
                    self._container.mux(self._stream.encode(None))
                self._container.close()
            except av.FFmpegError as error:
                raise self._fault(error) from None
            finally:
                os.close(self._handle)
                self._handle = -1

    def _fault(self, error: Exception) -> DeviceError:
        why = getattr(error, "strerror", None) or error
        return DeviceError(f"{self._path} can't be written ({why}). Fix that and record again.")


def camera_stream(folder: Path, camera: str, spec: Mapping[str, Any]) -> VideoStream:
    """Open a camera's video in a take's folder; lossless where it is depth."""
    encoder = LOSSLESS if is_depth(spec) else SOFTWARE
    path, size = folder / f"{camera}.mkv", (spec["width"], spec["height"])
    return VideoStream(path, *size, spec["fps"], encoder)


# -- pictures in memory that recorder and encoder share ------------------------------------------
#
# Who owns a slot is said by messages, not in the memory itself: the writer fills a free slot and
# names it; the reader names it again once it has no more use for it.

SLACK_S: Final = 10.0
"""How long the reader may fall behind before pictures are dropped [s], if memory allows."""
MOST_BYTES: Final = 1_000_000_000
"""All slots together: 10 s of two 640×480 cameras at 50 Hz take 922 MB. What was never needed is
never taken."""
MEMORY_SHARE: Final = 1 / 8
"""… nor more than this share of the machine's memory."""
LEAST_SLOTS: Final = 8
BEHIND_S: Final = 0.5
"""With pictures of so long waiting the reader is behind [s] …"""
BEHIND_SHARE: Final = 0.25
"""… or with this share of the slots, where they are few."""

type CameraSpecs = Mapping[str, Mapping[str, Any]]
"""Camera to {"width", "height", "fps"}."""


class Ring:
    """Slots for the pictures of some cameras, in new, nameless memory or as in that of `handle`."""

    def __init__(
        self,
        cameras: CameraSpecs,
        handle: int | None = None,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        shapes = {
            c: (int(s["height"]), int(s["width"]), 2 if is_depth(s) else 3)
            for c, s in cameras.items()
        }
        if counts is None:
            rate_bytes_s = sum(3 * s["height"] * s["width"] * s["fps"] for s in cameras.values())
            memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            most_bytes = min(MOST_BYTES, MEMORY_SHARE * memory_bytes)
            slack_s = min(SLACK_S, most_bytes / max(rate_bytes_s, 1))
            counts = {c: max(LEAST_SLOTS, int(slack_s * s["fps"])) for c, s in cameras.items()}
        size = sum(counts[c] * math.prod(shapes[c]) for c in cameras)
        self.handle = platform_calls.nameless_file("gaploop-pictures") if handle is None else handle
        if handle is None:
            os.ftruncate(self.handle, max(size, 1))
        memory = np.frombuffer(mmap.mmap(self.handle, max(size, 1)), dtype=np.uint8)
        self.slots: dict[str, Image] = {}
        """Camera to its slots, shape (slots, height, width, 3); of depth two bytes a pixel."""
        self.behind: dict[str, int] = {}
        """Camera to how many of them wait where the reader is behind."""
        start = 0
        for camera, shape in shapes.items():
            length = counts[camera] * math.prod(shape)
            self.slots[camera] = memory[start : start + length].reshape(counts[camera], *shape)
            start += length
            few = BEHIND_SHARE * counts[camera], BEHIND_S * cameras[camera]["fps"]
            self.behind[camera] = max(2, round(min(few)))

    def close(self) -> None:
        """Close the file; the memory lives as long as somebody maps it."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


# -- the process ---------------------------------------------------------------------------------

SYNC_EVERY_S: Final = 0.25
"""What was written waits at most this long for the disk, and as long as the disk takes [s]."""
PRIORITY: Final = 1
"""Real-time, but the lowest: far below the control loop."""
NICE: Final = -10
"""Where real-time priority isn't granted, this may be."""
MANY: Final = 64

type _Order = tuple[str, int | None]
"""A take, and a slot: -1 for the picture before, None at the take's end."""


class _Server:
    """The open takes, a thread for each camera, and who may speak to the recorder."""

    def __init__(self, ring: Ring, cameras: CameraSpecs, at_once: int) -> None:
        self._ring, self._specs = ring, cameras
        self._takes: dict[str, dict[str, VideoStream]] = {}
        self._closed: dict[str, dict[str, VideoStream]] = {}
        self._faulty = set[str]()
        self._speaking, self._closing = threading.Lock(), threading.Lock()
        self._turns = threading.Semaphore(at_once)
        self._orders = {camera: queue.SimpleQueue[_Order | None]() for camera in cameras}
        self._threads = [
            threading.Thread(target=self._work, args=(camera,), name=f"encode {camera}")
            for camera in cameras
        ]
        for thread in self._threads:
            thread.start()

    def obey(self, order: Mapping[str, Any]) -> None:
        if "open" in order:
            uid, folder = order["open"], Path(order["folder"])
            streams = self._takes[uid] = {}
            try:
                for camera, spec in self._specs.items():
                    streams[camera] = camera_stream(folder, camera, spec)
            except DeviceError as error:
                self._fault(uid, str(error))
            return
        uid = order.get("show") or order["close"]
        slots = order.get("slots") or [None] * len(self._orders)
        for orders, slot in zip(self._orders.values(), slots, strict=True):
            orders.put((uid, slot))

    def _work(self, camera: str) -> None:
        """Encode one camera's pictures in their order until nothing more comes."""
        orders = self._orders[camera]
        while (order := orders.get()) is not None:
            uid, slot = order
            with CleanupStep() as attempt:
                if slot is None:
                    self._close(uid, camera)
                else:
                    with self._turns:
                        self._show(uid, camera, slot)
            if attempt.error is not None:
                self._fault(uid, one_line(attempt.error))

    def _show(self, uid: str, camera: str, slot: int) -> None:
        stream = self._takes[uid].get(camera)
        try:
            if stream is None or uid in self._faulty:
                return
            if slot < 0:
                stream.repeat_picture()
            else:
                stream.encode(self._ring.slots[camera][slot])
                stream.forget_source()
        finally:
            self.say({"free": [[camera, slot]] if slot >= 0 else []})

    def _close(self, uid: str, camera: str) -> None:
        stream = self._takes[uid].get(camera)
        if stream is not None:
            stream.close()
        with self._closing:
            closed = self._closed.setdefault(uid, {})
            if stream is not None:
                closed[camera] = stream
            if len(closed) < len(self._specs):
                return
            del self._takes[uid], self._closed[uid]
        videos = {c: closed[c].summary() for c in self._specs}
        self.say({"closed": uid, "videos": videos})

    def _fault(self, uid: str, why: str) -> None:
        self._faulty.add(uid)
        self.say({"fault": uid, "why": why})

    def say(self, answer: Mapping[str, Any]) -> None:
        line = (json.dumps(answer) + "\n").encode()
        with self._speaking, contextlib.suppress(BrokenPipeError):  # the recorder is gone
            os.write(sys.stdout.fileno(), line)

    def sync(self) -> None:
        """Bring what was written to the disk; whatever keeps it from that ends the takes."""
        for uid, streams in tuple(self._takes.items()):
            with CleanupStep() as attempt:
                for stream in tuple(streams.values()):
                    stream.sync()
            if attempt.error is not None and uid not in self._faulty:
                why = getattr(attempt.error, "strerror", None) or one_line(attempt.error)
                self._fault(uid, f"The video can't be written to disk ({why}).")

    def close(self) -> None:
        for orders in self._orders.values():
            orders.put(None)
        for thread in self._threads:
            thread.join()
        for streams in self._takes.values():
            for stream in streams.values():
                with contextlib.suppress(DeviceError):
                    stream.close()


def main() -> None:
    """Serve until the orders end."""
    job = json.loads(sys.argv[1])
    # Come before other programs, behind the control loop. At real-time priority an encoder that has
    # more to do than it can would keep everybody else out, the cameras too: half of the cores stay
    # theirs.
    cores, at_once = os.cpu_count() or 1, MANY
    if cores > 1 and platform_calls.realtime(PRIORITY):
        at_once = cores // 2
    else:
        platform_calls.ordinary_priority()  # a recorder with real-time rights hands them down
        platform_calls.nice(NICE)
    server = _Server(Ring(job["cameras"], job["ring"], job["slots"]), job["cameras"], at_once)
    over = threading.Event()

    def keep_syncing() -> None:
        while not over.wait(SYNC_EVERY_S):
            server.sync()

    syncing = threading.Thread(target=keep_syncing, name="sync")
    syncing.start()
    try:
        server.say({"ready": True})
        while line := sys.stdin.buffer.readline():
            server.obey(json.loads(line))
    finally:
        server.close()
        over.set()
        syncing.join()


if __name__ == "__main__":
    main()
