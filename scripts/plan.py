"""`gaploop plan`: from a diagnosis to what to collect, or what to do instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder, write_atomically
from gaploop.scripts import options

EXAMPLE = (
    "gaploop plan --diagnosis=./diagnosis/diagnosis.json --budget.takes=50 --output_dir=./plan"
)
POSITIONAL = "diagnosis"


@dataclass
class BudgetOptions:
    """What may be spent."""

    takes: int = 50
    """How many demonstrations may be recorded at most."""


@dataclass
class PlanConfig:
    """Turn a diagnosis into plan.yaml: how many takes of what, or what to do instead of collecting.

    Takes go to the dimensions that demonstrations mend, by their share of the failures. For the
    others the plan says what to recalibrate, identify, see to or restate, and asks for no takes.
    """

    diagnosis: Path | None = None
    """A diagnosis.json of `gaploop diagnose`."""
    budget: BudgetOptions = field(default_factory=BudgetOptions)
    json: bool = False
    """Print the plan as one JSON object on stdout."""
    output_dir: Path | None = None
    """Where to write; the diagnosis's folder by default."""


def run(config: PlanConfig) -> int:
    """Plan; exit code 0, also where the plan is not to collect."""
    from gaploop.core.plan import save_plan
    from gaploop.failure_analysis.diagnosis import load_diagnosis
    from gaploop.failure_analysis.lineage import file_input, write_run
    from gaploop.failure_analysis.planning.plan import make_plan
    from gaploop.failure_analysis.report.page import page
    from gaploop.failure_analysis.report.report import plan_section

    if config.diagnosis is None:
        raise UnusableInputError("Which diagnosis? Name it with --diagnosis=diagnosis.json.")
    path = config.diagnosis
    path = path / "diagnosis.json" if path.is_dir() else path
    plan = make_plan(load_diagnosis(path), config.budget.takes)
    folder = writable_folder(config.output_dir or path.parent)
    save_plan(plan, folder / "plan.yaml")
    footer = f"Plan {plan.id} from diagnosis {plan.diagnosis}. Made by gaploop plan."
    write_atomically(folder / "plan.html", page("Plan", [plan_section(plan)], footer=footer))
    inputs = [file_input(path, plan.diagnosis)]
    write_run(
        folder, "plan", options.jsonable(config), inputs, {"id": plan.id, "takes": plan.takes}
    )
    lines = [
        f"  {item.dimension.value} ({item.share:.0%}): "
        + (f"record {item.takes} takes" if item.takes else f"don't collect, {item.remedy}")
        + f". {item.why}"
        for item in plan.items
    ]
    head = f"{plan.takes} takes, about {plan.minutes:.0f} min, of a budget of {config.budget.takes}"
    text = "\n".join([head, *lines, str(folder / "plan.yaml")])
    options.emit(config.json, plan, text)
    return 0
