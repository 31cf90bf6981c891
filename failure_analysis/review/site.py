"""What all open pages of one review share: the desk, the videos, and work in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gaploop.core.errors import UnusableInputError
from gaploop.failure_analysis.review.choice import offered
from gaploop.failure_analysis.review.label_session import LabelSession
from gaploop.failure_analysis.review.media import Media
from gaploop.failure_analysis.review.prepare import Preparer
from gaploop.failure_analysis.review.source import TakeSource
from gaploop.failure_analysis.review.suggest import ReviewSuggester

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0
"""How often it is looked whether others have labelled, or the folder is gone."""


class ReviewSite:
    """One review that is being served.

    Args:
        desk: the labeller's.
        media_folder: where videos for the browser are kept; emptied by whoever made it.
        suggester: diagnoses takes in the background, if anyone does.
    """

    def __init__(
        self, desk: LabelSession, media_folder: Path, suggester: ReviewSuggester | None
    ) -> None:
        self.desk = desk
        self.source = TakeSource(desk.folder)
        self.media = Media(media_folder)
        self.preparer = Preparer(self.source, self.media)
        self.offered = offered(desk.takes())
        self.suggester = suggester
        self.trouble = ""
        self.pages: list[Callable[[set[str]], None]] = []
        """Called with the uids of takes that have changed."""
        self.ahead: Callable[[], Sequence[str]] = lambda: ()
        """The takes that are looked at next, the open one first."""
        self._given_up: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        desk.saver.on_change = self.tell_from_thread

    def video(self, uid: str, camera: str) -> Path:
        """Return the file with a take's video of one camera.

        Raises:
            UnusableInputError: no such take or camera, it lies outside the folder, or it can't be
                read.
            OSError: there is no room, or it is gone.
        """
        if uid not in self.desk.book:
            raise UnusableInputError("There is no such take.")
        for picture in self.source.pictures(self.desk.take(uid).episode):
            if picture.camera == camera:
                self.source.inside(picture.path)
                return self.media.video(uid, picture)
        raise UnusableInputError(f"This take has no camera {camera!r}.")

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

    def waits_for(self, uid: str) -> bool:
        """Say whether a take is about to be diagnosed."""
        return self.suggester is not None and self._wanted(uid)

    def _wanted(self, uid: str) -> bool:
        take = self.desk.take(uid)
        return take.needs and take.found is None and uid not in self._given_up

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            changed: set[str] = set()
            before = self.trouble
            try:
                if not self.desk.folder.root.is_dir():
                    raise UnusableInputError(f"{self.desk.folder.root} is gone. Bring it back.")
                changed = self.desk.refresh()
                self.trouble = ""
            except (OSError, UnusableInputError) as error:
                self.trouble = " ".join(str(error).split())
            if changed or self.trouble != before:
                self.tell(changed)

    async def _suggest(self, suggester: ReviewSuggester) -> None:
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
                self.desk.diagnosed(found)
            self.tell({uid})
