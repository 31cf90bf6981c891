"""What `gaploop identify` does: a probe recorded, a station fitted, its page."""

import contextlib
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np

from gaploop.collect.lerobot_types import EMBEDDED, evidence_of, kind, session_station
from gaploop.core.arm import SIX_JOINTS, CellArm
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import uuid7, writable_folder, write_atomically
from gaploop.core.kinematics import ArmModel, model_of
from gaploop.core.messages import FloatArray
from gaploop.core.run_record import takes_input, write_run
from gaploop.core.station import SIM_STATION, Station, load_station
from gaploop.core.take import Take
from gaploop.core.twin import Twin, TwinParameter, save_twin
from gaploop.datasets.absolute.arm_findings import ArmTests
from gaploop.datasets.absolute.camera_findings import moved_beside, picture_age
from gaploop.datasets.absolute.camera_looks import THUMB
from gaploop.datasets.absolute.findings import SHOWN, AbsoluteFinding, AbsoluteReport
from gaploop.datasets.absolute.recording import recording_of
from gaploop.datasets.lerobot_read import load_takes
from gaploop.failure_analysis.report.twin_lines import (
    UNEXPLAINED,
    curves_png,
    describe,
    residual_lines,
)
from gaploop.failure_analysis.views.joints import angles_rad, of_model, remember_units, with_units
from gaploop.scripts import options
from gaploop.scripts.cli import command
from gaploop.scripts.identify import IdentifyConfig, Modelled
from gaploop.sim.catalogue import arm_named
from gaploop.sim.identification.contact import DRAWS, FULL, PROBE
from gaploop.sim.identification.drive_fit import MOST_STEPS
from gaploop.sim.identification.drives import fit_station
from gaploop.sim.identification.open_loop import ServoArm, arm_of_takes, is_of_the_cell
from gaploop.sim.identification.things import THINGS
from gaploop.sim.recolour import recoloured_take
from gaploop.sim.scene_file import load_scene
from gaploop.teleop.stopping import stoppable

TWIN: Final = "station_twin.yaml"
LATE: Final = 1.1
"""A probe that took so many times what was planned came late."""
BESIDE: Final = 0.005
OFTEN: Final = 4
"""Something moved beside the arm that fills so much of a picture; in a quarter of the episodes in
which the arm stands, people are there: what the arm itself let go of rolls less often."""
MOST_LOOKED_AT: Final = 20
"""Takes by whose pictures a camera's delay is told,"""
LOOKED_AT_S: Final = 12.0
"""and the seconds of each."""
CUT_SHORT: Final = (
    "",
    "stopped adding parameters at its limit of work: only what is clearly needed is named",
)


def run(config: IdentifyConfig) -> int:
    """Measure if asked to, identify.

    Returns:
        0 whatever was found; with --measure 1 where a part tripped or its motion doesn't fit, and
        128 + the signal where one came. Nothing is identified where it didn't get to its end.
    """
    code, measured = 0, dict[str, Any]()
    if (scene := getattr(config.robot, "scene", None)) is not None:
        raise UnusableInputError(
            f"--measure moves no arm of a scene file. Let one be driven there, by gaploop record "
            f"--robot.scene={scene} or gaploop evaluate --env.scene={scene} --dataset.root=DIR, "
            f"then: gaploop identify DIR --env.scene={scene}"
        )
    is_device = not isinstance(config.robot, Modelled | None)
    if is_device and not (config.measure or config.dry_run):
        raise UnusableInputError(
            "--robot.* names the arm that --measure moves. Give --measure, too, or leave it out."
        )
    if config.dry_run:
        return _list_parts(config)
    if config.measure:
        code, measured = _measure(config)
        if code > 1 or measured["trip"]:
            options.emit(config.json, {"measured": measured})
            return code
    twin, folder = identify(config), _folder(config)
    if "replays" in twin.fit:
        options.emit(
            config.json, {"twin": folder / TWIN, "fit": twin.fit}, _world_lines(config, twin)
        )
        return code
    fit, differs = twin.fit, [p for p in twin.parameters if p.differs]
    not_told = [p.name for p in twin.parameters if not p.excited]
    path = folder / TWIN
    found = {"twin": path, "differs": differs, "not_excited": not_told, "fit": fit}
    if measured:
        found["measured"] = measured
    before, after = (np.degrees(fit[f"open_loop_error_{when}"]) for when in ("before", "after"))
    use = "base --env.twin" if not twin.world else f"POLICY {_where(config)} --twin"
    lines = [
        f"{twin.station} ({twin.arm}), {fit['takes']} episodes, {fit['motion_s']:.0f} s of motion"
    ]
    untold = _untold(twin)
    known = "nothing that was measured differs" if fit["unlike"] or untold else "nothing differs"
    lines += [f"  by itself: {sentence}" for sentence in fit["shows"]]
    lines += [f"  differs: {describe(p)}{_moves(twin, p)}" for p in differs]
    lines += [] if differs else [f"  {known} from nominal"]
    lines += [f"  {line}" for line in residual_lines(twin)]
    lines += [f"  {fit['late']}"] if fit["late"] else []
    if not fit["explained"]:
        lines.append(f"  {UNEXPLAINED}")
    lines += [
        f"  not excited: {len(not_told)} of {len(twin.parameters)}, which these episodes can't "
        "show",
        *untold,
        f"  error on held-out motion: {before:.2f} deg nominal, {after:.2f} deg fitted",
        *_joint_lines(twin),
        f"Use it: gaploop evaluate --policy.path={use}={path}",
        f"Picture: {folder / 'held_out.png'}",
    ]
    options.emit(config.json, found, "\n".join(lines))
    return code


