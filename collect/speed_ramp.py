"""How fast a policy may drive an arm that it is new to."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json

FIRST: Final = 0.1
"""Share of its speed at which a policy begins."""
SUCCESSES: Final = 20
"""Successes after which it drives at full speed."""
FILE: Final = "speeds.json"
"""In the journal's folder: policy id to successes that it has had by itself."""
_SCHEMA: Final = "gaploop.speeds.v1"


class SpeedRamp:
    """Speeds a policy up with every success that it has by itself; kept with the journal.

    Args:
        journal: the folder of takes; it need not exist.
        policy: the policy's id: another one, or one trained on, begins anew.
        fixed: the speed that the operator asks for; nothing is counted then.

    Raises:
        UnusableInputError: a speed that isn't above 0 and up to 1, or a damaged file.
    """

    def __init__(self, journal: Path, policy: str, fixed: float | None = None) -> None:
        if fixed is not None and not 0 < fixed <= 1:
            raise UnusableInputError(f"--speed_scale must be above 0 and up to 1, got {fixed:g}.")
        self._file, self._policy, self._fixed = journal / FILE, policy, fixed
        self._successes = _read(self._file)

    @property
    def scale(self) -> float:
        """Share of its speed at which the policy may drive now, above 0 and up to 1."""
        if self._fixed is not None:
            return self._fixed
        share = min(self._successes.get(self._policy, 0) / SUCCESSES, 1.0)
        return FIRST + (1.0 - FIRST) * share

    def succeeded(self) -> None:
        """Count a success without help."""
        if self._fixed is not None:
            return
        self._successes[self._policy] = self._successes.get(self._policy, 0) + 1
        write_json(self._file, {"schema": _SCHEMA, "successes": self._successes})


def _read(file: Path) -> dict[str, int]:
    if not file.exists():
        return {}
    said = read_json(file)
    counts = said.get("successes") if isinstance(said, dict) else None
    if not isinstance(counts, dict) or not all(isinstance(n, int) for n in counts.values()):
        raise UnusableInputError(
            f"{file} doesn't say how often each policy succeeded. Delete it: every policy then "
            f"begins at {FIRST:.0%} of its speed."
        )
    return dict(counts)
