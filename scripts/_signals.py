"""Ctrl-C, SIGTERM and a closed terminal, for commands that end a piece of work in order first."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from gaploop.core.platform_calls import signals_handled
from gaploop.teleop.stopping import HUNG_UP, STOP_SIGNALS


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

    A terminal that is closed may send its signal twice; nobody pressed that.

    Args:
        message: what is being finished, told on stderr as soon as the first one comes.
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
    with signals_handled(STOP_SIGNALS if is_main else (), stop):
        yield stopped
