"""Pictures on their way into a take's videos, encoded by a process of their own or right here.

The process may be killed at any time: the open take is then lost up to its last tenth of a
second and what was still waiting, the next one gets a new process. If the recorder is killed
instead, the process finishes the open files. Where the encoder can't keep up, pictures wait in
memory, and are dropped where that is full.
Every row shows exactly one picture per camera all the same: in place of a dropped one the picture
before is shown again and the row's camera is reported, so that pictures never shift against rows.
"""

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from gaploop.collect.encoder_process import LEAST_SLOTS, CameraSpecs, Ring, camera_stream
from gaploop.core.errors import DeviceError
from gaploop.core.messages import Image

log = logging.getLogger(__name__)

START_S: Final = 60.0
"""Longest time for the process to come up [s]; a quarter of a second is usual."""
FINISH_S: Final = 20.0
"""An encoder that closes a take's videos and gets nothing done for this long hangs [s]. One that is
only slow is waited for: where it was given 20 s in all, a busy machine lost the episode."""
_SLICE_S: Final = 0.005
_RECORD_AGAIN: Final = "Record the episode again."


class LocalTake:
    """Encodes in the caller's process: for imports and for a few pictures."""

    def __init__(self, folder: Path, cameras: CameraSpecs) -> None:
        self._streams = {c: camera_stream(folder, c, s) for c, s in cameras.items()}

    def show(self, pictures: Mapping[str, Image]) -> frozenset[str]:
        """Encode the pictures of one row; none is ever dropped."""
        for camera, stream in self._streams.items():
            stream.encode(pictures[camera])
        return frozenset()

    def finish(self) -> None:
        """Do nothing: every picture is encoded already."""

    def behind_s(self) -> float:
        """Return 0: every picture is encoded already."""
        return 0.0

    def wait(self) -> dict[str, dict[str, Any]]:
        """Close the videos; return camera to `VideoStream.summary`."""
        for stream in self._streams.values():
            stream.close()
        return {camera: stream.summary() for camera, stream in self._streams.items()}

    def sync(self) -> None:
        """Bring the videos to the disk."""
        for stream in self._streams.values():
            stream.sync()


class _Process:
    """The encoder's process and what it has said so far; one thread talks to it."""

    def __init__(self, cameras: CameraSpecs) -> None:
        self.cameras = {camera: dict(spec) for camera, spec in cameras.items()}
        self.ring = Ring(cameras)
        self.free = {c: list(range(len(slots))) for c, slots in self.ring.slots.items()}
        self.closed: dict[str, dict[str, dict[str, Any]]] = {}
        self.heard_s = time.monotonic()
        """When it last said something [s]."""
        self.faults: dict[str, str] = {}
        self.dead = self.ready = False
        self._heard = b""
        counts = {camera: len(slots) for camera, slots in self.ring.slots.items()}
        job = json.dumps({"ring": self.ring.handle, "cameras": self.cameras, "slots": counts})
        command = [sys.executable, "-P", "-m", "gaploop.collect.encoder_process", job]
        self.popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pass_fds=(self.ring.handle,),
            start_new_session=True,  # Ctrl-C is the recorder's to answer
        )
        self.ring.close()
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self._orders, self._answers = self.popen.stdin, self.popen.stdout
        os.set_blocking(self._orders.fileno(), False)

    def start(self) -> None:
        """Wait until the process is up, or raise DeviceError."""
        until_s = time.monotonic() + START_S
        while not self.ready:
            if self.dead or time.monotonic() > until_s:
                self.kill()
                raise DeviceError(
                    "The encoder's process doesn't start. Try it with: "
                    f"{sys.executable} -c 'import av, gaploop.collect.encoder_process'"
                )
            self.hear(_SLICE_S)

    def tell(self, order: Mapping[str, Any]) -> None:
        """Send one order; it goes out whole or not at all."""
        try:
            os.write(self._orders.fileno(), (json.dumps(order) + "\n").encode())
        except BlockingIOError:
            raise DeviceError(f"The encoder hangs. {_RECORD_AGAIN}") from None
        except (BrokenPipeError, ValueError):
            self.dead = True

    def hear(self, timeout_s: float) -> None:
        """Take in what the process says within `timeout_s` [s]; returns at its first word."""
        if self.dead:
            return
        if not select.select([self._answers], [], [], timeout_s)[0]:
            return
        heard = os.read(self._answers.fileno(), 1 << 16)
        self.dead, self.heard_s = not heard, time.monotonic()
        *lines, self._heard = (self._heard + heard).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            self.ready = self.ready or "ready" in answer
            for camera, slot in answer.get("free", ()):
                self.free[camera].append(slot)
            if "closed" in answer:
                self.closed[answer["closed"]] = answer["videos"]
            if "fault" in answer:
                self.faults[answer["fault"]] = answer["why"]

    def retire(self) -> None:
        """Let the process finish what it has and end."""
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()

    def kill(self) -> None:
        """End the process at once, unless it ended already."""
        self.retire()
        self.popen.kill()
        self.popen.wait()
        self._answers.close()
        self.dead = True


