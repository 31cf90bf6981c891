"""Takes one after another, each sealed before the next, until the quotas are filled.

A take goes from here through `take` (runs, judges, seals it), `recorder` (a turn to a row),
`journal` and `streams` (rows to the disk) and `encoder` (pictures to videos).
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gaploop.collect.campaign import Quota, counts, held, still_missing
from gaploop.collect.encoder import Encoder
from gaploop.collect.journal import JournalWriter, no_room, warm_up
from gaploop.collect.recovery import recover
from gaploop.collect.rig import Rig
from gaploop.collect.take import Operator, TakeResult
from gaploop.core import journal_format
from gaploop.core.consent import Place, Use, refusal_at, refused
from gaploop.core.errors import DeviceError, LostError, UnusableInputError
from gaploop.core.files import uuid7
from gaploop.core.protocols import Leader
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import RANDOMISED, Outcome

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionEnd:
    """How a session went.

    Attributes:
        takes: sealed takes, oldest first.
        counted: takes that count towards the quotas, those that were there at the start included.
        recovered: unsealed takes that were there at the start and are marked `interrupted`.
        interrupted: the user stopped it.
        gave_up: a line for every quota that was given up.
        reconnected: how often lost devices were connected again.
        trip: the safety trip that ended it, where nobody was there to clear it.
        signals: numbers of the signals to stop that came.
        why: what ended driving without a record: quit, time, done, signal, trip, or lost where a
            device failed without a trip.
        failed: what failed where that ended it, or in stopping, in a line.
    """

    takes: tuple[TakeResult, ...] = ()
    counted: int = 0
    wanted: int = 0
    recovered: int = 0
    interrupted: bool = False
    gave_up: tuple[str, ...] = ()
    reconnected: int = 0
    trip: str = ""
    signals: tuple[int, ...] = ()
    why: str = ""
    failed: str = ""


type MakeRig = Callable[[Mapping[str, object]], Rig]
type MakeLeader = Callable[[Rig, int], Leader]
type SetUpNext = Callable[[Quota, Quota | None], bool]
"""Gets the next quota and the one set up before it; False ends the session."""


FAULTS_IN_A_ROW: Final = 3
"""A session ends when this many takes in a row couldn't be recorded."""


