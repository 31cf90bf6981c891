"""One LeRobot arm on a servo bus, opened, checked and calibrated, with our exchange under it.

LeRobot's own class checks the motors, reads the calibration and configures the arm; only its port
handler is ours, and its prompts are errors instead: a program that drives an arm must not wait for
a key. It is opened limp: LeRobot's `configure` ends by turning torque on at whatever goals the
servos hold, and that is left out.

LeRobot keeps the calibration twice: in a file by the device's id, and in the motors. Where the two
differ it asks for ENTER and overwrites the motors. But the likeliest cause is another arm: ports
that are swapped, or the wrong id. So here it is an error that says which arm's they are.
"""

import contextlib
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
from dynamixel_sdk import PortHandler
from lerobot.motors import MotorNormMode
from lerobot.motors.dynamixel import DynamixelMotorsBus
from lerobot.motors.feetech import FeetechMotorsBus
from lerobot.utils.constants import HF_LEROBOT_CALIBRATION
from numpy.typing import NDArray

from gaploop.core.arms import ARMS
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.kinematics import ARM_MODELS, model_of
from gaploop.core.messages import FloatArray
from gaploop.teleop.lerobot_devices.generic import LEROBOT_FAULTS, connect, first_line
from gaploop.teleop.lerobot_devices.identity import Identities, session_name
from gaploop.teleop.servos.bus import ServoBus
from gaploop.teleop.servos.calibration import (
    FIX,
    FORMER,
    SWAP_FIX,
    MotorRange,
    agrees,
    all_files,
    bring_over,
    differences,
    kept_motors,
    swapped_ids,
    unusable,
    usual_folder,
)
from gaploop.teleop.servos.exchange import BusLine, run
from gaploop.teleop.servos.port import SerialPort
from gaploop.teleop.servos.registers import MODEL_NAMES, MODELS, RAD_PER_TICK, Protocol
from gaploop.teleop.servos.survey import (
    ECHO,
    NO_ECHO,
    ServoReply,
    ailments,
    echoes,
    present,
    survey,
    vitals,
)
from gaploop.teleop.servos.torque import limit_torque, torque_off

GRIPPER = "gripper"


@dataclass(frozen=True)
class JointUnits:
    """Conversions of some joints; every array has shape (n_joints,).

    Attributes:
        low_ticks: lower end of the calibrated range [ticks].
        high_ticks: upper end [ticks].
        degrees: the joint's LeRobot unit is degrees.
        span: else, its unit's range: 200 for -100 to 100, 100 for 0 to 100.
        least: else, its unit's lowest value.
        flip: else, the unit falls where ticks grow.
        ticks_per_360: what LeRobot takes for a turn, 4095 for a 12-bit encoder.
        rad_per_tick: slope of the joint's angle [rad/tick].
        middle_ticks: where the angle is `middle_rad` [ticks].
        middle_rad: 0 but for grippers [rad].
    """

    names: tuple[str, ...]
    low_ticks: FloatArray
    high_ticks: FloatArray
    degrees: NDArray[np.bool_]
    span: FloatArray
    least: FloatArray
    flip: NDArray[np.bool_]
    ticks_per_360: FloatArray
    rad_per_tick: FloatArray
    middle_ticks: FloatArray
    middle_rad: FloatArray

    def ticks_to_rad(self, ticks: FloatArray) -> FloatArray:
        """Convert encoder positions [ticks] to joint angles [rad]."""
        return self.middle_rad + (ticks - self.middle_ticks) * self.rad_per_tick

    def rad_to_ticks(self, q_rad: FloatArray) -> FloatArray:
        """Convert joint angles [rad] to encoder positions [ticks], not rounded."""
        return self.middle_ticks + (q_rad - self.middle_rad) / self.rad_per_tick

    def ticks_to_units(self, ticks: FloatArray) -> FloatArray:
        """Convert encoder positions [ticks] to LeRobot's units, as it does."""
        share = (np.clip(ticks, self.low_ticks, self.high_ticks) - self.low_ticks) / self._range
        share = np.where(self.flip, 1.0 - share, share)
        middle = (self.low_ticks + self.high_ticks) / 2.0
        angle = (ticks - middle) * 360.0 / self.ticks_per_360
        return np.where(self.degrees, angle, self.least + share * self.span)

    def units_to_ticks(self, values: FloatArray) -> FloatArray:
        """Convert LeRobot's units to encoder positions [ticks], not rounded.

        What isn't finite stays so, as NaN: clipped to the range, infinity would be a joint's end.
        """
        values = np.where(np.isfinite(values), values, np.nan)
        share = np.clip((values - self.least) / self.span, 0.0, 1.0)
        share = np.where(self.flip, 1.0 - share, share)
        middle = (self.low_ticks + self.high_ticks) / 2.0
        angle = values * self.ticks_per_360 / 360.0 + middle
        return np.where(self.degrees, angle, self.low_ticks + share * self._range)

    @property
    def rad_per_unit(self) -> FloatArray:
        """Size of a step of each joint's LeRobot unit [rad], within its range."""
        ticks = np.where(self.degrees, self.ticks_per_360 / 360.0, self._range / self.span)
        return np.abs(ticks * self.rad_per_tick)

    @property
    def _range(self) -> FloatArray:
        return self.high_ticks - self.low_ticks

    @property
    def joint_limits_rad(self) -> FloatArray:
        """Ends of the calibrated ranges [rad], shape (n_joints, 2)."""
        ends = [self.ticks_to_rad(self.low_ticks), self.ticks_to_rad(self.high_ticks)]
        return np.sort(np.stack(ends, axis=1), axis=1)

    @property
    def label(self) -> str:
        """How the units of the joints before the gripper are named."""
        body = [k for k, name in enumerate(self.names) if not name.endswith(GRIPPER)] or [0]
        if self.degrees[body].all():
            return "deg"
        return "m100_100" if (self.least[body] == -100.0).all() else "mixed"


