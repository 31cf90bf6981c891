"""What a gap mechanism is, and the four appliers through which every one of them acts.

A mechanism is one object: its parameters with units and nominal values, `draw`, which turns a
severity into values of them, and `apply`, which puts values into a cell. A made-up station draws
its values; a twin or a randomisation gives them. Both go through the same `apply`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.arms import CELL_ARMS
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.vocabulary import GapDimension
from gaploop.sim.conditions import Lighting
from gaploop.sim.hand import HandVisits
from gaploop.sim.textures import Library

if TYPE_CHECKING:
    from gaploop.sim.gaps.readings import ReadingNoise

type Rng = np.random.Generator
type Vector = NDArray[np.float64]
type Values = Mapping[str, float]
"""Parameter name to value."""
type SpecEdit = Callable[[mujoco.MjSpec], None]

JOINTS: Final = tuple(
    dict.fromkeys(arm.joint_names[k] for arm in CELL_ARMS.values() for k in arm.arm_columns)
)
"""Joints of all arms of the cell, without grippers."""
OBJECT_HALF_M: Final = 0.0125
"""Half size of the cell's cube. Severities are written for the cell: for its object,"""
CAMERA_M: Final = 0.62
"""the distance of its camera,"""
PERIOD_S: Final = 0.02
"""the period of its policies. In another scene they are relative to its own."""
HORIZON_S: Final = 30.0
"""What comes and goes within an episode is drawn this far ahead; no episode is longer."""


def stream(seed: Sequence[int], *names: str) -> Rng:
    """Return the generator of what `names` say: whatever else is drawn for `seed` moves nothing."""
    digest = hashlib.sha256("/".join(names).encode()).digest()
    return np.random.default_rng([*seed, int.from_bytes(digest[:8], "big")])


@dataclass(frozen=True)
class Parameter:
    """A physical quantity of a mechanism.

    Attributes:
        name: with its unit at the end, where it has one.
        unit: such as "m"; "1" for a factor, a fraction or a count.
        nominal: value in the nominal cell; a usual one where it only says how or where.
        relative_to: what a gap's value grows with in another scene than the cell: its "object",
            "camera" (distance), "period" or "scene"; "" for nothing.
        full: what severity 1 adds to it; None where no severity draws it.
        factor: what severity 1 multiplies it by, instead.
        either_way: in one of two opposite directions.
        is_exact: stations of equal severity have the same.
    """

    name: str
    unit: str
    low: float
    high: float
    nominal: float = 0.0
    relative_to: str = ""
    full: float | None = None
    factor: float | None = None
    either_way: bool = False
    is_exact: bool = False

    def drawn(self, rng: Rng, severity: float) -> float:
        """Return a value for a severity in (0, 1]."""
        full = (self.full or 0.0) * (sign(rng) if self.either_way else 1.0)
        more = 1.0 if self.is_exact else spread(rng)
        if self.factor is not None:
            return float(self.nominal * self.factor ** (severity * more))
        return self.nominal + full * severity * more


