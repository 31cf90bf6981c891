"""Lost devices are looked for until they answer again: one way for all that drives arms."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from gaploop.collect.sealing import FAULTS_IN_A_ROW
from gaploop.core.errors import DeviceError

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
"""A lost device is looked for this often [s]."""
LOOK_S: Final = 0.05
IS_BACK: Final = "Everything answers again, and torque is off."
"""An arm is connected limp, and every servo has confirmed that."""


class Finder[T]:
    """Looks for devices that were lost, now and then.

    Args:
        connect: connects all of them or raises DeviceError.
    """

    def __init__(self, connect: Callable[[], T]) -> None:
        self.found: T | None = None
        self.why = ""
        """Why they don't answer yet, in a line."""
        self._connect = connect
        self._tried_s = -RETRY_S

    def look(self) -> T | None:
        """Try to connect, if it is time to; return what was found, now or before."""
        if self.found is None and time.monotonic() - self._tried_s >= RETRY_S:
            try:
                self.found = self._connect()
            except DeviceError as error:
                self.why = str(error)
            self._tried_s = time.monotonic()
        return self.found


class LossCounter:
    """Counts losses between which nothing was finished: a servo that browns out ends a session.

    For sessions that nobody watches: there the arm takes torque again without being asked.
    """

    def __init__(self) -> None:
        self._finished = self._in_a_row = 0

    def lost(self, why: str, finished: int) -> None:
        """Take note of a loss.

        Args:
            why: what was lost, in words.
            finished: takes that the session has finished by now.

        Raises:
            DeviceError: it was one too many in a row.
        """
        self._in_a_row = self._in_a_row + 1 if finished == self._finished else 1
        self._finished = finished
        if self._in_a_row >= FAULTS_IN_A_ROW:
            raise DeviceError(
                f"A device was lost {self._in_a_row} times and no take finished in between; the "
                f"last time: {why}"
            )


def find_again[T](
    connect: Callable[[], T],
    *,
    stop: Callable[[], bool],
    patience_s: float,
    tell: Callable[[str], None] = lambda _why: None,
    pause: Callable[[float], object] = time.sleep,
) -> T | None:
    """Wait until `connect` succeeds; return what it returns, None where `stop` says so first.

    Args:
        connect: connects all devices or raises DeviceError.
        stop: whether to give up.
        patience_s: longest wait [s].
        tell: told why they don't answer yet, whenever that changes.
        pause: waits so long [s], and heeds keys meanwhile where there are any.

    Raises:
        DeviceError: what is lost doesn't answer within `patience_s`.
    """
    finder, said = Finder(connect), ""
    until_s = time.monotonic() + patience_s
    while not stop():
        found = finder.look()
        if found is not None:
            return found
        if finder.why != said:
            said = finder.why
            tell(said)
        if time.monotonic() >= until_s:
            raise DeviceError(finder.why)
        pause(LOOK_S)
    return None
