"""gaploop emulate: a servo bus on a pseudo-terminal, and the commands to it, one a line."""

import math
import os
import select
import shlex
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.core import platform_calls
from gaploop.core.errors import GaploopError, UnusableInputError, unknown_choice
from gaploop.core.files import read_text, write_json
from gaploop.core.schema import parse_yaml
from gaploop.scripts import options
from gaploop.teleop.emulator.arms import HANDS, ArmPlan, arm_plan
from gaploop.teleop.emulator.bus import KINDS, EmulatedBus, Fault, parse_faults, raise_priority
from gaploop.teleop.emulator.servo import EmulatedServo
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


# -- commands to it, one a line ----------------------------------------------------------------

HELP: Final = f"""\
status                          what every servo does
hand {"|".join(HANDS)}   what the hand does
pose Q1 Q2 ...                  the hand goes there [rad] and stays
fault KIND [ID] [name=value]    {", ".join(KINDS)}
fault clear [KIND]              all is well again
plug NAME ... | plug all        only these motors are on the bus
power off|on|cycle              the arm's power switch
quit                            end"""


COMMANDS: Final = ("status", "hand", "pose", "fault", "plug", "power", "help", "quit")


def carry_out(bus: EmulatedBus, line: str) -> str | None:
    """Do what a line says and return what to show, None to end; UnusableInputError if bad."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise UnusableInputError(f"{line.strip()}: {error}.") from error
    match words:
        case []:
            return ""
        case ["status", *_]:
            return table(bus)
        case ["help", *_]:
            return HELP
        case ["quit", *_]:
            return None
        case ["hand", *how]:
            with bus.lock:
                bus.hand.set_mode(how[0] if how else "")
            return f"hand: {bus.hand.mode}"
        case ["pose", *values]:
            angles = [_number("pose", value) for value in values]
            wanted = len(bus.all_servos)
            if len(angles) != wanted:
                raise UnusableInputError(f"pose needs {wanted} angles [rad], got {len(angles)}.")
            with bus.lock:
                bus.hand.pose(angles)
            return "hand: pose"
        case ["fault", "clear", *kinds]:
            if kinds and kinds[0] not in KINDS:
                raise unknown_choice("fault", kinds[0], KINDS)
            bus.faults.clear(kinds[0] if kinds else None)
            return "faults: cleared"
        case ["fault", kind, *settings]:
            options: dict[str, float] = {}
            for setting in settings:
                name, equals, value = setting.partition("=")
                if not equals:
                    name, value = "id", setting
                options[name] = _number(f"fault {kind}", value)
            bus.faults.add(*parse_faults([{"fault": kind, **options}], "fault"))
            return f"fault: {' '.join(words[1:])}"
        case ["fault"]:
            raise UnusableInputError(f"Which fault? One of: {', '.join(KINDS)}, clear.")
        case ["plug", *names]:
            bus.plug(None if names in ([], ["all"]) else names)
            there = (s.plan.name for s in bus.all_servos if s.connected)
            return f"plugged in: {', '.join(there)}"
        case ["power", ("on" | "off" | "cycle") as what, *_]:
            with bus.lock:
                for servo in bus.all_servos:
                    if what != "on":
                        servo.power_down()
                    if what != "off":
                        servo.power_up()
            return f"power: {what}"
        case ["power", *other]:
            raise unknown_choice("power", "".join(other[:1]), ("on", "off", "cycle"))
        case [command, *_]:
            raise unknown_choice("command", command, COMMANDS)
    return ""


def _number(where: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UnusableInputError(f"{where}: {word!r} is not a number.")
    return value


def servo_state(servo: EmulatedServo) -> dict[str, object]:
    """Return what one servo does, for people and programs."""
    joint = servo.joint
    return {
        "name": servo.plan.name,
        "id": servo.id,
        "model": servo.model,
        "there": servo.listening,
        "torque": servo.torque,
        "position_ticks": servo.position_ticks,
        "angle_deg": round(math.degrees(joint.q_rad), 1),
        "current_a": round(joint.current_a, 3),
        "load_pct": round(100 * servo.load, 1),
        "temperature_c": round(servo.temperature_c, 1),
        "voltage_v": round(joint.voltage_v, 1),
        "alarm": servo.alarm_bits,
    }


def table(bus: EmulatedBus) -> str:
    """Return a table of the servos."""
    with bus.lock:
        rows = [servo_state(servo) for servo in bus.all_servos]
        active = ", ".join(f.fault + (f" {f.id}" if f.id else "") for f in bus.faults.active)
        head = f"{bus.port}  hand: {bus.hand.mode}  faults: {active or 'none'}"
    lines = [
        head,
        f"{'motor':<14}{'id':>4} {'torque':<7}{'ticks':>6}{'deg':>8}{'A':>8}{'load %':>8}"
        f"{'°C':>6}{'V':>6}  alarm",
    ]
    for row in rows:
        state = ("on" if row["torque"] else "off") if row["there"] else "gone"
        lines.append(
            f"{row['name']:<14}{row['id']:>4} {state:<7}{row['position_ticks']:>6}"
            f"{row['angle_deg']:>8}{row['current_a']:>8}{row['load_pct']:>8}"
            f"{row['temperature_c']:>6}{row['voltage_v']:>6}  {row['alarm'] or '-'}"
        )
    return "\n".join(lines)
