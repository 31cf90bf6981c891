"""One observation, in words and numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Evidence:
    """A value that speaks for a diagnosis.

    Attributes:
        signal: name of the signal.
        value: its value, in `unit`; NaN where only the words say something.
        unit: unit of the value.
        message: the observation in words and numbers.
    """

    signal: str
    value: float
    unit: str
    message: str
