"""A policy as a command source: observations in at the policy rate, joint targets out.

`PolicyLeader` asks the policy in the loop's own thread, as simulated time can wait;
`AsyncPolicyDriver` asks it in a thread of its own: however long it takes, the loop goes on.
"""

import math
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import SPEED, FloatArray, LeaderSample, Observation
from gaploop.core.protocols import Follower, Policy
from gaploop.teleop.stopping import CleanupStep


def lag_share(time_constant_s: float | None, fps: float) -> float:
    """Return by which share of the way a first-order lag comes nearer in a frame; 1 without lag.

    A constant target is approached to 63 % within `time_constant_s`, above 0; a moving one is
    followed that much later.
    """
    if time_constant_s is None:
        return 1.0
    if not 0 < time_constant_s < math.inf:
        raise UnusableInputError(
            f"--smoothing_s must be above 0 s, got {time_constant_s:g}. Leave it out "
            "for no smoothing."
        )
    return -math.expm1(-1.0 / (fps * time_constant_s))


def lagged(before: FloatArray, target: FloatArray, share: float) -> FloatArray:
    """Return what lies by `share` on the way from what was asked for `before` to a target."""
    if share == 1.0 or not np.isfinite(before).all():
        return target
    return before + share * (target - before)


def checked_speed(scale: float) -> float:
    """Return a `speed_scale`; UnusableInputError where it isn't above 0 and up to 1."""
    if not 0 < scale <= 1:
        raise UnusableInputError(f"--speed_scale must be above 0 and up to 1, got {scale:g}.")
    return scale


def cross_faded(old: Sequence[FloatArray], new: Sequence[FloatArray]) -> list[FloatArray]:
    """Return `new`, come to gradually from `old` over the steps that both have; (n_joints,) each.

    The weight of the old one falls as in real-time chunking's soft mask (Black, Galliker and
    Levine 2025): half as fast as a straight line at first, nothing is left of it at the end.
    """
    both = min(len(old), len(new))
    line = np.linspace(1.0, 0.0, both + 2)[1:-1]
    weights = line * np.expm1(line) / math.expm1(1.0)
    faded = [n + w * (o - n) for o, n, w in zip(old, new, weights, strict=False)]
    return [*faded, *new[both:]]


ROUNDING: Final = 1e-9
LEARNS: Final = 0.1
"""Share by which a new reading counts in how far readings lie from what was foretold."""
SURPRISED: Final = 3.0
"""A reading more standard deviations off than this counts at once."""
LEAST_GAIN: Final = 0.05


class JointFilter:
    """Where joints are, by noisy readings and by how far their commands moved meanwhile.

    It foretells that each joint moves as its command does, and believes a reading as far as
    readings lie off that by more than their noise (a Kalman gain from innovations: Mehra 1970). So
    a joint that follows its commands badly, or is held, goes by its readings.

    Args:
        noise_rad: standard deviation of each joint's readings [rad], shape (n_joints,); a joint
            with 0 is where it reads. NaN was not read.
    """

    def __init__(self, noise_rad: FloatArray) -> None:
        self._variance = noise_rad**2
        self._before: tuple[FloatArray, FloatArray, FloatArray] | None = None

    def reset(self) -> None:
        """Forget the take before."""
        self._before = None

    def update(self, read_rad: FloatArray, commanded_rad: FloatArray) -> FloatArray:
        """Return where the joints are [rad], shape (n_joints,), as are both arguments."""
        q_rad, off = read_rad, 4.0 * self._variance
        if self._before is not None:
            q_rad, off, commanded_before = self._before
            q_rad = q_rad + commanded_rad - commanded_before
            read = np.isfinite(read_rad)  # what wasn't read goes on as it is commanded
            off_rad = np.where(read, read_rad - q_rad, 0.0)
            off = np.where(read, off + LEARNS * (off_rad**2 - off), off)
            seen = np.maximum(np.maximum(off, (off_rad / SURPRISED) ** 2), 1e-12)
            gain = np.clip(1.0 - self._variance / seen, LEAST_GAIN, 1.0)
            q_rad = np.where(self._variance, q_rad + gain * off_rad, read_rad)
        if np.isfinite(q_rad[self._variance > 0]).all():
            self._before = q_rad, off, commanded_rad
        return q_rad


