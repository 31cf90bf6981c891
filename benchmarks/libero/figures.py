"""What rows of rollouts say: rates by task, camera and category, paired differences, intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.libero.categories import CATEGORIES
from benchmarks.libero.rollouts import CAMERAS, NOMINAL, LiberoRow, TaskName
from gaploop.core import statistics
from gaploop.core.statistics import Estimate


def worst(rows: Sequence[LiberoRow], tasks: Sequence[TaskName]) -> TaskName:
    """Return the task with the least success under the nominal camera; of equal ones the last."""
    return min(reversed(tasks), key=lambda t: _share(_of(rows, t), _won)["rate"])


def summary(rows: Sequence[LiberoRow], tasks: Sequence[TaskName]) -> dict[str, Any]:
    """Return rates and paired differences.

    Args:
        rows: of one policy, equal seeds under every task and camera.
        tasks: which.

    Returns:
        "tasks": by task, "success" and each category under the nominal camera; "cameras": by
        camera, "success" over all tasks and, of moved ones, the paired "difference" to the
        nominal one; "categories": over all tasks and cameras; "seconds": of all rollouts.
    """
    cameras: dict[str, Any] = {}
    nominal = [r for t in tasks for r in _of(rows, t)]
    for camera in CAMERAS:
        moved = [r for t in tasks for r in _of(rows, t, camera)]
        cameras[camera] = {"success": _share(moved, _won)}
        if camera != NOMINAL:
            cameras[camera] |= difference(nominal, moved)
    return {
        "tasks": {str(t): _by_category(_of(rows, t)) for t in tasks},
        "cameras": cameras,
        "categories": _by_category(rows),
        "seconds": round(sum(r.seconds for r in rows), 1),
    }


def few_shot(
    task: TaskName, before: Sequence[LiberoRow], after: Sequence[LiberoRow], shots: int
) -> dict[str, Any]:
    """Return success on a task before and after adapting to it, and the paired difference."""
    old = _of(before, task)
    return {
        "task": str(task),
        "demonstrations": shots,
        "before": _by_category(old),
        "after": _by_category(after),
        **difference(old, after),
    }


def difference(before: Sequence[LiberoRow], after: Sequence[LiberoRow]) -> dict[str, Any]:
    """Return the paired difference of success, after minus before, on the same scenes."""
    old, new = ({(r.suite, r.task, r.seed): r.success for r in rows} for rows in (before, after))
    pairs = [(new[k], old[k]) for k in old.keys() & new.keys()]
    both, gained, lost = (pairs.count(p) for p in ((True, True), (True, False), (False, True)))
    found = statistics.paired_difference(both, gained, lost, len(pairs) - both - gained - lost)
    return {
        "difference": _json(found),
        "pairs": len(pairs),
        "gained": gained,
        "lost": lost,
        "p": statistics.mcnemar_p(gained, lost),
    }


def _of(rows: Sequence[LiberoRow], task: TaskName, camera: str = NOMINAL) -> list[LiberoRow]:
    return [r for r in rows if (r.suite, r.task, r.camera) == (task.suite, task.number, camera)]


def _won(row: LiberoRow) -> bool:
    return row.success


def _share(rows: Sequence[LiberoRow], holds: Callable[[LiberoRow], bool]) -> dict[str, Any]:
    count = sum(map(holds, rows))
    found = statistics.rate(count, len(rows))
    return {
        "n": count, "of": len(rows), "rate": found.value, "interval": [found.low, found.high],
    }  # fmt: skip


def _by_category(rows: Sequence[LiberoRow]) -> dict[str, Any]:
    shares = {"success": _share(rows, _won)}
    for name in CATEGORIES:
        shares[name] = _share(rows, lambda row, name=name: row.category == name)  # type: ignore[misc]
    return shares


def _json(estimate: Estimate) -> dict[str, Any]:
    return {"rate": estimate.value, "interval": [estimate.low, estimate.high]}


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    lines = [
        f"Sim-to-sim; policy: {result['policy']}; {result['rollouts']} rollouts a task and camera, "
        f"{result['seconds'] / 60:.0f} min for all; 95 % intervals.",
        "",
        "| task, camera as it is | success | failures |",
        "|---|---|---|",
        *(_line(task, shares) for task, shares in result["tasks"].items()),
        _line("all tasks and cameras", result["categories"]),
        "",
        "| agent-view camera | success, all tasks | against nominal, paired |",
        "|---|---|---|",
    ]
    for camera, row in result["cameras"].items():
        lines.append(f"| {camera} | {_percent(row['success'])} | {_points(row)} |")
    shot = result["few_shot"]
    lines += [
        "",
        f"LoRA with {shot['demonstrations']} demonstrations ({result['demonstrations']}) of "
        f"{shot['task']}: {_points(shot)}",
        "",
        f"| {shot['task']} | success | failures |",
        "|---|---|---|",
        _line("before", shot["before"]),
        _line("after", shot["after"]),
        "",
        f"Every rollout: {result['rows']}",
    ]
    return "\n".join(lines)


def _line(name: str, shares: Mapping[str, Any]) -> str:
    failures = [f"{c} {_percent(shares[c])}" for c in CATEGORIES if shares[c]["n"]]
    return f"| {name} | {_percent(shares['success'])} | {'; '.join(failures)} |"


def _percent(share: Mapping[str, Any]) -> str:
    found = Estimate(share["rate"], *share["interval"])
    return f"{statistics.percent(found)} ({share['n']}/{share['of']})"


def _points(row: Mapping[str, Any]) -> str:
    if "difference" not in row:
        return ""
    found = row["difference"]
    said = statistics.points(Estimate(found["rate"], *found["interval"]))
    return f"{said}, {row['pairs']} pairs: {row['gained']} gained, {row['lost']} lost"
