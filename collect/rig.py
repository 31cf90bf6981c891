"""A rig: everything that a take needs but the leader; of an arm, the cell, or a scene file."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from gymnasium.utils.seeding import np_random

from gaploop.collect.encoder_process import CODEC
from gaploop.collect.journal import channels
from gaploop.core.arm import CellArm
from gaploop.core.clock import Clock, ManualClock, utc_ns
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import uuid7
from gaploop.core.journal_format import TakeHeader
from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import (
    DEPTH_CODEC,
    CameraFrame,
    FloatArray,
    FollowerState,
    LeaderSample,
    SafeCommand,
)
from gaploop.core.protocols import (
    CameraSource,
    Follower,
    Leader,
    Policy,
    SceneTracker,
    SensorSource,
)
from gaploop.core.station import SIM_STATION, Station, scene_station
from gaploop.core.take import TakeInfo
from gaploop.core.twin import Randomisation
from gaploop.core.vocabulary import INSTRUCTION, SEEN, Domain, Outcome
from gaploop.sim.catalogue import SO101
from gaploop.sim.cell import CellCamera, CellClock, CellFollower, CellSensor, SimCell
from gaploop.sim.conditions import LOOKS
from gaploop.sim.demonstrators import Demonstrator
from gaploop.sim.expert import scripted
from gaploop.sim.gaps.mechanism import Values
from gaploop.sim.randomise import named
from gaploop.sim.scene_file import load_scene
from gaploop.sim.scene_world import SceneWorld
from gaploop.sim.tracker import Tracker
from gaploop.sim.views import OVERHEAD
from gaploop.sim.world import GymWorld, WorldSpec
from gaploop.teleop.loop import OnFrame, Rates, Turns, run_turns
from gaploop.teleop.safety import SafetyFilter, make_safety
from gaploop.teleop.sensors import observed


@dataclass(frozen=True)
class Rig:
    """An arm in its cell, ready for takes.

    Attributes:
        tracker: reads the scene from the first camera's pictures, or None.
        fps: policy frames per second [Hz].
        conditions: what is set up, by the names of `vocabulary.CONDITIONS`.
        sensors: what else is measured, such as forces at the wrist.
        observed: those of them that policies see, by name.
        running: the arm is driven between takes, too: turns of a loop that runs anyway, as
            `ControlThread.span`. None: the loop runs for each take.
        reset: set up the scene for a seed, bring the arm to its start, and clear the filter.
        judge: how the take stands now, or None where only a person can tell.
        truth: what was injected, for `truth.jsonl` only, or None.
        close: torque off, then disconnect; safe to call twice.
        drawn: what a scene is randomised to, as `SimCell.draw`; nothing where nothing is.
        blocker: why no take can begin now, in one line with how to fix it; "" where one can. It
            raises LostError where a device has to be connected anew first.
    """

    follower: Follower
    clock: Clock
    safety: SafetyFilter
    control_hz: float
    fps: float
    domain: Domain
    station: Station
    cameras: tuple[CameraSource, ...] = ()
    tracker: SceneTracker | None = None
    reset: Callable[[int], None] = lambda _seed: None
    judge: Callable[[], Outcome | None] = lambda: None
    truth: Callable[[], Mapping[str, Any] | None] = lambda: None
    close: Callable[[], None] = lambda: None
    conditions: Mapping[str, Any] = field(default_factory=dict)
    calibration: str = ""
    sensors: tuple[SensorSource, ...] = ()
    observed: Mapping[str, SensorSource] = field(default_factory=dict)
    running: Callable[..., Turns] | None = None
    drawn: Callable[[int], Mapping[str, Any]] = lambda _seed: {}
    blocker: Callable[[], str] = lambda: ""

    @classmethod
    def of(
        cls, follower: Follower, clock: Clock, station: Station, rates: Rates, **more: Any
    ) -> Self:
        """Return a connected arm behind its safety filter; `more` are further fields."""
        return cls(
            follower=follower,
            clock=clock,
            safety=make_safety(station, follower, rates.period_s),
            control_hz=rates.control_hz,
            fps=rates.fps,
            station=station,
            **{"domain": station.domain} | more,
        )

    @property
    def is_real_time(self) -> bool:
        """Whether time passes by itself, so that nobody may wait for a slow encoder."""
        return not isinstance(self.clock, CellClock | ManualClock)

    @property
    def rates(self) -> Rates:
        """Control and frame rate."""
        return Rates(self.control_hz, self.fps)

    def turns(self, leader: Leader, max_s: float, on_frame: Iterable[OnFrame] = ()) -> Turns:
        """Return the turns of a take of at most `max_s` [s]."""
        if self.running is not None:
            return self.running(max_s=max_s, on_frame=on_frame)
        return run_turns(
            self.follower,
            leader,
            self.safety,
            self.clock,
            self.rates,
            max_s=max_s,
            cameras=self.cameras,
            tracker=self.tracker,
            observed=self.observed,
            on_frame=on_frame,
        )

    def header(self, about: TakeInfo, leader: Leader | None = None) -> TakeHeader:
        """Return the header of a new take, with a new uid. Looks at one picture of each camera.

        Args:
            about: what is known of the take beside the rig, such as its task, kind and policy.
            leader: its own servos are recorded too, where it has any.
        """
        info = replace(
            about,
            uid=uuid7(),
            fps=self.fps,
            domain=self.domain,
            joint_names=self.follower.joint_names,
            robot_type=self.follower.robot_type,
            units=self.follower.units,
            conditions={**self.conditions, **about.conditions},
            station=self.station.name,
            calibration=self.calibration,
            t0_ns=utc_ns(),
        )
        names = self.tracker.names if self.tracker is not None else ()
        columns = channels(self.follower, self.sensors, leader)
        cameras: dict[str, dict[str, Any]] = {}
        for camera in self.cameras:
            picture = camera.frame().image
            size = {"width": picture.shape[1], "height": picture.shape[0]}
            codec = DEPTH_CODEC if picture.dtype == np.uint16 else CODEC
            cameras[camera.name] = {**size, "fps": self.fps, "codec": codec}
            if identity := getattr(camera, "identity", None):  # of which device, to know it again
                cameras[camera.name]["identity"] = str(identity)
        return TakeHeader(info, tuple(names), cameras, columns, tuple(self.observed))


@dataclass(frozen=True, kw_only=True)
class EmbeddedRig(Rig):
    """The simulated cell as a rig; `cell` is never shown to policies or diagnosis."""

    cell: SimCell

    def seen_by(self, policy: Policy) -> Self:
        """Return this rig with the cell's force sensors that a policy sees."""
        names = getattr(policy, "forces", ())
        return replace(self, observed={name: CellSensor(name, self.cell) for name in names})

    def scripted_leader(self, seed: int = 0) -> Leader:
        """Return the scripted teleoperator of this cell; make it after `reset`."""
        return scripted(self.cell, seed)


