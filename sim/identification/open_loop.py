"""What identification needs: goals and readings of takes, in radians, and the arm that made them.

Telemetry is used where there is some; else LeRobot's `action` and `observation.state`. Long records
are cut where the arm rests, so that each piece begins from a known state. The arm is one of the
cell's, or any of position servos by its MJCF file (`ServoArm`).
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import mujoco
import numpy as np
from mujoco import rollout

from gaploop.core.arm import CellArm
from gaploop.core.arms import CELL_ARMS
from gaploop.core.errors import UnusableInputError
from gaploop.core.kinematics import read_spec
from gaploop.core.messages import FloatArray
from gaploop.core.take import Take
from gaploop.sim import scene
from gaploop.sim.catalogue import arm_named, from_degrees
from gaploop.sim.gaps import put_into
from gaploop.sim.gaps.mechanism import (
    PERIOD_S,
    Appliers,
    CommandPath,
    ImagePath,
    SensorPath,
    Values,
)
from gaploop.sim.gaps.world_model import WorldModel
from gaploop.sim.roles import HINGE, Roles, find_roles, motors_of, position_servos
from gaploop.sim.scene import TIMESTEP_S


class ServoArm:
    """An arm alone, without contact, as its drives are fitted; its gripper rests.

    Attributes:
        name: of the file, without its ending.
        joint_names: of the hinges that its servos drive, from the base to the hand.
        limits_rad: their lowest and highest angles [rad], shape (n_joints, 2).
        arm_columns: of the joints that are fitted: those that are sent goals.
        model: steps of `TIMESTEP_S`; its servos are called like their joints.
    """

    zero_keys: tuple[str, ...] = ()

    def __init__(self, mjcf: Path) -> None:
        """Read an MJCF file, or a URDF that MuJoCo can.

        Raises:
            UnusableInputError: it can't be read, or no position servos drive its joints.
        """
        self.path, self.name = mjcf, mjcf.stem
        if not mjcf.is_file():
            raise UnusableInputError(f"No arm model {mjcf}. Give an MJCF file that exists.")
        try:
            spec = _arm_spec(mjcf)
            whole = spec.compile()
            roles = find_roles(whole, mujoco.MjData(whole))
            servos = {
                int(whole.actuator_trnid[motor, 0]): motor
                for motor in motors_of(whole, roles.arm)
                if position_servos(whole).get(motor) == (1.0, 0.0)
            }
            self.joint_names = tuple(
                whole.joint(j).name
                for j in roles.arm
                if j in servos and int(whole.jnt_type[j]) == HINGE
            )
            if not self.joint_names:
                raise UnusableInputError(
                    f"{mjcf}: no position servo drives a hinge of its arm. Give each joint one, "
                    'such as <position joint="NAME" kp="50" kv="2"/>.'
                )
            self.model = model = _only(spec, self.joint_names)
        except ValueError as error:
            first = str(error).strip().splitlines()[0]
            raise UnusableInputError(f"MuJoCo can't use the arm model {mjcf}: {first}") from error
        self._data = mujoco.MjData(model)
        joints = tuple(model.joint(name).id for name in self.joint_names)
        self._roles = Roles(arm=joints)
        unlimited = ~model.jnt_limited[list(joints)].astype(bool)[:, None]
        self.limits_rad: FloatArray = np.where(
            unlimited, [[-np.pi, np.pi]], model.jnt_range[list(joints)]
        )
        self.arm_columns = list(range(len(joints)))

    def sent_goals(self, joints: Sequence[str]) -> Self:
        """Take note of which joints are sent goals; returns itself."""
        self.arm_columns = [k for k, name in enumerate(self.joint_names) if name in joints]
        return self

    def appliers(self) -> Appliers:
        """Return the four appliers of the arm as its file has it."""
        on = WorldModel(self.model, self._data, self._roles, 0, PERIOD_S)
        sensors = SensorPath([""] * len(self.joint_names))
        return Appliers(on, ImagePath(), CommandPath(TIMESTEP_S), sensors)


def _arm_spec(mjcf: Path) -> mujoco.MjSpec:
    """Read a model without what has no mass and without what it looks like."""
    spec = read_spec(mjcf)
    for part in (*spec.sensors, *spec.pairs, *spec.excludes, *spec.keys, *spec.lights):
        spec.delete(part)
    for body in spec.bodies[1:]:
        for geom in body.geoms if body.explicitinertial else ():
            spec.delete(geom)
    used = {geom.meshname for geom in spec.geoms}
    for mesh in list(spec.meshes):
        if (mesh.name or Path(mesh.file).stem) not in used:
            spec.delete(mesh)
    spec.option.timestep = TIMESTEP_S
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    return spec


def _only(spec: mujoco.MjSpec, names: Sequence[str]) -> mujoco.MjModel:
    """Compile a model in which only these joints move, each by a servo of its name."""
    for part in (*spec.equalities, *spec.tendons):
        spec.delete(part)
    for servo in list(spec.actuators):
        if servo.trntype == mujoco.mjtTrn.mjTRN_JOINT and servo.target in names:
            servo.name = servo.target
        else:
            spec.delete(servo)
    for joint in list(spec.joints):
        if joint.name not in names:
            spec.delete(joint)
    return spec.compile()


UNITS: Final = ("deg", "rad")
"""Units of `action` and `observation.state` that can be read: LeRobot's degrees with the gripper
from 0 to 100, or radians."""
READ_EVERY_S: Final = 0.02
"""Readings closer together tell nothing more [s]."""
CONTROL_HZ: Final = 100.0
"""Where goals may have gone on between two frames, about this often [Hz]."""
SHORTEST_S: Final = 1.0
PIECE_S: Final = 8.0
"""A piece is cut off at the next rest after this long [s]."""
REST_S: Final = 0.4
RESTS_RAD: Final = (0.002, 0.006)
"""Goals and readings of an arm at rest stay within this [rad]."""
LEAST_MOTION_RAD: Final = 0.05


type DrivenArm = CellArm | ServoArm


@dataclass(frozen=True)
class DriveLog:
    """What an arm's servos were told, and where they said they were.

    Attributes:
        t_s: times of the readings, from 0 [s], shape (n,).
        q_rad: readings [rad], shape (n, n_joints).
        goal_t_s: when goals were given [s], shape (m,).
        goal_rad: goals, each held until the next [rad], shape (m, n_joints).
        from_frames: of LeRobot's frames: what was sent between them is not known.
        columns: of the joints that are fitted.
    """

    uid: str
    t_s: FloatArray
    q_rad: FloatArray
    goal_t_s: FloatArray
    goal_rad: FloatArray
    from_frames: bool = False
    columns: Sequence[int] | slice = slice(None, -1)

    @property
    def steps(self) -> int:
        """Physics steps up to the last reading."""
        return int(np.ceil(self.t_s[-1] / TIMESTEP_S - 1e-6))

    def goals(self, late_steps: int) -> FloatArray:
        """Return the goals that reach the servos so many steps late [rad], (steps, n_joints).

        A goal that comes within a step counts for the rest of it.
        """
        edges = (np.arange(self.steps + 1) - late_steps) * TIMESTEP_S
        before = np.concatenate([self.q_rad[:1], self.goal_rad])
        at = np.searchsorted(self.goal_t_s, edges[:-1] + 1e-9, side="right")
        arrives = np.append(self.goal_t_s, np.inf)[at]
        share = np.clip((edges[1:] - arrives) / TIMESTEP_S, 0.0, 1.0)
        share = np.where(share > 1e-6, share, 0.0)[:, None]
        later = np.minimum(at + 1, len(before) - 1)
        return np.asarray(before[at] + share * (before[later] - before[at]))

    def sent(self) -> FloatArray:
        """Return the goal that was given last at each reading [rad], shape (n, n_joints)."""
        before = np.concatenate([self.q_rad[:1], self.goal_rad])
        return before[np.searchsorted(self.goal_t_s, self.t_s + 1e-9, side="right")]

    def ramped(self) -> DriveLog:
        """Return it with goals that go on evenly between frames, as a faster loop sends them."""
        period_s = float(np.median(np.diff(self.goal_t_s)))
        parts = max(1, round(period_s * CONTROL_HZ))
        fine = np.arange(len(self.goal_t_s) * parts - parts + 1) / parts
        whole = np.arange(len(self.goal_t_s))
        goals = [np.interp(fine, whole, column) for column in self.goal_rad.T]
        times = np.interp(fine, whole, self.goal_t_s)
        return replace(self, goal_t_s=times, goal_rad=np.stack(goals, 1))

    def pieces(self) -> Iterator[DriveLog]:
        """Yield it cut where the arm rests, in pieces of at least `PIECE_S`."""
        begin, cuts = 0.0, [0.0]
        for t_s in np.arange(PIECE_S, self.t_s[-1] - PIECE_S / 2, REST_S / 2):
            if t_s - begin >= PIECE_S and self._rests(float(t_s)):
                cuts.append(float(t_s))
                begin = float(t_s)
        for low, high in zip(cuts, [*cuts[1:], np.inf], strict=True):
            rows = (self.t_s >= low) & (self.t_s < high)
            given = (self.goal_t_s < high) & (self.goal_t_s >= low)
            last = np.flatnonzero(self.goal_t_s < low)[-1:]
            goals = np.concatenate([last, np.flatnonzero(given)])
            zero_s = float(self.t_s[rows][0])
            yield replace(
                self,
                t_s=self.t_s[rows] - zero_s,
                q_rad=self.q_rad[rows],
                goal_t_s=np.maximum(self.goal_t_s[goals] - zero_s, 0.0),
                goal_rad=self.goal_rad[goals],
            )

    def _rests(self, t_s: float) -> bool:
        for times, values, most in (
            (self.goal_t_s, self.goal_rad, RESTS_RAD[0]),
            (self.t_s, self.q_rad, RESTS_RAD[1]),
        ):
            lately = values[(times > t_s - REST_S) & (times <= t_s)]
            if len(lately) and float(np.ptp(lately[:, self.columns], axis=0).max()) > most:
                return False
        return True


def is_of_the_cell(take: Take) -> bool:
    """Say whether an arm of the cell has a take's joints."""
    return any(set(_joints(take)) == set(arm.joint_names) for arm in CELL_ARMS.values())


