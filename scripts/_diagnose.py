"""What `gaploop diagnose` does: episodes set against a reference, and what they show together."""

import hashlib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder, write_atomically, write_json
from gaploop.core.paths import snapshot_of
from gaploop.core.plan import Plan
from gaploop.core.run_record import file_input, takes_input, write_run
from gaploop.core.station import StationScene, load_station
from gaploop.core.take import Take
from gaploop.core.twin import Twin, load_twin
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.datasets.absolute.examine import examine
from gaploop.datasets.absolute.findings import (
    FEWEST,
    MISTAKES,
    AbsoluteFinding,
    AbsoluteReport,
    set_beside,
)
from gaploop.datasets.labels import open_labelled
from gaploop.datasets.layout import is_dataset, read_info
from gaploop.datasets.lerobot_read import load_takes
from gaploop.datasets.v3_files import recorded_success
from gaploop.failure_analysis import diagnosis
from gaploop.failure_analysis.attribution import engineer_labels
from gaploop.failure_analysis.cameras.camera_check import check_takes
from gaploop.failure_analysis.cameras.policy_cameras import CameraReference
from gaploop.failure_analysis.diagnosis import (
    Diagnosis,
    deployment,
    save_diagnosis,
    shown_alone,
)
from gaploop.failure_analysis.factors import attempted, cohort_lines, cohort_of_trials, trials_of
from gaploop.failure_analysis.planning.gains import Budget
from gaploop.failure_analysis.planning.ledger import LEDGER, read_ledger
from gaploop.failure_analysis.planning.planner import PlanRequest, plan_for
from gaploop.failure_analysis.planning.remedies import DELAY, SLUGGISH, PlanContext
from gaploop.failure_analysis.reference import (
    LEAST_TAKES,
    Reference,
    build_reference,
    load_reference,
    save_reference,
)
from gaploop.failure_analysis.report.report import (
    absolute_page,
    cohort_page,
    diagnosis_lines,
    diagnosis_report,
    shown_takes,
)
from gaploop.failure_analysis.station import without_telemetry, words
from gaploop.failure_analysis.views.joints import remember_units, with_units
from gaploop.failure_analysis.views.view import TakeView
from gaploop.scripts import options
from gaploop.scripts.cli import command
from gaploop.scripts.diagnose import DiagnoseConfig
from gaploop.sim.catalogue import find_task
from gaploop.sim.recolour import THE_CELLS, recoloured_take

PLANNED = 50
"""Takes that the report's plan may ask for."""
INCONCLUSIVE = 3
MORE = 1.5
"""Times what the nominal simulation shows, from which on the station shows more of it."""


def run(config: DiagnoseConfig) -> int:
    """Diagnose; exit code 0, whatever was found."""
    if config.factors:
        return _factors(config)
    if config.sim is not None:
        raise UnusableInputError("--sim says what is compared: add --factors.")
    if config.save_reference is not None:
        return _save_reference(config, config.save_reference)
    _scene(config)  # a wrong file is told before minutes of work
    report = _examined(config)
    if report is not None and config.twin is not None:
        twin = load_twin(config.twin)
        if twin.world and report.findings and config.policy.path:
            _set_nominal_beside(report, twin, config)
        report.findings = [_in_twin(finding, twin) for finding in report.findings]
    if report is not None and not config.json:
        options.emit(False, {}, "\n".join([*report.lines(), ""]))
    if report is not None and report.findings:
        page = writable_folder(_folder(config)) / "curves.html"
        write_atomically(page, absolute_page(report))
        options.emit(False, {}, "" if config.json else f"Curves: {page}\n")
    first = {"absolute": report.to_json()} if report is not None else {}
    if report is not None and _no_outcome(config):
        text = "No episode has an outcome, so this is what commands, readings and pictures show by "
        text += "themselves. To set failures against successes, label them: "
        text += _how_to_label(config.dataset.folder())
        beside, lines = _beside(config, report)
        options.emit(config.json, first | beside, "\n".join([*lines, text]))
        return 0

    def say(text: str) -> None:
        options.emit(False, {}, "" if config.json else f"{text}\n")

    found = _diagnosed(config, report, say)
    lines = [*diagnosis_lines(found), str(_folder(config) / "report.html")]
    options.emit(config.json, {**found.to_json(), **first}, "\n".join(lines))
    return 0