def _untold(twin: Twin) -> list[str]:
    """Return a line for each reason why nothing at all is told of some mechanisms."""
    told = {p.mechanism for p in twin.parameters if p.excited}
    why = dict[str, list[str]]()
    for p in twin.parameters:
        of_motion = p.source.startswith(f"{twin.fit['takes']} episodes")
        name = p.mechanism.rpartition(".")[2].replace("_", " ")
        if p.mechanism not in told and not of_motion and name not in why.get(p.source, ()):
            why.setdefault(p.source, []).append(name)
    return [f"  not told: {', '.join(names)}: {reason}" for reason, names in why.items()]


def _list_parts(config: IdentifyConfig) -> int:
    from gaploop.collect.probe import parts_of, planned_s  # drives an arm: it needs mink

    station = session_station(config.robot, config.station)
    name = station.robot_model or model_of(kind(config.robot))
    if not name:
        raise UnusableInputError(
            f"gaploop identify --measure needs a model of the arm and none is known for "
            f"{kind(config.robot)}. Name one in the station file as robot_model."
        )
    arm = ArmModel.load(name)
    parts = parts_of(arm.joint_names, station.grid, _cell_arm(config.robot))
    seconds = planned_s(parts, arm)
    total_s = sum(seconds.values())
    rows = [{"name": p.name, "seconds": seconds[p.name], "tells": p.tells} for p in parts]
    lines = [f"{seconds[p.name]:5.1f} s  {p.name:22s} {p.tells}" for p in parts]
    lines.append(f"{total_s:5.1f} s  in all, without the operator's time.")
    options.emit(config.json, {"parts": rows, "seconds": total_s}, "\n".join(lines))
    return 0


def _cell_arm(robot: Any) -> CellArm | None:
    """Return the arm, where it is the embedded cell's."""
    return arm_named(robot.model) if robot.type == EMBEDDED else None


def _measure(config: IdentifyConfig) -> tuple[int, dict[str, Any]]:
    """Record the episodes; return the exit code, 0 where all is there, and what `--json` says."""
    from gaploop.collect.probe import NO_CONTACT, PartEnd, parts_of, probe_robot

    station = session_station(config.robot, config.station)
    ask = "Where do the episodes go? Name a folder: gaploop identify DIR --measure"
    journal = options.required(config.roots, ask)[0]
    is_cell = config.robot.type == EMBEDDED
    parts = len(parts_of(SIX_JOINTS, station.grid, _cell_arm(config.robot)))
    shows = options.progress("Measuring", parts) if is_cell else contextlib.nullcontext()
    stopping = "Stopping: what is done is kept. --resume does the rest."
    with stoppable(stopping) as stopped, shows as advance:

        def tell(now: PartEnd) -> None:
            if advance is None:
                _say(f"{now.part.name}: {now.why or 'done'}")
            else:
                advance()

        end = probe_robot(
            config.robot, station, config.station, journal.absolute(),
            resume=config.resume, say=_say, on_part=tell, stopped=stopped,
        )  # fmt: skip
    lacking = [now for now in end.parts if not now.done]
    evidence = evidence_of(config.robot, station)
    untold = list(end.untold)
    if not is_cell:
        untold.append(NO_CONTACT)
    if not is_cell and not getattr(config.robot, "cameras", None):
        untold.append("everything that pictures tell: the robot has no cameras")
    seconds = sum(now.duration_s for now in end.parts)
    summary = {
        "journal": journal,
        "evidence": evidence,
        "seconds": seconds,
        "parts": [
            {"name": now.part.name}
            | {name: getattr(now, name) for name in ("done", "why", "uid")}
            | {"seconds": now.duration_s}
            for now in end.parts
        ],
        "untold": untold,
        **{name: getattr(end, name) for name in ("interrupted", "reconnected", "trip")},
    }
    _say(
        f"{len(end.parts) - len(lacking)} of {len(end.parts)} parts in {journal}, "
        f"{seconds:.0f} s of motion ({evidence})."
    )
    for why in dict.fromkeys(now.why for now in lacking):
        _say(f"  {', '.join(now.part.name for now in lacking if now.why == why)}: {why}")
    if untold:
        _say(f"Not measured to the end: {'; '.join(untold)}.")
    if end.trip:
        _say(f"gaploop identify: {end.trip}")
    failed = bool(end.trip) or any(not now.by_choice for now in lacking)
    code = 128 + stopped[0] if stopped else int(failed)
    if code:
        _say("Do the rest with the same command and --resume.")
    return code, summary


