"""The seams of gaploop: what a device, a policy or a tracker must offer to be used."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from gaploop.core.messages import (
    CameraFrame,
    FloatArray,
    FollowerState,
    Image,
    LeaderSample,
    Observation,
    SafeCommand,
    Tick,
)


class Leader(Protocol):
    """A command source: a leader arm, a script, a policy.

    One that holds a device also has `close()`, safe to call twice. One with servos of its own,
    whose readings are in `LeaderSample.state`, names their joints in order as `servo_joints`.
    """

    def reset(self) -> None:
        """Get ready for a new take."""

    def read(self, t_s: float) -> LeaderSample:
        """Return what is asked for at loop time `t_s` [s]."""

    def done(self) -> bool:
        """Say whether the source has nothing more to ask for, so that the take may end."""


class BaseDriver(Protocol):
    """Who drives the base under an arm, beside a leader that has none."""

    def speeds(self) -> FloatArray:
        """Return what is asked of the base now [m/s, rad/s], shape (n_speeds,)."""

    def done(self) -> bool:
        """Say whether nothing more is to be driven, as of a `Leader`."""


class CameraSource(Protocol):
    """Something that takes pictures."""

    name: str

    def frame(self) -> CameraFrame:
        """Return the newest picture without waiting."""


@runtime_checkable
class CountedCamera(CameraSource, Protocol):
    """A camera that counts what it gives."""

    fps: float | None
    """Pictures a second that were asked of it, where that is known [Hz]."""
    pictures: int
    """How many it has given so far."""
    same_since_s: float
    """Since when every picture has been the newest one to the last bit, by its capture [s]."""

    def rate_hz(self) -> float:
        """Return how many pictures a second it gave lately [Hz]; NaN before that can be told."""


class SensorSource(Protocol):
    """Extra telemetry channels: force/torque, tactile and the like."""

    channels: Mapping[str, str]
    """Column name, such as `wrist.fx_n`, to unit."""

    def read(self) -> Mapping[str, float]:
        """Return the newest value of each channel."""


class Follower(Protocol):
    """An arm that is moved."""

    name: str
    """Prefix of its telemetry columns, such as `follower`."""
    robot_type: str
    joint_names: tuple[str, ...]
    joint_limits_rad: FloatArray
    """Lower and upper limit [rad], shape (n_joints, 2)."""
    units: str
    """LeRobot units of `action` and `observation.state`, such as `deg`."""

    def read(self) -> FollowerState:
        """Return what the servos report."""

    def send(self, command: SafeCommand) -> None:
        """Set the goal positions to `command.sent_rad`."""

    def torque_on(self) -> None:
        """Hold the arm where it is: set the goals to the measured positions, then torque on.

        Raises:
            DeviceError: a servo doesn't take it.
        """

    def torque_off(self) -> None:
        """Take torque off every servo that can be reached; safe to call at any time, and twice.

        Raises:
            DeviceError: names the servos that didn't confirm it, after all have been tried.
        """

    def to_units(self, q_rad: FloatArray) -> FloatArray:
        """Convert joint angles [rad], shape (n_joints,), to the robot's LeRobot units."""

    def from_units(self, values: FloatArray) -> FloatArray:
        """Convert the robot's LeRobot units, shape (n_joints,), to joint angles [rad]."""

    def close(self) -> None:
        """Torque off and disconnect; safe to call twice."""


class Plant(Protocol):
    """The mechanics that an emulated servo bus moves."""

    joint_names: tuple[str, ...]

    def command(self, q_rad: FloatArray) -> None:
        """Set the goal position of every joint [rad], shape (n_joints,)."""

    def power(self, share: FloatArray) -> None:
        """Say which share of its stall torque each motor may give, shape (n_joints,); 0: limp."""

    def advance(self, duration_s: float) -> None:
        """Let `duration_s` [s] pass."""

    def read(self) -> FollowerState:
        """Return what the servos report."""


class SceneTracker(Protocol):
    """Turns a picture into `observation.environment_state`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tracked entries, in order."""

    def reset(self) -> None:
        """Forget the scene of the take before."""

    def observe(self, image: Image, t_s: float) -> FloatArray:
        """Return the tracked scene, shape (len(names),), from an RGB picture taken at `t_s` [s]."""


class Policy(Protocol):
    """Maps observations to joint targets."""

    @property
    def fps(self) -> float:
        """Frames a second that it acts at [Hz]."""

    def reset(self) -> None:
        """Forget the episode before."""

    def act(self, observation: Observation) -> FloatArray:
        """Return the next joint target, shape (n_joints,), in the robot's LeRobot units."""


class TakeSink(Protocol):
    """A subscriber of the control loop: recorder, window, statistics."""

    def tick(self, tick: Tick) -> None:
        """Take note of one turn; must not block."""
