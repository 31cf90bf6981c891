"""The rules of the two stages that compare policies: a pure function of the outcomes so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gaploop.core.suite import Rules, Suite
from gaploop.core.types import FloatArray
from gaploop.finetune.evaluation import Rate, wilson
from gaploop.finetune.gate.design import Boundaries, Design, comparison
from gaploop.finetune.gate.evidence import (
    difference_interval,
    discordance,
    log_evidence,
    rate_evidence,
)

SIM, HARDWARE, CANARY, FULL = "sim", "hardware", "canary", "full"
STAGES: Final = (SIM, HARDWARE, CANARY, FULL)
SAFETY_EXCESS: Final = 0.05
"""Excess of safety events per attempt that the stake on "less safe" is best for."""


class Answer(StrEnum):
    """How a stage ended, or that it hasn't yet."""

    PASSED = "passed"
    FAILED = "failed"
    OPEN = "open"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Outcomes:
    """What came of the complete rounds of a stage; all of shape (rounds, tasks, 2).

    The last axis is baseline, candidate.
    """

    success: npt.NDArray[np.bool_]
    safety: npt.NDArray[np.bool_]

    @property
    def rounds(self) -> int:
        """How many rounds are complete."""
        return len(self.success)

    def first(self, rounds: int) -> Outcomes:
        """Return the outcomes of the first rounds."""
        return Outcomes(self.success[:rounds], self.safety[:rounds])

    def differences(self, tasks: Sequence[int] | slice = slice(None)) -> FloatArray:
        """Return candidate minus baseline for some tasks, shape (rounds, tasks)."""
        chosen = self.success[:, tasks].astype(np.float64)
        return chosen[..., 1] - chosen[..., 0]


