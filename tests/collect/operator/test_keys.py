"""Keys of a terminal: the emergency stop is heard whatever else was pressed, and whatever runs."""

from __future__ import annotations

import itertools
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.collect.operator import machine
from gaploop.collect.operator.console import OperatorConsole, Safety, SessionLabels
from gaploop.collect.operator.keys import (
    DEFAULTS,
    HELD_S,
    ROLLOUT,
    SPACE,
    Command,
    KeyDecoder,
    KeyMap,
    Keys,
    Twice,
)
from gaploop.collect.operator.machine import SessionStage, StageTiming
from gaploop.collect.operator.view import Loop
from gaploop.core.platform_calls import signals_handled
from gaploop.core.vocabulary import Outcome

WITHIN_S = 60.0

# -- from bytes to keys --------------------------------------------------------------------------


@st.composite
def in_pieces(draw: st.DrawFn) -> list[bytes]:
    """Bytes in which a space stands somewhere, in whatever pieces they are read."""
    keys = st.sampled_from([b"\x1b", b"\x1b[", b"\x1b[1;5", b"\x1bO", b"\xe2\x82", b"c", b"h"])
    some = st.lists(st.binary(max_size=6) | keys, max_size=6).map(b"".join)
    data = draw(some) + b" " + draw(some)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=5)))
    ends = [0, *cuts, len(data)]
    return [data[a:b] for a, b in itertools.pairwise(ends)]


@given(in_pieces())
def test_a_space_is_heard_in_the_piece_in_which_it_comes(pieces: list[bytes]) -> None:
    """`h` and Space in one write: only the first byte of a read was looked at, and the emergency
    stop was lost 15 times of 15.
    """
    decoder = KeyDecoder()
    for piece in pieces:
        assert piece.count(b" ") <= decoder.feed(piece).count(SPACE)


@given(st.lists(st.sampled_from(["up", "right", "", "s", "q", "return", SPACE, "é"])),
       st.data())  # fmt: skip
def test_keys_are_the_same_however_their_bytes_are_cut(
    names: list[str], data: st.DataObject
) -> None:
    sent = {"up": "\x1b[A", "right": "\x1bOC", "": "\x1b[15~", "return": "\r"}
    raw = "".join(sent.get(name, " " if name == SPACE else name) for name in names).encode()
    decoder, heard = KeyDecoder(), list[str]()
    while raw:
        cut = data.draw(st.integers(1, len(raw)))
        heard += decoder.feed(raw[:cut])
        raw = raw[cut:]
    assert heard == [name for name in names if name]


def test_what_belongs_to_a_sequence_is_no_command() -> None:
    """Ctrl-Right chose an answer and pressed c: of a sequence that wasn't known each byte was a
    key.
    """
    decoder = KeyDecoder()
    assert decoder.feed(b"\x1b[1;5C\x1b[200~\x1b[[A\x1b[<0;1;1M") == []
    assert decoder.feed(b"\x1b[3~x") == ["x"]
    assert decoder.feed("\u00a0\u3000\0\x1a".encode()) == [SPACE] * 4


@pytest.mark.parametrize(
    "keys", [b"\x1b[D", b"\x1bOS", b"\x1b[1;5C", b"\x1b[3~", b"\x1b", b"\x1b\x1b"]
)
def test_a_key_whose_bytes_come_one_by_one_is_no_letter_and_no_stop(keys: bytes) -> None:
    """Over a slow line `ESC`, later `[D`, ended the session and discarded the take."""
    (reader, writer), console = os.pipe(), KeyMap()
    try:
        with Keys(reader) as heard:
            for byte in keys:
                os.write(writer, bytes([byte]))
            os.write(writer, b"x")
            names: list[str] = []
            while "x" not in names:
                names += heard.presses(60.0)
    finally:
        os.close(reader)
        os.close(writer)
    asked = [console.command(name) for name in names if name != "x"]
    assert asked in ([], [None], [Command.RERECORD])
    assert (asked == [Command.RERECORD]) == (keys == b"\x1b[D")


def test_a_wait_for_keys_ends_whatever_signal_comes() -> None:
    """Ctrl-C was heard, and the arm followed its leader until a key was pressed: `SimpleQueue.get`
    waits without end where a signal's handler takes longer than is left of the wait.
    """
    (reader, writer), came = os.pipe(), list[int]()

    def handle(number: int, _frame: object) -> None:
        time.sleep(0.05)
        came.append(number)

    give_up = threading.Timer(WITHIN_S, os.write, (writer, b"x"))
    main = threading.main_thread().ident
    send = threading.Timer(0.03, signal.pthread_kill, (main, signal.SIGUSR1))
    try:
        with Keys(reader) as heard, signals_handled([signal.SIGUSR1], handle):
            give_up.start()
            send.start()
            while not came:
                assert heard.presses(0.02) == []
    finally:
        give_up.cancel()
        send.join()
        os.close(reader)
        os.close(writer)


