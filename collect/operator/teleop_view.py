"""What `gaploop teleoperate` shows: the live terminal view, and one line a second without one."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from gaploop.collect.devices import say_joints, say_trip
from gaploop.core.messages import FloatArray, FollowerState, SafetyReason, Tick
from gaploop.core.station import SafetyLimits
from gaploop.teleop.advice import WHAT, say_reasons, say_status
from gaploop.teleop.statistics import DurationSpread, Figures

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

NEAR: Final = 0.8
"""A reading above this share of its limit is shown in yellow."""
LATE_S: Final = 1e-3
"""A period error above this is shown in yellow [s]."""
OFF_DEG: Final = 5.0
"""A joint further than this from its goal is shown in yellow [°]."""


TRIPS_SHOWN: Final = 3
CHANGED: Final = (
    SafetyReason.NON_FINITE,
    SafetyReason.LEADER_JUMP,
    SafetyReason.JOINT_LIMIT,
    SafetyReason.WORKSPACE,
    SafetyReason.RELATIVE_TARGET,
    SafetyReason.VELOCITY,
    SafetyReason.ACCELERATION,
)
"""Reasons for which a command is changed while the arm goes on."""


class ProgramMode(StrEnum):
    """What the program is doing, as its user sees it."""

    RUNNING = "RUNNING"
    HELD = "HELD"
    """An e-stop holds the arm, under torque."""
    LOWERING = "LOWERING"
    """The arm is lowered; then torque goes off."""
    TRIPPED = "TRIPPED"
    """Torque goes off in an instant, or is off already."""
    LOST = "LOST"
    """A cable or its power is out: waiting for it."""
    READY = "READY AGAIN"
    """What was lost is back; the operator's word is waited for."""


_COLOURS: Final = {
    ProgramMode.RUNNING: "black on green",
    ProgramMode.HELD: "white on red",
    ProgramMode.LOWERING: "black on yellow",
    ProgramMode.TRIPPED: "white on red",
    ProgramMode.LOST: "white on red",
    ProgramMode.READY: "black on yellow",
}

HELP: Final = (
    "space: emergency stop, the arm holds; again: it is let go of · c, twice: clear a trip and go "
    "on; hold the leader still near the follower's pose · q: lower the arm and leave; again: let "
    "go of it · h: this line"
)
KEYS: Final = {
    ProgramMode.RUNNING: "space e-stop · q quit · h help",
    ProgramMode.HELD: "c c clear · space let go · q lower, quit · h help",
    ProgramMode.LOWERING: "space hold · q let go",
    ProgramMode.TRIPPED: "c c clear · q quit · h help",
    ProgramMode.LOST: "q quit · h help",
    ProgramMode.READY: "c c go on · q quit · h help",
}
"""The keys that do something then."""


@dataclass(frozen=True)
class TeleopScreen:
    """All that one frame of the view shows; rates, errors and latencies are of the last seconds.

    Attributes:
        to_units: from joint angles [rad] to `units`, the follower's.
        protocol: `feetech`, `dynamixel` or empty, for the names of status bits.
        state: what the follower reports now, where the loop waits or has ended.
        figures: since the start.
        torque: whether the follower's motors hold.
        unconfirmed: which of them haven't confirmed that they don't, and what to do.
        real_time: real-time rights: granted, or how to grant them.
        bus_faults: fault such as "follower timeouts" to how often it happened.
        lost: which arm or servo is missing, in words.
        note: a line for the operator, such as what a pressed key does next.
        clear: how a trip is cleared, such as `press c twice`.
    """

    title: str
    mode: ProgramMode
    units: str
    to_units: Callable[[FloatArray], FloatArray]
    joints: tuple[str, ...]
    protocol: str
    limits: SafetyLimits
    tick: Tick | None
    rate_hz: float
    period_error: DurationSpread
    latency: DurationSpread
    figures: Figures
    state: FollowerState | None = None
    torque: bool = True
    unconfirmed: str = ""
    real_time: str = ""
    bus_faults: Mapping[str, int] = field(default_factory=dict)
    lost: str = ""
    note: str = ""
    help: bool = False
    clear: str = ""