@dataclass
class Pace:
    """How long a policy took in a take, and how long the arm stood because it wasn't done [s]."""

    asked: int = 0
    total_s: float = 0.0
    worst_s: float = 0.0
    waited_s: float = 0.0

    def took(self, duration_s: float) -> None:
        """Take note of an answer."""
        self.asked += 1
        self.total_s += duration_s
        self.worst_s = max(self.worst_s, duration_s)

    @property
    def mean_s(self) -> float:
        """Mean time for an answer [s]."""
        return self.total_s / max(self.asked, 1)


class PolicyLeader:
    """Drives a follower by a policy.

    The loop hands observations to `observe` on policy frames. Between two frames the target
    moves in a straight line, so that a policy's steps don't read as jumps of twice the speed.

    At a `speed_scale` below 1 the same targets are passed through in the same order, more slowly:
    a frame moves along that share of a policy's step, and the policy is asked when the next target
    is needed. However far the first target lies, the arm goes there at that share of its velocity
    limit; of a base's speeds that share is asked for.

    A policy that knows of a delay (`delay_s`) plans for when its commands arrive: it is told where
    the joints will be then, the readings plus what was commanded meanwhile (Smith 1957). One that
    knows of late pictures (`camera_delay_s`) is told where the joints were as they were taken; its
    plans leave out the steps that are over, for both delays. One that knows of noise in readings
    (`noise_rad`, shape (n_joints,)) is told what `JointFilter` makes of them.

    Args:
        policy: answers in the follower's LeRobot units.
        lag_s: time constant of a first-order lag by which targets are followed [s]; not if None.

    Raises:
        UnusableInputError: the policy was trained at another rate, or a lag that isn't above 0.
    """

    def __init__(
        self,
        policy: Policy,
        follower: Follower,
        fps: float,
        control_hz: float,
        lag_s: float | None = None,
    ) -> None:
        if abs(policy.fps - fps) > 1e-6:
            raise UnusableInputError(
                f"The policy was trained at {policy.fps:g} fps and the loop runs at {fps:g}. "
                f"Set --dataset.fps={policy.fps:g}."
            )
        self._policy, self._follower = policy, follower
        self._share = lag_share(lag_s, fps)
        self._turns = max(1, round(control_hz / fps))
        self._speed_scale = 1.0
        self.is_speed = np.array([name.endswith(SPEED) for name in follower.joint_names])
        """Which of the follower's joints are speeds of a base, shape (n_joints,)."""
        late = float(getattr(policy, "delay_s", 0.0)) * fps
        pictures = float(getattr(policy, "camera_delay_s", 0.0)) * fps
        self._old = pictures + late if round(pictures) else 0.0
        """Frames by which what a plan is made from is old when a command arrives."""
        self._states: deque[FloatArray] = deque(maxlen=round(pictures) + 1)
        """Readings of this frame and of those since its picture was taken."""
        self._ahead: deque[FloatArray] = deque()
        """Of a plan from old pictures, what is still to be executed."""
        self._frames = 0
        """Since the arm was last at rest."""
        late = 0 if self._old else round(late)
        self._commanded: deque[FloatArray] = deque(maxlen=late + 1)
        """Targets of this frame and of those before that haven't arrived yet."""
        noise_rad = np.asarray(getattr(policy, "noise_rad", ()), dtype=np.float64)
        self._filter = JointFilter(noise_rad) if noise_rad.any() else None
        self.pace = Pace()
        """How long the policy took since it was last set anew."""
        self.reset()

    @property
    def speed_scale(self) -> float:
        """Policy steps per frame, above 0 and up to 1."""
        return self._speed_scale

    @speed_scale.setter
    def speed_scale(self, scale: float) -> None:
        self._speed_scale = checked_speed(scale)

    def reset(self) -> None:
        """Get ready for a new take."""
        self._policy.reset()
        self._forget()
        self._ahead.clear()
        self._path: list[FloatArray] = []
        self._turn = 0
        self._at = 0.0  # where on the path the frame begins, in policy steps

    def _forget(self) -> None:
        """Forget what was read and commanded in the take before."""
        self._commanded.clear()
        self._states.clear()
        self._frames = 0
        if self._filter is not None:
            self._filter.reset()

    def start_from(self, q_rad: FloatArray) -> None:
        """Plan anew from the next observation on, and move there from `q_rad` [rad]."""
        self.reset()
        self._path = [self._at_full_speed(q_rad)]

    def _at_full_speed(self, q_rad: FloatArray) -> FloatArray:
        """Return where the arm is, with the speeds of a base as a policy asks for them."""
        return np.where(self.is_speed, q_rad / self._speed_scale, q_rad)

    def _begin_path(self, observation: Observation) -> None:
        """Begin where the arm is, unless it is known where the path leads."""
        if not self._path or not np.isfinite(self._path[-1]).all():
            self._path = [self._at_full_speed(self._follower.from_units(observation.state))]
            self._at = 0.0

    def _asks(self, t_s: float, target: FloatArray) -> LeaderSample:
        """Return what is asked for of a target on the path."""
        share = self._speed_scale
        q_rad = np.where(self.is_speed, share * target, target)
        return LeaderSample(t_s, q_rad, speed_share=share)

    def observe(self, observation: Observation) -> None:
        """Ask the policy for its next target, if this frame needs it."""
        if len(self._path) > 1:
            self._at += self._speed_scale  # where the frame before has led, or should have
        while self._at >= 1.0 - ROUNDING and len(self._path) > 1:
            self._path.pop(0)
            self._at = max(self._at - 1.0, 0.0)
        self._begin_path(observation)
        self._turn = 0
        observation = self._on_arrival(observation)
        while self._at + self._speed_scale > len(self._path) - 1 + ROUNDING:
            start_s = time.perf_counter()
            asked = np.asarray(self._next(observation), dtype=np.float64)
            self.pace.took(time.perf_counter() - start_s)
            target = self._follower.from_units(asked)
            self._path.append(lagged(self._path[-1], target, self._share))

    def _next(self, observation: Observation) -> FloatArray:
        policy = self._policy
        if not self._old or not isinstance(policy, Planner):
            return policy.act(observation)
        if not self._ahead:
            plan = policy.plan(observation)
            self._ahead.extend(plan[min(self._over, len(plan) - 1) :][: policy.execute])
        return self._ahead.popleft()

    @property
    def _over(self) -> int:
        """Steps of a plan that are over when it is made, as what it is made from is old."""
        return round(min(self._old, self._frames - 1) * self._speed_scale)

    def _on_arrival(self, observation: Observation) -> Observation:
        """Return an observation with the joints where they will be when a command arrives.

        Where pictures are late: where they were when its picture was taken. Both without noise that
        is known.
        """
        self._frames += 1
        start, target = self._path[0], self._path[min(1, len(self._path) - 1)]
        self._commanded.append(start + min(self._at, 1.0) * (target - start))
        if self._filter is not None:
            read_rad = self._follower.from_units(observation.state)
            q_rad = self._filter.update(read_rad, self._commanded[0])
            observation = replace(observation, state=self._follower.to_units(q_rad))
        self._states.append(observation.state)
        if len(self._states) > 1:
            return replace(observation, state=self._states[0])
        if self._commanded.maxlen == 1:
            return observation
        underway = self._commanded[-1] - self._commanded[0]
        q_rad = self._follower.from_units(observation.state) + underway
        return replace(observation, state=self._follower.to_units(q_rad))

    def read(self, t_s: float) -> LeaderSample:
        """Return the joint target for loop time `t_s` [s].

        Raises UnusableInputError where nothing has been observed yet.
        """
        if not self._path:
            raise UnusableInputError(
                "The policy hasn't seen an observation yet: give its `observe` to the loop's "
                "on_frame."
            )
        if len(self._path) == 1:
            return self._asks(t_s, self._path[0])
        self._turn = min(self._turn + 1, self._turns)
        at = self._at + self._speed_scale * self._turn / self._turns
        step = min(math.floor(at), len(self._path) - 2)
        start, target = self._path[step], self._path[step + 1]
        return self._asks(t_s, start + min(at - step, 1.0) * (target - start))

    def close(self) -> None:
        """Let go of what the policy runs in; here it is the caller's thread."""

    def done(self) -> bool:
        """Return False: a policy doesn't say when it is done."""
        return False


