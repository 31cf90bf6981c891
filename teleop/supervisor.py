"""A small process beside the one that drives arms: it lowers them where that one can't any more.

It holds the buses' ports from before torque is on, as its own copies of the open files. Where the
program is killed, crashes, is stopped or hangs, the supervisor first ends it for good; only when
that process is gone does it say its first byte: nothing of the old one can reach the arm after
that. Then it lowers and releases the arm. Where the program ends in order, it ends without a byte.

`Supervisor` is the program's side; run as a module this is the process.
"""

import contextlib
import itertools
import json
import logging
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np

from gaploop.core import platform_calls
from gaploop.core.clock import MonotonicClock, raise_priority
from gaploop.core.errors import DeviceError
from gaploop.core.messages import FloatArray, FollowerState, SafeCommand
from gaploop.core.station import SafetyLimits, Workspace
from gaploop.teleop.descent import Descent
from gaploop.teleop.safety import SafetyFilter
from gaploop.teleop.servos.bus import ServoBus
from gaploop.teleop.servos.exchange import BusLine, Script, run
from gaploop.teleop.servos.port import SUPERVISOR, SerialPort
from gaploop.teleop.servos.registers import Protocol, decode_position
from gaploop.teleop.servos.torque import DAMPED, torque_off
from gaploop.teleop.stopping import STOP_SIGNALS, CleanupStep, one_line, run_steps
from gaploop.teleop.trips import say_reasons
from gaploop.teleop.workspace import WorkspaceGuard, guard_of

log = logging.getLogger(__name__)

COMMAND: Final = (sys.executable, "-P", "-m", SUPERVISOR)
HOLDS: Final = 1
"""Torque_Enable of a servo that holds; what is more damps."""
MOST_HANDLES: Final = 16
READY_S: Final = 10.0
"""Longest time that a supervisor may take to start; 0.2 s is usual [s]."""
BEAT_S: Final = 0.1
"""The program says this often that it drives [s]."""
SILENT_S: Final = 2.0
"""A program that says nothing for this long while it drives is ended [s]. Meanwhile servos hold
their last goal."""
LEAVES_S: Final = 1.0
"""The program waits this long for its supervisor to leave the ports [s]."""
PERIOD_S: Final = 0.02
"""Of the supervisor's own turns, while it lowers an arm [s]."""
LOST_S: Final = 0.5
"""On the way down, which is slow, a servo may be silent for so long before all are let go [s]."""
REPLY_S: Final = 0.003
"""At first answers are waited for as if they took so long [s]: here a late one is no hurry."""
_LOOK_S: Final = 0.05

_READY, _DRIVES, _RESTS, _HANGS, _LET_GO, _DONE = b"r", b".", b"-", b"!", b"0", b"="
"""What the two say to each other, a byte each."""

UNSUPERVISED: Final = (
    "If gaploop is killed or hangs, the arm keeps its torque: have its power switch within reach."
)


@dataclass(frozen=True)
class SupervisedBus:
    """One arm's servos, as its supervisor has to know them.

    Attributes:
        handle: the open port's file descriptor.
        angles: for each joint its middle [ticks], its angle there [rad] and its slope [rad/tick].
        reply_s: how long answers usually take beyond their bytes [s].
        is_follower: it is lowered; a leader is let go of at once.
    """

    handle: int
    path: str
    baud: int
    protocol: Protocol
    ids: list[int]
    models: list[str]
    angles: list[tuple[float, float, float]]
    reply_s: float
    is_follower: bool


# -- the program's side --------------------------------------------------------------------------

_prepared: list[tuple[subprocess.Popen[bytes], socket.socket]] = []
"""A process that waits to be told which arms it supervises; at most one."""


def prepare() -> None:
    """Start a supervisor for arms that are about to be connected: it takes 0.3 s meanwhile."""
    if not _prepared:
        with contextlib.suppress(OSError):
            _prepared.append(_start())


def _start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        quiet: Any = {"stdin": theirs.fileno(), "stdout": subprocess.DEVNULL}
        return subprocess.Popen(COMMAND, **quiet, start_new_session=True), ours