def embedded_rig(
    *,
    gaps: Mapping[str, float] | None = None,
    conditions: Mapping[str, Any] | None = None,
    fps: float | None = None,
    parameters: Mapping[str, Values] | None = None,
    randomise: Randomisation | None = None,
    cameras: Mapping[str, Mapping[str, Any]] | None = None,
    sensors: Mapping[str, Mapping[str, Any]] | None = None,
    **cell_options: Any,
) -> EmbeddedRig:
    """Build the embedded cell as a rig on simulated, unthrottled time.

    Nominal, its domain is `sim`; with gaps, conditions or parameters it is `sim_target`, the
    stand-in for a real cell, and everything that reports on it says sim-to-sim.

    Args, beside those of `SimCell` (task, gap_seed, robot, image_size, camera_hz):
        gaps: gap dimension, or "dimension.mechanism", to severity in [0, 1].
        fps: policy frames per second [Hz]; the cell's own rate (50) by default.
        sensors: which of `CellSensor` are recorded; {"observe": True} of those that policies see.

    Raises:
        UnusableInputError: an unknown task, dimension, condition or arm, an arm whose model isn't
            installed, or a rate that isn't above 0.
    """
    SIM_STATION.check_conditions(conditions or {}, "--robot.conditions")
    cell = SimCell(
        gaps=gaps,
        conditions=conditions,
        parameters=parameters,
        randomise=randomise,
        cameras=cameras,
        **cell_options,
    )
    station = station_of(cell.arm)
    rates = Rates.near(cell.fps if fps is None else fps, cell.control_hz)
    injected = any(severity > 0 for severity in (gaps or {}).values())
    set_up = set(conditions or {}) - set(LOOKS)  # as randomisation is
    is_target = bool(set_up or parameters) or injected
    made = tuple(CellSensor(name, cell) for name in sensors or {})
    measured = [c["calibration"]["id"] for c in (cameras or {}).values() if "calibration" in c]

    def reset(seed: int) -> None:
        cell.reset(seed)
        rig.safety.clear()  # in the embedded cell, setting up the scene anew is the operator's word

    rig = EmbeddedRig.of(
        CellFollower(cell),
        CellClock(cell),
        station,
        rates,
        cameras=tuple(CellCamera(cell, view.name) for view in cell.views),
        tracker=cell_tracker(cell, float(is_target)),
        domain=Domain.SIM_TARGET if is_target else Domain.SIM,
        reset=reset,
        judge=lambda: Outcome.SUCCESS if cell.success() else Outcome.FAILURE,
        truth=cell.truth,
        close=cell.close,
        drawn=lambda seed: named(randomise, cell.draw(seed)) | _photo_drawn(cell.photo(seed)),
        conditions=_told(conditions or {}),
        calibration=next(iter(measured), "nominal"),
        sensors=made,
        observed=observed(sensors or {}, made),
        cell=cell,
    )
    return rig