def _examined(config: DiagnoseConfig) -> AbsoluteReport | None:
    """Return what a dataset shows by itself, without reference or outcome; None of a journal."""
    root = config.dataset.folder()
    if not is_dataset(root):
        return None
    with options.progress("Looking at motion and pictures"):
        report = examine(root, pictures=config.pictures)
    if config.policy.path and not options.is_script(config.policy.path):
        trained = config.trained_on if config.trained_on and is_dataset(config.trained_on) else None
        with options.progress("Asking the policy about these rows"):
            from gaploop.datasets.absolute.checkpoint import read_checkpoint
            from gaploop.finetune.lerobot_open_loop import examine_policy
            from gaploop.finetune.lerobot_policy import resolve

            examine_policy(
                config.policy.path, root, report, demonstrations=False, trained_on=trained
            )
        # Rollouts hold what the policy commanded: its own mistakes show against its training set.
        trained = trained or read_checkpoint(resolve(config.policy.path)).trained_on
        if trained is not None and trained.resolve() != root.resolve():
            own = AbsoluteReport(trained)
            with options.progress("Asking the policy about its training set"):
                examine_policy(config.policy.path, trained, own, demonstrations=True)
            known = {f.kind for f in report.findings}
            report.findings += [
                replace(f, sentence=f"Against its training set: {f.sentence}")
                for f in own.findings
                if f.kind in MISTAKES and f.kind not in known
            ]
            report.rank()
    return report


def _in_twin(finding: AbsoluteFinding, twin: Twin) -> AbsoluteFinding:
    """Return a finding without what a twin rules out: a late arm that it has is no wrong fps."""
    like = {"action_lag": (DELAY, *SLUGGISH), "speed_limit": SLUGGISH}.get(finding.kind, ())
    same = [p for p in twin.parameters if p.differs and p.mechanism in like]
    if not same:
        return finding
    has = ", ".join(f"{p.key} {p.estimate:.3g} {p.unit}" for p in same)
    instead = f"The twin has it ({has}): its cost is below."
    return replace(finding, not_told_apart="", command=instead, to_mend=False)


def _set_nominal_beside(report: AbsoluteReport, twin: Twin, config: DiagnoseConfig) -> None:
    """Take out what the policy's episodes in the nominal simulation show, too, and say so.

    That is the simulation's, or the policy's, and no difference of the station.
    """
    from gaploop.finetune.lerobot_gym import Demonstrations, evaluate_gym
    from gaploop.sim.lerobot_worlds import world_of
    from gaploop.sim.world import WorldSpec

    env, roles = world_of(twin)
    says, policy = "Rolling out without the gap", config.policy.required()
    with TemporaryDirectory() as folder, options.progress(says, FEWEST) as advance:
        root = Path(folder) / "nominal"
        with Demonstrations(root, "nominal", failures=True) as kept:
            evaluate_gym(
                policy, env, FEWEST, spec=WorldSpec(roles=roles), demonstrations=kept,
                on_rollouts=lambda done: advance(len(done)),
            )  # fmt: skip
        there = examine(root, pictures=config.pictures)
    nominal = {(f.kind, f.about): f for f in there.findings}
    found, report.findings = report.findings, []
    alike = list[str]()
    for f in found:
        usual = nominal.get((f.kind, f.about))
        if usual is None or f.cost_deg > MORE * usual.cost_deg:
            report.findings.append(f)
        else:
            who = f" of {f.about}" if f.about else ""
            alike.append(f"{words(f.kind)}{who}{f.number()},{usual.number()} there")
    if alike:
        report.good["nominal"] = f"so in the nominal simulation, too: {', '.join(alike)}"


def _no_outcome(config: DiagnoseConfig) -> bool:
    episodes = open_labelled(config.dataset.folder()).episodes
    return bool(episodes) and all(e.outcome is Outcome.UNLABELLED for e in episodes)


def _beside(config: DiagnoseConfig, report: AbsoluteReport) -> tuple[dict[str, Any], list[str]]:
    """Return in what episodes without outcomes differ from those that are given as usual."""
    usual = config.reference or config.trained_on
    if usual is None:
        return {}, []
    if not is_dataset(usual):
        option = "--reference" if config.reference else "--trained_on"
        return {}, [f"{option}={usual} was not looked at: only a dataset's episodes are set beside "
                    "episodes without an outcome."]  # fmt: skip
    with options.progress(f"Looking at {usual}"):
        there = examine(usual, pictures=config.pictures)
        differs, lines = set_beside(report, there)
        both, cameras = (usual, report.root), None
        named = [set(read_info(root).camera_keys) for root in both]
        if config.pictures and named[0] & named[1]:
            seen, takes = (list(load_takes(root)) for root in both)
            if not diagnosis.only_drawn(seen, takes):
                cameras = check_takes(seen, takes, usual.resolve().name)
    found: dict[str, Any] = {"beside": [d.to_json() for d in differs]}
    if cameras is not None:
        found, lines = found | {"camera_check": cameras.to_json()}, [*lines, *cameras.lines()]
    more = " ".join(shlex.quote(str(root)) for root in both)
    return found, [
        *lines,
        f"A difference is no cause by itself. More: gaploop check {more} --history",
        "",
    ]


