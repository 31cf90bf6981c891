"""What `gaploop doctor` does: looks at arm, cameras, policy and machine."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.text import Text

from gaploop.collect import lerobot_factory, lerobot_types
from gaploop.collect.encoder_process import CODEC
from gaploop.collect.lerobot_types import robot_words
from gaploop.collect.policy_leader import Planner
from gaploop.collect.preflight import (
    Checked,
    MotionLog,
    Terminal,
    camera_figures,
    check_history,
    check_motion,
    check_speed,
    rest_figures,
    write_measured,
    write_record,
)
from gaploop.collect.rollout import SpeedRamp
from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError, GaploopError, UnusableInputError
from gaploop.core.protocols import CameraSource, Follower
from gaploop.core.station import Station
from gaploop.core.vocabulary import Domain
from gaploop.datasets.absolute.checkpoint import read_checkpoint
from gaploop.finetune.runs import withdrawn_from
from gaploop.scripts import options
from gaploop.scripts.doctor import DoctorConfig
from gaploop.teleop.calibration.store import calibration_path
from gaploop.teleop.checks import (
    By,
    CheckResult,
    Level,
    all_usable,
    calibrations,
    cameras,
    machine,
    servos,
)
from gaploop.teleop.checks.calibrations import check_station
from gaploop.teleop.checks.cameras import check_pictures
from gaploop.teleop.checks.connected_arm import (
    ESTOP,
    JOINT_ORDER,
    MEASURE,
    check_limits,
    check_moving,
)
from gaploop.teleop.loop import Rates
from gaploop.teleop.servos.calibration import arm_folder
from gaploop.teleop.stopping import disconnect

_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red", "unanswered": "magenta"}
FPS: Final = 50.0
"""Of the loop that moves an arm, where no policy has a rate of its own [Hz]."""
_WIDTH: Final = 18
"""Of a finding's subject, where that isn't longer."""


def run(config: DoctorConfig) -> int:
    """Look at everything; 1 if something can't be used as it is."""
    if config.policy.is_remote and config.robot is None:
        raise UnusableInputError(
            "A policy on another machine is timed with the robot that it drives: give --robot.type "
            "and the rest; or run gaploop doctor --policy.path=DIR where the policy is."
        )
    if config.measure is not None and config.robot is None:
        raise UnusableInputError(
            "--measure moves an arm inside of its limits: say which, as --robot.type=… "
            "--robot.port=… --robot.id=…"
        )
    policy, checked = _policy(config)
    results: list[CheckResult] = []
    area = ""
    for result in _look(config, policy, checked):
        results.append(result)
        if not config.json:
            _print(result, area)
        area = result.check
    ok = all_usable(results)
    findings = [
        {
            "area": r.check, "name": r.subject, "level": r.level, "by": r.by, "found": r.found,
            "mend": r.fix, "data": r.data,
        }
        for r in results
    ]  # fmt: skip
    answer: dict[str, Any] = {"ok": ok, "findings": findings}
    said = ""
    if config.robot is not None:
        answer |= asdict(checked)
        left = dict.fromkeys(r.check for r in results if not all_usable([r]))
        said = "Ready: the policy may drive." if policy else "Ready."
        said = said if ok else f"Not ready: {', '.join(left)}."
        if policy is not None and config.journal is not None:
            write_record(config.journal, checked, ok, {"findings": options.jsonable(findings)})
    elif config.policy.path:
        answer["timing"], said = _times(config)
    options.emit(config.json, answer, said)
    return int(not ok)


def _print(result: CheckResult, area: str) -> None:
    """Print a finding under its area's name, and its fix whole, to be copied."""
    console = options.console(highlight=False)
    if result.check != area:
        console.print(Text(result.check, style="bold"))
    line = Text(f"  {result.level.value:<4} ", style=_COLOURS[result.level])
    asked = " (asked)" if result.by is By.PERSON else ""
    subject = f"{result.subject:<{_WIDTH}}  " if result.subject else ""
    line.append(f"{subject}{result.found}{asked}", style="default")
    console.print(line, soft_wrap=True)
    if result.fix:
        console.print(Text(f"        → {result.fix}", style="cyan"), soft_wrap=True)


def _policy(config: DoctorConfig) -> tuple[Planner | None, Checked]:
    """Return the policy that is to drive the robot, and what of both is noted."""
    if config.robot is None:
        return None, Checked("", "")

    if not config.policy.path:
        return None, Checked("", robot_words(config.robot))
    policy, id_ = config.policy.load()
    return policy, Checked(id_, robot_words(config.robot), policy.runs)


