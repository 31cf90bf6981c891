"""The result of evaluating a policy: every rollout, rates with intervals, what each setting costs.

On equal scenes only those tell anything that one of two policies, or of two settings, solved: the
exact McNemar test (a binomial test on them) and Newcombe's interval for paired rates (Newcombe
1998, Statistics in Medicine 17:2635-2650, method 10), which keeps its coverage at small n and rates
near 0 or 1. Rollouts that don't pair, such as recorded ones, are compared by Fisher's exact test
and Newcombe's interval for two rates. Each interval is a 95 % one of its own; `costs` and `helps`
are said at 5 % for all settings of a table together (Holm 1979).
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from gaploop.core import statistics
from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import append_lines, read_json, read_text, write_json
from gaploop.core.statistics import Estimate, TrialCounts, holm, mcnemar_p, weighted_sum
from gaploop.core.vocabulary import Domain

SCHEMA: Final = "gaploop.evaluation.v1"
NOMINAL: Final = "nominal"
ROLLOUTS: Final = "rollouts.csv"
SETTINGS: Final = "settings.json"
SETTINGS_SCHEMA: Final = "gaploop.evaluation_settings.v1"
FAMILY_ERROR: Final = 0.05
"""Chance that a table calls any setting a cost or a help that is none."""


@dataclass(frozen=True)
class Rollout:
    """One attempt of a policy.

    Attributes:
        seed: decides the scene; rollouts of two policies with equal seed and condition pair up.
        condition: what was set, as `key=value`, or `nominal`.
        duration_s: simulated time the attempt took [s].
        failure_mode: what was seen to go wrong, a name of the vocabulary; "" where it went well or
            can't be told.
        phase: when that was; "" likewise.
    """

    seed: int
    condition: str
    success: bool
    duration_s: float = 0.0
    reason: str = ""
    uid: str = ""
    failure_mode: str = ""
    phase: str = ""

    @property
    def category(self) -> str:
        """Failure mode and phase, or else why it ended; "" of a success."""
        if self.success:
            return ""
        return " in ".join(filter(None, (self.failure_mode, self.phase))) or self.reason


@dataclass(frozen=True)
class Rate:
    """A success rate with its Wilson score interval (Wilson 1927) at 95 %."""

    successes: int
    trials: int
    rate: float
    interval: tuple[float, float]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Rate":
        """Read what `asdict` made of it; what else stands there is passed over."""
        low, high = value["interval"]
        return cls(value["successes"], value["trials"], value["rate"], (low, high))

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.rate:.0%} [{low:.0%}, {high:.0%}] ({self.successes}/{self.trials})"


@dataclass(frozen=True)
class Evaluation(Rate):
    """How often a policy succeeded.

    Attributes:
        by_condition: the same for each condition.
        outcomes: every rollout, in order of condition and seed.
        gaps: gap dimension to severity in [0, 1], as injected.
        base: the condition that the others are compared with.
        paired: equal seeds mean equal scenes.
        where: the cell in words, where it isn't the embedded one.
    """

    by_condition: Mapping[str, Rate]
    outcomes: tuple[Rollout, ...]
    domain: Domain = Domain.SIM
    policy: str = ""
    gaps: Mapping[str, float] = field(default_factory=dict)
    gap_seed: int = 0
    base: str = NOMINAL
    paired: bool = True
    where: str = ""

    @property
    def total(self) -> Rate:
        """The rate over all rollouts."""
        return Rate(self.successes, self.trials, self.rate, self.interval)

    @property
    def evidence(self) -> str:
        """What it is evidence of, in words."""
        return evidence(self.domain, self.where if self.domain is Domain.SIM else "")

    def to_json(self) -> dict[str, Any]:
        """Return what `evaluation.json` holds."""
        return {"schema": SCHEMA, "evidence": self.evidence, **asdict(self)}

    def to_csv(self) -> str:
        """Return one line per rollout, with a header."""
        return "\n".join([",".join(FIELDS), *csv_lines(self.outcomes), ""])

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str = "evaluation") -> "Evaluation":
        """Read what `to_json` wrote.

        Raises:
            UnusableInputError: it is something else.
        """
        if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
            raise UnusableInputError(f"{where} is not a {SCHEMA} file. Run gaploop evaluate.")
        kinds: dict[str, type] = {"seed": int, "success": bool, "duration_s": float}
        try:
            rollouts = []
            for said in value["outcomes"]:
                found = vars(Rollout(**said))
                if type(found["success"]) is not bool:
                    raise TypeError(f"success must be true or false, got {found['success']!r}")
                rollouts.append(Rollout(**{n: kinds.get(n, str)(v) for n, v in found.items()}))
            return summarise(
                rollouts,
                domain=Domain(value["domain"]),
                policy=str(value["policy"]),
                gaps={str(name): float(severity) for name, severity in value["gaps"].items()},
                gap_seed=int(value["gap_seed"]),
                base=str(value.get("base", NOMINAL)),
                paired=bool(value.get("paired", True)),
                where=str(value.get("where", "")),
            )
        except DAMAGE as error:
            raise UnusableInputError(
                f"{where} is damaged ({error!r}). Run gaploop evaluate again."
            ) from None


def wilson(successes: int, trials: int, confidence: float = statistics.CONFIDENCE) -> Rate:
    """Return a success rate with its Wilson score interval.

    Raises:
        UnusableInputError: no trials, or more successes than trials.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise UnusableInputError(f"{successes} successes in {trials} trials: need at least one.")
    estimate = statistics.rate(successes, trials, confidence)
    return Rate(successes, trials, estimate.value, (estimate.low, estimate.high))


