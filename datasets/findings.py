"""What `check` says: findings, each with a code that scripts may rely on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

ERROR: Final = "error"
"""Training on it fails or teaches something wrong."""
WARNING: Final = "warning"
"""It loads and trains; something is missing or odd."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        code: stable name, such as `missing_video`.
        severity: `error` or `warning`.
        where: file, column or episodes.
        message: what is wrong, with values.
        mend: what to do about it.
    """

    code: str
    severity: str
    where: str
    message: str
    mend: str


@dataclass
class Findings:
    """Collects findings while a folder is checked."""

    items: list[Finding] = field(default_factory=list)

    def error(self, code: str, where: object, message: str, mend: str) -> None:
        """Add an error."""
        self.items.append(Finding(code, ERROR, str(where), message, mend))

    def warn(self, code: str, where: object, message: str, mend: str) -> None:
        """Add a warning."""
        self.items.append(Finding(code, WARNING, str(where), message, mend))

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.items)

    @property
    def failed(self) -> bool:
        """Whether there is an error among them."""
        return any(item.severity == ERROR for item in self.items)


def numbers(values: Sequence[int], at_most: int = 8) -> str:
    """Return a short list of numbers, such as `3, 7, 8 and 12 more`."""
    shown = ", ".join(str(v) for v in values[:at_most])
    more = len(values) - at_most
    return f"{shown} and {more} more" if more > 0 else shown
