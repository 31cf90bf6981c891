"""What campaigns brought, kept from plan to plan in `curves.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.core.plan import Plan
from gaploop.core.vocabulary import GapDimension, dimension
from gaploop.failure_analysis.planning.curves import Curve, Trial

SCHEMA: Final = "gaploop.curves.v1"
SHOWN_TAKES: Final = (5, 10, 20, 50, 100)
"""Numbers of takes for which `curves.json` spells out what is expected."""


@dataclass(frozen=True)
class RolloutCounts:
    """Rollouts of one policy.

    Attributes:
        policy: its id, or "".
    """

    successes: int
    trials: int
    policy: str = ""


def campaign_trial(
    plan: Plan,
    before: RolloutCounts,
    after: RolloutCounts,
    recorded: Mapping[str, int] | None = None,
) -> Trial:
    """Return what a campaign's result says about the curves.

    Args:
        plan: what was recorded.
        before: rollouts of the policy that the plan was made for.
        after: rollouts of the policy adapted with its takes, in the same cell.
        recorded: plan item to takes recorded; what the plan asked for unless given.

    Raises:
        UnusableInputError: nothing was recorded, or nothing rolled out.
    """
    if not before.trials or not after.trials:
        raise UnusableInputError(f"Plan {plan.id}: no judged rollouts before or after it.")
    takes: dict[GapDimension, int] = {}
    shares: dict[GapDimension, float] = {}
    for item in plan.items:
        n = item.takes if recorded is None else recorded.get(item.id, 0)
        if n:
            takes[item.dimension] = takes.get(item.dimension, 0) + n
            shares[item.dimension] = item.share
    if not takes:
        raise UnusableInputError(
            f"Plan {plan.id}: no takes were recorded for it, so its result says nothing about "
            "demonstrations. Name the folder of a campaign that recorded some."
        )
    return Trial(
        f"{plan.id}/{after.policy}",
        takes,
        shares,
        (before.successes, before.trials),
        (after.successes, after.trials),
    )


def save_curves(
    path: Path,
    id_: str,
    curves: Mapping[GapDimension, Curve],
    trials: Iterable[Trial],
    inputs: Sequence[Mapping[str, Any]],
) -> None:
    """Write `curves.json`: every campaign so far, what it came from, and what is believed now.

    Args:
        id_: names the curves in lineage.
        inputs: the files that the trials came from, as `lineage.file_input` names them.
    """
    by_id = {trial.id: trial for trial in trials}
    write_json(
        path,
        {
            "schema": SCHEMA,
            "id": id_,
            "inputs": list(inputs),
            "trials": [_trial_json(by_id[name]) for name in sorted(by_id)],
            "believed": {d.value: believed(curve) for d, curve in curves.items()},
        },
    )


def believed(curve: Curve) -> dict[str, Any]:
    """Return a curve in numbers that people read: shares of failures fixed by n takes."""
    import numpy as np

    means = curve.mended(np.array(SHOWN_TAKES, dtype=float))
    return {
        "responds": round(curve.responds, 4),
        "mended": {
            str(n): [round(float(v), 4) for v in (mean, *curve.interval(n))]
            for n, mean in zip(SHOWN_TAKES, means, strict=True)
        },
    }


def _trial_json(trial: Trial) -> dict[str, Any]:
    return {
        "id": trial.id,
        "takes": {d.value: n for d, n in trial.takes.items()},
        "shares": {d.value: share for d, share in trial.shares.items()},
        "before": list(trial.before),
        "after": list(trial.after),
    }


def load_trials(path: Path) -> tuple[Trial, ...]:
    """Read the campaigns that a `curves.json` holds.

    Raises:
        UnusableInputError: it is missing, of another kind, or damaged.
    """
    value = read_json(path)
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise UnusableInputError(
            f"{path} is not a {SCHEMA} file. Name the curves.json of an earlier gaploop plan."
        )
    try:
        return tuple(_trial(entry, str(path)) for entry in value["trials"])
    except DAMAGE as error:
        raise UnusableInputError(
            f"{path} is damaged ({error!r}). Make it again with gaploop plan --results."
        ) from None


def _trial(value: Mapping[str, Any], where: str) -> Trial:
    before, after = ((int(done), int(n)) for done, n in (value["before"], value["after"]))
    if not (0 <= before[0] <= before[1] and 0 <= after[0] <= after[1]):
        raise ValueError(f"{value['id']}: more successes than rollouts")
    return Trial(
        str(value["id"]),
        {dimension(d, where): int(n) for d, n in value["takes"].items()},
        {dimension(d, where): float(s) for d, s in value["shares"].items()},
        before,
        after,
    )