def summarise(rollouts: Iterable[Rollout], base: str = NOMINAL, **about: Any) -> Evaluation:
    """Count rollouts, in all and by condition; `about` is what else of `Evaluation` is known."""
    ordered = tuple(sorted(rollouts, key=lambda r: (r.condition != base, r.condition, r.seed)))
    total = _rate_of(ordered)
    each = {name: _rate_of(group) for name, group in _by_condition(ordered).items()}
    return Evaluation(**vars(total), by_condition=each, outcomes=ordered, base=base, **about)


def _rate_of(rollouts: Sequence[Rollout]) -> Rate:
    return wilson(sum(r.success for r in rollouts), len(rollouts))


def _by_condition(rollouts: Iterable[Rollout]) -> dict[str, list[Rollout]]:
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.condition, []).append(rollout)
    return groups


def evidence(domain: Domain, where: str = "") -> str:
    """Return what a result measured in `domain` is evidence of, in words.

    Args:
        where: the simulation in words, where it isn't the embedded cell.
    """
    return {
        Domain.REAL: "real robot",
        Domain.SIM: f"simulation ({where or 'nominal cell'})",
        Domain.SIM_TARGET: (
            f"sim-to-sim ({where or 'a simulation'} with injected gaps, not a real robot)"
        ),
    }[domain]


FIELDS: Final = tuple(Rollout.__dataclass_fields__)

type Scene = tuple[str, int]
"""Condition and seed: what names a rollout of one policy in one cell."""