def _how_to_label(root: Path) -> str:
    """Return the command that labels, or those that take over what a column says."""
    column, ended = recorded_success(root) if is_dataset(root) else ("", {})
    named = shlex.quote(str(root))
    if not ended:
        return f"gaploop review {named}"
    lines = [f"its column {column} says that {sum(ended.values())} of {len(ended)} went well:"]
    for went_well, outcome in ((True, Outcome.SUCCESS), (False, Outcome.FAILURE)):
        if some := [episode for episode, said in ended.items() if said is went_well]:
            lines.append(f"  gaploop label {named} --episodes='{some}' --outcome={outcome}")
    return "\n".join(lines)


@command
def diagnose(config: DiagnoseConfig) -> Diagnosis:
    """Diagnose episodes and write diagnosis, report and run.json to the output folder.

    What the episodes show by themselves, which the command says first, isn't looked at; see
    `gaploop.check`.

    Returns:
        The diagnosis, with `cohort`: what the episodes say together.

    Raises:
        UnusableInputError: takes, reference, labels or policy can't be read, or
            `save_reference` is given: with that, nothing is diagnosed.
    """
    return _diagnosed(config, None)


def _diagnosed(
    config: DiagnoseConfig,
    report: AbsoluteReport | None,
    say: Callable[[str], None] = lambda _text: None,
) -> Diagnosis:
    if config.save_reference is not None:
        raise UnusableInputError(
            "--save_reference diagnoses nothing. Run gaploop diagnose with it, then without."
        )
    source, takes, scene = config.dataset.folder(), _takes(config), _scene(config)
    reference = _reference(config, takes, scene, say)
    if config.twin is not None and not config.policy.path:
        raise UnusableInputError("--twin needs the policy that failed: add --policy.path=DIR.")
    if config.policy.path and not options.is_script(config.policy.path):
        from gaploop.finetune.lerobot_policy import resolve
        from gaploop.finetune.lerobot_trust import refuse_foreign_code

        refuse_foreign_code(resolve(config.policy.path))
    twin = load_twin(config.twin) if config.twin is not None else None
    causes = engineer_labels(open_labelled(source).file)
    folder = writable_folder(_folder(config))
    total = sum(take.outcome is Outcome.FAILURE for take in takes)
    after = "Setting episodes and cameras against others"
    with options.progress("Diagnosing", total=total, then=after) as advance:
        found = diagnosis.diagnose(
            [recoloured_take(take, scene) for take in takes] if config.station else takes,
            reference,
            source=source.resolve().name,
            images=config.pictures,
            on_take=lambda _take: advance(),
            seen_before=_seen_before(config),
            seen_where=diagnosis.LEARNED if config.trained_on else "those of --reference",
            causes=causes,
            cohort=True,
            object_hue_deg=THE_CELLS.object_hue_deg if scene.object_is_stated else None,
        )
    if report is not None:
        alone = {
            "deployment": deployment(report, found),
            "shown_alone": shown_alone(report, found.summary["outcomes"]),
        }
        said = {name: faults for name, faults in alone.items() if faults}
        found = replace(found, summary={**found.summary, **said})
    if twin is not None:
        found = _reproduced(config, found, takes, twin, folder)
    save_diagnosis(found, folder / "diagnosis.json")
    planned = _planned(config, found, takes, twin, folder) if found.takes else None
    shown = {t.uid for t in shown_takes(found.takes)}  # pictures of thousands would fill memory
    pictures = {
        take.info.uid: seen.examples
        for take in takes  # in the colours that they were taken in
        if config.pictures
        and take.info.uid in shown
        and (seen := TakeView(recoloured_take(take, StationScene(scene.camera))).pictures)
    }
    clips = list[tuple[bytes, str]]()
    if twin is not None and not twin.world and config.pictures:
        from gaploop.finetune.counterfactual import counterfactuals

        with options.progress("Rolling out what would have been"):
            clips = counterfactuals(found, takes, twin, config.policy.required(), scene.camera)
    write_atomically(folder / "report.html", diagnosis_report(found, pictures, planned, clips))
    result = {"id": found.id, "diagnosed": len(found.takes)}
    inputs = [takes_input(source, takes), *([file_input(config.twin)] if config.twin else [])]
    write_run(folder, "diagnose", options.jsonable(config), inputs, result)
    return found


