"""From how a session stands to what is shown, for window and terminal alike."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gaploop.collect.intervention import Driver
from gaploop.collect.operator.commands import Command, KeyMap
from gaploop.collect.operator.hints import Hint, hints
from gaploop.collect.operator.inquiry import ASKED, Inquiry, Question
from gaploop.collect.operator.screen_content import (
    Driven,
    Loop,
    QuotaBar,
    ScreenContent,
    SetUp,
    TakeSeen,
)
from gaploop.collect.operator.state import BETWEEN, RUNS_ON, SessionStage
from gaploop.collect.speed_ramp import SUCCESSES
from gaploop.core.vocabulary import Outcome

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
    """One answer to a question.

    Attributes:
        key: digit or letter that gives it.
        words: the answer.
        marked: Enter gives it.
        suggested: the machine thinks so.
    """

    key: str
    words: str
    marked: bool
    suggested: bool


@dataclass(frozen=True)
class TakeLine:
    """One of the last takes, as a line."""

    number: str
    outcome: Outcome
    words: str
    pointed: bool


@dataclass(frozen=True)
class Shown:
    """What the operator sees.

    Attributes:
        word: the state, in a word or two that can be read from two metres.
        tone: its colour.
        below: what that means, or what to do.
        clock: time that is left or has gone, such as `0:07`; "" where none runs.
        share: how much of the stage's time is over, 0 to 1; NaN where it has no end.
        count: takes that count, of those wanted.
        loop: rate and what got lost, in a line.
        trouble: something in that line is not as it should be.
        driving: how fast the policy may drive and how often it was helped, in a line.
        question: what is asked; "" where nothing is.
        choices: the answers to it.
        bars: quotas.
        setup: what is set up, or next.
        rows: the last takes, newest first.
        hints: keys that do something now.
        note: a line for the operator.
        task: the instruction.
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
    setup: SetUp = field(default_factory=SetUp)
    rows: tuple[TakeLine, ...] = ()
    hints: tuple[Hint, ...] = ()
    note: str = ""
    task: str = ""


def look(seen: ScreenContent) -> Shown:
    """Return what to show."""
    state = seen.state
    word, tone, below = _sign(seen)
    left_s = None if seen.loop.lost else state.left_s(seen.now_s)
    limit_s = (
        state.timing.episode_s if state.stage is SessionStage.RECORDING else state.timing.reset_s
    )
    asked = state.inquiry
    return Shown(
        word,
        tone,
        below,
        "" if left_s is None else clock(left_s),
        math.nan if left_s is None or limit_s <= 0 else 1.0 - left_s / limit_s,
        _count(seen),
        _loop(seen.loop),
        _in_trouble(seen.loop),
        _driving(seen),
        "" if asked is None else ASKED[asked.question],
        () if asked is None else tuple(_choices(asked, seen.keys)),
        (*_ramp(seen.driven), *seen.bars),
        seen.setup,
        tuple(_rows(seen)),
        hints(seen),
        seen.note or (seen.loop.faults[-1] if seen.loop.faults else ""),
        seen.task,
    )


_SIGNS: Final = {
    SessionStage.READY: ("READY", Tone.GO),
    SessionStage.STARTING: ("STARTING", Tone.GO),
    SessionStage.RECORDING: ("RECORDING", Tone.RECORD),
    SessionStage.ENDING: ("ENDING", Tone.RECORD),
    SessionStage.VERDICT: ("HOW WAS IT?", Tone.ASK),
    SessionStage.RESET: ("RESET", Tone.WAIT),
    SessionStage.SET_UP: ("SET UP", Tone.WAIT),
    SessionStage.DONE: ("DONE", Tone.IDLE),
    SessionStage.ENDED: ("ENDED", Tone.IDLE),
}
_DRIVERS: Final = {
    Driver.NOBODY: ("HOLDING", Tone.IDLE),
    Driver.POLICY: ("POLICY", Tone.RECORD),
    Driver.PERSON: ("YOU DRIVE", Tone.PERSON),
    Driver.ALIGNING: ("ALIGNING", Tone.WAIT),
}
"""What is said in a rollout while it is recorded."""
_QUESTIONS: Final = {
    Question.OUTCOME: "HOW WAS IT?",
    Question.MODE: "WHAT FAILED?",
    Question.DIMENSION: "WHY?",
    Question.REASON: "DISCARD: WHY?",
}


def _sign(seen: ScreenContent) -> tuple[str, Tone, str]:
    """Return the word, its colour and the line below."""
    state, loop = seen.state, seen.loop
    if loop.found:
        return "FOUND AGAIN", Tone.WAIT, loop.lost
    if loop.lost:
        return "DEVICE LOST", Tone.ALARM, loop.lost
    if loop.trip:
        return "TRIPPED", Tone.ALARM, loop.trip
    if state.inquiry is not None:
        return _QUESTIONS[state.inquiry.question], Tone.ASK, _about(seen, state.inquiry)
    if state.blocked and state.stage in BETWEEN:
        return "WAITING", Tone.ALARM, state.blocked
    if state.paused and state.stage in BETWEEN:
        return "PAUSED", Tone.IDLE, f"{seen.keys.name(Command.PAUSE)} goes on."
    if state.stage is SessionStage.RECORDING and seen.driven is not None:
        return *_DRIVERS[seen.driven.driver], _below(seen)
    word, tone = _SIGNS[state.stage]
    return word, tone, _below(seen)