class RolloutLog:
    """The rollouts of one policy in one cell, kept in a folder.

    Args:
        folder: holds `rollouts.csv`, and `settings.json` with what they share.
        settings: what all of them share, as JSON types: the policy, the cell.

    Raises:
        UnusableInputError: the folder holds rollouts of something else, or a damaged file.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder, self._path = folder, folder / ROLLOUTS
        settings, path = {"schema": SETTINGS_SCHEMA, **settings}, folder / SETTINGS
        known: Any = settings
        if path.exists():
            known = read_json(path)
        elif self._path.exists():
            raise UnusableInputError(
                f"{self._path} is there without {SETTINGS}, so nobody knows what was rolled out. "
                "Name another --output_dir."
            )
        else:
            write_json(path, settings)
        if not isinstance(known, dict):
            raise UnusableInputError(f"{path} is damaged. Name another --output_dir.")
        other = [n for n in {**known, **settings} if known.get(n) != settings.get(n)]
        if other:
            was = ", ".join(f"{n} {known.get(n)}" for n in other)
            now = ", ".join(f"{n} {settings.get(n)}" for n in other)
            raise UnusableInputError(
                f"{folder} holds rollouts with {was}; now it is {now}. Name another "
                "--output_dir, or evaluate the same."
            )
        self.held: dict[Scene, Rollout] = {}
        """What the folder held at first."""
        for rollout in read_rollouts(self._path):
            self.held.setdefault((rollout.condition, rollout.seed), rollout)

    def add(self, rollouts: Sequence[Rollout]) -> None:
        """Write rollouts down; they are on the disk when this returns."""
        lines = csv_lines(rollouts)
        if not self._path.exists():
            lines = [",".join(FIELDS), *lines]
        append_lines(self._path, lines)


def csv_lines(rollouts: Iterable[Rollout]) -> list[str]:
    """Return one line of CSV per rollout, without a line break in it."""
    stream, every = io.StringIO(), map(astuple, rollouts)
    rows = ([" ".join(v.split()) if isinstance(v, str) else v for v in row] for row in every)
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue().splitlines()


def read_rollouts(path: Path) -> Iterable[Rollout]:
    """Yield the rollouts of a `rollouts.csv`; none where there is no such file.

    Raises:
        UnusableInputError: a line isn't one.
    """
    if not path.exists():
        return
    whole = read_text(path).rpartition("\n")[0]  # a kill may have torn the last line
    try:
        rows = list(csv.DictReader(whole.splitlines()))
    except csv.Error as error:
        raise UnusableInputError(
            f"{path} isn't a CSV file ({error}). Name another --output_dir."
        ) from None
    for number, row in enumerate(rows, 2):
        try:
            if None in row.values():
                raise ValueError("too few values")
            given: dict[str, Any] = {name: row[name] for name in FIELDS if name in row}
            given["success"] = {"True": True, "False": False}[row["success"]]
            given |= {"seed": int(row["seed"]), "duration_s": float(row["duration_s"])}
            yield Rollout(**given)
        except (KeyError, ValueError, TypeError, AttributeError):
            raise UnusableInputError(
                f"{path}, line {number}: not a rollout. Fix or remove that line."
            ) from None


@dataclass(frozen=True)
class Drop:
    """One setting beside the base.

    Attributes:
        difference: its success minus the base's, -1 to 1.
        p: two-sided, for this setting alone.
        pairs: scenes tried under both; 0 where they don't pair up.
        lost: scenes that only the base solved; 0 likewise.
        gained: scenes that only this setting solved; 0 likewise.
        p_family: `p`, allowing for all settings of the table.
    """

    condition: str
    difference: Estimate
    p: float
    pairs: int = 0
    lost: int = 0
    gained: int = 0
    p_family: float = 1.0

    @property
    def verdict(self) -> str:
        """`costs`, `helps`, or `not shown`."""
        if self.p_family > FAMILY_ERROR:
            return "not shown"
        return "costs" if self.difference.value < 0 else "helps"


def drops(evaluation: Evaluation) -> tuple[Drop, ...]:
    """Return every setting beside the base, the costliest first; none without rollouts of it."""
    groups = _by_condition(evaluation.outcomes)
    base = groups.pop(evaluation.base, None)
    if not base or not groups:
        return ()
    before = {r.seed: r.success for r in base}
    found = []
    for name, group in groups.items():
        after = {r.seed: r.success for r in group}
        seeds = before.keys() & after.keys()
        if evaluation.paired and seeds:
            d = _paired({s: before[s] for s in seeds}, after)
            found.append(Drop(name, Estimate(d.value, *d.interval), d.p, d.pairs, d.lost, d.gained))
        else:
            found.append(Drop(name, *_unpaired(base, group)))
    adjusted = holm([d.p for d in found])
    told = [replace(d, p_family=p) for d, p in zip(found, adjusted, strict=True)]
    return tuple(sorted(told, key=lambda d: (d.difference.value, d.condition)))


def _unpaired(base: Sequence[Rollout], other: Sequence[Rollout]) -> tuple[Estimate, float]:
    """Return the difference, other minus base, and its p."""
    from scipy.stats import fisher_exact

    new, old = (TrialCounts(sum(r.success for r in group), len(group)) for group in (other, base))
    difference = weighted_sum([(1.0, [new]), (-1.0, [old])])
    table = [[side.successes, side.trials - side.successes] for side in (new, old)]
    return difference, float(fisher_exact(table).pvalue)


@dataclass(frozen=True)
class Difference:
    """Paired difference of two success rates, candidate minus baseline.

    Attributes:
        p: two-sided p of the exact McNemar test.
        gained: scenes only the candidate solved.
        lost: scenes only the baseline solved.
    """

    value: float
    interval: tuple[float, float]
    p: float
    pairs: int
    gained: int
    lost: int


def _paired[K](before: Mapping[K, bool], after: Mapping[K, bool]) -> Difference:
    both = sum(before[k] and after[k] for k in before)
    lost = sum(before[k] and not after[k] for k in before)
    gained = sum(after[k] and not before[k] for k in before)
    neither = len(before) - both - lost - gained
    found = statistics.paired_difference(both, gained, lost, neither)
    p = mcnemar_p(gained, lost)
    return Difference(found.value, (found.low, found.high), p, len(before), gained, lost)


def paired_difference(before: Sequence[Rollout], after: Sequence[Rollout]) -> Difference:
    """Compare two policies' rollouts of the same scenes.

    Raises:
        UnusableInputError: seeds and conditions differ, or there are none.
    """
    old, new = ({(r.condition, r.seed): r.success for r in side} for side in (before, after))
    if old.keys() != new.keys() or not old:
        odd = len(old.keys() ^ new.keys())
        raise UnusableInputError(
            f"{odd} of {len(old.keys() | new.keys())} scenes were tried by one policy only. "
            "Evaluate both with the same --n, --seed and --env.conditions."
        )
    return _paired(old, new)
