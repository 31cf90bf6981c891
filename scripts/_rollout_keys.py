"""The keys of `gaploop rollout`."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from gaploop.collect.intervention import SharedLeader
from gaploop.collect.rollout import Verdict
from gaploop.core.vocabulary import Outcome
from gaploop.scripts._keys import Keys
from gaploop.scripts._window_keys import WindowKeys

if TYPE_CHECKING:
    from gaploop.core.protocols import Leader
    from gaploop.scripts._rollout_cast import Cast

log = logging.getLogger(__name__)

LOOK_S: Final = 0.02
"""Keys are looked at this often [s]."""
AGAIN_S: Final = 3.0
"""The second press of c must follow the first within this [s]."""
VERDICTS: Final = {"s": Outcome.SUCCESS, "f": Outcome.FAILURE, "e": None}


class RolloutKeys:
    """What the operator presses, during attempts and between them.

    Args:
        terminal: its keys.
        stopped: signals that came.
    """

    def __init__(self, terminal: Keys, stopped: list[int]) -> None:
        self._terminal = self._keys = terminal
        self._stopped = stopped
        self.left = False
        """The operator wants to leave."""
        self._looked_s = self._asked_s = -AGAIN_S
        self._cast: Cast | None = None

    def drives(self, cast: Cast | None) -> None:
        """Be about these devices from now on, None while there are none.

        A leader's window has keys, too.
        """
        self._cast = cast
        self._keys = self._terminal
        if cast is not None and cast.person is not None:
            self._keys = WindowKeys.of(self._terminal, cast.person, cast.estop)

    @property
    def works(self) -> bool:
        """Say whether there is somewhere to press keys in."""
        return self._keys.works

    def watched_with(self, person: Leader | None) -> bool:
        """Say whether there will be keys once this leader, which may have a window, is there."""
        return self._terminal.works or hasattr(person, "pump")

    def stops(self) -> bool:
        """Say whether the session is to end now."""
        return self.left or bool(self._stopped)

    def poll(self, leader: SharedLeader, verdict: Verdict) -> None:
        """Heed a key during an attempt, without waiting."""
        now_s = time.monotonic()
        if not self._keys.works or now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        key = self._heed(self._keys.wait(0.0))
        if key in VERDICTS:
            verdict.say(VERDICTS[key])
        elif key == "t":
            leader.toggle()

    def between(self, leader: SharedLeader, timeout_s: float) -> str:
        """Wait for a key between attempts; the person can drive the arm then, too."""
        if not self._keys.works:
            time.sleep(timeout_s)
            return ""
        key = self._heed(self._keys.wait(timeout_s))
        if key == "t":
            leader.toggle()
        return key

    def pause(self, duration_s: float) -> None:
        """Wait while something is in the way, and heed keys meanwhile; c twice clears a trip."""
        if not self._keys.works:
            time.sleep(duration_s)
        elif self.confirmed(self._heed(self._keys.wait(duration_s))) and self._cast:
            self._cast.clear()

    def confirmed(self, key: str) -> bool:
        """Say whether `key` is c pressed for the second time."""
        if key != "c" or self._cast is None:
            return False
        now_s = time.monotonic()
        was_s, self._asked_s = self._asked_s, now_s
        if now_s - was_s <= AGAIN_S:
            self._asked_s = -AGAIN_S
            return True
        log.info("Press c again: the arm takes torque and holds where it is.")
        return False

    def agreed(self) -> bool:
        """Wait for the operator, where there is one, to say that the arm may move."""
        if not self.works:
            return not self.stops()
        log.info("Everything answers again. Make sure that the arm may move, then press c twice.")
        while not self.stops():
            if self.confirmed(self._heed(self._keys.wait(LOOK_S))):
                return True
        return False

    def _heed(self, key: str) -> str:
        if key == "q":
            self.left = True
        elif key == " " and self._cast is not None:
            self._cast.estop()
        return key