def line(picture: TeleopScreen) -> str:
    """Return the view as one line, for logs and pipes."""
    figures = picture.figures
    parts = [
        f"{picture.mode.value.lower()}: {_hz(picture.rate_hz)}",
        f"period error p99 {_ms(picture.period_error.p99_s)}",
        f"latency p50 {_ms(picture.latency.p50_s)}",
        f"missed {figures.missed}",
    ]
    if picture.tick is not None:
        state = picture.tick.state
        for values, unit, digits in ((state.current_a, "A", 2), (state.temperature_c, "°C", 0)):
            if _has(values):
                worst = int(np.nanargmax(np.abs(values)))
                parts.append(f"{picture.joints[worst]} {values[worst]:.{digits}f} {unit}")
    parts += [f"{name} {count}" for name, count in picture.bus_faults.items() if count]
    parts += [*_trouble(picture), *([picture.note] if picture.note else [])]
    return " · ".join(parts)


def render(picture: TeleopScreen) -> RenderableType:
    """Return the view for Rich."""
    from rich.console import Group
    from rich.text import Text

    head = Text()
    head.append(f" {picture.mode.value} ", style=_COLOURS.get(picture.mode, "reverse"))
    # Before the arms' names, which can be longer than a terminal is wide.
    if picture.unconfirmed:
        head.append(" torque off isn't confirmed ", style="bold red")
    elif not picture.torque:
        head.append(" torque off ", style="yellow")
    head.append(f" {picture.title}", style="bold")
    seconds = 0.0 if math.isnan(picture.figures.duration_s) else picture.figures.duration_s
    head.append(f"  {_clock(seconds)}")
    lines: list[RenderableType] = [head]
    if picture.torque:
        error, latency, missed = picture.period_error, picture.latency, picture.figures.missed
        text = Text(f" {_hz(picture.rate_hz)} · period error p50 {_ms(error.p50_s)} ")
        text.append(f"p99 {_ms(error.p99_s)}", style="yellow" if error.p99_s > LATE_S else "")
        text.append(
            f" · leader to follower p50 {_ms(latency.p50_s)} p99 {_ms(latency.p99_s)} · missed "
        )
        text.append(str(missed), style="yellow" if missed else "")
        lines.append(text)
    # Where the loop stands still, what it measured last isn't how things are.
    if picture.tick is not None and (picture.torque or picture.state is not None):
        lines.append(_joint_table(picture, picture.tick))
    said = [(words, "bold red") for words in _trouble(picture)]
    if picture.note:
        said.append((picture.note, "bold yellow"))
    figures = picture.figures
    changes = ", ".join(
        f"{WHAT[reason]} {figures.changes[name]}×"
        for reason in CHANGED
        if (name := str(reason.name).lower()) in figures.changes
    )
    if changes:
        said.append((f"commands changed: {changes}", "dim"))
    if figures.trips:
        trips = "; ".join(
            f"{_clock(trip.t_s)} {say_reasons(trip.reason)}{say_joints(trip.joints)}"
            for trip in figures.trips[-TRIPS_SHOWN:]
        )
        said.append((f"trips, {len(figures.trips)} in all: {trips}", ""))
    faults = ", ".join(f"{name} {count}" for name, count in picture.bus_faults.items() if count)
    silent = ", ".join(f"{joint} {count}×" for joint, count in figures.silent.items())
    counted = "; ".join(filter(None, (faults, silent and f"silent: {silent}")))
    said.append((f"bus faults: {counted or 'none'}", "yellow" if counted else "dim"))
    if picture.real_time:
        said.append((f"real-time rights: {picture.real_time}", "dim"))
    lines += [Text(words, style=style) for words, style in said]
    keys = HELP if picture.help else KEYS[picture.mode]
    lines.append(Text(keys, style="reverse" if picture.help else "dim"))
    return Group(*lines)


