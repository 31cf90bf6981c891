"""Laws of identification: what was put into a cell is found again, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.twin import Twin, TwinParameter
from gaploop.core.vocabulary import Outcome
from gaploop.sim.catalogue import SO101, to_degrees
from gaploop.sim.cell import ENCODER_STEP_RAD, SimCell
from gaploop.sim.gaps.mechanism import CommandPath, Values
from gaploop.sim.identification.drive_fit import jump_rad
from gaploop.sim.identification.drives import FittedDrives, fit_drives
from gaploop.sim.identification.noise import losses, noise_parameters
from gaploop.sim.identification.open_loop import (
    DriveLog,
    OpenLoopArm,
    arm_of_takes,
    drive_logs,
    encoder_step_rad,
)
from gaploop.sim.scene import TIMESTEP_S

HOME = np.asarray(SO101.home_q_rad)
SECONDS = 3.0


def goal(t_s: float, seed: int, joint: int | None = None) -> FloatArray:
    """Swings of all joints, or one, of several speeds, from home; they hold on for a while."""
    rng = np.random.default_rng(seed)
    hz, size = rng.uniform(0.2, 0.6, 6), rng.uniform(0.15, 0.35, 6)
    if joint is not None:
        size *= np.arange(6) == joint
    moved = HOME + size * np.sin(2 * np.pi * hz * min(t_s, 0.7 * SECONDS)) * [-1, 1, -1, -1, 1, 0]
    return np.asarray(moved)


def ramps(t_s: float, seed: int, _joint: int | None = None) -> FloatArray:
    """Joints to and fro, each at an even speed of its own, two or three at a time."""
    swing = 0.2 * np.array([1, -1, 1, -1, 1, 0]) * (np.arange(6) % 2 == seed % 2)
    speed = np.array([0.15, 0.2, 0.17, 0.22, 0.19, 0.0])
    turn = np.abs((speed * t_s / 0.2 + 3.0) % 4.0 - 2.0) - 1.0
    return np.asarray(HOME + swing * turn)


def motion_take(
    parameters: Mapping[str, Values],
    seed: int,
    joint: int | None = None,
    goal: Callable[[float, int, int | None], FloatArray] = goal,
    seconds: float = SECONDS,
) -> Take:
    """Drive a cell with these parameters and return what its telemetry says."""
    rows = []
    with SimCell(parameters=parameters, image_size=32) as cell:
        cell.reset(seed)
        cell.model.opt.disableflags |= 1 << 4  # no contacts: the law is about drives
        for k in range(round(seconds * 100)):
            sent = goal(cell.now_s, seed, joint)
            rows.append((k * 0.01, sent, cell.read().position_rad))
            cell.command(sent)
            cell.advance(0.01)
    times, goals, read = (np.array(values) for values in zip(*rows, strict=True))
    columns = {
        f"follower.{joint}.{name}": values[:, j]
        for name, values in (("sent_rad", goals), ("position_rad", read))
        for j, joint in enumerate(SO101.joint_names)
    }
    info = TakeInfo(f"take{seed}", joint_names=SO101.joint_names, units="deg")
    return Take(info, Outcome.SUCCESS, Frames.empty(), Telemetry(times, columns))


def as_frames(take: Take, every: int = 2) -> Take:
    """Return what a plain LeRobot dataset holds of it."""
    sent, read = (
        to_degrees(take.telemetry.stack("follower", name)[::every])
        for name in ("sent_rad", "position_rad")
    )
    flags = np.zeros(len(sent), dtype=np.int64)
    times = take.telemetry.t_s[::every]
    frames = Frames(times, read, sent, sent, np.empty((len(sent), 0)), flags.astype(bool), flags)
    return replace(take, frames=frames, telemetry=Telemetry(np.empty(0), {}))


def found_in(parameters: Mapping[str, Values]) -> tuple[FittedDrives, dict[str, TwinParameter]]:
    """Identify a station of two takes; return what differs by "mechanism.key"."""
    drives = fit_drives([motion_take(parameters, seed) for seed in range(2)], SO101)
    return drives, {
        f"{p.mechanism.partition('.')[2]}.{p.key}": p for p in drives.parameters if p.differs
    }


def test_nothing_is_found_where_nothing_differs() -> None:
    drives, differs = found_in({})
    assert not differs
    assert drives.fit["explained"]
    twin = Twin("s", "so101", tuple(drives.parameters))
    assert twin.values() == {}


def test_a_delay_is_found_to_the_step() -> None:
    drives, differs = found_in({"actuator_response.latency": {"latency_s": 0.12}})
    assert list(differs) == ["latency.latency_s"]
    assert differs["latency.latency_s"].estimate == pytest.approx(0.12, abs=1e-9)
    assert drives.fit["open_loop_error_after"] < 0.05 * drives.fit["open_loop_error_before"]


@pytest.mark.members(2, of="faults of one joint")
@pytest.mark.parametrize("late_s", [0.12, 0.0])
def test_a_delay_is_found_where_each_joint_moves_by_itself(late_s: float) -> None:
    """Of a probe's parts the last moved the gripper alone: judged by them, no arm was ever late."""
    station = {"actuator_response.latency": {"latency_s": late_s}} if late_s else {}
    takes = [motion_take(station, seed, joint) for seed, joint in enumerate([1, 1, 2, 2, 5, 5])]
    drives = fit_drives(takes, SO101)
    differs = [(p.name, p.estimate) for p in drives.parameters if p.differs]
    assert differs == ([("actuator_response.latency.latency_s", late_s)] if late_s else [])


