"""A leader on another machine: `serve_leader` where it is, `LeaderLink` where the robot is.

The robot's side asks at its own rate, and each answer is where the leader is at that moment. So the
age of a sample is known without a shared clock (`link.AnswerClock`), and a link that is slow,
stands still or is gone is a leader that has grown old: the robot's own safety filter trips.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Annotated, Final

import msgspec
from websockets.sync.connection import Connection

from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError
from gaploop.core.protocols import Leader
from gaploop.teleop import link
from gaploop.teleop.stopping import CleanupStep, one_line

log = logging.getLogger(__name__)

KIND: Final = "gaploop.leader.1"
MOST_BYTES: Final = 8192
ASK_HZ: Final = 200.0
"""As often as the control loop turns [Hz]."""
START_S: Final = 5.0
"""The first sample may take this long [s]."""


class LeaderCard(link.Message, frozen=True):
    """What a leader says of itself, first: its type and its joints, as `shoulder_pan`."""

    type: link.Word
    joints: Annotated[list[link.Word], msgspec.Meta(min_length=1, max_length=64)]


class LeaderQuestion(link.Message, frozen=True):
    """Where are you now?"""

    number: link.Count


class LeaderAnswer(link.Message, frozen=True):
    """Where the leader is: the question's number, how old that is [s], its LeRobot units."""

    number: link.Count
    age_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
    values: link.Numbers


def serve_leader(leader: Leader, card: LeaderCard, clock: Clock) -> Callable[[Connection], None]:
    """Return what answers each robot that connects; `leader` gives its own LeRobot units."""
    turn = threading.Lock()

    def talk(connection: Connection) -> None:
        link.say(connection, card)
        newest = -1
        while True:
            question = link.hear(connection, LeaderQuestion)
            assert question is not None
            if question.number <= newest:
                continue  # overtaken: its answer would be newer than the one to a later question
            newest = question.number
            with turn:
                now_s = clock.now_s()
                sample = leader.read(now_s)
            # A servo that isn't heard is NaN; what isn't a number isn't sent, and so grows old.
            age_s = min(max(clock.now_s() - sample.t_s, 0.0), 1e6)
            values = sample.q_rad.tolist()
            if all(abs(value) <= 1e6 for value in values):
                link.say(connection, LeaderAnswer(question.number, age_s, values))

    return talk


class LeaderLink:
    """The robot's end: asks in a thread of its own, and keeps the newest answer.

    Raises:
        DeviceError: nobody answers, the token is another, or no sample comes.
    """

    def __init__(self, host: str, port: int, token: str) -> None:
        self.where = f"{host}:{port}"
        self._asked, self._lost = link.AnswerClock(), ""
        self._newest: tuple[float, list[float]] | None = None
        self._over, self._heard = threading.Event(), threading.Event()
        self._connection = link.connect(KIND, host, port, token, MOST_BYTES)
        with CleanupStep() as attempt:
            card = link.hear(self._connection, LeaderCard, START_S)
            if card is None:
                raise DeviceError("It doesn't identify itself.")
            self.card = card
            self._thread = threading.Thread(target=self._ask, name="leader link", daemon=True)
            self._thread.start()
            self._heard.wait(START_S)
            if self._newest is None:
                raise DeviceError(self._lost or "Its leader gives no sample.")
        if attempt.error is not None:
            self._connection.close()
            raise DeviceError(f"{self.where}: {one_line(attempt.error)}") from attempt.error

    def newest(self) -> tuple[float, list[float]]:
        """Return the newest sample's earliest time [s] and LeRobot units; DeviceError if closed."""
        if self._lost:
            raise DeviceError(f"{self.where}: {self._lost}")
        assert self._newest is not None
        return self._newest

    def close(self) -> None:
        """Close the link; safe to call twice."""
        self._over.set()
        self._connection.close()

    def _ask(self) -> None:
        period_s, next_s = 1.0 / ASK_HZ, time.monotonic()
        with CleanupStep() as attempt, link.report_on_close(self._connection):
            while not self._over.is_set():
                link.say(self._connection, LeaderQuestion(self._asked.ask(time.monotonic())))
                # Questions that were late are left out: a burst of them would tell nothing more.
                next_s = max(next_s + period_s, time.monotonic())
                while (left_s := next_s - time.monotonic()) > 0:
                    answer = link.hear(self._connection, LeaderAnswer, left_s)
                    if answer is None:
                        continue
                    given, has = len(answer.values), len(self.card.joints)
                    if given != has:
                        raise DeviceError(f"It sends {given} joints, and has {has}.")
                    made_s = self._asked.made_s(answer.number, answer.age_s)
                    if made_s is not None:
                        self._newest = made_s, answer.values
                        self._heard.set()
        self._lost = one_line(attempt.error) if attempt.error else "The link is closed."
        if self._newest is not None and not self._over.is_set():
            log.warning("%s: %s", self.where, self._lost)
        self._heard.set()
