"""One labeller at work: what they see of others' words, what they say, and how far they are.

Two people label without seeing each other's words: another's stay hidden until one has given an
own label, or asked to see them. What the operator said about the outcome is no opinion on why a
take failed and stays visible, and so does what programs say.
"""

from __future__ import annotations

import contextlib
import itertools
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from gaploop.core import labels
from gaploop.core.errors import GaploopError
from gaploop.core.labels import LabelEvent
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.labels import LabelStore, repeats
from gaploop.datasets.layout import EpisodeRow
from gaploop.datasets.v3_files import recorded_success
from gaploop.failure_analysis.diagnosis import TakeDiagnosis, suggested_labels
from gaploop.failure_analysis.review.takes import Filter, Listed, choose

WEIGHTS: Final = (1.0, 0.5, 0.25)
"""Weights that pressing a dimension's key again and again goes through, then around again."""
STEP: Final = 0.1
"""By how much a weight is made heavier or lighter."""
SOURCE: Final = labels.SOURCES[-1]
"""Who reviews is an engineer: that word stands above the operator's."""
COMPARED: Final = ("outcome", "failure_mode", "dimensions")
"""Fields on which people may disagree; of dimensions, the one with the largest weight counts."""
RETRY_S: Final = 2.0
"""How long to wait before what couldn't be written is tried again."""
QUIET_S: Final = 2.0
"""Columns follow once nobody has labelled for so long: rewriting them costs more than an event."""
PAUSE_S: Final = 120.0
"""Whoever says nothing for longer has done something else: that time doesn't count."""
LATEST: Final = 30
"""The rate is that of so many episodes."""
_AUTO, _OPERATOR = labels.SOURCES[0], labels.SOURCES[1]

type Said = Mapping[str, LabelEvent]
"""Label field to the event that stands."""


@dataclass(frozen=True)
class TakeStatement:
    """What is said about one take; each key makes another of it. Weights are in (0, 1]."""

    outcome: str = Outcome.UNLABELLED.value
    failure_mode: str = ""
    phase: str = ""
    dimensions: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    def with_mode(self, mode: str) -> TakeStatement:
        """Return it with a failure mode."""
        return replace(self, outcome=Outcome.FAILURE.value, failure_mode=mode)

    def with_phase(self, phase: str) -> TakeStatement:
        """Return it with a phase."""
        return replace(self, phase=phase)

    def with_outcome(self, outcome: str) -> TakeStatement:
        """Return it with an outcome; only a failure has a mode, a phase and causes."""
        if outcome == Outcome.FAILURE:
            return replace(self, outcome=outcome)
        return replace(self.cleared(), outcome=outcome)

    def with_dimension(self, name: str) -> TakeStatement:
        """Return it with a dimension of full weight, whatever weight was suggested for it."""
        return replace(self, dimensions={**self.dimensions, name: WEIGHTS[0]})

    def lighter(self, name: str) -> TakeStatement:
        """Return it with the next lower of `WEIGHTS` for a dimension, the first after the last."""
        lower = [w for w in WEIGHTS if w < self.dimensions.get(name, 0.0)]
        return replace(self, dimensions={**self.dimensions, name: (*lower, WEIGHTS[0])[0]})

    def cleared(self) -> TakeStatement:
        """Return it without mode, phase and dimensions."""
        return replace(self, failure_mode="", phase="", dimensions={})

    def heavier(self, name: str, by: float) -> TakeStatement:
        """Return it with more weight, or less, on a dimension that it names."""
        if name not in self.dimensions:
            return self
        weight = round(min(1.0, max(0.05, self.dimensions[name] + by)), 3)
        return replace(self, dimensions={**self.dimensions, name: weight})

    def values(self) -> dict[str, Any]:
        """Return label field to value."""
        return {
            "outcome": self.outcome,
            "failure_mode": self.failure_mode,
            "phase": self.phase,
            "dimensions": dict(self.dimensions),
        }

    def suggested(self, found: TakeDiagnosis | None) -> TakeStatement:
        """Return what recorded labels and a diagnosis say together; a named mode is kept."""
        said = {e.field: e.value for e in suggested_labels(found)} if found is not None else {}
        if not said or self.failure_mode or self.outcome in (Outcome.SUCCESS, Outcome.DISCARDED):
            return self
        failed = self if "failure_mode" not in said else self.with_mode(said["failure_mode"])
        return replace(
            failed,
            phase=said.get("phase", self.phase),
            dimensions=said.get("dimensions", self.dimensions),
        )

    def events(self, uid: str, author: str, own: Said) -> tuple[LabelEvent, ...]:
        """Return one act that says it: what the author hasn't said in the same way already.

        The outcome and the mode are always said, so that two labellers can be compared on them;
        phase and dimensions where there is something to say or to take away.
        """
        at = labels.now()
        new = (
            LabelEvent(uid, name, value, author, SOURCE, at, note=self.note)
            for name, value in self.values().items()
            if name in ("outcome", "failure_mode") or value or name in own
        )
        return tuple(event for event in new if not repeats(event, own.get(event.field)))


