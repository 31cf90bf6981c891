"""A small process beside the one that drives arms: it lowers them where that one can't any more.

It holds the buses' ports from before torque is on, as its own copies of the open files. Where the
program is killed, crashes, is stopped or hangs, the supervisor first ends it for good; only when
that process is gone does it say its first byte: nothing of the old one can reach the arm after
that. Then it lowers and releases the arm. Where the program ends in order, it ends without a byte.

`Supervisor` is the program's side; run as a module this is the process. It imports nothing heavy.
"""

from __future__ import annotations

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
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from gaploop.core import platform_calls
from gaploop.core.types import NO_REPLY, FloatArray, FollowerState
from gaploop.teleop.lowering import Lowering
from gaploop.teleop.realtime import raise_priority
from gaploop.teleop.servos.bus import ServoBus
from gaploop.teleop.servos.exchange import BusLine, Script, run
from gaploop.teleop.servos.port import SUPERVISOR, SerialPort
from gaploop.teleop.servos.registers import Protocol
from gaploop.teleop.servos.state import decode_goal, encode_goals
from gaploop.teleop.servos.torque import torque_off
from gaploop.teleop.stopping import STOP_SIGNALS, one_line

log = logging.getLogger(__name__)

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
TELL_S: Final = 1.0
"""A servo that doesn't answer is asked, or told, again for so long [s]."""
_LOOK_S: Final = 0.05

_READY, _DRIVES, _RESTS, _HANGS, _DONE = b"r", b".", b"-", b"!", b"="
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
        limits_rad: of each joint [rad]; none of a leader's, which is let go of at once.
        grips: which joints hold things.
    """

    handle: int
    path: str
    baud: int
    protocol: Protocol
    ids: list[int]
    models: list[str]
    angles: list[tuple[float, float, float]]
    limits_rad: list[list[float]]
    grips: list[int]


# -- the program's side --------------------------------------------------------------------------


class Supervisor:
    """The supervisor of some buses, as the program that drives them sees it; none of no buses.

    Nothing here raises, and any thread may call it. Where it can't be started or has gone, `lost`
    says so in a line.
    """

    def __init__(self, buses: Sequence[SupervisedBus], park_rad: FloatArray | None = None) -> None:
        self.lost = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._channel, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            stack.enter_context(theirs)
            handles = [bus.handle for bus in buses]
            job = {"pid": os.getpid(), "own": platform_calls.own_handle(), "silent_s": SILENT_S}
            if job["own"] is not None:
                stack.callback(os.close, job["own"])
                handles.append(job["own"])
            job["buses"] = [asdict(bus) for bus in buses]
            job["park_rad"] = None if park_rad is None else park_rad.tolist()
            try:
                if buses:
                    self._process = subprocess.Popen(
                        [sys.executable, "-P", "-m", SUPERVISOR],
                        stdin=theirs,
                        stdout=subprocess.DEVNULL,
                        pass_fds=handles,
                        **platform_calls.APART,
                    )
                    self._channel.sendall(json.dumps(job).encode() + b"\n")
            except (OSError, ValueError) as error:
                self._lose(f"The arm's supervisor can't be started ({one_line(error)})")

    def ready(self) -> None:
        """Wait until it watches, and tell it that from now on the program drives."""
        if self._watches:
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

    def take_over(self) -> bool:
        """Have this program ended and the arm lowered; return whether there is who does."""
        return self._say(_HANGS)

    def done(self) -> None:
        """Have it leave the ports and end, as torque is off; safe to call twice."""
        self._say(_DONE)
        process, self._process = self._process, None
        with self._channel, contextlib.suppress(OSError):
            if process is not None:
                self._channel.settimeout(LEAVES_S)
                self._channel.recv(1)  # until it closes its end
        if process is not None:
            process.kill()  # in an orderly end nothing is left of it
            process.wait()

    @property
    def _watches(self) -> bool:
        return self._process is not None and not self.lost

    def _say(self, word: bytes) -> bool:
        if self._watches:
            try:
                self._channel.send(word)
            except OSError:  # it has ended, or reads nothing any more
                self._lose("The arm's supervisor has ended")
        return self._watches

    def _lose(self, why: str) -> None:
        self.lost = f"{why}. {UNSUPERVISED}"
        log.warning("%s", self.lost)


# -- the process ----------------------------------------------------------------------------------


def main() -> None:
    """Watch the program that started this one, and look after its arms where it can't."""
    for number in STOP_SIGNALS:  # the program's to answer
        signal.signal(number, signal.SIG_IGN)
    channel = socket.socket(fileno=0)
    with channel.makefile("rb", buffering=0) as lines:
        job = json.loads(lines.readline())
    raise_priority()
    channel.sendall(_READY)
    pid = job["pid"]
    try:
        why = _watch(channel, pid, job["silent_s"])
        if why:
            platform_calls.kill_process(pid, job["own"])
            _wait_until_gone(pid)
            _look_after([SupervisedBus(**bus) for bus in job["buses"]], job["park_rad"], why)
    finally:
        os._exit(0)  # at once: the program, or the next one, waits for the ports