# -- what a program does with them ---------------------------------------------------------------


def console_at(stage: SessionStage, tripped: bool, stops: list[str]) -> OperatorConsole:
    """Return a console in some stage, with a question open where that stage has one."""
    loop = Loop(trip="too hot") if tripped else Loop()
    now = [0.0]
    console = OperatorConsole(
        StageTiming(9.0, 9.0), KeyMap(), SessionLabels(Path("/nowhere"), ""), now_s=lambda: now[0]
    )
    console.safety = Safety(
        lambda: stops.append("stop"), lambda: stops.append("clear"), lambda: loop
    )
    console._book._writer.shutdown()  # labels aren't written here
    console._book.say = lambda *_a, **_k: None  # type: ignore[method-assign]
    started, _ = machine.press(console._state, Command.NEXT, 0.0)
    states = {
        SessionStage.STARTING: started,
        SessionStage.RECORDING: machine.begun(started, 0.0, 9.0),
        SessionStage.VERDICT: machine.ended(machine.begun(started, 0.0, 9.0), "a", 1.0)[0],
        SessionStage.SET_UP: machine.set_up(console._state, 0.0),
    }
    if stage is SessionStage.VERDICT:
        console._book.add("a", Outcome.UNLABELLED)
    console._state = states.get(stage, console._state)
    console.seen()
    return console


STAGES = (
    SessionStage.READY,
    SessionStage.STARTING,
    SessionStage.RECORDING,
    SessionStage.VERDICT,
    SessionStage.SET_UP,
)


@settings(deadline=None)
@given(in_pieces(), st.sampled_from(STAGES), st.booleans())
def test_it_stops_the_arm_in_every_state_and_nothing_read_with_it_clears(
    pieces: list[bytes], stage: SessionStage, tripped: bool
) -> None:
    stops: list[str] = []
    console, decoder = console_at(stage, tripped, stops), KeyDecoder()
    for piece in pieces:
        console.hear(decoder.feed(piece))
        assert "clear" not in stops  # not within an instant
        if b" " in piece:
            assert stops
    assert "stop" in stops


def test_a_stop_is_taken_before_the_clear_that_was_typed_with_it() -> None:
    stops: list[str] = []
    console = console_at(SessionStage.READY, True, stops)
    for keys in (["c"], ["c", SPACE], ["c", "c", "c"]):
        console.hear(keys)
        console.seen()
    assert stops == ["stop"]


def test_a_key_held_down_or_pasted_confirms_nothing() -> None:
    """A terminal repeats a key that is held: leaning on c would have cleared a trip."""
    now = [100.0]
    twice = Twice(lambda: now[0])

    def pressed(*after_s: float) -> bool:
        twice.forget()
        confirmed = False
        for wait_s in after_s:
            now[0] += wait_s
            confirmed |= twice.confirmed()
            twice.press()
        now[0] += 2 * HELD_S
        return confirmed or twice.confirmed()

    assert pressed(1.0, 0.5)
    assert pressed(1.0, 2.9)
    assert not pressed(1.0)
    assert not pressed(1.0, 3.1)
    assert not pressed(1.0, 0.0)
    assert not pressed(1.0, 0.5, *[0.033] * 30)
    assert not pressed(1.0, *[0.033] * 60)


CELL: Any = SimpleNamespace(window=None, statistics=None)


def test_every_event_of_the_window_is_handled_and_a_stop_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    from gaploop.collect.operator.window import OperatorWindow, _Guest
    from gaploop.teleop.leaders.panel import pygame

    stops: list[str] = []
    console, shown = console_at(SessionStage.SET_UP, True, stops), OperatorWindow("test")
    try:
        guest = _Guest(console, CELL, shown, shares=False)
        for key in (pygame.K_c, pygame.K_RIGHT, pygame.K_c, pygame.K_SPACE, pygame.K_c):
            pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key, scancode=0))
        guest.turn()
        assert stops == ["stop"]
        assert console.seen().state.stage is SessionStage.READY
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_SPACE, scancode=0))
        pygame.event.post(pygame.event.Event(pygame.QUIT))
        guest.turn()
        assert stops == ["stop", "stop"]
        assert console.left
    finally:
        shown.close()


def test_a_leader_on_a_page_is_kept_alive_beside_the_operators_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no window that the operator's could share."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    from gaploop.collect.operator.window import window
    from gaploop.teleop.leaders.panel import pygame

    class PageLeader:
        has_window = False

        def __init__(self) -> None:
            self.pumped: list[str] = []
            self.estop: Callable[[], None] = lambda: None

        def listen(self, on_estop: Callable[[], None], on_clear: Callable[[], None]) -> None:
            del on_clear
            self.estop = on_estop

        def pump(self, trip: str) -> None:
            self.pumped.append(trip)

    stops: list[str] = []
    console, leader = console_at(SessionStage.READY, True, stops), PageLeader()
    devices: Any = SimpleNamespace(window=leader, statistics=None)
    with window(console, devices, "test") as turn:
        turn()
        assert leader.pumped == ["too hot"]
        leader.estop()
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_SPACE, scancode=0))
        turn()
    assert stops == ["stop", "stop"]