def _look(config: DoctorConfig, policy: Planner | None, checked: Checked) -> Iterator[CheckResult]:
    if config.env.scene and config.env.gym:
        raise UnusableInputError("Give --env.scene or --env.gym, not both.")
    if config.env.scene or config.env.gym:
        with options.progress("Preparing the simulation"):
            from gaploop.finetune.doctor import check_world

        yield from check_world(**vars(config.env), roles=config.roles)
        return
    yield from machine.check_machine(config.journal or Path("recordings"), CODEC)
    if config.robot is not None:
        yield from _on_robot(config, policy, checked)
        return
    if config.policy.path:
        return
    yield from machine.check_modem_manager()
    found = [machine.FoundPort(str(path)) for path in config.port] or machine.find_ports()
    if not found:
        yield machine.no_port()
    talk_to = []
    for port in found:
        results = machine.check_port(port)
        yield from results
        if all_usable(results) and (config.port or port.is_servo_adapter):
            talk_to.append(port.path)
    for path in talk_to:
        yield from servos.check_servos(path, arm_folder())
    yield from cameras.check_devices()
    yield from calibrations.check_arm_files(arm_folder())
    yield from calibrations.check_station_ages(calibration_path(config.station))


def _on_robot(
    config: DoctorConfig, policy: Planner | None, checked: Checked
) -> Iterator[CheckResult]:
    """Yield what must hold before that robot is driven, and before the policy drives it."""
    station = lerobot_types.station_for(config.robot, config.station)
    if policy is not None:
        from gaploop.finetune.lerobot_policy import resolve

        known = None if config.policy.is_remote else resolve(config.policy.path)
        if known and (reason := withdrawn_from(known, checked.policy)):
            found = f"the policy {reason}"
            yield CheckResult("consent", Level.WARN, found, "Train it again without them.")
        journal = config.journal or Path("rollouts_journal")
        yield check_speed(SpeedRamp(journal, checked.policy, None), station.domain)
    with contextlib.ExitStack() as stack:
        try:
            made = (
                lerobot_factory.simulated(config.robot)
                if config.robot.type == lerobot_types.EMBEDDED
                else None
            )
            follower, clock = lerobot_factory.follower_of(config.robot, station, made)
            stack.callback(disconnect, follower)  # torque off
            seen = (
                lerobot_factory.cameras_of(config.robot, clock, station)
                if made is None
                else made.cameras
            )
            stack.callback(disconnect, *seen)
        except GaploopError as error:
            yield CheckResult(
                "arm", Level.FAIL, str(error), "Look at its port alone: gaploop doctor PORT"
            )
            return
        yield CheckResult("arm", Level.OK, f"{checked.robot} answers")
        try:
            yield from _on_the_arm(config, policy, follower, seen, clock, station)
        except DeviceError as error:
            yield CheckResult("arm", Level.FAIL, str(error), "Fix it and check again.")


def _on_the_arm(
    config: DoctorConfig,
    policy: Planner | None,
    follower: Follower,
    seen: Sequence[CameraSource],
    clock: Clock,
    station: Station,
) -> Iterator[CheckResult]:
    person = Terminal()
    pictures = list(check_pictures(seen, clock, station.domain is Domain.REAL))
    yield from pictures
    figures = camera_figures(pictures)
    figures += rest_figures(follower.joint_names, follower.read().position_rad)
    used = [camera.name for camera in seen]
    rates = Rates.near(FPS)
    if policy is not None:
        from gaploop.finetune.doctor import check_policy
        from gaploop.finetune.lerobot_policy import resolve

        rates = Rates.near(policy.fps)
        folder = None if config.policy.is_remote else resolve(config.policy.path)
        yield from check_policy(policy, folder, follower, seen, station.domain, rates.fps)
        sees = [k.rpartition(".")[2] for k in read_checkpoint(folder).cameras] if folder else used
        used = sees or (used[:1] if getattr(policy, "needs_scene", False) else [])
    if station.domain is not Domain.SIM:
        path = calibration_path(config.station)
        yield from check_station(path, follower, used, person)
    has_file = config.station is not None
    yield from check_limits(station, follower, rates.period_s, has_file)
    moves = [JOINT_ORDER, ESTOP] if config.move else []
    moves += [MEASURE] if config.measure else []
    if moves:
        log, names = MotionLog(), follower.joint_names
        moved = list[CheckResult]()
        for result in check_moving(follower, clock, station, rates, person, moves, (log,)):
            moved.append(result)
            yield result
        if (shown := log.report(names)) is not None:
            yield from check_motion(shown)
            figures += shown.figures
        if config.measure is not None:
            yield write_measured(config.measure, follower, log, moved, figures)
    if not config.move:
        yield CheckResult(JOINT_ORDER, Level.UNANSWERED, "left out by --move=false")
        yield CheckResult(ESTOP, Level.UNANSWERED, "left out by --move=false")
    if config.station is not None:
        yield from check_history(config.station, figures)


def _times(config: DoctorConfig) -> tuple[dict[str, Any], str]:
    """Return how long the policy's plans take in each format, and the same as a table."""
    from gaploop.finetune.lerobot_latency import BLOCKS, measure, table

    with options.progress("Timing", BLOCKS) as advance:
        timing = measure(config.policy.path, config.policy.loading(), advance)
    timing = {**options.machine(), **timing}
    return timing, table(timing)
