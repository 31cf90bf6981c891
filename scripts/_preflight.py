"""The checklist of `gaploop preflight`: which checks, on which devices, and what is printed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.collect.preflight import Checked, check_speed, write_record
from gaploop.collect.rollout import SpeedRamp
from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError, GaploopError
from gaploop.core.protocols import CameraSource, Follower
from gaploop.core.station import Station
from gaploop.core.types import FloatArray, Observation
from gaploop.core.vocabulary import Domain
from gaploop.scripts import _arms, options
from gaploop.scripts._preflight_motion import moving_checks
from gaploop.scripts._preflight_person import Terminal
from gaploop.teleop.calibration.store import calibration_path
from gaploop.teleop.loop import Rates
from gaploop.teleop.preflight.calibrations import check_calibration
from gaploop.teleop.preflight.cameras import check_cameras
from gaploop.teleop.preflight.item import By, Item, Person, Result, may_drive
from gaploop.teleop.preflight.limits import check_limits
from gaploop.teleop.preflight.machine import check_disk, check_memory

if TYPE_CHECKING:
    from gaploop.finetune.lerobot_policy import ActPolicy

PLANS: Final = 200
"""Plans that are timed: p99 of fewer says little."""
_COLOURS: Final = {
    Result.OK: "green",
    Result.WARN: "yellow",
    Result.FAIL: "red",
    Result.UNANSWERED: "magenta",
}


@dataclass(frozen=True)
class Devices:
    """A connected arm with its cameras, torque off."""

    follower: Follower
    cameras: tuple[CameraSource, ...]
    clock: Clock


def preflight(config: Any, person: Person | None = None) -> int:
    """Check everything and print it.

    Args:
        config: the command's options.
        person: who is asked; whoever sits at the terminal unless given.
    """
    from gaploop.finetune.lerobot_policy import load_policy, policy_id

    policy = load_policy(config.policy.required())
    checked = Checked(policy_id(config.policy.path), robot_words(config.robot))
    items: list[Item] = []
    for item in _checks(config, policy, checked, person or Terminal(config.yes)):
        items.append(item)
        if not config.json:
            _show(item)  # at once: a progress bar would write over what is asked
    ok = may_drive(items)
    answer = {"ok": ok, **asdict(checked), "items": [asdict(item) for item in items]}
    content = {"items": options.jsonable(answer["items"])}
    is_kept = config.journal is not None or config.dataset.root is not None
    for folder in {journal_of(config) if is_kept else None, config.output_dir} - {None}:
        write_record(folder, checked, ok, content)
    left = [item.name for item in items if item.result in (Result.FAIL, Result.UNANSWERED)]
    said = "Ready: the policy may drive." if ok else f"Not ready: {', '.join(dict.fromkeys(left))}."
    options.emit(config.json, answer, said)
    return int(not ok)


def robot_words(robot: Any) -> str:
    """Return which arm it is, in words."""
    return f"{_arms.kind(robot)} {robot.id or ''}".strip()


def journal_of(config: Any) -> Path:
    """Return the folder of the takes, as `gaploop rollout` has it."""
    root = (config.dataset.root or Path("rollouts")).absolute()
    return Path(config.journal or root.with_name(f"{root.name}_journal")).absolute()


def _checks(config: Any, policy: ActPolicy, checked: Checked, person: Person) -> Iterator[Item]:
    from gaploop.finetune.lerobot_policy import resolve
    from gaploop.finetune.runs import withdrawn_from

    station = _arms.station_for(config.robot, config.station)
    journal = journal_of(config)
    reason = withdrawn_from(resolve(config.policy.path), checked.policy)
    if reason:
        found = f"the policy {reason}"
        yield Item("consent", Result.WARN, By.MACHINE, found, "Train it again without them.")
    yield check_memory()
    yield check_disk(journal)
    yield check_speed(SpeedRamp(journal, checked.policy, config.speed_scale), station.domain)
    with contextlib.ExitStack() as stack:
        try:
            devices = stack.enter_context(_connected(config.robot, station))
        except GaploopError as error:
            yield Item("arm", Result.FAIL, By.MACHINE, str(error), "Run: gaploop doctor")
            return
        yield Item("arm", Result.OK, By.MACHINE, f"{checked.robot} answers")
        try:
            yield from _on_the_arm(config, policy, station, devices, person)
        except DeviceError as error:
            yield Item("arm", Result.FAIL, By.MACHINE, str(error), "Mend it and check again.")


def _on_the_arm(
    config: Any, policy: ActPolicy, station: Station, devices: Devices, person: Person
) -> Iterator[Item]:
    from gaploop.finetune import lerobot_latency as latency
    from gaploop.finetune.lerobot_facts import facts_of
    from gaploop.finetune.policy_fit import check_features, check_statistics, seen_of

    facts = facts_of(policy)
    rates = Rates.near(config.dataset.fps or facts.fps)
    is_real = station.domain is Domain.REAL
    yield from check_cameras(devices.cameras, devices.clock, is_real)
    shapes = {c.name: c.frame().image.shape for c in devices.cameras}
    sizes = {name: (height, width) for name, (height, width, _) in shapes.items()}
    seen = seen_of(devices.follower, rates.fps, station.domain, sizes)
    yield from check_features(facts, seen)
    yield from check_statistics(facts, seen)
    observation = _observation(policy, devices, seen.state)
    latency.warm_up(policy, observation)
    timing = latency.time_plans(lambda: policy.plan(observation), PLANS)
    yield latency.check_latency(timing, rates.fps, facts.execute)
    used = list(facts.cameras) or [c.name for c in devices.cameras[:1] if facts.needs_scene]
    if station.domain is not Domain.SIM:
        path = calibration_path(config.station, config.calibration)
        yield from check_calibration(path, devices.follower, used, person)
    yield from check_limits(station, devices.follower, rates.period_s, config.station is not None)
    if not config.move:
        yield Item("joint_order", Result.UNANSWERED, By.MACHINE, "left out by --move=false")
        yield Item("estop", Result.UNANSWERED, By.MACHINE, "left out by --move=false")
        return
    yield from moving_checks(devices.follower, devices.clock, station, rates, person)


@contextlib.contextmanager
def _connected(robot: Any, station: Station) -> Iterator[Devices]:
    """Connect an arm and its cameras; all is closed, torque off, afterwards."""
    from gaploop.teleop.stopping import disconnect

    with contextlib.ExitStack() as undo:
        if robot.type == _arms.EMBEDDED:
            devices = _embedded(robot)
            undo.callback(disconnect, devices.follower)
        else:
            follower, clock = _arms.follower_of(robot, station)
            undo.callback(disconnect, follower)
            cameras = _arms.cameras_of(robot, clock)
            undo.callback(disconnect, *cameras)
            devices = Devices(follower, cameras, clock)
        yield devices


def _embedded(robot: Any) -> Devices:
    from gaploop.sim.cell import Cell
    from gaploop.sim.follower import CellCamera, CellFollower, PacedCellClock

    cell = Cell(
        robot.task,
        gaps=robot.gaps,
        gap_seed=robot.gap_seed,
        conditions=robot.conditions,
        image_size=robot.image_size,
        robot=robot.model,
    )
    cell.reset(robot.seed)
    return Devices(CellFollower(cell), (CellCamera(cell),), PacedCellClock(cell))


def _observation(policy: ActPolicy, devices: Devices, state: Any) -> Observation:
    """Return what the policy would see now; a scene of zeros where nothing tracks it."""
    images = {camera.name: camera.frame().image for camera in devices.cameras}
    names = policy.bundle.signature.environment_names
    scene: FloatArray | None = np.zeros(len(names)) if names else None
    if policy.needs_scene and images:
        from gaploop.sim.arms import arm_of
        from gaploop.sim.tracker import Tracker

        image = next(iter(images.values()))
        arm = arm_of(policy.bundle.signature.robot_type)
        scene = Tracker.nominal(image.shape[0], arm=arm).observe(image)
    return Observation(state, scene, images)


def _show(item: Item) -> None:
    """Print what was found, and its fix whole, to be copied."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    line = Text(f"  {item.result.value:<10}", style=_COLOURS[item.result])
    line.append(f"{item.name:<11}  ", style="bold")
    asked = " (asked)" if item.by is By.PERSON else ""
    line.append(f"{item.found}{asked}", style="default")
    console.print(line, soft_wrap=True)
    if item.mend:
        console.print(Text(f"            → {item.mend}", style="cyan"), soft_wrap=True)