class Mechanism(ABC):
    """One way in which a dimension differs.

    Attributes:
        name: short name, unique within the dimension.
        parameters: what it may change. With all of them nominal the cell is the nominal one.
        held_out: kept out of everything that is trained, for honest tests.
        blind: held out, and nobody who diagnoses was told of it.
        by_name: never drawn for its dimension: most takes lack what it changes.
    """

    dimension: ClassVar[GapDimension]
    name: ClassVar[str]
    parameters: ClassVar[tuple[Parameter, ...]]
    held_out: ClassVar[bool] = False
    blind: ClassVar[bool] = False
    by_name: ClassVar[bool] = False

    @property
    def key(self) -> str:
        """Its name among all: "dimension.mechanism"."""
        return f"{self.dimension.value}.{self.name}"

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        """Return values for a severity in (0, 1]; direction and spread come from `rng`."""
        drawn = [p for p in self.parameters if p.full is not None or p.factor is not None]
        if not drawn:
            raise NotImplementedError(f"{self.key} is given values, never drawn as a gap.")
        return {p.name: p.drawn(rng, severity) for p in drawn}

    @abstractmethod
    def apply(self, p: Values, on: Appliers) -> None:
        """Put values, one for each parameter, into a cell."""

    def parameter(self, name: str) -> Parameter:
        """Return one of its parameters, or raise UnknownChoiceError."""
        known = {p.name: p for p in self.parameters}
        if name not in known:
            raise unknown_choice(f"parameter of {self.key}", name, known)
        return known[name]

    def complete(self, given: Values) -> dict[str, float]:
        """Return `given` with nominal values where it has none.

        Raises:
            UnknownChoiceError: for a parameter that the mechanism doesn't have.
            UnusableInputError: for a value out of range.
        """
        for name, value in given.items():
            p = self.parameter(name)
            if not p.low <= value <= p.high:
                raise UnusableInputError(
                    f"{self.key}: {name} is {value:g}: give {p.low:g} to {p.high:g} [{p.unit}]."
                )
        nominal = {p.name: p.nominal for p in self.parameters}
        return {name: float(value) for name, value in {**nominal, **given}.items()}

    def relative(self, drawn: Values, on: Appliers) -> dict[str, float]:
        """Return what a severity drew for the cell as it is in the scene that it is put into."""
        known = {p.name: p for p in self.parameters}
        return {
            name: min(max(value * on.model.scale(known[name].relative_to), known[name].low),
                      known[name].high)
            for name, value in drawn.items()
        }  # fmt: skip

    def put(self, given: Values, on: Appliers) -> None:
        """Complete and apply values; nothing happens where all of them are nominal."""
        values = self.complete(given)
        if any(value != self.parameter(name).nominal for name, value in given.items()):
            self.apply(values, on)


def sign(rng: Rng) -> float:
    """Draw one of two opposite directions: -1 or 1."""
    return -1.0 if rng.random() < 0.5 else 1.0


def spread(rng: Rng) -> float:
    """A factor that makes stations of equal severity differ a little."""
    return float(rng.uniform(0.9, 1.1))


def person_side(rng: Rng) -> float:
    """Where the person stands [rad]: in front of the arm or to either side."""
    return float(rng.choice([-1.2, -0.6, 0.0, 0.6, 1.2]) + np.clip(rng.normal(0.0, 0.15), -1, 1))


def turned(quat: Sequence[float] | Vector, turns_rad: Sequence[float] | Vector) -> Vector:
    """Return a quaternion turned by roll, pitch and yaw [rad] about the base's axes."""
    turn, out = np.zeros(4), np.zeros(4)
    mujoco.mju_euler2Quat(turn, np.asarray(turns_rad, dtype=np.float64), "XYZ")
    mujoco.mju_mulQuat(out, turn, np.asarray(quat, dtype=np.float64))
    return out


class UnavailableError(UnusableInputError):
    """A scene lacks what a mechanism changes."""


