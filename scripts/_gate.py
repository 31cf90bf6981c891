"""What `gaploop gate` does: asks the stations, decides, writes why."""

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import sha256, writable_folder, write_json
from gaploop.core.progress import loading
from gaploop.core.station import SIM_STATION, load_station
from gaploop.core.suite import Suite, load_suite
from gaploop.core.vocabulary import Domain
from gaploop.datasets.hub.target import is_hub_name
from gaploop.failure_analysis.success import SuccessDetector, as_json, load_detector, told
from gaploop.finetune import gate as gate_package
from gaploop.finetune.gate.evidence import (
    GateDesign,
    as_told,
    fixed_pairs,
    make_design,
    retrain_margin,
)
from gaploop.finetune.gate.folder import (
    SUITE,
    Contest,
    GateFolder,
    only_gate,
    withdraw,
    write_promotion,
)
from gaploop.finetune.gate.judge import STAGES, Answer
from gaploop.finetune.gate.run import (
    Gate,
    GateResult,
    plan,
    read_outcomes,
    run_gate,
    same_policies,
    suite_of,
    write_report,
)
from gaploop.scripts import options
from gaploop.scripts.cli import command
from gaploop.scripts.gate import GateConfig

FOLDER: Final = Path("outputs") / "gate"


def run(config: GateConfig) -> int:
    """Run the gate; print."""
    if config.suite == Path("help"):
        options.emit(False, {}, example_suite().read_text().rstrip())
        return 0
    result = decide(config, partial(print, file=sys.stderr))
    told = {"output_dir": result.folder, "baseline": config.baseline, "candidate": config.candidate}
    lines = [f"{stage.stage}: {stage.answer.value}. {stage.message}" for stage in result.stages]
    lines += [f"{name}: not run ({why})" for name, why in result.not_run.items()]
    lines += [f"{result.verdict.value.upper()}. {result.message}", f"Evidence: {result.evidence}."]
    lines.append(f"Report: {result.folder / 'report.html'}")
    options.emit(config.json, result.to_json() | told, "\n".join(lines))
    return result.verdict.exit_code


@command
def gate(config: GateConfig) -> GateResult:
    """Decide whether a candidate may replace the baseline; see `decide`."""
    return decide(config)


def decide(config: GateConfig, tell: Callable[[str], None] = lambda _words: None) -> GateResult:
    """Decide whether a candidate may replace the baseline; write report, outcomes and record.

    On a station without --command, or with tasks that an operator judges, it asks at the terminal.

    Args:
        config: --suite=help is `run`'s.
        tell: called with what is planned, before the first attempt, and with what else a person
            should know by the way.

    Raises:
        UnusableInputError: policies, suite or folder can't be used; why, and how to fix it.
    """
    if config.stage not in STAGES:
        raise unknown_choice("stage", config.stage, STAGES, "--stage")
    for name in ("baseline", "candidate") if config.outcomes is None else ():
        if not getattr(config, name):
            raise UnusableInputError(
                f"Which {name}? Name its folder with --{name}=DIR, or give --outcomes=FILE.csv."
            )
    with contextlib.ExitStack() as stack:
        with loading("gaploop gate"):
            what, folder = _prepared(config, stack)
        with options.progress("Planning"):
            design = plan(what.judged_suite, folder.seed, what.shown)
        if planned := _planned(what, design):
            tell(planned)
        if what.detector is not None:
            tell(_price(what.suite, what.detector, design))
        if folder.resumed:
            tell(f"Going on in {folder.path}.")
        if what.station is not None:  # a bar would be drawn over what the operator is asked
            result = run_gate(what, folder, design)
        else:
            seen: dict[str, int] = {}
            with options.progress("Attempts, pairs") as advance:

                def show(stage: str, done: int) -> None:  # nobody is told how it stands
                    advance(max(done - seen.get(stage, 0), 0))
                    seen[stage] = done

                result = run_gate(what, folder, design, show)
        names = config.baseline or "baseline", config.candidate or "candidate"
        write_report(result, folder.path, names)
        if result.verdict is Answer.PROMOTE:
            kept = {s: p for s, p in what.policies.items() if p.exists()}  # no script's name
            write_promotion(folder.path, kept, config.suite, config.outcomes)
        elif withdrawn := withdraw(folder.path):
            tell(f"An earlier stage had promoted it: that record is {withdrawn.name} now.")
    return result


