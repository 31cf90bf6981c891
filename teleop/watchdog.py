"""Takes torque off from outside where the control loop hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

STUCK_S: Final = 0.5
"""A loop that made no turn, or didn't stop as it was told, for this long hangs [s]."""
ESTOP_S: Final = 0.1
"""A loop that hasn't heeded an e-stop after this long hangs [s]."""
ORPHAN_S: Final = 2.0
"""A program whose main thread is gone may live on for this long to take torque off [s]."""
_LOOK_EVERY_S: Final = 0.02


class Watchdog:
    """Calls `on_hang` once if a loop hangs: in a device, in a camera, in a callback.

    Time is counted in the watchdog's own looks, so that a machine too busy to run the program
    at all isn't taken for a loop that hangs. The methods are plain assignments: any thread and
    any signal handler may call them at any time.

    Its thread isn't a daemon: where the main thread dies without a word, the program lives on
    until the loop has heeded that or hangs.

    Args:
        on_hang: takes torque off; called in the watchdog's thread; must not raise.
        slowest_s: turns of the loop may take this long [s] without hanging.
    """

    def __init__(self, on_hang: Callable[[], None], slowest_s: float) -> None:
        self._on_hang = on_hang
        self._stuck_looks = max(STUCK_S, slowest_s) / _LOOK_EVERY_S
        self._estop_looks = max(ESTOP_S, slowest_s) / _LOOK_EVERY_S
        self._beats = 0
        self._runs = self._estopped = self._stopped = self._over = False
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=False)

    def start(self) -> None:
        """Start watching, from the first beat on."""
        self._thread.start()

    def beat(self) -> None:
        """The loop made a turn."""
        self._beats += 1
        self._runs = True

    def estopped(self, is_so: bool) -> None:
        """The loop was told to trip and hasn't yet, or has."""
        self._estopped = is_so

    def told_to_stop(self) -> None:
        """The loop was told to end."""
        self._stopped = True

    def rest(self) -> None:
        """The loop doesn't run; nothing is watched until the next beat."""
        self._runs = self._estopped = False

    def stop(self) -> None:
        """Stop watching for good."""
        self._over = True

    def _watch(self) -> None:
        beats = silent = unheeded = unstopped = orphaned = 0
        while not self._over and orphaned * _LOOK_EVERY_S < ORPHAN_S:
            time.sleep(_LOOK_EVERY_S)
            if not threading.main_thread().is_alive():
                orphaned += 1
                self._stopped = True
            silent = 0 if beats != self._beats or not self._runs else silent + 1
            unheeded = unheeded + 1 if self._runs and self._estopped else 0
            unstopped = unstopped + 1 if self._runs and self._stopped else 0
            beats = self._beats
            if max(silent, unstopped) > self._stuck_looks or unheeded > self._estop_looks:
                self._on_hang()
                return
