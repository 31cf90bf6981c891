"""gaploop's arms for LeRobot's own commands, such as `lerobot-record --robot.type=gaploop_so101`.

Their goals go through our safety filter and control loop, which runs beside them at its own rate;
at the end the arm is lowered. LeRobot finds plug-ins by the names of distributions: those of
`plugins/` register these classes, and hold nothing else.
"""

import contextlib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from lerobot.robots import Robot, make_robot_from_config
from lerobot.teleoperators import Teleoperator, make_teleoperator_from_config
from lerobot.utils.errors import DeviceAlreadyConnectedError, DeviceNotConnectedError

from gaploop.collect.devices import ArmDevices
from gaploop.collect.journal import JournalWriter, Recorder
from gaploop.collect.lerobot_factory import ArmConnection
from gaploop.collect.lerobot_types import station_for
from gaploop.collect.session_options import DriveOptions
from gaploop.collect.take import STALE_CAMERA_S, stale_camera
from gaploop.core.clock import MonotonicClock
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.messages import FloatArray, LeaderSample, SafetyReason, feature_of
from gaploop.core.protocols import Follower
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome
from gaploop.teleop.lerobot_devices.make import make_leader
from gaploop.teleop.loop import Rates
from gaploop.teleop.stopping import disconnect
from gaploop.teleop.trips import say_trip

FPS: Final = 30.0
"""Rows a second of the journal; the control loop turns seven times for each [Hz]."""
HELD_S: Final = 0.1
"""A goal grows no older than this [s]: a program that saves an episode asks for nothing, and the
arm holds meanwhile, as it does with LeRobot's own class."""
TOLD_S: Final = 0.1
"""By then the loop's turn that tripped is counted, and which joints show it is known [s]."""
TOLD_WITHIN: Final = 20
"""On a busy machine it takes longer: so many times that, at most."""
STALE_S: Final = 0.5
"""A leader that was heard longer ago than this isn't followed any more [s]."""


@dataclass(kw_only=True)
class ArmOptions:
    """What our arms have beside the options of LeRobot's class for them.

    Attributes:
        station: station.yaml with the cell's limits; conservative ones unless given.
        journal: folder that each run of the command adds a take without pictures to: telemetry of
            every servo, 200 times a second.
    """

    station: Path | None = None
    journal: Path | None = None


def plain(config: Any) -> Any:
    """Return LeRobot's own configuration of a device that one of ours describes."""
    of = type(config).__bases__[-1]
    return of(**{f.name: getattr(config, f.name) for f in fields(of) if f.init})


class ProgramGoals:
    """The goals of a program, newest first and only that one, as a `Leader` of our control loop."""

    def __init__(self, follower: Follower) -> None:
        self.follower, self._newest = follower, LeaderSample(-np.inf, np.empty(0))

    def reset(self) -> None:
        """Ask for where the arm stands, until the program asks for something."""
        self._newest = LeaderSample(-np.inf, self.follower.read().position_rad)

    def ask(self, t_s: float, q_rad: FloatArray) -> None:
        """Ask for joint positions [rad], shape (n_joints,), from loop time `t_s` [s] on."""
        self._newest = LeaderSample(t_s, q_rad)

    def read(self, t_s: float) -> LeaderSample:
        """Return the newest goal."""
        newest = self._newest
        return LeaderSample(max(newest.t_s, t_s - HELD_S), newest.q_rad)

    def done(self) -> bool:
        """The program says when it ends, by disconnecting."""
        return False


class _LikeLeRobots:
    """What our arms and leaders have of LeRobot's own device: units, names, files."""

    name = "gaploop"
    config_class = ArmOptions
    is_calibrated = True  # else it doesn't connect
    kind: str

    def _stand_for(self, device: Any, config: Any) -> None:
        self.lerobot_device, self.name = device, device.name
        """LeRobot's own, not connected: gaploop's commands drive that, too."""
        super().__init__(config)  # type: ignore[call-arg]
        self.config = config

    @property
    def action_features(self) -> dict[str, Any]:
        """Joints, as of LeRobot's class."""
        return dict(self.lerobot_device.action_features)

    def calibrate(self) -> None:
        """Refuse: LeRobot's own class does it, and writes the file that both read."""
        raise UnusableInputError(
            f"Calibrate it as LeRobot's own: lerobot-calibrate --{self.kind}.type="
            f"{self.lerobot_device.config.type} with the same port and id. Both read that "
            "calibration."
        )

    def configure(self) -> None:
        """Nothing to configure: connecting does."""