def cell_tracker(cell: SimCell, domain: float) -> Tracker | None:
    """Return what tracks the scene in the first camera's pictures, or None.

    It knows the nominal overhead camera and its square pictures. Any other camera is seen as on a
    real arm: nobody tracks the scene in it.
    """
    first = cell.views[0]
    width, height = first.size_px
    if first.name != OVERHEAD or first.measured is not None or width != height:
        return None
    return Tracker.nominal(width, domain, cell.task, cell.arm)


def _photo_drawn(photo: Path | None) -> dict[str, Any]:
    """Return what a take keeps of the photo behind it: its name, never the folder it is in."""
    return {"backdrop": {"photo": photo.name}} if photo else {}


def _told(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is set up, as a take keeps it."""
    source = conditions.get("backdrop")
    return {**conditions, **({"backdrop": Path(str(source)).name} if source else {})}


def station_of(arm: CellArm) -> Station:
    """Return the embedded cell as a station, with limits that suit the arm.

    The workspace box is the SO-101's: it needs kinematics of `core.kinematics`, which other arms
    of the cell haven't; in simulation joint limits do.
    """
    if arm is SO101:
        return SIM_STATION
    safety = replace(SIM_STATION.safety, stall_current_a=arm.servos.stalls_a)
    return replace(SIM_STATION, name=f"{arm.name}_cell", safety=safety, workspace=None)


def scripted_leader(rig: Rig, seed: int = 0) -> Leader:
    """Return the scripted teleoperator of an embedded rig; UnusableInputError for a real one."""
    script: Callable[[int], Leader] | None = getattr(rig, "scripted_leader", None)
    if script is None:
        raise UnusableInputError(
            f"--teleop.type=scripted drives the embedded cell only, not {rig.follower.robot_type}. "
            "Use --robot.type=so101_sim, or a leader arm."
        )
    return script(seed)


# -- a scene file ---------------------------------------------------------------------------------


class WorldArm:
    """A scene's arm; implements core's `Follower`. Hinges are in degrees, slides in metres."""

    name, robot_type = "follower", "scene_sim"

    def __init__(self, world: GymWorld, scene: SceneWorld) -> None:
        self._world, self._scene = world, scene
        self.joint_names, self.units = scene.joint_names, scene.units
        self.joint_limits_rad: FloatArray = scene.limits
        self.now_s = 0.0
        self._goal = scene.home

    def reset(self, seed: int) -> None:
        """Set up the scene."""
        self.seen, _ = self._world.reset(seed=seed)
        self.now_s, self._goal = 0.0, self._scene.home

    def advance(self, duration_s: float) -> None:
        """Let frames pass [s]; of several, only the last is looked at."""
        scene, frames = self._scene, round(duration_s / self._scene.period_s)
        looks = scene.draws
        for left in reversed(range(frames)):
            scene.draws = looks and left == 0
            self.seen, *_ = self._world.step(scene.action_of(self._goal))
            self.now_s += scene.period_s

    def read(self) -> FollowerState:
        """Return what the servos report: angles, and the share of their force."""
        nothing = np.full(len(self.joint_names), np.nan)
        angles = self.from_units(np.asarray(self.seen["agent_pos"], dtype=np.float64))
        return FollowerState(
            t_s=self.now_s,
            position_rad=angles,
            velocity_rad_s=self._scene.servos.velocities(self._scene.data),
            current_a=nothing,
            load_pct=nothing,
            temperature_c=nothing,
            voltage_v=nothing,
            status=np.zeros(len(nothing), dtype=np.int64),
        )

    def send(self, command: SafeCommand) -> None:
        """Set the servos' goals."""
        self._goal = command.sent_rad.copy()

    def torque_on(self) -> None:
        """Do nothing: the simulated arm always holds its goal."""

    def torque_off(self) -> None:
        """Do nothing: a simulated arm can't hurt anybody."""

    def to_units(self, q_rad: FloatArray) -> FloatArray:
        """Convert joints [rad, m] to [°, m]."""
        return np.asarray(self._scene.action_of(q_rad), dtype=np.float64)

    def from_units(self, values: FloatArray) -> FloatArray:
        """Convert joints [°, m] to [rad, m]."""
        return self._scene.joints_of(values)

    def from_leader(self, values: FloatArray) -> FloatArray:
        """Convert what LeRobot's leaders give: degrees, of a gripper percent of its way."""
        q, scene = self.from_units(values), self._scene.scene
        if (hand := scene.gripper.get("joint")) is not None:
            k = self.joint_names.index(hand)
            low, high = self.joint_limits_rad[k]
            closed, opened = scene.gripper.get("closed", low), scene.gripper.get("open", high)
            q[k] = closed + (opened - closed) * values[k] / 100.0
        return q

    def arm_model(self) -> ArmModel:
        """Return the arm alone, for who leads its tool; UnusableInputError without a tool."""
        return self._scene.arm_model()

    def close(self) -> None:
        """Free the renderers."""
        self._world.close()


class WorldCamera:
    """A camera of a scene; implements core's `CameraSource`."""

    def __init__(self, name: str, arm: WorldArm) -> None:
        self.name, self._arm = name, arm

    def frame(self) -> CameraFrame:
        """Return the newest picture."""
        return CameraFrame(self._arm.seen["pixels"][self.name], self._arm.now_s)


class WaypointLeader:
    """A scene's demonstrator as core's `Leader`; made after the scene was reset."""

    def __init__(self, scene: SceneWorld, arm: WorldArm) -> None:
        self._scene, self._arm = scene, arm
        self.reset()

    def reset(self) -> None:
        """Begin at the first waypoint."""
        self._driver, self._due_s = Demonstrator(self._scene), -math.inf

    def read(self, t_s: float) -> LeaderSample:
        """Return what is asked for at loop time `t_s` [s]: something new in each of its frames."""
        period_s = self._scene.period_s
        if t_s + period_s / 2.0 >= self._due_s:
            self._goal = self._arm.from_units(np.asarray(self._driver(None), dtype=np.float64))
            self._due_s = max(self._due_s, t_s - period_s) + period_s
        return LeaderSample(t_s, self._goal)

    def done(self) -> bool:
        """Say whether the last waypoint has been reached."""
        return self._driver.done


class LedArm:
    """A simulated arm as its leader knows it, for leaders that outlive a rig.

    What a leader asks of a `Follower`; it is read and never driven through this.
    """

    def __init__(self, arm: Follower) -> None:
        self.enter(arm)

    def enter(self, arm: Follower) -> None:
        """Be another arm of the same kind."""
        self._arm = arm
        self.name, self.robot_type, self.units = arm.name, arm.robot_type, arm.units
        self.joint_names, self.joint_limits_rad = arm.joint_names, arm.joint_limits_rad
        self.from_units: Callable[[FloatArray], FloatArray] = getattr(
            arm, "from_leader", arm.from_units
        )
        self.arm_model: Callable[[], ArmModel] | None = getattr(arm, "arm_model", None)

    def read(self) -> FollowerState:
        """Return what the servos report."""
        return self._arm.read()

    def to_units(self, q_rad: FloatArray) -> FloatArray:
        """Convert joint angles [rad], shape (n_joints,), to the robot's LeRobot units."""
        return self._arm.to_units(q_rad)

    def from_ranges(self, values: FloatArray) -> FloatArray:
        """Convert what is -100 at one end of each joint's range and 100 at the other [rad, m]."""
        low, high = np.asarray(self.joint_limits_rad).T
        return np.asarray(low + (np.asarray(values) + 100.0) / 200.0 * (high - low))


@dataclass(frozen=True, kw_only=True)
class WorldRig(Rig):
    """A scene file as a rig; `cell` is what its clock advances."""

    cell: WorldArm
    scene: SceneWorld

    def scripted_leader(self, seed: int = 0) -> Leader:
        """Return the scene's demonstrator; make it after `reset`."""
        del seed  # it has no habits
        return WaypointLeader(self.scene, self.cell)


type SimulatedRig = EmbeddedRig | WorldRig


def world_rig(
    path: Path,
    *,
    gaps: Mapping[str, float],
    gap_seed: int = 0,
    conditions: Mapping[str, Any],
    fps: float | None = None,
    looks: bool = True,
) -> WorldRig:
    """Build a scene file as a rig, on simulated, unthrottled time; without cameras unless it looks.

    Raises:
        UnusableInputError: the file doesn't fit its model, or gaps that the scene can't have.
    """
    scene, last_seed = load_scene(path), 0
    scene = scene if fps is None else replace(scene, fps=fps)
    spec = WorldSpec(gaps, gap_seed, conditions)
    as_it_is = replace(spec, conditions={k: v for k, v in conditions.items() if k not in LOOKS})
    world = GymWorld(lambda: SceneWorld(scene), spec)
    inner = cast(SceneWorld, world.unwrapped)
    inner.draws = looks
    arm = WorldArm(world, inner)
    arm.reset(0)

    def reset(seed: int) -> None:
        nonlocal last_seed
        last_seed = seed
        arm.reset(seed)
        rig.safety.clear()  # setting up the scene anew is the operator's word

    def truth() -> dict[str, Any]:
        injected = [asdict(gap) for gap in world.injected]
        return {"seed": last_seed, "gap_seed": gap_seed, "injected": injected}

    partner = inner.partner

    def drawn(seed: int) -> dict[str, Any]:
        hand = {} if partner is None else {"hand": partner.plan(np_random(seed)[0])}
        level = conditions.get(INSTRUCTION, SEEN)
        is_drawn = scene.is_worded_anew or level != SEEN
        told = {INSTRUCTION: scene.told(seed, level)[1]} if is_drawn else {}
        return {**_photo_drawn(world.photo(seed)), **hand, **told}

    person = {} if scene.partner is None else {"human": "gives" if scene.partner.gives else "takes"}
    rig = WorldRig.of(
        arm,
        CellClock(arm),
        scene_station(path),
        Rates(scene.fps, scene.fps),
        cameras=tuple(WorldCamera(c.name, arm) for c in scene.cameras if looks),
        domain=Domain.SIM if as_it_is.is_nominal else Domain.SIM_TARGET,
        reset=reset,
        judge=lambda: Outcome.SUCCESS if inner.success() else Outcome.FAILURE,
        truth=truth,
        close=arm.close,
        drawn=drawn,
        conditions={**person, **_told(conditions)},
        calibration="nominal",
        cell=arm,
        scene=inner,
    )
    return rig