class LabellerView:
    """A store's labels as one labeller may see them: others' only once there is an own one."""

    def __init__(self, store: LabelStore, author: str) -> None:
        store.refresh()
        self.author = author
        self._store = store
        self._recorded = {e.info.uid: e for e in store.recorded}
        self._shown_then = set() if store.journal else {e.key for e in store.events}
        """Fields whose recorded value is somebody's word already."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._recorded

    def own(self, uid: str) -> Said:
        """Return what the labeller says about a take."""
        return self._by(uid, self.author)

    def _by(self, uid: str, author: str) -> Said:
        said = self._store.about(uid)
        return _standing(e for e in said if e.author == author and e.source != _AUTO)

    def others(self, uid: str) -> dict[str, Said]:
        """Return what others say about a take, by author; nothing while that is hidden."""
        if not self.done(uid):
            return {}
        people = {e.author for e in self._store.about(uid) if e.source != _AUTO} - {self.author}
        return {author: said for author in sorted(people) if (said := self._by(uid, author))}

    def done(self, uid: str) -> bool:
        """Say whether the labeller has labelled a take."""
        own = self.own(uid) if self._store.about(uid) else {}
        return "outcome" in own or "failure_mode" in own

    def differ(self, uid: str) -> tuple[str, ...]:
        """Return the fields on which people's last words differ, as far as they may be seen."""
        if not self._store.about(uid):
            return ()
        people = (self.own(uid), *self.others(uid).values())
        words = {n: {main_word(said[n].value) for said in people if n in said} for n in COMPARED}
        return tuple(name for name, found in words.items() if len(found) > 1)

    def episode(self, uid: str) -> EpisodeRow:
        """Return a take with the labels that the labeller sees: the own word before any other."""
        recorded, events = self._recorded[uid], self._store.about(uid)
        if not events:
            return recorded
        said: dict[str, Any] = {
            "outcome": recorded.outcome.value,
            "failure_mode": recorded.failure_mode,
            "phase": recorded.phase,
            "dimensions": recorded.info.dimensions,
        }
        # A dataset's columns show what stands, also what is hidden: what they were before is there
        # as an event of its own, unless it was nothing.
        said |= {n: labels.NOTHING_SAID[n] for n in said if (uid, n) in self._shown_then}
        revealed = self.done(uid)
        visible = _standing(
            e
            for e in events
            if revealed
            or e.source == _AUTO
            or e.author == self.author
            or (e.source == _OPERATOR and e.field == "outcome")
        )
        said |= {name: event.value for name, event in {**visible, **self.own(uid)}.items()}
        return replace(
            recorded,
            info=replace(recorded.info, dimensions=said["dimensions"]),
            outcome=Outcome(said["outcome"]),
            failure_mode=said["failure_mode"],
            phase=said["phase"],
        )


def _standing(events: Iterable[LabelEvent]) -> dict[str, LabelEvent]:
    return {name: event for (_, name), event in labels.standing(events).items()}


