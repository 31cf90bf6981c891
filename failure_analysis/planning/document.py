"""A plan for people: its page and terminal lines."""

from typing import Final

from markupsafe import Markup

from gaploop.core.plan import Plan, PlanItem
from gaploop.core.statistics import Estimate, percent
from gaploop.failure_analysis.report import page as html
from gaploop.failure_analysis.station import words

INSTEAD: Final = {
    "resimulate": "record in the station's twin",
    "randomise": "randomise",
    "recalibrate": "recalibrate",
    "compensate": "compensate",
    "drive_slower": "drive slower",
    "change_scene": "change or repair what is there",
    "change_task": "restate the task",
}
"""Remedies other than recording, as people read them."""


def figures(value: Estimate | None, unit: str = "", digits: int = 0) -> str:
    """Return an estimate as people read it: mean and 95 % interval."""
    if value is None:
        return ""
    mean, low, high = (f"{v:.{digits}f}" for v in (value.value, value.low, value.high))
    return f"{mean} [{low}, {high}]{unit}"


def time_words(hours: Estimate | None) -> str:
    """Return hours as people read them: minutes where they are few."""
    if hours is None:
        return ""
    if hours.high >= 2.0:
        return figures(hours, " h", digits=1)
    return figures(Estimate(60 * hours.value, 60 * hours.low, 60 * hours.high), " min")


def _short(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 2 else f"{60 * hours:.0f} min"


def doing(item: PlanItem) -> str:
    """Return what an item asks for, in a word or two."""
    if item.takes:
        return "record"
    return "not now" if item.remedy == "collect" else words(item.remedy)


def headline(plan: Plan) -> str:
    """Return what a plan asks for and what it is expected to bring, in a sentence or two."""
    brings = ""
    if plan.success_now and plan.success_then:
        now, then = percent(plan.success_now), percent(plan.success_then)
        brings = f" Success now {now}, then {then} expected"
    if not plan.takes:
        done = [words(r) for r in dict.fromkeys(i.remedy for i in plan.items if i.commands)]
        if not done:
            return "Don't collect now."
        expected = f"{brings}." if brings else ""
        return f"Don't collect now: {' and '.join(done)}, with the commands below.{expected}"
    spent = f"{plan.minutes:.0f} min" if plan.minutes < 120 else f"{plan.minutes / 60:.1f} h"
    sentence = f"Record {plan.takes} episodes, about {spent}."
    sentence += brings or f" Expected to fix {figures(plan.gain_points, ' %')} of the failures"
    sentence += f". Time: {time_words(plan.hours)}."
    if plan.machine_hours:
        sentence += f" Then adapting and evaluating: {_short(plan.machine_hours)} of the machine"
        sentence += f", {_short(plan.rollout_hours)} of rollouts at the station."
    return sentence + (f" Cost: {figures(plan.cost, f' {plan.currency}')}." if plan.cost else "")


def summary_cells(item: PlanItem) -> tuple[str, ...]:
    """Return an item's row: dimension, share, what to do, takes, gain, time."""
    suffix = item.id.partition(f":{item.dimension.value}:")[2]
    takes = str(item.takes) if item.takes else "don't collect"
    return (
        words(item.dimension.value) + (f" ({suffix})" if suffix else ""),
        f"{item.share:.0%}",
        doing(item),
        takes,
        figures(item.gain_points, digits=1),
        time_words(item.hours),
    )


def plan_answer(plan: Plan) -> list[tuple[str, str]]:
    """Return what to do and what it costs, in a sentence each."""
    instead = [i for i in plan.items if not i.takes and i.remedy in INSTEAD]
    said = [
        f"record {i.takes} episodes for {words(i.dimension.value)}" for i in plan.items if i.takes
    ]
    said += [
        f"{INSTEAD[i.remedy]} ({words(i.dimension.value)}) rather than record" for i in instead
    ]
    todo = "; ".join(said) or "nothing yet: no cause stands out that could be fixed"
    answers = [("What to do", todo[0].upper() + todo[1:] + ".")]
    return [*answers, ("Cost", headline(plan))] if plan.takes else answers


def plan_section(plan: Plan) -> html.Section:
    """Return the section on what to do: what to collect, and what to do instead."""
    typed = [line for item in plan.items for line in item.commands]
    rows = []
    for item in plan.items:
        fixed = ", ".join(f"{name}: {value}" for name, value in item.conditions.items())
        spread = ", ".join(f"{name}: {', '.join(map(str, vs))}" for name, vs in item.vary.items())
        others = [
            f"{words(o.remedy)} {figures(o.gain_points, ' points', 1)} for {time_words(o.hours)}"
            for o in item.alternatives
        ]
        facts = (
            ("", f"{item.why} {item.protocol}"),
            ("Set up: ", fixed if item.takes else ""),
            ("Spread over: ", spread if item.takes else ""),
            ("Record with: ", ", ".join(item.sensors) if item.takes else ""),
            ("Weighed against: ", "; ".join(others)),
            ("Cheap test first: ", item.test),
        )
        said = " ".join(
            f"{name}{text}." for name, value in facts if (text := value.strip().rstrip("."))
        )
        title, share, do, takes, gain, _ = summary_cells(item)
        rows.append((title, share, do, takes, f"{gain} points" if gain else "–", said))
    head = ("dimension", "share", "do", "episodes", "expected gain", "why and how")
    blocks: list[Markup] = [html.table(head, rows, numbers=(1, 3))] if rows else []
    for title, lines in (("Measure first", plan.measure), ("Commands", typed)):
        if lines:
            blocks.append(html.more(title, [html.command("\n".join(lines))]))
    blocks += [html.text(plan.stop)] if plan.stop else []
    if plan.notes:
        blocks.append(html.more("Know before", [html.notice(note) for note in plan.notes]))
    return html.section("What to do and what it costs", headline(plan), blocks)
