"""Do the statistics across takes hold: a published study's lessons, and laws on planted data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.files import write_json
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from benchmarks.factors_lessons import Lesson

REPEATS: Final = 400
"""Sets of made-up trials per law; --n says otherwise."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Recompute the study's lessons from --data, if given; measure coverage and false alarms."""
    from benchmarks.factors_laws import LAWS, measure_law

    result: dict[str, Any] = {"laws": {}}
    if config.data is not None:
        result |= _study(config.data)
    repeats = config.n or REPEATS
    with options.progress("Made-up trials", total=len(LAWS)) as advance:
        for name in LAWS:
            result["laws"][name] = measure_law(name, repeats, config.seed)
            advance()
    write_json(folder / "factors.json", options.jsonable(result))
    return result


def _study(path: Path) -> dict[str, Any]:
    from benchmarks.factors_lessons import counted_once, read_counts, study_lessons
    from gaploop.core.files import sha256

    rows = read_counts(path)
    lessons = study_lessons(rows)
    return {
        "evidence": "real robot, published counts",
        "data": {
            "sha256": sha256(path),
            "trials": sum(r.trials for r in rows),
            "counted": sum(r.trials for r in counted_once(rows)),
        },
        "lessons": [_lesson_json(lesson) for lesson in lessons],
    }


def _lesson_json(lesson: Lesson) -> dict[str, Any]:
    return {
        "claim": lesson.claim,
        "points": 100 * lesson.difference.value,
        "interval": [100 * lesson.difference.low, 100 * lesson.difference.high],
        "verdict": lesson.verdict,
        "interval_over_tasks": [100 * lesson.over_tasks.low, 100 * lesson.over_tasks.high],
        "tasks": lesson.tasks,
        "generalises": lesson.generalises,
    }


def table(result: Mapping[str, Any]) -> str:
    """Return both tables as Markdown."""
    lines = []
    if "lessons" in result:
        lines += [
            f"Published counts, {result['data']['counted']} trials on a real robot (of "
            f"{result['data']['trials']} listed; the rest are listed twice); points with 95 % "
            "intervals.",
            "",
            "| lesson | points | interval | verdict | interval for tasks like these |",
            "|---|---|---|---|---|",
        ]
        for one in result["lessons"]:
            lines.append(
                f"| {one['claim']} | {one['points']:+.1f} | {_span(one['interval'])} | "
                f"{one['verdict']} | {_span(one['interval_over_tasks'])} |"
            )
        lines.append("")
    lines += ["| law on made-up trials | promised | measured |", "|---|---|---|"]
    for name, law in result["laws"].items():
        lines.append(
            f"| {name} | {law['promised']} | {law['share']:.1%} of {law['of']} {_share(law)} |"
        )
    return "\n".join(lines)


def _span(interval: list[float]) -> str:
    return f"[{interval[0]:+.1f}, {interval[1]:+.1f}]"


def _share(law: Mapping[str, Any]) -> str:
    low, high = law["interval"]
    return f"[{low:.1%}, {high:.1%}]"
