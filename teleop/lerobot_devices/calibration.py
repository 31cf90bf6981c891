"""Is the arm calibrated, and is it this arm?

LeRobot keeps the calibration twice: in a file by the device's id, and in the motors. Where the two
differ it asks for ENTER and overwrites the motors. But the likeliest cause is another arm: ports
that are swapped, or the wrong id. So here it is an error that says which arm's they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lerobot.motors.feetech import FeetechMotorsBus
from lerobot.utils.constants import HF_LEROBOT_CALIBRATION, ROBOTS, TELEOPERATORS

from gaploop.core.errors import DAMAGE, DeviceError, UnusableInputError
from gaploop.core.files import read_json
from gaploop.teleop.lerobot_devices.checks import options
from gaploop.teleop.servos.ranges import FIX, MotorRange, unusable
from gaploop.teleop.servos.registers import Protocol

FACTORY_CALIBRATED: Final = ("omx_follower", "omx_leader")
"""Arms whose LeRobot class calibrates itself without asking anything."""
_FIELDS: Final = ("homing_offset", "range_min", "range_max")


def require_calibration(device: Any) -> None:
    """Check that the motors hold the calibration of the device's file.

    Raises:
        DeviceError: there is no file, the motors hold another calibration, or it is one that can't
            be driven with.
    """
    port, command = device.bus.port, f"lerobot-calibrate {options(device)}"
    if device.is_calibrated:
        _require_ranges(device, command)
        return
    if device.name in FACTORY_CALIBRATED and not device.calibration:
        device.calibrate()
        return
    if not device.calibration:
        known = sorted(path.stem for path in device.calibration_dir.glob("*.json"))
        ids = f" Calibrated ids: {', '.join(known)}." if known else ""
        raise DeviceError(
            f"The {device.name} on {port} isn't calibrated: {device.calibration_fpath} doesn't "
            f"exist.{ids} Run: {command}"
        )
    held = device.bus.read_calibration()
    owner = _owner(held, device)
    if owner:
        kind = "--robot.port and --teleop.port" if owner[0] != _kind(device) else "the ports"
        raise DeviceError(
            f"The motors on {port} hold the calibration of {owner[1]!r}, not of {device.id!r}. If "
            f"the arms are swapped, swap {kind}; if it is this arm, run: {command}"
        )
    raise DeviceError(
        f"The motors on {port} hold another calibration than {device.calibration_fpath} "
        f"({_difference(held, device.calibration)}). If it is this arm, run: {command}"
    )


def _require_ranges(device: Any, command: str) -> None:
    protocol = Protocol.DYNAMIXEL
    if isinstance(device.bus, FeetechMotorsBus):
        protocol = Protocol.FEETECH
    motors = {name: MotorRange.of(motor) for name, motor in device.calibration.items()}
    wrong = list(unusable(protocol, device.name, motors, {}))
    if wrong:
        raise DeviceError(
            f"The {device.name} on {device.bus.port} can't be driven with its calibration: "
            f"{'; '.join(wrong)}. {FIX}. Run: {command}"
        )


def _kind(device: Any) -> str:
    return "robots" if hasattr(device, "send_action") else "teleoperators"


def _numbers(calibration: Any) -> dict[str, tuple[int, ...]]:
    """Return motor to offset and range, of LeRobot's objects or a file's JSON."""
    found: dict[str, tuple[int, ...]] = {}
    for name, motor in dict(calibration).items():
        get = motor.get if isinstance(motor, dict) else lambda f, m=motor: getattr(m, f, None)
        values = [get(field) for field in _FIELDS]
        found[str(name)] = tuple(int(v) for v in values if isinstance(v, int))
    return found


def _owner(held: Any, device: Any) -> tuple[str, str] | None:
    """Return kind and id of the device whose calibration file the motors hold."""
    wanted = _numbers(held)
    roots = (device.calibration_dir.parent.parent, Path(HF_LEROBOT_CALIBRATION))
    folders = {device.calibration_dir}
    for root in roots:
        folders |= {folder for kind in (ROBOTS, TELEOPERATORS) for folder in root.glob(f"{kind}/*")}
    for folder in sorted(folder for folder in folders if folder.is_dir()):
        for path in sorted(folder.glob("*.json")):
            try:
                numbers = _numbers(read_json(path))
            except (UnusableInputError, *DAMAGE):
                continue  # not a calibration
            if numbers == wanted and path != device.calibration_fpath:
                return folder.parent.name, path.stem
    return None


def _difference(held: Any, wanted: Any) -> str:
    ours, theirs = _numbers(held), _numbers(wanted)
    for name, numbers in theirs.items():
        for field, there, here in zip(_FIELDS, numbers, ours.get(name, ()), strict=False):
            if there != here:
                return f"{name}: {field} {here} in the motor, {there} in the file"
    return "the motors' names differ"
