"""Takes: each set up, run, judged and sealed, one after another until the quotas are filled.

A take goes from here through `journal` and `streams` (a turn to a row, rows to the disk) and
`encoder` (pictures to videos).
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.collect.campaign import Quota, counts, held, still_missing
from gaploop.collect.encoder import Encoder
from gaploop.collect.journal import JournalWriter, Recorder, no_room, warm_up
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.recovery import recover
from gaploop.collect.rig import Rig
from gaploop.core import journal_format
from gaploop.core.consent import Place, Use, refusal_at, refused
from gaploop.core.errors import DeviceError, GaploopError, LostError, UnusableInputError
from gaploop.core.files import uuid7
from gaploop.core.messages import REBOOTED, FloatArray, Observation, SafetyReason, Tick
from gaploop.core.protocols import CountedCamera, Leader, TakeSink
from gaploop.core.take import SUCCESS_HELD_S, TakeInfo
from gaploop.core.vocabulary import INSTRUCTION, RANDOMISED, Outcome
from gaploop.teleop.checks.cameras import FROZEN_RAD, FROZEN_S, MEASURE_S, too_slow
from gaploop.teleop.loop import EndReason, LoopEnd, OnFrame, Turns
from gaploop.teleop.stopping import CleanupStep, one_line
from gaploop.teleop.trips import GONE, SUPPLY, errors_of, say_reasons, say_to_do

if TYPE_CHECKING:
    from gaploop.collect.rollout import Attempts

log = logging.getLogger(__name__)

TRIP_SHOWN_S: Final = 0.5
"""An episode goes on this long [s] after a safety trip, so that the record shows what came of
it."""
TIME_RAN_OUT: Final = "time ran out"
"""Why an episode ended that nothing else ended."""
STALE_CAMERA_S: Final = 0.5
"""An episode ends where a picture is older than this [s]: what it records isn't what was there."""
PATIENCE_S: Final = 60.0
"""Where nobody watches, what is in a take's way is waited for this long [s]."""
CALLS: Final = "A person is needed"
HELP: Final = "Put the object where the camera sees it and the arm reaches it, then keep clear."
PERSON_S: Final = 1800.0
"""How long a person who is called has to come, where nobody watches [s]."""
LOOK_S: Final = 0.05
"""… and looked at this often [s]."""
_NO_DIGITS: Final = str.maketrans("", "", "0123456789")


@dataclass(frozen=True)
class TakeResult:
    """How one take went.

    Attributes:
        uid: "" where nothing was recorded.
        outcome: `unlabelled` where only a person can tell, `interrupted` where it wasn't sealed.
        duration_s: on the loop's clock [s].
        dropped: pictures that the encoder couldn't take.
        doubts: what is wrong with pictures that were recorded all the same, a line for each camera.
    """

    uid: str
    outcome: Outcome
    reason: str
    duration_s: float
    frames: int
    dropped: int = 0
    doubts: tuple[str, ...] = ()


class _Watch:
    """A sink that says when a take may end early."""

    def __init__(self, rig: Rig, until_success: bool) -> None:
        self._judge = rig.judge if until_success else None
        self._since_s: dict[str, float] = {}
        self.over = self.stale = ""
        self._fps = rig.fps
        self._cameras = [c for c in rig.cameras if isinstance(c, CountedCamera)]
        self._given = [camera.pictures for camera in self._cameras]
        self._shown: dict[str, tuple[float, FloatArray]] = {}
        """Camera to since when its picture is the same [s], and where the arm then was [rad]."""
        self._frozen: dict[str, str] = {}
        self.status: list[int] = []
        """The servos' status bits in the newest turn."""

    def doubt(self, duration_s: float) -> dict[str, str]:
        """Return what is wrong with cameras' pictures, by name, in a take of `duration_s` [s]."""
        slow = {
            camera.name: too_slow(camera, (camera.pictures - given) / duration_s, self._fps)
            for camera, given in zip(self._cameras, self._given, strict=True)
            if duration_s >= MEASURE_S
        }
        return {name: words for name, words in (slow | self._frozen).items() if words}

    def tick(self, tick: Tick) -> None:
        self.status = tick.state.status.tolist()
        for name, picture in tick.frames.items():
            if tick.state.t_s - picture.t_capture_s > STALE_CAMERA_S:
                self.stale = stale_camera(name)
        for camera in self._cameras if tick.policy_frame else ():
            q_rad, now_s = tick.state.position_rad, tick.state.t_s
            since_s, from_rad = self._shown.get(camera.name, (math.nan, q_rad))
            if camera.same_since_s != since_s:
                self._shown[camera.name] = camera.same_since_s, q_rad
            elif now_s - since_s > FROZEN_S and np.abs(q_rad - from_rad).max() > FROZEN_RAD:
                self._frozen[camera.name] = (
                    f"Camera {camera.name} gave the same picture to the last bit for more than "
                    f"{FROZEN_S:g} s, while the arm moved: it hangs, or shows nothing"
                )
        if self._judge is not None and tick.policy_frame:
            success = self._judge() is Outcome.SUCCESS
            self._over_after("success held", success, tick.t_s, SUCCESS_HELD_S)
        tripped = bool(tick.command.reasons & SafetyReason.TRIPPED)
        self._over_after("safety trip", tripped, tick.t_s, TRIP_SHOWN_S)

    def _over_after(self, what: str, is_so: bool, now_s: float, long_s: float) -> None:
        if not is_so:
            self._since_s.pop(what, None)
        elif now_s - self._since_s.setdefault(what, now_s) >= long_s - 1e-9:
            self.over = what