class ModelApplier:
    """The first applier: a scene, its compiled model, and by what success is judged.

    `scene.CellModel` is the cell's, `world_model.WorldModel` any other scene's. What one of them
    doesn't have raises UnavailableError with what is missing.

    Attributes:
        hand: what a person's hand does in every take, or None.
        edits: bodies to add before the model is compiled.
        library: what the numbers of looks stand for.
        criterion: what counts as success, a `predicates.Criterion`.
        motors: returns the servos of a model but the gripper's: actuator, degree of freedom, and
            how much stronger than the SO-101's it is, by which a torque grows.
        goal_joints: returns the joint that each goal of a servo is for, in order, "" of a gripper.
        grippers: returns the actuators of a model that close the grippers.
        surface: returns the geoms of a model's table, room, object or target, [] without such.
        middle_m: returns about where the object lies [m], shape (3,): what lamps are aimed at.
        cameras: returns the cameras of a model that a policy sees by.
    """

    lacks: ClassVar[str] = "only the embedded cell has that"
    criterion: Any
    camera_delay_s: float

    def __init__(self, gap_seed: int = 0) -> None:
        self.hand: HandVisits | None = None
        self.edits: list[SpecEdit] = []
        self.library = Library()
        self._gap_seed = gap_seed
        self._changes: list[Callable[[mujoco.MjModel], None]] = []

    def __getattr__(self, name: str) -> Any:
        """Say what the scene lacks."""
        if name.startswith("__"):
            raise AttributeError(name)
        why = {
            "criterion": "only near of a scene file says how close is close enough",
            "arm": "only arms of the embedded cell are known that well",
        }
        raise UnavailableError(why.get(name, self.lacks))

    def scale(self, relative_to: str) -> float:
        """Return how large something is, as a share of the cell's: `Parameter.relative_to`."""
        del relative_to
        return 1.0

    def rng(self, key: str) -> Rng:
        """Return the generator of what a mechanism's bodies look like at this station."""
        return stream([self._gap_seed], key, "scene")

    def edit(self, edit: SpecEdit) -> None:
        """Add to the scene before it is compiled; may decorate what does."""
        self.edits.append(edit)

    def change(self, change: Callable[[mujoco.MjModel], None]) -> None:
        """Change the compiled model in place; may decorate what does."""
        self._changes.append(change)

    def begin_anew(self) -> None:
        """Forget what was asked for, to be asked for other values of what could be set before."""
        self.edits, self._changes = [], []

    def put_on(self, model: mujoco.MjModel) -> None:
        """Change a model that was compiled before, as far as that needs no compiling, in place."""
        for change in self._changes:
            change(model)

    def change_servos(self, change: Callable[[mujoco.MjModel, int, int, float], None]) -> None:
        """Change each of `motors`; `change` gets the model and what `motors` says of one."""

        @self.change
        def all_of_them(model: mujoco.MjModel) -> None:
            for motor in self.motors(model):
                change(model, *motor)

    def light(self, lighting: Lighting) -> None:
        """Set the lamps' strengths: the first one is the key light, the others fill."""

        @self.change
        def change(model: mujoco.MjModel) -> None:
            if not model.nlight and not model.vis.headlight.active:
                raise UnavailableError("it has no lamps")
            model.light_diffuse[:1] *= lighting.key_rgb
            model.light_diffuse[1:] *= lighting.fill_rgb
            model.vis.headlight.ambient[:] *= lighting.fill_rgb
            model.vis.headlight.diffuse[:] *= lighting.fill_rgb

    def move_camera(self, offset: Sequence[float]) -> None:
        """Move the cameras by (dx, dy, dz [m], roll, pitch, yaw [rad]), about their base's axes."""
        if not any(offset):
            return

        @self.change
        def change(model: mujoco.MjModel) -> None:
            for camera in self.cameras(model):
                model.cam_pos[camera] += offset[:3]
                model.cam_quat[camera] = turned(model.cam_quat[camera], offset[3:])


class ImageStage(IntEnum):
    """Where on its way from the scene to the file a picture is changed."""

    LENS = 0
    FOCUS = 1
    REFLECTION = 2
    FLICKER = 3
    TINT = 4
    EXPOSURE = 5
    SHADING = 6
    TRANSFER = 7
    READOUT = 8


@dataclass(frozen=True)
class Shot:
    """What an image effect may know of a picture.

    Attributes:
        x: place of each pixel from -1 (left) to 1, shape (height, width).
        y: the same from -1 (top) to 1.
        t_s: when it was taken, since the take began [s].
        rng: noise of this picture.
        take_phase_rad: drawn anew for each take.
    """

    x: Vector
    y: Vector
    t_s: float
    rng: Rng
    take_phase_rad: float


type ImageEffect = Callable[[NDArray[np.floating], Shot], NDArray[np.floating]]
"""A picture before and after, RGB, 0 to 255, shape (height, width, 3)."""


