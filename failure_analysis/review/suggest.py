"""Diagnoses for takes that don't have one yet, made by a process of its own while people look."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gaploop.core import platform_calls
from gaploop.core.errors import GaploopError
from gaploop.core.vocabulary import Outcome
from gaploop.failure_analysis.diagnosis import TakeDiagnosis

if TYPE_CHECKING:
    from gaploop.core.take import Take
    from gaploop.datasets.layout import EpisodeRow

REFERENCE_TAKES: Final = 40
"""Of the data's own takes that went well, as many as say what is usual: reading all takes long."""
NICE: Final = 10
"""The page comes first."""


class ReviewSuggester:
    """Diagnoses takes one at a time, in another process.

    Args:
        root: the dataset or journal.
    """

    def __init__(self, root: Path) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, (root,))

    def diagnose(self, uid: str) -> Future[TakeDiagnosis | None]:
        """Have a take diagnosed; None where it can't be read."""
        return self._pool.submit(_diagnose, uid)

    def close(self) -> None:
        """Stop, also in the midst of a take."""
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
            process.join()


def _begin(root: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the page's to handle
    platform_calls.nice(NICE)
    _worker.append(_Worker(root))


class _Worker:
    """What the process knows: the takes, and what is usual in them."""

    def __init__(self, root: Path) -> None:
        from gaploop.datasets.labels.labelled import open_labelled
        from gaploop.failure_analysis.reference import choose_reference
        from gaploop.failure_analysis.review.source import TakeSource

        folder = open_labelled(root)
        self._source = TakeSource(folder)
        self._episodes = {e.info.uid: e for e in folder.episodes}
        self._usual = choose_reference(self._sample(folder.episodes))

    def _sample(self, episodes: Sequence[EpisodeRow]) -> list[Take]:
        """Return takes that went well, or else any: they say which station it is."""
        good = [e for e in episodes if e.outcome == Outcome.SUCCESS] or list(episodes)
        takes = []
        for episode in good[:REFERENCE_TAKES]:
            with contextlib.suppress(GaploopError, OSError):
                takes.append(self._source.take(episode))
        return takes

    def diagnose(self, uid: str) -> TakeDiagnosis | None:
        from gaploop.failure_analysis.diagnosis import diagnose_take, prepared

        try:
            take = self._source.take(self._episodes[uid])
            return diagnose_take(prepared(take, self._usual), self._usual)
        except (GaploopError, OSError, KeyError):
            return None


_worker: list[_Worker] = []


def _diagnose(uid: str) -> TakeDiagnosis | None:
    return _worker[0].diagnose(uid)
