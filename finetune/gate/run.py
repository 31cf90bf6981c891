"""The gate: stage after stage, each with its own rule; what fails stops what would follow.

Outcomes that were recorded elsewhere are replayed as if they came in one by one. The page shows the
verdict, the evidence as it grew, and what it was based on.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import read_text, write_atomically, write_json
from gaploop.core.schema import one_of
from gaploop.core.suite import Suite, SuiteTask
from gaploop.core.vocabulary import Domain, Phase
from gaploop.failure_analysis.report import page as html
from gaploop.failure_analysis.success import SuccessDetector
from gaploop.finetune.evaluation import evidence
from gaploop.finetune.gate.canary import Canary, fleet_stage, reported
from gaploop.finetune.gate.evidence import GateDesign, as_told, make_design
from gaploop.finetune.gate.folder import (
    RESULT,
    SCHEMA,
    SIDES,
    AttemptResult,
    GateAttempt,
    GateFolder,
    attempts,
    outcomes,
    unseal,
)
from gaploop.finetune.gate.judge import (
    CANARY,
    FULL,
    HARDWARE,
    SIM,
    STAGES,
    Answer,
    Outcomes,
    StageAnswer,
    StageResult,
    judge_hardware,
    judge_sim,
    place_of,
    power_curve,
)

SIM_TIMEOUT_S: Final = 8.0
"""Time limit of an attempt in nominal simulation [simulated s]."""

type Try = Callable[[str, GateAttempt], AttemptResult]
type Say = Callable[[str, int], None]
"""Called with a stage and how many pairs of attempts it has."""


def same_policies(folders: Mapping[str, Path], ids: Mapping[str, str]) -> Callable[[], None]:
    """Return what raises UnusableInputError once a policy isn't what the gate began with.

    Files are hashed again only where their size or date has changed.

    Args:
        folders: side to the folder of its policy.
        ids: side to the hash of its policy.
    """
    known: dict[str, dict[Path, tuple[int, int]]] = {}

    def check() -> None:
        for side, folder in folders.items():
            files = ((path, path.stat()) for path in folder.rglob("*") if path.is_file())
            stamps = {path: (stat.st_mtime_ns, stat.st_size) for path, stat in files}
            if stamps == known.get(side):
                continue
            from gaploop.finetune.lerobot_policy import policy_id  # here: torch

            found = policy_id(folder)
            if found != ids[side]:
                raise UnusableInputError(
                    f"The {side} in {folder} was changed while the gate was under way "
                    f"({ids[side]}, now {found}). Put it back and give the same command "
                    "to go on, or begin a new gate with the policy as it is."
                )
            known[side] = stamps

    return check


@dataclass(frozen=True)
class Gate:
    """What is to be decided, and how attempts are made.

    Attributes:
        policies: side to the folder of its policy; empty for recorded outcomes.
        last: the stage after which to stop.
        station: makes attempts on the station; None for the embedded cell.
        recorded: outcomes to replay in the place of attempts.
        reports: what the robots of a fleet report; None leaves out what needs a fleet.
        candidate: folder or name by which a fleet's robots load it.
        format: how policies compute in the cell, as of `load_policy`.
        unchanged: raises where a policy isn't what the gate began with; called before each attempt.
        detector: tells success on the station; None where the suite or a person does.
        simulated: the station's file says that it is none of the real world, such as an emulated
            arm's.
        of_station: the candidate allows for one station: nominal simulation can't judge it.
    """

    suite: Suite
    policies: dict[str, Path]
    last: str = FULL
    station: Try | None = None
    recorded: Replay | None = None
    reports: Path | None = None
    unchanged: Callable[[], None] = lambda: None
    format: str = ""
    candidate: str = ""
    detector: SuccessDetector | None = None
    simulated: bool = False
    of_station: bool = False

    @property
    def shown(self) -> float:
        """Share of a true difference in success that labels show."""
        return 1.0 if self.detector is None else self.detector.shown().value

    @property
    def judged_suite(self) -> Suite:
        """The suite's rules, for rates as they are told."""
        found = self.detector
        if found is None:
            return self.suite
        return as_told(self.suite, found.false_success.value, found.false_failure.value)

    @property
    def domain(self) -> Domain | None:
        """Where the comparison is made; None where nobody knows."""
        if self.recorded is not None:
            return None
        if self.station is not None:
            return Domain.SIM_TARGET if self.simulated else Domain.REAL
        has_gaps = any(task.gaps or task.conditions for task in self.suite.tasks)
        return Domain.SIM_TARGET if has_gaps else Domain.SIM

    @property
    def where(self) -> str:
        """The suite's own simulations, "" where it names none."""
        envs = [task.env for task in self.suite.tasks if self.station is None]
        names = {str(env.get("gym") or env.get("scene") or env["type"]) for env in envs if env}
        return ", ".join(sorted(names))

    @property
    def sim_tasks(self) -> tuple[str, ...]:
        """Tasks of the regression in simulation."""
        if self.of_station:
            return ()
        if self.suite.sim_tasks or self.station is not None or self.recorded is not None:
            return self.suite.sim_tasks if self.recorded is None else ()
        return tuple(dict.fromkeys(task.task for task in self.suite.tasks))

    @property
    def nominal_tasks(self) -> tuple[SuiteTask, ...]:
        """The regression's tasks, in the simulation of the suite's task of that name."""
        known = {task.task: task for task in reversed(self.suite.tasks)}
        return tuple(
            SuiteTask(name, success_check="script", timeout_s=SIM_TIMEOUT_S)
            if name not in known or not known[name].env
            else replace(
                known[name], gaps={}, conditions={}, dimension="", candidate_speed=1.0
            )  # a station's speed forgets nothing
            for name in self.sim_tasks
        )

    @property
    def cell_tasks(self) -> tuple[SuiteTask, ...]:
        """What will be tried in simulation here."""
        tasks = self.nominal_tasks
        here = self.station is None and self.recorded is None and self.last != SIM
        return (*tasks, *self.suite.tasks) if here else tasks