class ImagePath:
    """The second applier: what the camera makes of the scene."""

    def __init__(self) -> None:
        self._effects: list[tuple[ImageStage, ImageEffect]] = []
        self.reset([0])

    def at(self, stage: ImageStage) -> Callable[[ImageEffect], None]:
        """Decorate what changes pictures at `stage`. Up to FOCUS they are uint8, then float32."""

        def add(effect: ImageEffect) -> None:
            self._effects.append((stage, effect))
            self._effects.sort(key=lambda e: e[0])

        return add

    @property
    def active(self) -> bool:
        """Whether pictures are changed at all."""
        return bool(self._effects)

    def reset(self, seed: Sequence[int]) -> None:
        """Draw what changes from take to take."""
        self._phase_rad = float(stream(seed, "image").uniform(0.0, 2.0 * np.pi))

    def picture(self, image: NDArray[np.uint8], rng: Rng, t_s: float) -> NDArray[np.uint8]:
        """Return a new picture, RGB, shape (height, width, 3), with the station's faults.

        `rng` draws its pixel noise; `t_s` is when it was taken, since the take began [s].
        """
        shot = Shot(*_places(*image.shape[:2]), t_s, rng, self._phase_rad)
        picture: NDArray[np.generic] = image
        for stage, effect in self._effects:
            if stage > ImageStage.FOCUS and picture.dtype == np.uint8:
                picture = picture.astype(np.float32)
            picture = effect(picture, shot)  # type: ignore[arg-type]
        if picture.dtype == np.uint8:
            return picture.copy()  # type: ignore[return-value]
        rounded = np.clip(picture.astype(np.float32) + 0.5, 0, 255)
        return np.asarray(rounded, dtype=np.uint8)


@lru_cache(maxsize=8)
def _places(height: int, width: int) -> tuple[Vector, Vector]:
    """Return where each pixel is, as `Shot.x` and `Shot.y`, read-only."""
    across, down = ((np.arange(n) + 0.5) / n * 2.0 - 1.0 for n in (width, height))
    x, y = np.meshgrid(across, down)
    x.flags.writeable = y.flags.writeable = False
    return x, y


type GoalFault = Callable[[Rng], Callable[[float, Vector, Vector], None]]
"""Draws what changes from take to take, and returns what loses the take's goals: that changes a
goal [rad], shape (n_joints,), in place, at a time [s]; the servos have the one before."""


@dataclass(frozen=True)
class Heat:
    """What becomes of servos over a session, in the end.

    Attributes:
        rise_c: how much warmer they get [°C].
        after_s: simulated time of a session's takes after which 63 % of it are there [s].
        latency_s: how much later they follow [s].
        friction_nm: Coulomb friction beyond the model's own [N m].
    """

    rise_c: float
    after_s: float
    latency_s: float
    friction_nm: float

    def share(self, session_s: float) -> float:
        """Return how much of it there is after `session_s` [s], 0 to 1."""
        return float(1.0 - np.exp(-session_s / self.after_s))


