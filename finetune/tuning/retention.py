"""What the base could do in simulation, and whether the tuned policy still can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_json
from gaploop.finetune.evaluate import CellSpec, evaluate
from gaploop.finetune.evaluation import Difference, paired_difference
from gaploop.finetune.lerobot_policy import cell_of, load_policy

SCHEMA: Final = "gaploop.retention.v1"
MARGIN: Final = 3.0
"""Largest fall of success that is tolerated [percentage points]."""
SEEDS: Final = 40_000
"""Scenes begin here among those of evaluations: no other command asks for them."""


@dataclass(frozen=True)
class Retention:
    """Success in nominal simulation before and after, on the same scenes.

    Attributes:
        difference: after minus before, paired.
    """

    before: float
    after: float
    difference: Difference

    @property
    def is_kept(self) -> bool:
        """Whether success fell by no more than the margin, as observed."""
        return -100 * self.difference.value <= MARGIN

    @property
    def is_shown(self) -> bool:
        """Whether the interval, too, lies within the margin."""
        return -100 * self.difference.interval[0] <= MARGIN

    def message(self) -> str:
        """Return it in words."""
        low, high = (100 * v for v in self.difference.interval)
        rates = (
            f"Nominal simulation: {self.before:.1%} → {self.after:.1%}, "
            f"{100 * self.difference.value:+.1f} points [{low:+.1f}, {high:+.1f}] over "
            f"{self.difference.pairs} paired scenes"
        )
        if not self.is_kept:
            return f"{rates}: more forgotten than {MARGIN:g} points."
        if self.is_shown:
            return f"{rates}: kept."
        return f"{rates}: within {MARGIN:g} points, but too few scenes to be sure."


def require_measurable(base: str | Path) -> None:
    """Check that the embedded cell can try this policy.

    Raises:
        UnusableInputError: it can't.
    """
    if not load_policy(base).needs_scene:
        raise UnusableInputError(
            f"--retention rolls out in the embedded cell, and policy {base} isn't fed by its "
            "tracker. Leave it out, and evaluate both policies where they can be."
        )


def measure(
    base: str | Path,
    tuned: Path,
    n: int,
    folder: Path,
    *,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Retention:
    """Roll both out on the same scenes of the base's cell and write OUT/retention.json."""
    task, robot = cell_of(base) or (CellSpec.task, CellSpec.robot)
    rates = [
        evaluate(policy, n, seed=SEEDS, workers=workers, progress=progress, task=task, robot=robot)
        for policy in (base, tuned)
    ]
    change = paired_difference(rates[0].outcomes, rates[1].outcomes)
    kept = Retention(rates[0].rate, rates[1].rate, change)
    write_json(folder / "retention.json", {"schema": SCHEMA, **as_json(kept)})
    return kept


def as_json(kept: Retention) -> dict[str, Any]:
    """Return it for files and `--json`."""
    return {
        **asdict(kept),
        "margin": MARGIN,
        "kept": kept.is_kept,
        "shown": kept.is_shown,
        "message": kept.message(),
    }
