"""The result of evaluating a policy: counts, rates with intervals, every rollout."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.vocabulary import Domain

SCHEMA: Final = "gaploop.evaluation.v1"
CONFIDENCE: Final = 0.95
NOMINAL: Final = "nominal"


@dataclass(frozen=True)
class Rollout:
    """One attempt of a policy.

    Attributes:
        seed: decides the scene; rollouts of two policies with equal seed and condition pair up.
        condition: what was set, as `key=value`, or `nominal`.
        success: the station's criterion was met.
        duration_s: simulated time the attempt took [s].
        reason: why it ended.
        uid: the take's uid, where it was recorded.
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

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.rate:.0%} [{low:.0%}, {high:.0%}] ({self.successes}/{self.trials})"


@dataclass(frozen=True)
class Evaluation:
    """How often a policy succeeded.

    Attributes:
        successes: successful rollouts.
        trials: rollouts.
        rate: successes / trials.
        interval: Wilson interval of the rate at 95 %.
        by_condition: the same for each condition.
        outcomes: every rollout, in order of condition and seed.
        domain: where it was measured.
        policy: id of the policy.
        gaps: gap dimension to severity in [0, 1], as injected.
        gap_seed: drew mechanism and direction.
        base: the condition that the others are compared with.
        paired: equal seeds mean equal scenes.
        where: the cell in words, where it isn't the embedded one.
    """

    successes: int
    trials: int
    rate: float
    interval: tuple[float, float]
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
    def evidence(self) -> str:
        """What it is evidence of, in words."""
        if self.where and self.domain is Domain.SIM:
            return f"simulation ({self.where})"
        return evidence(self.domain)

    def to_json(self) -> dict[str, Any]:
        """Return what `evaluation.json` holds."""
        return {"schema": SCHEMA, "evidence": self.evidence, **asdict(self)}

    def to_csv(self) -> str:
        """Return one line per rollout, with a header."""
        stream = io.StringIO()
        writer = csv.DictWriter(stream, list(Rollout.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(r) for r in self.outcomes)
        return stream.getvalue()

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str = "evaluation") -> Evaluation:
        """Read what `to_json` wrote.

        Raises:
            UnusableInputError: it is something else.
        """
        if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
            raise UnusableInputError(f"{where} is not a {SCHEMA} file. Run gaploop evaluate.")
        try:
            return summarise(
                [_rollout(r) for r in value["outcomes"]],
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


def _rollout(value: Mapping[str, Any]) -> Rollout:
    found = Rollout(**value)
    if type(found.success) is not bool:
        raise TypeError(f"success must be true or false, got {found.success!r}")
    return replace(
        found,
        seed=int(found.seed),
        condition=str(found.condition),
        duration_s=float(found.duration_s),
        reason=str(found.reason),
        uid=str(found.uid),
        failure_mode=str(found.failure_mode),
        phase=str(found.phase),
    )


def wilson(successes: int, trials: int, confidence: float = CONFIDENCE) -> Rate:
    """Return a success rate with its Wilson score interval.

    Raises:
        UnusableInputError: no trials, or more successes than trials.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise UnusableInputError(f"{successes} successes in {trials} trials: need at least one.")
    from scipy.stats import binomtest  # here: workers that only roll out need no statistics

    interval = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    return Rate(successes, trials, successes / trials, (float(interval.low), float(interval.high)))


def summarise(
    rollouts: Iterable[Rollout],
    *,
    domain: Domain = Domain.SIM,
    policy: str = "",
    gaps: Mapping[str, float] | None = None,
    gap_seed: int = 0,
    base: str = NOMINAL,
    paired: bool = True,
    where: str = "",
) -> Evaluation:
    """Count rollouts, in all and by condition."""
    ordered = tuple(sorted(rollouts, key=lambda r: (r.condition != base, r.condition, r.seed)))
    groups: dict[str, list[Rollout]] = {}
    for rollout in ordered:
        groups.setdefault(rollout.condition, []).append(rollout)
    total = wilson(sum(r.success for r in ordered), len(ordered))
    return Evaluation(
        total.successes,
        total.trials,
        total.rate,
        total.interval,
        {c: wilson(sum(r.success for r in g), len(g)) for c, g in groups.items()},
        ordered,
        domain,
        policy,
        dict(gaps or {}),
        gap_seed,
        base,
        paired,
        where,
    )


def evidence(domain: Domain) -> str:
    """Return what a result measured in `domain` is evidence of, in words."""
    return {
        Domain.REAL: "real robot",
        Domain.SIM: "simulation (nominal cell)",
        Domain.SIM_TARGET: "sim-to-sim (simulated cell with injected gaps, not a real robot)",
    }[domain]