def _below(seen: ScreenContent) -> str:
    state, key = seen.state, seen.keys.name(Command.NEXT)
    return {
        SessionStage.READY: f"{key} starts the take.",
        SessionStage.STARTING: "The take is about to begin.",
        SessionStage.RECORDING: _taking(seen),
        SessionStage.ENDING: "The take is being closed.",
        SessionStage.RESET: f"Put everything back; {key} when it is."
        if not state.timing.auto_start
        else f"Put everything back; the next take begins by itself, or with {key}.",
        SessionStage.SET_UP: f"{seen.setup.words}. {key} when it is set up.",
        SessionStage.DONE: f"Everything is recorded; {key} ends the session.",
        SessionStage.ENDED: "Torque goes off; takes are sealed, then published.",
    }.get(state.stage, "")


def _taking(seen: ScreenContent) -> str:
    number = max((take.number for take in seen.takes), default=0) + 1
    task = f": {seen.task}" if seen.task else "."
    if seen.driven is None:
        return f"Take {number}{task}"
    if seen.driven.driver is Driver.ALIGNING:
        return "Hold the leader: it comes to the arm's pose, then it is limp and yours."
    return f"Recording take {number}{task}"


def _about(seen: ScreenContent, asked: Inquiry) -> str:
    number = next((take.number for take in seen.takes if take.uid == asked.uid), 0)
    return f"Take {number}." if number else "An earlier take."


def clock(duration_s: float) -> str:
    """Return a duration as minutes and seconds, such as `1:07`."""
    seconds = math.ceil(duration_s - 1e-9)
    return f"{seconds // 60}:{seconds % 60:02d}"


def _count(seen: ScreenContent) -> str:
    text = f"{seen.counted} of {seen.wanted}" if seen.wanted else f"{seen.counted}"
    if math.isfinite(seen.left_s) and seen.left_s > 0:
        minutes = math.ceil(seen.left_s / 60)
        text += f" · about {minutes // 60} h {minutes % 60:02d} min left" if minutes > 89 else ""
        text += f" · about {minutes} min left" if minutes <= 89 else ""
    return text


def _loop(loop: Loop) -> str:
    if loop.lost:
        return "nothing is driven"
    parts = []
    if math.isfinite(loop.control_hz):
        parts.append(f"{loop.control_hz:.0f} Hz")
    if math.isfinite(loop.fps):
        parts.append(f"{loop.fps:g} fps")
    parts.append(f"missed {loop.missed}")
    dropped = ", ".join(f"{camera} {count}" for camera, count in loop.dropped.items() if count)
    parts.append(f"dropped {dropped or 0}")
    if loop.behind_s:
        parts.append(f"VIDEO {loop.behind_s:.1f} s BEHIND: close other programs")
    if loop.trips:
        parts.append(f"tripped {loop.trips}x")
    return " · ".join(parts)


def _driving(seen: ScreenContent) -> str:
    driven = seen.driven
    if driven is None:
        return ""
    parts = [f"policy at {driven.speed_scale:.0%} of its speed"]
    if seen.state.stage in RUNS_ON:
        helped = f", {driven.person_s:.1f} s" if driven.interventions else ""
        parts.append(f"taken over {driven.interventions}x{helped}")
    elif driven.driver is Driver.PERSON:
        parts.append("you drive")
    elif driven.driver is Driver.ALIGNING:
        parts.append("hold the leader, it is coming")
    return " · ".join(parts)


def _ramp(driven: Driven | None) -> Iterator[QuotaBar]:
    """Yield how far the policy is on its way to full speed."""
    if driven is not None and driven.successes is not None:
        yield QuotaBar("successes without help, for full speed", driven.successes, SUCCESSES)


def _in_trouble(loop: Loop) -> bool:
    return bool(loop.trip or loop.lost or loop.behind_s or any(loop.dropped.values()))


def _choices(asked: Inquiry, keys: KeyMap) -> Iterator[AnswerChoice]:
    commands = (Command.SUCCESS, Command.FAILURE, Command.DISCARD)
    suggested = asked.__class__(asked.uid, asked.question, asked.suggestion).at
    for place, value in enumerate(asked.choices):
        key = str((place + 1) % 10)
        if asked.question is Question.OUTCOME:
            key = keys.name(commands[place]) or key
        words = "discard" if value == Outcome.DISCARDED.value else value.replace("_", " ")
        yield AnswerChoice(key, words, place == asked.at, place == suggested)


def _rows(seen: ScreenContent) -> Iterator[TakeLine]:
    points = seen.state.stage in BETWEEN and seen.state.inquiry is None
    for take in reversed(seen.takes[-SHOWN_TAKES:]):
        pointed = points and take.uid == seen.state.at
        yield TakeLine(str(take.number or "·"), take.outcome, take_words(take), pointed)


def take_words(take: TakeSeen) -> str:
    """Say what stands about a take, such as `failure: slip, contact dynamics`."""
    said, more = take.said, []
    if take.outcome is Outcome.FAILURE:
        more = [said.get("failure_mode", ""), *dict(said.get("dimensions") or {})]
    elif take.outcome is Outcome.DISCARDED:
        more = [said.get("discard_reason", "")]
    words = ", ".join(str(word).replace("_", " ") for word in more if word)
    return f"{take.outcome.value}: {words}" if words else take.outcome.value
