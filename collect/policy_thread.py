"""A policy asked in a thread of its own: however long it takes, the control loop goes on."""

from __future__ import annotations

import math
import queue
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass

import numpy as np

from gaploop.collect.policy_leader import ROUNDING, PolicyLeader
from gaploop.core.protocols import Follower, Policy
from gaploop.core.types import FloatArray, LeaderSample, Observation
from gaploop.teleop.stopping import Attempt


@dataclass(frozen=True)
class _Question:
    """What the thread is to work out; without an observation, that a new take begins."""

    about: Observation | None
    number: int


@dataclass(frozen=True)
class _Answer:
    """What came of it."""

    number: int
    target: FloatArray
    error: Exception | None
    took_s: float


class PatientLeader(PolicyLeader):
    """Drives a follower by a policy that may take longer than a turn of the loop, or than a frame.

    A frame's observation goes to the policy's thread, if that is idle and a target is needed. The
    arm moves on along the targets that are there, each over one frame's time, and holds at the
    last one until the next is worked out: a slow policy moves the arm more slowly, and the loop
    keeps its rate. `pace` says how long the policy took and the arm had to wait.

    Args:
        policy: asked in its own thread only.
        follower: converts units.
        fps: policy frames per second of the loop [Hz].
        control_hz: turns of the loop per second [Hz].

    Raises:
        UnusableInputError: the policy was trained at another rate.
    """

    def __init__(self, policy: Policy, follower: Follower, fps: float, control_hz: float) -> None:
        self._number = 0
        self._is_asked = False
        self._questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self._answers: deque[_Answer] = deque()
        self._error: Exception | None = None
        threading.Thread(
            target=_think, args=(policy, self._questions, self._answers), name="policy", daemon=True
        ).start()
        self._end = weakref.finalize(self, self._questions.put, None)
        super().__init__(policy, follower, fps, control_hz)
        self._period_s = 1.0 / control_hz

    def reset(self) -> None:
        """Get ready for a new take; an answer that still comes is thrown away."""
        self._number += 1
        self._is_asked = False
        self._error = None
        self._questions.put(_Question(None, self._number))
        self._path = []
        self._at = 0.0

    def close(self) -> None:
        """End the thread, after what it is working out; safe to call twice."""
        self._end()

    def observe(self, observation: Observation) -> None:
        """Hand an observation to the policy, if a target is needed and it is idle.

        Raises:
            Exception: whatever the policy raised since.
        """
        self._hear()
        if self._error is not None:
            raise self._error
        if not self._path or not np.isfinite(self._path[-1]).all():
            self._path, self._at = [self._follower.from_units(observation.state)], 0.0
        if not self._is_asked and self._left < self._speed_scale - ROUNDING:
            self._is_asked = True
            self._questions.put(_Question(observation, self._number))

    def read(self, t_s: float) -> LeaderSample:
        """Return the joint target for loop time `t_s` [s].

        Raises:
            UnusableInputError: nothing has been observed yet.
        """
        self._hear()
        if not self._path:
            return super().read(t_s)
        step = self._speed_scale / self._turns
        if self._is_asked and self._left < step - ROUNDING:
            self.pace.waited_s += self._period_s
        self._at += min(step, self._left)
        while self._at >= 1.0 - ROUNDING and len(self._path) > 1:
            self._path.pop(0)
            self._at = max(self._at - 1.0, 0.0)
        if len(self._path) == 1:
            return LeaderSample(t_s, self._path[0])
        start, target = self._path[0], self._path[1]
        return LeaderSample(t_s, start + self._at * (target - start))

    @property
    def _left(self) -> float:
        """How much of the way is left, in policy steps."""
        return len(self._path) - 1 - self._at

    def _hear(self) -> None:
        """Take in what the thread has worked out."""
        while self._answers:
            answer = self._answers.popleft()
            if answer.number != self._number:
                continue
            self._is_asked = False
            self.pace.took(answer.took_s)
            if answer.error is not None:
                self._error = answer.error
            elif self._path:
                self._path.append(self._follower.from_units(answer.target))


def _think(
    policy: Policy, questions: queue.SimpleQueue[_Question | None], answers: deque[_Answer]
) -> None:
    """Answer questions until there is None; the thread's work."""
    while (question := questions.get()) is not None:
        start_s = time.perf_counter()
        target: FloatArray = np.full(1, math.nan)
        with Attempt() as attempt:
            if question.about is None:
                policy.reset()
            else:
                target = np.asarray(policy.act(question.about), dtype=np.float64)
        took_s = time.perf_counter() - start_s
        if question.about is not None or attempt.error is not None:
            answers.append(_Answer(question.number, target, attempt.error, took_s))