def stale_camera(name: str) -> str:
    """Return what to say of a camera whose pictures don't come any more."""
    return (
        f"Camera {name} is stale: its last picture is more than {STALE_CAMERA_S:g} s old. Check "
        "its cable; it is connected again by itself."
    )


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
    ended: Callable[[], str] = lambda: "",
    cut_off: Callable[[], str] = lambda: "",
    judged: bool = True,
) -> TakeResult:
    """Run one take from a fresh scene and, with a writer, record and seal it.

    It ends when the leader is done, success has held for `SUCCESS_HELD_S`, the safety filter
    tripped, `max_s` passed, `ended`, `cut_off` or `stop` say so, a camera is stale, or the recorder
    failed. In the last four cases, and where the filter tripped because a device is gone or a servo
    lost its power, the take is `interrupted`, with the cause as an event, and stays unsealed.

    Args:
        rig: reset here, to the scene of `seed`.
        leader: reset here, after the rig, unless it is driving already. A `PolicyLeader` gets the
            observations.
        writer: the open take, left open (and unsealed) by an exception.
        stop: asked every turn; True interrupts the take.
        until_success: end on success; by default only for policies, which don't say "done".
        ended: asked every turn; why the operator ends the take early, "" where it goes on.
        cut_off: asked every turn; what the take can't go on without, "" where all is there.
        judged: seal it with the rig's judgement; else it is for a person to say how it went.

    Raises:
        DeviceError: a device failed.
    """
    rig.reset(seed)
    if rig.running is None:  # else the loop runs on between takes, and with it the leader
        leader.reset()
    is_policy = isinstance(leader, PolicyLeader)
    watch = _Watch(rig, is_policy if until_success is None else until_success)
    recorders = () if writer is None else (Recorder(writer, rig.follower, rig.sensors, leader),)
    callbacks = (*((_asking(leader),) if isinstance(leader, PolicyLeader) else ()), *on_frame)

    def is_over() -> bool:
        is_cut = watch.over or watch.stale or ended() or cut_off()
        return bool(is_cut) or any(r.fault for r in recorders) or stop()

    end = follow_turns(rig.turns(leader, max_s, callbacks), (*recorders, watch, *sinks), is_over)
    lost = [recorder.fault for recorder in recorders if recorder.fault]
    lost += [fault for fault in end.faults if fault.startswith(Recorder.__name__)]
    over, gone = watch.over or ended(), end.tripped & GONE
    errors = errors_of(watch.status) & (REBOOTED | SUPPLY)
    if errors:  # neither says anything about the task
        gone |= end.tripped & SafetyReason.HARDWARE_ERROR
    outcome = Outcome.INTERRUPTED
    if lost:
        reason = f"recording failed: {lost[0]}"
    elif watch.stale or cut_off():
        reason = watch.stale or cut_off()
    elif gone:
        to_do = say_to_do(gone, getattr(leader, "where", ""), errors)
        reason = f"{say_reasons(gone, errors)}: {to_do}."
    elif end.reason is EndReason.STOPPED and not over:
        reason = "stopped by the user"
    elif end.tripped:
        outcome, reason = Outcome.FAILURE, f"safety trip: {end.tripped.name}"
    else:
        outcome = (rig.judge() if judged else None) or Outcome.UNLABELLED
        ends = {EndReason.DONE: "the leader was done", EndReason.TIME: TIME_RAN_OUT}
        reason = over or ends.get(end.reason, end.reason.value)
    doubts = watch.doubt(end.duration_s)
    for words in doubts.values():
        log.warning("%s.", words)
    result = TakeResult(
        "", outcome, reason, end.duration_s, end.frames, doubts=tuple(doubts.values())
    )
    if writer is None:
        return result
    for camera, words in doubts.items():
        writer.event(end.duration_s, journal_format.PICTURES, camera=camera, why=words)
    uid = writer.header.info.uid
    if outcome is Outcome.INTERRUPTED:
        writer.event(end.duration_s, journal_format.INTERRUPTED, why=reason)
    else:
        if (truth := rig.truth()) is not None:
            journal_format.append_truth(writer.folder.parent, uid, truth)
        writer.seal(outcome, reason)
    return replace(result, uid=uid, dropped=sum(writer.dropped.values()))