def joint_units(bus: Any, robot_type: str) -> JointUnits:
    """Read the conversions off a calibrated LeRobot `SerialMotorsBus`.

    The gripper's angle follows the arm model of `robot_type`, where it is known.
    """
    names = tuple(bus.motors)
    motors = [bus.motors[name] for name in names]
    calibration = [bus.calibration[name] for name in names]
    low = np.array([float(c.range_min) for c in calibration])
    high = np.array([float(c.range_max) for c in calibration])
    percent = np.array([m.norm_mode is MotorNormMode.RANGE_0_100 for m in motors])
    flip = np.array([bool(bus.apply_drive_mode and c.drive_mode) for c in calibration])
    units = JointUnits(
        names=names,
        low_ticks=low,
        high_ticks=high,
        degrees=np.array([m.norm_mode is MotorNormMode.DEGREES for m in motors]),
        span=np.where(percent, 100.0, 200.0),
        least=np.where(percent, 0.0, -100.0),
        flip=flip,
        ticks_per_360=np.array([bus.model_resolution_table[m.model] - 1.0 for m in motors]),
        rad_per_tick=np.full(len(names), RAD_PER_TICK),
        middle_ticks=(low + high) / 2.0,
        middle_rad=np.zeros(len(names)),
    )
    model = model_of(robot_type)
    if model is not None and GRIPPER in names and percent[names.index(GRIPPER)]:
        k, (closed_rad, open_rad) = names.index(GRIPPER), ARM_MODELS[model].gripper_percent_rad
        slope = (open_rad - closed_rad) / (high[k] - low[k])
        units.rad_per_tick[k] = -slope if flip[k] else slope
        units.middle_rad[k] = (closed_rad + open_rad) / 2.0
    return units


def joined(parts: Sequence[JointUnits], prefixes: Sequence[str]) -> JointUnits:
    """Return the conversions of several arms as one, their names prefixed."""
    fields: Mapping[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in JointUnits.__dataclass_fields__
        if name != "names"
    }
    names = tuple(p + n for p, part in zip(prefixes, parts, strict=True) for n in part.names)
    return JointUnits(names=names, **fields)


TIMEOUT_MARGIN_MS: Final = 500.0
"""How long a servo may take beyond the bytes' own time [ms]. LeRobot gives 50 ms and asks once,
which a busy machine misses (stalls of 380 ms were measured on one); set-up waits for this long only
where nobody answers."""


