"""`gaploop demo`: the whole loop on two cells with gaps, by the commands that anyone types.

Evaluate, roll out, measure, diagnose, plan, carry the plan's first remedy out, compare on the same
scenes. Sim-to-sim throughout. Each command is printed before it runs and kept in commands.txt
behind it, so that a demo that was stopped goes on where it was, and every step can be typed again.
Probe, diagnosis and plan find out by themselves what the cells are like, and can be wrong: then the
report says so.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, writable_folder, write_atomically, write_json
from gaploop.core.plan import Plan, load_plan
from gaploop.core.twin import load_twin
from gaploop.failure_analysis.report import page
from gaploop.failure_analysis.station import words
from gaploop.finetune.evaluation import Evaluation
from gaploop.scripts import cli, options
from gaploop.scripts.demo import DemoConfig

if TYPE_CHECKING:
    from gaploop.finetune.gate.judge import Verdict

TYPED, TWIN, DIAGNOSIS = "commands.txt", "station/station_twin.yaml", "diagnosis/diagnosis.json"
PLAN, SPENT = "plan/plan.yaml", "spent.json"
STATIONS: Final = (
    ({"actuator_response.latency": 0.8}, 5, True),
    ({"spatial_geometry.table_height": 0.9}, 2, False),
)
"""Gaps, their seed, and whether the cell is measured. An arm that is late, and a table that is too
low at a station that nobody measured: what its episodes show leads to demonstrations."""
FULL: Final = {"n": 60, "dataset.num_episodes": 1000, "steps": 400}
QUICK: Final = {"n": 6, "dataset.num_episodes": 6, "sim_takes": 4, "steps": 40}
"""At most so much of everything."""
COLUMNS: Final = (
    "injected", "measured", "diagnosed", "plan", "done", "before", "after", "nominal sim after",
    "verdict",
)  # fmt: skip

type Cell = tuple[Mapping[str, float], int, bool]
type Type = Callable[..., None]


@dataclass(frozen=True)
class DemoCell:
    """What came of one cell: its row in the report, rollouts before and after, ids by stage."""

    folder: Path
    row: tuple[str, ...]
    before: Evaluation
    after: Evaluation | None
    verdict: Verdict | None
    ids: Mapping[str, str]


def run(config: DemoConfig) -> int:
    """Run the demo; return 0."""
    folder = _begun(config)
    print(f"Sim-to-sim demo, in {folder}", file=sys.stderr)
    with _timed(folder):
        cells = run_demo(folder, QUICK if config.quick else FULL)
    minutes = float(read_json(folder / SPENT)["seconds"]) / 60
    report = _report(cells, folder, minutes)
    answer = {
        "schema": "gaploop.demo.v1",
        "evidence": "sim-to-sim",
        "better": [is_better(cell) for cell in cells],
        "loops": [
            dict(zip(COLUMNS, cell.row, strict=True))
            | {"before": asdict(cell.before.total), "ids": dict(cell.ids)}
            | ({"after": asdict(cell.after.total)} if cell.after else {})
            | ({"verdict": cell.verdict.to_json()} if cell.verdict else {})
            for cell in cells
        ],
    }
    write_json(folder / "demo.json", answer)
    options.emit(config.json, answer | {"report": report, "minutes": minutes})
    if not config.json:
        table = Table(title=f"Sim-to-sim, {minutes:.1f} min", show_lines=True)
        table.add_column("")
        for name in "AB":
            table.add_column(f"cell {name}")
        for head, *row in zip(COLUMNS, *(cell.row for cell in cells), strict=True):
            table.add_row(head, *row)
        console = options.console()
        console.print(table)
        console.print(f"{message(cells)} Report: {report}", soft_wrap=True, highlight=False)
    return 0


def run_demo(folder: Path, most: Mapping[str, int]) -> list[DemoCell]:
    """Run the demo's commands in `folder`, those that it has run before excepted."""
    type_ = _typist(folder, most)
    type_(folder / "nominal", "evaluate", "--policy.path=base", "--n=60")
    return [
        _close_the_gap(folder / f"cell_{name}", folder / "nominal", cell, type_)
        for name, cell in zip("ab", STATIONS, strict=True)
    ]


