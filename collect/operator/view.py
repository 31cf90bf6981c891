"""From how a session stands to what is shown, for window and terminal alike."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from gaploop.collect.intervention import Driver
from gaploop.collect.operator.keys import Command, KeyMap
from gaploop.collect.operator.machine import (
    ASKED,
    BETWEEN,
    RUNS_ON,
    Question,
    SessionStage,
    SessionState,
)
from gaploop.collect.rollout import SOFT, SOFT_UNTIL, SUCCESSES, Driven
from gaploop.core.progress import words_of_time
from gaploop.core.vocabulary import Outcome


@dataclass(frozen=True)
class TakeSeen:
    """One of the last takes: its number in this session, and its labels."""

    number: int
    uid: str
    said: Mapping[str, Any]

    @property
    def outcome(self) -> Outcome:
        """The outcome that stands."""
        return Outcome(self.said.get("outcome", Outcome.UNLABELLED))

    @property
    def words(self) -> str:
        """What stands about it, such as `failure: slip, contact dynamics`."""
        more = []
        if self.outcome is Outcome.FAILURE:
            more = [self.said.get("failure_mode", ""), *dict(self.said.get("dimensions") or {})]
        elif self.outcome is Outcome.DISCARDED:
            more = [self.said.get("discard_reason", "")]
        words = ", ".join(str(word).replace("_", " ") for word in more if word)
        return f"{self.outcome.value}: {words}" if words else self.outcome.value


@dataclass(frozen=True)
class Loop:
    """How the control loop and the recorder do.

    Attributes:
        control_hz: turns per second over the last seconds [Hz].
        fps: policy frames per second that are asked for [Hz].
        missed: turns skipped since the session began.
        dropped: camera to pictures of the take that the encoder couldn't take.
        behind_s: the time whose pictures wait to be encoded [s], 0 where that isn't unusual.
        trips: how often the safety filter has tripped.
        trip: why it has tripped now and what to do, in words, or "".
        clears: a trip can be cleared now: the arm is held or limp, not on its way down.
        doing: what the arm does on its way down, or while it is held, in words, or "".
        lost: which device is gone, in words, or "".
        found: what was lost answers again, and the operator says when the arm may move.
        faults: what else went wrong, newest last.
        timing: how regular turns are and how late commands, in a line, where nothing is recorded.
        slow: what to say of cameras that give fewer pictures than they should.
        alignment: what the arm does about a workspace box in its way to its leader, or "".
    """

    control_hz: float = math.nan
    fps: float = math.nan
    missed: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    trips: int = 0
    trip: str = ""
    doing: str = ""
    lost: str = ""
    clears: bool = True
    found: bool = False
    faults: tuple[str, ...] = ()
    behind_s: float = 0.0
    slow: tuple[str, ...] = ()
    alignment: str = ""
    timing: str = ""


@dataclass(frozen=True)
class QuotaBar:
    """How far a quota is filled."""

    name: str
    have: int
    wanted: int


@dataclass(frozen=True)
class Quotas:
    """How far what is to be recorded is, and the estimated time until all is [s], or NaN."""

    counted: int = 0
    wanted: int = 0
    bars: tuple[QuotaBar, ...] = ()
    left_s: float = math.nan


@dataclass(frozen=True)
class Hint:
    """A key and what it does now."""

    key: str
    does: str


@dataclass(frozen=True)
class ScreenContent:
    """Everything that is shown.

    Attributes:
        now_s: the time that `state` goes by [s].
        takes: the last takes, oldest first.
        setup: what is set up now, or next.
        hand_held: the dead-man button while which is held the leader's own keys count.
        driven: who drives, in a rollout.
    """

    now_s: float
    state: SessionState
    keys: KeyMap
    task: str = ""
    quotas: Quotas = Quotas()
    takes: tuple[TakeSeen, ...] = ()
    loop: Loop = field(default_factory=Loop)
    setup: str = ""
    note: str = ""
    hand_held: Hint | None = None
    driven: Driven | None = None


SHOWN_TAKES: Final = 5


class Tone(StrEnum):
    """What a colour says."""

    RECORD = "record"
    GO = "go"
    ASK = "ask"
    WAIT = "wait"
    ALARM = "alarm"
    PERSON = "person"
    IDLE = "idle"


@dataclass(frozen=True)
class AnswerChoice:
    """One answer to a question, and the key that gives it; Enter gives the one that is marked."""

    key: str
    words: str
    marked: bool


@dataclass(frozen=True)
class Shown:
    """What the operator sees.

    Attributes:
        word: the state, in a word or two that can be read from two metres.
        below: what that means, or what to do.
        clock: time that is left, such as `0:07`; "" where none runs.
        share: how much of the stage's time is over, 0 to 1; NaN where it has no end.
        count: takes that count, of those wanted.
        loop: rate and what got lost, in a line; `trouble` where that isn't as it should be.
        driving: how fast the policy may drive and how often it was helped, in a line.
        question: what is asked; "" where nothing is.
        rows: the last takes, newest first.
        hints: keys that do something now.
    """

    word: str
    tone: Tone
    below: str
    clock: str
    share: float
    count: str
    loop: str
    trouble: bool
    driving: str = ""
    question: str = ""
    choices: tuple[AnswerChoice, ...] = ()
    bars: tuple[QuotaBar, ...] = ()
    setup: str = ""
    rows: tuple[TakeSeen, ...] = ()
    hints: tuple[Hint, ...] = ()
    note: str = ""


def look(seen: ScreenContent) -> Shown:
    """Return what to show."""
    state = seen.state
    word, tone, below = _sign(seen)
    loop, driven, keys = seen.loop, seen.driven, seen.keys
    left_s = None if loop.lost else state.left_s(seen.now_s)
    limit_s = state.limit_s
    asked, quotas = state.prompt, seen.quotas
    bars = quotas.bars
    if driven is not None and driven.successes is not None:
        name = "successes without help, for full speed"
        bars = (QuotaBar(name, driven.successes, SUCCESSES), *bars)
    count = f"{quotas.counted} of {quotas.wanted}" if quotas.wanted else f"{quotas.counted}"
    if math.isfinite(quotas.left_s) and quotas.left_s > 0:
        count += f" · about {words_of_time(quotas.left_s)} left"
    records = state.stage is not SessionStage.DRIVING
    dropped = ", ".join(f"{camera} {n}" for camera, n in loop.dropped.items() if n)
    rates = (
        f"{loop.control_hz:.0f} Hz" if math.isfinite(loop.control_hz) else "",
        f"{loop.fps:g} fps" if math.isfinite(loop.fps) and records else "",
        loop.timing,
        f"missed {loop.missed}",
        f"dropped {dropped or 0}" if records else "",
        *loop.slow,
        f"VIDEO {loop.behind_s:.1f} s BEHIND: close other programs" if loop.behind_s else "",
        f"tripped {loop.trips}x" if loop.trips else "",
    )
    driving = []
    if driven is not None:
        driving.append(f"policy at {driven.speed_scale:.0%} of its speed")
        if driven.successes is not None and driven.successes < SOFT_UNTIL:
            driving.append(SOFT)
        if state.stage in RUNS_ON:
            helped = f", {driven.person_s:.1f} s" if driven.interventions else ""
            driving.append(f"taken over {driven.interventions}x{helped}")
        elif driven.driver is Driver.PERSON:
            driving.append("you drive")
        elif driven.driver is Driver.ALIGNING:
            driving.append("hold the leader, it is coming")
    choices = []
    if asked is not None:
        for place, value in enumerate(asked.choices):
            key = str((place + 1) % 10)
            if asked.question is Question.OUTCOME:
                key = keys.name((Command.SUCCESS, Command.FAILURE, Command.DISCARD)[place]) or key
            words = "discard" if value == Outcome.DISCARDED.value else value.replace("_", " ")
            choices.append(AnswerChoice(key, words, place == asked.at))
    return Shown(
        word,
        tone,
        below,
        "" if left_s is None else clock(left_s),
        math.nan if left_s is None or not limit_s else 1.0 - left_s / limit_s,
        count if records else "",
        "nothing is driven" if loop.lost else " · ".join(filter(None, rates)),
        bool(loop.trip or loop.lost or loop.behind_s or loop.slow or any(loop.dropped.values())),
        " · ".join(driving),
        "" if asked is None else ASKED[asked.question],
        tuple(choices),
        bars,
        seen.setup,
        seen.takes[::-1],
        hints(seen),
        seen.note or (loop.faults[-1] if loop.faults else ""),
    )


_SIGNS: Final = {
    SessionStage.DRIVING: ("DRIVING", Tone.GO),
    SessionStage.READY: ("READY", Tone.GO),
    SessionStage.STARTING: ("STARTING", Tone.GO),
    SessionStage.RECORDING: ("RECORDING", Tone.RECORD),
    SessionStage.ENDING: ("ENDING", Tone.RECORD),
    SessionStage.VERDICT: ("HOW WAS IT?", Tone.ASK),
    SessionStage.RESET: ("RESET", Tone.WAIT),
    SessionStage.SET_UP: ("SET UP", Tone.WAIT),
    SessionStage.ENDED: ("ENDED", Tone.IDLE),
}
_DRIVERS: Final = {
    Driver.NOBODY: ("HOLDING", Tone.IDLE),
    Driver.POLICY: ("POLICY", Tone.RECORD),
    Driver.PERSON: ("YOU DRIVE", Tone.PERSON),
    Driver.ALIGNING: ("ALIGNING", Tone.WAIT),
    Driver.SCRIPT: ("PUTS BACK", Tone.WAIT),  # before it is recorded
}
"""What is said in a rollout while it is recorded."""
_QUESTIONS: Final = {
    Question.OUTCOME: "HOW WAS IT?",
    Question.MODE: "WHAT FAILED?",
    Question.DIMENSION: "WHY?",
    Question.REASON: "DISCARD: WHY?",
}


def _sign(seen: ScreenContent) -> tuple[str, Tone, str]:
    state, loop = seen.state, seen.loop
    if loop.found:
        return "FOUND AGAIN", Tone.WAIT, loop.lost
    if loop.lost:
        return "DEVICE LOST", Tone.ALARM, loop.lost
    if loop.doing:
        return "KEEP CLEAR", Tone.ALARM, " ".join(filter(None, (loop.doing, loop.trip)))
    if loop.trip:
        return "TRIPPED", Tone.ALARM, loop.trip
    if state.prompt is not None:
        about = [f"Episode {take.number}." for take in seen.takes if take.uid == state.prompt.uid]
        return _QUESTIONS[state.prompt.question], Tone.ASK, "".join(about)
    if state.blocked and state.stage in (*BETWEEN, SessionStage.STARTING):
        return "WAITING", Tone.ALARM, state.blocked
    driven = seen.driven
    puts_back = driven is not None and driven.driver is Driver.SCRIPT
    if driven is not None and (puts_back or state.stage is SessionStage.RECORDING):
        return *_DRIVERS[driven.driver], _below(seen)
    word, tone = _SIGNS[state.stage]
    return word, tone, _below(seen)


def _below(seen: ScreenContent) -> str:
    state, key = seen.state, seen.keys.name(Command.NEXT)
    number = max((take.number for take in seen.takes), default=0) + 1
    task = f": {seen.task}" if seen.task else "."
    taking = f"Episode {number}{task}"
    if seen.driven is not None:
        taking = f"Recording episode {number}{task}"
        if seen.driven.driver is Driver.ALIGNING:
            taking = "Hold the leader: it moves to the arm's pose, then goes limp and you drive."
    return {
        SessionStage.DRIVING: seen.task,
        SessionStage.READY: f"{key} starts the episode.",
        SessionStage.STARTING: "The episode is about to begin.",
        SessionStage.RECORDING: taking,
        SessionStage.ENDING: "The episode is being closed.",
        SessionStage.RESET: f"Put everything back; {key} when that is done."
        if not state.timing.auto_start
        else f"Put everything back; the next episode begins by itself, or with {key}.",
        SessionStage.SET_UP: f"{seen.setup}. {key} when it is set up.",
        SessionStage.ENDED: "Torque is off; episodes are sealed, then published.",
    }.get(state.stage, "")


def clock(duration_s: float) -> str:
    """Return a duration as minutes and seconds, such as `1:07`."""
    seconds = math.ceil(duration_s - 1e-9)
    return f"{seconds // 60}:{seconds % 60:02d}"


HINTS: Final = 6


def hints(seen: ScreenContent) -> tuple[Hint, ...]:
    """Return the keys that do something now, most wanted first, as many as there is room for."""
    state, driven, found = seen.state, seen.driven, list[Hint]()
    if (seen.loop.trip and seen.loop.clears) or seen.loop.found:
        clear = seen.keys.name(Command.CLEAR)
        does = "let the arm move" if seen.loop.found else "clear the trip"
        found.append(Hint(f"{clear} {clear}" if clear else "Enter Enter", does))
    if driven is not None and driven.can_switch and not seen.loop.lost:
        key, is_on = seen.keys.name(Command.TAKE_OVER), driven.driver in _IN_HAND
        if state.stage in RUNS_ON:
            found.append(Hint(key, "hand back to the policy" if is_on else "TAKE OVER"))
        elif state.stage in BETWEEN and state.prompt is None:
            found.append(Hint(key, "let the arm hold" if is_on else "drive, to put things back"))
    for command, does in _do(state):
        if command is Command.NEXT and state.blocked and state.prompt is None:
            continue
        if key := seen.keys.name(command):
            found.append(Hint(key, does))
    if seen.hand_held is not None:
        found.append(seen.hand_held)
    if estop := seen.keys.name(Command.ESTOP):
        found.append(Hint(estop, "EMERGENCY STOP"))
    # The last one is the emergency stop.
    return tuple(found if len(found) <= HINTS else (*found[: HINTS - 1], found[-1]))


_IN_HAND: Final = (Driver.PERSON, Driver.ALIGNING)


def _do(state: SessionState) -> Iterator[tuple[Command, str]]:
    if state.prompt is not None:
        if state.prompt.at is not None:
            yield Command.ACCEPT, "take the marked answer"
        yield Command.NEXT, "pass over"
        yield Command.UP, "mark another"
        yield Command.RERECORD, "discard, record again"
        return
    if state.stage is SessionStage.RECORDING:
        yield Command.NEXT, "end the episode"
        yield Command.SUCCESS, "end it: success"
        yield Command.FAILURE, "end it: failure"
        yield Command.RERECORD, "discard, record again"
        yield Command.STOP, "last episode, then end"
        return
    if state.stage is SessionStage.DRIVING:
        yield Command.STOP, "lower the arm and leave; again: let go of it"
    if state.stage not in BETWEEN:
        return
    go = {
        SessionStage.RESET: "start the next episode",
        SessionStage.SET_UP: "it is set up",
    }
    yield Command.NEXT, go.get(state.stage, "start the episode")
    if state.newest:
        yield Command.SUCCESS, "label the last episode anew: success"
        yield Command.FAILURE, "… failure"
    yield Command.STOP, "end the session"
