"""Are the right servos on the bus? In one line each: what isn't, and how to fix it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any, Final

from gaploop.core.errors import DeviceError
from gaploop.teleop.servos.bus import ServoBus
from gaploop.teleop.servos.registers import MODEL_NAMES, Protocol
from gaploop.teleop.servos.survey import ServoReply, present, survey

_ARMS: Final[Mapping[str, Mapping[int, str]]] = {
    "koch_follower": {1: "xl430-w250", 2: "xl430-w250", **dict.fromkeys(range(3, 7), "xl330-m288")},
    "koch_leader": dict.fromkeys(range(1, 7), "xl330-m077"),
    "omx_follower": {
        **dict.fromkeys(range(11, 14), "xl430-w250"),
        **dict.fromkeys(range(14, 17), "xl330-m288"),
    },
    "omx_leader": {**dict.fromkeys(range(1, 6), "xl330-m288"), 6: "xl330-m077"},
}
"""Servos by which LeRobot's Dynamixel arms can be told apart."""
LEADER_MIN_V: Final = 9.5
FOLLOWER_MAX_V: Final = 8.5
"""A leader arm on a 12 V supply with a follower on a 5 or 7.4 V one is taken for a swap [V]."""


def check_servos(bus: ServoBus, device: Any) -> None:
    """Check that every servo is there once, is the right model, and has the others' firmware.

    Raises:
        DeviceError: the first thing that isn't so.
    """
    path, names = bus.line.port.path, {m.id: name for name, m in device.bus.motors.items()}
    seen = survey(bus.line, bus.ids)
    doubled = [i for i, servo in seen.items() if servo.doubled]
    if doubled:
        raise DeviceError(
            f"{path}: the answers of {_list(doubled, names)} are garbled: two servos have that id. "
            f"Set the ids, one motor at a time: lerobot-setup-motors {options(device)}"
        )
    missing = [i for i, servo in seen.items() if servo.model_number is None]
    if missing:
        raise _missing(bus, device, missing, names)
    wanted = dict(zip(bus.ids, bus.models, strict=True))
    found = {i: _model(servo) for i, servo in seen.items()}
    wrong = [i for i in bus.ids if found[i] != wanted[i]]
    if wrong:
        raise _wrong_model(path, device, found, wanted, wrong)
    _check_firmware(bus, seen, names)


def _missing(
    bus: ServoBus, device: Any, missing: list[int], names: Mapping[int, str]
) -> DeviceError:
    path = bus.line.port.path
    there = present(bus.line)
    other = _arm_with(set(there))
    if other and other != device.name:
        return _swapped(path, device, other)
    if not there:
        return DeviceError(
            f"{path}: no servo answers. Is the arm's power on, its cable in, and is {path} its "
            "port? gaploop doctor looks at every port."
        )
    heard = ", ".join(map(str, there))
    return DeviceError(
        f"{path}: no answer from {_list(missing, names)}; servos {heard} answer. Check the cable "
        f"to it, or its id: lerobot-setup-motors {options(device)}"
    )


def _wrong_model(
    path: str,
    device: Any,
    found: Mapping[int, str],
    wanted: Mapping[int, str],
    wrong: list[int],
) -> DeviceError:
    other = next((name for name, arm in _ARMS.items() if arm == dict(found)), None)
    if other and other != device.name:
        return _swapped(path, device, other)
    first = wrong[0]
    return DeviceError(
        f"{path}: servo {first} is a {found[first]}, but a {device.name} has a {wanted[first]} "
        "there. Is the port right? lerobot-find-port says which port is which."
    )


def _swapped(path: str, device: Any, other: str) -> DeviceError:
    return DeviceError(
        f"{path} is a {other}, not a {device.name}. If leader and follower are swapped, swap "
        "--robot.port and --teleop.port."
    )


def _arm_with(ids: set[int]) -> str | None:
    return next((name for name, arm in _ARMS.items() if set(arm) == ids), None)


def _check_firmware(
    bus: ServoBus, seen: Mapping[int, ServoReply], names: Mapping[int, str]
) -> None:
    if bus.protocol is not Protocol.FEETECH:
        return  # Dynamixel's models have versions of their own
    versions = {i: servo.firmware for i, servo in seen.items()}
    if len(set(versions.values())) > 1:
        usual = statistics.mode(versions.values())
        odd = [i for i, version in versions.items() if version != usual]
        raise DeviceError(
            f"{bus.line.port.path}: {_list(odd, names)} has firmware {versions[odd[0]]}, the rest "
            f"{usual}. Update it with Feetech's FD software (feetechrc.com/software)."
        )


def _model(servo: ServoReply) -> str:
    number = servo.model_number
    return MODEL_NAMES.get(number, f"model {number}") if number is not None else "nothing"


def _list(ids: list[int], names: Mapping[int, str]) -> str:
    words = [f"{i} ({names[i]})" for i in ids]
    return f"servo{'s' if len(ids) > 1 else ''} {', '.join(words)}"


def check_supply(follower_v: float, leader_v: float, ports: tuple[str, str]) -> None:
    """Notice by their supplies that a Feetech leader and follower are swapped.

    Args:
        follower_v: median supply of the arm used as follower [V], NaN where unknown.
        leader_v: the same of the leader [V].
        ports: of the follower and of the leader.

    Raises:
        DeviceError: the leader runs on 12 V and the follower doesn't.
    """
    if math.isnan(follower_v) or math.isnan(leader_v):
        return
    if leader_v > LEADER_MIN_V and follower_v < FOLLOWER_MAX_V:
        raise DeviceError(
            f"Leader and follower look swapped: the leader on {ports[1]} has {leader_v:.1f} V, the "
            f"follower on {ports[0]} {follower_v:.1f} V. Swap --robot.port and --teleop.port."
        )


def options(device: Any) -> str:
    """Return the options by which LeRobot's commands know this device."""
    kind = "robot" if hasattr(device, "send_action") else "teleop"
    name = str(device.config.type).replace("so100", "so101")  # one class under two names
    text = f"--{kind}.type={name} --{kind}.port={device.bus.port}"
    return f"{text} --{kind}.id={device.id}" if device.id else text