class Supervisor:
    """The supervisor of some buses, as the program that drives them sees it; none of no buses.

    Nothing here raises, and any thread may call it. Where it can't be started or has gone, `lost`
    says so in a line.
    """

    def __init__(self, buses: Sequence[SupervisedBus], safety: SafetyFilter) -> None:
        self.lost = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        if not buses:
            return
        job = {"buses": [asdict(bus) for bus in buses], "safety": safety.to_json()}
        own = platform_calls.own_handle()
        handles = [bus.handle for bus in buses] + ([] if own is None else [own])
        try:
            is_there = _prepared and _prepared[0][0].poll() is None
            self._process, self._channel = _prepared.pop() if is_there else _start()
            socket.send_fds(self._channel, [b"\n"], handles)
            self._channel.sendall(json.dumps(job | {"pid": os.getpid()}).encode() + b"\n")
        except (OSError, ValueError) as error:
            self._lose(f"The arm's supervisor can't be started ({one_line(error)})")
        finally:
            if own is not None:
                os.close(own)

    def ready(self) -> None:
        """Wait until it watches, and tell it that from now on the program drives."""
        if self._channel is not None and self.watches:
            heard = b""
            with contextlib.suppress(OSError):
                self._channel.settimeout(READY_S)
                heard = self._channel.recv(1)
            self._channel.setblocking(False)
            if heard != _READY:
                self._lose("The arm's supervisor doesn't start")
        self.drives()

    def drives(self) -> None:
        """Say that the program drives and is well."""
        self._say(_DRIVES)

    def rests(self) -> None:
        """Say that nothing is driven; from now on only the program's end is watched for."""
        self._say(_RESTS)

    def take_over(self, *, let_go: bool) -> bool:
        """Have this program ended and the arm lowered, or let go of; say if there is who does."""
        return self._say(_LET_GO if let_go else _HANGS)

    def done(self) -> None:
        """Have it leave the ports and end, as torque is off; safe to call twice."""
        process, self._process = self._process, None
        if process is None or self._channel is None:
            return
        with self._channel, contextlib.suppress(OSError):
            self._channel.settimeout(LEAVES_S)
            self._channel.send(_DONE)
            self._channel.recv(1)  # until it closes its end
        process.kill()  # in an orderly end nothing is left of it
        process.wait()

    @property
    def watches(self) -> bool:
        """Whether there is one."""
        return self._process is not None and not self.lost

    def _say(self, word: bytes) -> bool:
        if self._channel is not None and self.watches:
            try:
                self._channel.send(word)
            except OSError:  # it has ended, or reads nothing any more
                if self.watches:  # another thread may have said just now that all is done
                    self._lose("The arm's supervisor has ended")
        return self.watches

    def _lose(self, why: str) -> None:
        self.lost = f"{why}. {UNSUPERVISED}"
        log.warning("%s", self.lost)


# -- the process ----------------------------------------------------------------------------------


class _Why(StrEnum):
    """Why a program can't look after its arm any more, in words."""

    ENDED = "gaploop has ended"
    SILENT = "gaploop stood still and was ended"
    HANGS = "gaploop's control loop hung, and gaploop was ended"
    LET_GO = "gaploop's control loop hung, was to let go, and gaploop was ended"


def main() -> None:
    """Watch the program that started this one, and look after its arms where it can't."""
    for number in STOP_SIGNALS:  # the program's to answer
        signal.signal(number, signal.SIG_IGN)
    channel = socket.socket(fileno=0)
    with CleanupStep():
        import mujoco  # noqa: F401  # for the box; takes as long as all else, while arms connect
    _, handles, _, _ = socket.recv_fds(channel, 1, MOST_HANDLES)
    if not handles:  # the program has ended before there was an arm
        return
    with channel.makefile("rb", buffering=0) as lines:
        job = json.loads(lines.readline())
    boxes = list[WorkspaceGuard]()
    with CleanupStep():  # without its box an arm is still better lowered than not
        for box in job["safety"]["boxes"]:
            boxes.append(guard_of(box["model"], Workspace(*box["box"]), box["joints"]))
    raise_priority()
    channel.sendall(_READY)
    try:
        if why := _watch(channel, job["pid"]):
            pairs = zip(job["buses"], handles, strict=False)  # the last one is of the process
            known = [SupervisedBus(**(bus | {"handle": handle})) for bus, handle in pairs]
            own = handles[len(known)] if len(handles) > len(known) else None
            platform_calls.kill_process(job["pid"], own)
            _wait_until_gone(job["pid"])
            with contextlib.suppress(DeviceError):
                _Arms([bus for bus in known if not bus.is_follower]).torque_off()
            followers = _Arms([bus for bus in known if bus.is_follower])
            _bring_down(followers, job["safety"], boxes, why)
    finally:
        os._exit(0)  # at once: the program, or the next one, waits for the ports


