"""The gate's rules: what attempts show for a candidate and against it, and what follows.

Three pure functions of outcomes: `judge_sim` and `judge_hardware`, which may be asked after every
round, and `compare`, a single look at two evaluations of a fixed size. `power_curve` says before
the first attempt how often `judge_hardware` will promote.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.core.suite import Rules, Suite
from gaploop.core.vocabulary import Domain, Phase
from gaploop.finetune.evaluation import (
    Difference,
    Evaluation,
    Rate,
    paired_difference,
    wilson,
)
from gaploop.finetune.gate.evidence import (
    GateDesign,
    PowerPoint,
    difference_interval,
    discordance,
    log_evidence,
    rate_evidence,
)

SAFETY_EXCESS: Final = 0.05
"""Excess of safety events per attempt that the stake on "less safe" is best for."""
PLANNED: Final = 100.0
"""The plan counts as this many pairs when stakes are adapted: 20 took 4 % more pairs to find the
planned gain, infinitely many 1 % fewer but far more where the plan is off."""

DRAWS: Final = 500
"""Simulated comparisons per point of the power curve: ±4 points at 95 %."""
CURVE: Final = (-0.1, 0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
"""Differences in success at which power is printed."""
ALPHA: Final = 0.05
RETENTION_MARGIN: Final = 0.10
"""Largest loss of nominal success, as a fraction of rollouts, that an improvement may cost."""
VERDICT: Final = "gaploop.verdict.v1"
SIM, HARDWARE, CANARY, FULL = "sim", "hardware", "canary", "full"
STAGES: Final = (SIM, HARDWARE, CANARY, FULL)


def place_of(success: bool, phase: str) -> float:
    """Return how far an attempt came, as of `Outcomes.phase`; `phase` is that of its failure."""
    known = {name.value: float(n) for n, name in enumerate(Phase)}
    return float(len(known)) if success else known.get(phase, math.nan)


@dataclass(frozen=True)
class Outcomes:
    """What came of the complete rounds of a stage; all of shape (..., rounds, tasks, 2).

    The last axis is baseline, candidate; those before the rounds are of simulated comparisons.

    Attributes:
        phase: place in `Phase` of the phase in which an attempt failed; after the last where it
            succeeded, NaN where nobody said. None where no phase is asked for.
    """

    success: npt.NDArray[np.bool_]
    safety: npt.NDArray[np.bool_]
    phase: FloatArray | None = None

    @property
    def rounds(self) -> int:
        """How many rounds are complete."""
        return self.success.shape[-3]

    def first(self, rounds: int) -> "Outcomes":
        """Return the outcomes of the first rounds."""
        phase = None if self.phase is None else self.phase[..., :rounds, :, :]
        return Outcomes(self.success[..., :rounds, :, :], self.safety[..., :rounds, :, :], phase)

    def differences(self, tasks: Sequence[int] | slice = slice(None)) -> FloatArray:
        """Return candidate minus baseline for some tasks, shape (..., rounds, tasks)."""
        chosen = self.success[..., tasks, :].astype(np.float64)
        return chosen[..., 1] - chosen[..., 0]

    def got_past(self, phase: str) -> FloatArray:
        """Return the same of getting past a phase; what isn't known speaks for the candidate."""
        far = np.full(self.success.shape, np.nan) if self.phase is None else self.phase
        past = np.where(np.isnan(far), (0, 1), far > list(Phase).index(Phase(phase)))
        return np.asarray(past[..., 1] - past[..., 0], dtype=np.float64)


