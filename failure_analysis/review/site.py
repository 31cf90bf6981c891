"""What all open pages of one review share: the session, the videos, and work in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from gaploop.core import platform_calls
from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.station import StationScene
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.absolute.examine import examine
from gaploop.datasets.absolute.findings import AbsoluteReport
from gaploop.datasets.labels import open_labelled
from gaploop.datasets.layout import is_dataset
from gaploop.failure_analysis.diagnosis import TakeDiagnosis
from gaploop.failure_analysis.review.label_session import LabelSession
from gaploop.failure_analysis.review.marking import lines_of, marked, state_in
from gaploop.failure_analysis.review.takes import (
    REFERENCE_TAKES,
    Media,
    Preparer,
    TakeSource,
    offered,
)
from gaploop.sim.recolour import THE_CELLS

NICE: Final = 10
"""The page comes first."""
LOOK_S: Final = 2.0
"""How often it is looked whether others have labelled, or the folder is gone."""


class ReviewSuggester:
    """Diagnoses takes one at a time, in another process; reads them as `TakeSource` does."""

    def __init__(self, root: Path, units: str = "", scene: StationScene = THE_CELLS) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, (root, units, scene))
        with platform_calls.starting_deaf():
            self._pool.submit(os.getpid)  # starts the process

    def diagnose(self, uid: str) -> Future[TakeDiagnosis | None]:
        """Have a take diagnosed; None where it can't be read."""
        return self._pool.submit(_diagnose, uid)

    def examine(self, root: Path) -> Future[AbsoluteReport | None]:
        """Have the dataset examined for what it shows by itself; None where it can't be."""
        return self._pool.submit(_examine, root)

    def close(self) -> None:
        """Stop, also in the midst of a take."""
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
            process.join()


class _Worker:
    """What the suggesting process knows: the takes, and what is usual in them."""

    def __init__(self, root: Path, units: str, scene: StationScene) -> None:
        from gaploop.failure_analysis.reference import choose_reference

        store = open_labelled(root)
        self._source = TakeSource(store, units, scene)
        self._episodes = {e.info.uid: e for e in store.episodes}
        # Takes that went well, or else any: they say which station it is.
        good = [e for e in store.episodes if e.outcome == Outcome.SUCCESS] or store.episodes
        takes = []
        for episode in good[:REFERENCE_TAKES]:
            with contextlib.suppress(GaploopError, OSError):
                takes.append(self._source.take(episode))
        self._usual = choose_reference(takes)

    def diagnose(self, uid: str) -> TakeDiagnosis | None:
        from gaploop.failure_analysis.diagnosis import diagnose_take, prepared

        try:
            take = self._source.take(self._episodes[uid])
            return diagnose_take(prepared(take, self._usual), self._usual)
        except (GaploopError, OSError, KeyError):
            return None


_worker: list[_Worker] = []


def _begin(root: Path, units: str, scene: StationScene) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the page's to handle
    platform_calls.nice(NICE)
    _worker.append(_Worker(root, units, scene))


def _diagnose(uid: str) -> TakeDiagnosis | None:
    return _worker[0].diagnose(uid)


def _examine(root: Path) -> AbsoluteReport | None:
    with contextlib.suppress(GaploopError, OSError):
        return examine(root)
    return None


log = logging.getLogger(__name__)


