"""What all open pages of one review share: the session, the videos, and work in the background."""

import asyncio
import base64
import contextlib
import logging
import os
import re
import signal
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import cv2
import numpy as np
import yaml

from gaploop.core import platform_calls
from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.core.messages import Image
from gaploop.core.station import Interval, StationScene, load_station
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.absolute.examine import examine
from gaploop.datasets.absolute.findings import AbsoluteReport
from gaploop.datasets.labels import open_labelled
from gaploop.datasets.layout import is_dataset
from gaploop.failure_analysis.diagnosis import TakeDiagnosis
from gaploop.failure_analysis.review.label_session import LabelSession
from gaploop.failure_analysis.review.takes import (
    REFERENCE_TAKES,
    Media,
    Preparer,
    TakeSource,
    offered,
)
from gaploop.sim.recolour import COLOURED, THE_CELLS, of_hue

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


# -- colours that are clicked on, and the station's file ---------------------------------------

ROLES: Final = ("object", "target")
ALIKE_DEG: Final = 14.0
"""A pixel beside belongs to the same thing if its hue is so near to that of the click."""
MARGIN_DEG: Final = 6.0
"""Light changes over a day; so much is added on either side."""
LEAST_SHARE: Final = 2e-4
"""Of a picture's pixels, what a place of some colour has at least to be counted."""
OUTLINE: Final = (40, 230, 90, 255)
"""BGRA."""


@dataclass(frozen=True)
class Marked:
    """What was clicked on.

    Attributes:
        hue_deg: from and to on the colour circle, which may pass 360.
        places: how many things of this colour the picture shows.
        outline: their edges, a PNG of the picture's size as a data address.
    """

    hue_deg: Interval
    places: int
    outline: str


def marked(picture: Image, right: float, down: float) -> Marked:
    """Return the colour of what is at a place of a picture, RGB, shape (height, width, 3).

    `right` and `down` are shares of its size, 0 to 1.

    Raises:
        UnusableInputError: it has no colour to speak of.
    """
    height, width = picture.shape[:2]
    x, y = min(int(right * width), width - 1), min(int(down * height), height - 1)
    hsv = cv2.cvtColor(picture, cv2.COLOR_RGB2HSV)
    near = hsv[max(0, y - 2) : y + 3, max(0, x - 2) : x + 3].reshape(-1, 3)
    near = near[near[:, 1] > COLOURED]
    if len(near) < 3:
        raise UnusableInputError(
            "There is no colour to speak of. Grey, white and pale things can't be found by their "
            "colour."
        )
    turned = np.exp(1j * np.radians(2.0 * near[:, 0].astype(np.float64))).mean()
    middle_deg = float(np.degrees(np.angle(turned)) % 360.0)
    of_it = of_hue(picture, ((middle_deg - ALIKE_DEG) % 360.0, (middle_deg + ALIKE_DEG) % 360.0))
    _, labels = cv2.connectedComponents(of_it.astype(np.uint8))
    thing = (labels == labels[y, x]) & of_it if of_it[y, x] else of_it
    away = (2.0 * hsv[..., 0][thing] - middle_deg + 180.0) % 360.0 - 180.0
    low, high = middle_deg + np.percentile(away, (2, 98))
    hue_deg = (float(round(low - MARGIN_DEG) % 360), float(round(high + MARGIN_DEG) % 360))
    edges, _ = cv2.findContours(
        of_hue(picture, hue_deg).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE
    )
    edges = [e for e in edges if cv2.contourArea(e) >= LEAST_SHARE * height * width]
    drawn = np.zeros((height, width, 4), dtype=np.uint8)
    cv2.drawContours(drawn, edges, -1, OUTLINE, max(1, round(width / 300)), cv2.LINE_AA)
    png = base64.b64encode(cv2.imencode(".png", drawn)[1].tobytes()).decode()
    return Marked(hue_deg, len(edges), f"data:image/png;base64,{png}")


def lines_of(camera: str, role: str, hue_deg: Interval) -> dict[str, str]:
    """Return what station.yaml says of it below `scene`, key to line."""
    low, high = (f"{v:g}" for v in hue_deg)
    name = yaml.safe_dump(camera).splitlines()[0]
    return {"camera": f"  camera: {name}", role: f"  {role}: [{low}, {high}]"}


def state_in(station: Path, camera: str, role: str, hue_deg: Interval) -> None:
    """Write it to a station's file, of which all else stays as it is, comments too.

    Raises:
        UnusableInputError: the file can't be changed so, or wouldn't be read with it.
    """
    lines = station.read_text().splitlines()
    start = next((n for n, line in enumerate(lines) if re.match(r"scene:\s*(#.*)?$", line)), None)
    if start is None:
        start = len(lines)
        lines.append("scene:")
    end = start + 1
    while end < len(lines) and (lines[end].startswith((" ", "#")) or not lines[end].strip()):
        end += 1
    for key, line in lines_of(camera, role, hue_deg).items():
        at = [n for n in range(start + 1, end) if re.match(rf"\s+{key}:", lines[n])]
        if at:
            comment = re.search(r"\s+#.*$", lines[at[0]])
            lines[at[0]] = line + (comment[0] if comment else "")
        else:
            lines.insert(start + 1, line)
            end += 1
    text = "\n".join(lines) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        tried = Path(folder) / "station.yaml"
        tried.write_text(text)
        try:
            scene = yaml.safe_load(text)["scene"]
            load_station(tried)
        except (yaml.YAMLError, KeyError, TypeError, UnusableInputError) as error:
            why = " ".join(str(error).replace(str(tried), station.name).split())
            raise UnusableInputError(f"{station} stays as it was: {why}") from error
    if scene[role] != list(hue_deg) or scene["camera"] != camera:
        raise UnusableInputError(f"{station} stays as it was: write these lines to it yourself.")
    write_atomically(station, text)
