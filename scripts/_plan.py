"""What `gaploop plan` does: what to record, its page, remedies that are tried."""

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from gaploop.core.arms import CELL_ARMS
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder, write_atomically
from gaploop.core.plan import Plan, save_plan
from gaploop.core.run_record import file_input, write_run
from gaploop.core.station import SIM_STATION, Station, load_station
from gaploop.core.twin import load_twin
from gaploop.datasets.lerobot_read import load_takes
from gaploop.failure_analysis.diagnosis import Diagnosis, load_diagnosis
from gaploop.failure_analysis.planning.document import (
    headline,
    plan_section,
    summary_cells,
)
from gaploop.failure_analysis.planning.gains import Budget, expected_curves
from gaploop.failure_analysis.planning.ledger import (
    LEDGER,
    SeenTake,
    curves_here,
    effort_from,
    note_carried_out,
    read_ledger,
)
from gaploop.failure_analysis.planning.planner import PlanRequest, plan_for
from gaploop.failure_analysis.planning.remedies import PlanContext
from gaploop.failure_analysis.report.page import page
from gaploop.finetune.remedy_trials import in_a_process, try_remedies
from gaploop.scripts import options
from gaploop.scripts.cli import command
from gaploop.scripts.plan import PlanConfig
from gaploop.sim.catalogue import find_task


def run(config: PlanConfig) -> int:
    """Plan; exit code 0, also where the plan is not to collect."""
    made = plan(config)
    options.emit(config.json, made, "" if config.json else _text(made, _folder(config)))
    return 0


@command
def plan(config: PlanConfig) -> Plan:
    """Make a plan and write it with its page and run.json to the output folder.

    Raises:
        UnusableInputError: diagnosis, takes or station can't be read, or a budget can't be.
    """
    path = _diagnosis_file(config)
    diagnosis = load_diagnosis(path)
    station = load_station(config.station) if config.station else SIM_STATION
    if config.carried_out is not None:
        note_carried_out(_ledger(config), config.carried_out, diagnosis)
    ask = _ask(config, station, find_task(str(diagnosis.summary.get("task", ""))))
    made = plan_for(diagnosis, ask)
    if config.try_:
        made = _tried(made, diagnosis, ask)
    folder = writable_folder(_folder(config))
    save_plan(made, folder / "plan.yaml")
    footer = (
        f"Points are of {made.gain_of}; brackets are 95 % intervals. Plan {made.id} from diagnosis "
        f"{made.diagnosis}. Made by gaploop plan."
    )
    write_atomically(folder / "plan.html", page("Plan", [plan_section(made)], footer=footer))
    inputs = [file_input(path, diagnosis.id), *([file_input(config.twin)] if config.twin else [])]
    result = {"id": made.id, "takes": made.takes}
    write_run(folder, "plan", options.jsonable(config), inputs, result)
    return made


def _tried(planned: Plan, diagnosis: Diagnosis, ask: PlanRequest) -> Plan:
    """Try a plan's remedies in the twin, and plan by what came of them."""
    if ask.about is None or ask.about.twin is None:
        raise UnusableInputError(
            "--try carries remedies out in the station's twin. Name it with "
            "--twin=station_twin.yaml; gaploop identify makes it."
        )
    stderr = options.console(stderr=True)

    def typed(words: Sequence[str]) -> None:
        with options.progress(f"Carrying out gaploop {words[0]}"):
            in_a_process(words)

    leading = list(dict.fromkeys(item.dimension for item in planned.items))
    tried = try_remedies(
        ask.about,
        leading,
        ask.image_policy,
        say=lambda line: stderr.print(line, highlight=False, markup=False, soft_wrap=True),
        type_command=typed,
    )
    return plan_for(diagnosis, replace(ask, about=replace(ask.about, tried=tried)))


def _diagnosis_file(config: PlanConfig) -> Path:
    if config.diagnosis is None:
        raise UnusableInputError("Which diagnosis? Name it with --diagnosis=diagnosis.json.")
    path = config.diagnosis
    file = path / "diagnosis.json" if path.is_dir() else path
    if file != path and not file.exists() and (path / "curves.html").exists():
        raise UnusableInputError(
            f"{path}: no episode had an outcome, so nothing was diagnosed. Say how they went "
            "(gaploop label, or gaploop review), then diagnose again."
        )
    return file


def _ledger(config: PlanConfig) -> Path:
    """Return where the station's ledger is, or would be."""
    place = config.station or config.twin or _diagnosis_file(config).absolute().parent
    return place.parent / LEDGER


def _folder(config: PlanConfig) -> Path:
    return config.output_dir or _diagnosis_file(config).parent


def _ask(config: PlanConfig, station: Station, task: str) -> PlanRequest:
    takes, of_cell = list[SeenTake](), False
    cells = [{name.removesuffix(".pos") for name in arm.joint_names} for arm in CELL_ARMS.values()]
    with options.progress("Reading episodes") as advance:
        for take in (take for folder in config.takes for take in load_takes(folder)):
            takes.append(SeenTake(take.info, take.outcome, take.duration_s))
            joints = {name.removesuffix(".pos") for name in take.info.joint_names}
            of_cell |= joints in cells
            advance()
    about = PlanContext(
        _folder(config),
        config.policy.required(),
        load_twin(config.twin) if config.twin else None,
        config.twin,
        task,
        config.record_with,
        tuple(config.takes),
        ledger=read_ledger(_ledger(config)),
        other_arm=bool(takes) and not of_cell,
    )
    known: dict[str, Any] = {"station": station} if config.station else {}
    return PlanRequest(
        Budget(takes=50) if config.budget == Budget() else config.budget,
        curves_here(expected_curves(image_policy=about.sees_pictures), about.ledger),
        effort_from(takes, station.costs),
        conditions={t.info.uid: t.info.conditions for t in takes},
        image_policy=about.sees_pictures,
        about=about,
        **known,
    )


def _text(plan: Plan, folder: Path) -> str:
    """Return what a person reads in the terminal."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("dimension", "share", "do", "episodes", "gain (points)", "time"):
        table.add_column(name, justify="left" if name in ("dimension", "do") else "right")
    for item in plan.items:
        table.add_row(*(escape(cell) for cell in summary_cells(item)))
    shown = options.as_lines(table) if plan.items else []
    first = {item.dimension: item for item in reversed(plan.items)}  # items may share a dimension
    words = [
        f"{item.dimension.value}: {item.why} {item.protocol} Test: {item.test}"
        for item in plan.items
        if item is first[item.dimension]
    ]
    words += [plan.stop, *plan.notes]
    wrapped = []
    for text in filter(None, words):
        reason, arrow, fix = text.partition(" → ")  # what is typed stays in one line
        wrapped.append(textwrap.fill(reason, 100, subsequent_indent="  ", break_on_hyphens=False))
        wrapped += [f"  → {fix}"] if arrow else []
    typed = [line for item in plan.items for line in item.commands]
    first_of_all = ["Measure first:", *plan.measure] if plan.measure else []
    said = [headline(plan), *shown, *wrapped, *first_of_all, *typed]
    return "\n".join([*said, str(folder / "plan.yaml")])
