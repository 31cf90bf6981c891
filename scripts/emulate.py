"""gaploop emulate: a servo bus on a pseudo-terminal."""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gaploop.core import platform_calls
from gaploop.core.errors import GaploopError, UnusableInputError, unknown_choice
from gaploop.core.files import read_text, write_json
from gaploop.core.schema import parse_yaml
from gaploop.scripts import options
from gaploop.teleop.emulator import ArmPlan, EmulatedBus, Fault, arm_plan, parse_faults
from gaploop.teleop.emulator.bus import raise_priority
from gaploop.teleop.emulator.console import carry_out, servo_state
from gaploop.teleop.stopping import stoppable

RARE = ("servos", "camera_size", "calibration")
EXAMPLE = """gaploop emulate --model=so101 --link=./follower
gaploop emulate --model=koch --role=leader --link=./leader --hand=middle_then_ranges
gaploop emulate --model=so101 --link=./follower --plant=mujoco --cameras=top,side
gaploop emulate --model=so101 --link=./follower --faults='[{at_s: 5, fault: vanish, id: 3}]'"""
CAMERA_PORT, CAMERA_HZ = 5555, 25.0
PLANTS = ("servo", "mujoco")
FACTORY_NEW = "factory_new"


@dataclass
class EmulateConfig:
    """Stand in for an arm: serve its servo bus on a pseudo-terminal, byte for byte.

    LeRobot's own drivers connect to it as to hardware: `--robot.port=./follower`. While it runs
    it takes commands on standard input (`help` lists them). Ctrl-C ends it and removes the link.
    """

    model: str = "so101"
    """An arm that can be emulated, such as so101, koch or openmanipulator, or the MJCF file of any
    arm of hinges, which gets an STS3215 for each, with ids from 1."""
    role: str = "follower"
    """follower or leader."""
    link: Path | None = None
    """Where to put a link to the port, such as ./follower."""
    hand: str = "middle_then_ranges"
    """none, still, rest, middle_then_ranges or wave."""
    plant: str = "servo"
    """servo: every joint on its own. mujoco: the arm as a whole, with weight and, for the so101,
    the table with cube and disc."""
    cameras: str = ""
    """Serve these as LeRobot zmq cameras on 127.0.0.1: top, side or both, as in top,side; port 5555
    unless it is named, as in top:5556. 25 Hz. Needs mujoco."""
    camera_size: list[int] = field(default_factory=lambda: [320, 240])
    """Width and height of the pictures [px]."""
    faults: str = ""
    """What goes wrong: a YAML or JSON file, or the list itself."""
    servos: dict[str, Any] | str = field(default_factory=dict)
    """Changes to servos, such as '{"gripper": {"id": 5}, "elbow_flex": null}': an id, a model,
    registers; null takes one away. Or factory_new: as shipped, all with id 1, for
    lerobot-setup-motors; plug them in one by one."""
    calibration: Path | None = None
    """Write LeRobot's calibration file of the arm here; its servos then hold the same, as
    lerobot-calibrate leaves them."""
    json: bool = False
    """Print events as JSON, one object a line."""