class RemoteTake:
    """Hands pictures to the encoder's process."""

    def __init__(self, process: _Process, folder: Path, uid: str, waits: bool) -> None:
        self._process, self._uid, self._waits = process, uid, waits
        self._shown: dict[str, Image] = {}
        self._finished = False
        process.tell({"open": uid, "folder": str(folder)})

    def show(self, pictures: Mapping[str, Image]) -> frozenset[str]:
        """Take the pictures of one row; name the cameras whose picture had to be dropped.

        Raises DeviceError where the videos can't be written any more.
        """
        self._process.hear(0.0)
        slots, dropped = [], set[str]()
        for camera in self._process.cameras:
            picture = pictures[camera]
            if self._shown.get(camera) is picture:  # a camera slower than the rows
                slots.append(-1)
                continue
            slot = self._slot(camera)
            slots.append(slot)
            if slot < 0:
                dropped.add(camera)
            else:
                target = self._process.ring.slots[camera][slot]
                np.copyto(target.view(picture.dtype).reshape(picture.shape), picture)
                self._shown[camera] = picture
        self._process.tell({"show": self._uid, "slots": slots})
        self._check()
        return frozenset(dropped)

    def _slot(self, camera: str) -> int:
        """Return a free slot; -1 where there is none and nobody may wait."""
        free = self._process.free[camera]
        # Who can wait does so before much memory is taken.
        most = LEAST_SLOTS if self._waits else len(self._process.ring.slots[camera])
        while len(self._process.ring.slots[camera]) - len(free) >= most:
            if not self._waits:
                return -1
            self._check()
            self._process.hear(_SLICE_S)
        return free.pop()  # the one that was used last: its memory is still near the processor

    def behind_s(self) -> float:
        """Return the time whose pictures wait to be encoded [s]; 0 where that isn't unusual."""
        longest_s = 0.0
        if self._waits:
            return longest_s
        for camera, free in self._process.free.items():
            slots = len(self._process.ring.slots[camera])
            if slots - len(free) >= self._process.ring.behind[camera]:
                waiting_s = (slots - len(free)) / self._process.cameras[camera]["fps"]
                longest_s = max(longest_s, waiting_s)
        return longest_s

    def _check(self) -> None:
        why = self._process.faults.get(self._uid)
        if why:
            raise DeviceError(why)
        if self._process.dead:
            raise DeviceError(f"The encoder's process has died. {_RECORD_AGAIN}")

    def finish(self) -> None:
        """Say that no more rows come; doesn't wait."""
        if self._finished:
            return
        self._finished = True
        self._shown.clear()
        with contextlib.suppress(DeviceError):  # one that hangs is found out by `wait`
            self._process.tell({"close": self._uid})

    def wait(self) -> dict[str, dict[str, Any]]:
        """Return camera to `VideoStream.summary`; DeviceError where a video isn't finished."""
        began_s = time.monotonic()
        while self._uid not in self._process.closed:
            self._check()
            if time.monotonic() > max(began_s, self._process.heard_s) + FINISH_S:
                self._process.kill()
            self._process.hear(_SLICE_S)
        return self._process.closed[self._uid]

    def sync(self) -> None:
        """Do nothing: the process syncs its files."""


type TakeEncoding = LocalTake | RemoteTake
"""Where the pictures of one take go."""


class Encoder:
    """Encodes the pictures of one take after another in a process of its own.

    It is started by the first take, and again where it died or the cameras changed. Leave it with
    `close`, after the last take was sealed.
    """

    def __init__(self) -> None:
        self._process: _Process | None = None

    @property
    def pid(self) -> int:
        """Id of the process; 0 before the first take."""
        return self._process.popen.pid if self._process is not None else 0

    def take(
        self, folder: Path, uid: str, cameras: CameraSpecs, *, waits: bool = False
    ) -> TakeEncoding:
        """Begin a take; DeviceError where the process doesn't come up.

        Who `waits` where the encoder is behind drops nothing: for simulated time.
        """
        return RemoteTake(self.start(cameras), folder, uid, waits)

    def start(self, cameras: CameraSpecs) -> _Process:
        """Have a process ready for pictures of `cameras`; DeviceError where it doesn't come up."""
        process = self._process
        if process is not None:
            process.hear(0.0)
            if not process.dead and process.cameras == {c: dict(s) for c, s in cameras.items()}:
                return process
            if process.dead:
                log.warning("The encoder's process had died; starting another.")
            self.close()
        self._process = _Process(cameras)
        self._process.start()
        return self._process

    def close(self) -> None:
        """End the process once it has finished what it has; safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            process.retire()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(FINISH_S)
            process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
