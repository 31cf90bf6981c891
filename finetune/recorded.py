"""Rollouts that `gaploop rollout` recorded, as an evaluation: counted by what was set up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Domain, Outcome, TakeKind, set_up
from gaploop.datasets.sources import load_takes
from gaploop.failure_analysis.views.joints import in_units, remember_units, units_of
from gaploop.finetune.evaluate import category, condition_name
from gaploop.finetune.evaluation import Evaluation, Rollout, summarise

TAKEN_OVER = "a person took over"


def recorded(
    folder: Path,
    policy: str = "",
    progress: Callable[[int], None] = lambda _takes: None,
    units: str = "",
) -> tuple[Evaluation, dict[str, int]]:
    """Count a policy's rollouts in a dataset or journal.

    What a person finished is no success of the policy, however it ended. Also returned is why
    takes don't count, in words, to how many.

    Args:
        folder: a journal, or a dataset published from one.
        policy: id of the policy; needed where the takes are of several.
        units: joints of takes that don't say theirs, as of `units_of`.

    Raises:
        UnusableInputError: joints whose units are in doubt, no rollouts that were judged, of
            several policies, or of both a real and a simulated cell.
    """
    rollouts, left_out = list[Rollout](), Counter[str]()
    domains, policies, stations = set[Domain](), Counter[str](), set[str]()
    takes = []
    for take in load_takes(folder):
        progress(1)
        takes.append(take)
    open_ended = [t for t in takes if t.outcome is Outcome.FAILURE and not t.failure_mode]
    told = units_of(open_ended, units)
    remember_units(folder, units)
    for number, take in enumerate(takes):
        info = take.info
        if info.kind is not TakeKind.ROLLOUT:
            left_out["not rollouts"] += 1
        elif take.outcome is Outcome.UNLABELLED:
            left_out["not judged yet"] += 1
        elif take.outcome not in (Outcome.SUCCESS, Outcome.FAILURE):
            left_out[take.outcome.value] += 1
        elif policy and info.policy != policy:
            left_out["of another policy"] += 1
        else:
            helped = bool(take.frames.intervention.any())
            is_won = take.outcome is Outcome.SUCCESS and not helped
            reason = TAKEN_OVER if helped else "" if is_won else "failure"
            mode = phase = ""
            if take.outcome is Outcome.FAILURE:
                mode, phase = category(in_units(take, told))
            name = condition_name(set_up(info.conditions))
            lasted_s, uid = take.duration_s, info.uid
            rollouts.append(Rollout(number, name, is_won, lasted_s, reason, uid, mode, phase))
            domains.add(info.domain)
            policies[info.policy] += 1
            stations.add(info.station)
    if not rollouts:
        why = "; ".join(f"{n} {words}" for words, n in left_out.items()) or "no takes at all"
        raise UnusableInputError(
            f"{folder} holds no judged rollouts of this policy ({why}). Record some with gaploop "
            "rollout; say how takes went with gaploop review or label."
        )
    if len(domains) > 1 and Domain.REAL in domains:
        raise UnusableInputError(
            f"{folder} mixes real and simulated rollouts. Split them with gaploop edit split, or "
            "compare them with gaploop diagnose --factors --sim."
        )
    if len(policies) > 1:
        each = ", ".join(f"{name or 'unknown'} ({n})" for name, n in policies.most_common())
        raise UnusableInputError(
            f"{folder} holds rollouts of several policies: {each}. Say which with --policy.path."
        )
    evaluation = summarise(
        rollouts,
        domain=Domain.SIM_TARGET if Domain.SIM_TARGET in domains else next(iter(domains)),
        policy=next(iter(policies)),
        paired=False,
        where=", ".join(sorted(stations - {""})),
    )
    return evaluation, dict(left_out)
