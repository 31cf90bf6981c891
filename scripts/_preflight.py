"""The checklist of `gaploop preflight`: which checks, on which devices, and who is asked."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.text import Text

from gaploop.collect import lerobot_factory
from gaploop.collect.devices import Arms
from gaploop.collect.operator.keys import Keys, keys
from gaploop.collect.preflight import Checked, check_speed, write_record
from gaploop.collect.rollout import SpeedRamp
from gaploop.core.errors import DeviceError, GaploopError
from gaploop.core.station import Station
from gaploop.core.types import FloatArray, Observation
from gaploop.core.vocabulary import Domain
from gaploop.scripts import options
from gaploop.sim.arms import arm_of
from gaploop.teleop.calibration.store import calibration_path
from gaploop.teleop.checks.arm import ESTOP, JOINT_ORDER, check_limits, check_moving
from gaploop.teleop.checks.calibrations import check_station
from gaploop.teleop.checks.cameras import check_pictures
from gaploop.teleop.checks.machine import check_disk, check_memory
from gaploop.teleop.checks.result import By, CheckResult, Level, Person, all_usable
from gaploop.teleop.loop import Rates
from gaploop.teleop.stopping import disconnect

if TYPE_CHECKING:
    from gaploop.finetune.lerobot_policy import ActPolicy

PLANS: Final = 200
"""Plans that are timed: p99 of fewer says little."""
LOOK_S: Final = 0.1
"""How often it is looked whether Ctrl-C was pressed while an answer is waited for [s]."""
_COLOURS: Final = {
    Level.OK: "green",
    Level.WARN: "yellow",
    Level.FAIL: "red",
    Level.UNANSWERED: "magenta",
}


def preflight(config: Any) -> int:
    """Check everything, asking whoever sits at the terminal, and print it."""
    from gaploop.finetune.lerobot_policy import load_policy, policy_id

    policy = load_policy(config.policy.required(), fps=config.policy.fps)
    checked = Checked(policy_id(config.policy.path), robot_words(config.robot))
    results: list[CheckResult] = []
    for result in _checks(config, policy, checked, Terminal(config.yes)):
        results.append(result)
        if not config.json:
            # Print what was found, and its fix whole, to be copied.
            console = options.console(highlight=False)
            line = Text(f"  {result.level.value:<10}", style=_COLOURS[result.level])
            line.append(f"{result.check:<11}  ", style="bold")
            asked = " (asked)" if result.by is By.PERSON else ""
            line.append(f"{result.found}{asked}", style="default")
            console.print(line, soft_wrap=True)
            if result.fix:
                console.print(Text(f"            → {result.fix}", style="cyan"), soft_wrap=True)
    ok = all_usable(results)
    items = [
        {
            "name": result.check,
            "result": result.level,
            "by": result.by,
            "found": result.found,
            "mend": result.fix,
            "data": result.data,
        }
        for result in results
    ]
    is_kept = config.journal is not None or config.dataset.root is not None
    for folder in {_journal(config) if is_kept else None, config.output_dir} - {None}:
        write_record(folder, checked, ok, {"items": options.jsonable(items)})
    left = [result.check for result in results if not all_usable([result])]
    said = "Ready: the policy may drive." if ok else f"Not ready: {', '.join(dict.fromkeys(left))}."
    options.emit(config.json, {"ok": ok, **asdict(checked), "items": items}, said)
    return int(not ok)


def robot_words(robot: Any) -> str:
    """Return which arm it is, in words."""
    return f"{lerobot_factory.kind(robot)} {robot.id or ''}".strip()


def _journal(config: Any) -> Path:
    """Return the folder of the takes, as `gaploop rollout` has it."""
    return options.journal_beside(config.dataset.root or Path("rollouts"), config.journal)


def _checks(
    config: Any, policy: ActPolicy, checked: Checked, person: Person
) -> Iterator[CheckResult]:
    from gaploop.finetune.lerobot_policy import resolve
    from gaploop.finetune.runs import withdrawn_from
    from gaploop.sim.follower import CellCamera

    station = lerobot_factory.station_for(config.robot, config.station)
    journal = _journal(config)
    reason = withdrawn_from(resolve(config.policy.path), checked.policy)
    if reason:
        found = f"the policy {reason}"
        yield CheckResult("consent", Level.WARN, found, "Train it again without them.")
    yield check_memory()
    yield replace(check_disk(journal), check="disk")
    yield check_speed(SpeedRamp(journal, checked.policy, config.speed_scale), station.domain)
    with contextlib.ExitStack() as stack:
        try:
            cell = (
                lerobot_factory.cell_of(config.robot)
                if config.robot.type == lerobot_factory.EMBEDDED
                else None
            )
            follower, clock = lerobot_factory.follower_of(config.robot, station, cell)
            stack.callback(disconnect, follower)  # torque off
            seen = (
                lerobot_factory.cameras_of(config.robot, clock, station)
                if cell is None
                else (CellCamera(cell),)
            )
            stack.callback(disconnect, *seen)
        except GaploopError as error:
            yield CheckResult("arm", Level.FAIL, str(error), "Run: gaploop doctor")
            return
        yield CheckResult("arm", Level.OK, f"{checked.robot} answers")
        try:
            devices = Arms(follower, None, seen, clock)
            yield from _on_the_arm(config, policy, station, devices, person)
        except DeviceError as error:
            yield CheckResult("arm", Level.FAIL, str(error), "Fix it and check again.")


def _on_the_arm(
    config: Any, policy: ActPolicy, station: Station, devices: Arms, person: Person
) -> Iterator[CheckResult]:
    from gaploop.failure_analysis.cameras import FILE, CameraReference
    from gaploop.finetune import lerobot_latency as latency
    from gaploop.finetune.lerobot_policy import resolve
    from gaploop.finetune.policy_fit import (
        check_features,
        check_statistics,
        check_views,
        facts_of,
        observed_features,
    )

    facts = facts_of(policy)
    rates = Rates.near(config.dataset.fps or facts.fps)
    is_real = station.domain is Domain.REAL
    yield from check_pictures(devices.cameras, devices.clock, is_real)
    # What the policy would see now; a scene of zeros where nothing tracks it.
    images = {camera.name: camera.frame().image for camera in devices.cameras}
    sizes = {name: (image.shape[0], image.shape[1]) for name, image in images.items()}
    seen = observed_features(devices.follower, rates.fps, station.domain, sizes)
    yield from check_features(facts, seen)
    yield from check_statistics(facts, seen)
    if (file := resolve(config.policy.path) / FILE).exists() and facts.cameras:
        yield from check_views(CameraReference.load(file), images)
    names = policy.bundle.signature.environment_names
    scene: FloatArray | None = np.zeros(len(names)) if names else None
    if policy.needs_scene and images:
        from gaploop.sim.tracker import Tracker

        image = next(iter(images.values()))
        arm = arm_of(policy.bundle.signature.robot_type)
        scene = Tracker.nominal(image.shape[0], arm=arm).observe(image)
    observation = Observation(seen.state, scene, images)
    latency.warm_up(policy, observation)
    timing = latency.time_plans(lambda: policy.plan(observation), PLANS)
    steps = 1 if policy.chunk is None else len(policy.chunk)
    yield latency.check_latency(timing, rates.fps, steps)
    used = list(facts.cameras) or [c.name for c in devices.cameras[:1] if facts.needs_scene]
    if station.domain is not Domain.SIM:
        path = calibration_path(config.station, config.calibration)
        yield from check_station(path, devices.follower, used, person)
    yield from check_limits(station, devices.follower, rates.period_s, config.station is not None)
    if not config.move:
        yield CheckResult(JOINT_ORDER, Level.UNANSWERED, "left out by --move=false")
        yield CheckResult(ESTOP, Level.UNANSWERED, "left out by --move=false")
        return
    yield from check_moving(devices.follower, devices.clock, station, rates, person)


class Terminal:
    """Asks on stderr and hears keys; nobody is there if standard input is no terminal.

    Args:
        yes: answer "y" where that is a choice and no safety hangs on it.
    """

    def __init__(self, yes: bool = False) -> None:
        self._yes = yes
        self._gone: Callable[[], bool] = lambda: False
        self._keys = Keys()
        self._typed: list[str] = []
        self.stopped = False
        """The emergency stop was pressed, or the terminal was closed."""

    @property
    def is_there(self) -> bool:
        """Whether somebody can answer."""
        return sys.stdin is not None and sys.stdin.isatty()

    @contextlib.contextmanager
    def listening(self, estop: Callable[[], None], gone: Callable[[], bool]) -> Iterator[None]:
        """Hear the space bar while the block runs, asked or not: it stops the arm."""
        self._gone = gone

        def stop() -> None:
            self.stopped = True
            estop()

        with keys() as self._keys:
            self._keys.listen(stop)
            yield
        self._keys = Keys()

    def ask(self, question: str, choices: Mapping[str, str], *, safety: bool) -> str | None:
        """Ask until one of the choices is typed; None where nobody is there."""
        if self._yes and not safety and "y" in choices:
            return "y"
        if not self.is_there:
            return None
        menu = ", ".join(f"{key} {meaning}" for key, meaning in choices.items())
        with contextlib.ExitStack() as held:
            heard = self._keys if self._keys.works else held.enter_context(keys())
            while not self._gone() and not self.stopped:
                print(f"\n{question}\n  {menu}: ", end="", file=sys.stderr, flush=True)
                typed = self._line(heard)
                if typed is None or typed in choices:
                    return typed
        return None

    def instruct(self, what: str) -> bool:
        """Ask for something to be done."""
        if self.is_there:
            print(f"\n{what}", file=sys.stderr, flush=True)
        return self.is_there

    def _line(self, heard: Keys) -> str | None:
        """Return what is typed up to Enter, shown as it is typed; None where nobody does."""
        line = ""
        while heard.works and not self._gone() and not self.stopped:
            self._typed += [] if self._typed else heard.presses(LOOK_S)
            name = self._typed.pop(0) if self._typed else ""
            if name == "return":
                print(file=sys.stderr, flush=True)
                return line
            if name == "backspace" and line:
                line = line[:-1]
                print("\b \b", end="", file=sys.stderr, flush=True)
            elif len(name) == 1:
                line += name
                print(name, end="", file=sys.stderr, flush=True)
        return None