def other_cameras(journal: Path, cameras: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Say which cameras were others when the journal's newest take was recorded.

    `cameras` are those of a take's header now.
    """
    with contextlib.suppress(UnusableInputError):  # said where it is read for what it holds
        for folder in journal_format.take_folders(journal)[-1:]:
            for name, before in journal_format.read_header(folder).cameras.items():
                was, now = before.get("identity"), cameras.get(name, {}).get("identity")
                if was and now and was != now:
                    yield (
                        f"Camera {name} was {was} in the take before, and is {now} now. See that "
                        "it shows the same view, and calibrate it again where it has moved."
                    )


@dataclass(kw_only=True)
class _Takes:
    """The state of `record_takes`, whose arguments it has: takes, their seals and attempts."""

    journal: Path
    about: TakeInfo
    max_s: float
    seed: int
    publish_every: int
    make_leader: MakeLeader
    stop: Callable[[], bool]
    on_take: Callable[[TakeResult, bool], None]
    publish: Callable[[], None]
    operator: Operator

    def __post_init__(self) -> None:
        self.about = replace(self.about, session=uuid7())
        self.results: list[TakeResult] = []
        self.attempts = Counter[str]()
        """Set-up to how many attempts it has had."""
        self._encoder = Encoder()
        self._pool = ThreadPoolExecutor(1, "seal")
        self._pending: deque[TakeResult] = deque()
        """Takes that are over and whose seal isn't known yet, oldest first."""
        self._faults = self._unpublished = 0
        self._next_seed = self.seed + len(journal_format.take_folders(self.journal))

    def close(self) -> None:
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(self._encoder.close)
            self._pool.shutdown()

    def fill(self, rig: Rig, quota: Quota, missing: int, most: int) -> int:
        """Record until `missing` takes more count, the user stops, or `most` attempts are spent.

        Returns how many count. Attempts are counted per set-up: a plan comes back to each of them
        several times.
        """
        leader = self.make_leader(rig, self._next_seed)
        # Have the encoder chosen and running before somebody waits for the first take.
        if cameras := rig.header(self.about).cameras:
            self._encoder.start(self._encoder.named(cameras))
            for line in () if self.attempts else other_cameras(self.journal, cameras):
                log.warning("%s", line)
        first = len(self.results)

        def sealed() -> int:
            """Return how many takes that were recorded here count, of those sealed by now."""
            return sum(map(self._counts, self.results[first:]))

        def expected() -> int:
            """Return how many takes count, with those whose seal isn't known yet."""
            return sealed() + sum(map(self._counts, self._pending))

        while not self.stop():
            self._settle(len(self._pending))
            if expected() >= missing or self.attempts[quota.key] >= most:
                self._settle(0)  # a seal that failed means one take more
            if sealed() >= missing or self.attempts[quota.key] >= most:
                break
            if not self.operator.begin(lambda: rig.blocker() or no_room(self.journal), self.stop):
                break
            if expected() >= missing:
                continue  # a take was labelled anew while the next one was waited for
            self.attempts[quota.key] += 1
            result = self._take(rig, leader, quota)
            if result.outcome is not Outcome.INTERRUPTED:
                self._pending.append(result)
            is_due = self._unpublished + len(self._pending) >= self.publish_every
            self._settle(0 if is_due else 1)
        self._settle(0)
        return sealed()

    def _settle(self, keep: int) -> None:
        """Report takes that are sealed by now, oldest first; wait until at most `keep` aren't."""
        while self._pending:
            result = self._pending[0]
            if len(self._pending) <= keep and result.sealing and not result.sealing.done():
                return
            self._pending.popleft()
            try:
                if result.sealing is not None:
                    result.sealing.result()
            except DeviceError as error:
                self._failed(result, str(error))
                continue
            self._faults = 0
            result = replace(result, sealing=None)
            self.results.append(result)
            self.on_take(result, self._counts(result))
            self._unpublished += 1
            if self._unpublished >= self.publish_every:
                self.publish()
                self._unpublished = 0

    def _failed(self, result: TakeResult, why: str) -> None:
        """Take note of a take that couldn't be recorded; DeviceError where it was one too many."""
        log.warning("Take %s is interrupted: %s", result.uid, why)
        self._faults += 1
        if self._faults >= FAULTS_IN_A_ROW:
            raise DeviceError(
                f"{self._faults} takes in a row could not be recorded; the last one: {why}"
            )

    def _counts(self, result: TakeResult) -> bool:
        outcome, retracted = self.operator.outcome(result), self.operator.retracted(result)
        return counts(self.about.kind, outcome, retracted)

    def _take(self, rig: Rig, leader: Leader, quota: Quota) -> TakeResult:
        seed, self._next_seed = self._next_seed, self._next_seed + 1
        drawn = rig.drawn(seed)
        about = replace(
            self.about,
            plan=quota.plan,
            dimensions=dict(quota.dimensions),
            conditions={RANDOMISED: drawn} if drawn else {},
        )
        header = rig.header(about, leader)
        header = replace(header, cameras=self._encoder.named(header.cameras))
        # Asked for each take: people may have withdrawn their consent meanwhile.
        place = Place("journal", str(self.journal.absolute()))
        if reason := refusal_at(None, header.info, Use.RECORD, place):
            raise refused(reason, Use.RECORD, "This take")
        encoder, waits = self._encoder, not rig.is_real_time
        try:
            with JournalWriter(self.journal, header, encoder=encoder, waits=waits) as writer:
                result = self.operator.run(
                    rig,
                    leader,
                    seed=seed,
                    max_s=self.max_s,
                    writer=writer,
                    stop=self.stop,
                    sealer=self._pool,
                )
        except LostError:
            raise
        except DeviceError as error:
            result = TakeResult(header.info.uid, Outcome.INTERRUPTED, str(error), 0.0, 0)
        if result.outcome is Outcome.INTERRUPTED and not self.stop():
            self._failed(result, result.reason)
        return result


def record_takes(
    journal: Path,
    about: TakeInfo,
    quotas: Sequence[Quota],
    make_rig: MakeRig,
    make_leader: MakeLeader,
    *,
    max_s: float = 10.0,
    seed: int = 0,
    resume: bool = False,
    publish_every: int = 10,
    set_up: SetUpNext = lambda _quota, _before: True,
    stop: Callable[[], bool] = lambda: False,
    on_take: Callable[[TakeResult, bool], None] = lambda _result, _counts: None,
    publish: Callable[[], None] = lambda: None,
    operator: Operator | None = None,
) -> SessionEnd:
    """Record takes until every quota is filled.

    Each take is sealed while the next begins. A failed demonstration is kept, as a failure, and
    doesn't count. Takes left unsealed, by this session or one before, are recovered as
    `interrupted`. A take that can't be recorded ends, because the encoder died, the disk is full,
    a camera or another device failed; the session goes on with the next, until `FAULTS_IN_A_ROW`.

    Args:
        about: what all takes share, such as task, kind, policy, operator and consent.
        quotas: in this order; a quota of 0 is passed over. A set-up may come several times; takes
            that are there already are struck off its first quotas.
        make_rig: builds the rig for a quota's conditions; closed here.
        max_s: longest duration of a take [s].
        seed: scenes are drawn from it and the number of takes in the journal, so that a session
            that goes on doesn't repeat its scenes.
        resume: takes that the journal holds already count towards quotas without a plan item.
            Those of a plan item always do: its quota belongs to the campaign.
        set_up: called before a rig is made for conditions that differ from those before.
        stop: asked every turn; True interrupts the take and ends the session.
        on_take: called once a take is known to be sealed, at the latest after the next one; its
            second argument says whether it counts.
        publish: called every `publish_every` takes, so that a publication can begin; must not
            wait. What is left, the caller publishes afterwards, however the session ended.
        operator: looks after the session; nobody does unless given.

    Raises:
        UnusableInputError: the journal can't be written, or people take part without consent.
        LostError: a device is gone, and has to be connected anew.
        DeviceError: takes can't be recorded.
    """
    warm_up()
    recovered = len(recover(journal).recovered) if journal.exists() else 0
    have = held(journal, about.kind, quotas, resume=resume)
    operator = operator or Operator()
    session = _Takes(
        journal=journal,
        about=about,
        max_s=max_s,
        seed=seed,
        publish_every=publish_every,
        make_leader=make_leader,
        stop=stop,
        on_take=on_take,
        publish=publish,
        operator=operator,
    )
    missing = still_missing(quotas, have)
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(recover, journal)
        cleanup.callback(session.close)
        gave_up: list[str] = []
        most, done, before = Counter[str](), Counter[str](), None
        for quota, lacking in zip(quotas, missing, strict=True):
            most[quota.key] += operator.attempts_per_take * lacking
        for quota, lacking in zip(quotas, missing, strict=True):
            if not lacking or stop() or session.attempts[quota.key] >= most[quota.key]:
                continue
            if not set_up(quota, before):
                break
            before = quota
            with contextlib.closing(make_rig(quota.conditions)) as rig:
                done[quota.key] += session.fill(rig, quota, lacking, most[quota.key])
            wanted = most[quota.key] // operator.attempts_per_take
            if session.attempts[quota.key] == most[quota.key] and done[quota.key] < wanted:
                name = f"plan item '{quota.plan}'" if quota.plan else "the takes"
                gave_up.append(
                    f"Gave up on {name}: {most[quota.key]} attempts gave {done[quota.key]} of "
                    f"{wanted} takes. Ease the conditions or lower the quota."
                )
    wanted = sum(quota.takes for quota in quotas)
    counted = wanted - sum(missing) + done.total()
    takes = tuple(replace(take, outcome=operator.outcome(take)) for take in session.results)
    return SessionEnd(takes, counted, wanted, recovered, stop(), tuple(gave_up))
