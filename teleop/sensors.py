"""Sensors beside the arm (force and torque, touch, and the like) as extra telemetry channels.

Those with `observe` are what policies see, too, as `observation.force.<name>`.

A sensor is a port on which lines of numbers arrive, as microcontrollers and many force/torque boxes
send them, or a class of one's own.
"""

import contextlib
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.core.protocols import SensorSource
from gaploop.core.schema import check_keys, named_function, number
from gaploop.teleop.stopping import disconnect

STALE_S: Final = 0.5
"""A reading older than this isn't recorded as the sensor's."""
FIRST_S: Final = 3.0
"""How long a sensor may take to its first reading; a microcontroller restarts when opened."""
RETRY_S: Final = 1.0
BAUD: Final = 115200
_KEYS: Final = ("port", "baud", "channels", "driver", "options", "observe")
LARGEST: Final = 64
"""Rows or columns of an array."""
_NAME: Final = re.compile(r"\w+")
_SPLIT: Final = re.compile(r"[\s,;]+")


class LineSensor:
    """Numbers that arrive as lines of text, such as `0.12, -3.4, 9.8`, one per channel in order.

    A thread reads them. A port that is lost is opened again, every second.

    Args:
        name: of the sensor: its columns are `<name>.<channel>`.
        port: a serial port, or any URL of pyserial, such as `socket://192.168.1.5:5000`.
        channels: channel, such as `fx_n`, to unit, in the order in which the numbers arrive; or to
            unit and shape, as `(kPa, 4, 4)`, of an array that arrives row by row.
    """

    def __init__(self, name: str, port: str, channels: Mapping[str, Any], baud: int = BAUD) -> None:
        self.channels: Mapping[str, str] = {
            ".".join((name, "_".join((c, *map(str, place))))): str(unit)
            for c, (unit, *shape) in ((c, _listed(u)) for c, u in channels.items())
            for place in np.ndindex(*shape)
        }
        self._port, self._baud = port, baud
        self._newest: tuple[float, tuple[float, ...]] | None = None
        self._fault, self._odd_line = "", ""
        self._arrived, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sensor {name}", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float = FIRST_S) -> None:
        """Wait for the first reading; DeviceError where none comes in `timeout_s` [s]."""
        if not self._arrived.wait(timeout_s):
            raise DeviceError(self._why())

    def read(self) -> Mapping[str, float]:
        """Return the newest reading; DeviceError where there is none younger than `STALE_S`."""
        newest = self._newest
        if newest is None or time.monotonic() - newest[0] > STALE_S:
            raise DeviceError(self._why())
        return dict(zip(self.channels, newest[1], strict=True))

    def close(self) -> None:
        """Let go of the port; safe to call twice."""
        self._over.set()
        self._thread.join(timeout=2.0)

    def _why(self) -> str:
        names = ", ".join(self.channels)
        if self._fault:
            return f"{self._port} ({names}): {self._fault}. Check cable and port."
        if self._odd_line:
            return (
                f"{self._port} sends {self._odd_line!r}, not {len(self.channels)} numbers a line "
                f"({names}). Check the sensor's channels and baud."
            )
        return f"{self._port} ({names}) sends nothing. Check that the sensor is on, and its baud."

    def _run(self) -> None:
        import serial

        while not self._over.is_set():
            try:
                with serial.serial_for_url(self._port, baudrate=self._baud, timeout=0.2) as port:
                    self._fault, rest = "", b""
                    while not self._over.is_set():
                        rest += port.read(max(1, port.in_waiting))
                        *lines, rest = rest.split(b"\n")
                        rest = rest[-4096:]  # a sender without line ends fills no memory
                        for line in lines:
                            self._take(line)
            except (OSError, ValueError) as error:  # pyserial's own errors are OSErrors
                self._fault = str(error) or type(error).__name__
                self._over.wait(RETRY_S)

    def _take(self, line: bytes) -> None:
        text = line.decode("ascii", "replace").strip()
        try:
            values = tuple(float(part) for part in _SPLIT.split(text) if part)
        except ValueError:
            values = ()
        if len(values) != len(self.channels):
            self._odd_line = text[:40]
            return
        self._newest = (time.monotonic(), values)
        self._arrived.set()


def _listed(unit: Any) -> Sequence[Any]:
    return unit if isinstance(unit, list | tuple) else (unit,)


