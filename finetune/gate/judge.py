"""The rules of the two stages that compare policies: a pure function of the outcomes so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gaploop.core.suite import Rules, Suite
from gaploop.finetune.evaluation import Rate, wilson
from gaploop.finetune.gate.design import GateDesign
from gaploop.finetune.gate.evidence import (
    difference_interval,
    discordance,
)
from gaploop.finetune.gate.statements import (
    EvidenceTrack,
    GateStatement,
    Outcomes,
    margin_evidence,
    reached,
    statements,
)

SIM, HARDWARE, CANARY, FULL = "sim", "hardware", "canary", "full"
STAGES: Final = (SIM, HARDWARE, CANARY, FULL)


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
        says: why, in words.
        pairs: pairs of attempts; episodes of the candidate in canary and full.
        rates: name of the side or task to success; Wilson intervals, which describe only.
        difference: candidate minus baseline, with an interval that holds at all rounds together.
        tracks: the evidence.
        repeats: side to tries that the operator said didn't count.
        taken_back: side to answers that the operator took back and gave anew.
    """

    stage: str
    answer: StageAnswer
    says: str
    pairs: int = 0
    rates: dict[str, Rate] = field(default_factory=dict)
    difference: tuple[float, float, float] | None = None
    tracks: tuple[EvidenceTrack, ...] = ()
    repeats: dict[str, int] = field(default_factory=dict)
    taken_back: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what `gate.json` holds."""
        return asdict(self)


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
    shown = [track.says for track in tracks if track.crossed]
    words = f"it {shown[0]}" if shown else f"not shown to lose less than {margin:.0%}"
    return _result(SIM, answer, words, outcomes.first(end), rules, tasks, tracks)


def judge_hardware(outcomes: Outcomes, suite: Suite, design: GateDesign) -> StageResult:
    """Judge the comparison on the station.

    Passed where the candidate is better by more than the design's margin, not inferior in any
    group, and succeeds often enough in each task. Failed where it gains too little, is inferior
    somewhere, succeeds too rarely or is less safe; the first that is shown decides.
    """
    stated = statements(outcomes, suite, design.margin)
    no, yes = reached(stated, outcomes, suite)
    most = math.ceil(design.max_pairs / len(suite.tasks))
    end, answer = _ended(no, yes, outcomes.rounds, most)
    tracks = tuple(statement.track(end) for statement in stated)
    seen = outcomes.first(end)
    names = [task.name for task in suite.tasks]
    words = _hardware_words(answer, tracks, seen, suite)
    return _result(HARDWARE, answer, words, seen, suite.rules, names, tracks)


def _ended(
    no: npt.NDArray[np.bool_], yes: npt.NDArray[np.bool_], rounds: int, most: int
) -> tuple[int, StageAnswer]:
    """Return the round at which a stage ended, or the last one, and its answer."""
    decided = (no | yes)[:most]
    if decided.any():
        at = int(decided.argmax())
        return at + 1, StageAnswer.FAILED if no[at] else StageAnswer.PASSED
    return min(rounds, most), StageAnswer.UNDECIDED if rounds >= most else StageAnswer.OPEN


def _hardware_words(
    answer: StageAnswer, tracks: Sequence[EvidenceTrack], outcomes: Outcomes, suite: Suite
) -> str:
    against = [track.says for track in tracks if not track.promotes and track.crossed]
    missing = [track.says for track in tracks if track.promotes and not track.crossed]
    rates = outcomes.success[..., 1].mean(0) if outcomes.rounds else np.zeros(len(suite.tasks))
    rare = [
        f"succeeds in {rate:.0%} of {task.name}, wanted {task.min_pass_rate:.0%}"
        for task, rate in zip(suite.tasks, rates, strict=True)
        if rate < task.min_pass_rate
    ]
    if answer is StageAnswer.FAILED:
        return "the candidate " + "; ".join(against)
    if answer is StageAnswer.PASSED:
        return "the candidate " + "; ".join(t.says for t in tracks if t.promotes)
    unshown = [f"not shown that it {says}" for says in missing]
    return "; ".join([*unshown, *(f"it {r}" for r in rare)])


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