def test_backlash_is_found() -> None:
    _, differs = found_in({"actuator_response.backlash": {"backlash_rad": 0.05}})
    assert list(differs) == ["backlash.backlash_rad"]
    low, high = differs["backlash.backlash_rad"].interval
    assert low <= 0.05 <= high
    assert high - low < 0.005


@pytest.mark.members(2, of="faults of one joint")
@pytest.mark.parametrize(
    "beside",
    [
        {},
        pytest.param({"actuator_response.latency": {"latency_s": 0.09}}, marks=pytest.mark.slow),
        pytest.param(
            {"actuator_response.backlash": {"backlash_rad": 0.03}}, marks=pytest.mark.slow
        ),
        pytest.param({"sensor_noise.coarse_encoder": {"step_rad": 0.006}}, marks=pytest.mark.slow),
    ],
)
def test_the_dead_band_of_a_joint_is_found_whatever_is_beside(beside: dict[str, Values]) -> None:
    """It stands while its goal moves and jumps after it, which looked like backlash of that joint
    or was told by nothing."""
    joints = {"shoulder_lift": 0.031, "wrist_roll": 0.052}
    deaf = {f"{joint}.dead_band_rad": rad for joint, rad in joints.items()}
    station = {"actuator_response.drives": deaf, **beside}
    seeds = range(4 if beside else 2)
    rows = fit_drives([motion_take(station, k, None, ramps, 8.0) for k in seeds], SO101).parameters
    found = {p.joint: p for p in rows if p.name.endswith("dead_band_rad") and p.differs}
    assert set(found) == set(joints)
    assert all(p.interval[0] <= joints[joint] <= p.interval[1] for joint, p in found.items())
    assert all(p.interval[1] - p.interval[0] < 0.5 * p.estimate for p in found.values())


STANDING: list[dict[str, Values]] = [
    {},
    {"actuator_response.backlash": {"backlash_rad": 0.06}},
    {"sensor_noise.coarse_encoder": {"step_rad": 0.03}},
    {"actuator_response.weak": {"gain_factor": 0.05, "friction_nm": 0.3}},
    {"actuator_response.slow": {"speed_limit_rad_s": 0.1}},
]
"""Stations whose joints stand while their goals go on, for other reasons."""


@pytest.mark.members(2)
@pytest.mark.parametrize(
    "station",
    [
        *STANDING,
        {"sensor_noise.stale_reads": {"stale_fraction": 0.5, "burst_s": 0.3}},
        {"sensor_noise.encoder_drift": {"drift_rad": 0.02, "noise_rad": 0.004}},
    ],
)
def test_what_lags_or_reads_in_steps_has_no_dead_band(station: dict[str, Values]) -> None:
    """Backlash, friction, slow joints, coarse encoders and a bus that goes down stand, too."""
    takes = [motion_take(station, seed, None, ramps, 8.0) for seed in range(2)]
    logs = drive_logs(takes, SO101, 0.0)
    assert not any(jump_rad(logs, column) for column in range(5))


