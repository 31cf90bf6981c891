"""Who said what about which take, as one labeller may see it.

Two people label without seeing each other's words: another's stay hidden until one has given an
own label, or asked to see them. What the operator said about the outcome is no opinion on why a
take failed and stays visible, and so does what programs say.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gaploop.core import labels
from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import parse_json
from gaploop.core.labels import LabelEvent
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.labels.labelled import FolderLabels
from gaploop.datasets.layout import EpisodeRow

FIELDS: Final = ("outcome", "failure_mode", "phase", "dimensions")
COMPARED: Final = ("outcome", "failure_mode", "dimensions")
"""Fields on which people may disagree; of dimensions, the one with the largest weight counts."""
_AUTO, _OPERATOR = labels.SOURCES[0], labels.SOURCES[1]

type Said = Mapping[str, LabelEvent]
"""Label field to the event that stands."""


class LabelStore:
    """The labels of a dataset or journal, for one labeller.

    Args:
        folder: what is in it, from `open_labelled`.
        author: the labeller.
        show_others: show what others say before the labeller has said something.
    """

    def __init__(self, folder: FolderLabels, author: str, show_others: bool = False) -> None:
        self.author = author
        self.show_others = show_others
        self._folder = folder
        self._recorded = {e.info.uid: e for e in folder.recorded}
        self._stamp: tuple[int, ...] = (-1,)  # of the file as it was read last
        self._read = b""  # of the file, up to its last line break
        self._saved: dict[str, LabelEvent] = {}  # by line, so that none counts twice
        self._unsaved: dict[str, LabelEvent] = {}
        self._of: dict[str, list[LabelEvent]] = {}
        self.refresh()
        self._shown_then = set() if folder.journal else {e.key for e in self._saved.values()}
        """Fields whose recorded value is somebody's word already."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._recorded

    @property
    def events(self) -> list[LabelEvent]:
        """Every event, in order; those that aren't on disk yet come last."""
        return [*self._saved.values(), *self._unsaved.values()]

    def about(self, uid: str) -> Sequence[LabelEvent]:
        """Return what was said about a take, in order."""
        return self._of.get(uid, ())

    def say(self, events: Iterable[LabelEvent]) -> None:
        """Take in what the labeller says, before it is on disk."""
        for event in events:
            self._unsaved[event.to_line()] = event
            self._of.setdefault(event.uid, []).append(event)

    def refresh(self) -> set[str]:
        """Take in what was written meanwhile, also by others; return the takes it is about.

        Lines that can't be read are passed over: whoever opened the folder was told of them.

        Raises:
            OSError: the file can't be read.
        """
        path = self._folder.file
        stamp = _stamp(path)
        if stamp == self._stamp:
            return set()
        data = path.read_bytes() if path.exists() else b""
        self._stamp = stamp
        whole = data[: data.rfind(b"\n") + 1]
        if whole == self._read:
            return set()
        if not whole.startswith(self._read):  # lines were put between: labels of another log
            self._read, self._saved = b"", {}
        changed = set(self._of) if not self._saved else set()
        for line in whole[len(self._read) :].decode(errors="replace").splitlines():
            with contextlib.suppress(UnusableInputError, *DAMAGE):
                event = self._saved[line] = LabelEvent(**parse_json(line))
                changed.add(event.uid)
                self._unsaved.pop(line, None)
        self._read, self._of = whole, {}
        for event in self.events:
            self._of.setdefault(event.uid, []).append(event)
        return changed

    def own(self, uid: str) -> Said:
        """Return what the labeller says about a take."""
        return self._by(uid, self.author)

    def _by(self, uid: str, author: str) -> Said:
        said = (e for e in self.about(uid) if e.author == author and e.source != _AUTO)
        return _standing(said)

    def others(self, uid: str) -> dict[str, Said]:
        """Return what others say about a take, by author; nothing while that is hidden."""
        if not self.revealed(uid):
            return {}
        people = {e.author for e in self.about(uid) if e.source != _AUTO} - {self.author}
        return {author: said for author in sorted(people) if (said := self._by(uid, author))}

    def revealed(self, uid: str) -> bool:
        """Say whether the labeller may see what others say about a take."""
        return self.show_others or self.done(uid)

    def done(self, uid: str) -> bool:
        """Say whether the labeller has labelled a take."""
        own = self.own(uid) if self.about(uid) else {}
        return "outcome" in own or "failure_mode" in own

    def differ(self, uid: str) -> tuple[str, ...]:
        """Return the fields on which people's last words differ, as far as they may be seen."""
        if not self.about(uid):
            return ()
        people = (self.own(uid), *self.others(uid).values())
        words = {n: {_word(said[n].value) for said in people if n in said} for n in COMPARED}
        return tuple(name for name, found in words.items() if len(found) > 1)

    def episode(self, uid: str) -> EpisodeRow:
        """Return a take with the labels that the labeller sees: the own word before any other."""
        recorded = self._recorded[uid]
        if not self.about(uid):
            return recorded
        said = {**self._base(uid), **self._shown(uid), **_values(self.own(uid))}
        return replace(
            recorded,
            info=replace(recorded.info, dimensions=said.get("dimensions", {})),
            outcome=Outcome(said["outcome"]),
            failure_mode=said["failure_mode"],
            phase=said["phase"],
        )

    def _base(self, uid: str) -> dict[str, Any]:
        """Return what stands where nothing that was said may be seen.

        A dataset's columns show what stands, also what is hidden: what they were before is there
        as an event of its own, unless it was nothing.
        """
        known = self._recorded[uid]
        recorded: dict[str, Any] = {
            "outcome": known.outcome.value,
            "failure_mode": known.failure_mode,
            "phase": known.phase,
            "dimensions": known.info.dimensions,
        }
        said = (name for name in recorded if (uid, name) in self._shown_then)
        return recorded | {name: labels.NOTHING_SAID[name] for name in said}

    def _shown(self, uid: str) -> dict[str, Any]:
        if self.revealed(uid):
            return _values(_standing(self.about(uid)))
        return _values(
            _standing(
                e
                for e in self.about(uid)
                if e.source == _AUTO
                or e.author == self.author
                or (e.source == _OPERATOR and e.field == "outcome")
            )
        )


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what differs once a file has been written: inode, size, time; empty without one."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _values(said: Said) -> dict[str, Any]:
    return {name: event.value for name, event in said.items()}


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        return max(value, key=lambda name: (value[name], name), default="")
    return str(value)


def _standing(events: Iterable[LabelEvent]) -> dict[str, LabelEvent]:
    return {field: event for (_, field), event in labels.standing(events).items()}