@dataclass(frozen=True)
class Track:
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
class StageResult:
    """What a stage found.

    Attributes:
        answer: passed, failed, open (more attempts are wanted) or undecided (no more allowed).
        says: why, in words.
        pairs: pairs of attempts; episodes of the candidate in canary and full.
        rates: name of the side or task to success; Wilson intervals, which describe only.
        difference: candidate minus baseline, with an interval that holds at all rounds together.
        tracks: the evidence.
    """

    stage: str
    answer: Answer
    says: str
    pairs: int = 0
    rates: dict[str, Rate] = field(default_factory=dict)
    difference: tuple[float, float, float] | None = None
    tracks: tuple[Track, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return what `gate.json` holds."""
        return asdict(self)


def judge_sim(outcomes: Outcomes, suite: Suite, tasks: Sequence[str]) -> StageResult:
    """Judge the regression in nominal simulation: not worse by the retention margin or more."""
    rules, x = suite.rules, outcomes.differences()
    margin, bound = rules.retention_margin, math.log(1 / rules.alpha)
    kept, lost = _margin_evidence(x, margin)
    most = math.ceil(rules.sim_pairs / len(tasks))
    end, answer = _ended([lost >= bound], [kept >= bound], outcomes.rounds, most)
    tracks = (
        _track(f"loses less than {margin:.0%} in simulation", True, kept[:end], bound),
        _track(f"loses more than {margin:.0%} in simulation", False, lost[:end], bound),
    )
    shown = [track.says for track in tracks if track.crossed]
    words = f"it {shown[0]}" if shown else f"not shown to lose less than {margin:.0%}"
    return _result(SIM, answer, words, outcomes.first(end), rules, tasks, tracks)


def judge_hardware(outcomes: Outcomes, suite: Suite, design: Design) -> StageResult:
    """Judge the comparison on the station.

    Passed where the candidate is better by more than the design's margin, not inferior in any
    group, and succeeds often enough in each task. Failed where it gains too little, is inferior
    somewhere, succeeds too rarely or is less safe; the first that is shown decides.
    """
    rules, bounds = suite.rules, Boundaries.of(suite.rules)
    better, futile = comparison(outcomes.differences(), rules, design.margin)
    superior = np.maximum.accumulate(better) >= bounds.better
    no, tracks_no = _against(outcomes, suite)
    yes, tracks_ni = _not_inferior(outcomes, suite)
    rejects = [(futile >= bounds.futile) & ~superior, *no]
    promotes = [superior, *yes, _often_enough(outcomes, suite)]
    most = math.ceil(design.max_pairs / len(suite.tasks))
    end, answer = _ended(rejects, promotes, outcomes.rounds, most)
    over = f"better by more than {design.margin:.1%}" if design.margin else "better"
    tracks = (
        _track(f"is {over}", True, better, bounds.better),
        _track(f"gains less than {rules.gain:.0%}", False, futile, bounds.futile),
        *tracks_ni,
        *tracks_no,
    )
    tracks = tuple(_cut(track, end) for track in tracks)
    seen = outcomes.first(end)
    names = [task.name for task in suite.tasks]
    words = _hardware_words(answer, tracks, seen, suite)
    return _result(HARDWARE, answer, words, seen, rules, names, tracks)


def _not_inferior(outcomes: Outcomes, suite: Suite) -> tuple[list[Any], list[Track]]:
    """Return what has to be shown of each group. All have to be, so none needs a correction."""
    margin, bound = suite.rules.non_inferiority_margin, math.log(1 / suite.rules.alpha)
    found, tracks = [], []
    for group, chosen in _groups(suite):
        kept, _ = _margin_evidence(outcomes.differences(chosen), margin)
        found.append(np.maximum.accumulate(kept) >= bound)
        tracks.append(_track(f"loses less than {margin:.0%} in {group}", True, kept, bound))
    return found, tracks


def _against(outcomes: Outcomes, suite: Suite) -> tuple[list[Any], list[Track]]:
    """Return what rejects the candidate by itself; any would, so alpha is shared (Bonferroni)."""
    rules, groups = suite.rules, _groups(suite)
    count = len(groups) + len(suite.tasks) + 1
    bound = math.log(count / rules.alpha)
    tracks = []
    for group, chosen in groups:
        margin = rules.non_inferiority_margin
        _, lost = _margin_evidence(outcomes.differences(chosen), margin)
        tracks.append(_track(f"loses more than {margin:.0%} in {group}", False, lost, bound))
    for n, task in enumerate(suite.tasks):
        if task.min_pass_rate > 0:
            says = f"succeeds in under {task.min_pass_rate:.0%} of {task.name}"
            rare = _rarer(outcomes.success[:, n, 1], task.min_pass_rate)
            tracks.append(_track(says, False, rare, bound))
    unsafe = outcomes.safety.astype(np.float64)
    excess = log_evidence(unsafe[..., 1] - unsafe[..., 0], 0.0, SAFETY_EXCESS, SAFETY_EXCESS)
    tracks.append(_track("trips the safety filter more often", False, excess, bound))
    return [np.array(t.log10) >= t.boundary for t in tracks], tracks


def _rarer(success: npt.NDArray[np.bool_], rate: float) -> FloatArray:
    """Return the evidence that success is rarer than `rate`: that failure is more frequent."""
    if rate >= 1:
        never: FloatArray = np.where(np.logical_and.accumulate(success), 0.0, math.inf)
        return never
    failure = 1 - rate
    return rate_evidence(
        (~success).astype(np.float64), failure, min(failure + 0.15, 0.95 + failure / 20)
    )


def _often_enough(outcomes: Outcomes, suite: Suite) -> Any:
    count = np.arange(1, outcomes.rounds + 1)[:, None]
    rates = outcomes.success[..., 1].cumsum(0) / count
    return (rates >= np.array([task.min_pass_rate for task in suite.tasks])).all(-1)


def _groups(suite: Suite) -> list[tuple[str, list[int]]]:
    """Return each group with its tasks; a suite of a single group is judged as a whole only."""
    if len(suite.groups) == 1:
        return []
    tasks = list(enumerate(suite.tasks))
    return [(g, [n for n, task in tasks if task.group == g]) for g in suite.groups]


def _margin_evidence(x: FloatArray, margin: float) -> tuple[FloatArray, FloatArray]:
    """Return the evidence that the loss is under `margin`, and that it is over it."""
    spread = 0.3 + margin**2  # twice a success rate of 0.8 times 0.2; data soon outweighs it
    kept = log_evidence(x, -margin, 0.0, spread)
    lost = log_evidence(-x, margin, 2 * margin, spread)
    return kept, lost


def _ended(
    rejects: Sequence[Any], promotes: Sequence[Any], rounds: int, most: int
) -> tuple[int, Answer]:
    """Return the round at which a stage ended, or the last one, and its answer."""
    no = np.logical_or.reduce(rejects) if rejects else np.zeros(rounds, bool)
    yes = np.logical_and.reduce(promotes)
    decided = (no | yes)[:most]
    if decided.any():
        at = int(decided.argmax())
        return at + 1, Answer.FAILED if no[at] else Answer.PASSED
    return min(rounds, most), Answer.UNDECIDED if rounds >= most else Answer.OPEN


def _track(says: str, promotes: bool, log_e: FloatArray, bound: float) -> Track:
    powers = tuple(float(e) for e in np.minimum(log_e, 700.0) / math.log(10))
    return Track(says, promotes, powers, bound / math.log(10))


def _cut(track: Track, rounds: int) -> Track:
    return replace(track, log10=track.log10[:rounds])


def _hardware_words(
    answer: Answer, tracks: Sequence[Track], outcomes: Outcomes, suite: Suite
) -> str:
    against = [track.says for track in tracks if not track.promotes and track.crossed]
    missing = [track.says for track in tracks if track.promotes and not track.crossed]
    rates = outcomes.success[..., 1].mean(0) if outcomes.rounds else np.zeros(len(suite.tasks))
    rare = [
        f"succeeds in {rate:.0%} of {task.name}, wanted {task.min_pass_rate:.0%}"
        for task, rate in zip(suite.tasks, rates, strict=True)
        if rate < task.min_pass_rate
    ]
    if answer is Answer.FAILED:
        return "the candidate " + "; ".join(against)
    if answer is Answer.PASSED:
        return "the candidate " + "; ".join(t.says for t in tracks if t.promotes)
    unshown = [f"not shown that it {says}" for says in missing]
    return "; ".join([*unshown, *(f"it {r}" for r in rare)])


def _result(
    stage: str, answer: Answer, words: str, outcomes: Outcomes, rules: Rules,
    names: Sequence[str], tracks: Sequence[Track],
) -> StageResult:  # fmt: skip
    pairs = outcomes.rounds * len(names)
    if not pairs:
        return StageResult(stage, answer, "no round is complete yet")
    rates = {
        side: wilson(int(outcomes.success[..., n].sum()), pairs)
        for n, side in enumerate(("baseline", "candidate"))
    }
    if len(names) > 1:
        for t, name in enumerate(names):
            for n, side in enumerate(("baseline", "candidate")):
                won = int(outcomes.success[:, t, n].sum())
                rates[f"{name}: {side}"] = wilson(won, outcomes.rounds)
    x = outcomes.differences()
    spread = discordance(rules.baseline_rate, rules.baseline_rate + rules.gain)
    low, high = -1.0, 1.0
    if answer is not Answer.OPEN:  # a search: only where it is shown
        low, high = difference_interval(x, rules.alpha, spread)
    difference = float(x.mean()), low, high
    return StageResult(stage, answer, words, pairs, rates, difference, tuple(tracks))