REMEMBERED: Final = 3
"""The next plan is expected to take as long as the longest of so many: the first one takes longer
than all others, and isn't to be expected again."""
OVERLAP_S: Final = 0.2
"""Over how long the arm goes over to a new plan, where the old one reaches that far [s]."""
STANDS_S: Final = 0.2
"""A base that waits so long for the next plan stands [s]: to hold a speed is to drive on."""


@runtime_checkable
class Planner(Policy, Protocol):
    """A policy that plans several steps at once."""

    execute: int
    """Steps of a plan that it is meant to execute before the next one."""

    def plan(self, observation: Observation) -> FloatArray:
        """Return the next joint targets, shape (n_steps, n_joints), in the robot's LeRobot units.

        There may be more than `execute`: they bridge the time in which the next plan is made.
        """


@runtime_checkable
class RealTimePlanner(Planner, Protocol):
    """A policy that takes what is left of its last plan into account itself."""

    def replan(self, observation: Observation, passed: int, delay: int) -> FloatArray:
        """Return the next joint targets, as `plan`, that go on with the last plan.

        Args:
            passed: steps of the last plan that are over when the new one begins.
            delay: steps of the new one that will be over when it is there.
        """


@dataclass(frozen=True)
class InferenceRequest:
    """What is to be worked out; without an observation, that a new take begins.

    Attributes:
        about: what the policy sees.
        number: of the take.
        first: the step that the plan's first target is for.
        passed: steps since the first one of the plan before; None where there is none.
        delay: steps that it is expected to take.
        over: steps of it that are over when it is begun, as pictures are late.
    """

    about: Observation | None
    number: int
    first: int = 0
    passed: int | None = None
    delay: int = 0
    over: int = 0