LOOSE = {"elbow_flex.lost_fraction": 0.4, "elbow_flex.lost_s": 0.4}


@pytest.mark.members(2, of="faults of one joint")
@pytest.mark.parametrize(
    "beside",
    [
        {},
        pytest.param({"actuator_response.latency": {"latency_s": 0.09}}, marks=pytest.mark.slow),
        pytest.param(
            {"actuator_response.backlash": {"backlash_rad": 0.03}}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_joint_that_loses_its_goals_is_found_and_nothing_else_of_it(
    beside: dict[str, Values],
) -> None:
    """Its stands were a delay, a weak gain and a slow servo of that joint, or nothing."""
    station = {"actuator_response.lost_goals": LOOSE, **beside}
    rows = fit_drives([motion_take(station, k, None, ramps, 8.0) for k in range(4)], SO101)
    lost = {p.key: p for p in rows.parameters if p.mechanism.endswith("lost_goals")}
    assert set(lost) == set(LOOSE)
    for key, p in lost.items():  # 90 % intervals of few losses miss, now and then, by little
        assert 0.8 * p.interval[0] <= LOOSE[key] <= 1.25 * p.interval[1]
    found = {p.mechanism for p in rows.parameters if p.differs}
    assert found == {"actuator_response.lost_goals", *beside}


@pytest.mark.members(3)
@pytest.mark.parametrize(
    "station",
    [
        *STANDING,
        {"actuator_response.latency": {"latency_s": 0.2}},
        {"actuator_response.drives": {"torque_factor": 0.15}},
        {"actuator_response.drives": {"elbow_flex.dead_band_rad": 0.04}},
        {"actuator_response.drives": {"elbow_flex.dead_band_rad": 0.15}},
        {"sensor_noise.stale_reads": {"stale_fraction": 0.3, "burst_s": 0.3}},
        {"sensor_noise.encoder_drift": {"drift_rad": 0.02, "noise_rad": 0.004}},
    ],
)
def test_what_stands_otherwise_loses_no_goals(station: dict[str, Values]) -> None:
    """Play, friction, dead bands, slow and weak servos, and a bus that all joints hear by."""
    logs = drive_logs([motion_take(station, k, None, ramps, 8.0) for k in range(4)], SO101)
    (paths,) = OpenLoopArm(SO101, logs).readings([{}])
    assert losses(logs, paths, 0.0, encoder_step_rad(logs)) is None


def test_what_blocks_a_joint_loses_no_goals() -> None:
    """A stop lets it go where it stood: its goal comes back, and it doesn't jump."""
    logs = drive_logs([motion_take({}, k, None, ramps, 8.0) for k in range(4)], SO101)
    stopped = [replace(log, q_rad=np.minimum(log.q_rad, log.q_rad[0] + 0.1)) for log in logs]
    (paths,) = OpenLoopArm(SO101, logs).readings([{}])
    assert losses(stopped, paths, 0.0, encoder_step_rad(logs)) is None


def test_the_joint_of_a_weak_servo_is_named_and_the_twin_follows_it() -> None:
    """And what was found, put into a cell, moves as the station does."""
    weak = {"actuator_response.drives": {"elbow_flex.gain_factor": 0.05}}
    drives, differs = found_in(weak)
    assert list(differs) == ["drives.elbow_flex.gain_factor"]
    assert differs["drives.elbow_flex.gain_factor"].estimate == pytest.approx(0.05, rel=0.05)
    twin = Twin("s", "so101", tuple(drives.parameters))
    read = {
        name: motion_take(parameters, 7).telemetry.stack("follower", "position_rad")
        for name, parameters in (("station", weak), ("nominal", {}), ("twin", twin.values()))
    }
    before, after = (np.abs(read[name] - read["station"]).mean() for name in ("nominal", "twin"))
    assert after < 0.1 * before


@pytest.mark.members(1)
@pytest.mark.parametrize("seed", range(3))
def test_what_a_person_leads_has_jumps_of_any_size(seed: int) -> None:
    """Incident: in two real sets at 30 Hz 13 of 18 joints had a "dead band" of up to 14 units."""
    rng, logs = np.random.default_rng(seed), list[DriveLog]()
    for _ in range(80):
        goal_rad = [0.0]
        for _ in range(12):
            to_rad, share = rng.uniform(-1, 1), np.linspace(0, 1, rng.integers(6, 30))
            path = goal_rad[-1] + (to_rad - goal_rad[-1]) * share**2 * (3 - 2 * share)
            goal_rad += [*path, *[to_rad] * rng.integers(0, 20)]
        goal = np.array(goal_rad)[:, None]
        late = np.vstack([np.repeat(goal[:1], 4, axis=0), goal[:-4]])
        t_s = np.arange(len(goal)) / 30.0
        read = np.round(late / ENCODER_STEP_RAD) * ENCODER_STEP_RAD
        logs.append(DriveLog("u", t_s, read, t_s, goal, True, slice(None)))
    assert jump_rad(logs, 0) == 0.0


@pytest.mark.slow
def test_two_things_at_a_time_are_both_found() -> None:
    _, differs = found_in(
        {
            "actuator_response.latency": {"latency_s": 0.1},
            "actuator_response.slow": {"speed_limit_rad_s": 0.4},
        }
    )
    assert set(differs) == {"latency.latency_s", "slow.speed_limit_rad_s"}


def test_columns_of_a_plain_lerobot_dataset_do() -> None:
    late = {"actuator_response.latency": {"latency_s": 0.12}}
    drives = fit_drives([as_frames(motion_take(late, 0))], SO101)
    (delay,) = (p for p in drives.parameters if p.differs)
    assert delay.name == "actuator_response.latency.latency_s"
    assert delay.estimate == pytest.approx(0.12, abs=0.01)
    assert drives.fit["goals"].startswith("frames")


@pytest.mark.members(2)
@pytest.mark.parametrize("step_rad", [0.04, 0.0299, 0.0215, 0.0103])
def test_steps_of_an_encoder_are_measured_whatever_its_servo_rounds_to(step_rad: float) -> None:
    """Steps of 19.5 of the servo's own weren't seen: counted by the least of them, they ran off."""
    coarse = {"sensor_noise.coarse_encoder": {"step_rad": step_rad}}
    logs = drive_logs([motion_take(coarse, 0)], SO101)
    assert encoder_step_rad(logs) == pytest.approx(step_rad, rel=0.02)


@pytest.mark.members(2, of="faults of one joint")
def test_noise_of_encoders_is_measured() -> None:
    noise = {"sensor_noise.encoder_drift": {"noise_rad": 0.006}}
    _, differs = found_in(noise)
    assert differs["encoder_drift.noise_rad"].estimate == pytest.approx(0.006, rel=0.15)


def test_noise_of_a_joint_is_learned_with_its_shape_and_white_noise_has_none() -> None:
    """A joint that is read late now and then, in runs, isn't one with white noise."""
    planted = {"noise_rad": 0.0005, "per_speed_s": 0.02, "fast_share": 0.6, "held_share": 0.2}
    wrist = {f"wrist_roll.{name}": value for name, value in planted.items()}
    takes = [motion_take({"sensor_noise.readings": wrist}, seed) for seed in range(6)]
    rows = noise_parameters(drive_logs(takes, SO101, 0.0), SO101, {}, "takes")
    assert {row.joint for row in rows} == {"wrist_roll"}
    found = {row.name.rpartition(".")[2]: row for row in rows}
    assert 0.007 < found["per_speed_s"].estimate < 0.03
    assert found["per_speed_s"].differs
    white = {"sensor_noise.encoder_drift": {"noise_rad": 0.006}}
    for station in ({}, white):
        takes = [motion_take(station, seed) for seed in range(4)]
        assert noise_parameters(drive_logs(takes, SO101, 0.0), SO101, {}, "takes") == []


def test_a_cell_reads_the_noise_of_its_take_again_and_without_any_to_the_bit() -> None:
    noisy = {"sensor_noise.readings": {"elbow_flex.noise_rad": 0.01, "elbow_flex.spike_hz": 1.0}}
    nominal = {"sensor_noise.readings": {"elbow_flex.noise_rad": 0.0}}
    first, again, without, plain = (
        motion_take(p, 1).telemetry.stack("follower", "position_rad")
        for p in (noisy, noisy, nominal, {})
    )
    assert np.array_equal(first, again)
    assert np.array_equal(without, plain)
    differs = np.abs(first - plain).max(0) > 0.01
    assert differs.tolist() == [name == "elbow_flex" for name in SO101.joint_names]


@pytest.mark.members(2)
@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"actuator_response.latency": {"latency_s": 0.035}},
        {"actuator_response.backlash": {"backlash_rad": 0.04}},
        {"actuator_response.slow": {"speed_limit_rad_s": 0.5}},
        {
            "actuator_response.latency": {"latency_s": 0.02},
            "actuator_response.drives": {
                "elbow_flex.backlash_rad": 0.03, "wrist_roll.speed_limit_rad_s": 0.3,
                "shoulder_pan.dead_band_rad": 0.04,
                "shoulder_lift.torque_factor": 0.3, "wrist_flex.acceleration_limit_rad_s2": 2.0,
            },
        },
    ],
)  # fmt: skip
def test_the_open_loop_arm_is_the_cell(setting: Mapping[str, Values]) -> None:
    """Its command path is the cell's: as long as nothing is touched, both read the same."""
    (log,) = drive_logs([motion_take(setting, 3)], SO101)
    simulated = OpenLoopArm(SO101, [log]).readings([setting])[0][0]
    # Readings are rounded to 0.0015 rad, and so is where the simulation begins.
    assert np.abs(simulated - log.q_rad)[:, :-1].max() < 0.003


