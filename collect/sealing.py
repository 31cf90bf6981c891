"""Takes that are sealed behind the next one's start, and the encoder that all of them share."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from gaploop.collect.encoder import Encoder
from gaploop.collect.take import TakeResult
from gaploop.core.errors import DeviceError

log = logging.getLogger(__name__)

FAULTS_IN_A_ROW: Final = 3
"""A session ends when this many takes in a row couldn't be recorded."""


class Sealer:
    """What a session's takes go through once they are over."""

    def __init__(self) -> None:
        self.encoder = Encoder()
        self.pool = ThreadPoolExecutor(1, "seal")
        self._pending: deque[TakeResult] = deque()
        self._faults = 0

    @property
    def pending(self) -> tuple[TakeResult, ...]:
        """Takes that are over and whose seal isn't known yet, oldest first."""
        return tuple(self._pending)

    def add(self, result: TakeResult) -> None:
        """Take note of a take whose seal has been handed over."""
        self._pending.append(result)

    def sealed(self, keep: int) -> Iterator[TakeResult]:
        """Yield takes that are sealed by now, oldest first; wait until at most `keep` pend.

        Raises:
            DeviceError: `FAULTS_IN_A_ROW` takes couldn't be recorded.
        """
        while self._pending:
            result = self._pending[0]
            if len(self._pending) <= keep and result.sealing and not result.sealing.done():
                return
            self._pending.popleft()
            try:
                if result.sealing is not None:
                    result.sealing.result()
            except DeviceError as error:
                self.failed(result, str(error))
                continue
            self._faults = 0
            yield replace(result, sealing=None)

    def failed(self, result: TakeResult, why: str) -> None:
        """Take note of a take that couldn't be recorded.

        Raises:
            DeviceError: it was one too many in a row.
        """
        log.warning("Take %s is interrupted: %s", result.uid, why)
        self._faults += 1
        if self._faults >= FAULTS_IN_A_ROW:
            raise DeviceError(
                f"{self._faults} takes in a row could not be recorded; the last one: {why}"
            )

    def close(self) -> None:
        """Finish what is being sealed and end the encoder's process; safe to call twice."""
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(self.encoder.close)
            self.pool.shutdown()
