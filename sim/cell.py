"""The embedded tabletop cell in MuJoCo.

The nominal cell is "sim"; the same cell with injected gaps stands for the real one, and text
and reports call results between the two sim-to-sim.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, Protocol, Self

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.clock import MonotonicClock
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.messages import CameraFrame, FloatArray, FollowerState, SafeCommand
from gaploop.core.twin import Randomisation
from gaploop.sim import scene
from gaploop.sim.camera import CellCameras
from gaploop.sim.catalogue import INSTRUCTIONS, SO101, TASKS, arm_named, from_degrees, to_degrees
from gaploop.sim.conditions import OBJECTS, parse_conditions, photo_of
from gaploop.sim.gaps import all_mechanisms, draw_gaps, put_into
from gaploop.sim.gaps.mechanism import FORCE_CHANNELS, Appliers, Values
from gaploop.sim.hand import HandMotion
from gaploop.sim.kinematics import TCP_SITE
from gaploop.sim.predicates import SceneState, held, parse
from gaploop.sim.randomise import FrameLooks, background, draw, over
from gaploop.sim.textures import Library
from gaploop.sim.views import cell_views
from gaploop.sim.world import set_up

# What bus servos would report.
ENCODER_STEP_RAD = 2.0 * math.pi / 4096.0  # 4096 steps per turn: STS3215 and X series alike
SUPPLY_VOLTAGE_V = 12.0
SUPPLY_RESISTANCE_OHM = 0.15  # assumed: lead and supply of a six-servo chain
AMBIENT_TEMPERATURE_C = 32.0  # assumed: housing of an idle, powered servo
WINDING_RISE_C_PER_A2_S = 0.02  # assumed: some degrees per minute of hard work


FORCE_SENSORS: Final[Mapping[str, Mapping[str, str]]] = {
    "wrist": {
        **dict.fromkeys(("fx_n", "fy_n", "fz_n"), "N"),
        **dict.fromkeys(("tx_nm", "ty_nm", "tz_nm"), "Nm"),
    },
    "fingertips": {"jaw1_n": "N", "jaw2_n": "N"},
}
"""The force sensors of each arm of the cell: channel to unit."""


class SimCell:
    """An arm at a table with an object, a target and cameras.

    Attributes:
        joint_limits_rad: lower and upper limit [rad], shape (n_joints, 2).
        control_hz: rate at which telemetry is worth reading [Hz].
        fps: policy rate [Hz].
        period_s: time that a step takes [s].
        instruction: the task in words.
        model: compiled, for kinematics; privileged where it differs from nominal.
        data: the simulation's state, for whoever steps the model himself; privileged.
        views: the cameras that policies see by, the one that shows the scene first.
        injected: the gaps as drawn; privileged.
        drawn: what this take was randomised to, as `parameters`.
    """

    control_hz = 100.0
    fps = 50.0
    period_s = 1.0 / fps

    def __init__(
        self,
        task: str = "pick_place",
        *,
        gaps: Mapping[str, float] | None = None,
        gap_seed: int = 0,
        conditions: Mapping[str, object] | None = None,
        image_size: int = 192,
        camera_hz: float = 25.0,
        robot: str = SO101.name,
        parameters: Mapping[str, Values] | None = None,
        randomise: Randomisation | None = None,
        cameras: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Build the cell and reset it to seed 0.

        Args:
            task: one of tasks.TASKS.
            gaps: dimension, or "dimension.mechanism", to severity in [0, 1].
            gap_seed: draws mechanism and direction of each gap.
            conditions: as in vocabulary.CONDITIONS.
            image_size: width and height of the cameras' pictures [px].
            camera_hz: pictures per second.
            robot: one of core.arms.CELL_ARMS.
            parameters: "dimension.mechanism" to values of its parameters, where they are known, as
                a twin's are, instead of drawn by a severity.
            randomise: ranges that the cell is drawn from anew at every reset, over `parameters`.
            cameras: those that policies see by, as of `views.read_cameras`; the overhead one alone
                by default.

        Raises:
            UnusableInputError: for an unknown task, dimension, mechanism, parameter, condition,
                camera or arm, a value out of range, or an arm whose model isn't installed.
        """
        if task not in TASKS:
            raise unknown_choice("task", task, TASKS)
        self.task, self.instruction = task, INSTRUCTIONS[task]
        self.arm = arm_named(robot)
        if task == "pick_lift" and self.arm.mounted:
            raise UnusableInputError(
                f"{self.arm.name} hands things over, which pick_lift doesn't need. Use "
                "pick_place, stack_cube, or one arm."
            )
        self.joint_names = self.arm.joint_names
        self.image_size = image_size
        self.views = cell_views(cameras or {}, image_size, self.arm)
        self.camera_hz = camera_hz
        self._gap_seed = gap_seed
        self.conditions = parse_conditions(conditions or {})
        self.injected = draw_gaps(gaps or {}, gap_seed)
        self._known = dict(parameters or {})
        self._randomise, self.drawn = randomise, dict[str, dict[str, float]]()
        self._steps, self._session_s = 0, 0.0
        self._looks: FrameLooks | None = None
        self._build(0)
        self.reset(0)

    def _build(self, seed: int) -> None:
        """Compile the cell as it is now known to be, for a take."""
        thing = OBJECTS[self.conditions.object]
        options = scene.SceneOptions(self.task, self.arm, self.conditions.background, thing)
        library = Library(self._randomise)

        def appliers() -> Appliers:
            made = scene.cell_appliers(options, self._gap_seed)
            made.model.library = library
            return made

        on = appliers()
        alike = ("lighting", "distractors", "camera_pose", "table_height", "human", "fidelity")
        on.model.show(self.views)
        set_up(on, {name: getattr(self.conditions, name) for name in alike})
        put_into(on, self.injected, over(self._known, self.drawn))
        if self._randomise is not None and self._randomise.every == "frame":
            self._looks = FrameLooks(self._randomise, appliers(), [self._gap_seed, seed])
            on.model.edits += self._looks.edits()
        self._commands, self._sensors = on.commands, on.sensors
        self.model: mujoco.MjModel = on.model.compile()
        self._thing = on.model.options.thing
        self.data = mujoco.MjData(self.model)
        things = (self.model.body(name).id for name in ("object", "target"))
        self._hand = HandMotion(self.model, on.model.hand, *things) if on.model.hand else None
        self._motors = on.model.motors(self.model)
        self._cold = self._commands.latency_s, self.model.dof_frictionloss.copy()
        self._camera = CellCameras(
            self.model,
            on.images,
            self.views,
            scene.REPORT_CAMERA_NAME,
            rate_hz=self.camera_hz,
            delay_s=on.model.camera_delay_s,
        )
        model = self.model
        joints = [model.joint(name) for name in self.joint_names]
        self._qpos = np.array([int(j.qposadr[0]) for j in joints])
        self._dof = np.array([int(j.dofadr[0]) for j in joints])
        self._servos = np.array([model.actuator(name).id for name in self.joint_names])
        self._force_nm = model.actuator_forcerange[self._servos].copy()
        self.joint_limits_rad = np.array([j.range for j in joints], dtype=np.float64)
        sides = self.arm.arms
        fingers = [[side.prefix + name for name in side.arm.finger_bodies] for side in sides]
        self._state = SceneState(
            model, self.data, criterion=on.model.criterion,
            hands=[frozenset(model.body(name).id for name in names) for names in fingers],
            tools=[model.site(side.prefix + TCP_SITE).id for side in sides],
        )  # fmt: skip
        file = scene.task_scene(self.task)
        self._holds = parse(file.success, model, f"Scene {file.path}, success")

    def parameters(self) -> Mapping[str, str]:
        """Return "dimension.mechanism" to "": all of them can be set here, as of `World`."""
        return dict.fromkeys(all_mechanisms(), "")

    def step(self, command: NDArray[np.float64]) -> None:
        """Send goals [rad], shape (n_joints,), and let `period_s` pass."""
        self.command(command)
        self.advance(self.period_s)

    @property
    def now_s(self) -> float:
        """Simulated time since reset [s]."""
        return self._steps * scene.TIMESTEP_S

    def draw(self, seed: int) -> dict[str, dict[str, float]]:
        """Return what a take is randomised to, as `parameters`; nothing where nothing is."""
        return draw(self._randomise, [self._gap_seed, seed]) if self._randomise else {}

    def photo(self, seed: int) -> Path | None:
        """Return the photo behind a take, or None."""
        if self.conditions.backdrop:
            return photo_of(Path(self.conditions.backdrop), seed)
        return background(self._randomise, [self._gap_seed, seed])

    def reset(self, seed: int) -> None:
        """Start a take; equal seeds give equal scenes, whatever gaps are injected.

        Where heat is, its servos are as warm as the takes before have made them.
        """
        self._session_s += self.now_s
        if self._randomise is not None:
            self.drawn = self.draw(seed)
            self._camera.close()
            self._build(seed)
        rng = np.random.default_rng([seed, 11])
        mujoco.mj_resetData(self.model, self.data)
        self._table_z = float(self.model.body("table").pos[2])
        rest_z = self._table_z + self._thing.half_size_m[2]
        q_home = np.asarray(self.arm.home_q_rad) + rng.normal(0.0, 0.01, len(self.joint_names))
        self.data.qpos[self._qpos] = q_home
        scene.settle_gears(self.model, self.data)
        self.data.ctrl[self._servos] = q_home
        self.limit_gripper(100.0)
        self.data.ctrl[len(self._servos) :] = 1.0  # adhesion pads, where there are any
        distractors = np.random.default_rng([seed, 12])
        scene.place_things(
            self.model, self.data, rng, distractors, rest_z, self.conditions, self.arm
        )
        self._steps = 0
        self._residual_s = 0.0
        self._torques_nm: list[FloatArray] = []
        self._goal = q_home.copy()
        self._temperature_c = np.full(len(self.joint_names), AMBIENT_TEMPERATURE_C)
        self._temperature_t_s = 0.0
        self._warm()
        self._commands.reset(q_home, [self._gap_seed, seed, 24])
        self._sensors.reset([self._gap_seed, seed, 21])
        if self._hand is not None:
            hand = np.random.default_rng([self._gap_seed, seed, 22])
            self._hand.reset(hand, self.data, self._table_z)
        self._camera_seed = [self._gap_seed, seed, 23]
        self._photo = self.photo(seed)
        self._placed()

    def _warm(self) -> None:
        heat = self._commands.heat
        if heat is None:
            return
        share, (latency_s, friction_nm) = heat.share(self._session_s), self._cold
        self._temperature_c += heat.rise_c * share
        # By whole turns of the loop: in between, currents are read at another moment of each
        # goal's jump, which looks like a stall.
        turns = round(heat.latency_s * share * self.control_hz)
        self._commands.latency_s = latency_s + turns / self.control_hz
        for _, dof, stronger in self._motors:
            more_nm = heat.friction_nm * share * stronger
            self.model.dof_frictionloss[dof] = friction_nm[dof] + more_nm

    def _placed(self) -> None:
        mujoco.mj_forward(self.model, self.data)
        self.begin()
        looks = self._looks.set if self._looks else None
        self._camera.reset(self._camera_seed, self.data, self._photo, looks)

    def lay(self, object_xy_m: FloatArray, yaw_rad: float, target_xy_m: FloatArray) -> None:
        """Lay object and target elsewhere, right after `reset`: [m] in the base frame, [rad]."""
        at = self._state.place_m("object")
        scene.set_free_body(
            self.model, self.data, "object", np.array([*object_xy_m, at[2]]), yaw_rad
        )
        target = self.model.body("target")
        if target.jntnum[0]:
            at = self._state.place_m("target")
            goal = np.array([*target_xy_m, at[2]])
            scene.set_free_body(self.model, self.data, "target", goal, 0.0)
        else:
            target.pos[:2] = target_xy_m
        self._placed()

    def begin(self) -> None:
        """Start a take with the scene as it stands."""
        start_m = {"object": self._state.place_m("object")}
        self._state = replace(self._state, start_m=start_m, since_s=float(self.data.time))

    def command(self, q_rad: NDArray[np.float64]) -> None:
        """Set the goal of the position servos [rad], shape (n_joints,)."""
        if self._sensors.bus_out(self.now_s):
            return
        self._goal = np.clip(q_rad, self.joint_limits_rad[:, 0], self.joint_limits_rad[:, 1])
        if self._commands.active:
            self._commands.push(self.now_s, self._goal)
        elif not self._sensors.offsets_active:
            self.data.ctrl[self._servos] = self._goal

    def limit_gripper(self, torque_pct: float) -> None:
        """Let grippers push with so much of their stall torque [%], as far as they may at all."""
        servos = self.arm.servos
        for k in self.arm.grippers:
            limit_nm = 0.01 * torque_pct * servos.stall_nm[k]
            force_nm = np.clip(self._force_nm[k], -limit_nm, limit_nm)
            self.model.actuator_forcerange[self._servos[k]] = force_nm

    def advance(self, duration_s: float) -> None:
        """Let simulated time pass [s]; remainders of a physics step are carried over."""
        self._residual_s += duration_s
        count = int(self._residual_s / scene.TIMESTEP_S + 1e-6)
        self._residual_s -= count * scene.TIMESTEP_S
        stepwise = self._commands.active or self._sensors.offsets_active or self._hand is not None
        end = self._steps + count
        if count:
            self._torques_nm.clear()
        while self._steps < end:
            due = self._camera.next_capture_step()
            chunk = 1 if stepwise else min(end, due) - self._steps
            now_s = self.now_s
            if self._commands.active or self._sensors.offsets_active:
                goal = self._commands.set_point(now_s) if self._commands.active else self._goal
                offset = self._sensors.offset(now_s, self.data.qpos[self._qpos])
                self.data.ctrl[self._servos] = goal - offset
            if self._hand is not None:
                self._hand.update(now_s, self.data)
            mujoco.mj_step(self.model, self.data, nstep=chunk)
            if self._commands.latency_s:
                self._torques_nm.append(self.data.actuator_force[self._servos].copy())
            self._steps += chunk
            if self._steps == due:
                self._camera.capture(self.now_s, self.data)

    def read(self) -> FollowerState:
        """What the servos report, through the sensors' faults."""
        now_s = self.now_s
        torque_nm = self.data.actuator_force[self._servos].copy()
        if self._torques_nm:
            # Late goals jump within a turn, and always read just after it, a torque would look
            # like a stall's: the mean of the turn, as servos average, too.
            torque_nm = np.mean(self._torques_nm, axis=0)
        current_a = self.arm.servos.current_a(torque_nm)
        warmer_c_s = WINDING_RISE_C_PER_A2_S * current_a**2
        self._temperature_c += warmer_c_s * (now_s - self._temperature_t_s)
        self._temperature_t_s = now_s
        position = self._sensors.position(now_s, self.data.qpos[self._qpos].copy())
        step = ENCODER_STEP_RAD
        return FollowerState(
            t_s=now_s,
            position_rad=np.round(position / step) * step,
            velocity_rad_s=self.data.qvel[self._dof].copy(),
            current_a=current_a,
            # As an STS3215 reports it: its duty, in steps of 0.1 %. What turns the shaft isn't all
            # of it: the model's friction and damping (0.6 N m s/rad; the stall torque over a free
            # speed of 45 rpm is 0.62) are overcome by it, too.
            load_pct=np.round(1000.0 * torque_nm / np.asarray(self.arm.servos.stall_nm)) / 10.0,
            temperature_c=np.round(self._temperature_c),
            voltage_v=np.full(
                len(self.joint_names),
                round(SUPPLY_VOLTAGE_V - SUPPLY_RESISTANCE_OHM * current_a.sum(), 1),
            ),
            status=np.zeros(len(self.joint_names), dtype=np.int64),
        )

    def forces(self) -> FloatArray:
        """What force sensors report, through their faults, shape (n_arms, FORCE_CHANNELS).

        Force [N] and torque [N m] that the hand's mount bears, in the tool's frame, weight of the
        hand among it; then the normal force on each jaw [N].
        """
        off = int(mujoco.mjtDisableBit.mjDSBL_SENSOR)
        self.model.opt.disableflags &= ~off
        mujoco.mj_sensorAcc(self.model, self.data)
        self.model.opt.disableflags |= off
        true = self.data.sensordata.reshape(-1, FORCE_CHANNELS)
        return np.array([self._sensors.forces(self.now_s, row) for row in true])

    def frame(self, camera: str = "") -> CameraFrame:
        """The newest picture of one of `views`, or of the first; drawn when first asked for."""
        return self._camera.frame(self.now_s, camera or self.views[0].name)

    def picture(self, width: int = 640, height: int = 480) -> NDArray[np.uint8]:
        """A picture for people, from the side, without faults; RGB, shape (height, width, 3)."""
        return self._camera.picture(self.data, width, height)

    def success(self) -> bool:
        """Judge the present state by the station's criterion."""
        return self._state.satisfies(self._holds)

    def play_rad(self) -> FloatArray:
        """Each joint's play [rad], shape (n_joints,); privileged."""
        return np.broadcast_to(self._commands.play_rad, (len(self.joint_names),))

    def truth(self) -> dict[str, object]:
        """Privileged state for the scripted person, for scoring and for truth.jsonl only."""
        state, criterion = self._state, self._state.criterion
        target_m = self.data.body("target").xpos
        goal = target_m[:2] + criterion.goal_offset_m
        return {
            "object_pos_m": state.place_m("object").tolist(),
            "object_yaw_rad": state.yaw_rad("object"),
            "object_half_size_m": list(self._thing.half_size_m),
            "object_shape": self._thing.shape,
            "target_pos_m": target_m.tolist(),
            "goal_xy_m": goal.tolist(),
            "tool_pos_m": state.tool_m("object").tolist(),
            "table_z_m": self._table_z,
            "held": held("object")(state),
            "success": self.success(),
            "tolerance_factor": criterion.tolerance_factor,
            "yaw_tolerance_rad": criterion.yaw_tolerance_rad,
            "hand_pos_m": None if self._hand is None or self._hand.away
            else self._hand.position(self.data).tolist(),
            "joint_offset_rad": self._sensors.offset(
                self.now_s, self.data.qpos[self._qpos]
            ).tolist(),
            "gap_seed": self._gap_seed,
            "injected": [asdict(gap) for gap in self.injected],
        }  # fmt: skip

    def close(self) -> None:
        """Free the renderer; safe to call twice."""
        self._camera.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class CellFollower:
    """The cell's arm; implements core's `Follower`. The gripper's unit is 0 to 100, not degrees."""

    name = "follower"
    units = "deg"

    def __init__(self, cell: SimCell) -> None:
        self._cell = cell
        self.robot_type = cell.arm.robot_type
        self.joint_names: tuple[str, ...] = tuple(cell.joint_names)
        self.joint_limits_rad: FloatArray = cell.joint_limits_rad

    def read(self) -> FollowerState:
        """Return what the servos report."""
        return self._cell.read()

    def send(self, command: SafeCommand) -> None:
        """Set the servos' goal positions."""
        self._cell.command(command.sent_rad)

    def torque_on(self) -> None:
        """Do nothing: the simulated arm always holds its goal."""

    def torque_off(self) -> None:
        """Do nothing: a simulated arm can't hurt anybody."""

    def to_units(self, q_rad: FloatArray) -> FloatArray:
        """Convert joint angles [rad], gripper last, to LeRobot's degrees and gripper percent."""
        return to_degrees(q_rad, self._cell.arm)

    def from_units(self, values: FloatArray) -> FloatArray:
        """Convert LeRobot's degrees and gripper percent to joint angles [rad]."""
        return from_degrees(values, self._cell.arm)

    def close(self) -> None:
        """Free the cell's renderer; a simulated arm has no torque to take off."""
        self._cell.close()