def _watch(channel: socket.socket, pid: int) -> _Why | None:
    """Return why the program can't look after the arm any more, None where it needn't."""
    silent_s, drives, wait_s = 0.0, False, _LOOK_S
    channel.setblocking(False)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while os.getppid() == pid:
        if poll.poll(1000.0 * wait_s):
            words = b""
            with contextlib.suppress(ConnectionError):
                words = channel.recv(4096)
            if _DONE in words:
                return None
            if _LET_GO in words or _HANGS in words:
                return _Why.LET_GO if _LET_GO in words else _Why.HANGS
            if words:
                silent_s, drives = 0.0, words.endswith(_DRIVES)
            else:  # it is ending, or has forgotten this process
                poll.unregister(channel)
                wait_s = 0.002
        else:
            # Counted in looks: a machine that was suspended, or too busy for this process as well,
            # isn't taken for a program that hangs.
            silent_s += wait_s
        if silent_s > SILENT_S and (drives or wait_s < _LOOK_S):
            return _Why.SILENT if drives else None
    return _Why.ENDED


def _wait_until_gone(pid: int) -> None:
    """Wait until a process that was killed can't write to anything any more.

    The kernel gives a process's children to another when no thread of it goes on; a thread in
    the middle of a call into a driver ends it before.
    """
    warn_s = time.monotonic() + SILENT_S
    while os.getppid() == pid:
        time.sleep(0.001)
        if time.monotonic() > warn_s:
            _say(f"gaploop, process {pid}, can't be ended. Switch the arm's power off.")
            warn_s = math.inf


def _bring_down(
    arms: Any, safety: Mapping[str, Any], boxes: Sequence[WorkspaceGuard], why: _Why
) -> None:
    """Bring followers down by the law of every other end, if they hold."""
    let_go = [signal.SIGINT] if why is _Why.LET_GO else []
    signal.signal(signal.SIGINT, lambda *_: let_go.append(signal.SIGINT))
    goal_rad, torque = arms.ask()
    is_silent = np.isnan(torque).all()
    if not is_silent and not (torque > 0).any():  # NaN isn't
        return
    if is_silent:  # as in any other end, it is let go of: it may hear all the same
        _say(f"{why}, and no servo answers. Switch the arm's power off.")
    else:
        _say(
            f"{why} while it held the arm. It is brought down now; to let go of it at once: "
            f"kill -INT {os.getpid()}"
        )
    if not (torque == HOLDS).any():
        let_go.append(signal.SIGINT)  # it was let go of already, and is falling damped
    joint_limits_rad = np.array(safety["joint_limits_rad"])
    park_rad = None if safety["park_rad"] is None else np.array(safety["park_rad"])
    limits = SafetyLimits(**safety["limits"])
    filtered = SafetyFilter(
        replace(limits, lost_servo_s=max(limits.lost_servo_s, LOST_S)),
        joint_limits_rad,
        PERIOD_S,
        boxes,
        grips=safety["grips"],
        park_rad=park_rad,
    )
    limp = frozenset(np.flatnonzero(torque != HOLDS).tolist())
    steps = (
        ("releasing", lambda: arms.release(limp)),
        ("lowering", lambda: filtered.reset(goal_rad)),
    )
    faults = run_steps(steps)
    descent = Descent(
        arms, filtered, MonotonicClock(), PERIOD_S, let_go=lambda: bool(let_go or faults), limp=limp
    )
    faults += descent.run()
    because = f" ({say_reasons(filtered.tripped)})" if filtered.tripped else ""
    _say("; ".join(faults) or f"The arm's torque is off{because}.")