@dataclass(frozen=True)
class EvidenceTrack:
    """Evidence for one statement over the rounds.

    Attributes:
        message: what is shown once it crosses.
        promotes: it speaks for the candidate.
        log10: evidence after each round, as powers of ten.
        boundary: where it counts as shown, likewise.
        ends_only: it ends the comparison without an answer, and rejects nobody.
    """

    message: str
    promotes: bool
    log10: tuple[float, ...]
    boundary: float
    ends_only: bool = False

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

    message: str
    promotes: bool
    log_e: FloatArray
    bound: float
    ends_only: bool = False

    @property
    def shown(self) -> npt.NDArray[np.bool_]:
        """Whether it was shown by each round; what was shown stays shown."""
        by: npt.NDArray[np.bool_] = np.maximum.accumulate(self.log_e, axis=-1) >= self.bound
        return by

    def track(self, rounds: int) -> EvidenceTrack:
        """Return it for a single comparison, as far as it went."""
        powers = tuple(float(e) for e in np.minimum(self.log_e[:rounds], 700.0) / math.log(10))
        bound = self.bound / math.log(10)
        return EvidenceTrack(self.message, self.promotes, powers, bound, self.ends_only)


def comparison(x: FloatArray, rules: Rules, margin: float) -> tuple[FloatArray, FloatArray]:
    """Return the evidence that the candidate is better, and that it doesn't gain enough.

    Args:
        x: candidate minus baseline, each -1, 0 or 1, shape (..., rounds, kinds).

    Returns:
        logs after every round, each of shape (..., rounds).
    """
    spread = discordance(rules.baseline_rate, rules.baseline_rate + rules.gain)
    better = log_evidence(x, margin, rules.gain, spread, prior=PLANNED)
    x = -np.asarray(x)
    futile = log_evidence(x, -rules.gain, -margin, spread, prior=PLANNED)
    return better, futile


def statements(outcomes: Outcomes, suite: Suite, margin: float) -> list[GateStatement]:
    """Return all that the comparison may show: superiority and futility first.

    Last where a phase is declared: that the candidate doesn't get past it more often by `gain`, as
    it has to if success is to rise by that for the declared reason. It ends the comparison early,
    so it can cost a promotion but never makes one, whatever the phases that were told are worth.
    """
    rules, missed = suite.rules, 1 - suite.rules.power
    better, futile = comparison(outcomes.differences(), rules, margin)
    over = f"better by more than {margin:.1%}" if margin else "better"
    found = [
        GateStatement(f"is {over}", True, better, math.log(1 / rules.alpha)),
        GateStatement(f"gains less than {rules.gain:.0%}", False, futile, math.log(1 / missed)),
    ]
    tasks, allowed = list(enumerate(suite.tasks)), rules.non_inferiority_margin
    groups = [(g, [n for n, task in tasks if task.group == g]) for g in suite.groups]
    if len(groups) == 1:  # judged as a whole only
        groups = []
    in_groups = [(g, *margin_evidence(outcomes.differences(n), allowed)) for g, n in groups]
    # Every group has to be shown not to lose, so none needs a correction.
    bound = math.log(1 / rules.alpha)
    for group, kept, _ in in_groups:
        found.append(GateStatement(f"loses less than {allowed:.0%} in {group}", True, kept, bound))
    # Any of these rejects the candidate by itself, so they share alpha (Bonferroni).
    bound = math.log((len(groups) + len(tasks) + 1) / rules.alpha)
    for group, _, lost in in_groups:
        found.append(GateStatement(f"loses more than {allowed:.0%} in {group}", False, lost, bound))
    for n, task in tasks:
        if task.min_pass_rate <= 0:
            continue
        # That success is rarer: that failure is more frequent.
        won, failure = outcomes.success[..., n, 1], 1 - task.min_pass_rate
        if failure <= 0:
            rare: FloatArray = np.where(np.logical_and.accumulate(won, -1), 0.0, math.inf)
        else:
            rare = rate_evidence(~won, failure, min(failure + 0.15, 0.95 + failure / 20))
        message = f"succeeds in under {task.min_pass_rate:.0%} of {task.name}"
        found.append(GateStatement(message, False, rare, bound))
    unsafe = outcomes.safety.astype(np.float64)
    excess = log_evidence(unsafe[..., 1] - unsafe[..., 0], 0.0, SAFETY_EXCESS, SAFETY_EXCESS)
    found.append(GateStatement("trips the safety filter more often", False, excess, bound))
    if rules.fixes_phase:
        _, unmended = comparison(outcomes.got_past(rules.fixes_phase), rules, margin)
        words = f"gains less than {rules.gain:.0%} in getting past {rules.fixes_phase}"
        found.append(GateStatement(words, False, unmended, math.log(1 / missed), ends_only=True))
    return found