def arm_of_takes(takes: Sequence[Take], named: str = "") -> CellArm:
    """Return the arm that is named, or whose joints takes have, or raise UnusableInputError."""
    if named:
        return arm_named(named, "--robot.model")
    for take in takes:
        joints = _joints(take)
        for arm in CELL_ARMS.values():
            if set(joints) == set(arm.joint_names):
                return arm_named(arm.name, "--robot.model")
        raise UnusableInputError(
            f"An episode is of an arm with the joints {', '.join(joints) or 'unknown'}, which no "
            "arm of the cell has. Name its MJCF file, as in --robot.model=my_arm.xml, or "
            f"one of {', '.join(CELL_ARMS)}."
        )
    raise UnusableInputError("There are no episodes. Record some first: gaploop record.")


def drive_logs(
    takes: Sequence[Take], arm: DrivenArm, every_s: float = READ_EVERY_S
) -> list[DriveLog]:
    """Return the logs of takes, one each, in their order: of telemetry, or else of frames.

    Readings are at least `every_s` [s] apart.

    Raises:
        UnusableInputError: a take without goals, of another arm, in unknown units, too short, or
            without motion.
    """
    logs = [_log(take, arm, every_s) for take in takes]
    long_enough = [log for log in logs if len(log.t_s) > 3 and log.t_s[-1] >= SHORTEST_S]
    if not long_enough:
        raise UnusableInputError(
            f"All {len(logs)} episodes are shorter than {SHORTEST_S:g} s. Record longer ones."
        )
    moved = max(float(np.ptp(log.goal_rad[:, log.columns], axis=0).max()) for log in long_enough)
    if moved < LEAST_MOTION_RAD:
        raise UnusableInputError(
            f"No goal moves by more than {moved:.3f} rad: nothing can be told from an arm that "
            "stands still. Record episodes with motion."
        )
    return long_enough


