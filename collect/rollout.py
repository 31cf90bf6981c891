"""Rollouts of a policy that a person can take over from: attempts, and what came of them.

A policy that an arm is new to drives slowly, and faster with every success that it has by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.collect.intervention import Driver, OnStall, SharedLeader
from gaploop.collect.journal import JournalWriter
from gaploop.collect.policy_leader import Pace, PolicyLeader, checked_speed
from gaploop.collect.rig import Rig
from gaploop.collect.take import FAULTS_IN_A_ROW, TakeResult, run_take
from gaploop.core import journal_format, labels
from gaploop.core.errors import DeviceError, GaploopError, UnusableInputError
from gaploop.core.files import read_json, write_atomically, write_json
from gaploop.core.labels import LabelEvent
from gaploop.core.messages import FloatArray, Tick
from gaploop.core.protocols import CameraSource, Follower, Leader, Policy, SceneTracker, TakeSink
from gaploop.core.station import Station
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.sim.catalogue import arm_of
from gaploop.sim.tracker import Tracker
from gaploop.teleop.loop import Rates
from gaploop.teleop.stopping import one_line

if TYPE_CHECKING:
    from gaploop.collect.resetting import Resetter

log = logging.getLogger(__name__)

WAITED_S: Final = 0.2
"""A policy that let the arm wait this long in an attempt is told of [s]."""

type Watched = Callable[[Rig, JournalWriter], Sequence[TakeSink]]


@dataclass(frozen=True)
class RolloutNote:
    """What one rollout was like, beside its result; `person_s` is how long the person drove [s]."""

    uid: str
    speed_scale: float
    interventions: int
    person_s: float
    fault: str = ""
    pace: Pace = field(default_factory=Pace)
    reason: str = ""

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
    def __init__(self) -> None:
        self.person_turns = self.turns = 0
        self.duration_s = 0.0

    def tick(self, tick: Tick) -> None:
        self.turns += 1
        self.duration_s = tick.t_s
        self.person_turns += tick.leader.intervention

    @property
    def person_s(self) -> float:
        return self.duration_s * self.person_turns / max(self.turns, 1)


class Attempts:
    """Runs attempts and keeps what they were like.

    Every attempt is recorded whole, from the policy's first frame, so that what led up to a
    failure or an intervention is in it.

    Args:
        watched: returns what watches an attempt that begins, given its rig and writer; asked only
            where the policy drives at full speed.
        blocker: why the policy can't drive now, such as a link that is lost; "" where it can.
    """

    def __init__(
        self,
        speed: SpeedRamp,
        on_note: Callable[[RolloutNote, TakeResult], None] = lambda _note, _result: None,
        watched: Watched = lambda _rig, _writer: (),
        blocker: Callable[[], str] = lambda: "",
    ) -> None:
        self.speed, self.on_note, self.watched = speed, on_note, watched
        self.blocker = blocker
        self.choose: Callable[[], str] = lambda: ""
        """Says before each episode which policy drives it, by its id; "" where there is one
        only."""
        self.resetter: Resetter | None = None
        """Puts the scene back before each attempt; None where a person does."""
        self.detector: Callable[[Path], LabelEvent] | None = None
        """Says by the last pictures in a sealed take's folder whether it succeeded; None where
        nothing can."""
        self.detected: dict[str, Outcome] = {}
        """Take to what the detector said."""
        self.outcomes: dict[str, Outcome] = {}
        """Take to the outcome that stands."""
        self.notes: dict[str, RolloutNote] = {}
        """Take to what it was like."""
        self.won: tuple[str, ...] = ()
        """Those that succeeded without help, in order."""
        self.running = False
        """An attempt is on."""
        self._watch = _Watch()
        self._faults: tuple[str, ...] = ()

    @property
    def person_s(self) -> float:
        """How long the person has driven in the last attempt [s]."""
        return self._watch.person_s

    def run(self, rig: Rig, leader: Leader, **given: Any) -> TakeResult:
        """Run one attempt of a `SharedLeader`, called as `run_take`; TypeError for any other."""
        if not isinstance(leader, SharedLeader):
            raise TypeError(f"rollouts are led by a SharedLeader, got {type(leader).__name__}")
        shared, scale, over = leader, self.speed.scale, given.pop("ended", lambda: "")

        def ended() -> str:
            if shared.fault and not shared.is_lost:
                return f"the policy failed: {shared.fault}"
            return "" if shared.is_lost else str(over())

        watch = self._watch = _Watch()
        given["writer"].event(0.0, "speed", scale=scale)
        if self.resetter is not None and self.resetter.resets:
            given["writer"].event(0.0, "reset", **asdict(self.resetter.resets[-1]))
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
                ended=ended,
                cut_off=lambda: shared.fault if shared.is_lost else "",
                **given,
            )
        finally:
            shared.rest()
            self.running = False
        uid, times = given["writer"].header.info.uid, shared.interventions
        pace = replace(shared.pace)
        note = RolloutNote(uid, scale, times, watch.person_s, shared.fault, pace, result.reason)
        self.notes[uid] = note
        self._faults = (*self._faults, note.fault) if note.fault else ()
        if result.uid and result.outcome is not Outcome.INTERRUPTED:
            folder, stop = given["writer"].folder, given.get("stop", lambda: False)
            if self.resetter is not None and (shown := self.resetter.look_after(rig, shared, stop)):
                write_atomically(journal_format.after_path(folder, shown[0]), shown[1])
            if result.outcome is Outcome.UNLABELLED:
                self._detect(folder)
        self.on_note(note, replace(result, outcome=self.detected.get(uid, result.outcome)))
        return result

    def _detect(self, folder: Path) -> None:
        """Write down what the detector says of a sealed take, where there is one."""
        if self.detector is None:
            return
        try:
            said = self.detector(folder)
            labels.append(folder.parent / journal_format.LABELS, said)
            self.detected[said.uid] = Outcome(said.value)
        except (GaploopError, OSError) as error:
            log.warning("Success can't be told: %s", one_line(error))

    def judged(self, outcomes: Mapping[str, Outcome]) -> None:
        """Count successes without help, given the outcome that stands of every take of the session.

        A word that was taken back counts no more.
        """
        self.outcomes = dict(outcomes)
        alone = (uid for uid, note in self.notes.items() if not note.interventions)
        self.won = tuple(uid for uid in alone if outcomes.get(uid) is Outcome.SUCCESS)
        self.speed.succeeded(self.won)

    def require_policy(self) -> None:
        """Raise DeviceError where the policy failed too often in a row."""
        if len(self._faults) >= FAULTS_IN_A_ROW:
            raise DeviceError(
                f"{len(self._faults)} episodes in a row ended in a fault; the last one: "
                f"{self._faults[-1]}"
            )


FIRST: Final = 0.1
"""Share of its speed at which a policy begins."""
SUCCESSES: Final = 20
"""Successes after which it drives at full speed."""
SOFT_UNTIL: Final = 3
"""Successes until which objects are better soft: what a new policy presses on then gives way."""
SOFT: Final = "begin with a soft object, such as foam"
FILE: Final = "speeds.json"
"""In the journal's folder: policy id to successes that it has had by itself."""
_SCHEMA: Final = "gaploop.speeds.v1"


