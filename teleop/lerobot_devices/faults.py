"""How LeRobot's devices are connected, what they raise, and what of it fits on one line."""

from __future__ import annotations

import inspect
from typing import Any, Final

LEROBOT_FAULTS: Final = (
    OSError,
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    SystemExit,
    TypeError,
    ValueError,
)
"""What a LeRobot device may raise for a device or a setting that is wrong. A class that calls
sys.exit() must not end a program that holds an arm."""


def first_line(error: BaseException) -> str:
    """Return what an error says first, on one line."""
    if isinstance(error, SystemExit):
        return "its code tried to end the program (SystemExit)"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def connect(device: Any) -> None:
    """Connect a device without calibrating it, as far as its class can be told so.

    LeRobot's base classes have `connect(calibrate=True)`; its own LeKiwi client, phone, gamepad and
    keyboard leave the argument out, and some calibrate themselves.
    """
    parameters = inspect.signature(device.connect).parameters.values()
    if any(p.name == "calibrate" or p.kind is p.VAR_KEYWORD for p in parameters):
        device.connect(calibrate=False)
    else:
        device.connect()


def is_uncalibrated(device: Any) -> bool:
    """Say whether a device reports that it isn't calibrated.

    LeKiwi's client, which has nothing to calibrate, reports None; a gamepad's is a method.
    """
    answer = getattr(device, "is_calibrated", None)
    return (answer() if callable(answer) else answer) is False
