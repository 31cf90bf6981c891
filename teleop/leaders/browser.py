"""A phone or a browser as an input device: a page with touch pads, served on the local network.

The page answers questions, as a leader on another machine does (`link.AnswerClock`): answers are
dated by this machine's clock, and one that comes late, twice or from somebody else moves nothing.
Only `PageTouch` is read of them.
"""

import functools
import io
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import segno
from websockets.sync.connection import Connection

from gaploop.core.errors import DeviceError, LostError
from gaploop.teleop import link
from gaploop.teleop.leaders.controls import Intent, IntentSource, TimedIntent

log = logging.getLogger(__name__)

KIND: Final = "gaploop.browser.1"
PAGE: Final = Path(__file__).with_name("browser.html")
MOST_BYTES: Final = 2048
ASK_HZ: Final = 50.0
GONE_S: Final = 3.0
"""A page that says nothing for this long is gone, and another may come [s]."""
WAIT_S: Final = 300.0
"""So long a first page is waited for [s]."""
type Share = Annotated[float, msgspec.Meta(ge=-1.0, le=1.0)]
type Far = Annotated[float, msgspec.Meta(ge=-100.0, le=100.0)]


class PageQuestion(msgspec.Struct, frozen=True):
    """What is pressed now? And what the page shows: why the arm has tripped, and who drives."""

    number: int
    trip: str
    title: str


class PageTouch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is pressed, named as in `Intent`; how often stop and clear have been pressed so far.

    `hand` is how far the phone has moved and turned since the hold button was pressed: forward,
    left, up [m], roll and pitch [rad]; forward is where it pointed then. None without WebXR.
    """

    number: link.Count
    held: bool
    forward: Share
    left: Share
    up: Share
    roll: Share
    pitch: Share
    gripper: Share
    home: bool
    step: Annotated[int, msgspec.Meta(ge=1, le=4)]
    frame: Literal["base", "tool"]
    stops: link.Count
    clears: link.Count
    hand: tuple[Far, Far, Far, Far, Far] | None = None


_OF_INTENT: Final = tuple(
    name for name in PageTouch.__struct_fields__ if name in Intent.__dataclass_fields__
)


@functools.cache
def own_token() -> str:
    """Return this process's token: the page stays connected while arms are lost and found."""
    given = os.environ.get(link.TOKEN_VARIABLE, "")
    return link.require_token(given or link.new_token(), link.TOKEN_VARIABLE)


class Browser(IntentSource):
    """A page in somebody's hand. Waits until one is open; DeviceError where nobody opens it."""

    has_window = False

    def __init__(
        self,
        title: str,
        host: str = "",
        port: int = link.PORT,
        wait_s: float = WAIT_S,
    ) -> None:
        self._title = title
        self._trip = ""
        self._on_estop: Callable[[], None] = lambda: None
        self._on_clear: Callable[[], None] = lambda: None
        self._clears = 0
        self._must_release = True
        """The hold button counts only once it was seen to be up."""
        self._snapshot = (Intent(present=False), time.monotonic())
        self._turn, self._open = threading.Lock(), threading.Event()
        with ExitStack() as undo:
            token = own_token()
            found = undo.enter_context(
                link.listening(
                    KIND, token, self._talk, host=host, port=port, max_bytes=MOST_BYTES, page=PAGE
                )
            )
            self.address = f"https://{host or link.own_address()}:{found}/#{token}"
            lines = io.StringIO()
            segno.make(self.address, error="l", micro=False).terminal(
                out=lines, compact=True, border=2
            )
            log.info("%s\n%s", lines.getvalue(), self.address)
            log.info("Open it on a phone in this network; Ctrl-C, twice, ends waiting for it.")
            log.info("The browser warns of the certificate, which nobody has signed: go on there.")
            if not self._open.wait(wait_s):
                raise DeviceError(f"Nobody has opened the page within {wait_s:g} s.")
            self._served = undo.pop_all()

    def latest(self) -> TimedIntent:
        """Return the newest intent, and its age while the hold button is down."""
        intent, made_s = self._snapshot
        return TimedIntent(intent, time.monotonic() - made_s if intent.held else 0.0)

    def listen(self, on_estop: Callable[[], None], on_clear: Callable[[], None]) -> None:
        """Call these when the e-stop is pressed, at once and on another thread, and to clear."""
        self._on_estop, self._on_clear = on_estop, on_clear

    def pump(self, trip: str = "") -> None:
        """Show on the page why the arm has tripped, and heed what was pressed to clear it."""
        self._trip = trip
        self._must_release |= bool(trip)
        while self._clears:
            self._clears -= 1
            self._on_clear()

    def close(self) -> None:
        """Serve the page no more; safe to call twice."""
        self._served.close()

    def _talk(self, connection: Connection) -> None:
        if not self._turn.acquire(blocking=False):
            raise DeviceError("Another page drives. Close it first.")
        self._must_release = True
        asked, stops, clears = link.AnswerClock(), 0, 0
        heard_s = next_s = time.monotonic()
        try:
            while time.monotonic() - heard_s < GONE_S:
                question = PageQuestion(asked.ask(time.monotonic()), self._trip[:500], self._title)
                link.say(connection, question)
                next_s = max(next_s + 1.0 / ASK_HZ, time.monotonic())
                while (left_s := next_s - time.monotonic()) > 0:
                    touch = link.hear(connection, PageTouch, left_s)
                    if touch is None:
                        continue
                    if touch.stops > stops:
                        self._must_release = True
                        self._on_estop()
                    self._clears += min(max(touch.clears - clears, 0), 2)
                    stops, clears = max(touch.stops, stops), max(touch.clears, clears)
                    made_s = asked.made_s(touch.number, 0.0)
                    if made_s is not None:
                        heard_s = time.monotonic()
                        self._must_release &= touch.held
                        pressed = {name: getattr(touch, name) for name in _OF_INTENT}
                        pressed["held"] = touch.held and not self._must_release
                        self._snapshot = (Intent(**pressed), made_s)
                        self._open.set()
            raise LostError("The page has stopped answering.")
        finally:
            intent, made_s = self._snapshot
            if not intent.held:  # else it grows old, which trips
                self._snapshot = (Intent(present=False), made_s)
            self._turn.release()
