"""An attended recording session: a thread records, the main thread shows and hears keys."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gaploop.collect import campaign_log
from gaploop.collect.operator.attended import Operator
from gaploop.collect.operator.book import LabelBook, known_takes
from gaploop.collect.operator.commands import Command, KeyMap
from gaploop.collect.operator.console import Console, Quotas
from gaploop.collect.operator.seen import Bar, SetUp
from gaploop.collect.operator.sounds import Player
from gaploop.collect.operator.state import Timing
from gaploop.collect.operator.suggesting import Suggester
from gaploop.collect.session import SessionEnd, TakeResult, record_takes
from gaploop.collect.setup_words import change_words, words
from gaploop.core.errors import LostError
from gaploop.core.station import Station
from gaploop.core.take import Take
from gaploop.core.vocabulary import Outcome
from gaploop.scripts import _arms, _record_screen, record
from gaploop.scripts._arms import EMBEDDED
from gaploop.scripts._campaign import require_person
from gaploop.scripts._find_again import Headway
from gaploop.scripts._record_arm_cast import ArmOptions, arm_cast
from gaploop.scripts._record_casts import Cast, embedded_cast
from gaploop.scripts._record_checks import check_targets
from gaploop.scripts._record_publish import Publisher
from gaploop.scripts._signals import stoppable
from gaploop.teleop.stopping import Attempt

if TYPE_CHECKING:
    from gaploop.collect.campaign import Quota
    from gaploop.datasets.lerobot_publish import PublishReport

log = logging.getLogger(__name__)

REMEMBERED: int = 5
"""Takes of earlier sessions that can be labelled anew."""
TAKEN = {
    _arms.KEYBOARD: {
        "space": "hold to move",
        "escape": "emergency stop",
        "tab": "frame",
        "x": "clutch",
        "-": "slower",
        "=": "faster",
    },
    _arms.GAMEPAD: {
        "pad:rightshoulder": "hold to move",
        "pad:b": "emergency stop",
        "pad:start": "clear a trip",
        "pad:leftshoulder": "clutch",
        "pad:back": "frame",
    },
}
"""Leader to the keys that it needs whether or not its dead-man button is held."""
HELD = {_arms.KEYBOARD: "Space", _arms.GAMEPAD: "R1"}


def record_attended(
    job: record.Job,
) -> tuple[SessionEnd, list[PublishReport], list[int]]:
    """Record with an operator.

    Returns:
        How the session went, every publication, and the signals that came.

    Raises:
        DeviceError: a device failed; what was sealed is published.
        UnusableInputError: options that can't be used.
    """
    config = job.config
    leads = _arms.kind(config.teleop) if hasattr(config.teleop, "get_known_choices") else ""
    keys = KeyMap.of(config.keys, TAKEN.get(leads, {}))
    display = _record_screen.chosen_display(config.display, leads in TAKEN)
    if display == "none" and job.campaign is not None:
        require_person(job.station, config.yes, stdin_is_terminal=False)
    timing = Timing(
        config.dataset.episode_time_s,
        config.dataset.reset_time_s,
        config.auto_start or display == "none",
    )
    publisher = Publisher(job.journal, job.root, config.dataset.repo_id, config.consents)
    with publisher, contextlib.ExitStack() as cleanup:
        stopped = cleanup.enter_context(stoppable())
        cast = cleanup.enter_context(_cast(job, keys, display != "none"))
        check_targets(cast.make_rig, job.quotas, job.root, job.journal)
        player = cleanup.enter_context(Player(config.play_sounds and display != "none"))
        book = LabelBook(job.journal, config.operator)
        cleanup.callback(book.close)
        console = Console(
            timing,
            keys,
            book,
            task=job.spec.task,
            play=player.play,
            hand_held=HELD.get(leads, ""),
            asks=display != "none",
        )
        console.safety = cast.safety
        _warm_up()
        publisher.before = book.flush
        session = _Session(job, cast, console, book, stopped, publisher)
        cleanup.callback(session.close)
        turn = cleanup.enter_context(_screen(display, console, cast))
        session.remember()
        cast.start()
        end = session.run(turn)
        cast.finish()
    return end, publisher.reports, stopped


@contextlib.contextmanager
def _cast(job: record.Job, keys: KeyMap, is_watched: bool) -> Iterator[Cast]:
    config = job.config
    hands = None
    if hasattr(config, "cartesian"):
        hands = _arms.Hands(config.cartesian, config.force)
    if config.robot.type == EMBEDDED:
        teleop = config.teleop if hands is not None else None
        make = functools.partial(record.embedded, config)
        with embedded_cast(make, teleop, hands) as cast:
            yield cast
        return
    from gaploop.scripts._record_arms import FPS

    options = ArmOptions(
        config.robot,
        config.teleop,
        job.station,
        config.station,
        config.dataset.fps or FPS,
        hands,
        is_watched,
        config.reconnect_s,
        keys.name(Command.CLEAR) or "Enter",
    )
    with arm_cast(options) as cast:
        yield cast


def _screen(
    display: str, console: Console, cast: Cast
) -> contextlib.AbstractContextManager[_record_screen.Turn]:
    if display == "window":
        return _record_screen.window(console, cast.eyes, cast.leader)
    if display == "terminal":
        return _record_screen.terminal(console, cast.leader)
    return _record_screen.nowhere(console, lambda line: log.info("%s", line))


def _warm_up() -> None:
    """Import now what suggesting needs: later it would hold up the control loop."""
    import gaploop.failure_analysis.diagnosis  # noqa: F401


class _Session:
    """Runs the session in a thread of its own."""

    def __init__(
        self,
        job: record.Job,
        cast: Cast,
        console: Console,
        book: LabelBook,
        stopped: list[int],
        publisher: Publisher,
    ) -> None:
        self._job, self._cast, self._console, self._book = job, cast, console, book
        self._stopped = stopped
        self._publisher = publisher
        self._suggester = Suggester(_suggest, console.suggested)
        if job.campaign is None:  # a campaign is counted from the journal, which takes a while
            console.on_label = self._count
        self._held = self._lacking = 0
        self._results: list[TakeResult] = []
        self._recovered = 0
        self._end: SessionEnd | None = None

    def remember(self) -> None:
        """Take note of what the journal holds already."""
        journal = self._job.journal
        for uid, outcome, said in known_takes(journal, REMEMBERED):
            self._console.remember(uid, outcome, said)
        spec = self._job.spec
        held = campaign_log.held(journal, spec.kind, self._job.quotas, resume=spec.resume)
        self._held = held.total()
        self._count()

    def run(self, turn: _record_screen.Turn) -> SessionEnd:
        """Record until everything is, or the operator stops.

        Raises:
            DeviceError: a device failed, or the journal can't be written.
        """
        attempt = Attempt()
        thread = threading.Thread(target=self._guarded, args=(attempt,), name="session")
        thread.start()
        try:
            while thread.is_alive():
                turn()
                if self._stopped and not self._console.left:
                    self._console.leave()
        finally:
            self._console.leave()
            thread.join()
        if attempt.error is not None:
            raise attempt.error
        if self._end is None:
            raise RuntimeError("the session ended without saying how")
        return self._end

    def close(self) -> None:
        """Give up what is still being worked out."""
        self._suggester.close()

    def _guarded(self, attempt: Attempt) -> None:
        with attempt:
            self._end = self._record()

    def _record(self) -> SessionEnd:
        job, console, cast = self._job, self._console, self._cast
        operator = Operator(
            console,
            cast.eyes,
            self._suggester,
            self._count,
            self._results.append,
            job.config.reconnect_s,
        )
        lost, headway = "", Headway()
        while True:
            try:
                if lost and not cast.find_again(lost, self._is_over):
                    break
                self._record_with(operator)
            except LostError as error:
                lost = str(error)
                if not console.asks:
                    headway.lost(lost, len(self._results))
                continue
            lost, is_filled = "", self._count()
            if console.left or (is_filled and not console.finish(lambda: not self._count())):
                break
        wanted = sum(quota.takes for quota in job.quotas)
        return SessionEnd(
            takes=tuple(replace(r, outcome=operator.outcome(r)) for r in self._results),
            counted=wanted - self._lacking,
            wanted=wanted,
            recovered=self._recovered,
            interrupted=bool(self._stopped) or self._lacking > 0,
        )

    def _record_with(self, operator: Operator) -> None:
        """Record what lacks, with the devices as they are connected now.

        Raises:
            LostError: one is gone.
        """
        job, cast, quotas = self._job, self._cast, self._job.quotas
        if self._results and job.campaign is None and not job.spec.resume:
            quotas = (replace(quotas[0], takes=self._lacking),)
        end = record_takes(
            job.spec,
            quotas,
            cast.make_rig,
            cast.make_leader,
            set_up=self._set_up,
            stop=self._is_over,
            publish=self._publisher.behind,
            attendant=operator,
        )
        self._recovered += end.recovered

    def _is_over(self) -> bool:
        return bool(self._stopped) or self._console.left

    def _set_up(self, quota: Quota, before: Quota | None) -> bool:
        job, grid = self._job, self._job.station.grid
        change = change_words(None if before is None else before.conditions, quota.conditions, grid)
        always = getattr(job.config.robot, "conditions", {})
        quota = replace(quota, conditions={**always, **quota.conditions})
        ask = job.config.robot.type != EMBEDDED and not job.config.yes
        ask = ask and bool(quota.conditions) and change != "nothing to change"
        there = SetUp(words(quota.conditions, grid), quota.conditions, grid, quota.takes)
        change = change[:1].upper() + change[1:]
        going = self._console.await_set_up(
            SetUp(change, quota.conditions, grid, quota.takes) if ask else there, ask=ask
        )
        self._console.show(there if quota.conditions else SetUp())
        return going

    def _count(self) -> bool:
        """Tell the console how far the quotas are filled; return whether they are."""
        job = self._job
        wanted = sum(quota.takes for quota in job.quotas)
        if job.campaign is None:
            counted = self._held + sum(
                campaign_log.counts(job.spec.kind, self._console.outcome(r.uid, r.outcome))
                for r in self._results
            )
            self._lacking = max(0, wanted - counted)
            self._console.tell(Quotas(counted, wanted))
            return not self._lacking
        self._book.flush()
        now = job.campaign.progress()
        bars = tuple(_bars(now.setups, job.station))
        self._lacking = now.wanted - now.have
        self._console.tell(Quotas(now.have, now.wanted, bars, now.left_s))
        return not self._lacking


def _bars(setups: Any, station: Station) -> Iterator[Bar]:
    """Yield a bar for every dimension, and one for each of its set-ups where it has several."""
    found: dict[str, list[Any]] = {}
    for setup in setups:
        found.setdefault(", ".join(setup.dimensions) or "takes", []).append(setup)
    for dimension, group in found.items():
        have = sum(min(s.have, s.wanted) for s in group)
        yield Bar(dimension.replace("_", " "), have, sum(s.wanted for s in group))
        for setup in group if len(group) > 1 else ():
            yield Bar(f"· {words(setup.conditions, station.grid)}", setup.have, setup.wanted)


def _suggest(take: Take) -> Mapping[str, object]:
    """Return what failure analysis says of a take, as if it had failed."""
    from gaploop.failure_analysis.diagnosis import diagnose, suggested_labels

    found = diagnose([replace(take, outcome=Outcome.FAILURE)]).takes
    return {event.field: event.value for event in suggested_labels(found[0])} if found else {}