def _close_the_gap(at: Path, nominal: Path, cell: Cell, type_: Type) -> DemoCell:
    gaps, gap_seed, is_measured = cell
    robot, env = _gapped("robot", gaps, gap_seed), _gapped("env", gaps, gap_seed)
    type_(at / "before", "evaluate", "--policy.path=base", *env, "--n=60")
    takes, twin = at / "rollouts", list[str]()
    type_(takes, "rollout", "--robot.type=so101_sim", *robot, "--policy.path=base",
          f"--dataset.root={takes}", "--dataset.num_episodes=16")  # fmt: skip
    if is_measured:
        type_(at / "station", "identify", at / "station_check", "--measure", *robot)
        twin = [f"--twin={at / TWIN}", "--policy.path=base", "--n=10"]
    type_(at / "diagnosis", "diagnose", takes, *twin)
    by_script = shlex.join(["--robot.type=so101_sim", *robot, "--teleop.type=scripted"])
    type_(at / "plan", "plan", at / "diagnosis", "--policy.path=base", *twin[:1],
          "--budget.takes=20", f"--takes=[{takes}]", f"--record_with={by_script}")  # fmt: skip
    from gaploop.failure_analysis.diagnosis import load_diagnosis

    diagnosis, plan = load_diagnosis(at / DIAGNOSIS), load_plan(at / PLAN)
    done, last, is_trained = _carried_out(plan, type_)
    before, after, nominal_after, verdict = _evaluation(at / "before"), None, None, None
    if last:
        kept = [w for w in last if w.startswith(("--policy.path=", "--speed_scale="))]
        type_(at / "after", "evaluate", *kept, *env, "--n=60")
        after = nominal_after = _evaluation(at / "after")
        nominal_after = _evaluation(nominal)  # where nothing was trained, nothing is forgotten
        if is_trained:
            type_(at / "nominal_after", "evaluate", *kept, "--n=60")
            nominal_after = _evaluation(at / "nominal_after")
        from gaploop.finetune.gate.judge import compare

        base = _evaluation(nominal)
        verdict = compare(before, after, retention_before=base, retention_after=nominal_after)
    top: Mapping[str, int] = diagnosis.summary["top"]
    named = [f"{words(d)} {n}×" for d, n in sorted(top.items(), key=lambda item: -item[1])]
    if abstained := diagnosis.summary["abstained"]:
        named.append(f"not named {abstained}×")
    differs = "not measured"
    if is_measured:
        differs = ", ".join(map(words, load_twin(at / TWIN).mechanisms)) or "nothing differs"
    advice = [f"collect {i.takes} episodes" if i.takes else words(i.remedy) for i in plan.items]
    row = (
        ", ".join(f"{words(name)}, severity {severity:g}" for name, severity in gaps.items()),
        differs,
        ", ".join(named) or "no failures",
        "; ".join(advice) or "nothing to do",
        done,
        *map(_rate, (before, after, nominal_after)),
        verdict.verdict.value if verdict else "nothing done",
    )
    ids = {
        "failed episodes": ", ".join(f"…{t.uid[-12:]}" for t in diagnosis.takes),
        "diagnosis": diagnosis.id,
        "plan": f"{plan.id}, of diagnosis {plan.diagnosis}",
        **({"policy": after.policy} if after else {}),
    }
    return DemoCell(at, row, before, after, verdict, ids)


def _carried_out(plan: Plan, type_: Type) -> tuple[str, Sequence[str], bool]:
    """Carry the first remedy out that commands can; say what was done, how its policy is evaluated,
    and whether it was trained. The evaluation is the remedy's last command."""
    done = "nothing: no cause was named" if not plan.items else "nothing: the plan has only words"
    for item in plan.items:
        typed = [shlex.split(line)[1:] for line in item.commands]
        if not typed:
            continue
        try:
            for command in typed[:-1]:
                out = next(w.partition("=")[2] for w in reversed(command)
                           if w.startswith(("--output_dir=", "--dataset.root=")))  # fmt: skip
                type_(Path(out), *(w for w in command if not w.startswith("--output_dir=")))
        except UnusableInputError as error:
            done = f"nothing: {error}"
            continue
        is_trained = any(command[0] == "finetune" for command in typed)
        return words(item.remedy), typed[-1], is_trained
    return done, (), False


def _gapped(what: str, gaps: Mapping[str, float], gap_seed: int) -> list[str]:
    return [f"--{what}.gaps={json.dumps(gaps)}", f"--{what}.gap_seed={gap_seed}"]


def _typist(folder: Path, most: Mapping[str, int]) -> Type:
    """Return what runs a command into a folder, unless it has been run."""

    def capped(word: str) -> str:
        named = re.fullmatch(r"--([\w.]+)=(\d+)", word)
        if named and named[1] in most:
            return f"--{named[1]}={min(int(named[2]), most[named[1]])}"
        return word

    def type_(out: Path, *given: object) -> None:
        line = [capped(str(word)) for word in given]
        if line[0] == "finetune":
            line.append(f"--steps={most['steps']}")
        if not any(word.startswith("--dataset.root=") for word in line):
            line.append(f"--output_dir={out}")
        typed, log = shlex.join(["gaploop", *line]), folder / TYPED
        if log.exists() and typed in log.read_text().splitlines():
            return
        lefts = [out, out.with_name(f"{out.name}_journal")]
        lefts += [out.parent / "station_check"] if line[0] == "identify" else []
        for left in lefts:  # of a demo that was stopped; a plan.yaml can't name other folders
            if left.resolve().is_relative_to(folder.resolve()):
                shutil.rmtree(left, ignore_errors=True)
        print(f"$ {typed}", file=sys.stderr)
        with contextlib.redirect_stdout(sys.stderr):
            code = cli.main(line)
        if code == cli.INTERRUPTED:
            raise KeyboardInterrupt
        if code == UnusableInputError.exit_code:
            raise UnusableInputError(f"gaploop {line[0]} failed; what it says is above.")
        with log.open("a") as stream:
            stream.write(f"{typed}\n")

    return type_


