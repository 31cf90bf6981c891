"""Writes what is said to disk behind the page's back, in order, and tries again where it can't."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gaploop.core.errors import GaploopError
from gaploop.core.labels import LabelEvent, append
from gaploop.datasets.labels import labelled
from gaploop.datasets.labels.labelled import FolderLabels

RETRY_S: Final = 2.0
"""How long to wait before what couldn't be written is tried again."""
QUIET_S: Final = 2.0
"""Columns follow once nobody has labelled for so long: rewriting them costs more than an event."""


@dataclass(frozen=True)
class _Act:
    events: tuple[LabelEvent, ...]
    known: tuple[LabelEvent, ...]


class Saver:
    """One thread that writes label events, each durably before it counts as saved.

    A dataset's columns follow when labelling pauses, and at the end; a kill in between costs no
    label, and the next one brings the columns up to date.

    Args:
        folder: what is labelled.
    """

    def __init__(self, folder: FolderLabels) -> None:
        self.saved = 0
        """How many acts are on disk."""
        self.trouble = ""
        """Why an act can't be written, or ""."""
        self.on_change: Callable[[], None] = lambda: None
        """Called from the thread whenever `saved`, `waiting` or `trouble` changes."""
        self._folder = folder
        self._bare = labelled.lacks_columns(folder)
        self._acts: deque[_Act] = deque()
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
        """Have one act written.

        Args:
            events: what is said, all of it or none.
            known: every event that was said before.
        """
        with self._changed:
            self._acts.append(_Act(tuple(events), tuple(known)))
            self._changed.notify_all()

    def close(self) -> list[LabelEvent]:
        """Write what waits, bring the columns up to date, end; return what couldn't be written."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        return [event for act in self._acts for event in act.events]

    def _work(self) -> None:
        while True:
            with self._changed:
                self._wait()
                act = self._acts[0] if self._acts else None
            if act is not None:
                failed = not self._write(act)
                if failed and self._closing:
                    break
                continue
            self._show()
            if self._closing and not self._acts:
                break

    def _wait(self) -> None:
        """Wait for an act, or until it is time to try again or to bring the columns up to date."""
        if self._acts and self.trouble:
            self._changed.wait_for(lambda: self._closing, RETRY_S)
        elif not self._acts:
            pause = QUIET_S if self._unshown else None
            self._changed.wait_for(lambda: bool(self._acts) or self._closing, pause)

    def _write(self, act: _Act) -> bool:
        try:
            if not self._folder.root.is_dir():
                raise FileNotFoundError(f"{self._folder.root} is gone")
            if self._bare:
                self._folder, self._bare = labelled.add_columns(self._folder), False
            folder = replace(self._folder, events=act.known)
            labelled.write_down(folder, act.events)
        except (OSError, GaploopError) as error:
            self.trouble = _one_line(error)
            self.on_change()
            return False
        with self._changed:
            self._acts.popleft()
            self.saved += 1
            self.trouble = ""
            self._unshown |= {event.uid for event in act.events}
        self.on_change()
        return True

    def _show(self) -> None:
        if not self._unshown or self._folder.journal:
            return
        with contextlib.suppress(OSError, GaploopError):  # the next label brings them up to date
            labelled.show(self._folder, self._unshown)
        self._unshown = set()


def rescue(events: Sequence[LabelEvent], folder: Path) -> Path:
    """Write events that couldn't be saved to a file of their own, so that none is lost.

    Raises:
        OSError: not even that can be written.
    """
    path = folder / "gaploop_unsaved_labels.jsonl"
    append(path, *events)
    return path


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'labels'}: {error.strerror}"
    return " ".join(str(error).split())