def example_suite() -> Path:
    """Return the file of the embedded cell's suite, which explains itself."""
    return Path(gate_package.__path__[0]) / "suite_so101_cell.yaml"


def _prepared(config: GateConfig, stack: contextlib.ExitStack) -> tuple[Gate, GateFolder]:
    """Return what is to be decided, and its folder, which is held until `stack` closes."""
    suite: Suite | None = None
    if config.suite is not None:
        station = load_station(config.station) if config.station else SIM_STATION
        suite = load_suite(config.suite, station)
    elif config.outcomes is None:
        suite = load_suite(example_suite())
    recorded = read_outcomes(config.outcomes, suite) if config.outcomes else None
    suite = suite or suite_of(recorded.tasks if recorded else (), str(config.outcomes))
    written = options.jsonable(suite) | {"where": ""}
    if config.policy.format:
        from gaploop.finetune.lerobot_formats import format_named

        if config.command or suite.needs_person or recorded is not None:
            raise UnusableInputError(
                "--policy.format is of the embedded cell: on a station write it into --command."
            )
        format_named(config.policy.format)
        written["policy_format"] = config.policy.format
    at_station = recorded is None and bool(suite.needs_person or config.command)
    if recorded is not None:
        is_told = recorded.outcomes.phase is not None
    else:
        is_told = all(
            task.success_check == "operator" if at_station else not task.env for task in suite.tasks
        )
    if suite.rules.fixes_phase and not is_told:
        raise UnusableInputError(
            f"{suite.where}: fixes_phase: nobody says in which phase attempts at every task fail. "
            "The embedded cell does, an operator (success_check: operator), and a column phase of "
            "--outcomes. Take it out, or have one of these say it."
        )
    detector = _detector(config, suite) if at_station else None
    if detector is not None:
        written["success_detector"] = as_json(detector)
    # What a comparison costs, not what it decides: taken out, the same gate goes on.
    rules = {name: value for name, value in written["rules"].items() if name != "fixes_phase"}
    text = json.dumps(written | {"rules": rules}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    policies, folders, of_station = dict[str, Path](), dict[str, Path](), False
    if config.outcomes is not None:
        ids = (sha256(config.outcomes),) * 2
    else:
        from gaploop.finetune.lerobot_policy import policy_id, resolve, warn_withdrawn
        from gaploop.finetune.recalibration import is_recalibrated

        named = {side: getattr(config, side) for side in ("baseline", "candidate")}
        learned = {side: said for side, said in named.items() if not options.is_script(said)}
        folders = {side: resolve(said) for side, said in learned.items()}
        for place in folders.values():
            warn_withdrawn(place)
        policies = {side: folders.get(side, Path(said)) for side, said in named.items()}
        one, other = (policy_id(folders[s]) if s in folders else named[s] for s in named)
        ids = one, other
        of_station = "candidate" in folders and is_recalibrated(folders["candidate"])
    contest = Contest(*ids, digest)
    if config.reset != "person" and not config.command:
        raise UnusableInputError(
            "--reset goes with a station and --command='gaploop rollout …'; the embedded cell sets "
            "itself up."
        )
    short = hashlib.sha256("\n".join((*ids, digest)).encode()).hexdigest()[:12]
    path = writable_folder(config.output_dir or FOLDER / short)
    stack.enter_context(only_gate(path))
    folder = GateFolder(path, contest, config.seed, suite.rules.fixes_phase)
    write_json(path / SUITE, written)
    same = same_policies(folders, dict(zip(("baseline", "candidate"), ids, strict=True)))
    named_as = policies.get("candidate", "")
    gate = Gate(
        suite, policies, config.stage, None, recorded, config.reports, same, config.policy.format,
        config.candidate if is_hub_name(config.candidate) else str(named_as), of_station=of_station,
    )  # fmt: skip
    if at_station:  # a person or a command tries them
        from gaploop.finetune.gate.attempts import StationAttempts

        attempts = StationAttempts(
            path, policies, suite.tasks, config.command, ask, reset=config.reset,
            told=partial(told, detector) if detector is not None else None,
            asks_phase=bool(suite.rules.fixes_phase),
        )  # fmt: skip
        simulated = bool(config.station and load_station(config.station).domain is not Domain.REAL)
        gate = replace(gate, station=attempts, detector=detector, simulated=simulated)
    if gate.cell_tasks:
        from gaploop.finetune.gate.attempts import check_tasks

        check_tasks(gate.cell_tasks)
    return gate, folder


def _detector(config: GateConfig, suite: Suite) -> SuccessDetector | None:
    """Return what tells success on the station, where the suite leaves it to the station."""
    by_itself = [task.is_told for task in suite.tasks]
    if config.station is None or not any(by_itself):
        return None
    found = load_detector(config.station, load_station(config.station))
    if found is not None and not all(by_itself):
        raise UnusableInputError(
            f"{suite.where}: the station tells success of some tasks and others have a check or an "
            "operator. Let all be judged in one way: labels that are wrong differently don't "
            "compare."
        )
    return found


def ask(question: str) -> str:
    """Ask on stderr, so that stdout stays free for JSON; return the answer.

    Raises:
        UnusableInputError: nobody is there to answer.
    """
    print(question, end=" ", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise UnusableInputError(
            "Nobody answers: the input is closed. Outcomes so far are kept; run the same command "
            "in a terminal to go on."
        )
    return line


def _price(suite: Suite, detector: SuccessDetector, design: GateDesign) -> str:
    """Return how often labels are wrong, and how many more attempts that takes."""
    alone, worst = fixed_pairs(suite.rules, retrain_margin(suite.rules)), "no number is enough"
    wrong = detector.false_success.high, detector.false_failure.high
    if sum(wrong) < 1:
        with contextlib.suppress(UnusableInputError):
            rules = as_told(suite, *wrong).rules
            worst = f"{make_design(rules).fixed_pairs / alone:.1f} times"
    return (
        f"Success is told by the last pictures ({detector.how}): {detector.words()}. That takes "
        f"{design.fixed_pairs / alone:.1f} times the attempts of labels that are right (at the "
        f"intervals' upper ends: {worst}), if it is wrong as often for both policies."
    )


def _planned(gate: Gate, design: GateDesign) -> str:
    """Return what the stages up to the last will cost and find, printed before they begin."""
    suite, rules = gate.suite, gate.suite.rules
    lines = []
    if gate.sim_tasks:
        lines.append(
            f"Nominal simulation: at most {rules.sim_pairs} pairs of attempts, until it is shown "
            f"whether the candidate loses {rules.retention_margin:.0%}."
        )
    if gate.last == STAGES[0]:
        return "\n".join(lines)
    lines += [
        f"Comparison: better by more than {design.margin / gate.shown:.1%}, false promotion at "
        f"most {rules.alpha:.0%}, at most {design.max_pairs} pairs of attempts (a test of fixed "
        f"size: {design.fixed_pairs}).",
        f"With a baseline that succeeds in {rules.baseline_rate:.0%}, by all rules of the suite:",
    ]
    lines += [
        f"  {point.difference:+4.0%} true difference: promoted in {point.promoted:4.0%}, "
        f"{point.pairs:4.0f} pairs on average"
        for point in design.curve
    ]
    at_gain = min(design.curve, key=lambda point: abs(point.difference - rules.gain))
    wanted = max(task.min_pass_rate for task in suite.tasks)
    if at_gain.promoted < rules.power - 0.05:
        short = f"That is less power than the {rules.power:.0%} wanted: "
        if rules.baseline_rate + rules.gain < wanted + 0.05:
            lines.append(
                f"{short}a gain of {rules.gain:.0%} over {rules.baseline_rate:.0%} is hardly above "
                f"min_pass_rate {wanted:.0%}. Lower min_pass_rate, raise gain, or fix "
                "baseline_rate if the baseline does better."
            )
        else:
            lines.append(f"{short}raise max_pairs, or gain.")
    if rules.fixes_phase:
        lines.append(
            f"Declared: it fixes {rules.fixes_phase}. Once it is shown to gain less than "
            f"{rules.gain:.0%} in getting past that, the gate ends early without an answer. The "
            "figures above don't count that."
        )
    return "\n".join(lines)