class SpeedRamp:
    """Speeds a policy up with every success that it has by itself; kept with the journal.

    Another policy, or one trained on, begins anew; nothing is counted where the speed is `fixed`.

    Raises:
        UnusableInputError: a speed that isn't above 0 and up to 1, or a damaged file.
    """

    def __init__(self, journal: Path, policy: str, fixed: float | None = None) -> None:
        if fixed is not None:
            checked_speed(fixed)
        self._file, self._policy, self._fixed = journal / FILE, policy, fixed
        self._counts = _read(self._file)
        self._before = self._counts.get(policy, 0)
        self._takes: frozenset[str] = frozenset()

    @property
    def scale(self) -> float:
        """Share of its speed at which the policy may drive now, above 0 and up to 1."""
        if self._fixed is not None:
            return self._fixed
        return FIRST + (1.0 - FIRST) * min(self._done / SUCCESSES, 1.0)

    @property
    def successes(self) -> int | None:
        """Successes without help so far, up to `SUCCESSES`; None where the speed is fixed."""
        return None if self._fixed is not None else min(self._done, SUCCESSES)

    @property
    def _done(self) -> int:
        return self._before + len(self._takes)

    def succeeded(self, takes: Collection[str]) -> None:
        """Count the takes of this session that succeeded without help, all of them each time."""
        if self._fixed is not None or self._takes == frozenset(takes):
            return
        self._takes = frozenset(takes)
        self._counts[self._policy] = self._done
        try:
            write_json(self._file, {"schema": _SCHEMA, "successes": self._counts})
        except OSError as error:  # such as a full disk: it counts on, and is written with the next
            log.warning("The policy's successes can't be written (%s).", one_line(error))