def _joint_table(picture: TeleopScreen, tick: Tick) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("joint")
    state = picture.state or tick.state
    command, limits = tick.command, picture.limits
    given = (
        ("A", state.current_a, 2, limits.stall_current_a),
        ("load %", state.load_pct, 0, 100.0),
        ("°C", state.temperature_c, 0, limits.temperature_c),
        ("V", state.voltage_v, 1, math.inf),
    )
    readings = [reading for reading in given if _has(reading[1])]
    names = (f"leader {picture.units}", "sent", "position", "error", *(r[0] for r in readings))
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("status")
    asked = command.requested_rad
    if asked.shape != command.sent_rad.shape:
        asked = np.full(len(picture.joints), np.nan)
    leader, sent, position = (
        picture.to_units(q) for q in (asked, command.sent_rad, state.position_rad)
    )
    off_deg = np.degrees(command.sent_rad - state.position_rad)
    for n, joint in enumerate(picture.joints):
        row = [joint, "–", "–", f"{position[n]:.1f}", "–"]
        if picture.torque:
            error = _marked(f"{sent[n] - position[n]:.1f}", abs(off_deg[n]), OFF_DEG)
            row[1:] = [f"{leader[n]:.1f}", f"{sent[n]:.1f}", row[3], error]
        for _, values, digits, limit in readings:
            text, size = f"{values[n]:.{digits}f}", abs(values[n])
            row.append(_marked(text, size, NEAR * limit, limit) if math.isfinite(size) else "–")
        words = say_status(int(state.status[n]), picture.protocol)
        table.add_row(*row, f"[red]{words}[/]" if words else "ok")
    return table


def _has(values: FloatArray) -> bool:
    return bool(np.isfinite(values).any())


def _marked(text: str, size: float, yellow: float, red: float = math.inf) -> str:
    if size > red:
        return f"[red]{text}[/]"
    return f"[yellow]{text}[/]" if size > yellow else text


def _trouble(picture: TeleopScreen) -> list[str]:
    """Return what is wrong and what to do, a line each; nothing where all is well."""
    if picture.mode in (ProgramMode.LOST, ProgramMode.READY):
        return picture.lost.splitlines()
    if picture.mode in (ProgramMode.TRIPPED, ProgramMode.HELD) and picture.figures.trips:
        trip = picture.figures.trips[-1]
        more = [picture.unconfirmed] if picture.unconfirmed else []
        return [say_trip(trip.reason, trip.joints, picture.clear), *more]
    return []


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _hz(rate_hz: float) -> str:
    return "– Hz" if math.isnan(rate_hz) else f"{rate_hz:.1f} Hz"


def _ms(seconds: float) -> str:
    return "–" if math.isnan(seconds) else f"{seconds * 1e3:.2f} ms"


LINE_S: Final = 1.0
"""Without a terminal a line is written this often [s], and whenever the mode changes."""

EARLY_S: Final = 0.05
KEPT_LOGS: Final = 1000

type Show = Callable[[TeleopScreen], None]


@contextlib.contextmanager
def screen() -> Iterator[Show]:
    """Yield a function that shows one frame of the view on stderr."""
    if not sys.stderr.isatty():
        said_s, said = -LINE_S, ""

        def show(picture: TeleopScreen) -> None:
            nonlocal said_s, said
            now_s, what = time.monotonic(), f"{picture.mode}{picture.lost}{picture.note}"
            if now_s - said_s >= LINE_S - EARLY_S or what != said:
                said_s, said = now_s, what
                sys.stderr.write(line(picture) + "\n")
                sys.stderr.flush()

        yield show
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    # Log lines are kept off the screen, and written when the terminal is itself again.
    root = logging.getLogger()
    before, kept = root.handlers[:], logging.handlers.MemoryHandler(KEPT_LOGS, logging.CRITICAL)
    root.handlers[:] = [kept]
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            yield lambda picture: live.update(render(picture), refresh=True)
    finally:
        root.handlers[:] = before
        for record in kept.buffer:
            root.handle(record)
