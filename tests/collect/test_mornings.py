"""What doctor keeps of a station from morning to morning, and says of test motions."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from gaploop.collect.preflight import (
    PER_JOINT,
    WANTED,
    MotionLog,
    check_history,
    check_motion,
    rest_figures,
    write_measured,
)
from gaploop.core.messages import FollowerState, LeaderSample, SafeCommand, Tick
from gaploop.core.statistics import Estimate
from gaploop.datasets.absolute.findings import Figure
from gaploop.teleop.checks import CheckResult, Level
from gaploop.teleop.checks.connected_arm import ESTOP

NAMES = ("shoulder_pan", "elbow", "wrist", "wrist_roll", "flange", "gripper")
FIRST = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)


def figures(offset_deg: float) -> list[Figure]:
    size = Estimate(offset_deg, offset_deg - 0.05, offset_deg + 0.05)
    return [Figure("offset", "elbow", "°", size, 0.5)]


def test_what_changed_is_told_with_its_morning(tmp_path: Path) -> None:
    station = tmp_path / "left.yaml"
    offsets = (0.4, 0.45, 0.4, 3.1)
    told = [
        list(check_history(station, figures(v), FIRST + timedelta(days=n)))
        for n, v in enumerate(offsets)
    ]
    assert [r.level for (r,) in told] == [Level.OK, Level.OK, Level.OK, Level.WARN]
    assert "as on the 2 runs before, since Mon 2026-03-02" in told[2][0].found
    assert "until Wed 2026-03-04" in told[3][0].found
    lines = (tmp_path / "left.mornings.jsonl").read_text().splitlines()
    assert len(lines) == 4
    assert set(json.loads(lines[0])) == {"at", "figures"}


def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "left.mornings.jsonl"
    kept.write_text("no JSON\n{}\n")
    (result,) = check_history(tmp_path / "left.yaml", figures(0.0), FIRST)
    assert result.level is Level.WARN
    assert "line 1" in result.found
    assert kept.read_text() == "no JSON\n{}\n"


def motions(offset_deg: float) -> MotionLog:
    """Each joint goes out by 6 degrees, rests there, and comes back, as doctor moves them."""
    log, t, home = MotionLog(), 0.0, np.full(6, 0.3)
    off = np.radians([0, offset_deg, 0, 0, 0, 0])
    noise, late = np.random.default_rng(0), [home] * 8
    for joint in range(6):
        out = home + 0.1 * np.eye(6)[joint]
        rest = np.zeros(120)
        ways = np.r_[rest, np.linspace(0, 1, 80), np.ones(120), np.linspace(1, 0, 80), rest]
        for share in ways:
            q = home + share * (out - home)
            late.append(q)
            reads = late[-8] + off + noise.normal(0, 2e-4, 6)
            state = FollowerState(t, reads, *[np.zeros(6)] * 5, np.zeros(6, dtype=np.int64))
            command = SafeCommand(q, q)
            log.tick(Tick(0, t, 0.005, 0.0, LeaderSample(t, q), command, state, {}))
            t += 0.005
    return log


def test_test_motions_go_through_the_tests_of_datasets() -> None:
    for offset_deg, level in ((0.0, Level.OK), (4.0, Level.WARN)):
        report = motions(offset_deg).report(NAMES)
        assert report is not None
        (result,) = check_motion(report)
        assert result.level is level
        offsets = {f.about: f.size.value for f in report.figures if f.what == "offset"}
        assert abs(offsets["elbow"] - offset_deg) < 0.1
    assert "At rest elbow stands off its command, by 4" in result.found
    assert "calibrate" in result.fix
    assert "gaploop edit" not in result.fix, "there is no dataset"


class Arm:
    """A follower of which only what it is called and what its bus lost is asked."""

    robot_type, joint_names, ports = "so_follower", NAMES, ("/home/ada/dev/ttyACM0",)

    def fault_counts(self) -> dict[str, int]:
        return {"silent": 3, "late": 0}


def test_a_measured_arm_is_a_kind_of_arm_and_nobodys(tmp_path: Path) -> None:
    """Its owner sends it to others: it holds no path, port, camera's name or day."""
    log = motions(2.0)
    report = log.report(NAMES)
    assert report is not None
    size = Estimate(0.04, 0.03, 0.05)
    seen = [Figure("age", "adas_desk", "s", size, 0.05)]
    stop = {"joint": "elbow", "from_deg_s": 30.0, "way_deg": 2.0}
    held = CheckResult(ESTOP, Level.OK, "held", data={"took_s": 0.11, "stop": stop, "drop_deg": 1})
    path = tmp_path / "arm.json"
    result = write_measured(path, Arm(), log, [held], [*report.figures, *seen])  # type: ignore[arg-type]
    assert result.level is Level.WARN
    assert "not measured: " in result.found
    assert "fall" in result.found
    kept = json.loads(path.read_text())
    assert kept["offset_deg"]["elbow"][0] == pytest.approx(2.0, abs=0.1)
    assert kept["bus_errors"] == {"turns": len(log.turns), "silent": 3}
    assert kept["cameras"] == [{"age_p99_ms": 40.0}]
    assert len(kept["month"]) == len("2026-11")
    assert not any(word in path.read_text() for word in ("ada", "ttyACM", "/home"))
    page = (Path(__file__).resolve().parents[2] / "docs/figures/real_arms.md").read_text()
    assert all(f"`{key}`" in page for key in (*PER_JOINT.values(), *WANTED, "schema"))


@pytest.mark.parametrize("joint", ["shoulder_pan", "elbow_flex", "gripper"])
def test_a_joint_that_slipped_reads_otherwise_at_rest_from_that_morning_on(
    joint: str, tmp_path: Path
) -> None:
    """A zero that had moved by 17° was baked into a dataset (lerobot #3758)."""
    names = ("shoulder_pan", "elbow_flex", "gripper")
    rest_rad, slipped_rad = np.zeros(3), np.radians(17.0) * np.array([n == joint for n in names])
    station = tmp_path / "left.yaml"
    for day, q_rad in enumerate((rest_rad, rest_rad + 0.01, rest_rad), 1):
        at = datetime(2026, 3, day, tzinfo=UTC)
        (said,) = check_history(station, rest_figures(names, q_rad), at)
        assert said.level is Level.OK
    at = datetime(2026, 3, 4, tzinfo=UTC)
    (said,) = check_history(station, rest_figures(names, slipped_rad), at)
    assert said.level is Level.WARN
    assert said.found.startswith(f"reading at rest of {joint}: ")
    assert "17" in said.found