# -- a real terminal -----------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys, threading
signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
from gaploop.collect.operator.keys import keys
told = int(sys.argv[1])
say = lambda word: os.write(told, word.encode() + bytes([10]))
with keys() as pressed:
    pressed.listen(lambda: say("stop"))
    say("ready")
    while sys.argv[2] == "busy" or not pressed.lost:
        if sys.argv[2] == "busy":  # it draws, connects, encodes, publishes: it looks at no key
            threading.Event().wait()
        for name in pressed.presses(1.0):
            say(name)
"""


@contextmanager
def in_a_terminal(how: str) -> Iterator[tuple[int, Callable[[], str]]]:
    """Run a program that hears keys; yield its terminal, and what returns the next it says."""
    heard, told = os.pipe()
    pid, terminal = pty.fork()
    if pid == 0:
        os.set_inheritable(told, True)
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM, str(told), how])
    os.close(told)
    rest = bytearray()

    def say() -> str:
        while b"\n" not in rest:
            assert select.select([heard], [], [], WITHIN_S)[0], "it said nothing"
            data = os.read(heard, 1024)
            assert data, "it ended"
            rest.extend(data)
        line, _, left = bytes(rest).partition(b"\n")
        rest[:] = left
        return line.decode()

    try:
        assert say() == "ready"
        yield terminal, say
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(heard)
        with suppress(OSError):
            os.close(terminal)


@pytest.mark.members(4)
@pytest.mark.parametrize(
    "typed",
    [b"h ", b" ", b"cc h", b"\x1b[", b"\x13 ", b"\x1a", "sé ".encode(), b"\x1b[1;5C q", b"\0"],
)
def test_a_program_that_looks_at_no_key_stops_the_arm(typed: bytes) -> None:
    """Also behind Ctrl-S, which held up the output and with it the program that read the keys, and
    instead of Ctrl-Z, which left the arm held by a program that stood still.
    """
    with in_a_terminal("busy") as (terminal, say):
        os.write(terminal, typed)
        if typed == b"\x1b[":  # the rest comes later
            os.write(terminal, b" ")
        assert say() == "stop"


def test_every_key_of_one_write_is_handled_and_a_stop_comes_first() -> None:
    with in_a_terminal("looks") as (terminal, say):
        os.write(terminal, b"hs\x1b[C q")
        said = [say()]
        while said[-1] != "q":
            said.append(say())
        assert said.count("stop") == 1
        assert sorted(said) == ["h", "q", "right", "s", SPACE, "stop"]


def test_a_terminal_that_is_closed_stops_the_arm() -> None:
    with in_a_terminal("busy") as (terminal, say):
        os.close(terminal)
        assert say() == "stop"


def test_of_what_was_typed_too_early_only_a_stop_counts() -> None:
    """Typed while the program was still starting, a stop was thrown away; a label mustn't count."""
    code = "import sys; sys.stdin.readline()\n" + PROGRAM
    heard, told = os.pipe()
    pid, terminal = pty.fork()
    if pid == 0:
        os.set_inheritable(told, True)
        os.execv(sys.executable, [sys.executable, "-c", code, str(told), "looks"])
    try:
        os.close(told)
        os.write(terminal, b"go\ns f")
        data = b""
        while b"ready" not in data:
            assert select.select([heard], [], [], WITHIN_S)[0]
            data += os.read(heard, 1024)
        os.write(terminal, b"q")
        while b"q\n" not in data:
            assert select.select([heard], [], [], WITHIN_S)[0]
            data += os.read(heard, 1024)
        assert data.split() == [b"stop", b"ready", b"q"]
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(heard)
        os.close(terminal)


def test_without_a_terminal_there_are_no_keys_and_nothing_waits() -> None:
    code = "with keys() as k: print(k.works, k.presses(0.0))"
    code = f"from gaploop.collect.operator.keys import keys\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "[]"]


def test_no_key_asks_for_two_things_and_what_the_leader_needs_is_left_to_it() -> None:
    names = [name for keys in ROLLOUT.values() for name in keys]
    assert len(set(names)) == len(names)
    keys = KeyMap.of(DEFAULTS, ("space",))
    assert keys.keys[Command.STOP] == ("q",)
    assert keys.name(Command.ESTOP) == ""
    assert keys.command("space") is keys.command("t") is None
    assert KeyMap.of(ROLLOUT).command("t") is Command.TAKE_OVER
