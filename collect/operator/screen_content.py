"""What a window or a terminal is told: how a session stands, as one frozen snapshot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gaploop.collect.intervention import Driver
from gaploop.collect.operator.commands import KeyMap
from gaploop.collect.operator.state import SessionState
from gaploop.core.vocabulary import Outcome


@dataclass(frozen=True)
class TakeSeen:
    """One of the last takes.

    Attributes:
        number: its place in the journal's order in this session, from 1; 0 where it is older.
        uid: the take.
        said: label field to the value that stands.
    """

    number: int
    uid: str
    said: Mapping[str, Any]

    @property
    def outcome(self) -> Outcome:
        """The outcome that stands."""
        return Outcome(self.said.get("outcome", Outcome.UNLABELLED))


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
        limp: torque is off.
        lost: which device is gone, in words, or "".
        found: what was lost answers again, and the operator says when the arm may move.
        faults: what else went wrong, newest last.
    """

    control_hz: float = math.nan
    fps: float = math.nan
    missed: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    trips: int = 0
    trip: str = ""
    limp: bool = False
    lost: str = ""
    found: bool = False
    faults: tuple[str, ...] = ()
    behind_s: float = 0.0


@dataclass(frozen=True)
class Driven:
    """Who drives in a rollout, and how fast the policy may.

    Attributes:
        driver: who drives now.
        can_switch: a person can take over, or drives and can hand back.
        speed_scale: share of its speed at which the policy drives.
        successes: its successes without help so far, of those that make it as fast as it is; None
            where the speed is fixed.
        interventions: how often the person took over in the attempt.
        person_s: how long the person drove in it [s].
    """

    driver: Driver = Driver.NOBODY
    can_switch: bool = False
    speed_scale: float = 1.0
    successes: int | None = None
    interventions: int = 0
    person_s: float = 0.0


@dataclass(frozen=True)
class QuotaBar:
    """How far a quota is filled."""

    name: str
    have: int
    wanted: int


@dataclass(frozen=True)
class SetUp:
    """What is set up, or is to be set up.

    Attributes:
        words: what to do, in words.
        conditions: what shall stand there, for the sketch.
        grid: rows and columns of the placement grid.
        takes: takes to record so.
    """

    words: str = ""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    grid: tuple[int, int] = (3, 3)
    takes: int = 0


@dataclass(frozen=True)
class ScreenContent:
    """Everything that is shown.

    Attributes:
        now_s: the time that `state` goes by [s].
        state: of the session.
        keys: which key asks for what.
        task: the instruction.
        counted: takes that count so far.
        wanted: takes that are asked for.
        takes: the last takes, oldest first.
        loop: how the control loop does.
        bars: quotas.
        setup: what is set up now, or next.
        note: a line for the operator.
        left_s: estimated time until everything is recorded [s], NaN where there is no estimate.
        hand_held: the leader's own keys count while its dead-man button is held.
        driven: who drives, in a rollout.
    """

    now_s: float
    state: SessionState
    keys: KeyMap
    task: str = ""
    counted: int = 0
    wanted: int = 0
    takes: tuple[TakeSeen, ...] = ()
    loop: Loop = field(default_factory=Loop)
    bars: tuple[QuotaBar, ...] = ()
    setup: SetUp = field(default_factory=SetUp)
    note: str = ""
    left_s: float = math.nan
    hand_held: str = ""
    driven: Driven | None = None