class CellCamera:
    """A camera of the cell; implements core's `CameraSource`."""

    def __init__(self, cell: SimCell, name: str) -> None:
        self._cell, self.name = cell, name

    def frame(self) -> CameraFrame:
        """Return the newest picture."""
        return self._cell.frame(self.name)


class CellSensor:
    """A force sensor of the cell's arm; implements core's `SensorSource`.

    Args:
        name: `wrist` or `fingertips`, with the arm's prefix before it of a pair.

    Raises:
        UnknownChoiceError: it has no such sensor.
    """

    def __init__(self, name: str, cell: SimCell) -> None:
        known = {f"{side.prefix}{kind}": (row, kind)
                 for row, side in enumerate(cell.arm.arms) for kind in FORCE_SENSORS}  # fmt: skip
        if name not in known:
            raise unknown_choice("sensor of the embedded cell", name, known, "--sensors")
        self._cell, (self._row, kind) = cell, known[name]
        self._columns = slice(0, 6) if kind == "wrist" else slice(6, FORCE_CHANNELS)
        self.channels: Mapping[str, str] = {
            f"{name}.{c}": u for c, u in FORCE_SENSORS[kind].items()
        }

    def read(self) -> Mapping[str, float]:
        """Return what each channel reads."""
        values = self._cell.forces()[self._row, self._columns]
        return dict(zip(self.channels, values.tolist(), strict=True))


