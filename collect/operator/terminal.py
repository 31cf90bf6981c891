"""The terminal's view of a session, a line now and then without one, and the keys pressed in it."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich import box
from rich.console import Console as Rich
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gaploop.collect.operator.console import OperatorConsole, listen_to
from gaploop.collect.operator.keys import SPACE, Command, keys
from gaploop.collect.operator.view import Shown, Tone, clock, look
from gaploop.core.messages import SPEED, FollowerState, SafetyReason, Tick
from gaploop.core.protocols import Follower
from gaploop.core.station import SafetyLimits
from gaploop.teleop.trips import WHAT, say_joints, say_reasons, say_status

if TYPE_CHECKING:
    from gaploop.collect.devices import ArmDevices

log = logging.getLogger(__name__)

DRAW_S: Final = 0.066
"""A window is drawn this often [s]."""
TURN_S: Final = 0.01
LINE_S: Final = 5.0
"""Without a terminal a line is written this often [s], and whenever the state changes; where
nothing is recorded, `DRIVING_LINE_S`."""
DRIVING_LINE_S: Final = 1.0
HELD_LOGS: Final = 1000
"""Log lines are kept off the screen, at most so many, and written when it is closed."""
NEAR: Final = 0.8
"""A reading above this share of its limit is shown in yellow."""
OFF_DEG: Final = 5.0
"""A joint further than this from its goal is shown in yellow [°]."""
TRIPS_SHOWN: Final = 3
CHANGES: Final = (
    SafetyReason.NON_FINITE,
    SafetyReason.LEADER_JUMP,
    SafetyReason.JOINT_LIMIT,
    SafetyReason.WORKSPACE,
    SafetyReason.RELATIVE_TARGET,
    SafetyReason.VELOCITY,
    SafetyReason.ACCELERATION,
)
"""Reasons for which a command is changed while the arm goes on."""

type Turn = Callable[[], None]
"""Hears keys and shows how things stand; returns after some 10 ms."""


@contextlib.contextmanager
def terminal(
    console: OperatorConsole, leader: Any = None, arm: ArmDevices | None = None
) -> Iterator[Turn]:
    """Yield the turns of the terminal's view; a leader's own window is kept alive beside it.

    Where nothing is recorded, the view lists what every joint of `arm` reports. Where stderr is no
    terminal, lines are written instead.
    """
    rich = Rich(stderr=True)
    with contextlib.ExitStack() as cleanup:
        pressed = cleanup.enter_context(keys())
        if leader is not None:
            listen_to(leader, console)
        # A space is the emergency stop here even where a leader's window has another use for it.
        stops = {SPACE} if console.keys.command(SPACE) is None else set[str]()
        stops |= set(console.keys.keys.get(Command.ESTOP, ()))
        pressed.listen(console.safety.estop, stops)
        write = _line_writer(console)
        live: Live | None = None
        if rich.is_terminal:
            cleanup.enter_context(_logs_held())
            live = cleanup.enter_context(Live(console=rich, auto_refresh=False, screen=True))
        drawn_s = 0.0

        def turn() -> None:
            nonlocal drawn_s
            console.hear(pressed.presses(TURN_S), stops)
            if pressed.lost:
                console.leave()
            seen = console.seen()
            if leader is not None:
                leader.pump(seen.loop.trip)
            if live is None:
                write()
            elif time.monotonic() - drawn_s >= 2 * DRAW_S:
                drawn_s = time.monotonic()
                view = [render(look(seen), rich.width)]
                if arm is not None and not console.records:
                    view += arm_details(arm)
                live.update(Group(*view), refresh=True)

        yield turn


@contextlib.contextmanager
def nowhere(console: OperatorConsole) -> Iterator[Turn]:
    """Yield turns that only write a line now and then: nobody is asked anything."""
    write = _line_writer(console)

    def turn() -> None:
        write()
        time.sleep(5 * TURN_S)

    yield turn


def _line_writer(console: OperatorConsole) -> Callable[[], None]:
    """Return what writes how things stand as a line, if one is due."""
    written_s, before = -math.inf, ""

    def write() -> None:
        nonlocal written_s, before
        shown, now_s = look(console.seen()), time.monotonic()
        every_s = LINE_S if console.records else DRIVING_LINE_S
        if shown.word != before or now_s - written_s > every_s:
            written_s, before = now_s, shown.word
            if console.records:
                log.info("%s", line(shown))
            else:
                sys.stderr.write(line(shown) + "\n")
                sys.stderr.flush()

    return write


@contextlib.contextmanager
def _logs_held() -> Iterator[None]:
    root = logging.getLogger()
    before, held = root.handlers[:], logging.handlers.MemoryHandler(HELD_LOGS, logging.CRITICAL)
    root.handlers[:] = [held]
    try:
        yield
    finally:
        root.handlers[:] = before
        for record in held.buffer:
            root.handle(record)


_TONES: Final = {
    Tone.RECORD: "bold white on red",
    Tone.GO: "bold white on green",
    Tone.ASK: "bold white on blue",
    Tone.WAIT: "bold black on yellow",
    Tone.ALARM: "bold white on red",
    Tone.PERSON: "bold white on magenta",
    Tone.IDLE: "bold black on white",
}
_BAR: Final = 24


def render(shown: Shown, wide: int = 80) -> RenderableType:
    """Return the view for Rich, for a terminal of so many columns."""
    head = f"{shown.word}   {shown.clock}".rstrip()
    parts: list[RenderableType] = [
        Padding(Text(head.center(wide - 2)), (1, 1), style=_TONES[shown.tone]),
        Text(shown.below, style="bold"),
    ]
    parts += [Text(words, style=style) for words, style in _lines(shown)]
    return Group(*parts)


def _lines(shown: Shown) -> Iterator[tuple[str, str]]:
    if shown.share == shown.share:
        yield _bar(shown.share), ""
    yield f"{shown.count}   {shown.loop}".strip(), "yellow" if shown.trouble else ""
    if shown.driving:
        yield shown.driving, ""
    if shown.choices:
        yield "", ""
        yield shown.question, "bold"
    for choice in shown.choices:
        mark = ">" if choice.marked else " "
        words = f" {mark} {choice.key:>6}  {choice.words}"
        yield words, "reverse" if choice.marked else ""
    if shown.setup:
        yield f"set-up: {shown.setup}", ""
    for bar in shown.bars:
        share = bar.have / bar.wanted if bar.wanted else 1.0
        yield f"{_bar(share)} {bar.have}/{bar.wanted} {bar.name}", "green" if share >= 1 else ""
    for row in shown.rows:
        yield f"  {row.number:>3}  {row.words}", ""
    if shown.note:
        yield shown.note, "bold yellow"
    yield " · ".join(f"{hint.key}: {hint.does}" for hint in shown.hints), "dim"


def _bar(share: float) -> str:
    done = round(_BAR * min(1.0, max(0.0, share)))
    return "█" * done + "░" * (_BAR - done)


def line(shown: Shown) -> str:
    """Return the view as one line, for logs."""
    parts = (
        *(shown.word.lower(), shown.clock, shown.below, shown.count),
        *(shown.loop, shown.driving, shown.note),
    )
    return " · ".join(part for part in parts if part)


# -- what the joints report ----------------------------------------------------------------------


def arm_details(arm: ArmDevices) -> Iterator[RenderableType]:
    """Yield a table of the joints for Rich, and lines of what was counted since the start."""
    statistics = arm.statistics
    tick = None if statistics is None else statistics.latest
    if statistics is None or tick is None:
        return
    state, is_driven = arm.state(), arm.is_driven
    if is_driven or state is not None:  # what stands still shows no old readings
        yield joint_table(
            arm.arm.follower, tick, state or tick.state, arm.station.safety, is_driven
        )
    figures, faults = statistics.figures(), arm.bus_faults
    changes = ", ".join(
        f"{WHAT[reason]} {figures.changes[name]}×"
        for reason in CHANGES
        if (name := str(reason.name).lower()) in figures.changes
    )
    if changes:
        yield Text(f"commands changed: {changes}", "dim")
    if figures.trips:
        trips = "; ".join(
            f"{clock(trip.t_s)} {say_reasons(trip.reason, trip.errors)}{say_joints(trip.joints)}"
            for trip in figures.trips[-TRIPS_SHOWN:]
        )
        yield Text(f"trips, {len(figures.trips)} in all: {trips}")
    counted = ", ".join(f"{name} {count}" for name, count in faults.items() if count)
    silent = ", ".join(f"{joint} {count}×" for joint, count in figures.silent.items())
    counted = "; ".join(filter(None, (counted, silent and f"silent: {silent}")))
    yield Text(f"bus faults: {counted or 'none'}", "yellow" if counted else "dim")
    if (rights := arm.realtime) is not None:
        yield Text(f"real-time rights: {'granted' if rights.granted else rights.hint}", "dim")


def joint_table(
    follower: Follower, tick: Tick, state: FollowerState, limits: SafetyLimits, is_driven: bool
) -> Table:
    """Return a row for every joint, in the follower's units: asked, sent, and what is reported."""
    joints, command = follower.joint_names, tick.command
    buses = getattr(follower, "buses", ())
    protocol = str(buses[0].protocol.value) if buses else ""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("joint")
    given = (
        ("A", state.current_a, 2, limits.stall_current_a),
        ("load %", state.load_pct, 0, 100.0),
        ("°C", state.temperature_c, 0, limits.temperature_c),
        ("V", state.voltage_v, 1, math.inf),
    )
    readings = [reading for reading in given if np.isfinite(reading[1]).any()]
    names = (f"leader {follower.units}", "sent", "position", "error", *(r[0] for r in readings))
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("status")
    asked = command.requested_rad
    if asked.shape != command.sent_rad.shape:
        asked = np.full(len(joints), np.nan)
    leader, sent, position = (
        follower.to_units(q) for q in (asked, command.sent_rad, state.position_rad)
    )
    off_deg = np.degrees(command.sent_rad - state.position_rad)
    for n, joint in enumerate(joints):
        places, named = 1, joint
        if joint.endswith(SPEED):
            places, named = 2, f"{joint} {'deg/s' if joint.startswith('theta') else 'm/s'}"
        row = [named, "–", "–", f"{position[n]:.{places}f}", "–"]
        if is_driven:
            error = _marked(f"{sent[n] - position[n]:.{places}f}", abs(off_deg[n]), OFF_DEG)
            row[1:] = [f"{leader[n]:.{places}f}", f"{sent[n]:.{places}f}", row[3], error]
        for _, values, digits, limit in readings:
            text, size = f"{values[n]:.{digits}f}", abs(values[n])
            row.append(_marked(text, size, NEAR * limit, limit) if math.isfinite(size) else "–")
        words = say_status(int(state.status[n]), protocol)
        table.add_row(*row, f"[red]{words}[/]" if words else "ok")
    return table


def _marked(text: str, size: float, yellow: float, red: float = math.inf) -> str:
    if size > red:
        return f"[red]{text}[/]"
    return f"[yellow]{text}[/]" if size > yellow else text