def follow_turns(turns: Turns, sinks: Iterable[TakeSink], is_over: Callable[[], bool]) -> LoopEnd:
    """Hand every turn to every sink until `is_over`; return how it ended.

    A sink that raises is dropped, and named in the end's faults.
    """
    listening, dropped, over = list(sinks), list[str](), None
    with contextlib.closing(turns):
        while True:
            try:
                tick = turns.send(over)
            except StopIteration as last:
                end: LoopEnd = last.value
                return replace(end, faults=(*dropped, *end.faults))
            if tick is not None:
                for sink in tuple(listening):
                    with CleanupStep() as attempt:
                        sink.tick(tick)
                    if attempt.error is not None:
                        listening.remove(sink)
                        kind = type(sink).__name__
                        dropped.append(f"{kind} at {tick.t_s:.3f} s: {attempt.error!r}")
                        if not getattr(sink, "fault", ""):  # else it ends the take, and is said
                            log.warning("dropped a sink: %s", dropped[-1])
            over = is_over()


def _asking(leader: PolicyLeader) -> OnFrame:
    """Return what shows a policy its frames; whatever it raises ends the take only."""

    def observe(observation: Observation) -> None:
        with CleanupStep() as attempt:
            leader.observe(observation)
        if isinstance(attempt.error, GaploopError):
            raise attempt.error
        if attempt.error is not None:
            kind = type(attempt.error).__name__
            raise DeviceError(
                f"The policy failed ({kind}: {one_line(attempt.error)})."
            ) from attempt.error

    return observe