def check_sensors(sensors: Mapping[str, Any], own: bool = False) -> None:
    """Check what `--sensors` asks for before anything is connected, or raise UnusableInputError.

    `own` ones are those that the robot has by itself, as the embedded cell has.
    """
    for name, spec in sensors.items():
        where = f"--sensors: {name}"
        if not isinstance(spec, Mapping):
            raise UnusableInputError(
                f"{where} must be a mapping such as {{port: /dev/ttyACM2, channels: {{fz_n: N}}}}, "
                f"got {spec!r}."
            )
        check_keys(dict(spec), ("observe",) if own else _KEYS, where, ())
        if not isinstance(spec.get("observe", False), bool):
            raise UnusableInputError(f"{where}: observe must be true or false.")
        if not _NAME.fullmatch(name):
            raise UnusableInputError(f"{where}: name it by letters, digits and _.")
        if own:
            continue
        if ("port" in spec) == ("driver" in spec):
            raise UnusableInputError(
                f"{where} needs either port, where lines of numbers arrive, or driver, a class "
                "such as my_lab.tactile:Pad."
            )
        if "port" in spec and not (isinstance(c := spec.get("channels"), Mapping) and c):
            raise UnusableInputError(
                f"{where} needs channels: names to units in the order in which the numbers "
                "arrive, such as {fx_n: N, fy_n: N, fz_n: N}."
            )
        for unit in spec.get("channels", {}).values():
            if not all(type(n) is int and 0 < n <= LARGEST for n in _listed(unit)[1:]):
                raise UnusableInputError(
                    f"{where}: an array is [unit, rows, columns], such as [kPa, 4, 4]; got {unit}."
                )
        number(spec.get("baud", BAUD), f"{where}: baud", 1, 1e7)
        if not isinstance(spec.get("options", {}), Mapping):
            raise UnusableInputError(f"{where}: options must map names to values.")


def connect_sensors(sensors: Mapping[str, Any]) -> tuple[SensorSource, ...]:
    """Connect what `--sensors` asks for, once `check_sensors` has passed it.

    Raises:
        UnusableInputError: a driver can't be made.
        DeviceError: a sensor sends nothing usable.
    """
    found: list[SensorSource] = []
    with contextlib.ExitStack() as undo:
        undo.callback(lambda: disconnect(*found))
        for name, spec in sensors.items():
            if "port" in spec:
                channels = {str(c): u for c, u in spec["channels"].items()}
                baud = int(spec.get("baud", BAUD))
                found.append(LineSensor(name, str(spec["port"]), channels, baud))
            else:
                where, path = f"--sensors: {name}", str(spec["driver"])
                form = f"module:Class, called as Class({name!r}, **options)"
                driver = named_function(path, where, form)
                try:
                    found.append(driver(name, **spec.get("options", {})))
                    if not found[-1].channels or not callable(found[-1].read):
                        raise ValueError("its channels are empty")
                except (AttributeError, TypeError, ValueError) as error:
                    raise UnusableInputError(
                        f"{where}: {path} can't be used ({error}). It must be {form}, with "
                        "channels and read()."
                    ) from None
            columns = [column for sensor in found for column in sensor.channels]
            twice = sorted({column for column in columns if columns.count(column) > 1})
            if twice:
                raise UnusableInputError(
                    f"--sensors: two sensors write {', '.join(twice)}. Rename one."
                )
        for sensor in found:
            if isinstance(sensor, LineSensor):
                sensor.wait()
        undo.pop_all()
    return tuple(found)


def observed(
    sensors: Mapping[str, Any], connected: Sequence[SensorSource]
) -> dict[str, SensorSource]:
    """Return those of the sensors, connected in the order of `sensors`, that policies see."""
    pairs = zip(sensors.items(), connected, strict=True)
    return {name: sensor for (name, spec), sensor in pairs if spec.get("observe")}


def reading(sensor: SensorSource) -> FloatArray:
    """Return all channels of an observed sensor, in order; DeviceError where one isn't known."""
    values = sensor.read()
    found = np.array([values.get(name, np.nan) for name in sensor.channels], dtype=np.float64)
    if not np.isfinite(found).all():
        names = ", ".join(
            n for n, ok in zip(sensor.channels, np.isfinite(found), strict=True) if not ok
        )
        raise DeviceError(
            f"The sensor gives no reading of {names}. Check it, or leave out observe."
        )
    return found