class ReviewSite:
    """One review that is being served; takes are read as `TakeSource` does.

    Whoever made the folder for media empties it.
    """

    def __init__(
        self,
        session: LabelSession,
        media_folder: Path,
        suggester: ReviewSuggester | None,
        units: str = "",
        scene: StationScene = THE_CELLS,
        station: Path | None = None,
    ) -> None:
        self.session, self.station = session, station
        self.source = TakeSource(session.store, units, scene)
        self.media = Media(media_folder)
        self.preparer = Preparer(self.source, self.media)
        self.offered = offered(session.takes())
        self.suggester = suggester
        self.trouble = ""
        self.pages: list[Callable[[set[str]], None]] = []
        """Called with the uids of episodes that have changed."""
        self.ahead: Callable[[], Sequence[str]] = lambda: ()
        """The episodes that are looked at next, the open one first."""
        self.report: AbsoluteReport | None = None
        """What episodes show by themselves, once that is known."""
        self._given_up: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        session.saver.on_change = self.tell_from_thread

    def video(self, uid: str, camera: str) -> Path:
        """Return the file with a take's video of one camera.

        Raises:
            UnusableInputError: no such take or camera, it lies outside the folder, or it can't be
                read.
            OSError: there is no room, or it is gone.
        """
        if uid not in self.session.view:
            raise UnusableInputError("There is no such episode.")
        for picture in self.source.pictures(self.session.take(uid).episode):
            if picture.camera == camera:
                self.source.inside(picture.path)
                return self.media.video(uid, picture)
        raise UnusableInputError(f"This episode has no camera {camera!r}.")

    def mark(
        self, uid: str, role: str, camera: str, frame: int, right: float, down: float
    ) -> tuple[str, str]:
        """Return the outline of what has the colour clicked on, and what became of it in words.

        It is written to the station's file where there is one. The place is given as of `marked`.

        Raises:
            UnusableInputError: no such episode, camera or picture; no colour; or the file stays.
            OSError: the file can't be written.
        """
        picture = self.source.picture(self.session.take(uid).episode, camera, frame)
        found = marked(picture, right, down)
        low, high = (f"{v:g}" for v in found.hue_deg)
        says = f"The {role} has hues from {low} to {high} degrees"
        says += f", as {found.places} things here have" if found.places > 1 else ""
        if self.station is None:
            lines = [line.strip() for line in lines_of(camera, role, found.hue_deg).values()]
            return found.outline, f"{says}. For your station.yaml: scene: {{{', '.join(lines)}}}"
        state_in(self.station, camera, role, found.hue_deg)
        return found.outline, f"{says}. Written to {self.station}: it holds from the next start on."

    def tell(self, uids: set[str]) -> None:
        """Tell every open page which takes have changed."""
        for page in list(self.pages):
            page(uids)

    def tell_from_thread(self) -> None:
        """Tell every open page that labels were saved, or couldn't be."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the page is closing
                self._loop.call_soon_threadsafe(self.tell, set[str]())

    def start(self) -> None:
        """Begin to look around; call it in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._tasks = [self._loop.create_task(self._watch())]
        if self.suggester is not None:
            self._tasks.append(self._loop.create_task(self._suggest(self.suggester)))

    def stop(self) -> None:
        """Stop looking around."""
        for task in self._tasks:
            task.cancel()

    @property
    def examined(self) -> bool:
        """Whether it is known what episodes show by themselves."""
        return self.report is not None

    def shows(self, episode: int) -> list[str]:
        """Return what an episode shows by itself, in sentences."""
        found = self.report.findings if self.report is not None else []
        return [f.line() for f in found if episode in f.episodes]

    def waits_for(self, uid: str) -> bool:
        """Say whether a take is about to be diagnosed."""
        return self.suggester is not None and self._wanted(uid)

    def _wanted(self, uid: str) -> bool:
        take = self.session.take(uid)
        return take.needs and take.found is None and uid not in self._given_up

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            changed: set[str] = set()
            before = self.trouble
            try:
                if not self.session.store.root.is_dir():
                    raise UnusableInputError(f"{self.session.store.root} is gone. Bring it back.")
                changed = self.session.refresh()
                self.trouble = ""
            except (OSError, UnusableInputError) as error:
                self.trouble = " ".join(str(error).split())
            if changed or self.trouble != before:
                self.tell(changed)

    async def _suggest(self, suggester: ReviewSuggester) -> None:
        if is_dataset(self.session.store.root):
            with contextlib.suppress(BrokenProcessPool, CancelledError):
                examined = suggester.examine(self.session.store.root)
                self.report = await asyncio.wrap_future(examined)
                self.tell({take.uid for take in self.session.takes()})
        while True:
            uid = next((u for u in self.ahead() if self._wanted(u)), None)
            if uid is None:
                await asyncio.sleep(0.3)
                continue
            try:
                found = await asyncio.wrap_future(suggester.diagnose(uid))
            except (BrokenProcessPool, CancelledError) as error:
                log.warning("No more suggestions: the process that makes them ended (%s).", error)
                return
            if found is None:
                self._given_up.add(uid)
            else:
                self.session.diagnosed(found)
            self.tell({uid})
