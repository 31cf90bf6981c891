"""How fast a policy may drive an arm that it is new to."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.teleop.stopping import one_line

log = logging.getLogger(__name__)

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
        self._counts = _read(self._file)
        self._before = self._counts.get(policy, 0)
        self._takes: frozenset[str] = frozenset()

    @property
    def scale(self) -> float:
        """Share of its speed at which the policy may drive now, above 0 and up to 1."""
        if self._fixed is not None:
            return self._fixed
        return FIRST + (1.0 - FIRST) * min(self._done / SUCCESSES, 1.0)

    @property
    def successes(self) -> int | None:
        """Successes without help so far, up to `SUCCESSES`; None where the speed is fixed."""
        return None if self._fixed is not None else min(self._done, SUCCESSES)

    @property
    def _done(self) -> int:
        return self._before + len(self._takes)

    def succeeded(self, takes: Collection[str]) -> None:
        """Count the takes of this session that succeeded without help, all of them each time."""
        if self._fixed is not None or self._takes == frozenset(takes):
            return
        self._takes = frozenset(takes)
        self._counts[self._policy] = self._done
        try:
            write_json(self._file, {"schema": _SCHEMA, "successes": self._counts})
        except OSError as error:  # such as a full disk: it counts on, and is written with the next
            log.warning("The policy's successes can't be written (%s).", one_line(error))


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