def _watch(channel: socket.socket, pid: int, patience_s: float) -> str:
    """Return why the program can't look after the arm any more, "" where it needn't."""
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
                return ""
            if _HANGS in words:
                return "hung"
            if words:
                silent_s, drives = 0.0, words.endswith(_DRIVES)
            else:  # it is ending, or has forgotten this process
                poll.unregister(channel)
                wait_s = 0.002
        else:
            # Counted in looks: a machine that was suspended, or too busy for this process as well,
            # isn't taken for a program that hangs.
            silent_s += wait_s
        if silent_s > patience_s and (drives or wait_s < _LOOK_S):
            return "stood still" if drives else ""
    return "ended"


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


def _look_after(buses: Sequence[SupervisedBus], park_rad: list[float] | None, why: str) -> None:
    """Let go of leaders at once; lower followers, then let go of them."""
    let_go = list[int]()
    signal.signal(signal.SIGINT, lambda number, _frame: let_go.append(number))
    arms = [_Arm(known) for known in buses]
    followers = [arm for arm in arms if arm.known.limits_rad]
    run([(arm.line, torque_off(arm.bus)) for arm in arms if arm not in followers])
    for arm in followers:
        _told_again(arm, arm.ask)
    if not any(arm.holding or arm.silent for arm in followers):
        return
    _say(
        f"gaploop {why} while it held the arm, which is now lowered. To let go of it at once: "
        f"kill -INT {os.getpid()}"
    )
    if any(arm.holding for arm in followers):
        _lower(followers, park_rad, let_go)
    words = [
        f"servo {servo_id} on {arm.known.path}"
        for arm in followers
        for servo_id in _told_again(arm, arm.let_go)
    ]
    _say(
        f"Torque off isn't confirmed by {', '.join(words)}. Switch the arm's power off."
        if words
        else "The arm's torque is off."
    )


class _Arm:
    """One arm on a port that was handed down."""

    def __init__(self, known: SupervisedBus) -> None:
        self.known = known
        port = SerialPort.inherited(known.path, known.baud, known.handle)
        self.line = BusLine(port, Protocol(known.protocol))
        self.bus = ServoBus(self.line, known.ids, known.models)
        self.middle_ticks, self.middle_rad, self.rad_per_tick = np.array(known.angles).T
        self.bus.decoder.set_angles(*zip(*known.angles, strict=True))
        self.holding: set[int] = set()
        """Servos that hold, and are sent goals: one that is limp would hold by one."""
        self.silent = list[int]()
        self.goal_rad = np.full(len(known.ids), np.nan)

    def ask(self) -> Script[list[int]]:
        """Find out which servos hold, and at what goals; return those that don't say."""
        bus = self.bus
        yield from bus.probe()
        torque = yield from bus.collect(bus.register("Torque_Enable"), bus.ids)
        goals = yield from bus.collect(bus.register("Goal_Position"), bus.ids)
        self.silent = [i for i in bus.ids if i not in torque or i not in goals]
        self.holding = {i for i, data in torque.items() if data[0] and i in goals}
        ticks = [decode_goal(bus.protocol, goals[i]) if i in goals else math.nan for i in bus.ids]
        self.goal_rad = self.middle_rad + (np.array(ticks) - self.middle_ticks) * self.rad_per_tick
        yield from bus.note_holding(self.holding)
        return self.silent

    def let_go(self) -> Script[list[int]]:
        """Take torque off; return which servos didn't confirm it."""
        return list((yield from torque_off(self.bus)))

    def send(self, goal_rad: FloatArray) -> None:
        """Send those that hold their goals [rad], shape (n_servos,)."""
        ticks = self.middle_ticks + (goal_rad - self.middle_rad) / self.rad_per_tick
        held = [k for k, servo_id in enumerate(self.bus.ids) if servo_id in self.holding]
        ids = [self.bus.ids[k] for k in held]
        goals = encode_goals(self.bus.protocol, ids, ticks[held])
        self.line.start(self.bus.store_all(self.bus.register("Goal_Position"), goals))

    def give_up(self, servo_id: int) -> Script[None]:
        """Let go of one servo."""
        self.holding.discard(servo_id)
        self.bus.holding.discard(servo_id)
        yield self.bus.store(servo_id, self.bus.register("Torque_Enable"), b"\0")


