"""Takes one after another: set up, run, judge, seal, publish, until the quotas are filled."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gaploop.collect.journal import JournalWriter, recover, warm_up
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.recorder import Recorder
from gaploop.collect.rig import Rig
from gaploop.core import journal_format, labels
from gaploop.core.files import uuid7
from gaploop.core.plan import Plan
from gaploop.core.protocols import Leader, TakeSink
from gaploop.core.types import SafetyReason, Tick
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.teleop.loop import EndReason, LoopEnd, OnFrame, run_loop

log = logging.getLogger(__name__)

SUCCESS_HELD_S: Final = 0.3
"""A rollout ends once success has held this long [s]: long enough for a thing to fall over."""
TRIP_SHOWN_S: Final = 0.5
"""A take goes on this long [s] after a safety trip, so that the record shows what came of it."""
ATTEMPTS_PER_TAKE: Final = 3
"""A quota is given up after this many attempts per take that it asks for."""


@dataclass(frozen=True)
class TakeResult:
    """How one take went.

    Attributes:
        uid: the take's uid; "" where nothing was recorded.
        outcome: `unlabelled` where only a person can tell, `interrupted` where it wasn't sealed.
        reason: why it ended, in words.
        duration_s: length on the loop's clock [s].
        frames: policy frames.
    """

    uid: str
    outcome: Outcome
    reason: str
    duration_s: float
    frames: int


class _Watch:
    """A sink that says when a take may end early."""

    def __init__(self, rig: Rig, until_success: bool) -> None:
        self._judge = rig.judge if until_success else None
        self._success_since_s: float | None = None
        self._tripped_since_s: float | None = None
        self.over = ""

    def tick(self, tick: Tick) -> None:
        if self._judge is not None and tick.policy_frame:
            success = self._judge() is Outcome.SUCCESS
            self._success_since_s = _since(self._success_since_s, success, tick.t_s)
            if _held(self._success_since_s, tick.t_s, SUCCESS_HELD_S):
                self.over = "success held"
        tripped = bool(tick.command.reasons & SafetyReason.TRIPPED)
        self._tripped_since_s = _since(self._tripped_since_s, tripped, tick.t_s)
        if _held(self._tripped_since_s, tick.t_s, TRIP_SHOWN_S):
            self.over = "safety trip"


def _since(since_s: float | None, is_so: bool, now_s: float) -> float | None:
    if not is_so:
        return None
    return now_s if since_s is None else since_s


def _held(since_s: float | None, now_s: float, long_s: float) -> bool:
    return since_s is not None and now_s - since_s >= long_s - 1e-9


def run_take(
    rig: Rig,
    leader: Leader,
    *,
    seed: int,
    max_s: float,
    writer: JournalWriter | None = None,
    on_frame: Iterable[OnFrame] = (),
    sinks: Iterable[TakeSink] = (),
    stop: Callable[[], bool] = lambda: False,
    until_success: bool | None = None,
) -> TakeResult:
    """Run one take from a fresh scene and, with a writer, record and seal it.

    It ends when the leader is done, success has held for `SUCCESS_HELD_S`, the safety filter
    tripped, `max_s` passed, or `stop` says so. Stopped, or with a recorder that failed, the take
    is `interrupted` and stays unsealed.

    Args:
        rig: the arm in its cell; reset here.
        leader: who drives; reset here, after the rig. A `PolicyLeader` gets the observations.
        seed: sets up the scene.
        max_s: longest duration [s].
        writer: the open take, left open (and unsealed) by an exception.
        on_frame: called with the observation of every policy frame.
        sinks: further subscribers of the loop.
        stop: asked every turn; True interrupts the take.
        until_success: end on success; by default only for policies, which don't say "done".

    Raises:
        DeviceError: a device failed.
    """
    rig.reset(seed)
    leader.reset()
    is_policy = isinstance(leader, PolicyLeader)
    watch = _Watch(rig, is_policy if until_success is None else until_success)
    recorder = Recorder(writer, rig.follower, rig.clock.now_s()) if writer else None
    subscribers = (*((recorder,) if recorder else ()), watch, *sinks)
    callbacks = (*((leader.observe,) if isinstance(leader, PolicyLeader) else ()), *on_frame)
    end = run_loop(
        rig.follower,
        leader,
        rig.safety,
        rig.clock,
        rig.rates,
        max_s=max_s,
        cameras=rig.cameras,
        tracker=rig.tracker,
        sinks=subscribers,
        on_frame=callbacks,
        stop=lambda: bool(watch.over) or stop(),
    )
    outcome, reason = _verdict(rig, end, watch.over)
    if writer is not None and outcome is not Outcome.INTERRUPTED:
        _seal(rig, writer, outcome, reason)
    uid = writer.header.info.uid if writer is not None else ""
    return TakeResult(uid, outcome, reason, end.duration_s, end.frames)


def _verdict(rig: Rig, end: LoopEnd, over: str) -> tuple[Outcome, str]:
    """Return how the take ended and why; `over` is the early end's reason, if any."""
    lost = [fault for fault in end.faults if fault.startswith(Recorder.__name__)]
    if lost:
        return Outcome.INTERRUPTED, f"recording failed: {lost[0]}"
    if end.reason is EndReason.STOPPED and not over:
        return Outcome.INTERRUPTED, "stopped by the user"
    if end.tripped:
        return Outcome.FAILURE, f"safety trip: {end.tripped.name}"
    judged = rig.judge()
    reasons = {EndReason.DONE: "the leader was done", EndReason.TIME: "time ran out"}
    reason = over or reasons.get(end.reason, end.reason.value)
    return (Outcome.UNLABELLED if judged is None else judged), reason