# ruff: noqa: N802  (the SDKs' names)
class PollPortHandler(PortHandler):  # type: ignore[misc]
    """Stands where dynamixel_sdk's and scservo_sdk's do; the open port is shared with the exchange.

    Theirs ask for bytes as fast as they can until a reply is complete, so a set-up call costs as
    much processor time as the servo takes to answer.
    """

    def __init__(self, port: SerialPort) -> None:
        super().__init__(port.path)
        self.port, self.baudrate = port, port.baud

    def openPort(self) -> bool:
        """Open the port, where it isn't."""
        self.port.open()
        self.port.discard()
        self.is_open = True
        return True

    def closePort(self) -> None:
        """Close the port."""
        self.port.close()
        self.is_open = False

    def clearPort(self) -> None:
        """Throw away what has come in: it answers no request that is about to be sent."""
        self.port.discard()

    def setBaudRate(self, baudrate: int) -> bool:
        """Change the speed [bit/s]; say whether the driver takes it."""
        try:
            self.port.set_baud(baudrate)
        except DeviceError:
            return False
        self.baudrate = baudrate
        return True

    def readPort(self, length: int) -> bytes:
        """Return up to `length` bytes, waiting for the first as long as the packet may take."""
        left_s = max(self.packet_timeout - self.getTimeSinceStart(), 0.0) / 1000.0
        # Once the time is up the SDK still asks for what has come; and it decides when to stop.
        return self.port.read(length) if length > 0 and self.port.wait(left_s) else b""

    def writePort(self, packet: bytes | list[int]) -> int:
        """Send a packet and return its length."""
        self.port.write(bytes(packet))
        return len(packet)

    def setPacketTimeout(self, packet_length: int) -> None:
        """Begin to wait for a packet of `packet_length` bytes."""
        bytes_ms = self.port.byte_s * 1000.0 * (packet_length + 3)
        self.setPacketTimeoutMillis(bytes_ms + TIMEOUT_MARGIN_MS)

    def getCurrentTime(self) -> float:
        """Return the monotonic time [ms]."""
        return time.monotonic() * 1000.0


FACTORY_CALIBRATED: Final = ("omx_follower", "omx_leader")
"""Arms whose LeRobot class calibrates itself without asking anything."""
_ARMS: Final[Mapping[str, Mapping[int, str]]] = {
    kind: dict(enumerate(chain.models, chain.first_id))
    for arm in ARMS.values()
    for kind in arm.robot_types
    for role, chain in arm.emulated.items()
    if chain.protocol == Protocol.DYNAMIXEL and kind.endswith(role)
}
"""Servos by which LeRobot's Dynamixel arms can be told apart."""


@dataclass(frozen=True)
class ConnectedArm:
    """One arm that is connected, its port shared by LeRobot's bus and ours."""

    device: Any
    prefix: str
    port: SerialPort
    bus: ServoBus
    units: JointUnits

    def close(self) -> None:
        """Close the port; the torque is the owner's business."""
        self.device.bus.port_handler.closePort()


def protocol_of(device: Any) -> Protocol | None:
    """Return what the device's servo bus speaks; None where we can't drive it ourselves.

    From 0.7 on LeRobot's buses have no port handler that could be ours: its class drives then.
    """
    bus = getattr(device, "bus", None)
    if not hasattr(bus, "port_handler"):
        return None
    if isinstance(bus, DynamixelMotorsBus):
        protocol = Protocol.DYNAMIXEL
    elif isinstance(bus, FeetechMotorsBus) and bus.protocol_version == 0:
        protocol = Protocol.FEETECH
    else:
        return None
    return protocol if all(m.model in MODELS for m in bus.motors.values()) else None


def arms_of(device: Any) -> list[tuple[str, Any]]:
    """Return the servo arms that a LeRobot device is made of, with the prefix of their joints.

    Empty where it isn't made of such, or does more than hand joint positions through.
    """
    if protocol_of(device) is not None:
        found = [("", device)]
    else:
        sides = [(f"{side}_", getattr(device, f"{side}_arm", None)) for side in ("left", "right")]
        found = [(prefix, arm) for prefix, arm in sides if protocol_of(arm) is not None]
        if len(found) != 2:
            return []
    joints = {f"{prefix}{motor}.pos" for prefix, arm in found for motor in arm.bus.motors}
    return found if joints == set(device.action_features) else []


