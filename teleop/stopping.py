"""Stopping in good order: every step is tried, whatever the ones before it did."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Final, Self

from gaploop.core import platform_calls
from gaploop.core.errors import DeviceError

STOP_SIGNALS: Final = platform_calls.signals("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP")
"""Ctrl-C, a polite kill, a terminal that was closed, Ctrl-\\, and Ctrl-Z: a program that is stopped
leaves the arm under torque with nobody who watches it."""

HUNG_UP: Final = platform_calls.signals("SIGHUP")

LONG_S: Final = 2.0
"""What takes longer than this may be interrupted again, whatever it does [s]: it hangs."""

type Step = tuple[str, Callable[[], object]]
"""What a step is called in messages, and the step."""


class CleanupStep:
    """Runs a block that may fail in any way and keeps what it raised.

    For what must not be stopped by a device or a subscriber, which raise whatever their
    libraries do. In the main thread an interrupt or an exit isn't caught. In any other, where
    no signal comes, it was a library's doing and would end the thread without a word: it is kept
    as a DeviceError.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if isinstance(error, Exception):
            self.error = error
        elif error is None or threading.current_thread() is threading.main_thread():
            return False
        else:
            name = type(error).__name__
            self.error = DeviceError(
                f"A device's, a policy's or a subscriber's code tried to end the program ({name}). "
                "Take that out of it."
            )
            self.error.__cause__ = error
        return True


def run_steps(steps: Iterable[Step]) -> tuple[str, ...]:
    """Run every step in order, each whether or not those before it failed; return what failed.

    An interrupt in one of them is raised after the last.
    """
    faults: list[str] = []

    def run(name: str, step: Callable[[], object]) -> None:
        with CleanupStep() as attempt:
            step()
        if attempt.error is not None:
            faults.append(f"{name}: {one_line(attempt.error)}")

    with contextlib.ExitStack() as stack:
        for name, step in reversed(tuple(steps)):
            stack.callback(run, name, step)
    return tuple(faults)


def disconnect(*devices: object) -> tuple[str, ...]:
    """Torque off and disconnect what can be of `devices`; return a line for each that failed."""
    named = [(device, getattr(device, "close", None)) for device in devices]
    steps = [(type(device).__name__, close) for device, close in named if callable(close)]
    return run_steps(steps)


def one_line(error: BaseException) -> str:
    """Return what an error says, on one line, with its type where it says nothing."""
    said = " ".join(str(error).split())
    return said or type(error).__name__


@contextlib.contextmanager
def on_signals(
    leave: Callable[[], None], stop: Callable[[], None], *, is_safe: Callable[[], bool]
) -> Iterator[list[int]]:
    """Call `leave` on every signal of `STOP_SIGNALS` while the block runs; yield those that came.

    One of a terminal that was closed is no person's, and may come twice: it calls `stop`. From when
    `is_safe` says that torque is off, a further signal interrupts whatever still hangs. Outside the
    main thread this does nothing: whoever runs the main thread minds the signals.
    """
    came: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1 and is_safe():
            raise KeyboardInterrupt
        (stop if number in HUNG_UP else leave)()

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    with platform_calls.signals_handled(STOP_SIGNALS, handle):
        yield came


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let no signal interrupt the block, such as torque going off, unless it hangs.

    Those that came meanwhile are heeded after it. In other threads than the main one none
    interrupts anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came, began_s = list[int](), time.monotonic()

    def handle(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if time.monotonic() - began_s > LONG_S:
            raise KeyboardInterrupt

    try:
        with platform_calls.signals_handled(STOP_SIGNALS, handle):
            yield
    finally:
        for heard in dict.fromkeys(came):
            signal.raise_signal(heard)


class Stopped(list[int]):
    """The signals to stop that came.

    Attributes:
        again: called with each that comes after the first; says whether that is all there is to do,
            such as to let go of an arm that is on its way down.
    """

    again: Callable[[], bool] = staticmethod(lambda: False)


@contextlib.contextmanager
def stoppable(message: str = "") -> Iterator[Stopped]:
    """Yield a list that a signal to stop adds itself to; a second one interrupts at once.

    A terminal that is closed may send its signal twice; nobody pressed that. `message`, what is
    being finished, is told on stderr as soon as the first one comes.
    """
    stopped = Stopped()

    def stop(number: int, _frame: FrameType | None) -> None:
        if stopped:
            if number not in HUNG_UP and not stopped.again():
                raise KeyboardInterrupt
            return
        stopped.append(number)
        if message and sys.__stderr__ is not None:
            # Not by `print`, whose lock the interrupted line may hold.
            with contextlib.suppress(OSError, ValueError):
                os.write(sys.__stderr__.fileno(), f"\r\n{message}\n".encode())

    # Outside the main thread, whoever called us minds the signals.
    is_main = threading.current_thread() is threading.main_thread()
    with platform_calls.signals_handled(STOP_SIGNALS if is_main else (), stop):
        yield stopped