def _seal(rig: Rig, writer: JournalWriter, outcome: Outcome, reason: str) -> None:
    truth = rig.truth()
    if truth is not None:
        folder, uid = writer.folder.parent, writer.header.info.uid
        journal_format.append_truth(folder, uid, truth)
    writer.seal(outcome, reason)


@dataclass(frozen=True)
class Quota:
    """How many takes to record under which conditions.

    Attributes:
        takes: takes that count; failed demonstrations don't.
        plan: id of the plan item, or "".
        dimensions: purpose of the takes, dimension to weight.
        conditions: what to set up.
    """

    takes: int
    plan: str = ""
    dimensions: Mapping[str, float] = field(default_factory=dict)
    conditions: Mapping[str, object] = field(default_factory=dict)


def plan_quotas(plan: Plan) -> list[Quota]:
    """Return what a plan asks to be recorded; its other remedies are done instead."""
    return [
        Quota(item.takes, item.id, {item.dimension.value: 1.0}, item.conditions)
        for item in plan.items
        if item.takes
    ]


@dataclass(frozen=True)
class SessionSpec:
    """What all takes of a session share.

    Attributes:
        journal: the folder of takes.
        task: the instruction, in words.
        kind: what the takes are for.
        max_s: longest duration of a take [s].
        seed: scenes are drawn from it and the number of takes in the journal, so that a
            session that goes on doesn't repeat its scenes.
        operator: who records.
        policy: id of the policy that drives, or "".
        resume: takes that the journal holds already count towards quotas without a plan item.
            Those of a plan item always do: its quota belongs to the campaign.
        publish_every: takes between two publications.
    """

    journal: Path
    task: str
    kind: TakeKind = TakeKind.DEMONSTRATION
    max_s: float = 10.0
    seed: int = 0
    operator: str = ""
    policy: str = ""
    resume: bool = False
    publish_every: int = 10


@dataclass(frozen=True)
class SessionEnd:
    """How a session went.

    Attributes:
        takes: sealed takes, oldest first.
        counted: takes that count towards the quotas, those found at the start included.
        wanted: what the quotas ask for.
        recovered: unsealed takes that were found at the start and marked `interrupted`.
        interrupted: the user stopped it.
        gave_up: a line for every quota that was given up.
    """

    takes: tuple[TakeResult, ...]
    counted: int
    wanted: int
    recovered: int
    interrupted: bool
    gave_up: tuple[str, ...] = ()


type MakeRig = Callable[[Mapping[str, object]], Rig]
type MakeLeader = Callable[[Rig, int], Leader]


