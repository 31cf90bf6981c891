"""The plan in a report: what to record, what to do instead, what it costs, what it should bring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from markupsafe import Markup

from gaploop.core.plan import ExpectedValue, Plan, PlanItem
from gaploop.failure_analysis.report.figures import words
from gaploop.failure_analysis.report.page import Section, more, notice, section, table, text

INSTEAD: Final = {
    "recalibrate": "recalibrate",
    "identify": "identify and compensate",
    "perception": "mend perception",
    "control": "change the controller",
    "restate": "restate the task",
}
"""Remedies other than recording, as people read them."""


def plan_answer(plan: Plan) -> list[tuple[str, str]]:
    """Return what to do and what it costs, in a sentence each."""
    instead = [i for i in plan.items if not i.takes and i.remedy in INSTEAD]
    said = [f"record {i.takes} takes for {words(i.dimension.value)}" for i in plan.items if i.takes]
    said += [
        f"{INSTEAD[i.remedy]} ({words(i.dimension.value)}) rather than record" for i in instead
    ]
    todo = "; ".join(said) or "nothing yet: no cause stands out that could be mended"
    answers = [("What to do", todo[0].upper() + todo[1:] + ".")]
    cost = "; ".join(_costs(plan))
    if plan.takes and cost:
        answers.append(("Cost", cost[0].upper() + cost[1:] + "."))
    return answers


def _costs(plan: Plan) -> Iterator[str]:
    if plan.hours is not None:
        yield f"{_time(plan.hours)} of recording"
    elif plan.minutes:
        yield f"about {plan.minutes:.0f} minutes of recording"
    if plan.cost is not None:
        yield f"{_span(plan.cost)} {plan.currency}".rstrip()
    if plan.gain_points is not None and plan.takes:
        of = f" of {plan.gain_of}" if plan.gain_of else ""
        yield f"expected gain {_span(plan.gain_points)} points{of}"


def _span(value: ExpectedValue) -> str:
    return f"{value.mean:.3g} [{value.low:.3g}, {value.high:.3g}]"


def _time(hours: ExpectedValue) -> str:
    """Return hours, or minutes where they are few."""
    if hours.mean >= 1:
        return f"{_span(hours)} hours"
    minutes = [round(60 * v) for v in (hours.mean, hours.low, hours.high)]
    return f"{minutes[0]} [{minutes[1]}, {minutes[2]}] minutes"


def plan_section(plan: Plan) -> Section:
    """Return the section on what to do: what to collect, and what to do instead."""
    lead = (
        f"Record {plan.takes} takes, about {plan.minutes:.0f} minutes."
        if plan.takes
        else "Don't collect: nothing that demonstrations would fix stands out."
    )
    head = ("dimension", "share", "remedy", "takes", "expected gain", "why and how")
    blocks: list[Markup] = []
    if plan.items:
        blocks.append(table(head, [_row(item) for item in plan.items], numbers=(1, 3)))
    blocks += [text(said) for said in (_sentence(plan), plan.stop) if said]
    if plan.notes:
        blocks.append(more("Know before", [notice(note) for note in plan.notes]))
    return section("What to do and what it costs", lead, blocks)


def _row(item: PlanItem) -> tuple[str, ...]:
    test = f" Cheap test first: {item.test}" if item.test else ""
    follow = f" (+{item.may_follow} if they help)" if item.may_follow else ""
    return (
        words(item.dimension.value),
        f"{item.share:.0%}",
        item.remedy,
        f"{item.takes}{follow}" if item.takes else "none",
        f"{_span(item.gain_points)} points" if item.gain_points and item.takes else "–",
        f"{item.why} {item.protocol}{test}",
    )


def _sentence(plan: Plan) -> str:
    said = "; ".join(_costs(plan)) if plan.takes else ""
    return said[0].upper() + said[1:] + "." if said else ""
