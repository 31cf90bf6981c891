"""`gaploop plan`: from a diagnosis to what to collect, or what to do instead."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.markup import escape
from rich.table import Table

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder, read_json, uuid7, writable_folder, write_atomically
from gaploop.core.plan import Plan, load_plan, save_plan
from gaploop.core.run_record import RUN, read_run, write_run
from gaploop.core.station import SIM_STATION, Station, load_station
from gaploop.core.twin import load_twin
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.failure_analysis.lineage import file_input
from gaploop.failure_analysis.planning.allocation import Budget
from gaploop.failure_analysis.planning.curves import (
    RolloutCounts,
    Trial,
    campaign_trial,
    learn,
    load_trials,
    save_curves,
)
from gaploop.scripts import options
from gaploop.scripts._library import command

if TYPE_CHECKING:
    from gaploop.failure_analysis.planning.effort import SeenTake
    from gaploop.failure_analysis.planning.plan import PlanRequest

RARE: Final = ("task", "results", "record_with")
EXAMPLE = """\
gaploop plan --diagnosis=./diagnosis/diagnosis.json --budget.takes=50 --output_dir=./plan
gaploop plan ./diagnosis --budget.hours=4 --takes='[./rollouts]' --station=station.yaml
gaploop plan ./diagnosis --policy.path=base --twin=station_twin.yaml --output_dir=./plan
gaploop plan ./diagnosis2 --results='[./campaign1, ./plan/curves.json]' --output_dir=./plan2
"""
POSITIONAL = "diagnosis"


@dataclass
class PlanConfig:
    """Turn a diagnosis into plan.yaml: how many takes of what, or what to do instead of collecting.

    With the station's twin each remedy that a command carries out is priced beside collecting, and
    what brings most success for an operator's hour is chosen; its commands are in the plan and run
    as printed. Takes go where the next one is expected to bring most success for its price, and
    stop where more aren't worth it. Where none of this helps, the plan names what to change,
    with a cheap test. Results of earlier campaigns (--results) change what is expected.
    """

    diagnosis: Path | None = None
    """A diagnosis.json of `gaploop diagnose`, or its folder."""
    budget: Budget = field(default_factory=Budget)
    takes: list[Path] = field(default_factory=list)
    """Journals or datasets: the diagnosed one shows under which conditions takes failed, any of
    them how long takes and resets are and how many attempts a good take needs."""
    results: list[Path] = field(default_factory=list)
    """What came of earlier plans: folders of finished campaigns (plan.yaml, and before.json and
    after.json or before/ and after/ of rollouts); curves.json of an earlier plan, whose campaigns
    count again; runs of gaploop finetune, for how long adapting takes on this machine."""
    station: Path | None = None
    """station.yaml with costs and currency, grid and what can be set up."""
    policy: options.PolicyFolder = field(default_factory=lambda: options.PolicyFolder("base"))
    twin: Path | None = None
    """station_twin.yaml of gaploop identify: what differs there can be fixed in its simulation."""
    task: str = "pick_place"
    """The cell's task, for remedies in simulation: pick_place, pick_lift or stack_cube."""
    record_with: str = ""
    """How takes are recorded at the station, such as '--robot.type=so101_follower
    --robot.port=/dev/ttyACM0 --teleop.type=so101_leader --teleop.port=/dev/ttyACM1'."""
    json: bool = False
    """Print the plan as one JSON object on stdout."""
    output_dir: Path | None = None
    """Where to write; the diagnosis's folder by default."""


def run(config: PlanConfig) -> int:
    """Plan; exit code 0, also where the plan is not to collect."""
    made = plan(config)
    options.emit(config.json, made, "" if config.json else _text(made, _folder(config)))
    return 0


