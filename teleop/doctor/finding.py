"""One line of the doctor's report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """It works, but worse than it could."""
    FAIL = "fail"
    """Something can't be used until it is fixed."""


@dataclass(frozen=True)
class DoctorFinding:
    """What was looked at, what was found, and how to fix it.

    Attributes:
        area: what it belongs to, such as `serial port`.
        name: which one, such as `/dev/ttyACM0`.
        level: how bad it is.
        found: what is there, in words.
        fix: what to do about it; empty where nothing is wrong.
        data: the same as numbers and names, for programs.
    """

    area: str
    name: str
    level: Level
    found: str
    mend: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


def failed(findings: list[DoctorFinding]) -> bool:
    """Say whether anything can't be used as it is."""
    return any(finding.level is Level.FAIL for finding in findings)
