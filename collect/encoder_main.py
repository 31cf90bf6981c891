"""The process that encodes: reads orders as JSON lines, pictures from shared memory.

    {"open": uid, "folder": …, "coarse": true}   a take begins, whose pictures may be coarse
    {"show": uid, "slots": [3, -1]}   one row: a slot per camera, -1 for the picture before
    {"close": uid}                    no more rows

It answers `{"free": [[camera, slot]]}` after every picture, `{"closed": uid, "pictures": {camera:
n}, "coarse": {camera: n}}` and `{"fault": uid, "why": …}`. When the orders end, because the
recorder was killed, it finishes the open files: pictures that were handed over are not lost.

Each camera has a thread of its own. One that falls behind encodes coarsely, at half the time for a
picture, until it has kept up for a while.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import queue
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.collect.video_stream import SOFTWARE, VideoStream, camera_stream
from gaploop.core import platform_calls
from gaploop.core.errors import DeviceError
from gaploop.core.messages import Image, is_depth
from gaploop.teleop.stopping import CleanupStep, one_line

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
KEPT_UP_S: Final = 2.0
"""Coarse pictures end once a camera has kept up for this long [s]."""
PRIORITY: Final = 1
"""Real-time, but the lowest: far below the control loop."""
NICE: Final = -10
"""Where real-time priority isn't granted, this may be."""
MANY: Final = 64

type _Order = tuple[str, int | None]
"""A take, and a slot: -1 for the picture before, None at the take's end."""


class EncodingPace:
    """Says whether a camera's next picture is to be encoded coarsely.

    It is behind where so many pictures wait; they come at `fps` [Hz].
    """

    def __init__(self, behind: int, fps: float) -> None:
        self._behind = behind
        self._enough = round(KEPT_UP_S * fps)
        self._kept_up = self._enough

    def is_coarse(self, waiting: int) -> bool:
        """Return it, given how many pictures wait behind this one."""
        if waiting >= self._behind:
            self._kept_up = 0
        elif waiting <= 1 and self._kept_up < self._enough:
            self._kept_up += 1
        return self._kept_up < self._enough


class _Server:
    """The open takes, a thread for each camera, and who may speak to the recorder."""

    def __init__(self, ring: Ring, cameras: CameraSpecs, at_once: int) -> None:
        self._ring, self._specs = ring, cameras
        self._takes: dict[str, dict[str, VideoStream]] = {}
        self._closed: dict[str, dict[str, VideoStream]] = {}
        self._faulty, self._unhurried = set[str](), set[str]()
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
            if not order["coarse"]:
                self._unhurried.add(uid)
            streams = self._takes[uid] = {}
            try:
                for camera, spec in self._specs.items():
                    chosen = spec.get("encoder", SOFTWARE)
                    streams[camera] = camera_stream(folder, camera, spec, chosen)
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
        pace = EncodingPace(self._ring.behind[camera], self._specs[camera]["fps"])
        while (order := orders.get()) is not None:
            uid, slot = order
            with CleanupStep() as attempt:
                if slot is None:
                    self._close(uid, camera)
                else:
                    with self._turns:
                        coarse = pace.is_coarse(orders.qsize()) and uid not in self._unhurried
                        self._show(uid, camera, slot, coarse)
            if attempt.error is not None:
                self._fault(uid, one_line(attempt.error))

    def _show(self, uid: str, camera: str, slot: int, coarse: bool) -> None:
        stream = self._takes[uid].get(camera)
        try:
            if stream is None or uid in self._faulty:
                return
            if slot < 0:
                stream.repeat_picture()
            else:
                stream.encode(self._ring.slots[camera][slot], coarse=coarse)
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
        pictures = {c: closed[c].pictures for c in self._specs}
        coarse = {c: closed[c].coarse for c in self._specs}
        self.say({"closed": uid, "pictures": pictures, "coarse": coarse})

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
