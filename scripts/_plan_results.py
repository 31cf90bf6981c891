"""What campaigns brought and what takes cost, read from their folders for `gaploop plan`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Outcome, TakeKind

if TYPE_CHECKING:
    from gaploop.core.station import Station
    from gaploop.failure_analysis.planning.curves import Trial
    from gaploop.failure_analysis.planning.effort import SeenTake
    from gaploop.failure_analysis.planning.results import RolloutCounts


def seen_takes(folders: Sequence[Path]) -> Iterator[SeenTake]:
    """Yield the takes of journals and datasets, oldest first within each.

    Raises:
        UnusableInputError: a folder that holds neither.
    """
    from gaploop.datasets.sources import open_takes
    from gaploop.failure_analysis.planning.effort import SeenTake

    for folder in folders:
        for take in open_takes(folder):
            yield SeenTake(take.info, take.outcome, take.duration_s)


def campaign_result(folder: Path, station: Station) -> tuple[Trial, Path]:
    """Return what the campaign in a folder brought, and its plan's path.

    The folder holds `plan.yaml`, and what was measured `before` and `after`: `before.json` as
    `gaploop demo` leaves it, `before/evaluation.json` of `gaploop evaluate`, or a journal or
    dataset `before/` of `gaploop rollout`. Takes are counted in `takes/` where that is there.

    Raises:
        UnusableInputError: something is missing, or before and after don't compare.
    """
    from gaploop.core.files import existing_folder
    from gaploop.core.plan import load_plan
    from gaploop.failure_analysis.planning.results import campaign_trial

    existing_folder(folder, "Campaign")
    plan = load_plan(folder / "plan.yaml", station)
    before, where_before = _counted(folder, "before")
    after, where_after = _counted(folder, "after")
    if where_before != where_after:
        raise UnusableInputError(
            f"{folder}: before was measured in {where_before}, after in {where_after}. Evaluate "
            "both policies in the same cell."
        )
    recorded: Counter[str] | None = None
    if (folder / "takes").is_dir():
        shown = seen_takes([folder / "takes"])
        recorded = Counter(t.info.plan for t in shown if t.outcome is Outcome.SUCCESS)
    return campaign_trial(plan, before, after, recorded), folder / "plan.yaml"


def _counted(folder: Path, name: str) -> tuple[RolloutCounts, str]:
    """Return rollouts of one policy, and where they were measured, in words."""
    for path in (folder / f"{name}.json", folder / name / "evaluation.json"):
        if path.is_file():
            return _evaluated(path)
    if (folder / name).is_dir():
        return _rolled_out(folder / name)
    raise UnusableInputError(
        f"{folder}: no {name}.json, no {name}/evaluation.json and no rollouts in {name}/. Put what "
        f"was measured {name} the campaign there: gaploop evaluate, or gaploop rollout."
    )


def _evaluated(path: Path) -> tuple[RolloutCounts, str]:
    from gaploop.core.files import read_json
    from gaploop.failure_analysis.planning.results import RolloutCounts
    from gaploop.finetune.evaluation import Evaluation

    found = Evaluation.from_json(_mapping(read_json(path)), str(path))
    gaps = ", ".join(f"{d} {s:g}" for d, s in sorted(found.gaps.items())) or "no gaps"
    cell = f"{found.domain.value} ({gaps}, seed {found.gap_seed}, {', '.join(found.by_condition)})"
    return RolloutCounts(found.successes, found.trials, found.policy), cell


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _rolled_out(folder: Path) -> tuple[RolloutCounts, str]:
    from gaploop.failure_analysis.planning.results import RolloutCounts

    judged = [
        t
        for t in seen_takes([folder])
        if t.info.kind is TakeKind.ROLLOUT and t.outcome in (Outcome.SUCCESS, Outcome.FAILURE)
    ]
    stations = sorted({f"{t.info.domain.value} {t.info.station}".strip() for t in judged})
    policies = "+".join(sorted({t.info.policy for t in judged}))
    done = sum(t.outcome is Outcome.SUCCESS for t in judged)
    return RolloutCounts(done, len(judged), policies), ", ".join(stations)
