"""Takes one after another, each sealed before the next, until the quotas are filled."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gaploop.collect.journal import JournalWriter, recover, warm_up
from gaploop.collect.rig import Rig
from gaploop.collect.take import TakeResult, run_take
from gaploop.core import journal_format, labels
from gaploop.core.files import uuid7
from gaploop.core.plan import Plan
from gaploop.core.protocols import Leader
from gaploop.core.vocabulary import Outcome, TakeKind

__all__ = [
    "MakeLeader",
    "MakeRig",
    "Quota",
    "SessionEnd",
    "SessionSpec",
    "TakeResult",
    "plan_quotas",
    "record_takes",
    "run_take",
]

log = logging.getLogger(__name__)

ATTEMPTS_PER_TAKE: Final = 3
"""A quota is given up after this many attempts per take that it asks for."""


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