class Operator:
    """Whoever looks after a session: nobody here, who waits for what is in a take's way.

    Args:
        patience_s: how long to wait for that [s].
        attempts: runs those of a policy that drives; takes are run as they are where it is None.
    """

    attempts_per_take: int = 3
    """A quota is given up after this many attempts per episode that it asks for."""

    def __init__(self, patience_s: float = PATIENCE_S, attempts: Attempts | None = None) -> None:
        self._patience_s, self._attempts = patience_s, attempts
        self._outcomes: dict[str, Outcome] = {}

    def begin(self, blocker: Callable[[], str], stop: Callable[[], bool]) -> bool:
        """Wait until the next take may begin; False where `stop` ends the session meanwhile.

        `blocker` says why none can begin now, in one line, or "".

        Raises:
            LostError: a device has to be connected anew.
            DeviceError: what is in the way doesn't go away, or the policy failed too often.
        """
        if self._attempts is not None:
            self._attempts.require_policy()
        said, until_s = "", time.monotonic() + self._patience_s
        while why := self._blocker(blocker):
            if (words := why.translate(_NO_DIGITS)) != said:  # the seconds that are left go on
                long = f" up to {self._patience_s:g} s" if math.isfinite(self._patience_s) else ""
                log.warning("%s Waiting%s.", why, long)
                said = words
            if stop():
                return False
            if time.monotonic() >= until_s:
                raise DeviceError(
                    f"{why} Waited {self._patience_s:g} s for that: see to it, then run the same "
                    "command again."
                )
            time.sleep(LOOK_S)
        return True

    def prepare(
        self, rig: Rig, leader: Leader, seed: int, blocker: Callable[[], str],
        stop: Callable[[], bool],
    ) -> Rig | None:  # fmt: skip
        """Have the robot put the scene back for a seed, where it is to; return the rig for a take.

        None where the session ends meanwhile.

        Raises:
            DeviceError: a person is needed, and nobody is there.
        """
        resetter = None if self._attempts is None else self._attempts.resetter
        if resetter is None:
            return rig
        return resetter.prepare(
            rig,
            leader,
            seed,
            lambda: Operator.begin(self, blocker, stop),
            stop,
            lambda why, is_done: self.call_person(why, is_done, stop),
        )

    def call_person(
        self, why: str, is_done: Callable[[], bool], stop: Callable[[], bool]
    ) -> bool:  # fmt: skip
        """Ask a person to set the scene up, and wait until it is done; False where `stop` says so.

        Raises DeviceError where nobody comes.
        """
        log.warning(
            "%s It goes on by itself once the picture is still. Waiting up to %.0f min.",
            why, PERSON_S / 60,
        )  # fmt: skip
        until_s = time.monotonic() + PERSON_S
        while time.monotonic() < until_s:
            if stop():
                return False
            if is_done():
                log.info("The scene is set up, and still: going on.")
                return True
            time.sleep(10 * LOOK_S)
        raise DeviceError(f"{why} Nobody came: then run the same command again.")

    def choose(self) -> str:
        """Return the id of the policy that drives the next take; "" where there is one only."""
        return "" if self._attempts is None else self._attempts.choose()

    def _blocker(self, blocker: Callable[[], str]) -> str:
        return blocker() or ("" if self._attempts is None else self._attempts.blocker())

    def run(self, rig: Rig, leader: Leader, **given: Any) -> TakeResult:
        """Run a take, called as `run_take`."""
        if self._attempts is None:
            return run_take(rig, leader, **given)
        result = self._attempts.run(rig, leader, **given)
        self._outcomes[result.uid] = result.outcome
        self._attempts.judged(self._outcomes)
        return result

    def outcome(self, result: TakeResult) -> Outcome:
        """Return the outcome of a take that stands now."""
        return result.outcome


# -- one after another ----------------------------------------------------------------------------