@command
def plan(config: PlanConfig) -> Plan:
    """Make a plan and write it with its pages, curves.json and run.json to the output folder.

    Raises:
        UnusableInputError: diagnosis, takes, results or station can't be read, or a budget can't
            be.
    """
    from gaploop.failure_analysis.diagnosis import load_diagnosis
    from gaploop.failure_analysis.planning.document import (
        headline,
        plan_markdown,
        plan_section,
        prospect_figure,
    )
    from gaploop.failure_analysis.planning.plan import plan_for
    from gaploop.failure_analysis.report.page import page, save_figure, section

    path = _diagnosis_file(config)
    diagnosis = load_diagnosis(path)
    station = load_station(config.station) if config.station else SIM_STATION
    trials, sources = list[Trial](), list[Path]()
    runs = [path for path in config.results if _is_training(path)]
    for path in (path for path in config.results if path not in runs):
        if path.is_file():
            trials += load_trials(path)
            sources.append(path)
        else:
            trials.append(_campaign_result(path, station))
            sources.append(path / "plan.yaml")
    ask = _ask(config, station, trials, runs)
    planned = plan_for(diagnosis, ask)
    made, folder = planned.plan, writable_folder(_folder(config))
    save_plan(made, folder / "plan.yaml")
    if config.twin is not None:
        sources.append(config.twin)
    inputs = [file_input(path, diagnosis.id), *(file_input(p) for p in sources)]
    curves_id = uuid7()
    save_curves(folder / "curves.json", curves_id, ask.curves, trials, inputs[1:])
    picture, sections = "", [plan_section(made)]
    if made.items:
        picture = "plan.png"
        caption = (
            "Expected success against takes of one dimension, everything else left as it is; "
            "95 % bands."
        )
        shown = save_figure(prospect_figure(planned), folder / picture, caption)
        title = "What more takes are expected to bring"
        sections.insert(0, section(title, headline(made), [shown]))
    write_atomically(folder / "plan.md", plan_markdown(made, picture))
    footer = f"Plan {made.id} from diagnosis {made.diagnosis}. Made by gaploop plan."
    write_atomically(folder / "plan.html", page("Plan", sections, footer=footer))
    result = {"id": made.id, "takes": made.takes, "curves": curves_id}
    write_run(folder, "plan", options.jsonable(config), inputs, result)
    return made


def _diagnosis_file(config: PlanConfig) -> Path:
    if config.diagnosis is None:
        raise UnusableInputError("Which diagnosis? Name it with --diagnosis=diagnosis.json.")
    path = config.diagnosis
    return path / "diagnosis.json" if path.is_dir() else path


def _folder(config: PlanConfig) -> Path:
    return config.output_dir or _diagnosis_file(config).parent


def _is_training(path: Path) -> bool:
    """Say whether a folder is a run of gaploop finetune."""
    return (path / RUN).is_file() and read_run(path / RUN)["command"] == "finetune"


def _ask(
    config: PlanConfig, station: Station, trials: list[Trial], runs: Sequence[Path]
) -> PlanRequest:
    from gaploop.failure_analysis.planning.effort import effort_from
    from gaploop.failure_analysis.planning.offers import PlanContext
    from gaploop.failure_analysis.planning.plan import PlanRequest

    with options.progress("Reading takes") as advance:
        takes = []
        for take in _takes_in_order(config.takes):
            takes.append(take)
            advance()
    # How long trainings took that weren't stopped in between [s].
    took = [read_run(run / RUN)["result"].get("took_s") for run in runs]
    known_s = [float(t) for t in took if isinstance(t, int | float) and t > 0]
    if runs and not known_s:
        raise UnusableInputError(
            f"{', '.join(map(str, runs))}: none records how long it took. Name runs of gaploop "
            "finetune that weren't resumed."
        )
    about = PlanContext(
        _folder(config),
        config.policy.required(),
        load_twin(config.twin) if config.twin else None,
        config.twin,
        config.task,
        config.record_with,
        tuple(config.takes),
        {"training": median(known_s)} if known_s else {},
    )
    known: dict[str, Any] = {"station": station} if config.station else {}
    return PlanRequest(
        Budget(takes=50) if config.budget == Budget() else config.budget,
        learn(trials, image_policy=about.sees_pictures),
        effort_from(takes, station.costs),
        conditions={t.info.uid: t.info.conditions for t in takes},
        image_policy=about.sees_pictures,
        about=about,
        **known,
    )