def _moves(twin: Twin, parameter: TwinParameter) -> str:
    """Say how far a drive's parameter moves the arm: what differs clearly may matter little."""
    name = f"{parameter.name} {parameter.joint}".strip()
    moved_rad = twin.fit.get("moves_rad", {}).get(name)
    return "" if moved_rad is None else f", moves the arm by {np.degrees(moved_rad):.1f} deg"


def _joint_lines(twin: Twin) -> list[str]:
    """Return how far off goals and simulated arms are, joint by joint, of an arm by its file."""
    if not twin.world:
        return []
    notes = (twin.fit["granted"], CUT_SHORT[twin.fit["cut_short"]])
    said = [f"    {note}" for note in notes if note]
    rows = {"all": np.mean(list(twin.fit["error_by_joint"].values()), 0)}
    for joint, errors in {**twin.fit["error_by_joint"], **rows}.items():
        sent, nominal, fitted = (f"{1000.0 * e:.0f}" for e in errors)
        said.append(
            f"    {joint}: {sent} mrad if it did as told, {nominal} nominal, {fitted} fitted"
        )
    return said


def _where(config: IdentifyConfig) -> str:
    env = config.env
    return f"--env.gym={env.gym}" if env.gym else f"--env.scene={env.scene or 'SCENE'}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@command
