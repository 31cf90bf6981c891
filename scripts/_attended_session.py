"""An attended session's thread: it records what lacks, and finds again what was lost meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaploop.collect import campaign_log
from gaploop.collect.operator.attended import Operator, Supervisor
from gaploop.collect.operator.book import LabelBook, known_takes
from gaploop.collect.operator.console import OperatorConsole, Quotas
from gaploop.collect.operator.screen_content import QuotaBar, SetUp
from gaploop.collect.operator.suggesting import LabelSuggester
from gaploop.collect.session import SessionEnd, TakeResult, record_takes
from gaploop.collect.setup_words import change_words, words
from gaploop.core.errors import LostError, TrippedError
from gaploop.core.station import Station
from gaploop.core.take import Take
from gaploop.core.vocabulary import Outcome
from gaploop.scripts import _operator_screen
from gaploop.scripts._arms import EMBEDDED
from gaploop.scripts._campaign import Campaign
from gaploop.scripts._reconnect import LossCounter
from gaploop.scripts._record_publish import Publisher
from gaploop.scripts._rolling import Rolling
from gaploop.scripts._session_devices import SessionDevices
from gaploop.teleop.stopping import CleanupStep

if TYPE_CHECKING:
    from gaploop.collect.session import Quota, SessionSpec

REMEMBERED: int = 5
"""Takes of earlier sessions that can be labelled anew."""


@dataclass(frozen=True)
class AttendedJob:
    """What an attended session is to do.

    Attributes:
        config: the options.
        station: where it is recorded.
        root: the dataset.
        journal: the takes.
        quotas: what to record, in this order.
        spec: what the takes share.
        campaign: the plan that is followed, if any.
        rolling: the policy that drives and is taken over from, if any.
    """

    config: Any
    station: Station
    root: Path
    journal: Path
    quotas: tuple[Quota, ...]
    spec: SessionSpec
    campaign: Campaign | None = None
    rolling: Rolling | None = None


class AttendedSession:
    """Runs the session in a thread of its own."""

    def __init__(
        self,
        job: AttendedJob,
        cast: SessionDevices,
        console: OperatorConsole,
        book: LabelBook,
        stopped: list[int],
        publisher: Publisher,
    ) -> None:
        self._job, self._cast, self._console, self._book = job, cast, console, book
        self._stopped = stopped
        self._publisher = publisher
        self._suggester = LabelSuggester(_suggest, console.suggested)
        if job.campaign is None:  # a campaign is counted from the journal, which takes a while
            console.on_label = self._count
        self._held = self._lacking = 0
        self._results: list[TakeResult] = []
        self._recovered = self._reconnected = 0
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

    def run(self, turn: _operator_screen.Turn) -> SessionEnd:
        """Record until everything is, or the operator stops.

        Raises:
            DeviceError: a device failed, or the journal can't be written.
        """
        attempt = CleanupStep()
        thread = threading.Thread(target=self._guarded, args=(attempt,), name="session")
        thread.start()
        try:
            # To its end, which takes a while where takes are still sealed: until then the
            # operator sees that, and can stop the arm.
            while thread.is_alive():
                turn()
                if self._stopped and not self._console.left:
                    self._console.leave()
                if self._console.left:
                    self._cast.let_go()
        finally:
            self._console.leave()
            self._cast.let_go()
            thread.join()
        if attempt.error is not None:
            raise attempt.error
        if self._end is None:
            raise RuntimeError("the session ended without saying how")
        return self._end

    def close(self) -> None:
        """Give up what is still being worked out."""
        self._suggester.close()

    def _guarded(self, attempt: CleanupStep) -> None:
        with attempt:
            self._end = self._record()

    def _record(self) -> SessionEnd:
        job, console, cast = self._job, self._console, self._cast
        operator = self._operator()
        lost, trip, headway = "", "", LossCounter()
        while True:
            try:
                if lost and not cast.find_again(lost, self._is_over):
                    break
                self._reconnected += bool(lost)
                self._record_with(operator)
            except LostError as error:
                lost = str(error)
                if not console.asks:
                    headway.lost(lost, len(self._results))
                continue
            except TrippedError as error:  # it ends, but not without its summary
                trip = str(error)
                break
            lost, is_filled = "", self._count()
            if console.left or (is_filled and not console.finish(lambda: not self._count())):
                break
        self._recount()
        wanted = sum(quota.takes for quota in job.quotas)
        return SessionEnd(
            takes=tuple(replace(r, outcome=operator.outcome(r)) for r in self._results),
            counted=wanted - self._lacking,
            wanted=wanted,
            recovered=self._recovered,
            interrupted=bool(self._stopped) or self._lacking > 0,
            reconnected=self._reconnected,
            trip=trip,
        )

    def _operator(self) -> Operator:
        job, given = (
            self._job,
            (
                self._cast.eyes,
                self._suggester,
                self._recount,
                self._results.append,
                self._job.config.reconnect_s,
            ),
        )
        if job.rolling is None:
            return Operator(self._console, *given)
        return Supervisor(job.rolling.attempts, self._console, *given)

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
        had = {} if before is None else before.conditions
        by_hand = job.config.robot.type != EMBEDDED and not getattr(job.config, "yes", False)
        change = change_words(None if before is None else before.conditions, quota.conditions, grid)
        always = getattr(job.config.robot, "conditions", {})
        quota = replace(quota, conditions={**always, **quota.conditions})
        ask = by_hand and change != "nothing to change" and bool(quota.conditions or had)
        there = SetUp(words(quota.conditions, grid), quota.conditions, grid, quota.takes)
        change = change[:1].upper() + change[1:]
        going = self._console.await_set_up(
            SetUp(change, quota.conditions, grid, quota.takes) if ask else there, ask=ask
        )
        self._console.show(there if quota.conditions else SetUp())
        return going

    def _recount(self) -> None:
        """Count anew what labels say, of quotas and of a policy's successes; may take time."""
        self._count()
        if self._job.rolling is not None:
            outcomes = {r.uid: self._console.outcome(r.uid, r.outcome) for r in self._results}
            self._job.rolling.attempts.judged(outcomes)

    def _count(self) -> bool:
        """Tell the console how far the quotas are filled; return whether they are."""
        job = self._job
        wanted = sum(quota.takes for quota in job.quotas)
        if job.campaign is None:
            counted = self._held + sum(
                campaign_log.counts(
                    job.spec.kind,
                    self._console.outcome(r.uid, r.outcome),
                    self._console.taken_back(r.uid),
                )
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


def _bars(setups: Any, station: Station) -> Iterator[QuotaBar]:
    """Yield a bar for every dimension, and one for each of its set-ups where it has several."""
    found: dict[str, list[Any]] = {}
    for setup in setups:
        found.setdefault(", ".join(setup.dimensions) or "takes", []).append(setup)
    for dimension, group in found.items():
        have = sum(min(s.have, s.wanted) for s in group)
        yield QuotaBar(dimension.replace("_", " "), have, sum(s.wanted for s in group))
        for setup in group if len(group) > 1 else ():
            yield QuotaBar(f"· {words(setup.conditions, station.grid)}", setup.have, setup.wanted)


def _suggest(take: Take) -> Mapping[str, object]:
    """Return what failure analysis says of a take, as if it had failed."""
    from gaploop.failure_analysis.diagnosis import diagnose, suggested_labels

    found = diagnose([replace(take, outcome=Outcome.FAILURE)]).takes
    return {event.field: event.value for event in suggested_labels(found[0])} if found else {}
