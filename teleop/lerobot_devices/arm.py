"""One LeRobot arm on a servo bus, opened, checked and calibrated, with our exchange under it.

LeRobot's own class checks the motors, reads the calibration and configures the arm; only its port
handler is ours, and its prompts are errors instead: a program that drives an arm must not wait for
a key. It is opened limp: LeRobot's `configure` ends by turning torque on at whatever goals the
servos hold, and that is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lerobot.motors.dynamixel import DynamixelMotorsBus
from lerobot.motors.feetech import FeetechMotorsBus

from gaploop.core.errors import DeviceError
from gaploop.teleop.lerobot_devices.calibration import require_calibration
from gaploop.teleop.lerobot_devices.checks import check_servos
from gaploop.teleop.lerobot_devices.faults import LEROBOT_FAULTS, connect, first_line
from gaploop.teleop.lerobot_devices.units import JointUnits, joint_units
from gaploop.teleop.servos.bus import ServoBus
from gaploop.teleop.servos.exchange import BusLine, run
from gaploop.teleop.servos.port import SerialPort
from gaploop.teleop.servos.registers import MODELS, Protocol
from gaploop.teleop.servos.sdk_port import PollPortHandler
from gaploop.teleop.servos.torque import torque_off


@dataclass(frozen=True)
class ConnectedArm:
    """One arm that is connected.

    Attributes:
        device: LeRobot's robot or teleoperator.
        prefix: of its joint names, such as `left_`.
        port: shared by LeRobot's bus and ours.
        bus: our side of it.
        units: conversions of its joints.
    """

    device: Any
    prefix: str
    port: SerialPort
    bus: ServoBus
    units: JointUnits

    def close(self) -> None:
        """Close the port; the torque is the owner's business."""
        self.device.bus.port_handler.closePort()


def protocol_of(device: Any) -> Protocol | None:
    """Return what the device's servo bus speaks; None where we can't drive it ourselves."""
    bus = getattr(device, "bus", None)
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


def open_arm(device: Any, prefix: str, *, limp: bool) -> ConnectedArm:
    """Open, check and configure one arm.

    Args:
        device: LeRobot's robot or teleoperator, not connected.
        prefix: of its joint names.
        limp: leave every motor without torque, as a follower must begin; a leader keeps what its
            class turned on, such as the spring of a Koch leader's gripper.

    Raises:
        DeviceError: what is wrong with the port, the servos or the calibration; torque is off.
    """
    protocol = protocol_of(device)
    if protocol is None:
        raise DeviceError(f"{device} has no servo bus that is known.")
    lerobot_bus = device.bus
    port = SerialPort(lerobot_bus.port, lerobot_bus.port_handler.baudrate)
    handler = PollPortHandler(port)
    lerobot_bus.port_handler = handler
    lerobot_bus.sync_reader.port = lerobot_bus.sync_writer.port = handler
    port.open()
    motors = list(lerobot_bus.motors.values())
    bus = ServoBus(BusLine(port, protocol), [m.id for m in motors], [m.model for m in motors])
    with contextlib.ExitStack() as undo:
        undo.callback(port.close)
        undo.callback(let_go, bus)
        check_servos(bus, device)
        _connect(device, handler, limp=limp)
        arm = ConnectedArm(device, prefix, port, bus, joint_units(lerobot_bus, device.name))
        _prepare(bus, limp=limp)
        undo.pop_all()
    return arm


def let_go(bus: ServoBus) -> None:
    """Take torque off what can be reached, whoever confirms it."""
    run([(bus.line, torque_off(bus))])


def _connect(device: Any, handler: PollPortHandler, *, limp: bool) -> None:
    handler.openPort()
    try:
        require_calibration(device)
        handler.is_open = False  # LeRobot refuses to connect what is connected
        with _no_torque(device.bus) if limp else contextlib.nullcontext():
            connect(device)
    except LEROBOT_FAULTS as error:
        raise DeviceError(f"{device.bus.port}: {first_line(error)}") from error


@contextlib.contextmanager
def _no_torque(bus: Any) -> Iterator[None]:
    """Keep LeRobot's `configure` from ending with torque on."""
    bus.enable_torque = lambda *_args, **_kwargs: None
    try:
        yield
    finally:
        del bus.enable_torque


def _prepare(bus: ServoBus, *, limp: bool) -> None:
    """Learn the bus's ways, and what each servo would forget without power."""
    if limp and (left := run([(bus.line, torque_off(bus))])[0]):
        raise DeviceError(f"{bus.line.port.path}: servo {left[0]} doesn't let go of its torque.")
    run([(bus.line, bus.probe())])
    run([(bus.line, bus.remember())])
    if not limp:
        bus.revive = True
        bus.holding = run([(bus.line, bus.which_hold())])[0]
    bus.forget_faults()