def _evaluation(folder: Path) -> Evaluation:
    path = folder / "evaluation.json"
    return Evaluation.from_json(read_json(path), str(path))


def is_better(cell: DemoCell) -> bool:
    """Say whether what was done got promoted."""
    return cell.verdict is not None and cell.verdict.verdict.value == "promote"


def message(cells: Sequence[DemoCell]) -> str:
    """Return how it ended, in a line."""
    first, second = ("got better" if is_better(c) else "is not shown to be better" for c in cells)
    return f"Cell A {first}, cell B {second}."


def _report(cells: Sequence[DemoCell], folder: Path, minutes: float) -> Path:
    """Write `report.html`; return it."""
    from gaploop.failure_analysis.report.report import SIM_TO_SIM

    nominal = _evaluation(folder / "nominal")
    pages, lineage = list[tuple[str, str, str]](), list[tuple[str, str, str]]()
    facts = [(f"{minutes:.1f} min", "on this machine")]
    bars = [page.BarRow("nominal sim", nominal.rate, *nominal.interval, _rate(nominal))]
    for name, cell in zip("AB", cells, strict=True):
        shown = f"{cell.folder.name}/diagnosis/diagnosis.html"
        pages.append((name, cell.row[2], shown))
        pages.append((name, cell.row[3], f"{cell.folder.name}/plan/plan.html"))
        lineage += [(name, stage, ids) for stage, ids in cell.ids.items()]
        change = f"{cell.before.rate:.0%} → {cell.after.rate:.0%}" if cell.after else "no change"
        facts.append((change, f"cell {name}: {cell.row[4]}"))
        told = f"cell {name}, {cell.row[0]}: before"
        for result, label in ((cell.before, told), (cell.after, "after the remedy")):
            if result is not None:
                kind = "good" if result is cell.after else ""
                bars.append(page.BarRow(label, result.rate, *result.interval, _rate(result), kind))
    rows = [(name, *cell.row) for name, cell in zip("AB", cells, strict=True)]
    caption = f"Success over {nominal.trials} rollouts each, on the same scenes; 95 % intervals."
    blocks = [
        page.notice(SIM_TO_SIM),
        *(page.notice(
            f"Cell {name}, {c.verdict.message[:1].lower()}{c.verdict.message[1:]}",
            "good" if is_better(c) else "bad",
          ) for name, c in zip("AB", cells, strict=True) if c.verdict),
        page.facts(facts),
        page.bars(bars, (0.0, 1.0)),
        page.text(caption),
        page.table(("cell", *COLUMNS), rows),
    ]  # fmt: skip
    limits = (
        "Nothing here was measured on a real robot. The cells, their gaps and the demonstrator "
        "are simulated; the policy sees joints and tracked poses, not pixels. One training seed."
    )
    typed = [page.command(line) for line in (folder / TYPED).read_text().splitlines()]
    ids = "Each stage names the one before by id; the files lie in the cell's folder."
    sections = [
        page.section("In short", message(cells), blocks),
        page.section("Diagnosis and plan", "", [page.table(("cell", "", "page"), pages)]),
        page.section("Lineage", ids, [page.table(("cell", "stage", "id"), lineage)]),
        page.section("What was typed", "", typed),
        page.section("What this does not show", limits),
    ]
    title = "Closing the gap, sim-to-sim"
    write_atomically(folder / "report.html", page.page(title, sections, subtitle="gaploop demo"))
    return folder / "report.html"


def _rate(result: Evaluation | None) -> str:
    if result is None:
        return "—"
    low, high = result.interval
    return f"{result.rate:.0%} [{low:.0%}, {high:.0%}]"


def _begun(config: DemoConfig) -> Path:
    """Return the demo's folder, which may be that of a demo that goes on."""
    from gaploop.finetune.lerobot_policy import policy_id

    folder = writable_folder(config.output_dir)
    path, stored = folder / "settings.json", None
    if path.exists():
        stored = read_json(path)
    wanted = {"quick": config.quick, "policy": policy_id("base")}
    if stored not in (None, wanted):  # mixing two demos would lie
        held = ", ".join(f"{name} {value}" for name, value in stored.items())
        raise UnusableInputError(
            f"{folder} holds a demo with other settings ({held}). Name another --output_dir."
        )
    write_json(path, wanted)
    return folder


@contextlib.contextmanager
def _timed(folder: Path) -> Iterator[None]:
    """Add the time that this run takes to that of the demo's earlier ones, however it ends."""
    path, start_s = folder / SPENT, time.monotonic()
    before_s = float(read_json(path)["seconds"]) if path.exists() else 0.0
    try:
        yield
    finally:
        write_json(path, {"seconds": before_s + time.monotonic() - start_s})