def reached(
    stated: Sequence[GateStatement], outcomes: Outcomes, suite: Suite
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return whether the comparison rejects, promotes, or ends otherwise, after each round."""
    superior, futile = stated[:2]
    no = (futile.log_e >= futile.bound) & ~superior.shown
    count = np.arange(1, outcomes.rounds + 1)[:, None]
    rates = outcomes.success[..., 1].cumsum(-2) / count
    wanted = np.array([task.min_pass_rate for task in suite.tasks])
    yes: npt.NDArray[np.bool_] = (rates >= wanted).all(-1)
    ends = np.zeros_like(no)
    for statement in (superior, *stated[2:]):
        if statement.promotes:
            yes = yes & statement.shown
        elif statement.ends_only:
            ends = statement.shown & ~superior.shown
        else:
            no = no | statement.shown
    return no, yes, ends


def margin_evidence(x: FloatArray, margin: float) -> tuple[FloatArray, FloatArray]:
    """Return the evidence that the loss is under `margin`, and that it is over it."""
    spread = 0.3 + margin**2  # twice a success rate of 0.8 times 0.2; data soon outweighs it
    kept = log_evidence(x, -margin, 0.0, spread)
    lost = log_evidence(-x, margin, 2 * margin, spread)
    return kept, lost


class StageAnswer(StrEnum):
    """How a stage ended, or that it hasn't yet."""

    PASSED = "passed"
    FAILED = "failed"
    OPEN = "open"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class StageResult:
    """What a stage found.

    Attributes:
        answer: passed, failed, open (more attempts are wanted) or undecided (no more allowed).
        pairs: pairs of attempts; episodes of the candidate in canary and full.
        rates: name of the side or task to success; Wilson intervals, which describe only.
        difference: candidate minus baseline, with an interval that holds at all rounds together.
        repeats: side to tries that the operator said didn't count.
        taken_back: side to answers that the operator took back and gave anew.
    """

    stage: str
    answer: StageAnswer
    message: str
    pairs: int = 0
    rates: dict[str, Rate] = field(default_factory=dict)
    difference: tuple[float, float, float] | None = None
    tracks: tuple[EvidenceTrack, ...] = ()
    repeats: dict[str, int] = field(default_factory=dict)
    taken_back: dict[str, int] = field(default_factory=dict)


def judge_sim(outcomes: Outcomes, suite: Suite, tasks: Sequence[str]) -> StageResult:
    """Judge the regression in nominal simulation: not worse by the retention margin or more."""
    rules, x = suite.rules, outcomes.differences()
    margin, bound = rules.retention_margin, math.log(1 / rules.alpha)
    kept, lost = margin_evidence(x, margin)
    stated = (
        GateStatement(f"loses less than {margin:.0%} in simulation", True, kept, bound),
        GateStatement(f"loses more than {margin:.0%} in simulation", False, lost, bound),
    )
    most = math.ceil(rules.sim_pairs / len(tasks))
    end, answer = _ended(lost >= bound, kept >= bound, outcomes.rounds, most)
    tracks = tuple(statement.track(end) for statement in stated)
    shown = [track.message for track in tracks if track.crossed]
    words = f"it {shown[0]}" if shown else f"not shown to lose less than {margin:.0%}"
    return _result(SIM, answer, words, outcomes.first(end), rules, tasks, tracks)


def judge_hardware(outcomes: Outcomes, suite: Suite, design: GateDesign) -> StageResult:
    """Judge the comparison on the station.

    Passed where the candidate is better by more than the design's margin, not inferior in any
    group, and succeeds often enough in each task. Failed where it gains too little, is inferior
    somewhere, succeeds too rarely or is less safe; the first that is shown decides. Undecided
    where no more pairs are allowed, or the declared fix isn't shown.
    """
    stated = statements(outcomes, suite, design.margin)
    no, yes, ends = reached(stated, outcomes, suite)
    most = math.ceil(design.max_pairs / len(suite.tasks))
    end, answer = _ended(no, yes, outcomes.rounds, most, ends)
    tracks = tuple(statement.track(end) for statement in stated)
    seen = outcomes.first(end)
    names = [task.name for task in suite.tasks]
    if answer is StageAnswer.FAILED:
        against = (t.message for t in tracks if not (t.promotes or t.ends_only) and t.crossed)
        words = "the candidate " + "; ".join(against)
    elif answer is StageAnswer.PASSED:
        words = "the candidate " + "; ".join(t.message for t in tracks if t.promotes)
    elif answer is StageAnswer.UNDECIDED and end < most:
        words = (
            f"declared fix not shown: the candidate {tracks[-1].message}. That rejects nobody: to "
            "go on by success alone, take fixes_phase out of the suite and give the same command"
        )
    else:
        rates = seen.success[..., 1].mean(0) if seen.rounds else np.zeros(len(suite.tasks))
        unshown = [
            f"not shown that it {t.message}" for t in tracks if t.promotes and not t.crossed
        ] + [
            f"it succeeds in {rate:.0%} of {task.name}, wanted {task.min_pass_rate:.0%}"
            for task, rate in zip(suite.tasks, rates, strict=True)
            if rate < task.min_pass_rate
        ]
        words = "; ".join(unshown)
    return _result(HARDWARE, answer, words, seen, suite.rules, names, tracks)


def _ended(
    no: npt.NDArray[np.bool_], yes: npt.NDArray[np.bool_], rounds: int, most: int,
    ends: npt.NDArray[np.bool_] | None = None,
) -> tuple[int, StageAnswer]:  # fmt: skip
    """Return the round at which a stage ended, or the last one, and its answer."""
    decided = (no | yes if ends is None else no | yes | ends)[:most]
    if decided.any():
        at = int(decided.argmax())
        passed = StageAnswer.PASSED if yes[at] else StageAnswer.UNDECIDED
        return at + 1, StageAnswer.FAILED if no[at] else passed
    return min(rounds, most), StageAnswer.UNDECIDED if rounds >= most else StageAnswer.OPEN


def _result(
    stage: str, answer: StageAnswer, words: str, outcomes: Outcomes, rules: Rules,
    names: Sequence[str], tracks: Sequence[EvidenceTrack],
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
    if answer is not StageAnswer.OPEN:  # a search: only where it is shown
        low, high = difference_interval(x, rules.alpha, spread)
    difference = float(x.mean()), low, high
    return StageResult(stage, answer, words, pairs, rates, difference, tuple(tracks))


def power_curve(
    suite: Suite, design: GateDesign, seed: int = 0, shown: float = 1.0
) -> tuple[PowerPoint, ...]:
    """Return what simulated comparisons come to, by true difference, of which `shown` is seen.

    Attempts are independent, every task has the baseline's expected success, the candidate
    differs in all of them alike, and nobody is ever unsafe.
    """
    base, kinds = suite.rules.baseline_rate, len(suite.tasks)
    rng, shape = np.random.default_rng([seed, 7]), (DRAWS, -(-design.max_pairs // kinds), kinds, 2)
    curve = []
    for difference in sorted({*CURVE, round(suite.rules.gain / shown, 9)}):
        seen_rate = base + shown * difference
        if 0 <= seen_rate <= 1:
            success = rng.random(shape, dtype=np.float32) < np.array([base, seen_rate])
            seen = Outcomes(success, np.zeros_like(success))
            passed, rounds = promotions(seen, suite, design.margin)
            pairs = float(rounds.mean()) * kinds
            curve.append(PowerPoint(difference, float(passed.mean()), pairs))
    return tuple(curve)


def promotions(outcomes: Outcomes, suite: Suite, margin: float) -> tuple[FloatArray, FloatArray]:
    """Return which comparisons pass by all the rules of `judge_hardware`, and their rounds.

    Args:
        outcomes: of many comparisons, success of shape (comparisons, rounds, tasks, 2).

    Returns:
        whether each passed, and after how many rounds it ended, each of shape (comparisons,).
    """
    no, yes, ends = reached(statements(outcomes, suite, margin), outcomes, suite)
    decided = no | yes | ends
    at = decided.argmax(-1)
    rows = np.arange(len(at))
    passed = yes[rows, at] & ~no[rows, at]
    rounds: FloatArray = np.where(decided[rows, at], at + 1.0, outcomes.rounds)
    return passed.astype(np.float64), rounds


class Answer(StrEnum):
    """What to do with the candidate."""

    PROMOTE = "promote"
    REJECT = "reject"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> int:
        """0 promote, 1 reject, 3 inconclusive."""
        return {Answer.PROMOTE: 0, Answer.REJECT: 1, Answer.INCONCLUSIVE: 3}[self]


@dataclass(frozen=True)
class Verdict:
    """The answer and what it rests on.

    Attributes:
        difference: candidate minus baseline on the target cell.
        retention: candidate minus baseline in nominal simulation, if it was measured.
    """

    verdict: Answer
    before: float
    after: float
    difference: Difference
    retention: Difference | None
    message: str
    domain: Domain
    evidence: str

    def to_json(self) -> dict[str, Any]:
        """Return what `verdict.json` holds."""
        return {"schema": VERDICT, **asdict(self)}


def compare(
    before: Evaluation,
    after: Evaluation,
    *,
    retention_before: Evaluation | None = None,
    retention_after: Evaluation | None = None,
    margin: float = RETENTION_MARGIN,
    alpha: float = ALPHA,
) -> Verdict:
    """Judge a candidate against a baseline.

    Promote where it is better on the target (exact McNemar p < `alpha`) and its loss in nominal
    simulation is not shown to exceed `margin`; reject where it is worse, or forgets more than
    `margin`; inconclusive otherwise.

    Args:
        before: the baseline on the target cell.
        after: the candidate on the same seeds and conditions.
        retention_before: the baseline in nominal simulation.
        retention_after: the candidate there, on the same seeds.
        margin: largest acceptable loss of nominal success, as a fraction.
        alpha: two-sided level.

    Raises:
        UnusableInputError: the rollouts don't pair up, or only one retention is given.
    """
    if (retention_before is None) != (retention_after is None):
        raise UnusableInputError("Retention needs both policies in nominal simulation, or neither.")
    change = paired_difference(before.outcomes, after.outcomes)
    kept = None
    if retention_before is not None and retention_after is not None:
        kept = paired_difference(retention_before.outcomes, retention_after.outcomes)
    fell = ""
    if kept is not None and kept.value < -margin:
        fell = f"nominal success fell by {-kept.value:.0%}, over {margin:.0%}"
    if change.p < alpha and change.value < 0:
        answer, why = Answer.REJECT, "worse than before."
    elif kept is not None and fell and kept.p < alpha:
        answer, why = Answer.REJECT, f"{fell}."
    elif change.p >= alpha:
        answer, why = Answer.INCONCLUSIVE, "not shown to differ; roll out more."
    elif fell:
        answer, why = Answer.INCONCLUSIVE, f"better, but {fell}, in too few rollouts to be sure."
    else:
        cost = ""
        if kept is not None:
            cost = f" Nominal success changed by {kept.value:+.0%}."
            if round(100 * kept.value) == 0:
                cost = " Nominal success stayed as it was."
        answer, why = Answer.PROMOTE, f"better.{cost}"
    prefix = "Sim-to-sim: " if after.domain is Domain.SIM_TARGET else ""
    rates = f"{before.rate:.0%} → {after.rate:.0%} over {change.pairs} paired rollouts"
    low, high = change.interval
    message = f"{prefix}{rates}, {change.value:+.0%} [{low:+.0%}, {high:+.0%}], p = {change.p:.3g}"
    return Verdict(
        answer,
        before.rate,
        after.rate,
        change,
        kept,
        f"{message}: {why}",
        after.domain,
        after.evidence,
    )