class LabelSaver:
    """One thread that writes label events, each durably before it counts as saved.

    What can't be written is tried again. A dataset's columns follow when labelling pauses, and at
    the end; a kill in between costs no label, and the next one brings the columns up to date.
    """

    def __init__(self, store: LabelStore) -> None:
        self.saved = 0
        """How many acts are on disk."""
        self.trouble = ""
        """Why an act can't be written, or ""."""
        self.on_change: Callable[[], None] = lambda: None
        """Called from the thread whenever `saved`, `waiting` or `trouble` changes."""
        self._store = store
        self._acts: deque[tuple[tuple[LabelEvent, ...], tuple[LabelEvent, ...]]] = deque()
        self._unshown: set[str] = set()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="labels", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many acts aren't on disk yet."""
        return len(self._acts)

    def put(self, events: Sequence[LabelEvent], known: Sequence[LabelEvent]) -> None:
        """Have one act, all of it or none, written; `known` is every event that was said before."""
        with self._changed:
            self._acts.append((tuple(events), tuple(known)))
            self._changed.notify_all()

    def close(self) -> list[LabelEvent]:
        """Write what waits, bring the columns up to date, end; return what couldn't be written."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        return [event for events, _ in self._acts for event in events]

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._acts and self.trouble:
                    self._changed.wait_for(lambda: self._closing, RETRY_S)
                elif not self._acts:
                    pause = QUIET_S if self._unshown else None
                    self._changed.wait_for(lambda: bool(self._acts) or self._closing, pause)
                act = self._acts[0] if self._acts else None
            if act is not None:
                if not self._write(*act) and self._closing:
                    break
                continue
            if self._unshown and not self._store.journal:
                with contextlib.suppress(OSError, GaploopError):  # else at the next label
                    self._store.show(self._unshown)
            self._unshown = set()
            if self._closing and not self._acts:
                break

    def _write(self, events: tuple[LabelEvent, ...], known: tuple[LabelEvent, ...]) -> bool:
        try:
            if not self._store.root.is_dir():
                raise FileNotFoundError(f"{self._store.root} is gone")
            if self._store.lacks_columns:
                self._store = self._store.add_columns()
            self._store.write(events, known)
        except (OSError, GaploopError) as error:
            self.trouble = " ".join(str(error).split())
            if isinstance(error, OSError) and error.strerror:
                self.trouble = f"{error.filename or 'labels'}: {error.strerror}"
            self.on_change()
            return False
        with self._changed:
            self._acts.popleft()
            self.saved += 1
            self.trouble = ""
            self._unshown |= {event.uid for event in events}
        self.on_change()
        return True


def rescue(events: Sequence[LabelEvent], folder: Path) -> Path:
    """Write events that couldn't be saved to a file of their own, so that none is lost.

    Raises:
        OSError: not even that can be written.
    """
    path = folder / "gaploop_unsaved_labels.jsonl"
    labels.append(path, *events)
    return path


def append_command(left: Path, store: LabelStore) -> str:
    """Return what a shell runs to append rescued events; a first label's folder isn't there yet."""
    file = store.file.relative_to(store.root)
    words = [shlex.quote(str(p)) for p in (store.root, file.parent, left, file)]
    return "cd {} && mkdir -p {} && cat {} >> {}".format(*words)


@dataclass(frozen=True)
class Progress:
    """How far a labeller is with the takes that are listed: those done, and all that need it.

    The rate is of takes a minute while at work; 0 until it can be told.
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

    Not for several threads: the saver's thread touches only its own fields. Others' words are shown
    once one has said something, and a label starts as what the diagnosis suggests.
    """

    def __init__(
        self,
        store: LabelStore,
        author: str,
        found: Iterable[TakeDiagnosis] = (),
        *,
        use_suggestions: bool = True,
        locked: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.author = author
        self.use_suggestions = use_suggestions
        self.locked = locked
        """Why nothing can be said here, or ""."""
        self.view = LabellerView(store, author)
        self.saver = LabelSaver(store)
        self.found: dict[str, TakeDiagnosis] = {}
        """The diagnoses that are known, by uid."""
        if use_suggestions:
            self.found = {d.uid: d for d in found}
        self.column, self.ended = "", dict[int, bool]()
        """The recorder's column that says which episodes went well, and what it says."""
        if not store.journal:
            with contextlib.suppress(GaploopError, OSError):  # what is damaged is said when opened
                self.column, self.ended = recorded_success(store.root)
        self._clock = clock
        self._listed: dict[str, Listed] = {}
        self._retracted: list[tuple[LabelEvent, ...]] = []
        self._times_s: list[float] = []

    def diagnosed(self, found: TakeDiagnosis) -> None:
        """Take in a diagnosis."""
        self.found[found.uid] = found
        self._listed.pop(found.uid, None)

    def take(self, uid: str) -> Listed:
        """Return a take as the labeller sees it now."""
        if uid not in self._listed:
            view = self.view
            self._listed[uid] = Listed(
                view.episode(uid), view.done(uid), bool(view.differ(uid)), self.found.get(uid)
            )
        return self._listed[uid]

    def takes(self) -> list[Listed]:
        """Return every take, oldest first."""
        return [self.take(e.info.uid) for e in self.store.episodes]

    def choose(self, by: Filter) -> list[str]:
        """Return the uids of the takes that a filter asks for, those that need a person first.

        Raises:
            UnusableInputError: its text can't be understood.
        """
        return [take.uid for take in choose(self.takes(), by)]

    def starting_point(self, uid: str) -> TakeStatement:
        """Return what a take's label shows before a key is pressed.

        One's own words, or else what the recorder's column and the diagnosis say.
        """
        take, episode = self.take(uid), self.take(uid).episode
        note = next((event.note for event in self.view.own(uid).values() if event.note), "")
        # Dimensions are causes on a failure; a demonstration's are what it was recorded for.
        causes = episode.info.kind != "demonstration" or bool(episode.failure_mode)
        said = TakeStatement(
            episode.outcome.value,
            episode.failure_mode,
            episode.phase,
            episode.info.dimensions if causes else {},
            note,
        )
        if take.done:
            return said
        if (
            said.outcome == Outcome.UNLABELLED
            and (ended := self.ended.get(episode.index)) is not None
        ):
            said = said.with_outcome((Outcome.SUCCESS if ended else Outcome.FAILURE).value)
        return said.suggested(take.found)

    def say(self, uid: str, said: TakeStatement) -> bool:
        """Have something said about a take; return whether it differs from what was said."""
        new = said.events(uid, self.author, self.view.own(uid))
        if new:
            self._write(new)
            self._retracted.clear()
            self._times_s.append(self._clock())
        return bool(new)

    def undo(self) -> str:
        """Take back what the labeller said last; return the take's uid, "" if nothing is left."""
        last = labels.last_act(self.store.events, self.author)
        act = tuple(event for event in last if event.source == SOURCE)
        if not act:
            return ""
        at = labels.now()
        self._write(tuple(labels.retraction(event, at) for event in act))
        self._retracted.append(act)
        return act[0].uid

    def redo(self) -> str:
        """Say again what was taken back last; return the take's uid, "" where there is nothing."""
        if not self._retracted:
            return ""
        at = labels.now()
        act = tuple(replace(event, at=at, retracts="") for event in self._retracted.pop())
        self._write(act)
        return act[0].uid

    def _write(self, events: tuple[LabelEvent, ...]) -> None:
        known = self.store.events
        self.store.take_in(events)
        for event in events:
            self._listed.pop(event.uid, None)
        self.saver.put(events, known)

    def refresh(self) -> set[str]:
        """Take in what others wrote meanwhile; return the takes that it is about.

        Raises:
            OSError: the labels can't be read any more.
        """
        changed = self.store.refresh()
        for uid in changed:
            self._listed.pop(uid, None)
        return changed

    def progress(self, uids: Iterable[str]) -> Progress:
        """Return how far the labeller is with some takes."""
        takes = [self.take(uid) for uid in uids]
        done = sum(take.done for take in takes)
        times = self._times_s[-LATEST - 1 :]
        steps = [b - a for a, b in itertools.pairwise(times) if b - a < PAUSE_S]
        rate_per_min = 60 * len(steps) / sum(steps) if steps and sum(steps) > 0 else 0.0
        return Progress(done, done + sum(take.needs for take in takes), rate_per_min)

    def close(self) -> list[LabelEvent]:
        """Write what waits and return what couldn't be written."""
        return self.saver.close()


def main_word(value: Any) -> str:
    """Return what a label says in one word: of dimensions, the one with the largest weight."""
    if isinstance(value, Mapping):
        return max(value, key=lambda name: (value[name], name), default="")
    return str(value)
