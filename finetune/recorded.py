"""Rollouts that `gaploop rollout` recorded, as an evaluation: counted by what was set up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gaploop.core.errors import UnusableInputError
from gaploop.core.take import Take
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets.sources import open_takes
from gaploop.finetune.evaluate import category, condition_name
from gaploop.finetune.evaluation import Evaluation, Rollout, summarise

TAKEN_OVER = "a person took over"


@dataclass(frozen=True)
class Recorded:
    """An evaluation from recorded takes, and what in them didn't count.

    Attributes:
        evaluation: of those that count.
        left_out: why takes don't count, in words, to how many.
    """

    evaluation: Evaluation
    left_out: dict[str, int]


def recorded(
    folder: Path, policy: str = "", progress: Callable[[int], None] = lambda _takes: None
) -> Recorded:
    """Count a policy's rollouts in a dataset or journal.

    What a person finished is no success of the policy, however it ended.

    Args:
        folder: a journal, or a dataset published from one.
        policy: id of the policy; needed where the takes are of several.
        progress: called after each take.

    Raises:
        UnusableInputError: no rollouts that were judged, of several policies, or of both a real
            and a simulated cell.
    """
    takes, left_out = [], Counter[str]()
    for take in _rollouts(folder, left_out, progress):
        if policy and take.policy != policy:
            left_out["of another policy"] += 1
        else:
            takes.append(take)
    if not takes:
        why = "; ".join(f"{n} {words}" for words, n in left_out.items()) or "no takes at all"
        raise UnusableInputError(
            f"{folder} holds no judged rollouts of this policy ({why}). Record some with gaploop "
            "rollout; say how takes went with gaploop review or label."
        )
    evaluation = summarise(
        [t.rollout for t in takes],
        domain=_one_domain(folder, {t.domain for t in takes}),
        policy=_one_policy(folder, Counter(t.policy for t in takes)),
        paired=False,
        where=", ".join(sorted({t.station for t in takes if t.station})),
    )
    return Recorded(evaluation, dict(left_out))


@dataclass(frozen=True)
class _Counted:
    rollout: Rollout
    policy: str
    domain: Domain
    station: str


def _rollouts(
    folder: Path, left_out: Counter[str], progress: Callable[[int], None]
) -> Iterator[_Counted]:
    for number, take in enumerate(open_takes(folder)):
        progress(1)
        if take.info.kind is not TakeKind.ROLLOUT:
            left_out["not rollouts"] += 1
        elif take.outcome is Outcome.UNLABELLED:
            left_out["not judged yet"] += 1
        elif take.outcome not in (Outcome.SUCCESS, Outcome.FAILURE):
            left_out[take.outcome.value] += 1
        else:
            info = take.info
            yield _Counted(_rollout(number, take), info.policy, info.domain, info.station)


def _rollout(number: int, take: Take) -> Rollout:
    helped = bool(take.frames.intervention.any())
    won = take.outcome is Outcome.SUCCESS and not helped
    reason = TAKEN_OVER if helped else "" if won else "failure"
    mode, phase = category(take) if take.outcome is Outcome.FAILURE else ("", "")
    return Rollout(
        number,
        condition_name(take.info.conditions),
        won,
        take.duration_s,
        reason,
        take.info.uid,
        mode,
        phase,
    )


def _one_domain(folder: Path, found: set[Domain]) -> Domain:
    if len(found) > 1 and Domain.REAL in found:
        raise UnusableInputError(
            f"{folder} mixes real and simulated rollouts. Split them with gaploop edit split, or "
            "compare them with gaploop factors --sim."
        )
    return Domain.SIM_TARGET if Domain.SIM_TARGET in found else next(iter(found))


def _one_policy(folder: Path, found: Counter[str]) -> str:
    if len(found) > 1:
        each = ", ".join(f"{policy or 'unknown'} ({n})" for policy, n in found.most_common())
        raise UnusableInputError(
            f"{folder} holds rollouts of several policies: {each}. Say which with --policy.path."
        )
    return next(iter(found))
