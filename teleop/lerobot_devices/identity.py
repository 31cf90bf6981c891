"""Which devices a session began with, so that a reconnection opens these and no others.

After a replug `ttyACM0`, `/dev/pts/3` or camera 0 may be another device under the same name. What
can be told apart is: by the USB adapter's ids and serial number, by what the servos keep without
power, by a camera's serial number or USB socket. It is compared before anything is written: torque
off, too, would let another arm fall.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gaploop.core.errors import DeviceError
from gaploop.teleop.servos.bus import ServoBus
from gaploop.teleop.servos.exchange import Script
from gaploop.teleop.servos.port import Usb, usb_ports
from gaploop.teleop.servos.registers import TABLES
from gaploop.teleop.servos.survey import surely

log = logging.getLogger(__name__)

KEPT: Final = (
    "Model_Number",
    "Firmware_Version",
    "Firmware_Major_Version",
    "Firmware_Minor_Version",
    "Drive_Mode",
    "Homing_Offset",
    "Min_Position_Limit",
    "Max_Position_Limit",
)
"""What servos keep without power and an arm has of its own. What LeRobot's class sets up in each is
no sign: an arm whose servos have lost it is still the same."""

type Kept = Mapping[int, Mapping[str, int]]
"""Servo id to what `KEPT` registers hold."""


@dataclass
class Identities:
    """What each device of a session was when it was connected first, by its name in the session."""

    usb: dict[str, Usb] = field(default_factory=dict)
    servos: dict[str, Kept] = field(default_factory=dict)
    cameras: dict[str, Usb] = field(default_factory=dict)

    def check_port(self, name: str, path: str) -> None:
        """Take note of the USB device at a port; DeviceError where it is another than before."""
        ports = usb_ports()
        now, before = ports.get(os.path.realpath(path)), self.usb.get(name)
        if before is None:
            if now is not None:
                self.usb[name] = now
            return
        if not os.path.exists(path) or (now is not None and not now.is_other(before)):
            return  # or it isn't there yet, and can't be opened
        elsewhere = [p for p, usb in ports.items() if before.serial and usb == before]
        where = f" It is at {elsewhere[0]} now." if elsewhere else ""
        raise DeviceError(
            f"{path} is {now or 'no USB port'}; this session began with {before}.{where} "
            "Nothing was sent to it. Plug the arm in where it was, or end the session and name the "
            "port by /dev/serial/by-id/…"
        )

    def check_servos(self, name: str, bus: ServoBus) -> bool:
        """Say whether servos answer, and are those of before; where none were, nothing is asked.

        Raises:
            DeviceError: another arm answers.
        """
        before = self.servos.get(name)
        if before is None:
            return True
        now = surely(bus.line, lambda: read_kept(bus))
        for servo_id, values in now.items():
            for register, value in values.items():
                if value != (was := before.get(servo_id, {}).get(register, value)):
                    words = register.replace("_", " ").lower()
                    raise DeviceError(
                        f"{bus.line.port.path} is another arm than this session began with: servo "
                        f"{servo_id} has {words} {value}, it had {was}. Nothing was sent to it. "
                        "Plug the first one in there, or end the session and begin anew."
                    )
        return bool(now)

    def note_servos(self, name: str, bus: ServoBus) -> None:
        """Take note of the servos of an arm that is connected."""
        if name not in self.servos:
            self.servos[name] = surely(bus.line, lambda: read_kept(bus))

    def check_camera(self, name: str, now: Usb | None) -> None:
        """Take note of a camera, None where nothing is known; DeviceError where it is another."""
        if now is None:
            return
        before = self.cameras.setdefault(name, now)
        if now.is_other(before):
            raise DeviceError(
                f"Camera {name!r} is another than this session began with: {now}, it was {before}. "
                "Plug that in where it was, or end the session and name it by its path in "
                "/dev/v4l/by-id (index_or_path)."
            )
        if now != before:
            self.cameras[name] = now
            log.warning(
                "Camera %s has the same serial number and is in another USB socket: %s, it was %s. "
                "Where two cameras share a number, see that it shows the same view.",
                name,
                now,
                before,
            )


def read_kept(bus: ServoBus) -> Script[dict[int, dict[str, int]]]:
    """Read what the servos that answer keep without power."""
    found: dict[int, dict[str, int]] = {}
    for register in (TABLES[bus.protocol][name] for name in KEPT if name in TABLES[bus.protocol]):
        for servo_id, data in (yield from bus.collect(register, bus.ids)).items():
            value = register.value_in(data, register.address)
            found.setdefault(servo_id, {})[register.name] = value
    return found


def session_name(device: Any, prefix: str = "") -> str:
    """Return what a session calls an arm: robot or teleop, with the side of one of two."""
    return ("robot" if hasattr(device, "send_action") else "teleop") + prefix
