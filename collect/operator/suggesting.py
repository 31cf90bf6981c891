"""The automatic label after a take, worked out behind: it never keeps anybody waiting."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from gaploop.collect.operator.inquiry import Suggestion
from gaploop.collect.take import TIME_RAN_OUT
from gaploop.core import journal_format
from gaploop.core.errors import GaploopError
from gaploop.core.protocols import Suggest
from gaploop.core.vocabulary import FailureMode

log = logging.getLogger(__name__)


class LabelSuggester:
    """Asks `suggest` about sealed takes, one after another, in a thread of its own.

    Args:
        suggest: returns label fields for a take.
        tell: called with the take's uid and what is suggested, in that thread.
    """

    def __init__(self, suggest: Suggest, tell: Callable[[str, Suggestion], None]) -> None:
        self._suggest, self._tell = suggest, tell
        self._pool = ThreadPoolExecutor(1, "suggest")
        self._newest = ""

    def ask(self, uid: str, folder: Path, sealing: Future[Path] | None) -> None:
        """Work out a suggestion for a take once it is sealed; one for an older take is dropped."""
        self._newest = uid
        self._pool.submit(self._work, uid, folder, sealing)

    def close(self) -> None:
        """Give up what waits; safe to call twice."""
        self._newest = ""
        self._pool.shutdown(cancel_futures=True)

    def _work(self, uid: str, folder: Path, sealing: Future[Path] | None) -> None:
        try:
            if sealing is not None:
                sealing.result()
            if uid != self._newest:
                return
            labels = dict(self._suggest(journal_format.read_take(folder, MappingProxyType({}))))
            end = journal_format.read_end(folder)
        except (GaploopError, OSError, ValueError, ArithmeticError, LookupError) as error:
            # A suggestion is a convenience: without one the operator chooses unaided.
            log.info("no suggestion for take %s: %s", uid, error)
            return
        if labels.get("failure_mode") == FailureMode.TIMEOUT.value and (
            end is None or end.reason != TIME_RAN_OUT
        ):
            # The frames only show that the arm was still at it: somebody ended the take.
            del labels["failure_mode"]
        self._tell(uid, Suggestion.of(labels))
