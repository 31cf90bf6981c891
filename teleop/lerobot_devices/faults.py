"""What LeRobot's devices raise, and what of it fits on one line."""

from __future__ import annotations

from typing import Final

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