def open_arm(
    device: Any,
    prefix: str,
    *,
    limp: bool,
    identities: Identities | None = None,
    gripper_torque_pct: float = 100.0,
) -> ConnectedArm:
    """Open, check and configure one arm.

    Args:
        limp: leave every motor without torque, as a follower must begin; a leader keeps what its
            class turned on, such as the spring of a Koch leader's gripper.
        identities: what the session's devices were before; this one is added.
        gripper_torque_pct: what the gripper of a limp arm may push with once it holds [%].

    Raises:
        DeviceError: what is wrong with the port, the servos or the calibration; torque is off,
            but nothing was written where it is another arm than before.
    """
    protocol = protocol_of(device)
    if protocol is None:
        raise DeviceError(f"{device} has no servo bus that is known.")
    lerobot_bus = device.bus
    port = SerialPort(lerobot_bus.port, lerobot_bus.port_handler.baudrate)
    handler = PollPortHandler(port)
    lerobot_bus.port_handler = handler
    lerobot_bus.sync_reader.port = lerobot_bus.sync_writer.port = handler
    name, identities = session_name(device, prefix), identities or Identities()
    identities.check_port(name, port.path)
    port.open()
    motors = list(lerobot_bus.motors.values())
    bus = ServoBus(BusLine(port, protocol), [m.id for m in motors], [m.model for m in motors])
    with contextlib.ExitStack() as undo:
        undo.callback(port.close)
        if identities.check_servos(name, bus):
            undo.callback(let_go, bus)
        check_servos(bus, device)
        handler.openPort()
        try:
            require_calibration(device)
            handler.is_open = False  # LeRobot refuses to connect what is connected
            with contextlib.ExitStack() as restore:
                if limp:  # LeRobot's `configure` would end with torque on
                    lerobot_bus.enable_torque = lambda *_args, **_kwargs: None
                    restore.callback(delattr, lerobot_bus, "enable_torque")
                connect(device)
        except LEROBOT_FAULTS as error:
            check_servos(bus, device)  # says the cause where a servo shows it by now
            words = first_line(error)
            if (number := re.search(r"\bid_?=(\d+)", words)) is not None:
                names = {m.id: name for name, m in lerobot_bus.motors.items()}
                servo = f"servo {number[1]} ({names.get(int(number[1]), 'not of this arm')})"
                words = f"{servo} stopped answering as it should ({words.rstrip('.')})."
            raise DeviceError(f"{port.path}: {words} Check its cables and the supply.") from error
        arm = ConnectedArm(device, prefix, port, bus, joint_units(lerobot_bus, device.name))
        if limp and (left := run([(bus.line, torque_off(bus))])[0]):
            raise DeviceError(
                f"{port.path}: torque off isn't confirmed by servo {left[0]}. Start again; if it "
                "stays so, hold the arm, switch its power off, and check that servo's cable."
            )
        grips = [m.id for name, m in lerobot_bus.motors.items() if "gripper" in name and limp]
        if left := run([(bus.line, limit_torque(bus, grips, gripper_torque_pct))])[0]:
            raise DeviceError(
                f"{port.path}: servo {left[0]}, the gripper's, doesn't take its torque limit. "
                "Check its cable, then switch the arm's power off and on."
            )
        # Learn the bus's ways, and what each servo would forget without power.
        run([(bus.line, bus.probe())])
        run([(bus.line, bus.remember())])
        if not limp:
            bus.revive = True
            bus.holding = run([(bus.line, bus.which_hold())])[0]
        identities.note_servos(name, bus)
        bus.forget_faults()
        undo.pop_all()
    return arm


def let_go(bus: ServoBus) -> None:
    """Take torque off what can be reached, whoever confirms it."""
    run([(bus.line, torque_off(bus))])