class Simulation(Protocol):
    """What simulated time is of: the cell, or the arm of a scene file."""

    @property
    def now_s(self) -> float:
        """Simulated time since its reset [s]."""

    def advance(self, duration_s: float) -> None:
        """Let simulated time pass [s]."""


class CellClock:
    """Simulated time: waiting lets the cell's physics advance, as fast as the machine can."""

    def __init__(self, cell: Simulation) -> None:
        self._cell = cell

    def now_s(self) -> float:
        """Return simulated time since the cell's reset [s]."""
        return self._cell.now_s

    def sleep_until(self, deadline_s: float) -> None:
        """Advance the cell to `deadline_s` [s]."""
        remaining_s = deadline_s - self._cell.now_s
        if remaining_s > 0:
            self._cell.advance(remaining_s)


class PacedCellClock:
    """Simulated time that passes as fast as real time: for a cell that a person drives.

    It is advanced while a loop waits; its time then is this clock's.
    """

    def __init__(self, cell: Simulation) -> None:
        self._cell, self._real = cell, MonotonicClock()
        self.restart()

    def enter(self, cell: Simulation) -> None:
        """Go on with another cell's time."""
        self._cell = cell
        self.restart()

    def restart(self) -> None:
        """Begin anew: the cell has been reset."""
        self._start_s = self._real.now_s() - self._cell.now_s

    def now_s(self) -> float:
        """Return real time since the cell's time was 0 [s]."""
        return self._real.now_s() - self._start_s

    def sleep_until(self, deadline_s: float) -> None:
        """Advance the cell to now, then wait for `deadline_s` [s] of this clock."""
        behind_s = min(deadline_s, self.now_s()) - self._cell.now_s
        if behind_s > 0:
            self._cell.advance(behind_s)
        self._real.sleep_until(self._start_s + deadline_s)
