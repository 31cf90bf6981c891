"""What attempts may show for a candidate and against it: every statement with its evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gaploop.core.suite import Suite
from gaploop.core.types import FloatArray
from gaploop.finetune.gate.design import Boundaries, comparison
from gaploop.finetune.gate.evidence import log_evidence, rate_evidence

SAFETY_EXCESS: Final = 0.05
"""Excess of safety events per attempt that the stake on "less safe" is best for."""


@dataclass(frozen=True)
class Outcomes:
    """What came of the complete rounds of a stage; all of shape (..., rounds, tasks, 2).

    The last axis is baseline, candidate; those before the rounds are of simulated comparisons.
    """

    success: npt.NDArray[np.bool_]
    safety: npt.NDArray[np.bool_]

    @property
    def rounds(self) -> int:
        """How many rounds are complete."""
        return self.success.shape[-3]

    def first(self, rounds: int) -> Outcomes:
        """Return the outcomes of the first rounds."""
        return Outcomes(self.success[..., :rounds, :, :], self.safety[..., :rounds, :, :])

    def differences(self, tasks: Sequence[int] | slice = slice(None)) -> FloatArray:
        """Return candidate minus baseline for some tasks, shape (..., rounds, tasks)."""
        chosen = self.success[..., tasks, :].astype(np.float64)
        return chosen[..., 1] - chosen[..., 0]


@dataclass(frozen=True)
class EvidenceTrack:
    """Evidence for one statement over the rounds.

    Attributes:
        says: what is shown once it crosses.
        promotes: it speaks for the candidate.
        log10: evidence after each round, as powers of ten.
        boundary: where it counts as shown, likewise.
    """

    says: str
    promotes: bool
    log10: tuple[float, ...]
    boundary: float

    @property
    def crossed(self) -> int | None:
        """The first round, from 1, at which it was shown."""
        return next((n for n, e in enumerate(self.log10, 1) if e >= self.boundary), None)


@dataclass(frozen=True)
class GateStatement:
    """Something that attempts may show.

    Attributes:
        log_e: logs of the evidence after each round, shape (..., rounds).
        bound: where it counts as shown, likewise.
    """

    says: str
    promotes: bool
    log_e: FloatArray
    bound: float

    @property
    def shown(self) -> npt.NDArray[np.bool_]:
        """Whether it was shown by each round; what was shown stays shown."""
        by: npt.NDArray[np.bool_] = np.maximum.accumulate(self.log_e, axis=-1) >= self.bound
        return by

    def track(self, rounds: int) -> EvidenceTrack:
        """Return it for a single comparison, as far as it went."""
        powers = tuple(float(e) for e in np.minimum(self.log_e[:rounds], 700.0) / math.log(10))
        return EvidenceTrack(self.says, self.promotes, powers, self.bound / math.log(10))


def statements(outcomes: Outcomes, suite: Suite, margin: float) -> list[GateStatement]:
    """Return all that the comparison may show: superiority and futility first."""
    rules, bounds = suite.rules, Boundaries.of(suite.rules)
    better, futile = comparison(outcomes.differences(), rules, margin)
    over = f"better by more than {margin:.1%}" if margin else "better"
    return [
        GateStatement(f"is {over}", True, better, bounds.better),
        GateStatement(f"gains less than {rules.gain:.0%}", False, futile, bounds.futile),
        *_not_inferior(outcomes, suite),
        *_against(outcomes, suite),
    ]


def reached(
    stated: Sequence[GateStatement], outcomes: Outcomes, suite: Suite
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return whether the comparison rejects, and promotes, after each round."""
    superior, futile = stated[:2]
    no = (futile.log_e >= futile.bound) & ~superior.shown
    yes = _often_enough(outcomes, suite)
    for statement in (superior, *stated[2:]):
        if statement.promotes:
            yes = yes & statement.shown
        else:
            no = no | statement.shown
    return no, yes


def _not_inferior(outcomes: Outcomes, suite: Suite) -> list[GateStatement]:
    """Return what has to be shown of each group. All have to be, so none needs a correction."""
    margin, bound = suite.rules.non_inferiority_margin, math.log(1 / suite.rules.alpha)
    return [
        GateStatement(
            f"loses less than {margin:.0%} in {group}", True,
            margin_evidence(outcomes.differences(chosen), margin)[0], bound,
        )
        for group, chosen in _groups(suite)
    ]  # fmt: skip


def _against(outcomes: Outcomes, suite: Suite) -> list[GateStatement]:
    """Return what rejects the candidate by itself; any would, so alpha is shared (Bonferroni)."""
    rules, groups = suite.rules, _groups(suite)
    bound = math.log((len(groups) + len(suite.tasks) + 1) / rules.alpha)
    found = []
    for group, chosen in groups:
        margin = rules.non_inferiority_margin
        _, lost = margin_evidence(outcomes.differences(chosen), margin)
        found.append(GateStatement(f"loses more than {margin:.0%} in {group}", False, lost, bound))
    for n, task in enumerate(suite.tasks):
        if task.min_pass_rate > 0:
            says = f"succeeds in under {task.min_pass_rate:.0%} of {task.name}"
            rare = _rarer(outcomes.success[..., n, 1], task.min_pass_rate)
            found.append(GateStatement(says, False, rare, bound))
    unsafe = outcomes.safety.astype(np.float64)
    excess = log_evidence(unsafe[..., 1] - unsafe[..., 0], 0.0, SAFETY_EXCESS, SAFETY_EXCESS)
    return [*found, GateStatement("trips the safety filter more often", False, excess, bound)]


def _rarer(success: npt.NDArray[np.bool_], rate: float) -> FloatArray:
    """Return the evidence that success is rarer than `rate`: that failure is more frequent."""
    if rate >= 1:
        never: FloatArray = np.where(np.logical_and.accumulate(success, -1), 0.0, math.inf)
        return never
    failure = 1 - rate
    return rate_evidence(
        (~success).astype(np.float64), failure, min(failure + 0.15, 0.95 + failure / 20)
    )


def _often_enough(outcomes: Outcomes, suite: Suite) -> npt.NDArray[np.bool_]:
    count = np.arange(1, outcomes.rounds + 1)[:, None]
    rates = outcomes.success[..., 1].cumsum(-2) / count
    wanted = np.array([task.min_pass_rate for task in suite.tasks])
    enough: npt.NDArray[np.bool_] = (rates >= wanted).all(-1)
    return enough


def _groups(suite: Suite) -> list[tuple[str, list[int]]]:
    """Return each group with its tasks; a suite of a single group is judged as a whole only."""
    if len(suite.groups) == 1:
        return []
    tasks = list(enumerate(suite.tasks))
    return [(g, [n for n, task in tasks if task.group == g]) for g in suite.groups]


def margin_evidence(x: FloatArray, margin: float) -> tuple[FloatArray, FloatArray]:
    """Return the evidence that the loss is under `margin`, and that it is over it."""
    spread = 0.3 + margin**2  # twice a success rate of 0.8 times 0.2; data soon outweighs it
    kept = log_evidence(x, -margin, 0.0, spread)
    lost = log_evidence(-x, margin, 2 * margin, spread)
    return kept, lost