def run(config: EmulateConfig) -> int:
    """Serve until a signal or `quit`; return 128 + the signal."""
    plan, faults = _plan(config), read_faults(config.faults) if config.faults else ()
    with stoppable() as stopped, ExitStack() as stack:
        plant, port = None, CAMERA_PORT  # every joint is on its own
        if config.plant != "servo":
            from gaploop.sim.plant import CameraServer, make_plant

            plant = make_plant(config.model)
            if config.cameras:
                said, _, number = config.cameras.partition(":")
                port = int(number) if number.isdecimal() else CAMERA_PORT
                names = ["top"] if said == "true" else said.split(",")
                served = CameraServer(
                    plant, names, port=port, size_px=config.camera_size, fps=CAMERA_HZ
                )
                stack.enter_context(served)
        raise_priority()  # it shares the interpreter with the thread that serves the bus
        stack.callback(platform_calls.ordinary_priority)
        emulated = EmulatedBus(
            plan=plan, link=config.link, hand=config.hand, faults=faults, plant=plant
        )
        bus = stack.enter_context(emulated)
        ids = [servo.id for servo in plan.servos]
        ready = {
            "event": "ready",
            "model": plan.model,
            "role": plan.role,
            "protocol": plan.protocol.value,
            "port": bus.port,
            "ids": ids,
            "plant": config.plant,
            "cameras": f"tcp://127.0.0.1:{port}" if config.cameras else None,
        }
        text = f"{plan.model} {plan.role} without servos at {bus.port}."
        if ids:
            what = f"{plan.protocol.value}, ids {ids[0]} to {ids[-1]}"
            text = f"{plan.model} {plan.role} ({what}) at {bus.port}. "
            text += "Type help for commands; Ctrl-C ends."
        _event(config, ready, text)
        # Carry out what is typed, and tell what happens, until the end.
        typed = _Lines()
        told: list[str] = []
        over = False
        while not stopped and not over:
            for line in typed.wait(0.1):
                try:
                    answer = carry_out(bus, line)
                except GaploopError as error:
                    refused = {"event": "refused", "line": line, "why": str(error)}
                    _event(config, refused, str(error))
                    continue
                event: dict[str, Any] = {"event": "done", "line": line}
                if line.strip() == "status":
                    with bus.lock:
                        servos = [servo_state(servo) for servo in bus.all_servos]
                        event = {"event": "status", "servos": servos, **vars(bus.counts)}
                over |= answer is None
                _event(config, event, answer or "")
            with bus.lock:
                active = [f.fault + ("" if f.id is None else f" {f.id}") for f in bus.faults.active]
            if active != told:
                at_s = round(bus.age_s(), 3)
                event = {"event": "faults", "at_s": at_s, "active": active, "port": bus.port}
                _event(config, event, f"faults: {', '.join(active) or 'none'}")
            told = active
        _event(config, {"event": "end", **vars(bus.counts)}, f"{bus.counts.exchanges} exchanges.")
    return 128 + stopped[0] if stopped else 0


def _plan(config: EmulateConfig) -> ArmPlan:
    """Return the arm to emulate, with the changes that are asked for."""
    if config.plant not in PLANTS:
        raise unknown_choice("plant", config.plant, PLANTS, "--plant")
    if config.cameras and config.plant != "mujoco":
        raise UnusableInputError("--cameras needs a scene to show. Add --plant=mujoco.")
    plan = arm_plan(config.model, config.role)
    if config.calibration:
        plan = plan.calibrated()
    changes = config.servos
    if isinstance(changes, str):
        if changes != FACTORY_NEW:
            raise unknown_choice("servos", changes, (FACTORY_NEW,), "--servos")
        plan, changes = plan.factory_new(), {}
    for name, change in changes.items():
        if change is None:
            plan.with_servo(name)  # refuses a name that isn't there
            plan = plan.without([name])
            continue
        if not isinstance(change, dict):
            raise UnusableInputError(
                f"--servos: {name} must map fields to values, such as {{id: 5}}, or be null."
            )
        fixed = {k: v for k, v in change.items() if k in ("id", "model")}
        registers = {k: v for k, v in change.items() if k not in fixed}
        held = next((s.settings for s in plan.servos if s.name == name), {})
        plan = plan.with_servo(name, **fixed, settings={**held, **registers})
    if config.calibration:
        config.calibration.parent.mkdir(parents=True, exist_ok=True)
        write_json(config.calibration, plan.calibration())
    return plan


def read_faults(given: str) -> tuple[Fault, ...]:
    """Return the faults in a YAML or JSON file, or in a list written out.

    Raises:
        UnusableInputError: it can't be read, or isn't a list of faults.
    """
    where = "--faults"
    if not given.lstrip().startswith("["):
        where = given
        try:
            given = read_text(Path(given))
        except OSError as error:
            raise UnusableInputError(
                f"--faults={where}: {error.strerror}. Give a YAML or JSON file, or a list such as "
                "'[{at_s: 5, fault: vanish, id: 3, for_s: 2}]'."
            ) from error
    return parse_faults(parse_yaml(given, where), where)


class _Lines:
    """Lines from standard input, without ever blocking on it."""

    def __init__(self) -> None:
        self._open = sys.stdin is not None and not sys.stdin.closed
        self._rest = b""

    def wait(self, duration_s: float) -> list[str]:
        """Return the lines that came within `duration_s` [s]."""
        if not self._open:
            time.sleep(duration_s)
            return []
        try:
            ready = select.select([sys.stdin], [], [], duration_s)[0]
            chunk = os.read(sys.stdin.fileno(), 4096) if ready else None
        except (OSError, ValueError):  # closed, or no file at all, as under a test runner
            chunk = b""
        if chunk is None:
            return []
        if not chunk:
            self._open = False
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [line.decode(errors="replace") for line in lines]


def _event(config: EmulateConfig, event: dict[str, Any], text: str) -> None:
    options.emit(config.json, event, text)
    if sys.__stdout__ is not None:
        sys.__stdout__.flush()  # whoever reads a pipe waits for the line