def _read(file: Path) -> dict[str, int]:
    if not file.exists():
        return {}
    said = read_json(file)
    counts = said.get("successes") if isinstance(said, dict) else None
    if not isinstance(counts, dict) or not all(isinstance(n, int) for n in counts.values()):
        raise UnusableInputError(
            f"{file} doesn't show how often each policy succeeded. Delete it: every policy then "
            f"begins at {FIRST:.0%} of its speed."
        )
    return dict(counts)


@dataclass(frozen=True)
class Driven:
    """Who drives in a rollout, how fast the policy may, and what the person did in the attempt.

    Attributes:
        can_switch: a person can take over, or drives and can hand back.
        successes: its successes without help so far, of those that make it as fast as it is; None
            where the speed is fixed.
    """

    driver: Driver = Driver.NOBODY
    can_switch: bool = False
    speed_scale: float = 1.0
    successes: int | None = None
    interventions: int = 0
    person_s: float = 0.0


class RolloutDriver:
    """Drives a session's arm by a policy, over all its connections; a person can take over.

    Args:
        make_policy_leader: makes it a leader, from the follower, its frame and control rate [Hz].
        stall: when the person takes over and hands back unasked, for a follower and a rate [Hz].
        drives_between: the arm is driven between attempts, too.
    """

    def __init__(
        self,
        policy: Policy,
        make_policy_leader: Callable[[Policy, Follower, float, float], PolicyLeader],
        attempts: Attempts,
        stall: Callable[[Follower, float], OnStall | None],
        *,
        has_person: bool,
        drives_between: bool,
    ) -> None:
        self.policy, self.attempts, self.has_person = policy, attempts, has_person
        self._make, self._stall, self._drives_between = make_policy_leader, stall, drives_between
        self._leader: SharedLeader | None = None

    def leader(
        self,
        follower: Follower,
        rates: Rates,
        sent_rad: Callable[[], FloatArray],
        person: Leader | None,
    ) -> SharedLeader:
        """Return who drives an arm, as `devices.SharedDriver`: the policy, and the person."""
        policy = self._make(self.policy, follower, rates.fps, rates.control_hz)
        if self._leader is None and (runs := getattr(self.policy, "runs", "")):
            log.info("The policy runs on %s.", runs)
        stall = self._stall(follower, rates.fps)
        self._leader = SharedLeader(policy, person if self.has_person else None, sent_rad, stall)
        return self._leader

    def switch(self) -> None:
        """Take over, or hand back, where that is possible now."""
        if self._leader is not None and self.has_person and self._is_driven:
            self._leader.toggle()

    @property
    def _is_driven(self) -> bool:
        return self.attempts.running or self._drives_between

    def driven(self) -> Driven:
        """Return what the operator sees of it."""
        leader, attempts = self._leader, self.attempts
        return Driven(
            leader.driver if leader is not None and self._is_driven else Driver.NOBODY,
            self.has_person and self._is_driven,
            attempts.speed.scale,
            attempts.speed.successes,
            leader.interventions if leader is not None else 0,
            attempts.person_s,
        )

    def tracker(self, cameras: Sequence[CameraSource], station: Station) -> SceneTracker | None:
        """Return what reads the scene from the first camera for a policy that needs it.

        Raises UnusableInputError where nothing can.
        """
        if not getattr(self.policy, "needs_scene", False):
            return None
        if station.domain is Domain.REAL:
            raise UnusableInputError(
                "The policy needs the tracked scene, and the tracker knows the embedded cell's "
                "camera only. Train one on what the arm records, or use the embedded or an "
                "emulated cell."
            )
        if not cameras:
            raise UnusableInputError(
                "The policy needs the tracked scene, and there is no camera. Give the robot the "
                "cell's overhead camera: gaploop emulate --cameras, then --robot.cameras."
            )
        height, width = cameras[0].frame().image.shape[:2]
        if height != width:
            raise UnusableInputError(
                f"The tracker needs the cell's square pictures; camera {cameras[0].name} gives "
                f"{width} x {height}."
            )
        arm = arm_of(getattr(self.policy, "robot_type", ""))
        return Tracker.nominal(width, arm=arm, scene=station.scene)
