"""What engineers say caused the failures of a station: the labels that the model learns from."""

from __future__ import annotations

from pathlib import Path

from gaploop.core import labels


def engineers_say(path: Path) -> dict[str, dict[str, float]]:
    """Return uid to dimension to weight, of the labels that engineers gave and didn't take back.

    Suggestions and operators' words are left out: the model would learn from itself. An engineer's
    empty label says that none of the dimensions is the cause.

    Args:
        path: a `labels.jsonl`; nothing is said where there is none.

    Raises:
        UnusableInputError: a line of it can't be read.
    """
    said = (e for e in labels.read(path) if e.source == "engineer" and e.field == "dimensions")
    return {uid: dict(event.value) for (uid, _), event in labels.standing(said).items()}