def test_goals_of_whole_steps_arrive_as_on_the_command_path() -> None:
    rng = np.random.default_rng(0)
    goal_t_s, goals = np.arange(20) * 0.02, rng.normal(size=(20, 6))
    log = DriveLog("t", np.array([0.0, 0.5]), np.zeros((2, 6)), goal_t_s, goals)
    path = CommandPath(TIMESTEP_S)
    path.latency_s = 0.065
    path.reset(np.zeros(6), [0])
    pending = list(zip(goal_t_s, goals, strict=True))
    for step, arrived in enumerate(log.goals(13)):
        t_s = step * TIMESTEP_S
        while pending and pending[0][0] <= t_s + 1e-9:
            path.push(*pending.pop(0))
        assert np.allclose(arrived, path.set_point(t_s))


def test_what_cannot_be_used_is_said_in_a_line() -> None:
    take = motion_take({}, 0)
    unknown = replace(as_frames(take), info=replace(take.info, units=""))
    with pytest.raises(UnusableInputError, match="--units"):
        drive_logs([unknown], SO101)
    normalised = replace(unknown, info=replace(take.info, units="m100_100"))
    with pytest.raises(UnusableInputError, match="gaploop edit harmonise"):
        drive_logs([normalised], SO101)
    silent = replace(take, telemetry=Telemetry(np.empty(0), {}))
    with pytest.raises(UnusableInputError, match="no joint goals"):
        drive_logs([silent], SO101)
    short = replace(take, telemetry=Telemetry(
        take.telemetry.t_s[:50], {k: v[:50] for k, v in take.telemetry.columns.items()}
    ))  # fmt: skip
    with pytest.raises(UnusableInputError, match="shorter"):
        drive_logs([short], SO101)
    other = replace(as_frames(take), info=replace(take.info, joint_names=("a", "b")))
    with pytest.raises(UnusableInputError, match=r"--robot\.model"):
        arm_of_takes([other])


def test_a_drive_of_another_arm_is_refused() -> None:
    with pytest.raises(UnusableInputError, match="no joint waist"):
        SimCell(parameters={"actuator_response.drives": {"waist.gain_factor": 0.5}})


def test_drives_are_never_drawn() -> None:
    with pytest.raises(UnusableInputError, match="drives"):
        SimCell(gaps={"actuator_response.drives": 0.5})
