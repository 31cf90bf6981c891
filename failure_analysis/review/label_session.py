"""One labeller at work: the takes, what is said about them, taking back, and how far one is."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gaploop.core import labels
from gaploop.core.labels import LabelEvent
from gaploop.datasets.labels.agreement import Agreement, agreement
from gaploop.datasets.labels.labelled import FolderLabels
from gaploop.failure_analysis.diagnosis import TakeDiagnosis
from gaploop.failure_analysis.review import statement
from gaploop.failure_analysis.review.choice import Filter, Listed, choose, listed
from gaploop.failure_analysis.review.label_store import LabelStore
from gaploop.failure_analysis.review.saver import Saver
from gaploop.failure_analysis.review.statement import TakeStatement

PAUSE_S: Final = 120.0
"""Whoever says nothing for longer has done something else: that time doesn't count."""
LATEST: Final = 30
"""The rate is that of so many takes."""


@dataclass(frozen=True)
class Progress:
    """How far a labeller is with the takes that are listed.

    Attributes:
        done: labelled by this labeller.
        total: those and the ones that still need it.
        rate_per_min: takes labelled a minute while at work; 0 until it can be told.
    """

    done: int
    total: int
    rate_per_min: float

    @property
    def left_s(self) -> float | None:
        """Time that the rest will take at this rate [s], None until that can be told."""
        return 60 * (self.total - self.done) / self.rate_per_min if self.rate_per_min else None


class LabelSession:
    """What the page shows and does, without the page.

    Not for several threads: the saver's thread touches only its own fields.

    Args:
        folder: what is labelled.
        author: who labels.
        found: diagnoses that are there already, by uid.
        show_others: show what others say before one has said something.
        use_suggestions: a label starts as what the diagnosis suggests.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        folder: FolderLabels,
        author: str,
        found: Iterable[TakeDiagnosis] = (),
        *,
        show_others: bool = False,
        use_suggestions: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.author = author
        self.use_suggestions = use_suggestions
        self.book = LabelStore(folder, author, show_others)
        self.saver = Saver(folder)
        self._clock = clock
        self._found = {d.uid: d for d in found} if use_suggestions else {}
        self._listed: dict[str, Listed] = {}
        self._taken_back: list[tuple[LabelEvent, ...]] = []
        self._times_s: list[float] = []

    @property
    def found(self) -> Mapping[str, TakeDiagnosis]:
        """The diagnoses that are known, by uid."""
        return self._found

    def diagnosed(self, found: TakeDiagnosis) -> None:
        """Take in a diagnosis."""
        self._found[found.uid] = found
        self._listed.pop(found.uid, None)

    def take(self, uid: str) -> Listed:
        """Return a take as the labeller sees it now."""
        if uid not in self._listed:
            self._listed[uid] = listed(self.book, uid, self._found)
        return self._listed[uid]

    def takes(self) -> list[Listed]:
        """Return every take, oldest first."""
        return [self.take(e.info.uid) for e in self.folder.episodes]

    def choose(self, by: Filter) -> list[str]:
        """Return the uids of the takes that a filter asks for, those that need a person first.

        Raises:
            UnusableInputError: its text can't be understood.
        """
        return [take.uid for take in choose(self.takes(), by)]

    def starting_point(self, uid: str) -> TakeStatement:
        """Return what a take's label shows before a key is pressed: one's own, or a suggestion."""
        take, own = self.take(uid), self.book.own(uid)
        note = next((event.note for event in own.values() if event.note), "")
        said = statement.of_values(
            {
                "outcome": take.episode.outcome.value,
                "failure_mode": take.episode.failure_mode,
                "phase": take.episode.phase,
                "dimensions": take.episode.info.dimensions if self._about_failure(take) else {},
            },
            note,
        )
        return said if take.done else statement.suggested(said, take.found)

    @staticmethod
    def _about_failure(take: Listed) -> bool:
        """Say whether dimensions are causes: a demonstration's are what it was recorded for."""
        return take.episode.info.kind != "demonstration" or bool(take.episode.failure_mode)

    def say(self, uid: str, said: TakeStatement) -> bool:
        """Have something said about a take; return whether it differs from what was said."""
        new = statement.events(uid, said, self.author, self.book.own(uid))
        if new:
            self._write(new)
            self._taken_back.clear()
            self._times_s.append(self._clock())
        return bool(new)

    def undo(self) -> str:
        """Take back what the labeller said last; return the take's uid, "" if nothing is left."""
        events = self.book.events
        act = tuple(
            event
            for event in labels.last_act(events, self.author)
            if event.source == statement.SOURCE
        )
        if not act:
            return ""
        at = labels.now()
        self._write(tuple(labels.retraction(event, at) for event in act))
        self._taken_back.append(act)
        return act[0].uid

    def redo(self) -> str:
        """Say again what was taken back last; return the take's uid, "" where there is nothing."""
        if not self._taken_back:
            return ""
        act = statement.again(self._taken_back.pop())
        self._write(act)
        return act[0].uid

    def _write(self, events: tuple[LabelEvent, ...]) -> None:
        known = self.book.events
        self.book.say(events)
        self._forget(event.uid for event in events)
        self.saver.put(events, known)

    def refresh(self) -> set[str]:
        """Take in what others wrote meanwhile; return the takes that it is about.

        Raises:
            OSError: the labels can't be read any more.
        """
        changed = self.book.refresh()
        self._forget(changed)
        return changed

    def _forget(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._listed.pop(uid, None)

    def progress(self, uids: Iterable[str]) -> Progress:
        """Return how far the labeller is with some takes."""
        takes = [self.take(uid) for uid in uids]
        done = sum(take.done for take in takes)
        return Progress(done, done + sum(take.needs for take in takes), self._rate_per_min())

    def _rate_per_min(self) -> float:
        times = self._times_s[-LATEST - 1 :]
        steps = [b - a for a, b in itertools.pairwise(times) if b - a < PAUSE_S]
        return 60 * len(steps) / sum(steps) if steps and sum(steps) > 0 else 0.0

    def agreement(self) -> list[Agreement]:
        """Return how far people agree, over the takes whose labels may be seen by all."""
        uids = [e.info.uid for e in self.folder.episodes if self.book.revealed(e.info.uid)]
        return agreement(self.book.events, uids)

    def close(self) -> list[LabelEvent]:
        """Write what waits and return what couldn't be written."""
        return self.saver.close()
