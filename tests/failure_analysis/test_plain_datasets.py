"""`gaploop diagnose` on what plain `lerobot-record` writes: joints in its units, no outcomes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from failure_analysis_makers import JOINTS, commands

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.datasets.labels import open_labelled
from gaploop.failure_analysis.review.takes import TakeSource
from gaploop.failure_analysis.views.joints import angles_rad, answering, with_units
from gaploop.failure_analysis.views.phases import Grasp, grasps
from gaploop.failure_analysis.views.view import TakeView
from gaploop.finetune.evaluate import recorded
from gaploop.scripts.cli import main
from gaploop.sim.catalogue import from_degrees, to_degrees

FPS = 30


def in_degrees(seed: int, lag: int = 0) -> tuple[FloatArray, FloatArray]:
    """Return commands and readings as so101_follower has them, shape (n, 6)."""
    rows = commands(seed=seed)[:: round(100 / FPS)]
    sent = np.array([to_degrees(row) for row in rows])
    read = np.concatenate([np.repeat(sent[:1], lag, axis=0), sent])[: len(sent)].copy()
    read[:, -1] = np.maximum(read[:, -1], 20.0)  # the jaws hold something
    return sent, read


def plain_take(sent: FloatArray, read: FloatArray, robot: str, uid: str = "0") -> Take:
    """Return a take as it is read from a dataset without gap columns."""
    n = len(sent)
    info = TakeInfo(uid, kind=TakeKind.IMPORT, fps=FPS, joint_names=JOINTS, robot_type=robot)
    frames = replace(Frames.empty(), t_s=np.arange(n) / FPS, state=read, action=sent, sent=sent)
    return Take(info, Outcome.UNLABELLED, frames, Telemetry(np.empty(0), {}))


@pytest.mark.parametrize(
    ("name", "of_percent"),
    [("actuator8", lambda g: 0.0004 * g), ("gripper", lambda g: 1.0 - 0.01 * g)],
)
def test_grippers_of_any_name_and_unit_close_alike(
    name: str, of_percent: Callable[[FloatArray], FloatArray]
) -> None:
    """A Panda's, which goes by `actuator8` in metres, never closed: its failures were unknown."""

    def closings(jaw: str, numbers: Callable[[FloatArray], FloatArray], robot: str) -> list[Grasp]:
        takes = []
        for seed in range(6):
            sent, read = in_degrees(seed, lag=1)
            if seed >= 4:
                read[:, -1] = np.r_[sent[:1, -1], sent[:-1, -1]]  # closes on nothing
            for values in (sent, read):
                values[:, 0] += 60.0
                values[:, -1] = numbers(values[:, -1])
            found = plain_take(sent, read, robot)
            takes.append(replace(found, info=replace(found.info, joint_names=(*JOINTS[:-1], jaw))))
        motions = [TakeView(t).motion for t in with_units(takes, "degrees")]
        return [g for motion in motions if motion is not None for g in grasps(motion)]

    usual = closings("gripper", lambda g: g, "so101_follower")
    foreign = closings(name, of_percent, "panda")
    assert [g.held for g in foreign] == [g.held for g in usual]
    assert any(g.held for g in usual)
    assert not all(g.held for g in usual)
    assert [g.close_s for g in foreign] == pytest.approx([g.close_s for g in usual], abs=0.05)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight episodes by LeRobot's own writer; the last two answer 0.3 s late."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    root = tmp_path_factory.mktemp("plain") / "so101"
    joints = {"dtype": "float32", "shape": (6,), "names": [f"{name}.pos" for name in JOINTS]}
    features = {"action": joints, "observation.state": dict(joints)}
    written = LeRobotDataset.create(
        "local/so101", FPS, features, root=root, robot_type="so101_follower", use_videos=False
    )
    for episode in range(8):
        sent, read = in_degrees(episode, lag=9 if episode >= 6 else 1)
        sent[:, 0] += 60.0  # over 100 degrees: no -100 to 100
        read[:, 0] += 60.0
        for action, state in zip(sent, read, strict=True):
            frame = {"action": action, "observation.state": state, "task": "Pick"}
            written.add_frame({k: v if k == "task" else v.astype(np.float32)
                               for k, v in frame.items()})  # fmt: skip
        written.save_episode()
    written.finalize()
    return root