def _reproduced(
    config: DiagnoseConfig, found: Diagnosis, takes: Sequence[Take], twin: Twin, folder: Path
) -> Diagnosis:
    """Return a diagnosis with what the twin shows, and gaps that nobody measured, tried in it."""
    with options.progress("Preparing the simulation"):
        from gaploop.finetune.evaluate import attempt_s
        from gaploop.finetune.hypotheses import ROLLOUTS, rolled_out, widened, worth_trying
        from gaploop.finetune.reproduction import reproduced, subsets

    driver, kept = config.policy.required(), folder / "reproduction"
    total = config.n * len(subsets(twin.mechanisms))
    with options.progress("Reproducing in simulation", total=total) as advance:
        found = reproduced(
            found, takes, twin, driver, kept, n=config.n, workers=config.workers, progress=advance
        )
    # Who asks for few scenes wants a quick answer: a hypothesis alone takes `ROLLOUTS`.
    if config.n < ROLLOUTS or not (untried := worth_trying(found, twin)):
        return found
    says = f"Rolling out {len(untried)} gaps that nobody measured"
    with options.progress(says, total=ROLLOUTS * len(untried)) as advance:
        tried = rolled_out(
            driver, twin, untried, takes[0].info.task, workers=config.workers,
            sees=found.summary["reproduction"]["sees"],
            max_s=attempt_s(takes, twin.arm), folder=kept, progress=advance,
        )  # fmt: skip
    return widened(found, takes, twin, tried, folder)


def _planned(
    config: DiagnoseConfig, found: Diagnosis, takes: Sequence[Take], twin: Twin | None, folder: Path
) -> Plan:
    """Return the plan that the report shows."""
    about = None
    if twin is not None and config.twin is not None:
        from gaploop.finetune.hypotheses import TWIN

        file = folder / TWIN if "twin" in found.summary.get("hypotheses", {}) else config.twin
        task, known = find_task(takes[0].info.task), read_ledger(config.twin.parent / LEDGER)
        policy = config.policy.required()
        about = PlanContext(folder / "plan", policy, load_twin(file), file, task, ledger=known)
    return plan_for(found, PlanRequest(Budget(takes=PLANNED), about=about))


def _factors(config: DiagnoseConfig) -> int:
    """Say what conditions cost; 0, or 3 where there is nothing to compare."""
    source = config.dataset.folder()
    folders = [source, *([config.sim] if config.sim else [])]
    attempts, inputs = [], []
    with options.progress("Reading outcomes", len(folders)) as advance:
        for folder in folders:
            episodes = list(open_labelled(folder).episodes)
            attempts += episodes
            ended = "".join(f"{e.info.uid} {e.outcome}\n" for e in episodes)
            digest = hashlib.sha256(ended.encode()).hexdigest()
            inputs.append({"root": str(folder), "takes": len(episodes), "hash": digest})
            advance()
    judged, counted = attempted(attempts)
    rows = trials_of(judged)
    found = cohort_of_trials(rows, counted)
    folder = writable_folder(
        config.output_dir or source.parent / f"{source.resolve().stem}_factors"
    )
    result = {"source": source.name, **found.to_json()}
    write_json(folder / "factors.json", options.jsonable(result))
    write_atomically(folder / "factors.html", cohort_page(found, source.name))
    summary = {"trials": len(rows), "effects": len(found.table.effects) if found.table else 0}
    write_run(folder, "diagnose", options.jsonable(config), inputs, summary)
    lines = [f"{counted} of {source.name}", *cohort_lines(found), str(folder / "factors.html")]
    options.emit(config.json, result, "\n".join(lines))
    return 0 if found.table and found.table.effects else INCONCLUSIVE


def _folder(config: DiagnoseConfig) -> Path:
    source = config.dataset.folder()
    if config.output_dir is None and (name := snapshot_of(source)):
        return Path(f"{name}_diagnosis")  # the Hub's cache takes what is beside it for a version
    return config.output_dir or source.parent / f"{source.resolve().name}_diagnosis"