def encoder_step_rad(logs: Sequence[DriveLog]) -> float:
    """Return the steps that readings come in [rad], or 0 where they don't come in any."""
    read = np.concatenate([log.q_rad[:, log.columns] for log in logs])
    columns = [np.unique(np.round(column, 6)) for column in read.T]
    # Steps that are no whole steps of the encoder below them are one of these more or less.
    most = max(map(len, columns))
    apart = [np.diff(values) for values in columns if len(values) > max(3, most // 2)]
    if not apart:
        return 0.0
    step = float(np.median([by[by < 1.5 * by.min()].mean() for by in apart]))
    for _ in range(10):  # all readings are whole steps, so that their mean over these tells it
        counts = [np.round(values / step) for values in columns]
        both = np.concatenate(counts) @ np.concatenate(columns)
        step = float(both / (np.concatenate(counts) @ np.concatenate(counts)))
    off = np.concatenate([np.abs(v - np.round(v / step) * step) for v in columns])
    return step if float(np.quantile(off, 0.9)) < 0.2 * step else 0.0


def _joints(take: Take) -> tuple[str, ...]:
    source = _telemetry_arm(take)
    if source:
        return take.telemetry.joints(source)
    return tuple(name.removesuffix(".pos") for name in take.info.joint_names)


def _telemetry_arm(take: Take) -> str:
    """Return which arm of the telemetry was told goals and read; "" where none was."""
    record = take.telemetry
    for arm in sorted(record.arms(), key=lambda name: name != "follower"):
        if all(np.isfinite(record.stack(arm, q)).any() for q in ("sent_rad", "position_rad")):
            return arm
    return ""


def _log(take: Take, arm: DrivenArm, every_s: float) -> DriveLog:
    uid, joints = take.info.uid, _joints(take)
    if not set(joints) >= set(arm.joint_names):
        raise UnusableInputError(
            f"An episode has the joints {', '.join(joints) or 'unknown'}; {arm.name} has "
            f"{', '.join(arm.joint_names)}. Name the right arm: --robot.model=NAME or its MJCF."
        )
    order = [joints.index(name) for name in arm.joint_names]
    source = _telemetry_arm(take)
    if source:
        times = take.telemetry.t_s
        sent = take.telemetry.stack(source, "sent_rad")[:, order]
        read = take.telemetry.stack(source, "position_rad")[:, order]
    else:
        times, frames = take.frames.t_s, take.frames
        sent = frames.sent if frames.sent.size and np.isfinite(frames.sent).any() else frames.action
        if sent.shape != (len(times), len(joints)) or frames.state.shape != sent.shape:
            raise UnusableInputError(
                "An episode has no joint goals with readings: neither telemetry, nor action "
                "and observation.state of the same joints. Record joint commands."
            )
        unit = take.info.units
        if unit not in UNITS:
            if unit == "m100_100":
                raise UnusableInputError(
                    "An episode has joints from -100 to 100 of ranges that it doesn't state. "
                    "Name the arm's calibration file in a spec.yaml: 'units: {from: normalized, "
                    "to: degrees, ranges: FILE.json}', then: gaploop edit harmonise DIR "
                    "--spec=spec.yaml --output_dir=NEW"
                )
            raise UnusableInputError(
                "An episode doesn't state the units of its joints. Give --units=degrees, with "
                "the gripper from 0 to 100, as LeRobot records with use_degrees, or "
                "--units=radians."
            )
        sent, read = sent[:, order], frames.state[:, order]
        if unit == "deg":
            assert not isinstance(arm, ServoArm)  # whose takes are made radians before
            sent, read = from_degrees(sent, arm), from_degrees(read, arm)
    good, told = np.isfinite(read).all(1), np.isfinite(sent).all(1)
    if good.sum() < 4 or not told.any():
        return DriveLog(uid, np.zeros(1), np.zeros((1, len(order))), np.zeros(1), sent[:1])
    zero_s = float(times[good][0])
    t_s, rows = times[good] - zero_s, [0]
    for k in range(1, len(t_s)):
        if t_s[k] - t_s[rows[-1]] >= every_s - 1e-4:
            rows.append(k)
    goal_t_s = np.maximum(times[told] - zero_s, 0.0)
    return DriveLog(
        uid, t_s[rows], read[good][rows], goal_t_s, sent[told], not source, arm.arm_columns
    )


BATCH_STEPS: Final = 400_000
"""So many steps are simulated at a time: 60 MB of states."""
MOST_THREADS: Final = 8

type Setting = Mapping[str, Values]
"""Mechanism to values of its parameters, as `SimCell(parameters=…)` takes them."""


def _alone(arm: DrivenArm) -> tuple[mujoco.MjModel, Callable[[], Appliers]]:
    """Return an arm's model without all else, and what makes the appliers of a nominal one."""
    if isinstance(arm, ServoArm):
        return arm.model, arm.appliers
    options = scene.SceneOptions(arm=arm)
    alone = scene.CellModel(options)

    @alone.edit
    def strip(spec: mujoco.MjSpec) -> None:
        for name in ("object", "target", "table"):
            spec.delete(spec.body(name))
        spec.option.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)

    return alone.compile(), lambda: scene.cell_appliers(options)


class OpenLoopArm:
    """Simulates settings of an arm's drives on logs; each begins at rest at its first reading."""

    def __init__(self, arm: DrivenArm, logs: Sequence[DriveLog]) -> None:
        self.arm, self.logs = arm, tuple(logs)
        self._nominal, self._appliers = _alone(arm)
        # The cell, too, keeps goals within the joints' limits before anything else happens to them.
        self._limits_rad = np.array([self._nominal.joint(n).range for n in arm.joint_names]).T
        threads = min(os.cpu_count() or 1, MOST_THREADS)
        self._datas = [mujoco.MjData(self._nominal) for _ in range(threads)]

    def readings(self, settings: Sequence[Setting]) -> list[list[FloatArray]]:
        """Return what each setting's encoders would read [rad], log by log, shape (n, n_joints)."""
        longest = sum(log.steps for log in self.logs)
        at_once = max(1, BATCH_STEPS // max(longest, 1))
        found: list[list[FloatArray]] = []
        for begin in range(0, len(settings), at_once):
            found += self._batch(settings[begin : begin + at_once])
        return found

    def _batch(self, settings: Sequence[Setting]) -> list[list[FloatArray]]:
        models, commands, zeros = [], [], []
        for setting in settings:
            on = self._appliers()
            put_into(on, (), setting)
            model = copy.copy(self._nominal)  # drives change a compiled model; compiling is slower
            on.model.put_on(model)
            models.append(model)
            commands.append(on.commands)
            zeros.append(on.sensors.zero_rad)
        zero, first = np.stack(zeros), models[0]
        late = [divmod(path.latency_s / TIMESTEP_S + 1e-6, 1.0) for path in commands]
        servos = [first.actuator(name).id for name in self.arm.joint_names]
        qpos = [int(first.joint(name).qposadr[0]) for name in self.arm.joint_names]
        kind = mujoco.mjtState.mjSTATE_FULLPHYSICS  # the time, then positions
        read = 1 + np.array(qpos)
        found: list[list[FloatArray]] = [[] for _ in settings]
        for log, points in zip(self.logs, self._set_points(commands), strict=True):
            control = np.ones((len(models), log.steps, first.nu))
            control[..., servos] = points - zero[:, None]
            starts = []
            for model, offset in zip(models, zero, strict=True):
                data = mujoco.MjData(model)
                data.qpos[qpos] = log.q_rad[0] - offset
                scene.settle_gears(model, data)
                starts.append(np.zeros(mujoco.mj_stateSize(model, kind)))
                mujoco.mj_getState(model, data, starts[-1], kind)
            after, _ = rollout.rollout(
                models, self._datas, np.stack(starts), control, persistent_pool=True
            )
            for k, offset in enumerate(zero):
                # A row a physics step; readings lie between them, and what is left of the delay
                # shifts the whole path. A stiff servo at its torque limit doesn't feel a part of
                # a goal: the error was a staircase, on whose steps a fit of the delay stood still.
                place = np.maximum(log.t_s / TIMESTEP_S - late[k][1], 0.0)
                row = np.minimum(place.astype(int), log.steps - 1)
                share = np.clip(place - row, 0.0, 1.0)[:, None]
                path = np.concatenate([starts[k][None, read], after[k][:, read]]) + offset
                found[k].append(np.asarray(path[row] + share * (path[row + 1] - path[row])))
        return found

    def _set_points(self, paths: Sequence[CommandPath]) -> list[FloatArray]:
        """Return each log's set points [rad], shape (n_paths, steps, n_joints).

        What `CommandPath` does a step at a time, for all of them: one call a step takes ten times
        as long.
        """
        found = []
        for log in self.logs:
            late = [int(path.latency_s / TIMESTEP_S + 1e-6) for path in paths]
            goals = np.clip([log.goals(steps) for steps in late], *self._limits_rad)
            shape = goals[0, 0].shape
            for path, of_path in zip(paths, goals, strict=True):
                step_rad = np.broadcast_to(path.speed_limit_rad_s, shape) * TIMESTEP_S
                half_rad = 0.5 * np.broadcast_to(path.play_rad, shape)
                deaf_rad = np.broadcast_to(path.dead_band_rad, shape)
                ramp = np.broadcast_to(path.acceleration_limit_rad_s2, shape) * TIMESTEP_S**2
                limits = (log.q_rad[0], step_rad, ramp, half_rad, deaf_rad)
                differs = np.isfinite(np.minimum(step_rad, ramp)) | (half_rad + deaf_rad > 0.0)
                for j in np.flatnonzero(differs):
                    of_path[:, j] = _followed(
                        of_path[:, j].tolist(), *(float(a[j]) for a in limits)
                    )
            found.append(goals)
        return found


def _followed(
    goals: list[float], at: float, most: float, ramp: float, half: float, deaf: float
) -> list[float]:
    """Return one joint's set points [rad] behind a dead band, limits of a step and its change, and
    half play."""
    slewed, out, heard, step = at, at, at, 0.0
    found = []
    for goal in goals:
        heard = goal if abs(goal - heard) > deaf else heard
        change = heard - slewed
        top = most
        if ramp < math.inf:
            top = min(most, math.sqrt(2.0 * ramp * max(abs(change), 1e-12)))
        change = top if change > top else -top if change < -top else change
        step = min(max(change, step - ramp), step + ramp)
        slewed += step
        low, high = slewed - half, slewed + half
        out = low if out < low else high if out > high else out
        found.append(out)
    return found