class _Session:
    """The state of `record_takes`."""

    def __init__(
        self,
        spec: SessionSpec,
        make_leader: MakeLeader,
        stop: Callable[[], bool],
        on_take: Callable[[TakeResult, bool], None],
        publish: Callable[[], None],
    ) -> None:
        self.spec, self.make_leader, self.stop = spec, make_leader, stop
        self.on_take, self.publish = on_take, publish
        self.session = uuid7()
        self.results: list[TakeResult] = []
        self.gave_up: list[str] = []
        self._unpublished = 0
        self._next_seed = spec.seed + len(journal_format.take_folders(spec.journal))

    def fill(self, rig: Rig, quota: Quota, have: int) -> int:
        """Record until `quota` is filled, the user stops, or it is given up."""
        leader = self.make_leader(rig, self._next_seed)
        missing, attempts = quota.takes - have, 0
        limit = ATTEMPTS_PER_TAKE * missing
        while missing > 0 and not self.stop():
            if attempts == limit:
                name = f"plan item '{quota.plan}'" if quota.plan else "the takes"
                self.gave_up.append(
                    f"Gave up on {name}: {attempts} attempts gave {quota.takes - have - missing} "
                    f"of {quota.takes - have} takes. Ease the conditions or lower the quota."
                )
                break
            attempts += 1
            result = self._take(rig, leader, quota)
            if result.outcome is Outcome.INTERRUPTED:
                continue
            counts = _counts(self.spec.kind, result.outcome)
            missing -= counts
            self.results.append(result)
            self.on_take(result, counts)
            self._publish_if_due()
        return quota.takes - missing

    def _take(self, rig: Rig, leader: Leader, quota: Quota) -> TakeResult:
        seed, self._next_seed = self._next_seed, self._next_seed + 1
        header = rig.header(
            self.spec.task,
            kind=self.spec.kind,
            dimensions=quota.dimensions,
            plan=quota.plan,
            policy=self.spec.policy,
            session=self.session,
            operator=self.spec.operator,
        )
        with JournalWriter(self.spec.journal, header) as writer:
            result = run_take(
                rig, leader, seed=seed, max_s=self.spec.max_s, writer=writer, stop=self.stop
            )
        if result.outcome is Outcome.INTERRUPTED:
            log.warning("take %s is not sealed: %s", result.uid, result.reason)
        return result

    def _publish_if_due(self) -> None:
        self._unpublished += 1
        if self._unpublished >= self.spec.publish_every:
            self.publish()
            self._unpublished = 0


def record_takes(
    spec: SessionSpec,
    quotas: Sequence[Quota],
    make_rig: MakeRig,
    make_leader: MakeLeader,
    *,
    stop: Callable[[], bool] = lambda: False,
    on_take: Callable[[TakeResult, bool], None] = lambda _result, _counts: None,
    publish: Callable[[], None] = lambda: None,
) -> SessionEnd:
    """Record takes until every quota is filled.

    Each take is sealed before the next begins. A failed demonstration is kept, as a failure,
    and doesn't count. Takes left unsealed, by this session or one before, are marked
    `interrupted` in the journal's labels.

    Args:
        spec: what all takes share.
        quotas: what to record; a quota of 0 is passed over.
        make_rig: builds the rig for a quota's conditions; closed here.
        make_leader: builds who drives, from the rig and a seed.
        stop: asked every turn; True interrupts the take and ends the session.
        on_take: called after every sealed take; its second argument says whether it counts.
        publish: called every `publish_every` takes and at the end, however the session ends.

    Raises:
        UnusableInputError: the journal can't be written.
        DeviceError: a device failed; what was sealed is published before this is raised.
    """
    warm_up()
    recovered = len(recover(spec.journal)) if spec.journal.exists() else 0
    have = _held_already(spec)
    session = _Session(spec, make_leader, stop, on_take, publish)
    counted = 0
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(publish)
        cleanup.callback(recover, spec.journal)
        for quota in quotas:
            held = min(have.get(quota.plan, 0), quota.takes)
            if held < quota.takes and not stop():
                with contextlib.closing(make_rig(quota.conditions)) as rig:
                    held = session.fill(rig, quota, held)
            counted += held
    wanted = sum(quota.takes for quota in quotas)
    return SessionEnd(
        tuple(session.results), counted, wanted, recovered, stop(), tuple(session.gave_up)
    )


def _counts(kind: TakeKind, outcome: Outcome) -> bool:
    """Say whether a sealed take counts: a rollout always, a demonstration unless it failed."""
    if outcome in (Outcome.DISCARDED, Outcome.INTERRUPTED):
        return False
    return kind is not TakeKind.DEMONSTRATION or outcome is not Outcome.FAILURE


def _held_already(spec: SessionSpec) -> dict[str, int]:
    """Return plan item to the number of takes in the journal that count towards it."""
    if not spec.journal.exists():
        return {}
    said = labels.current(labels.read(spec.journal / journal_format.LABELS))
    held: dict[str, int] = {}
    for folder in journal_format.take_folders(spec.journal):
        info, end = journal_format.read_header(folder).info, journal_format.read_end(folder)
        if end is None or info.kind is not spec.kind or (not info.plan and not spec.resume):
            continue
        outcome = Outcome(said.get(info.uid, {}).get("outcome", end.outcome))
        if _counts(spec.kind, outcome):
            held[info.plan] = held.get(info.plan, 0) + 1
    return held