class CommandPath:
    """The third applier: from a goal to the servos' set point.

    Dead time, then faults and dead bands, then limits of speed and acceleration, then play; each is
    absent unless asked for.

    Attributes:
        latency_s: dead time [s].
        dead_band_rad: a joint ignores goals that are no further than this from the one that it went
            to last [rad]; as `play_rad`.
        play_rad: how far a joint turns before its servo feels it [rad]; one for all joints, or any
            shape that broadcasts with the goals'.
        speed_limit_rad_s: fastest change of a set point [rad/s]; likewise.
        acceleration_limit_rad_s2: fastest change of that, as servos have that ramp their goals
            [rad/s²]; likewise. It brakes in time to stop at the goal.
        faults: what loses goals, by the key of its mechanism.
        heat: what a session's heat does, or None.
    """

    def __init__(self, timestep_s: float) -> None:
        self._timestep_s = timestep_s
        self.latency_s = 0.0
        self.dead_band_rad: float | Vector = 0.0
        self.play_rad: float | Vector = 0.0
        self.speed_limit_rad_s: float | Vector = np.inf
        self.acceleration_limit_rad_s2: float | Vector = np.inf
        self.faults: dict[str, GoalFault] = {}
        self.heat: Heat | None = None
        self._pending: deque[tuple[float, Vector]] = deque()

    def reset(self, q_rad: Vector, seed: Sequence[int]) -> None:
        """Start a take at rest at `q_rad` [rad]; `seed` draws what the faults do."""
        self._ramps = bool(np.isfinite(self.acceleration_limit_rad_s2).any())
        limited = self._ramps or bool(np.isfinite(self.speed_limit_rad_s).any())
        self._ignores = bool(np.any(self.dead_band_rad))
        moves = self._ignores or limited or bool(np.any(self.play_rad))
        self.active = bool(self.latency_s or moves or self.faults)
        self._pending.clear()
        self._goal, self._slewed, self._out = q_rad.copy(), q_rad.copy(), q_rad.copy()
        self._step_rad = np.zeros_like(q_rad)
        self._faults = [begin(stream(seed, key)) for key, begin in self.faults.items()]

    def push(self, t_s: float, q_rad: Vector) -> None:
        """Take note of a goal [rad], shape (n_joints,), given at `t_s` [s]."""
        self._pending.append((t_s, q_rad.copy()))

    def set_point(self, t_s: float) -> Vector:
        """Set point [rad], shape (n_joints,), at `t_s` [s]; to be called once per physics step."""
        while self._pending and self._pending[0][0] <= t_s - self.latency_s + 1e-9:
            goal = self._pending.popleft()[1]
            for lose in self._faults:
                lose(t_s, goal, self._goal)
            if self._ignores:
                heard = np.abs(goal - self._goal) > self.dead_band_rad
                goal = np.where(heard, goal, self._goal)
            self._goal = goal
        step_rad = self.speed_limit_rad_s * self._timestep_s
        # np.clip takes twice as long on small arrays, and this runs at every physics step.
        change = np.maximum(np.minimum(self._goal - self._slewed, step_rad), -step_rad)
        if self._ramps:
            ramp_rad = self.acceleration_limit_rad_s2 * self._timestep_s**2
            most = np.sqrt(2.0 * ramp_rad * np.maximum(np.abs(self._goal - self._slewed), 1e-12))
            change = np.maximum(np.minimum(change, most), -most)
            low, high = self._step_rad - ramp_rad, self._step_rad + ramp_rad
            change = self._step_rad = np.maximum(np.minimum(change, high), low)
        self._slewed += change
        half = 0.5 * self.play_rad
        self._out = np.maximum(np.minimum(self._out, self._slewed + half), self._slewed - half)
        return self._out


FORCE_CHANNELS: Final = 8
"""Three forces and three torques at the wrist, and two jaws."""
LEVER_M: Final = 0.05
"""Torque sensors err by as much as their forces do at this distance [m]: small six-axis ones, by
their sheets."""


type ReadingFault = Callable[[Rng, int], Callable[[Vector, float], None]]
"""Draws what changes from take to take, for so many joints, and returns what encoders read beyond
the true angles: that adds it to an offset [rad], shape (n_joints,), in place, at a time [s]."""


