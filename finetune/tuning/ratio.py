"""The share of real takes in co-training, chosen on real takes that were held out.

Every candidate is trained shortly on one half of the real takes and judged on the other, then
the other way round, so that each real take judges once (two-fold cross-validation, whole
sessions where there are enough). Among the candidates that aren't worse than the best by more
than one standard error of the paired difference, the one with the most simulation wins (the
one-standard-error rule of Breiman et al. 1984, Classification and Regression Trees): what
can't be told apart on real takes is decided by what keeps more of what the base knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json

AUTO: Final = "auto"
CANDIDATES: Final = (0.25, 0.5, 0.75, 1.0)
FOLDS: Final = 2
PART: Final = 0.5
"""Part of the run's steps that a candidate is trained for."""
SCHEMA: Final = "gaploop.ratio.v1"


@dataclass(frozen=True)
class ShareTrial:
    """One candidate.

    Attributes:
        share: of real samples in a batch.
        error: mean over the real takes, each judged by the half that it wasn't in.
        worse_by: mean difference to the best candidate, take by take.
        se: standard error of that difference.
    """

    share: float
    error: float
    worse_by: float
    se: float


@dataclass(frozen=True)
class ShareChoice:
    """The chosen share, and what it was chosen from."""

    share: float
    tried: tuple[ShareTrial, ...]
    takes: int

    def says(self) -> str:
        """Return it in words."""
        listed = ", ".join(f"{t.share:g}: {t.error:.4g}" for t in self.tried)
        return f"--mix.real=auto chose {self.share:g} on {self.takes} held-out takes ({listed})."


def parse_share(value: str) -> float | None:
    """Return the share that `--mix.real` says, or None for `auto`.

    Raises:
        UnusableInputError: it is neither `auto` nor a number above 0 and at most 1.
    """
    if value == AUTO:
        return None
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise UnusableInputError(
            f"--mix.real={value} must be above 0 and at most 1, or auto; 0.5 is usual."
        )
    return share


def choose(
    measure: Callable[[float, int], Mapping[str, float]],
    folder: Path,
    candidates: Sequence[float] = CANDIDATES,
) -> ShareChoice:
    """Try the candidates and choose; what `folder` holds of an earlier call isn't tried again.

    Args:
        measure: called with a share and a fold, trains and returns uid to error of that fold.
        folder: where the errors are kept.
        candidates: shares to try.
    """
    folder.mkdir(parents=True, exist_ok=True)
    errors: dict[float, dict[str, float]] = {}
    for share in candidates:
        errors[share] = {}
        for fold in range(FOLDS):
            path = folder / f"{share:g}_{fold}.json"
            if not path.exists():
                write_json(path, {"schema": SCHEMA, "errors": dict(measure(share, fold))})
            errors[share].update(read_json(path)["errors"])
    choice = chosen(errors)
    write_json(folder / "choice.json", {"schema": SCHEMA, **_json(choice)})
    return choice


def chosen(errors: Mapping[float, Mapping[str, float]]) -> ShareChoice:
    """Return the choice by the one-standard-error rule.

    Args:
        errors: share to the error on every real take, the same takes for all shares.
    """
    takes = sorted(next(iter(errors.values())))
    rows = {s: np.array([found[t] for t in takes]) for s, found in errors.items()}
    best = min(rows, key=lambda s: (float(rows[s].mean()), s))
    tried = []
    for share, row in sorted(rows.items()):
        difference = row - rows[best]
        spread = float(difference.std(ddof=1)) if len(takes) > 1 else 0.0
        se = spread / math.sqrt(len(takes))
        tried.append(ShareTrial(share, float(row.mean()), float(difference.mean()), se))
    share = min(t.share for t in tried if t.worse_by <= t.se)
    return ShareChoice(share, tuple(tried), len(takes))


def _json(choice: ShareChoice) -> dict[str, Any]:
    return asdict(choice)