@dataclass(frozen=True)
class SessionEnd:
    """How a session went.

    Attributes:
        takes: sealed takes, oldest first.
        counted: takes that count towards the quotas, those that were there at the start included.
        recovered: unsealed takes that were there at the start and are marked `interrupted`.
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
"""A session ends when so many episodes in a row couldn't be recorded, or so many in a row ended in
a fault of the policy where nobody watches."""


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
                        f"Camera {name} was {was} in the episode before, and is {now} now. See "
                        "that it shows the same view, and calibrate it again where it has moved."
                    )


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
    set_up: SetUpNext = lambda _quota, _before: True,
    stop: Callable[[], bool] = lambda: False,
    on_take: Callable[[TakeResult, bool], None] = lambda _result, _counts: None,
    operator: Operator | None = None,
) -> SessionEnd:
    """Record takes until every quota is filled.

    Each take is sealed as it ends. A failed demonstration is kept, as a failure, and
    doesn't count. Takes left unsealed, by this session or one before, are recovered as
    `interrupted`. A take that can't be recorded ends, because the encoder died, the disk is full,
    a camera or another device failed; the session goes on with the next, until `FAULTS_IN_A_ROW`.

    Args:
        about: what all takes share.
        quotas: in this order; a quota of 0 is passed over. A set-up may come several times; takes
            that are there already are struck off its first quotas.
        make_rig: builds the rig for a quota's conditions; closed here.
        seed: scenes are drawn from it and the number of takes in the journal, so that a session
            that goes on doesn't repeat its scenes.
        resume: takes that the journal holds already count towards quotas without a plan item.
            Those of a plan item always do: its quota belongs to the campaign.
        set_up: called before a rig is made for conditions that differ from those before.
        stop: asked every turn; True interrupts the take and ends the session.
        on_take: called once a take is sealed; its second argument says whether it counts.

    Raises:
        UnusableInputError: the journal can't be written, or people take part without consent.
        LostError: a device is gone, and has to be connected anew.
        DeviceError: takes can't be recorded.
    """
    warm_up()
    recovered = len(recover(journal).recovered) if journal.exists() else 0
    missing = still_missing(quotas, held(journal, about.kind, quotas, resume=resume))
    looks_after, about = operator or Operator(), replace(about, session=uuid7())
    encoder, results, gave_up = Encoder(), list[TakeResult](), list[str]()
    # By set-up, for a plan comes back to each several times: attempts, most of them, what counts.
    attempts, most, done = Counter[str](), Counter[str](), Counter[str]()
    next_seed, faults, before = seed + len(journal_format.take_folders(journal)), 0, None

    def is_counted(result: TakeResult) -> bool:
        return counts(about.kind, looks_after.outcome(result))

    def fill(rig: Rig, quota: Quota, lacking: int) -> int:
        """Record until so many more count, the user stops, or attempts are spent."""
        leader = make_leader(rig, next_seed)
        # Have the encoder running before somebody waits for the first take.
        if cameras := rig.header(about).cameras:
            encoder.start(cameras)
            for line in () if attempts else other_cameras(journal, cameras):
                log.warning("%s", line)
        first = len(results)

        def counted() -> int:
            return sum(map(is_counted, results[first:]))

        while not stop() and counted() < lacking and attempts[quota.key] < most[quota.key]:
            if not looks_after.begin(lambda: rig.blocker() or no_room(journal), stop):
                break
            if counted() >= lacking:
                continue  # a take was labelled anew while the next one was waited for
            ready = looks_after.prepare(rig, leader, next_seed, rig.blocker, stop)
            if ready is None:
                break
            attempts[quota.key] += 1
            record(ready, leader, quota)
        return counted()

    def record(rig: Rig, leader: Leader, quota: Quota) -> None:
        """Record a take; DeviceError where it was one too many that couldn't be."""
        nonlocal next_seed, faults
        take_seed, next_seed = next_seed, next_seed + 1
        drawn = dict(rig.drawn(take_seed))
        this = replace(
            about,
            task=drawn.pop(INSTRUCTION, about.task),
            policy=looks_after.choose() or about.policy,
            plan=quota.plan,
            dimensions=dict(quota.dimensions),
            conditions={RANDOMISED: drawn} if drawn else {},
        )
        header = rig.header(this, leader)
        # Asked for each take: people may have withdrawn their consent meanwhile.
        place = Place("journal", str(journal.absolute()))
        if reason := refusal_at(None, header.info, Use.RECORD, place):
            raise refused(reason, Use.RECORD, "This episode")
        waits, given = not rig.is_real_time, {"seed": take_seed, "max_s": max_s, "stop": stop}
        try:
            with JournalWriter(journal, header, encoder=encoder, waits=waits) as writer:
                result = looks_after.run(rig, leader, writer=writer, **given)
        except LostError:
            raise
        except DeviceError as error:
            result = TakeResult(header.info.uid, Outcome.INTERRUPTED, str(error), 0.0, 0)
        if result.outcome is not Outcome.INTERRUPTED:
            faults = 0
            results.append(result)
            on_take(result, is_counted(result))
        elif not stop():
            log.warning("Episode %s is interrupted: %s", result.uid, result.reason)
            faults += 1
            if faults >= FAULTS_IN_A_ROW:
                raise DeviceError(
                    f"{faults} episodes in a row could not be recorded; the last one: "
                    f"{result.reason}"
                )

    with contextlib.ExitStack() as cleanup:
        cleanup.callback(recover, journal)
        cleanup.callback(encoder.close)
        for quota, lacking in zip(quotas, missing, strict=True):
            most[quota.key] += looks_after.attempts_per_take * lacking
        for quota, lacking in zip(quotas, missing, strict=True):
            if not lacking or stop() or attempts[quota.key] >= most[quota.key]:
                continue
            if not set_up(quota, before):
                break
            before = quota
            with contextlib.closing(make_rig(quota.conditions)) as rig:
                done[quota.key] += fill(rig, quota, lacking)
            wanted = most[quota.key] // looks_after.attempts_per_take
            if attempts[quota.key] == most[quota.key] and done[quota.key] < wanted:
                name = f"plan item '{quota.plan}'" if quota.plan else "the episodes"
                gave_up.append(
                    f"Gave up on {name}: {most[quota.key]} attempts gave {done[quota.key]} of "
                    f"{wanted} episodes. Ease the conditions or lower the quota."
                )
    wanted = sum(quota.takes for quota in quotas)
    counted = wanted - sum(missing) + done.total()
    takes = tuple(replace(take, outcome=looks_after.outcome(take)) for take in results)
    return SessionEnd(takes, counted, wanted, recovered, stop(), tuple(gave_up))
