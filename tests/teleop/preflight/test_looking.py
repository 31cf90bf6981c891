"""The checks that only look: limits, memory, cameras, calibration, questions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core.clock import ManualClock
from gaploop.core.station import Station
from gaploop.core.types import CameraFrame
from gaploop.scripts._preflight_person import Terminal
from gaploop.sim.cell import Cell
from gaploop.sim.follower import CellFollower
from gaploop.teleop.calibration.store import save_part
from gaploop.teleop.preflight.calibrations import check_calibration
from gaploop.teleop.preflight.cameras import check_cameras
from gaploop.teleop.preflight.item import By, Item, Result, confirmed, may_drive
from gaploop.teleop.preflight.joints import MOVED, STILL, Moved
from gaploop.teleop.preflight.limits import check_limits
from gaploop.teleop.preflight.machine import check_memory


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
        (0.04, 0.02, 3.0, Result.OK, "25 pictures/s"),
        (0.04, 0.3, 3.0, Result.WARN, "old"),
        (10.0, 0.0, 3.0, Result.FAIL, "stale"),
        (0.04, 0.02, 0.0, Result.FAIL, "the same to the last bit"),
    ],
)
def test_a_camera_must_give_new_pictures_in_time(
    period_s: float, late_s: float, noise: float, result: Result, why: str
) -> None:
    clock = ManualClock()
    (item,) = check_cameras((Camera(clock, period_s, late_s, noise),), clock, is_real=True)
    assert item.result is result
    assert why in item.found


@given(st.lists(st.floats(-2.0, 2.0), min_size=3, max_size=3), st.integers(0, 2))
def test_a_joint_passes_only_if_it_alone_comes_its_way(shares: list[float], joint: int) -> None:
    """Whatever else happened, something is said."""
    moved = Moved(joint, -0.1, -0.1 * np.array(shares))
    others = [abs(s) for j, s in enumerate(shares) if j != joint]
    is_well = shares[joint] >= MOVED and max(others) <= STILL
    assert (moved.fault(("a", "b", "c")) == "") == is_well


def test_feedback_from_the_wrong_joint_is_named() -> None:
    moved = Moved(0, 0.1, np.array([0.0, 0.1, 0.0]))
    assert moved.fault(("a", "b", "c")) == "a was asked to move and b moved in its place"


@pytest.mark.parametrize("answer", [None, "y", "n"])
def test_a_question_is_settled_by_a_yes_only(answer: str | None) -> None:
    class Says:
        def asked(self, question: str, choices: Mapping[str, str], *, safety: bool) -> str | None:
            assert (question, set(choices), safety) == ("Is it so?", {"y", "n"}, True)
            return answer

        def told(self, what: str) -> bool:
            return bool(what)

    item = confirmed(Says(), "x", "Is it so?", "Mend it.", safety=True)
    assert may_drive([item]) == (answer == "y")
    assert item.by is By.PERSON


@pytest.mark.parametrize("yes", [False, True])
def test_yes_never_answers_where_safety_hangs_on_it(yes: bool) -> None:
    choices = {"y": "yes", "n": "no"}
    assert Terminal(yes).asked("Safe?", choices, safety=True) is None
    assert Terminal(yes).asked("Sure?", choices, safety=False) == ("y" if yes else None)
    assert not Terminal(yes).told("Pull the plug.")


@pytest.mark.parametrize(
    ("free_kb", "result"), [(8e6, Result.OK), (1e6, Result.WARN), (1e5, Result.FAIL)]
)
def test_memory_that_is_left_decides(tmp_path: Path, free_kb: float, result: Result) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text(
        f"MemTotal: 16000000 kB\nMemAvailable: {free_kb:.0f} kB\n"
    )
    assert check_memory(tmp_path).result is result


def test_cameras_that_are_calibrated_poorly_fail_and_unknown_ones_are_asked_about(
    tmp_path: Path,
) -> None:
    file = tmp_path / "station.calibration.json"
    save_part(file, ("cameras", "good", "intrinsics"), {"rms_px": 0.2})
    save_part(file, ("cameras", "good", "hand_eye"), {"held_out_mm": 1.5})
    save_part(file, ("cameras", "poor", "intrinsics"), {"rms_px": 0.2})
    save_part(file, ("cameras", "poor", "hand_eye"), {"held_out_mm": 7.0})
    save_part(file, ("cameras", "half", "intrinsics"), {"rms_px": 0.2})  # not where it stands
    cameras = ["good", "poor", "half", "new"]
    with Cell() as cell:
        found = list(check_calibration(file, CellFollower(cell), cameras, Terminal()))
    results = {item.data["camera"]: item.result for item in found if item.data}
    assert results == {"good": Result.OK, "poor": Result.FAIL,
                       "half": Result.UNANSWERED, "new": Result.UNANSWERED}  # fmt: skip
    assert "hand_eye 7 of at most 5 mm" in next(i for i in found if i.result is Result.FAIL).found


def test_limits_are_said_and_an_arm_outside_them_is_seen() -> None:
    with Cell() as cell:
        follower = CellFollower(cell)
        station = Station(name="lab")
        items = list(check_limits(station, follower, 0.005, has_file=True))
        assert [item.result for item in items] == [Result.OK, Result.OK]
        lift = follower.joint_names.index("shoulder_lift")
        at = follower.read().position_rad[lift]
        narrow = Station(name="lab", joint_limits_rad={"shoulder_lift": (at + 0.3, at + 0.6)})
        outside: Item = next(iter(check_limits(narrow, follower, 0.005, has_file=True)))
    assert outside.result is Result.FAIL
    assert "shoulder_lift by 0.3" in outside.found