def require_calibration(device: Any) -> None:
    """Check that the motors hold the calibration of the device's file.

    Raises:
        DeviceError: there is no file, the motors hold another calibration, or it is one that can't
            be driven with.
    """
    port, command = device.bus.port, f"lerobot-calibrate {options(device)}"
    if device.is_calibrated:
        feetech = isinstance(device.bus, FeetechMotorsBus)
        protocol = Protocol.FEETECH if feetech else Protocol.DYNAMIXEL
        wrong = list(unusable(protocol, device.name, _ranges(device.calibration), {}))
        if wrong:
            raise DeviceError(
                f"The {device.name} on {port} can't be driven with its calibration: "
                f"{'; '.join(wrong)}. {FIX}. Run: {command}"
            )
        return
    if device.name in FACTORY_CALIBRATED and not device.calibration:
        device.calibrate()
        return
    held = {
        device.bus.motors[name].id: one
        for name, one in _ranges(device.bus.read_calibration()).items()
    }
    own = "robots" if hasattr(device, "send_action") else "teleoperators"
    own_folder: Path = device.calibration_dir
    roots = [own_folder.parent.parent, own_folder, Path(HF_LEROBOT_CALIBRATION)]
    if device.config.calibration_dir is None:  # LeRobot's variables may point elsewhere by now
        roots.append(usual_folder())
    files = [*sorted(device.calibration_dir.glob("*.json")), *all_files(roots)]
    theirs = []
    for file in dict.fromkeys(files):
        with contextlib.suppress(UnusableInputError):  # not a calibration
            if file != device.calibration_fpath and agrees(kept_motors(file), held):
                theirs.append(file)
    theirs.sort(key=lambda file: (_kind_of(file, device) != own, file.stem != device.id))
    if theirs:
        _point_to(theirs[0], device, own)
    if not device.calibration:
        known = sorted(path.stem for path in device.calibration_dir.glob("*.json"))
        ids = f" Calibrated ids: {', '.join(known)}." if known else ""
        raise DeviceError(
            f"The {device.name} on {port} isn't calibrated: {device.calibration_fpath} doesn't "
            f"exist.{ids}{_former(device, files)} Run: {command}"
        )
    motors = device.bus.motors
    kept = _ranges(device.calibration).items()
    wanted = {name: (motors[name].id, one) for name, one in kept if name in motors}
    found = differences(wanted, held)
    difference = found[0] if found else "the motors' names differ"
    fix = f"If it is this arm, run: {command}"
    if swapped_ids(wanted, held):
        fix = f"{SWAP_FIX} {options(device)}"
    raise DeviceError(
        f"The motors on {port} hold another calibration than {device.calibration_fpath} "
        f"({difference}). {fix}"
    )


def _kind_of(file: Path, device: Any) -> str:
    """Return robots or teleoperators; what lies in the device's own folder is of its kind."""
    if file.parent == device.calibration_dir:
        return "robots" if hasattr(device, "send_action") else "teleoperators"
    return file.parent.parent.name


def _point_to(file: Path, device: Any, own: str) -> NoReturn:
    """Raise DeviceError: the motors hold what another file than the device's says."""
    port, wanted = device.bus.port, device.calibration_fpath
    if _kind_of(file, device) != own:
        raise DeviceError(
            f"The motors on {port} hold the calibration of {file.stem!r}, not of {device.id!r}. "
            "If the arms are swapped, swap --robot.port and --teleop.port; if it is this arm, run: "
            f"lerobot-calibrate {options(device)}"
        )
    if file.parent == device.calibration_dir:
        raise DeviceError(
            f"The motors on {port} hold the calibration of {file.stem!r}, not of {device.id!r}. "
            "If the arms are swapped, swap the ports; if it is that arm, give "
            f"--{session_name(device)}.id={file.stem}; if it is this arm, run: "
            f"lerobot-calibrate {options(device)}"
        )
    to = wanted if not wanted.exists() else wanted.with_stem(f"{wanted.stem}_former")
    and_then = "" if to == wanted else f" and start it with the id {to.stem}"
    raise DeviceError(
        f"The motors on {port} hold the calibration of {file}, but LeRobot looks for it in "
        f"{wanted}. Don't calibrate anew, that moves the zeros under every dataset and policy of "
        f"this arm. Bring it over{and_then}: {bring_over(file, to)}"
    )