def test_without_outcomes_columns_speak_and_with_them_joints_are_read(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Takes without `gap_units` lost their joints, and all of them read "none"."""
    command = ["diagnose", str(dataset), "--json", f"--output_dir={tmp_path}"]
    assert main(command) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"absolute"}
    for episodes, outcome in (("[0, 1, 2, 3, 4, 5]", "success"), ("[6, 7]", "failure")):
        label = ["label", str(dataset), f"--episodes={episodes}", f"--outcome={outcome}"]
        assert main([*label, "--author=ana"]) == 0
    capsys.readouterr()
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert [t["episode"] for t in found["takes"]] == [6, 7]
    for take in found["takes"]:
        assert take["named"] == ["actuator_response"]  # among six that went well, by the delay
        assert "no joint commands with readings" not in take["unseen"]


@pytest.mark.members(3)
@pytest.mark.parametrize(
    ("robot", "change", "units"),
    [
        ("so101_follower", {"offset": 60.0}, "deg"),
        ("so101_follower", {"rests": 1.0}, "m100_100"),
        ("koch_follower", {}, "m100_100"),
        ("aloha", {"scale": math.radians(1.0)}, "rad"),
        ("so101_follower", {"scale": math.radians(1.0)}, "rad"),
        ("ticks", {"scale": 40.0}, ""),
        ("simulation", {"scale": 0.001}, ""),  # hardly moves, or no joints at all: not asked for
    ],
)
def test_units_are_told_where_the_values_leave_no_doubt(
    robot: str, change: Mapping[str, float], units: str
) -> None:
    sent, read = (v * change.get("scale", 1.0) for v in in_degrees(0))
    sent[:, 0], read[:, 0] = (v[:, 0] + change.get("offset", 0.0) for v in (sent, read))
    if "rests" in change:  # a joint that stands at the end of its range, as the SO-101's at rest
        read[:20, 1] = -100.0
    (told,) = with_units([plain_take(sent, read, robot)])
    assert told.info.units == units
    assert (TakeView(told).motion is not None) == bool(units)


def test_what_may_be_either_is_asked_for_in_one_line() -> None:
    take = plain_take(*in_degrees(0), "so101_follower")
    with pytest.raises(UnusableInputError, match=r"--units=degrees.*--units=normalized"):
        with_units([take])
    assert with_units([take], "normalized")[0].info.units == "m100_100"
    assert TakeView(with_units([take], "unknown")[0]).motion is None
    with pytest.raises(UnusableInputError, match="degrees"):
        with_units([take], "turns")
    ours = replace(take, info=replace(take.info, units="deg"))
    assert with_units([ours]) == [ours]
    with pytest.raises(UnusableInputError, match="gaploop edit retag"):
        with_units([ours], "radians")


def test_review_reads_joints_as_a_diagnosis_does(dataset: Path) -> None:
    store = open_labelled(dataset)
    units = TakeSource(store).units("")
    assert units == "deg"
    take = TakeSource(store, units).take(store.episodes[0])
    assert TakeView(take, images=False).motion is not None


def test_failures_of_other_robots_have_the_mode_of_their_label_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules with limits of the embedded cell named modes of arms and tasks that it never saw."""
    plain = plain_take(*in_degrees(0, lag=9), "so101_follower")
    failed = replace(
        plain, info=replace(plain.info, kind=TakeKind.ROLLOUT), outcome=Outcome.FAILURE
    )
    takes = [failed, replace(failed, failure_mode="slip")]
    monkeypatch.setattr("gaploop.finetune.evaluate.load_takes", lambda _folder: iter(takes))
    found = recorded(tmp_path)[0].outcomes
    assert [rollout.category for rollout in found] == ["failure", "slip"]


def test_each_robot_has_its_own_normalised_units() -> None:
    info = TakeInfo("0", joint_names=JOINTS, robot_type="so101_follower", units="m100_100")
    ends = angles_rad(np.array([[100.0] * 6, [-100.0] * 5 + [0.0]]), info)
    assert ends is not None
    assert ends[0, 0] == pytest.approx(1.92, abs=0.02)  # the SO-101's pan, of its model
    assert ends[:, 5] == pytest.approx([1.7453, -0.1745], abs=1e-3)
    unknown = angles_rad(np.full((1, 6), 100.0), replace(info, robot_type="mine"))
    assert unknown is not None
    assert unknown[0, 0] == pytest.approx(math.radians(100.0))
    told = angles_rad(np.array([[10.0, 20, 30, 40, 50, 60]]), replace(info, units="deg"))
    assert told == pytest.approx(from_degrees(np.array([[10.0, 20, 30, 40, 50, 60]])))


def test_a_leader_of_fewer_joints_is_paired_with_the_joints_that_answer() -> None:
    """Commands of an SO-101 and readings of a seven-joint arm couldn't be compared."""
    sent, read = in_degrees(3, lag=2)
    wider = np.insert(np.radians(read), 3, -0.02, axis=1)
    assert answering(np.radians(sent), wider) == ([0, 1, 2, 3, 4, 5], [0, 1, 2, 4, 5, 6])
    assert answering(wider, np.radians(sent)) == ([0, 1, 2, 4, 5, 6], [0, 1, 2, 3, 4, 5])
    assert answering(np.radians(sent) + 1.0, wider) is None