def identify(config: IdentifyConfig) -> Twin:
    """Measure a station and write station_twin.yaml, the page and run.json to the output folder.

    Raises:
        UnusableInputError: episodes that can't be read, have no goals, or are of an unknown arm.
    """
    model = getattr(config.robot, "model", "")
    owners = config.env.scene or config.env.gym
    if owners and not model:
        return _of_a_world(config)
    folder = _folder(config)
    cell = load_station(config.station) if config.station else Station("")
    loaded = {root: list(load_takes(root)) for root in config.roots}
    if not model and not is_of_the_cell(next(iter(loaded.values()))[0]):
        model = cell.robot_model
    own = ServoArm(Path(model)) if model.endswith((".xml", ".urdf")) else None
    if owners and own is None:
        raise UnusableInputError(
            f"--robot.model={model}: beside --env.* it is the arm's MJCF file, such as arm.xml. "
            "Without it the episodes are replayed there."
        )
    world = _world(config)[1] if owners else {}
    by_root = []
    for root, found in loaded.items():
        if own is None:
            found = [recoloured_take(t, cell.scene) for t in with_units(found, config.units)]
        remember_units(root, config.units)
        by_root.append((root, found))
    takes = [take for _, found in by_root for take in found]
    granted = ""
    if own is not None:
        about = own.path.name, own.joint_names, own.limits_rad
        takes, commanded, granted = of_model(takes, *about, config.units)
        own = own.sent_goals(commanded)
    arm = own or arm_of_takes(takes, model)
    writable_folder(folder)
    inputs, made_from = _read_from(by_root)
    station = cell.name or takes[0].info.station or by_root[0][0].resolve().name
    pictures = config.pictures and own is None
    says, per_mark = "Fitting drives and scene" if pictures else "Fitting drives", 100_000
    usual, done = 3 * MOST_STEPS // (2 * per_mark), 0
    if any(take.info.conditions.get(PROBE) == FULL for take in takes):
        usual += DRAWS  # probes simulated for what is felt of contact
    with options.progress(says, usual, "Still fitting, longer than usual") as mark:

        def advance(steps: int = per_mark) -> None:
            nonlocal done
            mark(min((done + steps) // per_mark, usual) - min(done // per_mark, usual))
            done += steps

        twin, drives = fit_station(
            takes, arm, station, made_from=made_from, pictures=pictures, advance=advance
        )
        twin = replace(twin, world=world or twin.world)
    with options.progress("Testing commands, readings and pictures"):
        shows, says, others = _shows(takes), "", 0
        if pictures:
            delay, says, others = _seen(takes)
            twin = replace(twin, parameters=(*twin.parameters, delay))
        seen: dict[str, Any] = {
            "late": _late(takes, arm), "granted": granted,
            "shows": [*(f.line() for f in shows), *([says] if says else [])],
            "others": max(others, *(len(f.episodes) for f in shows if f.kind == "pushed"), 0),
        }  # fmt: skip
        rows = twin.parameters
        if seen["others"]:  # a hand that comes and goes isn't clutter
            why, ends = "something moved in pictures while the arm stood", (-math.inf, math.inf)
            rows = tuple(
                replace(p, estimate=p.nominal, interval=ends, excited=False, source=why)
                if p.mechanism in THINGS
                else p
                for p in rows
            )
        twin = replace(twin, parameters=rows, fit={**twin.fit, **seen})
    drawn = curves_png(drives.curves, list(drives.fit["error_by_joint"]))
    write_atomically(folder / "held_out.png", drawn)
    _written(config, folder, inputs, twin, drives.fit)
    return twin


def _read_from(by_root: Sequence[tuple[Path, list[Take]]]) -> tuple[list[Any], tuple[Any, ...]]:
    """Return what run.json says of the episodes, and what a twin says of them."""
    inputs = [takes_input(root, takes) for root, takes in by_root]
    return inputs, tuple(
        {"id": root.resolve().name, "sha256": entry["hash"], "uids": entry["uids"]}
        for (root, _), entry in zip(by_root, inputs, strict=True)
    )


def _written(config: IdentifyConfig, folder: Path, inputs: list[Any], twin: Twin, fit: Any) -> None:
    save_twin(twin, folder / TWIN)
    differs = [p.name for p in twin.parameters if p.differs]
    result = {"id": uuid7(), "differs": differs, **fit}
    write_run(folder, "identify", options.jsonable(config), inputs, result)


def _world(config: IdentifyConfig) -> tuple[Any, dict[str, Any]]:
    """Return a simulation of the owner's, and how a twin names it."""
    from gaploop.sim.lerobot_worlds import GymEnvConfig, SceneEnvConfig, named_world

    env = config.env
    if env.scene and env.gym:
        raise UnusableInputError("Give --env.scene or --env.gym, not both.")
    made = GymEnvConfig(gym=env.gym, kwargs=env.kwargs)
    if env.scene:
        made = SceneEnvConfig(scene=load_scene(env.scene).path)
    return made, named_world(made, config.roles)


def _of_a_world(config: IdentifyConfig) -> Twin:
    """Replay the episodes in a simulation of the owner's."""
    folder = _folder(config)
    with options.progress("Reading the episodes"):
        from gaploop.finetune.world_twin import fit_world

        made, _ = _world(config)
        by_root = [(root, list(load_takes(root))) for root in dict.fromkeys(config.roots)]
    inputs, made_from = _read_from(by_root)
    takes = [take for _, found in by_root for take in found]
    writable_folder(folder)
    with options.progress("Replaying") as advance:
        twin = fit_world(
            takes, made, config.roles, config.roots[0].resolve().name,
            made_from=made_from, advance=lambda total: advance(total=total),
        )  # fmt: skip
    _written(config, folder, inputs, twin, twin.fit)
    return twin


def _world_lines(config: IdentifyConfig, twin: Twin) -> str:
    fit, path = twin.fit, _folder(config) / TWIN
    before, after = (fit[f"open_loop_error_{when}"] for when in ("before", "after"))
    lines = [f"{twin.station} ({twin.arm}), {fit['takes']} episodes, {fit['replays']} replays"]
    lines += [f"  differs: {describe(p)}" for p in twin.parameters]
    named = "the rest" if twin.parameters else "not named"
    lines += [f"  {named}: {fit['abstained']}"] if fit["abstained"] else []
    if not twin.parameters and not fit["abstained"]:
        lines.append("  nothing differs: as it is, the simulation does what the episodes show")
    lines += [
        f"  error of {what}: {before[what]:.1%} as it is, {after[what]:.1%} with that"
        for what in before
    ]
    return "\n".join(
        [*lines, f"Use it: gaploop diagnose {config.roots[0]} --twin={path} --policy.path=POLICY"]
    )


def _shows(takes: Sequence[Take]) -> list[AbsoluteFinding]:
    """Return what commands and readings show by themselves, as `gaploop check` says it."""
    first, made = takes[0].info, []
    for take in takes:
        if take.info.joint_names == first.joint_names and len(take.frames):
            sent, read = (angles_rad(v, take.info) for v in (take.frames.sent, take.frames.state))
            if sent is not None and read is not None:
                made.append((np.degrees(sent), np.degrees(read)))
    report = AbsoluteReport(Path())
    if made:
        ArmTests(recording_of(first.joint_names, made, first.fps), report).run()
        report.rank()
    return report.findings[:SHOWN]


def _seen(takes: Sequence[Take]) -> tuple[TwinParameter, str, int]:
    """Return what the first camera's pictures show: how late they are, and what moves by itself.

    The delay is how much later they come than the episodes say; it is told to half a row at best:
    the interval is that much wider. What moves while the arm stands is a sentence, and in how many
    episodes it does, 0 where that are few.
    """
    runs, told_s, fps = list[tuple[FloatArray, FloatArray]](), list[float](), takes[0].info.fps
    camera, beside = next(iter(takes[0].cameras), ""), list[float]()
    for take in takes:
        angles = angles_rad(take.frames.state, take.info)
        if angles is None or camera not in take.cameras or take.info.fps != fps:
            continue
        small = np.array([
            cv2.resize(p, THUMB, interpolation=cv2.INTER_AREA)
            for p in itertools.islice(take.cameras[camera](), round(LOOKED_AT_S * fps))
        ])  # fmt: skip
        reading = np.degrees(angles[: len(small)])
        if (share := moved_beside(reading, small, fps)) is not None:
            beside.append(share)
        if len(runs) < MOST_LOOKED_AT:
            grey = np.array([cv2.cvtColor(p, cv2.COLOR_RGB2GRAY) for p in small], dtype=np.float64)
            age_s = take.frames.camera_age_s.get(camera, np.zeros(len(grey)))[: len(grey)]
            runs.append((reading, grey))
            told_s.append(float(np.nanmean(age_s)) if np.isfinite(age_s).any() else 0.0)
    moved = [share for share in beside if share > BESIDE]
    says = (
        f"Something moved in camera {camera} while the arm stood, in up to {max(moved):.0%} of the "
        f"picture; {len(moved)} of {len(beside)} episodes. Not told apart: a person, an object "
        "that rolls, another machine."
    ) if moved else ""  # fmt: skip
    others = len(moved) if OFTEN * len(moved) >= len(beside) else 0
    name = "sensor_noise.camera_delay.delay_s"
    age, why = picture_age(runs, fps)
    if age is None:
        unknown = TwinParameter(
            name, "s", 0.0, 0.0, (-math.inf, math.inf), False, f"pictures: {why}"
        )
        return unknown, says, others
    known_s, half_s = float(np.mean(told_s)), 0.5 / fps
    low, high = age.low - known_s - half_s, age.high - known_s + half_s
    delay_s = max(age.value - known_s, 0.0) if low > 0.0 else 0.0
    delay = TwinParameter(
        name, "s", 0.0, delay_s, (low, high), True, f"pictures: {len(runs)} episodes"
    )
    return delay, says, others


def _late(takes: Sequence[Take], arm: Any) -> str:
    """Return in words by how much a probe took longer than planned; "" where it didn't."""
    done = {str(t.info.conditions[PROBE]): t for t in takes if PROBE in t.info.conditions}
    if not done:
        return ""
    from gaploop.collect.probe import parts_of, planned_s

    of_cell = arm if FULL in done else None
    parts = [p for p in parts_of(arm.joint_names, SIM_STATION.grid, of_cell) if p.name in done]
    if not parts:
        return ""
    model = ArmModel.load(getattr(arm, "path", arm.name))
    planned = sum(planned_s(parts, model).values())
    took = sum(done[p.name].duration_s for p in parts)
    if took <= LATE * planned:
        return ""
    return (
        f"the probe took {took:.0f} s, planned were {planned:.0f}: the arm came late to where it "
        "was sent, as one does that loses goals"
    )


def _folder(config: IdentifyConfig) -> Path:
    ask = "Which episodes? Name journals or datasets: gaploop identify DIR --output_dir=OUT."
    first = options.required(config.roots, ask)[0].resolve()
    return config.output_dir or first.parent / f"{first.name}_twin"