class GaploopArm(_LikeLeRobots, Robot):  # type: ignore[misc]
    """A follower arm behind our safety filter. Its units, names and files are those of LeRobot's.

    Args:
        config: `ArmOptions` and LeRobot's configuration of a robot.
    """

    kind = "robot"

    def __init__(self, config: Any) -> None:
        self._stand_for(make_robot_from_config(plain(config)), config)
        self.cameras = self.lerobot_device.cameras
        self._devices: ArmDevices | None = None
        self._writer: JournalWriter | None = None

    @property
    def observation_features(self) -> dict[str, Any]:
        """Joints and pictures, as of LeRobot's class."""
        return dict(self.lerobot_device.observation_features)

    @property
    def is_connected(self) -> bool:
        """Whether the arm is driven, or was until it tripped."""
        return self._devices is not None

    def connect(self, calibrate: bool = True) -> None:
        """Check, connect and hold the arm where it stands; nothing is calibrated here.

        Raises:
            GaploopError: what is wrong, in one line; torque is off.
        """
        del calibrate
        if self._devices is not None:
            raise DeviceAlreadyConnectedError(f"{self} is already connected.")
        options = DriveOptions(robot=plain(self.config), station=self.config.station)
        station = station_for(options.robot, options.station)
        connection = ArmConnection(options, station, Rates.near(FPS), leads=False)

        def goals(follower: Follower, *_: object) -> ProgramGoals:
            self._goals = ProgramGoals(follower)
            return self._goals

        with contextlib.ExitStack() as undo:
            devices = ArmDevices(connection.connect, shared=goals, is_watched=False)
            undo.callback(devices.close)
            if self.config.journal is not None:
                arm = replace(devices.arm, cameras=())
                header = arm.header(TakeInfo("", "driven by a program"))
                writer = undo.enter_context(JournalWriter(self.config.journal, header))
                devices.control.attach(Recorder(writer, arm.follower))
                self._writer = writer
            devices.start()
            self._devices = devices
            undo.pop_all()

    def get_observation(self) -> dict[str, Any]:
        """Return joints in LeRobot's units and pictures, the newest ones; never waits.

        Raises:
            DeviceError: the arm has tripped, the loop has ended, or a camera gives no pictures.
        """
        devices = self._driving()
        state = devices.control.snapshot().state
        q_rad = self._goals.read(0.0).q_rad if state is None else state.position_rad
        seen = self._named(q_rad)
        for camera in devices.arm.cameras:
            frame = camera.frame()
            if devices.arm.clock.now_s() - frame.t_capture_s > STALE_CAMERA_S:
                raise DeviceError(stale_camera(camera.name))
            is_depth = frame.image.ndim == 2
            seen[camera.name] = frame.image[..., None] if is_depth else frame.image
        return seen

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        """Ask for joint positions; return what the safety filter let through last.

        Raises:
            DeviceError: the arm has tripped, or the loop has ended.
        """
        devices = self._driving()
        arm = devices.arm.follower
        asked = [float(action[feature_of(name)]) for name in arm.joint_names]
        self._goals.ask(devices.arm.clock.now_s(), arm.from_units(np.array(asked)))
        return self._named(devices.filter.sent_rad)

    def disconnect(self) -> None:
        """Lower the arm, take torque off and disconnect; safe to call twice.

        Raises:
            DeviceError: torque or a connection couldn't be ended; one line says all of it.
        """
        devices, self._devices = self._devices, None
        if devices is None:
            return
        with contextlib.ExitStack() as cleanup:
            if self._writer is not None:
                writer = cleanup.enter_context(self._writer)
                cleanup.callback(writer.seal, Outcome.UNLABELLED)
            devices.finish()

    def _named(self, q_rad: FloatArray) -> dict[str, Any]:
        arm = self._goals.follower
        return dict(
            zip(map(feature_of, arm.joint_names), arm.to_units(q_rad).tolist(), strict=True)
        )

    def _driving(self) -> ArmDevices:
        devices = self._devices
        if devices is None:
            raise DeviceNotConnectedError(f"{self} is not connected: call connect() first.")
        if tripped := devices.filter.tripped & ~SafetyReason.TRIPPED:
            told: tuple[tuple[str, ...], int] = (), 0
            for _ in range(TOLD_WITHIN):
                devices.control.wait(TOLD_S)
                if last := devices.last_trip:
                    told = last.joints, last.errors
                    break
            raise DeviceError(say_trip(tripped, *told))
        if not devices.control.alive:
            devices.finish()  # says why, where a device ended it
            raise DeviceError("The control loop has ended. Run the command again.")
        return devices


class GaploopLeader(_LikeLeRobots, Teleoperator):  # type: ignore[misc]
    """A leader arm, checked and read by our exchange: nothing is asked at its start.

    Args:
        config: LeRobot's configuration of a teleoperator, as one of our types.
    """

    kind = "teleop"
    feedback_features: ClassVar[dict[str, Any]] = {}

    def __init__(self, config: Any) -> None:
        self._stand_for(make_teleoperator_from_config(plain(config)), config)
        self._clock = MonotonicClock()
        self._leader: Any = None
        self._last: FloatArray | None = None

    @property
    def is_connected(self) -> bool:
        """Whether connect() has been called."""
        return self._leader is not None

    def connect(self, calibrate: bool = True) -> None:
        """Check and connect; nothing is calibrated here. GaploopError says what is wrong."""
        del calibrate
        if self._leader is not None:
            raise DeviceAlreadyConnectedError(f"{self} is already connected.")
        self._leader = make_leader(plain(self.config), None, self._clock)

    def get_action(self) -> dict[str, Any]:
        """Return where the leader is, in LeRobot's units; a servo that is silent for a moment as
        it was. DeviceError where one is for longer.
        """
        if self._leader is None:
            raise DeviceNotConnectedError(f"{self} is not connected: call connect() first.")
        sample = self._leader.read(self._clock.now_s())
        if np.isfinite(sample.q_rad).all():
            self._last = sample.q_rad
        if self._last is None or self._clock.now_s() - sample.t_s > STALE_S:
            raise DeviceError(say_trip(SafetyReason.STALE_LEADER, ()))
        return dict(zip(self.action_features, self._last.tolist(), strict=True))

    def send_feedback(self, feedback: dict[str, Any]) -> None:
        """Ignore feedback."""
        del feedback

    def disconnect(self) -> None:
        """Disconnect; safe to call twice."""
        leader, self._leader = self._leader, None
        disconnect(leader)