@dataclass(frozen=True)
class InferenceResult:
    """What came of it: a plan, shape (n_steps, n_joints), or an error."""

    request: InferenceRequest
    plan: FloatArray
    error: Exception | None
    took_s: float


class _Thread:
    """Works plans out in a thread of its own."""

    def __init__(self, policy: Policy) -> None:
        requests: queue.SimpleQueue[InferenceRequest | None] = queue.SimpleQueue()
        results: deque[InferenceResult] = deque()

        def infer_all() -> None:  # it doesn't know `self`, which ends it when it is let go of
            while (request := requests.get()) is not None:
                if (result := _infer(policy, request)) is not None:
                    results.append(result)

        threading.Thread(target=infer_all, name="policy", daemon=True).start()
        self._requests, self._results = requests, results
        self.close = weakref.finalize(self, requests.put, None)

    def request(self, request: InferenceRequest, _now_s: float) -> None:
        self._requests.put(request)

    def results(self, _now_s: float) -> Iterator[InferenceResult]:
        while self._results:
            yield self._results.popleft()


class _Timed:
    """Works plans out at once and hands them out as late as if they had taken so long."""

    def __init__(self, policy: Policy, takes_s: float) -> None:
        self._policy, self._takes_s = policy, takes_s
        self._results: deque[tuple[float, InferenceResult]] = deque()

    def request(self, request: InferenceRequest, now_s: float) -> None:
        result = _infer(self._policy, request)
        if result is not None:
            due_s = now_s + self._takes_s - ROUNDING
            self._results.append((due_s, replace(result, took_s=self._takes_s)))

    def results(self, now_s: float) -> Iterator[InferenceResult]:
        while self._results and self._results[0][0] <= now_s:
            yield self._results.popleft()[1]

    def close(self) -> None:
        """Let go of nothing."""


