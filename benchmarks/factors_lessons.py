"""Contrasts of a published study, recomputed from its counts: do its lessons hold, how surely?

The study trained policies in simulation with one kind of domain randomisation or another and tried
them on a real robot ("Grounding Sim-to-Real Generalization in Dexterous Manipulation", counts from
its appendix). Each lesson is a weighted sum of success rates, standardised over tasks and, where it
is about training, over evaluation settings, each counting alike.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.statistics import CONFIDENCE, Estimate, TrialCounts, weighted_sum
from gaploop.failure_analysis.factors import Trials

TASK: Final = "task"
TRAINING: Final = "training_condition"
SETTING: Final = "evaluation_setting"
FACTORS: Final = ("study", TASK, TRAINING, SETTING)
SPATIAL: Final = ("TH", "CP")
"""Table height and camera pose randomised, one at a time."""
APPEARANCE: Final = ("BG", "LT", "TD")
"""Background, lighting and tabletop distractors randomised, one at a time."""
SINGLE: Final = "randomization_factor"
"""The study of single factors; its policies are randomised once an episode."""

type Terms = Sequence[tuple[float, Callable[[Mapping[str, str]], bool]]]


def read_counts(path: Path) -> list[Trials]:
    """Read the study's counts: a CSV file with `FACTORS`, successes and trials.

    Raises:
        UnusableInputError: no such file, or a column or count that isn't there.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            return [
                Trials({f: row[f] for f in FACTORS}, int(row["successes"]), int(row["trials"]))
                for row in csv.DictReader(stream)
            ]
    except (OSError, KeyError, ValueError) as error:
        raise UnusableInputError(
            f"{path}: not a CSV file of {', '.join(FACTORS)}, successes, trials ({error!r})."
        ) from None


@dataclass(frozen=True)
class Lesson:
    """A claim about a difference, and what the counts say.

    Attributes:
        claim: in words; it holds where the difference is above zero.
        difference: in these tasks, with the interval of the trials' own chance.
        over_tasks: with a t interval over tasks: for tasks like these.
        tasks: how many there are.
    """

    claim: str
    difference: Estimate
    over_tasks: Estimate
    tasks: int

    @property
    def verdict(self) -> str:
        """`holds`, `not shown` or `contradicted`, in these tasks at 95 %."""
        if not self.difference.excludes_zero:
            return "not shown"
        return "holds" if self.difference.low > 0 else "contradicted"

    @property
    def generalises(self) -> bool:
        """It holds for tasks like these, too: a much harder question with five tasks."""
        return self.over_tasks.low > 0


def study_lessons(rows: Sequence[Trials]) -> tuple[Lesson, ...]:
    """Return the study's lessons.

    Raises:
        UnusableInputError: the rows aren't that study's.
    """
    if not rows or set(FACTORS) - set(rows[0].levels):
        raise UnusableInputError(
            f"These aren't that study's counts: columns {', '.join(FACTORS)} are needed."
        )
    rows = counted_once(rows)
    return (*_training(rows), *_settings(rows), *_granularity(rows))


def counted_once(rows: Sequence[Trials]) -> list[Trials]:
    """Return trials without those of a policy that is listed again under another name.

    The study's default fidelity is its policy with all factors: the same counts in every cell.
    """
    policies: dict[tuple[str, str], list[Trials]] = {}
    for row in rows:
        policies.setdefault((row.levels["study"], row.levels[TRAINING]), []).append(row)
    first: dict[frozenset[tuple[str, str, int, int]], str] = {}
    kept = []
    for (study, _), mine in policies.items():
        cells = frozenset((r.levels[TASK], r.levels[SETTING], r.successes, r.trials) for r in mine)
        if first.setdefault(cells, study) == study:
            kept += mine
    return kept


def _training(rows: Sequence[Trials]) -> tuple[Lesson, ...]:
    single = [r for r in rows if r.levels["study"] == SINGLE]
    claims = {
        "randomising space (TH, CP) beats randomising appearance (BG, LT, TD)": (
            SPATIAL,
            APPEARANCE,
        ),
        "randomising space (TH, CP) beats randomising background and light (BG, LT)": (
            SPATIAL,
            APPEARANCE[:2],
        ),
        "randomising space (TH, CP) beats no randomisation": (SPATIAL, ("Clean",)),
        "randomising appearance (BG, LT, TD) beats no randomisation": (APPEARANCE, ("Clean",)),
    }
    return tuple(
        lesson(single, claim, _means(TRAINING, better, worse), (TRAINING, "study"))
        for claim, (better, worse) in claims.items()
    )


