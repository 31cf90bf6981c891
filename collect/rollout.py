"""Rollouts of a policy that a person can take over from: a session that no fault of a take ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gaploop.collect.intervention import SharedLeader
from gaploop.collect.policy_leader import Pace
from gaploop.collect.rig import Rig
from gaploop.collect.speed_ramp import SpeedRamp
from gaploop.collect.take import PATIENCE_S, Attendant, TakeResult, overcome, run_take
from gaploop.core.errors import DeviceError
from gaploop.core.protocols import Leader, TakeSink
from gaploop.core.types import Tick
from gaploop.core.vocabulary import Outcome

FAULTS_IN_A_ROW: Final = 3
"""A session ends after this many takes in a row in which the policy failed."""


@dataclass(frozen=True)
class RolloutNote:
    """What one rollout was like, beside its result.

    Attributes:
        uid: of the take.
        speed_scale: share of its speed at which the policy drove.
        interventions: how often the person took over.
        person_s: how long the person drove [s].
        fault: what ended it early, or "".
        pace: how long the policy took.
    """

    uid: str
    speed_scale: float
    interventions: int
    person_s: float
    fault: str = ""
    pace: Pace = field(default_factory=Pace)


@dataclass
class Verdict:
    """What the operator says while an attempt runs; set from the keys.

    Attributes:
        outcome: how it went, where the operator says so.
        over: why it is over, "" while it isn't.
    """

    outcome: Outcome | None = None
    over: str = ""

    def say(self, outcome: Outcome | None) -> None:
        """End the attempt."""
        self.outcome = outcome
        said = "" if outcome is None else f": {outcome.value}"
        self.over = f"the operator ended it{said}"


class _Watch:
    """A sink that counts who drives."""

    def __init__(self) -> None:
        self.person_turns = self.turns = 0
        self.duration_s = 0.0

    def tick(self, tick: Tick) -> None:
        """Look at one turn."""
        self.turns += 1
        self.duration_s = tick.t_s
        self.person_turns += tick.leader.intervention

    @property
    def person_s(self) -> float:
        """How long the person drove [s]."""
        return self.duration_s * self.person_turns / max(self.turns, 1)


@dataclass
class Rollouts(Attendant):
    """Looks after a session of rollouts.

    Every attempt is recorded whole, from the policy's first frame, so that what led up to a
    failure or an intervention is in it.

    Args:
        speed: how fast the policy may drive.
        poll: called every turn of a take, for keys; gets the leader and the operator's verdict.
        on_note: called after every take.
        ready: called before every take; False ends the session.
        patience_s: how long to wait for what is in a take's way [s].
        pause: waits so long [s] while something is in the way, and heeds keys meanwhile.
    """

    speed: SpeedRamp
    poll: Callable[[SharedLeader, Verdict], None] = lambda _leader, _verdict: None
    on_note: Callable[[RolloutNote, TakeResult], None] = lambda _note, _result: None
    ready: Callable[[], bool] = lambda: True
    patience_s: float = PATIENCE_S
    pause: Callable[[float], object] = time.sleep
    notes: dict[str, RolloutNote] = field(default_factory=dict)
    _faults: tuple[str, ...] = ()

    def begin(self, hurdle: Callable[[], str], stop: Callable[[], bool]) -> bool:
        """Wait until the next take may begin; False ends the session.

        Raises:
            DeviceError: the policy failed too often in a row, or something stays in the way.
        """
        if len(self._faults) >= FAULTS_IN_A_ROW:
            raise DeviceError(
                f"{len(self._faults)} takes in a row ended in a fault; the last one: "
                f"{self._faults[-1]}"
            )
        return self.ready() and overcome(hurdle, stop, self.patience_s, self.pause)

    def run(self, rig: Rig, leader: Leader, **given: Any) -> TakeResult:
        """Run one attempt, called as `run_take`.

        Raises:
            DeviceError: a device failed.
            TypeError: another leader than a `SharedLeader`.
        """
        if not isinstance(leader, SharedLeader):
            raise TypeError(f"rollouts are led by a SharedLeader, got {type(leader).__name__}")
        scale, watch, verdict = self.speed.scale, _Watch(), Verdict()
        given["writer"].event(0.0, "speed", scale=scale)
        given["max_s"] /= scale
        leader.begin(scale)
        try:
            result = run_take(
                replace(rig, judge=lambda: verdict.outcome or rig.judge()),
                leader,
                on_frame=(leader.observe,),
                sinks=(watch, *_sinks(given)),
                until_success=True,
                ended=lambda: self._ended(leader, verdict),
                **given,
            )
        finally:
            leader.rest()
        uid, times = given["writer"].header.info.uid, leader.interventions
        note = RolloutNote(uid, scale, times, watch.person_s, leader.fault, replace(leader.pace))
        self._told(note, result)
        return result

    def _ended(self, leader: SharedLeader, verdict: Verdict) -> str:
        self.poll(leader, verdict)
        if leader.fault:
            return f"the policy failed: {leader.fault}"
        return verdict.over

    def _told(self, note: RolloutNote, result: TakeResult) -> None:
        self.notes[note.uid] = note
        self.on_note(note, result)
        if result.outcome is Outcome.SUCCESS and not note.interventions:
            self.speed.succeeded()
        self._faults = (*self._faults, note.fault) if note.fault else ()


def _sinks(given: dict[str, Any]) -> Sequence[TakeSink]:
    return tuple(given.pop("sinks", ()))


def spans(flags: Sequence[bool]) -> list[tuple[int, int]]:
    """Return the stretches of frames in which the person drove, as [first, last + 1)."""
    found: list[tuple[int, int]] = []
    for place, on in enumerate(flags):
        if on and (not place or not flags[place - 1]):
            found.append((place, place + 1))
        elif on:
            found[-1] = (found[-1][0], place + 1)
    return found
