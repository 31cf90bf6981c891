"""Rollouts of a policy that a person can take over from: attempts, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gaploop.collect.intervention import SharedLeader
from gaploop.collect.journal import JournalWriter
from gaploop.collect.policy_leader import Pace
from gaploop.collect.rig import Rig
from gaploop.collect.speed_ramp import SpeedRamp
from gaploop.collect.take import PATIENCE_S, Attendant, TakeResult, overcome, run_take
from gaploop.core.errors import DeviceError
from gaploop.core.protocols import Leader, TakeSink
from gaploop.core.types import Tick
from gaploop.core.vocabulary import Outcome

FAULTS_IN_A_ROW: Final = 3
"""A session that nobody watches ends after this many takes in a row in which the policy failed."""
WAITED_S: Final = 0.2
"""A policy that let the arm wait this long in an attempt is told of [s]."""

type Watched = Callable[[Rig, JournalWriter], Sequence[TakeSink]]


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

    def words(self, result: TakeResult) -> str:
        """Say in a line what the rollout was like."""
        words = [f"{result.duration_s:.1f} s ({result.reason})"]
        if result.outcome is not Outcome.UNLABELLED:  # else a person is about to say
            words[0] = f"{result.outcome.value} after {words[0]}"
        if self.interventions:
            words.append(f"taken over {self.interventions}x, {self.person_s:.1f} s")
        if self.speed_scale < 1:
            words.append(f"at {self.speed_scale:.0%} of its speed")
        if self.pace.waited_s >= WAITED_S:
            words.append(
                f"the arm waited {self.pace.waited_s:.1f} s for the policy (mean "
                f"{1e3 * self.pace.mean_s:.0f}, worst {1e3 * self.pace.worst_s:.0f} ms)"
            )
        return "; ".join(words)


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


class Attempts:
    """Runs attempts and keeps what they were like.

    Every attempt is recorded whole, from the policy's first frame, so that what led up to a
    failure or an intervention is in it.

    Args:
        speed: how fast the policy may drive.
        on_note: called after every take.
        watched: returns what watches an attempt that begins, given its rig and writer; asked only
            where the policy drives at full speed.
    """

    def __init__(
        self,
        speed: SpeedRamp,
        on_note: Callable[[RolloutNote, TakeResult], None] = lambda _note, _result: None,
        watched: Watched = lambda _rig, _writer: (),
    ) -> None:
        self.speed, self.on_note, self.watched = speed, on_note, watched
        self.notes: dict[str, RolloutNote] = {}
        """Take to what it was like."""
        self.running = False
        """An attempt is on."""
        self._watch = _Watch()
        self._faults: tuple[str, ...] = ()

    @property
    def person_s(self) -> float:
        """How long the person has driven in the last attempt [s]."""
        return self._watch.person_s

    def run(self, rig: Rig, leader: Leader, **given: Any) -> TakeResult:
        """Run one attempt, called as `run_take`.

        Raises:
            DeviceError: a device failed.
            TypeError: another leader than a `SharedLeader`.
        """
        if not isinstance(leader, SharedLeader):
            raise TypeError(f"rollouts are led by a SharedLeader, got {type(leader).__name__}")
        shared, scale, over = leader, self.speed.scale, given.pop("ended", lambda: "")
        watch = self._watch = _Watch()
        given["writer"].event(0.0, "speed", scale=scale)
        given["max_s"] /= scale
        watchers = self.watched(rig, given["writer"]) if scale == 1.0 else ()
        self.running = True
        shared.begin(scale)
        try:
            result = run_take(
                rig,
                shared,
                on_frame=(shared.observe,),
                sinks=(watch, *watchers, *given.pop("sinks", ())),
                until_success=True,
                ended=lambda: _failed(shared) or str(over()),
                **given,
            )
        finally:
            shared.rest()
            self.running = False
        uid, times = given["writer"].header.info.uid, shared.interventions
        note = RolloutNote(uid, scale, times, watch.person_s, shared.fault, replace(shared.pace))
        self.notes[uid] = note
        self._faults = (*self._faults, note.fault) if note.fault else ()
        self.on_note(note, result)
        return result

    def judged(self, outcomes: Mapping[str, Outcome]) -> None:
        """Count successes without help; a word that was taken back counts no more.

        Args:
            outcomes: take to the outcome that stands, of every take of the session.
        """
        alone = (uid for uid, note in self.notes.items() if not note.interventions)
        self.speed.succeeded({uid for uid in alone if outcomes.get(uid) is Outcome.SUCCESS})

    def require_policy(self) -> None:
        """See to it that the policy works.

        Raises:
            DeviceError: it failed too often in a row.
        """
        if len(self._faults) >= FAULTS_IN_A_ROW:
            raise DeviceError(
                f"{len(self._faults)} takes in a row ended in a fault; the last one: "
                f"{self._faults[-1]}"
            )


def _failed(leader: SharedLeader) -> str:
    return f"the policy failed: {leader.fault}" if leader.fault else ""


class Rollouts(Attendant):
    """Looks after a session of rollouts that nobody watches.

    Args:
        attempts: runs them.
        patience_s: how long to wait for what is in a take's way [s].
    """

    def __init__(self, attempts: Attempts, patience_s: float = PATIENCE_S) -> None:
        super().__init__(patience_s)
        self._attempts = attempts
        self._outcomes: dict[str, Outcome] = {}

    def begin(self, hurdle: Callable[[], str], stop: Callable[[], bool]) -> bool:
        """Wait until the next take may begin; False ends the session.

        Raises:
            DeviceError: the policy failed too often in a row, or something stays in the way.
        """
        self._attempts.require_policy()
        return overcome(hurdle, stop, self.patience_s)

    def run(self, rig: Rig, leader: Leader, **given: Any) -> TakeResult:
        """Run one attempt, called as `run_take`.

        Raises:
            DeviceError: a device failed.
        """
        result = self._attempts.run(rig, leader, **given)
        self._outcomes[result.uid] = result.outcome
        self._attempts.judged(self._outcomes)
        return result


def spans(flags: Sequence[bool]) -> list[tuple[int, int]]:
    """Return the stretches of frames in which the person drove, as [first, last + 1)."""
    found: list[tuple[int, int]] = []
    for place, on in enumerate(flags):
        if on and (not place or not flags[place - 1]):
            found.append((place, place + 1))
        elif on:
            found[-1] = (found[-1][0], place + 1)
    return found
