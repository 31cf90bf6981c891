"""The process that encodes: reads orders as JSON lines, pictures from shared memory.

    {"open": uid, "folder": …}         begin a take
    {"show": uid, "slots": [3, -1]}    one row: a slot per camera, -1 for the picture before
    {"close": uid}                     no more rows

It answers `{"free": [camera, slot]}`, `{"closed": uid, "pictures": {camera: n}}` and
`{"fault": uid, "why": …}`. When the orders end, because the recorder was killed, it finishes the
open files: pictures that were handed over are not lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gaploop.collect.ring import CameraSpecs, Ring
from gaploop.collect.video_stream import SOFTWARE, VideoStream
from gaploop.core.errors import DeviceError

SYNC_EVERY_S: Final = 0.25
"""What was written waits at most this long for the disk, and as long as the disk takes [s]."""


class _Server:
    """The open takes and who may speak to the recorder."""

    def __init__(self, ring: Ring, cameras: CameraSpecs) -> None:
        self._ring, self._cameras = ring, cameras
        self._takes: dict[str, dict[str, VideoStream]] = {}
        self._faulty: set[str] = set()
        self._speaking = threading.Lock()

    def obey(self, order: Mapping[str, Any]) -> None:
        uid = order.get("open") or order.get("show") or order["close"]
        try:
            if "open" in order:
                self._open(uid, Path(order["folder"]))
            elif "show" in order:
                self._show(uid, order["slots"])
            else:
                self._close(uid)
        except DeviceError as error:
            self._fault(uid, str(error))

    def _open(self, uid: str, folder: Path) -> None:
        streams = self._takes[uid] = {}
        for camera, spec in self._cameras.items():
            path = folder / f"{camera}.mkv"
            encoder = spec.get("encoder", SOFTWARE)
            streams[camera] = VideoStream(path, spec["width"], spec["height"], spec["fps"], encoder)

    def _show(self, uid: str, slots: list[int]) -> None:
        try:
            for (camera, stream), slot in zip(self._takes[uid].items(), slots, strict=False):
                if uid in self._faulty:
                    continue
                if slot < 0:
                    stream.encode_again()
                else:
                    stream.encode(self._ring.slots[camera][slot])
                    stream.forget_source()
        finally:
            used = [(c, s) for c, s in zip(self._cameras, slots, strict=True) if s >= 0]
            self.say({"free": used})

    def _close(self, uid: str) -> None:
        streams = self._takes.pop(uid)
        for stream in streams.values():
            stream.close()
        self.say({"closed": uid, "pictures": {c: s.pictures for c, s in streams.items()}})

    def _fault(self, uid: str, why: str) -> None:
        self._faulty.add(uid)
        self.say({"fault": uid, "why": why})

    def say(self, answer: Mapping[str, Any]) -> None:
        line = (json.dumps(answer) + "\n").encode()
        with self._speaking, contextlib.suppress(BrokenPipeError):  # the recorder is gone
            os.write(sys.stdout.fileno(), line)

    def sync(self) -> None:
        """Bring what was written to the disk."""
        for uid, streams in tuple(self._takes.items()):
            try:
                for stream in tuple(streams.values()):
                    stream.sync()
            except OSError as error:
                self._fault(uid, f"The disk doesn't take the video ({error.strerror}).")

    def close(self) -> None:
        """Finish what is open."""
        for streams in self._takes.values():
            for stream in streams.values():
                with contextlib.suppress(DeviceError):
                    stream.close()


def main() -> None:
    """Serve until the orders end."""
    job = json.loads(sys.argv[1])
    if hasattr(os, "sched_setscheduler"):  # a recorder with real-time rights hands them down
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    server = _Server(Ring(job["cameras"], job["ring"]), job["cameras"])
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
        over.set()
        syncing.join()
        server.close()


if __name__ == "__main__":
    main()
