"""A camera that is slow, or hangs, is told of its take."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gaploop.collect.journal import JournalWriter
from gaploop.collect.take import _Watch, other_cameras
from gaploop.core.files import uuid7
from gaploop.core.journal_format import TakeHeader
from gaploop.core.messages import CameraFrame, FollowerState, LeaderSample, SafeCommand, Tick
from gaploop.core.take import TakeInfo

FPS, SECONDS = 30, 4


class Camera:
    """Counts `hz` pictures a second, of which all are the same from `frozen_s` on."""

    name = "top"

    def __init__(self, hz: float, fps: float | None = 30.0, frozen_s: float = 1e9) -> None:
        self.hz, self.fps, self.frozen_s = hz, fps, frozen_s
        self.pictures, self.same_since_s = 7, 0.0

    def pass_to(self, t_s: float) -> None:
        self.pictures = 7 + int(t_s * self.hz)
        self.same_since_s = min(int(t_s * self.hz) / self.hz, self.frozen_s)

    def frame(self) -> CameraFrame:
        return CameraFrame(np.zeros((4, 4, 3), np.uint8), 0.0)

    def rate_hz(self) -> float:
        return self.hz


def doubts(camera: Camera, rad_s: float = 0.0) -> str:
    rig: Any = SimpleNamespace(fps=float(FPS), cameras=(camera,), judge=None)
    watch = _Watch(rig, until_success=False)
    for k in range(FPS * SECONDS):
        t_s = k / FPS
        camera.pass_to(t_s)
        q, none = np.full(2, rad_s * t_s), np.full(2, np.nan)
        state = FollowerState(t_s, q, *[none] * 5, np.zeros(2, dtype=np.int64))
        tick = Tick(
            k, t_s, 0.03, 0.0, LeaderSample(t_s, q), SafeCommand(q, q), state, {}, None, True
        )  # fmt: skip
        watch.tick(tick)
    return " ".join(watch.doubt(float(SECONDS)).values())


@pytest.mark.parametrize(
    ("camera", "rad_s", "says"),
    [
        (Camera(8.0), 0.1, "8 of 30 pictures a second"),
        (Camera(8.0, fps=None), 0.0, "8 of 30 pictures a second"),
        (Camera(9.5, fps=10.0), 0.1, ""),  # its config asks for no more
        (Camera(29.0), 0.1, ""),
        (Camera(60.0), 0.1, ""),
        (Camera(30.0, frozen_s=1.0), 0.2, "the same picture to the last bit"),
        (Camera(30.0, frozen_s=1.0), 0.0, ""),  # a rendered scene that stands still
        (Camera(30.0, frozen_s=3.9), 0.2, ""),
    ],
)
def test_a_slow_or_frozen_camera_is_told(camera: Camera, rad_s: float, says: str) -> None:
    said = doubts(camera, rad_s)
    assert says in said
    assert bool(said) == bool(says)


def test_a_camera_that_was_another_one_before_is_told(tmp_path: Path) -> None:
    before = {"width": 4, "height": 4, "fps": 30.0, "codec": "h264"}
    journal, now = tmp_path / "journal", {"top": {"identity": "USB 046d:0825, serial B"}}
    assert not list(other_cameras(journal, now))
    for identity in ("", "USB 046d:0825, serial A"):
        info = TakeInfo(uuid7(), task="t", joint_names=("a",))
        spec = before | ({"identity": identity} if identity else {})
        with JournalWriter(journal, TakeHeader(info, (), {"top": spec}, {})):
            pass
        said = list(other_cameras(journal, now))
        assert bool(said) == bool(identity)
    assert "Camera top was USB 046d:0825, serial A in the episode before" in said[0]
    now["top"]["identity"] = "USB 046d:0825, serial A"
    assert not list(other_cameras(journal, now))
