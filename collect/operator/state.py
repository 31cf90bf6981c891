"""How a recording session stands, and what is to be done: the words of `machine`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from gaploop.collect.operator.commands import Command
from gaploop.collect.operator.inquiry import Inquiry, Said


class SessionStage(StrEnum):
    """What a session is doing."""

    SET_UP = "set up"
    """The station is being changed for the next conditions; the operator says when."""
    READY = "ready"
    STARTING = "starting"
    """A take was asked for and hasn't begun yet."""
    RECORDING = "recording"
    ENDING = "ending"
    """The take was told to end."""
    VERDICT = "verdict"
    RESET = "reset"
    DONE = "done"
    """Everything is recorded; labels can still be taken back."""
    ENDED = "ended"


BETWEEN: Final = (SessionStage.SET_UP, SessionStage.READY, SessionStage.RESET, SessionStage.DONE)
"""Stages in which nothing is recorded or asked, and earlier takes can be labelled anew."""
RUNS_ON: Final = (SessionStage.STARTING, SessionStage.RECORDING, SessionStage.ENDING)


class Deed(StrEnum):
    """What is to be done outside."""

    START = "start"
    """Let the next take begin."""
    END = "end"
    """End the take that is being recorded."""
    LABEL = "label"
    """Write down what was said."""
    UNDO = "undo"
    LEAVE = "leave"
    """End the session."""


@dataclass(frozen=True)
class Act:
    """One thing to be done.

    Attributes:
        deed: what.
        uid: the take that a label is about.
        said: label fields to values.
        anew: the first word about this take: with those that follow it is taken back as one.
    """

    deed: Deed
    uid: str = ""
    said: Said = MappingProxyType({})
    anew: bool = False


@dataclass(frozen=True)
class StageTiming:
    """How long the stages last.

    Attributes:
        episode_s: longest take [s].
        reset_s: time for putting things back [s].
        auto_start: the next take begins when that is over, as in lerobot-record.
    """

    episode_s: float
    reset_s: float
    auto_start: bool = False


@dataclass(frozen=True)
class SessionState:
    """How a session stands.

    Attributes:
        timing: how long the stages last.
        stage: what it is doing.
        since_s: when that began [s].
        stood_s: how long the stage's clock has stood still [s].
        paused_s: when it was last paused [s], or None where it isn't.
        inquiry: what the operator is asked, of the take just ended or of an earlier one.
        verdict: what the operator has said of the take before it ended.
        leaving: the session ends after this take's verdict.
        blocked: why no take may start, such as a trip; "" where it may.
        takes: uids of the takes that can be labelled anew, oldest first.
        purposes: uid to the dimensions that the take has where it doesn't fail.
        pointed: place in `takes` that the operator points at, or None for the newest.
    """

    timing: StageTiming
    stage: SessionStage = SessionStage.READY
    since_s: float = 0.0
    stood_s: float = 0.0
    paused_s: float | None = None
    inquiry: Inquiry | None = None
    verdict: Command | None = None
    leaving: bool = False
    blocked: str = ""
    takes: tuple[str, ...] = ()
    purposes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    pointed: int | None = None

    @property
    def paused(self) -> bool:
        """Whether the clock stands still."""
        return self.paused_s is not None

    def elapsed_s(self, now_s: float) -> float:
        """Return for how long the stage's clock has run [s]."""
        until_s = now_s if self.paused_s is None or self.stage in RUNS_ON else self.paused_s
        return max(0.0, until_s - self.since_s - self.stood_s)

    def left_s(self, now_s: float) -> float | None:
        """Return the time that the stage has left [s]; None where it has no end of its own."""
        limits = {
            SessionStage.RECORDING: self.timing.episode_s,
            SessionStage.RESET: self.timing.reset_s,
        }
        limit_s = limits.get(self.stage)
        return None if limit_s is None else max(0.0, limit_s - self.elapsed_s(now_s))

    @property
    def at(self) -> str:
        """Uid of the take that the operator points at; "" where there is none."""
        if not self.takes:
            return ""
        return self.takes[-1 if self.pointed is None else self.pointed]
