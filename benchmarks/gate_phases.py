"""What a gate saves, and loses, that gives up where the declared phase isn't mended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json

if TYPE_CHECKING:
    import numpy as np

    from benchmarks.gate_tests import Flags, Numbers
    from gaploop.core.suite import Rules

DRAWS: Final = 2000
BASELINE: Final = "baseline"
"""Folder, in that of --data, of the baseline's evaluation; the others hold candidates'."""
BASE: Final = (0.96, 0.83, 0.95, 0.94, 0.984)
"""Share that gets past each phase, of those that reached it: success 70 %, most fail in the grasp.
"""
USELESS: Final = {
    "as before": BASE,
    "grasps more often, loses more later": (0.96, 0.95, 0.83, 0.94, 0.984),
    "approaches and places better, grasps worse": (0.99, 0.77, 0.95, 0.983, 0.984),
}
"""Candidates that succeed as often as the baseline."""
USEFUL: Final = {
    "+10: grasps more often": (0.96, 0.949, 0.95, 0.94, 0.984),
    "+15: grasps more often": (0.98, 0.988, 0.95, 0.94, 0.984),
    "+10: every phase a little better": (0.987, 0.861, 0.981, 0.971, 0.995),
    "+10: all but the grasp better": (0.985, 0.83, 0.995, 0.99, 0.995),
}
LABELS: Final = ((0.1, 0.0), (0.2, 0.0), (0.3, 0.0), (0.0, 0.1), (0.0, 0.3))
"""Shares of failures whose phase is told wrongly, and isn't told."""


@dataclass(frozen=True)
class PhaseRow:
    """What a gate did without and with a declared phase, in the same comparisons.

    Attributes:
        attempts: without and with, on average.
        promoted: shares of the comparisons, likewise.
        gave_up: share that ended earlier for want of the declared fix.
    """

    candidate: str
    declared: str
    labels: str
    attempts: tuple[float, float]
    promoted: tuple[float, float]
    gave_up: float


def measure_phases(data: Path | None, seed: int) -> list[PhaseRow]:
    """Return what a declaration does for made-up candidates, or for those of `data`."""
    import numpy as np

    rng = np.random.default_rng([seed, 6])
    return list(_made_up(rng) if data is None else _recorded(data, rng))


def _made_up(rng: np.random.Generator) -> Iterator[PhaseRow]:
    from gaploop.core.suite import Rules

    rules = Rules(fixes_phase="grasp")
    first, fixed = next(iter(USELESS)), next(iter(USEFUL))
    for name, shares in (USELESS | USEFUL).items():
        for wrong, untold in ((0.0, 0.0), *(LABELS if name in (first, fixed) else ())):

            def draw(rounds: int, shares: tuple[float, ...] = shares) -> Numbers:
                return _reached((BASE, shares), rounds, rng)

            yield _compared(name, rules, draw, rng, wrong, untold)


def _recorded(data: Path, rng: np.random.Generator) -> Iterator[PhaseRow]:
    """Yield the same for evaluations on the same scenes, drawn anew with pairs kept together.

    The baseline is set against itself, too: the candidate that changes nothing.
    """
    import numpy as np

    from gaploop.core.suite import Rules
    from gaploop.finetune.evaluation import Evaluation
    from gaploop.finetune.gate.judge import place_of

    held = {path.parent.name: path for path in sorted(data.glob("*/evaluation.json"))}
    if BASELINE not in held or len(held) < 2:
        raise UnusableInputError(
            f"{data} holds no {BASELINE}/evaluation.json beside another: write them with gaploop "
            f"evaluate --output_dir={data / BASELINE}"
        )
    found = {name: Evaluation.from_json(read_json(path)) for name, path in held.items()}
    far = {
        name: {r.seed: place_of(r.success, r.phase) for r in one.outcomes}
        for name, one in found.items()
    }
    base = found[BASELINE]
    for name, one in found.items():
        scenes = sorted(far[BASELINE].keys() & far[name])
        pairs = np.array([[far[BASELINE][s], far[name][s]] for s in scenes])
        rate = min(max(base.rate, 0.05), 0.75)
        for declared in ("approach", "grasp", "place"):
            rules = Rules(gain=0.2, retrain_sd=0.0, baseline_rate=rate, fixes_phase=declared)

            def draw(rounds: int, pairs: Numbers = pairs, same: bool = one is base) -> Numbers:
                at = rng.integers(len(pairs), size=(DRAWS, rounds, 2))
                if not same:  # else a policy against itself, on other scenes
                    at[..., 1] = at[..., 0]
                picked: Numbers = pairs[at, (0, 1)]
                return picked

            words = f"{name}, {base.rate:.0%} → {one.rate:.0%}, {len(scenes)} scenes"
            yield _compared(words, rules, draw, rng)


def _compared(
    name: str, rules: Rules, draw: Callable[[int], Numbers], rng: np.random.Generator,
    wrong: float = 0.0, untold: float = 0.0,
) -> PhaseRow:  # fmt: skip
    import numpy as np

    from gaploop.core.suite import Suite, SuiteTask
    from gaploop.finetune.gate.evidence import make_design
    from gaploop.finetune.gate.judge import Outcomes, promotions

    design = make_design(rules)
    far = draw(design.max_pairs)[:, :, None]
    success: Flags = far == len(BASE)
    outcomes = Outcomes(success, np.zeros_like(success), _told(far, wrong, untold, rng))
    suite = Suite("made up", (SuiteTask("task", min_pass_rate=0.0),), rules)
    plain = replace(suite, rules=replace(rules, fixes_phase=""))
    (one, before), (other, after) = (promotions(outcomes, s, design.margin) for s in (plain, suite))
    labels = f"{wrong:.0%} wrong" if wrong else f"{untold:.0%} not told" if untold else "right"
    return PhaseRow(
        name, rules.fixes_phase, labels,
        (2 * float(before.mean()), 2 * float(after.mean())),
        (float(one.mean()), float(other.mean())),
        float((after < before).mean()),
    )  # fmt: skip


def _reached(
    shares: tuple[tuple[float, ...], ...], rounds: int, rng: np.random.Generator
) -> Numbers:
    """Return how far made-up attempts came, as of `Outcomes.phase`, shape (DRAWS, rounds, 2)."""
    import numpy as np

    # The place of the first phase that one isn't past, from a single draw.
    past = np.cumprod(shares, axis=1)
    lot = rng.random((DRAWS, rounds, 2))
    return np.stack(
        [(lot[..., n, None] < past[n]).sum(-1).astype(float) for n in range(2)], axis=-1
    )


def _told(far: Numbers, wrong: float, untold: float, rng: np.random.Generator) -> Numbers:
    """Return phases as labels have them: of failures some another one, some none."""
    import numpy as np

    failed, count = far < len(BASE), len(BASE)
    other = (far + rng.integers(1, count, far.shape)) % count
    told: Numbers = np.where(failed & (rng.random(far.shape) < wrong), other, far)
    return np.where(failed & (rng.random(far.shape) < untold), np.nan, told)


def phases_table(rows: Sequence[PhaseRow]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "| candidate | declared | phases told | attempts, nothing declared | declared | fewer "
        "| promoted, nothing declared | declared | gave up early |",
        "|---" * 9 + "|",
    ]
    for row in rows:
        (one, other), (was, now) = row.attempts, row.promoted
        cells = [row.candidate, row.declared, row.labels, f"{one:.0f}", f"{other:.0f}"]
        cells += [f"{1 - other / one:.0%}", f"{was:.1%}", f"{now:.1%}", f"{row.gave_up:.0%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