class SensorPath:
    """The fourth applier: what the encoders report, and a servo bus that goes down.

    Attributes:
        zero_keys: of each joint, the parameter of the gap `zero_offset` that shifts it, "" where
            none does; None of a gripper, whose zero is the closed jaw: every calibration finds it.
        zero_rad: reading at each joint's true zero [rad], shape (n_joints,).
        step_rad: steps that readings come in [rad].
        noise_rad: standard deviation of a reading [rad].
        stale_fraction: share of the time that the bus is down.
        outage_s: how long it is down at a time [s].
        faults: what else is added to readings, by the key of its mechanism.
        logged: noise of the readings alone, not of what a servo goes by; None for none.
        force_drift_n: how far the zeros of force sensors swing [N]; of torques, by `LEVER_M`.
        force_noise_n: standard deviation of a force reading [N]; likewise.
    """

    def __init__(self, zero_keys: Sequence[str | None]) -> None:
        self.zero_keys = tuple(zero_keys)
        self._grippers = [k for k, key in enumerate(self.zero_keys) if key is None]
        self.zero_rad: Vector = np.zeros(len(self.zero_keys))
        self.step_rad = self.noise_rad = self.stale_fraction = self.outage_s = 0.0
        self.faults: dict[str, ReadingFault] = {}
        self._faults: list[Callable[[Vector, float], None]] = []
        self.logged: ReadingNoise | None = None
        self.force_drift_n = self.force_noise_n = 0.0

    def reset(self, seed: Sequence[int]) -> None:
        """Draw what changes from take to take."""
        self._force = stream(seed, "force")
        self._force_swing = self._force.uniform(0.0, 1.0, (2, FORCE_CHANNELS))
        self.offsets_active = bool(self.zero_rad.any() or self.step_rad or self.faults)
        self._noise = stream(seed, "noise")
        self._held: Vector | None = None
        n_joints = len(self.zero_rad)
        self._faults = [begin(stream(seed, key), n_joints) for key, begin in self.faults.items()]
        if self.logged:
            self.logged.reset(stream(seed, "logged"))
        self._outages: Vector = np.empty(0)  # times [s] at which the bus goes down, up, down, ...
        if self.stale_fraction:
            rng, count = stream(seed, "outages"), int(HORIZON_S / self.outage_s) + 1
            up_s = self.outage_s * (1.0 / self.stale_fraction - 1.0)
            lengths = np.array([up_s, self.outage_s]) * rng.uniform(0.3, 1.7, (count, 2))
            self._outages = np.cumsum(lengths)

    @property
    def shifts(self) -> bool:
        """Whether readings differ from the true angles while the bus is up."""
        changed = self.noise_rad or self.step_rad or self.zero_rad.any()
        return bool(changed or self.faults or self.logged)

    def bus_out(self, t_s: float) -> bool:
        """Say whether the servo bus is down: no goal arrives and readings repeat."""
        return bool(np.searchsorted(self._outages, t_s) % 2 == 1)

    def offset(self, t_s: float, q_rad: Vector) -> Vector:
        """What the encoders read beyond the true angles `q_rad` [rad] at `t_s` [s]; same shape.

        A servo controls its own reading, so the same offset moves the arm the other way.
        """
        offset = self.zero_rad.copy()
        for add in self._faults:
            add(offset, t_s)
        if self.step_rad:
            read = q_rad + offset
            offset += np.round(read / self.step_rad) * self.step_rad - read
        offset[self._grippers] = 0.0
        return offset

    def forces(self, t_s: float, true: Vector) -> Vector:
        """Return what an arm's force sensors report, shape (`FORCE_CHANNELS`,), for true values.

        Forces and torques at the wrist [N, N m], then the pressing of each jaw [N].
        """
        if not self.force_drift_n and not self.force_noise_n:
            return true
        phase, rate = self._force_swing
        swing = np.sin(2.0 * np.pi * (phase + (0.02 + 0.06 * rate) * t_s))
        noise = self._force.normal(0.0, self.force_noise_n, len(true))
        scale = np.where((np.arange(len(true)) // 3) == 1, LEVER_M, 1.0)
        return np.asarray(true + scale * (self.force_drift_n * swing + noise))

    def position(self, t_s: float, q_rad: Vector) -> Vector:
        """Reported position [rad], shape (n_joints,), for a true one."""
        if self.offsets_active:
            q_rad = q_rad + self.offset(t_s, q_rad)
        if self.noise_rad:
            q_rad = q_rad + self._noise.normal(0.0, self.noise_rad, len(q_rad))
        if self.logged:
            q_rad = self.logged.read(t_s, q_rad)
        if self._held is not None and self.bus_out(t_s):
            return self._held
        self._held = q_rad
        return q_rad


@dataclass(frozen=True)
class Appliers:
    """Where a mechanism may act."""

    model: ModelApplier
    images: ImagePath
    commands: CommandPath
    sensors: SensorPath