class _Arms:
    """Servo arms on ports that were handed down: as much of a `Follower` as a `Descent` takes."""

    def __init__(self, known: Sequence[SupervisedBus]) -> None:
        self.buses = []
        for one in known:
            port = SerialPort.inherited(one.path, one.baud, one.handle)
            bus = ServoBus(BusLine(port, Protocol(one.protocol)), one.ids, one.models)
            bus.line.reply_s = max(one.reply_s, REPLY_S)
            bus.decoder.set_angles(*zip(*one.angles, strict=True))
            self.buses.append(bus)
        angles = np.array([angle for one in known for angle in one.angles]).reshape(-1, 3)
        self._middle_ticks, self._middle_rad, self._rad_per_tick = angles.T
        ends = itertools.accumulate((len(bus.ids) for bus in self.buses), initial=0)
        self._spans = list(itertools.starmap(slice, itertools.pairwise(ends)))
        self.joint_names = tuple(str(i) for bus in self.buses for i in bus.ids)
        self.damps = any(DAMPED[bus.protocol] for bus in self.buses)

    def ask(self) -> tuple[FloatArray, FloatArray]:
        """Return the servos' goals [rad] and Torque_Enable, shape (n_joints,); NaN if not told.

        The goal of one that doesn't hold is where it is.
        """
        found = np.hstack(self._each(_ask))
        ticks = np.where(found[1] == HOLDS, found[0], found[2])
        return self._middle_rad + (ticks - self._middle_ticks) * self._rad_per_tick, found[1]

    def read(self) -> FollowerState:
        """Return what the servos report."""
        now_s = time.monotonic()
        states = self._each(lambda bus: bus.read(now_s))
        _, speed, current, load, heat, volts, q = np.hstack([state.values for state in states])
        status = np.hstack([state.status for state in states])
        return FollowerState(now_s, q, speed, current, load, heat, volts, status)

    def send(self, command: SafeCommand) -> None:
        """Set the goal positions."""
        ticks = self._middle_ticks + (command.sent_rad - self._middle_rad) / self._rad_per_tick
        for bus, span in zip(self.buses, self._spans, strict=True):
            bus.set_goals(ticks[span].tolist())

    def torque_off(self, *, damped: bool = False) -> None:
        """Take torque off; DeviceError names the servos that don't confirm it."""
        self._require(self._each(lambda bus: _off(bus, bus.ids, damped=damped)))

    def release(self, joints: Collection[int]) -> None:
        """Take torque off some joints alone, damped where they can; DeviceError as `torque_off`."""

        def release(bus: ServoBus) -> Script[tuple[int, ...]]:
            span = self._spans[self.buses.index(bus)]
            ids = [bus.ids[k - span.start] for k in joints if span.start <= k < span.stop]
            bus.released.update(ids)
            return (yield from _off(bus, ids, damped=True))

        self._require(self._each(release))

    def _each[T](self, script: Callable[[ServoBus], Script[T]]) -> list[T]:
        return run([(bus.line, script(bus)) for bus in self.buses])

    def _require(self, left: Sequence[Sequence[int]]) -> None:
        pairs = zip(self.buses, left, strict=True)
        names = [f"servo {i} on {bus.line.port.path}" for bus, ids in pairs for i in ids]
        if names:
            raise DeviceError(
                f"Torque off isn't confirmed by {', '.join(names)}. Switch the arm's power off."
            )


def _off(bus: ServoBus, ids: Sequence[int], *, damped: bool) -> Script[tuple[int, ...]]:
    """Take torque off; what can't brake lets go plainly."""
    left = (yield from torque_off(bus, ids, damped=damped)) if ids else ()
    return (yield from torque_off(bus, left)) if damped and left else left


def _ask(bus: ServoBus) -> Script[FloatArray]:
    """Return each servo's goal [ticks], Torque_Enable and position [ticks], shape (3, n)."""
    yield from bus.probe()
    torque = yield from bus.collect(bus.register("Torque_Enable"), bus.ids)
    goals = yield from bus.collect(bus.register("Goal_Position"), bus.ids)
    state = yield from bus.read(time.monotonic())
    yield from bus.note_holding([i for i, data in torque.items() if data[0] == HOLDS])
    rows = [
        [decode_position(bus.protocol, goals[i]) if i in goals else math.nan for i in bus.ids],
        [torque[i][0] if i in torque else math.nan for i in bus.ids],
        state.position_ticks,
    ]
    return np.array(rows, dtype=np.float64)


def _say(words: str) -> None:
    """Write a line to the terminal, if that takes it at once; it may be as the program left it."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    with contextlib.suppress(OSError):
        if poll.poll(0):
            os.write(2, f"\r{words}\r\n".encode())


if __name__ == "__main__":
    main()