def _settings(rows: Sequence[Trials]) -> tuple[Lesson, ...]:
    def cost(one: str, other: str) -> Terms:
        return _means(SETTING, (one,), (other,))

    claims = [
        *((f"distractors cost more than {other}", cost(other, "distractor"))
          for other in ("background", "object", "lighting")),
        *((f"lighting costs less than {other}", cost("lighting", other))
          for other in ("background", "object", "distractor")),
        *((f"{other} costs success", cost("base", other))
          for other in ("distractor", "object", "background", "lighting")),
    ]  # fmt: skip
    return tuple(lesson(rows, claim, terms, (SETTING,)) for claim, terms in claims)


def _granularity(rows: Sequence[Trials]) -> tuple[Lesson, ...]:
    kinds = ("BG", "LT", "CP")
    framewise = tuple(f"Frame-wise {kind}" for kind in kinds)
    both = [r for r in rows if r.levels[TRAINING] in (*kinds, *framewise)]
    alone = {f"; {kind} alone": ((f"Frame-wise {kind}",), (kind,)) for kind in kinds}
    claims = {" (BG, LT, CP)": (framewise, kinds), **alone}
    return tuple(
        lesson(both, f"randomising every frame beats every episode{which}",
               _means(TRAINING, better, worse), (TRAINING, "study"))
        for which, (better, worse) in claims.items()
    )  # fmt: skip


def _means(factor: str, better: Sequence[str], worse: Sequence[str]) -> Terms:
    """Return the mean over some levels minus the mean over others."""

    def at(level: str) -> Callable[[Mapping[str, str]], bool]:
        return lambda levels: levels[factor] == level

    plus = [(1 / len(better), at(level)) for level in better]
    return [*plus, *((-1 / len(worse), at(level)) for level in worse)]


def lesson(rows: Sequence[Trials], claim: str, terms: Terms, compared: Sequence[str]) -> Lesson:
    """Return what trials say about a claim.

    Args:
        rows: the trials it is about.
        claim: in words; it holds where the weighted sum of rates is above zero.
        terms: (coefficient, which trials).
        compared: factors that the terms compare; all others are strata and count alike.

    Raises:
        UnusableInputError: a term without trials, or whose strata aren't those of the others.
    """
    tasks = sorted({r.levels[TASK] for r in rows})
    by_task = [
        weighted_sum(_cells([r for r in rows if r.levels[TASK] == t], terms, compared, claim)).value
        for t in tasks
    ]
    whole = weighted_sum(_cells(rows, terms, compared, claim))
    return Lesson(claim, whole, over_groups(by_task), len(tasks))


def over_groups(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the mean of a difference over groups, such as tasks, for groups like these.

    A t interval over the groups' own differences: it allows for how much groups differ.

    Args:
        values: one difference a group, two or more.
        confidence: of the interval, two-sided.
    """
    from scipy.stats import t

    n = len(values)
    mean = sum(values) / n
    variance = sum((v - mean) ** 2 for v in values) / (n - 1)
    half = float(t.ppf(0.5 + confidence / 2, n - 1)) * math.sqrt(variance / n)
    return Estimate(mean, mean - half, mean + half)


def _cells(
    rows: Sequence[Trials], terms: Terms, compared: Sequence[str], claim: str
) -> list[tuple[float, list[TrialCounts]]]:
    found = []
    for coefficient, chosen in terms:
        counts: dict[tuple[str, ...], list[int]] = {}
        for row in rows:
            if chosen(row.levels):
                stratum = tuple(v for f, v in sorted(row.levels.items()) if f not in compared)
                held = counts.setdefault(stratum, [0, 0])
                held[0] += row.successes
                held[1] += row.trials
        found.append((coefficient, counts))
    strata = {frozenset(counts) for _, counts in found}
    if len(strata) != 1 or not min(strata):
        raise UnusableInputError(f"Not every part of '{claim}' was tried alike in these trials.")
    share = 1 / len(found[0][1])
    return [(c, [TrialCounts(s, n, share) for s, n in counts.values()]) for c, counts in found]
