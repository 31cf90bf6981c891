"""Commands to a running emulator, one a line, and the table of its servos."""

from __future__ import annotations

import math
import shlex
from typing import Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.teleop.emulator.arms import HANDS
from gaploop.teleop.emulator.bus import EmulatedBus
from gaploop.teleop.emulator.faults import KINDS, parse_faults
from gaploop.teleop.emulator.servo import EmulatedServo

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