def _former(device: Any, files: Sequence[Path]) -> str:
    """Return a sentence about a file of the same id in LeRobot's former folders, or ""."""
    wanted = device.calibration_fpath
    for file in files:
        is_of_it = FORMER.get(file.parent.name, file.parent.name) == device.name
        if is_of_it and file.name == wanted.name and file != wanted:
            return (
                f" {file} is of this id, but its motors differ: if it is this arm, bring it over, "
                f"and then write it to the motors with ENTER: {bring_over(file, wanted)}."
            )
    return ""


def _ranges(calibration: Mapping[str, Any]) -> dict[str, MotorRange]:
    return {str(name): MotorRange.of(motor) for name, motor in calibration.items()}


def check_servos(bus: ServoBus, device: Any) -> None:
    """Raise DeviceError unless every servo is there once, the right model, of one firmware."""
    path, names = bus.line.port.path, {m.id: name for name, m in device.bus.motors.items()}

    def listed(ids: Sequence[int]) -> str:
        words = [f"{i} ({names[i]})" for i in ids]
        return f"servo{'s' if len(ids) > 1 else ''} {', '.join(words)}"

    def check_swap(seen: Mapping[int, ServoReply]) -> None:
        models = {i: MODEL_NAMES.get(servo.model_number or 0) for i, servo in seen.items()}
        other = next((name for name, arm in _ARMS.items() if arm == models), device.name)
        if other != device.name:
            raise DeviceError(
                f"{path} is a {other}, not a {device.name}. If leader and follower are swapped, "
                "swap --robot.port and --teleop.port."
            )

    seen = survey(bus.line, bus.ids)
    doubled = [i for i, servo in seen.items() if servo.doubled]
    is_well = all(servo.model_number is not None and not servo.doubled for servo in seen.values())
    if not is_well and echoes(bus.line):
        raise DeviceError(f"{path}: {ECHO}. {NO_ECHO}")
    if doubled:
        raise DeviceError(
            f"{path}: the answers of {listed(doubled)} are garbled: two servos have that id. "
            f"Set the ids, one motor at a time: lerobot-setup-motors {options(device)}"
        )
    missing = [i for i, servo in seen.items() if servo.model_number is None]
    if missing:
        there = present(bus.line)
        check_swap(survey(bus.line, there))
        if not there:
            raise DeviceError(
                f"{path}: no servo answers. Is the arm's power on, its cable in, and is {path} its "
                "port? gaploop doctor looks at every port."
            )
        if set(missing) <= set(there):
            raise DeviceError(
                f"{path}: {listed(missing)} answered only when asked again. Check the cables there "
                "and the supply's plug"
            )
        raise DeviceError(
            f"{path}: no answer from {listed(missing)}; servos {', '.join(map(str, there))} "
            f"answer. Check the cable to it, or its id: lerobot-setup-motors {options(device)}"
        )
    for found, fix, _ in ailments(bus.protocol, vitals(bus.line, bus.ids), listed):
        raise DeviceError(f"{path}: {found}. {fix}.")
    models = {
        i: MODEL_NAMES.get(servo.model_number or 0, f"model {servo.model_number}")
        for i, servo in seen.items()
    }
    wrong = [(i, model) for i, model in zip(bus.ids, bus.models, strict=True) if models[i] != model]
    if wrong:
        check_swap(seen)
        first, wanted = wrong[0]
        raise DeviceError(
            f"{path}: servo {first} is a {models[first]}, but a {device.name} has a {wanted} "
            "there. Is the port right? lerobot-find-port shows which port is which."
        )
    versions = {i: servo.firmware for i, servo in seen.items()}
    # Dynamixel's models have versions of their own.
    if bus.protocol is Protocol.FEETECH and len(set(versions.values())) > 1:
        usual = statistics.mode(versions.values())
        odd = [i for i, version in versions.items() if version != usual]
        raise DeviceError(
            f"{path}: {listed(odd)} has firmware {versions[odd[0]]}, the rest {usual}. Update it "
            "with Feetech's FD software (feetechrc.com/software)."
        )


def options(device: Any) -> str:
    """Return the options by which LeRobot's commands know this device."""
    kind = session_name(device)
    name = str(device.config.type).replace("so100", "so101")  # one class under two names
    text = f"--{kind}.type={name} --{kind}.port={device.bus.port}"
    return f"{text} --{kind}.id={device.id}" if device.id else text