class AsyncPolicyDriver(PolicyLeader):
    """Drives a follower by a policy that may take longer than a turn of the loop, or than a frame.

    Real-time chunking. An observation goes to the policy's thread as long before the plan's last
    step to be executed as plans take lately, plus `OVERLAP_S`, if the policy plans that far ahead.
    What will have been executed when the new plan is there stays as it was planned, and over the
    steps that both plans have the arm goes over from one to the other: by LeRobot's own real-time
    chunking where the policy has it (`RealTimePlanner`), else by `cross_faded`. The arm moves along
    the targets that are there, each over one frame's time, and holds at the last one until the
    next is worked out, a base for `STANDS_S`; the loop keeps its rate. `pace` says how long the
    policy took and the arm had to wait.

    A policy that takes longer for a plan than a plan can bridge, `REMEMBERED` times in a row, is
    refused: it would drive in another rhythm than it was trained in. One that gives a step at a
    time has no plan to bridge anything with; it moves the arm more slowly.

    Args, beside those of `PolicyLeader`:
        takes_s: time that an answer takes by the loop's turns, whatever it takes by the clock [s];
            the policy is then asked in the caller's thread. For simulated time.
    """

    def __init__(
        self,
        policy: Policy,
        follower: Follower,
        fps: float,
        control_hz: float,
        lag_s: float | None = None,
        takes_s: float | None = None,
    ) -> None:
        self._number = 0
        self._is_asked = False
        self._error: Exception | None = None
        self._blends = not isinstance(policy, RealTimePlanner)
        self._took_s: deque[float] = deque(maxlen=REMEMBERED)
        self._long = 0
        """Steps of the last plan."""
        self._step = 0
        """The step that the arm is on: it moves from `_path[0]` to `_path[1]`."""
        self._first: int | None = None
        """The step that the last plan's first target is for; None before the first plan."""
        self._worker = _Thread(policy) if takes_s is None else _Timed(policy, takes_s)
        self._now_s = self._waits_s = 0.0
        super().__init__(policy, follower, fps, control_hz, lag_s)
        self._period_s, self._fps = 1.0 / control_hz, fps

    def reset(self) -> None:
        """Get ready for a new take; a result that still comes is thrown away."""
        self._number += 1
        self._is_asked = False
        self._error = None
        self._worker.request(InferenceRequest(None, self._number), self._now_s)
        self._forget()
        self._path = []
        self._at = 0.0
        self._step, self._first = 0, None

    def close(self) -> None:
        """End the thread, after what it is working out; safe to call twice."""
        self._worker.close()

    def observe(self, observation: Observation) -> None:
        """Hand an observation to the policy, if the next plan is due and it is idle.

        Raises what the policy raised since, or that plans take longer than they can bridge.
        """
        self._poll()
        if self._error is not None:
            raise self._error
        self._begin_path(observation)
        observation = self._on_arrival(observation)
        now = self._step + self._at
        if not self._is_asked and (self._first is None or now + self._speed_scale > self._due):
            self._is_asked = True
            first = round(now)
            passed = None if self._first is None else first - self._first
            request = InferenceRequest(
                observation, self._number, first, passed, self._delay + self._over, self._over
            )
            self._worker.request(request, self._now_s)
            self._poll()

    def read(self, t_s: float) -> LeaderSample:
        """Return the joint target for loop time `t_s` [s], as `PolicyLeader.read`."""
        self._poll()
        self._now_s += self._period_s
        if not self._path:
            return super().read(t_s)
        step = self._speed_scale / self._turns
        left = len(self._path) - 1 - self._at
        if is_late := self._is_asked and left < step - ROUNDING:
            self.pace.waited_s += self._period_s
        self._waits_s = self._waits_s + self._period_s if is_late else 0.0
        self._at += min(step, left)
        while self._at >= 1.0 - ROUNDING and len(self._path) > 1:
            self._path.pop(0)
            self._at, self._step = max(self._at - 1.0, 0.0), self._step + 1
            self._aim()
        if len(self._path) == 1:
            stands = self.is_speed & (self._waits_s > STANDS_S)
            return self._asks(t_s, np.where(stands, 0.0, self._path[0]))
        start, target = self._path[0], self._path[1]
        return self._asks(t_s, start + self._at * (target - start))

    @property
    def _delay(self) -> int:
        """How many steps the next plan is expected to take."""
        return self._steps(max(self._took_s, default=0.0))

    def _steps(self, duration_s: float) -> int:
        return math.ceil(duration_s * self._fps * self._speed_scale - ROUNDING)

    @property
    def _execute(self) -> int:
        return self._policy.execute if isinstance(self._policy, Planner) else 1

    @property
    def _spare(self) -> int:
        """Steps of a plan that can bridge the making of the next one.

        Half of it: plans are made one after another, and each has to last until the one that is
        begun when it is there is made.
        """
        return self._long // 2

    @property
    def _due(self) -> float:
        """Up to which step of the arm the next plan needs not be asked for."""
        ahead = min(self._delay + round(OVERLAP_S * self._fps), self._spare)
        return (self._first or 0) + min(self._execute, self._long - ahead) + ROUNDING

    def _aim(self) -> None:
        """Let the step that begins lead towards its target as far as the lag allows."""
        if len(self._path) > 1:
            self._path[1] = lagged(self._path[0], self._path[1], self._share)

    def _poll(self) -> None:
        for result in self._worker.results(self._now_s):
            if result.request.number != self._number:
                continue
            self._is_asked = False
            self.pace.took(result.took_s)
            self._took_s.append(result.took_s)
            if result.error is not None:
                self._error = result.error
            elif self._path:
                self._follow(result)

    def _follow(self, result: InferenceResult) -> None:
        """Go over to a plan from the step after the one that the arm is on."""
        plan = [
            self._follower.from_units(target)
            for target in result.plan[min(result.request.over, len(result.plan) - 1) :]
        ]
        self._long, self._first = len(plan), result.request.first
        self._require_in_time()
        is_on_its_way = len(self._path) > 1
        kept = self._path[: 1 + is_on_its_way]  # a step that has begun is ended
        gone = min(self._step + is_on_its_way - self._first, len(plan) - 1)
        old, new = self._path[len(kept) :], plan[max(gone, 0) :]
        self._path = [*kept, *self._joined(old, new)]
        if not is_on_its_way:
            self._aim()

    def _joined(self, old: list[FloatArray], new: list[FloatArray]) -> list[FloatArray]:
        """Return what the arm follows: a new plan, beside what is left of the old one."""
        return cross_faded(old, new) if self._blends else new

    def _require_in_time(self) -> None:
        """Note as an error that plans take longer than they can bridge."""
        least_s = min(self._took_s)
        late = len(self._took_s) == REMEMBERED and self._steps(least_s) > self._spare
        if self._long == 1 or not late:
            return
        bridged_s = self._spare / (self._fps * self._speed_scale)
        self._error = UnusableInputError(
            f"The policy takes {1e3 * least_s:.0f} ms for a plan, and the {self._spare} of a "
            f"plan's {self._long} steps that can bridge this time last {1e3 * bridged_s:.0f} ms. "
            "Use a faster format or machine (gaploop doctor --policy.path=DIR), longer chunks, or "
            "a smaller --speed_scale."
        )


def _infer(policy: Policy, request: InferenceRequest) -> InferenceResult | None:
    """Ask a policy; None where a new take begins and nothing was wrong with that."""
    start_s = time.perf_counter()
    made: FloatArray = np.empty((0, 0))
    with CleanupStep() as attempt:
        if request.about is None:
            policy.reset()
        elif isinstance(policy, RealTimePlanner) and request.passed is not None:
            made = policy.replan(request.about, request.passed, request.delay)
        elif isinstance(policy, Planner):
            made = policy.plan(request.about)
        else:
            made = np.asarray(policy.act(request.about))[None]
    if request.about is None and attempt.error is None:
        return None
    plan = np.asarray(made, dtype=np.float64)
    return InferenceResult(request, plan, attempt.error, time.perf_counter() - start_s)