@dataclass(frozen=True)
class GateResult:
    """What was decided.

    Attributes:
        stages: those that ran, in order.
        not_run: stage to why it didn't run.
    """

    verdict: Answer
    message: str
    design: GateDesign
    stages: tuple[StageResult, ...]
    not_run: dict[str, str] = field(default_factory=dict)
    evidence: str = ""
    canary: Canary | None = None
    folder: Path = Path()

    def stage(self, name: str) -> StageResult | None:
        """Return what a stage found, if it ran."""
        return next((stage for stage in self.stages if stage.stage == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return what `gate.json` holds, but for what only the folder knows."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict.value,
            "message": self.message,
            "evidence": self.evidence,
            "stages": [asdict(stage) for stage in self.stages],
            "not_run": self.not_run,
            "design": asdict(self.design),
        }


def plan(suite: Suite, seed: int = 0, shown: float = 1.0) -> GateDesign:
    """Return the plan of a suite's comparison, whose labels show so much of a true difference.

    Raises:
        UnusableInputError: its rules can't be met.
    """
    design = make_design(suite.rules, len(suite.tasks))
    return replace(design, curve=power_curve(suite, design, seed, shown))


def run_gate(
    gate: Gate, folder: GateFolder, design: GateDesign,
    say: Say = lambda _stage, _done: None,
) -> GateResult:  # fmt: skip
    """Run the stages that haven't run yet, up to `gate.last`; write `gate.json`."""
    suite, stages, not_run = gate.suite, list[StageResult](), dict[str, str]()
    canary: Canary | None = None

    judge_station = partial(judge_hardware, suite=gate.judged_suite, design=design)
    for name in STAGES:
        if why := _why_not(name, gate, stages):
            not_run[name] = why
        elif name == SIM:
            tasks = gate.nominal_tasks
            judge = partial(judge_sim, suite=suite, tasks=gate.sim_tasks)
            stages.append(_contested(SIM, gate, folder, tasks, judge, say, None))
        elif name == HARDWARE and gate.recorded is not None:
            stages.append(judge_station(gate.recorded.outcomes))
        elif name == HARDWARE:
            stages.append(
                _contested(HARDWARE, gate, folder, suite.tasks, judge_station, say, gate.station)
            )
        elif gate.reports is not None:
            canary = canary or reported(suite, gate.reports, folder, gate.candidate)
            stages.append(fleet_stage(canary, name))
    gate.unchanged()
    if not stages:
        raise UnusableInputError(
            f"--stage={gate.last}: no stage is left. sim: {not_run[SIM]}. Leave --stage out."
        )

    last = stages[-1]
    compared = any(stage.stage == HARDWARE for stage in stages)
    verdict = Answer.INCONCLUSIVE
    if last.answer is StageAnswer.FAILED:
        verdict = Answer.REJECT
    elif last.answer is StageAnswer.PASSED and compared:
        verdict = Answer.PROMOTE
    domain = gate.domain
    prefix = "Sim-to-sim: " if domain is Domain.SIM_TARGET else ""
    message = f"{prefix}{last.stage} {last.answer.value}: {last.message}."
    if last.answer is StageAnswer.PASSED and not compared:
        message += " Not compared on the station yet."
    where = "recorded outcomes; their order wasn't drawn here"
    if domain is not None:
        where = evidence(domain, gate.where)
    if gate.detector is not None:
        where += (
            f". Success told by pictures, {gate.detector.how}: {gate.detector.words()}; rates "
            f"are as told, true differences {1 / gate.shown:.2f} times as large"
        )
    result = GateResult(
        verdict, message, design, tuple(stages), not_run, where, canary, folder.path
    )
    opened = unseal(folder.path) if verdict is not Answer.INCONCLUSIVE else None
    record = {"order_sha256": folder.commitment, "order": opened, "contest": vars(folder.contest)}
    write_json(folder.path / RESULT, result.to_json() | record)
    return result


def _why_not(name: str, gate: Gate, stages: Sequence[StageResult]) -> str:
    """Return why a stage doesn't run, or "" where it does."""
    if stages and stages[-1].answer is not StageAnswer.PASSED:
        return f"{stages[-1].stage} didn't pass"
    if STAGES.index(name) > STAGES.index(gate.last):
        return f"--stage={gate.last}"
    if name == SIM and gate.of_station:
        return "the candidate was recalibrated for its station, and is wrong in nominal simulation"
    if name == SIM and not gate.sim_tasks:
        return "recorded outcomes" if gate.recorded else "the suite names no sim_tasks"
    if name in (CANARY, FULL):
        if gate.recorded is not None:
            return "recorded outcomes"
        if gate.reports is None:
            return "no --reports of a fleet"
    return ""


def _contested(
    stage: str, gate: Gate, folder: GateFolder, tasks: Sequence[SuiteTask],
    judge: Callable[[Outcomes], StageResult], say: Say, station: Try | None,
) -> StageResult:  # fmt: skip
    """Make attempts until the stage is decided, from where it stopped."""
    count, tried = len(tasks), folder.tried(stage)
    turns = attempts(folder.seed, stage, count)
    done = list(zip(islice(turns, len(tried)), tried, strict=True))
    with ExitStack() as stack:
        attempt = station
        while True:
            result = judge(outcomes(done, count))
            say(stage, result.pairs)
            if result.answer is not StageAnswer.OPEN:
                repeats, taken_back = dict.fromkeys(SIDES, 0), dict.fromkeys(SIDES, 0)
                for turn, made in done:
                    repeats[turn.side] += made.repeats
                for (turn, _), (_, later) in pairwise(done):
                    taken_back[turn.side] += bool(later.before)
                return replace(result, repeats=repeats, taken_back=taken_back)
            if attempt is None:
                from gaploop.finetune.gate.attempts import cell_attempts  # here: torch

                phases = stage == HARDWARE and bool(gate.suite.rules.fixes_phase)
                attempt = stack.enter_context(
                    cell_attempts(gate.policies, tasks, gate.format, phases)
                )
            for turn in islice(turns, 2 * count - len(done) % (2 * count)):
                gate.unchanged()
                done.append((turn, attempt(stage, turn)))
                folder.add(done[-1][1])


NEEDED: Final = ("policy", "success")
OPTIONAL: Final = ("task", "pair", "safety", "phase")
TRUE: Final = ("1", "true", "yes", "y", "success")
FALSE: Final = ("0", "false", "no", "n", "failure")


@dataclass(frozen=True)
class Replay:
    """Outcomes of a file, in complete rounds."""

    tasks: tuple[str, ...]
    outcomes: Outcomes


def read_outcomes(path: Path, suite: Suite | None) -> Replay:
    """Read a CSV file with a line per attempt: policy, success, and what of `OPTIONAL` is known.

    `policy` is baseline or candidate, `phase` that in which it failed. Attempts of a task with the
    same `pair` belong together; without that column the first of each do, the second of each, and
    so on.

    Raises:
        UnusableInputError: a column or value is missing or unknown, or there is no pair at all.
    """
    try:
        reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
        columns, lines = reader.fieldnames or [], list(reader)
    except csv.Error as error:
        raise UnusableInputError(f"{path} isn't a CSV file ({error}).") from None
    for name in NEEDED:
        if name not in columns:
            raise UnusableInputError(
                f"{path} has no column '{name}'. Needed: {', '.join(NEEDED)}; known too: "
                f"{', '.join(OPTIONAL)}. It has: {', '.join(columns) or 'none'}."
            )
    rows = list[tuple[str, str, str, list[float]]]()  # side, task, pair, what came of it
    for n, line in enumerate(lines, 2):
        where, side = f"{path}, line {n}", (line["policy"] or "").strip().lower()
        if side not in SIDES:
            raise unknown_choice("policy", side, SIDES, where)
        success = _flag(line["success"], f"{where}, success")
        safety = _flag(line.get("safety") or "0", f"{where}, safety")
        task, pair, phase = ((line.get(name) or "").strip() for name in ("task", "pair", "phase"))
        place = place_of(success, one_of(Phase, "phase")(phase, where) if phase else "")
        rows.append((side, task, pair, [success, safety, place]))
    named = tuple(dict.fromkeys(task for _, task, _, _ in rows))
    tasks = tuple(task.name for task in suite.tasks) if suite else named
    if suite and named == ("",) and len(tasks) == 1:
        named, rows = tasks, [(side, tasks[0], pair, came) for side, _, pair, came in rows]
    for name in named:
        if name not in tasks:
            raise unknown_choice("task", name, tasks, f"{path}, column task")
    # Of each task the pairs by name, in the order in which they were complete: [side][success,
    # safety, place of the phase].
    pairs: dict[str, dict[str, list[list[float]]]] = {name: {} for name in tasks}
    waiting: dict[tuple[str, str], dict[str, list[float]]] = {}
    counts = Counter[tuple[str, str]]()
    for side, task, pair, came in rows:
        key = pair or f"#{counts[task, side]}"
        counts[task, side] += 1
        half = waiting.setdefault((task, key), {})
        if side in half:
            raise UnusableInputError(
                f"{path}: pair {pair} of task '{task}' names {side} twice. Number pairs so that "
                "each holds one attempt of both policies."
            )
        half[side] = came
        if len(half) == len(SIDES):
            pairs[task][key] = [half[side] for side in SIDES]
    if not tasks or not all(pairs.values()):
        lacking = [name for name, found in pairs.items() if name and not found] or ["the file"]
        raise UnusableInputError(
            f"{path}: no pair of attempts, one by each policy, of: {', '.join(lacking)}. Each task "
            "needs lines with policy baseline and with policy candidate."
        )
    rounds = min(map(len, pairs.values()))
    kept = [list(found.values())[:rounds] for found in pairs.values()]
    moved = np.array(kept).transpose(3, 1, 0, 2)  # from tasks, rounds, side, kind
    phase = moved[2] if "phase" in columns else None
    return Replay(tuple(pairs), Outcomes(moved[0] > 0, moved[1] > 0, phase))


def suite_of(tasks: Iterable[str], where: str) -> Suite:
    """Return the suite of a file that comes without one: its tasks, with no pass rate to reach."""
    entries = tuple(SuiteTask(name or "recorded outcomes", min_pass_rate=0.0) for name in tasks)
    return Suite("recorded outcomes", entries, where=where)


def _flag(value: str | None, where: str) -> bool:
    word = (value or "").strip().lower()
    if word not in TRUE + FALSE:
        raise UnusableInputError(f"{where}: {value!r} must be 1 or 0, or true or false.")
    return word in TRUE


# -- the gate's page ---------------------------------------------------------------------------

REPORT: Final = "report.html"
EVIDENCE: Final = "evidence.png"
AGAINST: Final = "#b3402e"
KINDS: Final = {Answer.PROMOTE: "good", Answer.REJECT: "bad", Answer.INCONCLUSIVE: ""}
TITLES: Final = {
    "sim": "Regression in simulation",
    "hardware": "Comparison on the station",
    "canary": "Canary",
    "full": "Whole fleet",
}


def write_report(result: GateResult, folder: Path, names: tuple[str, str]) -> Path:
    """Write `report.html` and its pictures.

    Args:
        names: baseline and candidate, as people know them.
    """
    rows = [(TITLES[s.stage], s.answer.value, s.pairs, s.message) for s in result.stages] + [
        (TITLES[name], "not run", "", why) for name, why in result.not_run.items()
    ]
    pairs: list[tuple[str, str]] = [(result.verdict.value, f"{names[1]} against {names[0]}")]
    hardware = result.stage("hardware")
    if hardware is not None and hardware.difference is not None:
        value, low, high = hardware.difference
        pairs.append((f"{value:+.1%}", f"difference, {low:+.1%} to {high:+.1%}"))
        pairs.append((str(2 * hardware.pairs), "attempts in the comparison"))
    blocks = [
        html.notice(result.message, KINDS[result.verdict]),
        html.facts(pairs),
        html.table(("stage", "answer", "pairs or episodes", "why"), rows, numbers=(2,)),
        html.text(f"Evidence: {result.evidence}."),
    ]
    lead = "Stages run in this order; a failed stage stops the later ones."
    sections = [html.section("Answer", lead, blocks)]
    for stage in result.stages:
        if stage.tracks:
            picture = html.figure_png(evidence_figure(stage))
            if stage.stage == "hardware":
                (folder / EVIDENCE).write_bytes(picture)
            sections.append(_stage(stage, picture))
    canary = result.canary
    if canary is not None:
        lead = f"{canary.phase.value.replace('_', ' ').capitalize()}: {canary.message}."
        sections.append(html.section("Canary and whole fleet", lead))
    design = result.design
    lead = (
        "The comparison as planned before the first attempt: better by more than "
        f"{design.margin:.1%}, at most {design.max_pairs} pairs. A test of fixed size "
        f"needs {design.fixed_pairs}."
    )
    told = "Simulated with independent attempts at the success that the suite expects."
    head = ("true difference", "promoted", "pairs on average")
    expected = [
        (f"{p.difference:+.0%}", f"{p.promoted:.0%}", f"{p.pairs:.0f}") for p in design.curve
    ]
    drawn = html.table(head, expected, numbers=(0, 1, 2))
    sections.append(html.section("What to expect", lead, [drawn, html.text(told)]))
    blocks = [
        html.text(
            "Wilson intervals describe success rates; they don't allow for having looked along "
            "the way. The interval of the difference does."
        ),
        html.text(
            "The margin rests on retrain_sd, how much trainings on the same data differ. One "
            "candidate is one training: no number of attempts shows what another would do."
        ),
    ]
    if open_words := [s.stage for s in result.stages if s.answer is StageAnswer.OPEN]:
        blocks.append(html.text(f"Not over yet: {', '.join(open_words)}."))
    sections.append(html.section("What this does not show", "", blocks))
    path = folder / REPORT
    write_atomically(path, html.page("Gate", sections, subtitle=f"{names[1]} against {names[0]}"))
    return path


def evidence_figure(stage: StageResult) -> Any:
    """Draw the evidence over the pairs of attempts, with what it has to reach.

    The evidence is drawn as a share of its boundary, so that statements with several can share
    an axis: at 1 a statement counts as shown.
    """
    # The two main statements first, then the four that came nearest to being shown.
    rest = sorted(stage.tracks[2:], key=lambda t: -max(t.log10, default=0.0) / t.boundary)
    tracks = [*stage.tracks[:2], *rest[:4]]
    rounds = max((len(track.log10) for track in tracks), default=1)
    per_round = stage.pairs / max(rounds, 1)
    with html.new_figure(7.6, 3.6) as (drawn, axes):
        axes.axhline(1.0, color=html.INK, lw=1, ls=(0, (4, 3)))
        axes.text(0, 1.03, "shown", color=html.INK, fontsize=9, va="bottom")
        for n, track in enumerate(tracks):
            x = [per_round * (k + 1) for k in range(len(track.log10))]
            shares = [max(e / track.boundary, -1.5) for e in track.log10]
            colour = html.ACCENT if track.promotes else AGAINST
            axes.plot(x, shares, color=colour, lw=2.2 if n < 2 else 1, alpha=1 if n < 2 else 0.55)
        # Labels stand at the ends of their lines, moved apart.
        ends = [min(max(t.log10[-1] / t.boundary, -1.5), 1.5) for t in tracks]
        lowest = -1.6
        for y, n in sorted((y, n) for n, y in enumerate(ends)):
            lowest, track = max(y, lowest + 0.22), tracks[n]
            axes.annotate(
                track.message, (stage.pairs, lowest), (6, 0), textcoords="offset points",
                color=html.ACCENT if track.promotes else AGAINST, fontsize=9, va="center",
                annotation_clip=False,
            )  # fmt: skip
        axes.set_ylim(-1.6, 1.6)
        axes.set_xlim(0, max(stage.pairs, 1))
        axes.set_xlabel("pairs of attempts")
        axes.set_ylabel("evidence, of what is needed")
    return drawn


def _stage(stage: StageResult, picture: bytes) -> html.Section:
    rows = [(name, str(rate)) for name, rate in stage.rates.items()]
    lead = f"{stage.answer.value.capitalize()} after {stage.pairs} pairs: {stage.message}."
    caption = (
        "Evidence over the pairs. Blue speaks for the candidate, red against it. Where a "
        "line reaches the dashed one, its statement is shown at the stated error rate, however "
        "often one looks."
    )
    blocks = [
        html.figure(picture, caption, 860),
        html.table(("success", "rate, 95 % Wilson interval"), rows),
    ]
    head = ("statement", "for", "shown after round", "evidence, powers of ten", "needed")
    shown = [
        (
            track.message,
            "promotion" if track.promotes else "no answer" if track.ends_only else "rejection",
            track.crossed or "—",
            f"{max(track.log10, default=0.0):.2f}",
            f"{track.boundary:.2f}",
        )
        for track in stage.tracks
    ]
    blocks.append(html.table(head, shown, numbers=(2, 3, 4)))
    for what, counts in (
        ("Tries that the operator said didn't count", stage.repeats),
        ("Answers that the operator took back and gave anew", stage.taken_back),
    ):
        if any(counts.values()):
            told = ", ".join(f"{side} {count}" for side, count in counts.items())
            blocks.append(html.text(f"{what}: {told}."))
    return html.section(TITLES[stage.stage], lead, blocks)
