"""One take: set up, run, judge, seal."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.collect.journal import JournalWriter
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.recorder import Recorder
from gaploop.collect.rig import Rig
from gaploop.core import journal_format
from gaploop.core.errors import DeviceError, GaploopError
from gaploop.core.messages import FloatArray, Observation, SafetyReason, Tick
from gaploop.core.protocols import CountedCamera, Leader, TakeSink
from gaploop.core.vocabulary import Outcome
from gaploop.teleop.checks.cameras import FROZEN_RAD, FROZEN_S, MEASURE_S, too_slow
from gaploop.teleop.loop import EndReason, LoopEnd, OnFrame, Turns
from gaploop.teleop.stopping import CleanupStep, one_line
from gaploop.teleop.trips import GONE, say_reasons, say_to_do

if TYPE_CHECKING:
    from gaploop.collect.rollout import Attempts

log = logging.getLogger(__name__)

SUCCESS_HELD_S: Final = 0.3
"""A rollout ends once success has held this long [s]: long enough for a thing to fall over."""
TRIP_SHOWN_S: Final = 0.5
"""A take goes on this long [s] after a safety trip, so that the record shows what came of it."""
TIME_RAN_OUT: Final = "time ran out"
"""Why a take ended that nothing else ended."""
STALE_CAMERA_S: Final = 0.5
"""A take ends where a picture is older than this [s]: what it records isn't what was there."""
PATIENCE_S: Final = 60.0
"""Where nobody watches, what is in a take's way is waited for this long [s]."""
LOOK_S: Final = 0.05
"""… and looked at this often [s]."""


@dataclass(frozen=True)
class TakeResult:
    """How one take went.

    Attributes:
        uid: "" where nothing was recorded.
        outcome: `unlabelled` where only a person can tell, `interrupted` where it wasn't sealed.
        reason: why it ended, in words.
        duration_s: on the loop's clock [s].
        dropped: pictures that the encoder couldn't take.
        behind_s: the longest time whose pictures waited to be encoded [s].
        sealing: the seal, where it is done behind the next take; it raises what went wrong.
        doubts: what is wrong with pictures that were recorded all the same, a line for each camera.
    """

    uid: str
    outcome: Outcome
    reason: str
    duration_s: float
    frames: int
    dropped: int = 0
    behind_s: float = 0.0
    sealing: Future[Path] | None = field(default=None, compare=False)
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

    def doubt(self, duration_s: float) -> dict[str, str]:
        """Return what is wrong with cameras' pictures, by name, in a take of `duration_s` [s]."""
        slow = {
            camera.name: too_slow(camera, (camera.pictures - given) / duration_s, self._fps)
            for camera, given in zip(self._cameras, self._given, strict=True)
            if duration_s >= MEASURE_S
        }
        return {name: words for name, words in (slow | self._frozen).items() if words}

    def tick(self, tick: Tick) -> None:
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
    sealer: Executor | None = None,
    ended: Callable[[], str] = lambda: "",
    cut_off: Callable[[], str] = lambda: "",
    judged: bool = True,
) -> TakeResult:
    """Run one take from a fresh scene and, with a writer, record and seal it.

    It ends when the leader is done, success has held for `SUCCESS_HELD_S`, the safety filter
    tripped, `max_s` passed, `ended`, `cut_off` or `stop` say so, a camera is stale, or the recorder
    failed. In the last four cases, and where the filter tripped because a device is gone, the take
    is `interrupted`, with the cause as an event, and stays unsealed.

    Args:
        rig: reset here.
        leader: reset here, after the rig, unless it is driving already. A `PolicyLeader` gets the
            observations.
        seed: sets up the scene.
        max_s: longest duration [s].
        writer: the open take, left open (and unsealed) by an exception.
        on_frame: called with the observation of every policy frame.
        sinks: further subscribers of the loop.
        stop: asked every turn; True interrupts the take.
        until_success: end on success; by default only for policies, which don't say "done".
        sealer: seals the take behind the next one's start; at once where it is None.
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
    subscribers: tuple[TakeSink, ...] = (*recorders, watch, *sinks)
    callbacks = (*((_asking(leader),) if isinstance(leader, PolicyLeader) else ()), *on_frame)

    def is_over() -> bool:
        is_cut = watch.over or watch.stale or ended() or cut_off()
        return bool(is_cut) or any(r.fault for r in recorders) or stop()

    end = follow_turns(rig.turns(leader, max_s, callbacks), subscribers, is_over)
    lost = [recorder.fault for recorder in recorders if recorder.fault]
    lost += [fault for fault in end.faults if fault.startswith(Recorder.__name__)]
    over, gone = watch.over or ended(), end.tripped & GONE
    outcome = Outcome.INTERRUPTED
    if lost:
        reason = f"recording failed: {lost[0]}"
    elif watch.stale or cut_off():
        reason = watch.stale or cut_off()
    elif gone:
        to_do = say_to_do(gone, getattr(leader, "where", ""))
        reason = f"{say_reasons(gone)}: {to_do}."
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
    sealing = None
    if outcome is Outcome.INTERRUPTED:
        writer.event(end.duration_s, journal_format.INTERRUPTED, why=reason)
    else:
        if (truth := rig.truth()) is not None:
            journal_format.append_truth(writer.folder.parent, uid, truth)
        if sealer is None:
            writer.seal(outcome, reason)
        else:
            sealing = writer.seal_behind(sealer, outcome, reason)
    dropped, behind_s = sum(writer.dropped.values()), writer.most_behind_s
    return replace(result, uid=uid, dropped=dropped, behind_s=behind_s, sealing=sealing)


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
    """A quota is given up after this many attempts per take that it asks for."""

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
        message, until_s = "", time.monotonic() + self._patience_s
        while why := self._blocker(blocker):
            if why != message:
                long = f" up to {self._patience_s:g} s" if math.isfinite(self._patience_s) else ""
                log.warning("%s Waiting%s.", why, long)
                message = why
            if stop():
                return False
            if time.monotonic() >= until_s:
                raise DeviceError(why)
            time.sleep(LOOK_S)
        return True

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

    def retracted(self, result: TakeResult) -> bool:
        """Whether a label of the take was taken back and none has been given since."""
        del result
        return False