def _lower(arms: Sequence[_Arm], park_rad: list[float] | None, let_go: Sequence[int]) -> None:
    """Lower what holds until it rests, nothing answers, or it is to be let go of."""
    servos = [(arm, servo_id) for arm in arms for servo_id in arm.bus.ids]
    goal, limits = (
        np.concatenate(parts)
        for parts in zip(*((arm.goal_rad, arm.known.limits_rad) for arm in arms), strict=True)
    )
    grips = [n for n, (arm, i) in enumerate(servos) if arm.bus.ids.index(i) in arm.known.grips]
    ends = list(itertools.accumulate((len(arm.bus.ids) for arm in arms), initial=0))
    lowering: Lowering | None = None
    heard_s = last_s = time.monotonic()
    while not (let_go or (lowering is not None and lowering.done)):
        now_s = time.monotonic()
        states = run([(arm.line, arm.bus.read(now_s)) for arm in arms])
        _, speed, current, load, heat, volts, q = np.hstack([state.values for state in states])
        status = np.hstack([state.status for state in states])
        heard_s = now_s if not (status & NO_REPLY).all() else heard_s
        if now_s - heard_s > SILENT_S:
            return
        failed = [
            (arm, servo_id)
            for (arm, servo_id), bits in zip(servos, status.tolist(), strict=True)
            if bits & ~NO_REPLY and servo_id in arm.holding
        ]
        for arm, servo_id in failed:  # alone; the others go on
            run([(arm.line, arm.give_up(servo_id))])
        if failed or lowering is None:
            goal = np.where(np.isfinite(goal), goal, np.nan_to_num(q))
            limp = [n for n, (arm, servo_id) in enumerate(servos) if servo_id not in arm.holding]
            park = None if park_rad is None else np.array(park_rad, dtype=np.float64)
            lowering = Lowering(goal, park, limits, grips=grips, limp=limp)
        state = FollowerState(now_s, q, speed, current, load, heat, volts, status)
        goal = lowering.step(state, now_s - last_s)
        for arm, (first, end) in zip(arms, itertools.pairwise(ends), strict=True):
            arm.send(goal[first:end])
        last_s = now_s
        time.sleep(max(now_s + PERIOD_S - time.monotonic(), 0.0))


def _told_again(arm: _Arm, script: Callable[[], Script[list[int]]]) -> list[int]:
    """Run a script until no servo is left, or for `TELL_S`; return those that are."""
    give_up_s = time.monotonic() + TELL_S
    while (left := run([(arm.line, script())])[0]) and time.monotonic() < give_up_s:
        time.sleep(PERIOD_S)
    return left


def _say(words: str) -> None:
    """Write a line to the terminal, if that takes it at once; it may be as the program left it."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    with contextlib.suppress(OSError):
        if poll.poll(0):
            os.write(2, f"\r{words}\r\n".encode())


if __name__ == "__main__":
    main()