def _takes(config: DiagnoseConfig) -> list[Take]:
    source, episodes = config.dataset.folder(), config.dataset.episodes
    takes = list(load_takes(source))
    if episodes is not None:
        missing = sorted(set(episodes) - {t.episode for t in takes if t.episode is not None})
        if missing:
            raise UnusableInputError(
                f"--dataset.episodes: {missing} not in it. It holds {len(takes)} episodes from 0."
            )
        takes = [t for t in takes if t.episode in episodes]
    # Without any outcome nothing failed and all may have. Logs without frames are left alone: a
    # force window is judged by itself.
    driven = [t for t in takes if len(t.frames)]
    if driven and all(t.outcome is Outcome.UNLABELLED for t in driven):
        raise UnusableInputError(
            f"None of the {len(driven)} episodes in {source} has an outcome. Label them first: "
            f"gaploop label {shlex.quote(str(source))} --episodes='[0, 3]' --outcome=failure (and "
            f"the others --outcome=success), or {_how_to_label(source)}"
        )
    told = with_units(takes, config.units)
    remember_units(source, config.units)
    return told


def _scene(config: DiagnoseConfig) -> StationScene:
    return load_station(config.station).scene if config.station else StationScene()


def _seen_before(config: DiagnoseConfig) -> Sequence[Take]:
    """Return episodes that the cameras are set against: the policy's training, or --reference's."""
    if config.trained_on is not None:
        return list(load_takes(config.trained_on))
    folder = config.reference
    return list(load_takes(folder)) if folder is not None and folder.is_dir() else []


def _reference(
    config: DiagnoseConfig, takes: Sequence[Take], scene: StationScene, say: Callable[[str], None]
) -> Reference | None:
    path = config.reference
    if path is None:
        return None
    if not path.is_dir():
        return load_reference(path)
    usual = list(load_takes(path))
    # What is stated is of the takes at hand: simulated ones say their own.
    says = any(t.info.units not in ("", "unknown") for t in usual)
    usual = with_units(usual, "" if says else config.units)
    usual = [t if t.info.domain is Domain.SIM else recoloured_take(t, scene) for t in usual]
    if not any(t.telemetry.arms() for t in takes):  # frames alone come in other steps and lags
        usual = [without_telemetry(t) for t in usual]
    built = build_reference(usual, f"successful episodes of {path.resolve().name}")
    failed = sum(t.outcome is Outcome.FAILURE for t in usual)
    if built is None and failed > len(usual) / 2:
        say(
            f"--reference={path}: {failed} of {len(usual)} episodes failed there, too. What the "
            "policy can't do there either needs no gap: train it until it can. On without them."
        )
        return None
    return options.required(built, _too_few(f"--reference={path}", path, usual))


def _too_few(what: str, folder: Path, takes: Sequence[Take]) -> str:
    """Return in one line why episodes can't say what is usual, and what to do."""
    silent = [str(n) for n, t in enumerate(takes) if t.outcome is Outcome.UNLABELLED]
    if silent:
        some = ", ".join(silent[:LEAST_TAKES])
        return (
            f"{what}: {len(silent)} of {len(takes)} episodes have no outcome; {LEAST_TAKES} that "
            "are "
            f"labelled as successes are needed. Label those that went well: gaploop review {folder}"
            f", or gaploop label {folder} --episodes='[{some}]' --outcome=success."
        )
    return f"{what} holds fewer than {LEAST_TAKES} successful episodes. Name more."


def _save_reference(config: DiagnoseConfig, path: Path) -> int:
    source, scene = config.dataset.folder(), _scene(config)
    writable_folder(path.parent, "Folder")
    if path.suffix == ".npz":  # what cameras show
        cameras = CameraReference.build(load_takes(source), source.resolve().name)
        why = f"{source} holds fewer than {LEAST_TAKES} episodes with pictures. Name more."
        cameras = options.required(cameras, why)
        cameras.save(path)
        options.emit(False, {}, f"{path}: what {', '.join(cameras.cameras)} showed in training")
        return 0
    takes = [recoloured_take(take, scene) for take in _takes(config)]
    built = options.required(
        build_reference(takes, source.resolve().name), _too_few(str(source), source, takes)
    )
    save_reference(built, path)
    of = options.counted(built.takes, "episode")
    options.emit(False, {}, f"{path}: what is usual in {of} that went well")
    return 0
