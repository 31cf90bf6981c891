"""Laws of identifying the drives of any arm by its MJCF file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.any_arm import FPS, models, planted_take
from gaploop.core.errors import UnusableInputError
from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import Outcome
from gaploop.failure_analysis.views.joints import of_model
from gaploop.sim.identification.drive_fit import CLEAR, QUICK, DriveFitter, candidates
from gaploop.sim.identification.drives import fit_drives, likeliest, sent_otherwise
from gaploop.sim.identification.open_loop import DriveLog, OpenLoopArm, ServoArm, drive_logs
from gaploop.sim.plant import make_plant
from gaploop.teleop.emulator.arms import arm_plan

OMX, NEXUS = models()
LINK = '<body pos="0 0 0.2"><inertial mass="0.4" pos="0 0 0.1" diaginertia="1e-3 1e-3 1e-4"/>'
TWO = f"""<mujoco><compiler angle="radian"/><worldbody>
{LINK}<joint name="joint1" axis="0 1 0" range="-1 3"/>
{LINK}<joint name="joint2" axis="0 1 0" range="-2 2"/></body></body></worldbody>
<actuator><position joint="joint1" kp="90" kv="6"/><position joint="joint2" kp="90" kv="6"/>
</actuator></mujoco>"""
"""An arm of two joints whose servos have no name and no torque limit."""


def two_joints(folder: Path, xml: str = TWO) -> Path:
    path = folder / "two.xml"
    path.write_text(xml)
    return path


@pytest.mark.parametrize(
    "mjcf",
    [OMX, OMX.parent / "koch.xml", NEXUS, NEXUS.parents[1] / "SO101_menagerie/scene_box.xml"],
    ids=lambda path: path.stem,
)
def test_models_that_packages_bring_are_arms(mjcf: Path) -> None:
    """Their gripper isn't fitted, and a cube beside one of them isn't simulated."""
    arm = ServoArm(mjcf)
    assert len(arm.joint_names) == 5
    assert not any("gripper" in name for name in arm.joint_names)
    assert arm.model.nq == arm.model.nu == 5
    on = arm.appliers().model
    assert on.goal_joints() == list(arm.joint_names)


PLANTED = {
    "actuator_response.latency": {"latency_s": 0.1},
    "actuator_response.drives": {"joint2.speed_limit_rad_s": 0.8},
}


def test_values_of_anybodys_arm_are_fitted(tmp_path: Path) -> None:
    """And joints that are moved together for their slopes don't disturb each other's."""
    mjcf = two_joints(tmp_path)
    logs = drive_logs([planted_take(mjcf, PLANTED, 1, 4.0)], ServoArm(mjcf))
    fitter = DriveFitter(ServoArm(mjcf), logs)
    wanted = ("latency_s", "joint1.speed_limit_rad_s", "joint2.speed_limit_rad_s")
    chosen = [next(c for c in candidates(fitter.arm) if c.key == key) for key in wanted]
    found = fitter.fit(chosen, [0.05, 1 / 1.5, 1 / 1.5], QUICK)
    late_s, fast, slow = (c.value(x) for c, x in zip(chosen, found.x, strict=True))
    assert late_s == pytest.approx(0.1, abs=0.004)
    assert slow == pytest.approx(0.8, rel=0.03)
    assert fast > 1.5
    assert np.abs(found.error).mean() < 0.005


def test_a_delay_of_stiff_servos_is_found_to_the_millisecond() -> None:
    """A servo at its torque limit doesn't feel a part of a goal: the error was a staircase.

    The fit of 270 ms stood still on a step 4 ms away, and a weak gain, torque and damping were
    named for what was left.
    """
    mjcf = NEXUS.parents[1] / "SO101_menagerie/so101.xml"
    late = {"actuator_response.latency": {"latency_s": 0.1}}
    fitter = DriveFitter(
        ServoArm(mjcf), drive_logs([planted_take(mjcf, late, 1, 4.0)], ServoArm(mjcf))
    )
    (delay,) = (c for c in candidates(fitter.arm) if c.key == "latency_s")
    found = fitter.fit([delay], [0.07], QUICK)
    assert found.x[0] == pytest.approx(0.1, abs=0.001)
    assert (fitter.spread(found) < 0.001).all()


def test_what_only_the_motion_it_was_learned_from_shows_is_not_named(tmp_path: Path) -> None:
    mjcf = two_joints(tmp_path)
    slow = {"actuator_response.drives": {"joint2.speed_limit_rad_s": 0.8}}
    learn, judge = (
        DriveFitter(
            ServoArm(mjcf), drive_logs([planted_take(mjcf, planted, 1, 2.0)], ServoArm(mjcf))
        )
        for planted in (slow, {})
    )
    assert learn.choose(judge)[0].chosen == ()


def test_a_limit_is_named_though_the_arm_rests_most_of_the_time(tmp_path: Path) -> None:
    """In a probe, too, each joint rests while the others move: its few rows were outliers.

    A station that moved no faster than 29°/s was "nothing that was measured differs".
    """
    light = TWO.replace("<worldbody>", '<option gravity="0 0 0"/><worldbody>')
    arm = ServoArm(two_joints(tmp_path, light))
    slow = {"actuator_response.drives": {"joint2.speed_limit_rad_s": 0.4}}
    take = planted_take(arm.path, slow, 1, 2.0)
    rows = np.r_[np.zeros(15 * len(take.frames), dtype=int), np.arange(len(take.frames))]
    held = {name: getattr(take.frames, name)[rows] for name in ("state", "action", "sent")}
    t_s = np.arange(len(rows)) / take.info.fps
    frames = replace(Frames.empty(), t_s=t_s, **held)
    fitter = DriveFitter(arm, drive_logs([replace(take, frames=frames)], arm))
    found, _ = fitter.choose(fitter)
    assert any("speed_limit_rad_s" in c.key for c in found.chosen)


def test_goals_that_were_held_are_not_taken_for_ramped() -> None:
    """A fault in one joint was, and half a frame of delay was named instead of it."""
    mjcf = NEXUS.parents[1] / "SO101_menagerie/so101.xml"
    rough = {"actuator_response.drives": {"elbow_flex.friction_nm": 1.0}}
    (log,) = drive_logs([planted_take(mjcf, rough, 1, 4.0)], ServoArm(mjcf))
    held, ramped = (DriveFitter(ServoArm(mjcf), [way]) for way in (log, log.ramped()))
    assert likeliest([held, ramped], [held.late(), ramped.late()]) == 0


@pytest.mark.parametrize("is_ramped", [False, True], ids=["held", "ramped"])
def test_a_slow_arm_does_not_hide_how_its_goals_were_sent(tmp_path: Path, is_ramped: bool) -> None:
    """Taken for ramped, held goals made 30 ms of delay beside the speed limit that was there.

    Far behind its goals an arm hardly shows when they came, until its limit is known.
    """
    arm = ServoArm(two_joints(tmp_path))
    slow = {"actuator_response.slow": {"speed_limit_rad_s": 0.5}}
    (log,) = drive_logs([planted_take(arm.path, slow, 1, 4.0)], arm)
    if is_ramped:
        log = replace(log, q_rad=OpenLoopArm(arm, [log.ramped()]).readings([slow])[0][0])
    ways = [DriveFitter(arm, [way]) for way in (log, log.ramped())]
    (limit,) = (c for c in candidates(arm) if c.key == "speed_limit_rad_s")
    for taken in (0, 1):
        found = ways[taken].fit([limit], [limit.scaled(0.7)], QUICK)
        other = sent_otherwise(found, ways[1 - taken], was_held=not taken)
        both = [ways[taken], ways[1 - taken]]
        assert likeliest(both, [found, other], CLEAR) == (taken != is_ramped)


@pytest.mark.slow
def test_planted_drives_of_anybodys_arm_are_named(tmp_path: Path) -> None:
    mjcf = two_joints(tmp_path)
    fitted = fit_drives([planted_take(mjcf, PLANTED, seed) for seed in range(2)], ServoArm(mjcf))
    found = {p.key: p for p in fitted.parameters if p.differs}
    assert set(found) == {"latency_s", "joint2.speed_limit_rad_s"}
    for key, true in (("latency_s", 0.1), ("joint2.speed_limit_rad_s", 0.8)):
        low, high = found[key].interval
        assert low <= true <= high
    sent, _, after = np.array(list(fitted.fit["error_by_joint"].values())).T
    assert (after < 0.1 * sent).all()


def test_a_servo_without_a_torque_limit_gets_one(tmp_path: Path) -> None:
    """A tenth of an unlimited torque was unlimited: nothing was told of a servo that is slow."""
    mjcf = two_joints(tmp_path)
    arm, weak = ServoArm(mjcf), {"actuator_response.drives": {"joint1.torque_factor": 0.1}}
    log = DriveLog("", np.array([0.0, 1.0]), np.zeros((2, 2)), np.zeros(1), np.ones((1, 2)), True)
    strong, slow = (q[0][-1] for q in OpenLoopArm(arm, [log]).readings([{}, weak]))
    assert strong[0] == pytest.approx(1.0, abs=0.1)
    assert abs(slow[0] - strong[0]) > 0.5  # it falls


def test_other_names_columns_and_units_become_the_models(tmp_path: Path) -> None:
    """A follower of seven columns, one of which no command of six is for, in -100 to 100."""
    arm = ServoArm(two_joints(tmp_path))
    wave = np.sin(np.arange(90) / 10.0)
    still = np.full(90, -1.5)
    read = np.stack(
        [-20 + 60 * wave, -99.9 * np.cos(np.arange(90) / 10.0), still, 50 + 0 * wave], 1
    )
    sent = np.stack([-20 + 60 * wave, -101 * np.cos(np.arange(90) / 10.0), 50 + 0 * wave], 1)
    flags = np.zeros(90, dtype=np.int64)
    frames = Frames(
        np.arange(90) / FPS, read, sent, sent, np.empty((90, 0)), flags.astype(bool), flags
    )
    names = ("Joint_1.pos", "joint-2.pos", "joint3.pos", "gripper.pos")
    take = Take(
        TakeInfo("t", joint_names=names), Outcome.SUCCESS, frames, Telemetry(np.empty(0), {})
    )
    (made,), commanded, granted = of_model([take], "two.xml", arm.joint_names, arm.limits_rad, "")
    assert made.info.joint_names == arm.joint_names
    assert made.info.units == "rad"
    assert commanded == ["joint1", "joint2"]
    assert "-100 to 100" in granted
    assert made.frames.state[0] == pytest.approx([1.0 - 0.2 * 2.0, -0.999 * 2.0])  # -1 to 3: 1 ± 2
    with pytest.raises(UnusableInputError, match="Call them alike"):
        of_model([take], "two.xml", ("a", "b", "c", "d"), np.zeros((4, 2)), "")


@pytest.mark.parametrize(
    ("xml", "says"),
    [
        (TWO.replace("position", "motor").replace(' kp="90" kv="6"', ""), "no position servo"),
        ("<mujoco><worldbdy/></mujoco>", "can't use the arm model"),
    ],
)
def test_a_model_that_cannot_be_used_is_one_line(tmp_path: Path, xml: str, says: str) -> None:
    with pytest.raises(UnusableInputError, match=says) as raised:
        ServoArm(two_joints(tmp_path, xml))
    assert "\n" not in str(raised.value)


def test_an_arm_of_hinges_is_emulated_by_its_file() -> None:
    plan = arm_plan(str(NEXUS))
    assert [servo.id for servo in plan.servos] == list(range(1, 7))
    assert {servo.model for servo in plan.servos} == {"sts3215"}
    plant = make_plant(str(NEXUS))
    assert plant.joint_names == tuple(servo.name for servo in plan.servos)
    plant.command(np.full(6, 0.1))
    plant.advance(0.5)
    assert plant.read().position_rad[0] == pytest.approx(0.1, abs=0.02)