def _text(plan: Plan, folder: Path) -> str:
    """Return what a person reads in the terminal."""
    from gaploop.failure_analysis.planning.document import headline, summary_cells

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("dimension", "share", "do", "takes", "gain (points)", "time"):
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
    wrapped = [textwrap.fill(text, 100, subsequent_indent="  ") for text in words if text]
    typed = [line for item in plan.items for line in item.commands]
    first_of_all = ["Measure first:", *plan.measure] if plan.measure else []
    said = [headline(plan), *shown, *wrapped, *first_of_all, *typed]
    return "\n".join([*said, str(folder / "plan.yaml")])


def _takes_in_order(folders: Sequence[Path]) -> Iterator[SeenTake]:
    """Yield the takes of journals and datasets, oldest first within each."""
    from gaploop.datasets.sources import load_takes
    from gaploop.failure_analysis.planning.effort import SeenTake

    for folder in folders:
        for take in load_takes(folder):
            yield SeenTake(take.info, take.outcome, take.duration_s)


def _campaign_result(folder: Path, station: Station) -> Trial:
    """Return what the campaign in a folder brought.

    The folder holds `plan.yaml`, and what was measured `before` and `after`: `before.json` as
    `gaploop demo` leaves it, `before/evaluation.json` of `gaploop evaluate`, or a journal or
    dataset `before/` of `gaploop rollout`. Takes are counted in `takes/` where that is there.
    """
    existing_folder(folder, "Campaign")
    recorded_for = load_plan(folder / "plan.yaml", station)
    before, where_before = _counted(folder, "before")
    after, where_after = _counted(folder, "after")
    if where_before != where_after:
        raise UnusableInputError(
            f"{folder}: before was measured in {where_before}, after in {where_after}. Evaluate "
            "both policies in the same cell."
        )
    recorded: Counter[str] | None = None
    if (folder / "takes").is_dir():
        shown = _takes_in_order([folder / "takes"])
        recorded = Counter(t.info.plan for t in shown if t.outcome is Outcome.SUCCESS)
    return campaign_trial(recorded_for, before, after, recorded)


def _counted(folder: Path, name: str) -> tuple[RolloutCounts, str]:
    """Return rollouts of one policy, and where they were measured, in words."""
    for path in (folder / f"{name}.json", folder / name / "evaluation.json"):
        if path.is_file():
            return _evaluated(path)
    if not (folder / name).is_dir():
        raise UnusableInputError(
            f"{folder}: no {name}.json, no {name}/evaluation.json and no rollouts in {name}/. Put "
            f"what was measured {name} the campaign there: gaploop evaluate, or gaploop rollout."
        )
    judged = [
        t
        for t in _takes_in_order([folder / name])
        if t.info.kind is TakeKind.ROLLOUT and t.outcome in (Outcome.SUCCESS, Outcome.FAILURE)
    ]
    stations = sorted({f"{t.info.domain.value} {t.info.station}".strip() for t in judged})
    policies = "+".join(sorted({t.info.policy for t in judged}))
    done = sum(t.outcome is Outcome.SUCCESS for t in judged)
    return RolloutCounts(done, len(judged), policies), ", ".join(stations)


def _evaluated(path: Path) -> tuple[RolloutCounts, str]:
    from gaploop.finetune.evaluation import Evaluation

    value = read_json(path)
    found = Evaluation.from_json(value if isinstance(value, dict) else {}, str(path))
    gaps = ", ".join(f"{d} {s:g}" for d, s in sorted(found.gaps.items())) or "no gaps"
    where = f"{gaps}, seed {found.gap_seed}, {', '.join(found.by_condition)}"
    rollouts = RolloutCounts(found.successes, found.trials, found.policy)
    return rollouts, f"{found.domain.value} ({where})"
