"""What has been said about a session's takes: kept in memory, written to `labels.jsonl` behind.

A take is sealed as soon as it ends, before anybody has said how it went. What the operator says
are label events, so that it can be said later, otherwise, or be taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from gaploop.collect.operator.machine import Suggestion
from gaploop.collect.take import TIME_RAN_OUT
from gaploop.core import journal_format, labels
from gaploop.core.errors import GaploopError
from gaploop.core.labels import LabelEvent
from gaploop.core.protocols import Suggest
from gaploop.core.vocabulary import FailureMode, Outcome

log = logging.getLogger(__name__)

SOURCE: Final = "operator"


class SessionLabels:
    """What stands about each take, and by which author: written behind, so that nobody waits.

    Used by one thread at a time.
    """

    def __init__(self, journal: Path = Path(), author: str = "") -> None:
        self._path, self._author = journal / journal_format.LABELS, author or SOURCE
        self._entries: dict[str, dict[str, Any]] = {}
        """uid to label field to the value that stands."""
        self._undo: list[tuple[str, Mapping[str, Any]]] = []
        """Take, and what stood about it before."""
        self._retracted: set[str] = set()
        self._writer = ThreadPoolExecutor(1, "labels")
        self._waiting: list[Future[None]] = []
        self.fault = ""
        """Why a label couldn't be written; it still stands in memory."""

    def add(
        self,
        uid: str,
        outcome: Outcome,
        dimensions: Mapping[str, float] = MappingProxyType({}),
        said: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Take note of a sealed take, with what has been said about it already."""
        nothing = {"outcome": outcome.value, "failure_mode": "", "discard_reason": ""}
        self._entries[uid] = {**nothing, "dimensions": dict(dimensions), **said}

    def now(self, uid: str) -> Mapping[str, Any]:
        """Return label field to the value that stands; empty for a take that isn't known."""
        return dict(self._entries.get(uid, {}))

    def outcome(self, uid: str, sealed: Outcome = Outcome.UNLABELLED) -> Outcome:
        """Return the outcome that stands; `sealed` for a take that isn't known."""
        return Outcome(self.now(uid).get("outcome", sealed))

    def retracted(self, uid: str) -> bool:
        """Whether a take had an outcome that was taken back, and has none since."""
        return uid in self._retracted and self.outcome(uid) is Outcome.UNLABELLED

    def say(self, uid: str, said: Mapping[str, Any], *, anew: bool) -> None:
        """Write down label fields; only what differs from what stands.

        With `anew` it is the first word of several that are taken back together.
        """
        entry = self._entries[uid]
        if all(entry.get(name) == value for name, value in said.items()):
            return
        if anew or not self._undo or self._undo[-1][0] != uid:
            self._undo.append((uid, dict(entry)))
        self._write(uid, said)

    def undo(self) -> str:
        """Take back what was last said; return the take's uid, or "" where there is nothing."""
        if not self._undo:
            return ""
        uid, before = self._undo.pop()
        self._retracted.add(uid)
        self._write(uid, before)
        return uid

    def flush(self) -> None:
        """Wait until everything said so far is on disk."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            try:
                future.result()
            except OSError as error:
                self.fault = f"a label wasn't written ({error.strerror or error}): make room"
                log.warning("%s", self.fault)

    def close(self) -> None:
        """Write what waits; safe to call twice."""
        self._writer.shutdown()
        self.flush()

    def _write(self, uid: str, said: Mapping[str, Any]) -> None:
        now = self._entries[uid]
        for name, value in said.items():
            if now.get(name) != value:
                now[name] = value
                event = LabelEvent(uid, name, value, self._author, SOURCE)
                self._waiting.append(self._writer.submit(labels.append, self._path, event))


def known_takes(journal: Path, most: int) -> list[tuple[str, Outcome, Mapping[str, Any]]]:
    """Return the newest sealed takes of a journal, oldest first: uid, outcome, what was said."""
    said = labels.current(labels.read(journal / journal_format.LABELS))
    found: list[tuple[str, Outcome, Mapping[str, Any]]] = []
    for folder in reversed(journal_format.take_folders(journal)):
        end = journal_format.read_end(folder)
        if end is not None:
            info = journal_format.read_header(folder).info
            now = {"dimensions": dict(info.dimensions), **said.get(info.uid, {})}
            found.append((info.uid, end.outcome, now))
        if len(found) == most:
            break
    return found[::-1]


class LabelSuggester:
    """Asks `suggest` about sealed takes, one after another, in a thread of its own, and tells."""

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
