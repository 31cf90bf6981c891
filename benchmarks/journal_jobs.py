"""What `bench journal` runs in processes that it kills: recording, publishing, LeRobot's saving.

Every process says on a pipe what it has done, the moment it has: what was claimed before a kill
must be there after it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.cameras import CAMERAS, HEIGHT, WIDTH, barcode, texture
from gaploop.collect.encoder import Encoder
from gaploop.collect.journal import FrameRow, JournalWriter, warm_up
from gaploop.core.files import uuid7
from gaploop.core.journal_format import TakeHeader
from gaploop.core.messages import Image
from gaploop.core.take import TakeInfo
from gaploop.core.telemetry import joint_columns
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.lerobot_publish import publish_takes
from gaploop.teleop.emulator.arms import JOINTS

FPS: Final = 50
PER_FRAME: Final = 4
"""Telemetry rows per frame row: 200 Hz."""
REPO: Final = "bench/journal"
_SCENE: Final = texture(0)

warm_up()


def header(fps: int = FPS) -> TakeHeader:
    """Return the header of a new take with two cameras."""
    info = TakeInfo(
        uuid7(), task="bench", fps=fps, joint_names=JOINTS, robot_type="bench", units="deg"
    )
    spec = {"width": WIDTH, "height": HEIGHT, "fps": float(fps), "codec": "h264"}
    return TakeHeader(info, (), dict.fromkeys(CAMERAS, spec), joint_columns("follower", JOINTS))


def pictures(index: int) -> Mapping[str, Image]:
    """Return the pictures of frame `index`: the second camera's number is one higher."""
    return {camera: barcode(2 * index + k, _SCENE) for k, camera in enumerate(CAMERAS)}


def record(claims: Connection, journal: Path, take_s: float, takes: int) -> None:
    """Record takes of `take_s` [s] in real time.

    Claims ("row", uid, k) before row k is written, ("sealing", uid), ("sealed", uid, seconds
    that it took), ("handed over", seconds), ("lost", uid) for a take whose encoder died, "" where
    it died between two, and ("encoder", pid).
    """
    with Encoder() as encoder:
        encoder.start(header().cameras)
        claimed, ended_s = encoder.pid, 0.0
        claims.send(("encoder", claimed))
        claims.send(("ready",))
        for _ in range(takes):
            with JournalWriter(journal, header(), encoder=encoder) as writer:
                if ended_s:
                    claims.send(("handed over", time.monotonic() - ended_s))
                if encoder.pid != claimed:
                    claimed = encoder.pid
                    claims.send(("lost", ""))
                    claims.send(("encoder", claimed))
                if not _write(claims, writer, round(take_s * FPS)):
                    continue
                claims.send(("sealing", writer.folder.name))
                ended_s = time.monotonic()
                writer.seal(Outcome.SUCCESS)
                claims.send(("sealed", writer.folder.name, time.monotonic() - ended_s))
    claims.send(("done",))


def _write(claims: Connection, writer: JournalWriter, frames: int) -> bool:
    """Write a take in real time; False where it can't be written to its end."""
    from gaploop.core.errors import DeviceError

    start_s, uid = time.monotonic(), writer.folder.name
    numbers = np.arange(len(writer.header.channels), dtype=np.float64)
    for index in range(frames):
        claims.send(("row", uid, index))
        joints = np.full(len(JOINTS), float(index))
        ages = dict.fromkeys(CAMERAS, 0.0)
        row = FrameRow(
            index / FPS, joints, joints, joints, camera_age_s=ages, pictures=pictures(index)
        )
        try:
            for part in range(PER_FRAME):
                at_s = (index + part / PER_FRAME) / FPS
                writer.telemetry(round(at_s * 1e9), numbers)
                if not part:
                    writer.frame(row)
                time.sleep(max(0.0, start_s + at_s - time.monotonic()))
        except DeviceError:
            claims.send(("lost", uid))
            return False
    return True


def publish(claims: Connection, journal: Path, root: Path) -> None:
    """Publish; claims ("ready",) and ("done", seconds)."""
    claims.send(("ready",))
    began_s = time.monotonic()
    publish_takes(journal, root, REPO)
    claims.send(("done", time.monotonic() - began_s))


def lerobot_record(claims: Connection, root: Path, episodes: int, frames: int) -> None:
    """Save episodes as lerobot-record does; claims ("saved", n, seconds) after each."""
    with silent():
        dataset = lerobot_dataset(root)
        claims.send(("ready",))
        for number in range(episodes):
            _add_frames(dataset, frames)
            began_s = time.monotonic()
            dataset.save_episode()
            claims.send(("saved", number + 1, time.monotonic() - began_s))
        claims.send(("waiting",))
        time.sleep(3600)


def lerobot_durable(claims: Connection, root: Path, episodes: int, frames: int) -> None:
    """Make every episode durable with finalize and resume; claims ("durable", seconds)."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    with silent():
        dataset = lerobot_dataset(root)
        for _ in range(episodes):
            _add_frames(dataset, frames)
            began_s = time.monotonic()
            dataset.save_episode()
            dataset.finalize()
            dataset = LeRobotDataset.resume(
                REPO, root, rgb_encoder=_h264(), streaming_encoding=True
            )
            claims.send(("durable", time.monotonic() - began_s))
        claims.send(("done",))


def _add_frames(dataset: Any, frames: int) -> None:
    joints = np.zeros(len(JOINTS), dtype=np.float32)
    for index in range(frames):
        shown = {f"observation.images.{c}": p for c, p in pictures(index).items()}
        dataset.add_frame({"observation.state": joints, "action": joints, "task": "bench", **shown})


def lerobot_dataset(root: Path, fps: int = FPS, streaming: bool = True) -> Any:
    """Return a new LeRobot dataset that encodes H.264, by its streaming encoder or afterwards."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    names = list(JOINTS)
    joints = {"dtype": "float32", "shape": (len(names),), "names": names}
    size = {"shape": (HEIGHT, WIDTH, 3), "names": ["height", "width", "channels"]}
    features = {"observation.state": joints, "action": joints}
    features |= {f"observation.images.{name}": {"dtype": "video", **size} for name in CAMERAS}
    return LeRobotDataset.create(
        REPO, fps, features, root, rgb_encoder=_h264(), streaming_encoding=streaming
    )


def _h264() -> Any:
    from lerobot.configs.video import RGBEncoderConfig

    return RGBEncoderConfig(vcodec="h264")


@contextlib.contextmanager
def silent() -> Any:
    """Keep LeRobot's encoder, which prints its settings, off the terminal."""
    import os

    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
