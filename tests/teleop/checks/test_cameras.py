"""Cameras: who may open them, and whether their pictures are new and in time."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_system import allow, one, process, refuse

from gaploop.core.clock import ManualClock
from gaploop.core.messages import CameraFrame
from gaploop.teleop.checks import Level
from gaploop.teleop.checks.cameras import check_devices, check_pictures


def camera(root: Path, number: int, index: int = 0) -> None:
    node = root / f"sys/class/video4linux/video{number}"
    node.mkdir(parents=True)
    (node / "name").write_text("Webcam C270\n")
    (node / "index").write_text(f"{index}\n")


def test_cameras_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    assert one(check_devices(tmp_path)).level is Level.OK
    (tmp_path / "dev").mkdir()
    camera(tmp_path, 0)
    camera(tmp_path, 1, index=1)  # the same camera's metadata
    assert "no such device" in one(check_devices(tmp_path)).found
    device = tmp_path / "dev/video0"
    device.write_text("")
    finding = one(check_devices(tmp_path, refuse))
    assert "no permission" in finding.found
    process(tmp_path, 9, "zoom", str(device.resolve()))
    assert "zoom (process 9)" in one(check_devices(tmp_path, allow)).found


class Camera:
    """Gives a picture every `period_s` of the clock, `late_s` old, until it hangs."""

    name = "top"

    def __init__(self, clock: ManualClock, period_s: float, late_s: float, noise: float) -> None:
        self.clock, self.period_s, self.late_s = clock, period_s, late_s
        self.noise = noise

    def frame(self) -> CameraFrame:
        count = int(self.clock.now_s() / self.period_s)
        rng = np.random.default_rng(count if self.noise else 0)
        image = np.full((8, 8, 3), 100.0) + 50 * (np.arange(8)[:, None, None] > 3)
        image += self.noise * rng.normal(size=image.shape)
        return CameraFrame(image.astype(np.uint8), count * self.period_s - self.late_s)


@pytest.mark.parametrize(
    ("period_s", "late_s", "noise", "result", "why"),
    [
        (0.04, 0.02, 3.0, Level.OK, "25 pictures/s"),
        (0.04, 0.3, 3.0, Level.WARN, "old"),
        (10.0, 0.0, 3.0, Level.FAIL, "stale"),
        (0.04, 0.02, 0.0, Level.FAIL, "the same to the last bit"),
    ],
)
def test_a_camera_must_give_new_pictures_in_time(
    period_s: float, late_s: float, noise: float, result: Level, why: str
) -> None:
    clock = ManualClock()
    (item,) = check_pictures((Camera(clock, period_s, late_s, noise),), clock, is_real=True)
    assert item.level is result
    assert why in item.found
