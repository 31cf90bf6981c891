"""What of an arm's drives may differ, how well that explains its readings, and what is needed.

The arm is simulated open loop on the goals alone. Starting from the nominal drives, the parameter
that lowers the Bayesian information criterion (BIC) most is added and all that were added are
fitted again, until nothing lowers it: a delay of all joints costs one parameter, a worn servo one
of its own. Errors count by a Student distribution, so that the spans in which the arm touched
something, which no drive explains, hardly count.

Intervals come from how the takes' spans of two seconds disagree (a sandwich estimate over blocks;
Liang and Zeger 1986), since errors of neighbouring readings are one error. A parameter whose
interval is wider than any change that would matter is "not excited": the takes can't tell.

`scipy.optimize.least_squares` on `mujoco.rollout` does the fitting. MuJoCo's own `mujoco.sysid`
changes a model; the command path (delay, play, speed limit) acts before it and must be fitted, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter1d, minimum_filter1d
from scipy.optimize import least_squares
from scipy.stats import t as student

from gaploop.core.messages import FloatArray
from gaploop.sim.cell import ENCODER_STEP_RAD
from gaploop.sim.gaps import Parameter, all_mechanisms
from gaploop.sim.identification.open_loop import (
    REST_S,
    DriveLog,
    DrivenArm,
    OpenLoopArm,
    ServoArm,
    Setting,
    encoder_step_rad,
)

_A: Final = "actuator_response"
DRIVES: Final = f"{_A}.drives"
ZERO: Final = "spatial_geometry.zero_offset"


@dataclass(frozen=True)
class Quantity:
    """Something of a drive that may differ.

    Attributes:
        name: parameter of one joint in `actuator_response.drives`.
        shared: mechanism and parameter that change it in all joints alike.
        scale: in what it is fitted: itself, its logarithm or its inverse.
        starts: values to begin from.
        useful: change that would matter, as `scale` has it; intervals wider than this say nothing.
        step: for derivatives, as `scale` has it.
    """

    name: str
    shared: tuple[str, str]
    scale: Literal["linear", "log", "inverse"]
    starts: tuple[float, ...]
    useful: float
    step: float


LATENCY: Final = Quantity(
    "", (f"{_A}.latency", "latency_s"), "linear",
    (0.01, 0.02, 0.04, 0.07, 0.10, 0.14, 0.19, 0.25, 0.32, 0.40), 0.02, 0.001,
)  # fmt: skip
QUANTITIES: Final = (
    Quantity(
        "backlash_rad", (f"{_A}.backlash", "backlash_rad"), "linear",
        (0.005, 0.015, 0.03, 0.06, 0.10), 0.01, 0.0005,
    ),
    Quantity(
        "gain_factor", (f"{_A}.weak", "gain_factor"), "log",
        (0.4, 0.15, 0.06, 0.025, 0.01), math.log(3.0), 0.02,
    ),
    Quantity(
        "friction_nm", (f"{_A}.weak", "friction_nm"), "linear", (0.1, 0.2, 0.35, 0.6), 0.1, 0.005
    ),
    Quantity(
        "speed_limit_rad_s", (f"{_A}.slow", "speed_limit_rad_s"), "inverse",
        (3.0, 1.8, 1.1, 0.7, 0.45), 0.5, 0.01,
    ),
    Quantity(
        "acceleration_limit_rad_s2", (DRIVES, "acceleration_limit_rad_s2"), "inverse",
        (12.0, 6.0, 3.0, 1.5), 0.15, 0.003,
    ),
    Quantity(
        "torque_factor", (DRIVES, "torque_factor"), "log", (0.6, 0.35, 0.2, 0.12),
        math.log(2.0), 0.02,
    ),
    Quantity(
        "damping_factor", (DRIVES, "damping_factor"), "log", (3.0, 10.0, 30.0, 0.3),
        math.log(3.0), 0.02,
    ),
    Quantity(
        "armature_factor", (DRIVES, "armature_factor"), "log", (3.0, 10.0, 0.3),
        math.log(3.0), 0.02,
    ),
)  # fmt: skip
DEAD_BAND: Final = Quantity("dead_band_rad", ("", ""), "linear", (0.02,), 0.01, 0.002)
"""Of single joints only. It begins with what a joint jumps by and is looked for nearby, never
fitted by slopes: half a milliradian more moves each further jump by more."""
ZERO_OFFSET: Final = Quantity("", (ZERO, ""), "linear", (-0.03, 0.03), 0.01, 0.002)


@dataclass(frozen=True)
class Candidate:
    """A parameter that may be fitted: a quantity of all joints, or of one.

    Attributes:
        joint: whose; "" for all.
        column: of the joint among the arm's, or None.
    """

    mechanism: str
    parameter: str
    joint: str
    column: int | None
    quantity: Quantity

    @property
    def key(self) -> str:
        """Its name among the mechanism's values."""
        return f"{self.joint}.{self.parameter}" if self.joint else self.parameter

    @property
    def spec(self) -> Parameter:
        """Unit, limits and nominal value, as the mechanism has them."""
        return all_mechanisms()[self.mechanism].parameter(self.key)

    def scaled(self, value: float) -> float:
        """Return a value as it is fitted."""
        scale = self.quantity.scale
        return math.log(value) if scale == "log" else 1 / value if scale == "inverse" else value

    def span(self, low: float, high: float) -> tuple[float, float]:
        """Return an interval of what was fitted as one of values."""
        one, other = self.value(low), self.value(high)
        return min(one, other), max(one, other)

    @property
    def nominal(self) -> float:
        """Its nominal value, as fitted."""
        return self.scaled(self.spec.nominal)

    def value(self, scaled: float) -> float:
        """Return the value of what was fitted, within its limits."""
        scale, spec = self.quantity.scale, self.spec
        if scale == "inverse":
            value = 1 / scaled if scaled > 1e-9 else math.inf
        else:
            value = math.exp(scaled) if scale == "log" else scaled
        return min(max(value, spec.low), spec.high)

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of what is fitted."""
        one, other = self.scaled(self.spec.low), self.scaled(self.spec.high)
        return min(one, other), max(one, other)


def candidates(arm: DrivenArm) -> list[Candidate]:
    """Return everything of an arm's drives that can be fitted; those of all joints first."""
    joints = [(n, arm.joint_names[k]) for n, k in enumerate(arm.arm_columns)]
    shared = [Candidate(*q.shared, "", None, q) for q in (LATENCY, *QUANTITIES)]
    if isinstance(arm, ServoArm):  # there friction of all joints grows with their servos' torque
        shared = [c for c in shared if c.parameter != "friction_nm"]
    every = (*QUANTITIES, DEAD_BAND)
    own = [Candidate(DRIVES, q.name, joint, k, q) for q in every for k, joint in joints]
    return [*shared, *own]


def merged(
    base: Setting, chosen: Sequence[Candidate], x: Sequence[float] | FloatArray
) -> dict[str, dict[str, float]]:
    """Return a setting with candidates' values, as fitted, put into it."""
    setting = {mechanism: dict(values) for mechanism, values in base.items()}
    for candidate, value in zip(chosen, x, strict=True):
        setting.setdefault(candidate.mechanism, {})[candidate.key] = candidate.value(float(value))
    return setting


CONFIDENCE: Final = 0.90
BLOCK_S: Final = 2.0
"""Spans that count as independent [s]; a touch or a pause lasts about a second."""
FREEDOM: Final = 4.0
"""Degrees of freedom of the errors' Student distribution: outliers count, but little."""
LEAST_ERROR_RAD: Final = 0.0005
"""The simulation isn't better than this: it goes in steps of 5 ms [rad]."""
BIAS_RAD: Final = ENCODER_STEP_RAD / 4
"""Steady error of readings that intervals allow for: rounding doesn't average out at rest [rad]."""
LEAST_EFFECT_RAD: Final = ENCODER_STEP_RAD / 2
"""A parameter that moves readings by less isn't worth naming (root mean square) [rad]."""
LEAST_GAIN: Final = 0.3
"""Unless the error on what was held out falls by this share, nothing is named; nor is a parameter
without which it grows by less in every joint."""
MOVES_RAD, LEAST_MOVING = 0.02, 50
"""A joint whose readings differ by more within some tenths of a second moves; with fewer such
readings than these, all count."""
NOISE_SPAN: Final = 9.0
"""Noise alone seldom spans so many of its standard deviations."""
WEAKEST: Final = 3
"""Of what was added so many are tried without, those that look least needed."""
CERTAIN: Final = 2.0
"""By so much the error must grow without a parameter, if the search was cut short: what wasn't
added yet may be what it stands for."""
ALL_BUT: Final = 0.05
"""A single parameter that leaves no more of the error than this share has no rival."""
CLEAR: Final = 6.0
"""Difference of the criterion from which on the better of two is clear (Kass and Raftery 1995)."""
NORMAL_MEDIAN: Final = 0.6745
"""Median of the absolute value of a standard normal variable."""
MOST_ADDED: Final = 16
MOST_ALIKE: Final = 10.0
"""Of neighbouring readings at most so many count as one: 0.2 s. An arm at rest keeps its rounding
error for seconds, which says nothing about how often it moved."""
STANDS_S, JUMPS, COARSE = 0.025, 6, 3
"""A joint stands that hardly moves for longer; so many jumps of about one size, and a third of all,
are of one kind."""
BEGIN: Final = 0.98
"""A jump is a little longer than the dead band: the goal went on."""
LEAST_BAND_RAD, STEPS = 8.0 * ENCODER_STEP_RAD, 3.5
"""Of a smaller dead band an arm doesn't get to stand; nor is one told of so few steps of a coarse
encoder, by which its servo goes."""
BANDS: Final = np.linspace(0.94, 1.06, 49)
JOINTS_FITTED, SHARED_FITTED = 2, 3
"""Of what differs in one joint, those that look best are fitted; of what is shared these, two more
at the beginning."""
CLEAR_GAIN: Final = 12.0
"""What promises to lower the criterion by so much is tried along with the other joints'."""
MOST_STEPS: Final = 8_000_000
"""Physics steps after which nothing more is added: about a minute of a core."""
RIVALS: Final = 4
"""More parameters than this are no simple story that another one could be taken for."""
FIRST, QUICK, FULL = 1, 2, 4
"""How often a fit's scale is taken anew: to compare candidates, to drop one, and to keep one."""


@dataclass(frozen=True)
class Fit:
    """Candidates with their values, and how well the arm then follows.

    Attributes:
        x: its values, as fitted, shape (n_chosen,).
        error: readings minus simulation [rad], shape (n, n_joints without gripper).
    """

    chosen: tuple[Candidate, ...]
    x: FloatArray
    error: FloatArray

    @property
    def setting(self) -> dict[str, dict[str, float]]:
        """The drives, as a cell takes them."""
        return merged({}, self.chosen, self.x)

    def start(self, without: int) -> tuple[list[Candidate], list[float]]:
        """Return what is fitted and its values, but one."""
        keep = [k for k in range(len(self.chosen)) if k != without]
        return [self.chosen[k] for k in keep], [float(self.x[k]) for k in keep]


class DriveFitter:
    """Fits an arm's drives to logs; `advance` is told how many physics steps were simulated."""

    def __init__(
        self,
        arm: DrivenArm,
        logs: Sequence[DriveLog],
        advance: Callable[[int], None] = lambda _steps: None,
    ) -> None:
        self.arm, self.logs, self._advance = arm, tuple(logs), advance
        self._simulated = OpenLoopArm(arm, logs)
        self.steps, self.cut_short = 0, False
        self._n = len(arm.arm_columns)
        self._read = np.concatenate([log.q_rad[:, arm.arm_columns] for log in logs])
        self._floor_rad = math.hypot(ENCODER_STEP_RAD / math.sqrt(12), LEAST_ERROR_RAD)
        # Below this a joint's error can't fall by enough for anything to be named.
        self._open_rad = self._floor_rad / (1 - LEAST_GAIN)
        block, first = [], 0
        for log in logs:
            within = (log.t_s / BLOCK_S).astype(int)
            within = np.minimum(within, max(within[-1] - 1, 0))  # no short one at the end
            block.append(first + within)
            first += int(within[-1]) + 1
        self.block = np.concatenate(block)
        """Which span each reading belongs to."""

    def errors(self, settings: Sequence[Setting]) -> list[FloatArray]:
        """Return readings minus simulation [rad], shape (n, n_joints without gripper)."""
        found = self._simulated.readings(settings)
        steps = len(settings) * sum(log.steps for log in self.logs)
        self.steps += steps
        self._advance(steps)
        return [
            self._read - np.concatenate([q[:, self.arm.arm_columns] for q in logs])
            for logs in found
        ]

    def at(self, chosen: Sequence[Candidate], x: Sequence[float] | FloatArray) -> Fit:
        """Return candidates at values as they are."""
        return Fit(tuple(chosen), np.asarray(x, float), self.errors([merged({}, chosen, x)])[0])

    def fit(
        self, chosen: Sequence[Candidate], start: Sequence[float] | FloatArray, turns: int = FULL
    ) -> Fit:
        """Fit candidates together, taking the errors' scale anew `turns` times."""
        now = self.at(chosen, start)
        if not chosen:
            return now
        low, high = np.array([c.bounds for c in chosen]).T
        known: dict[bytes, FloatArray] = {}

        def errors_at(x: FloatArray) -> FloatArray:
            if x.tobytes() not in known:
                known.clear()
                known[x.tobytes()] = self.at(chosen, x).error
            return known[x.tobytes()]

        # First as if all errors were alike, which draws a bad start in; then by their tails.
        spread = np.sqrt(np.mean(now.error**2, 0) + self._floor_rad**2)
        for _ in range(turns):
            weight = math.sqrt(FREEDOM) * spread

            def weighted(x: FloatArray, by: FloatArray = weight) -> FloatArray:
                return np.asarray((errors_at(x) / by).ravel())

            def jacobian(x: FloatArray, by: FloatArray = weight) -> FloatArray:
                slopes = self.slopes(Fit(tuple(chosen), x, errors_at(x)))
                return np.asarray((slopes / by[:, None]).reshape(-1, len(x)))

            done = least_squares(
                weighted,
                np.clip(now.x, low, high),
                jacobian,
                bounds=(low - 1e-9, high + 1e-9),
                x_scale=[c.quantity.useful for c in chosen],
                loss="cauchy",
                max_nfev=12 if turns == FULL else 6,
                xtol=1e-5,
                ftol=1e-6 if turns == FULL else 1e-4,
            )
            before, now = now, Fit(tuple(chosen), done.x, errors_at(done.x))
            spread = self._spread(now.error)
            if abs(float((self.cost(before.error) - self.cost(now.error)).sum())) < 1.0:
                break
        return now

    def slopes(self, fit: Fit) -> FloatArray:
        """Return derivatives of errors by what is fitted, shape (n, n_joints, n_chosen).

        What is of different joints is moved together: each hardly moves the others.
        """
        slopes = np.zeros((*fit.error.shape, len(fit.chosen)))
        groups = list[dict[int | None, int]]()
        for k, candidate in enumerate(fit.chosen):
            if candidate.quantity is DEAD_BAND:
                continue
            place, open_ = candidate.column, (g for g in groups if None not in g)
            into = next((g for g in open_ if place is not None and place not in g), None)
            if into is None:
                groups.append(into := {})
            into[place] = k
        steps = np.array([c.quantity.step for c in fit.chosen])
        for k, candidate in enumerate(fit.chosen):
            steps[k] *= 1.0 if fit.x[k] + steps[k] <= candidate.bounds[1] else -1.0
        settings = []
        for group in groups:
            moved = fit.x.copy()
            moved[list(group.values())] += steps[list(group.values())]
            settings.append(merged({}, fit.chosen, moved))
        for group, error in zip(groups, self.errors(settings), strict=True):
            for column, k in group.items():
                of = slice(None) if column is None else column
                slopes[:, of, k] = (error - fit.error)[:, of] / steps[k]
        return slopes

    def _spread(self, error: FloatArray) -> FloatArray:
        """Return the errors' scale by a Student distribution, joint by joint [rad]."""
        squares = error**2
        scale2 = np.maximum(np.mean(squares, 0), self._floor_rad**2)
        for _ in range(30):
            weight = (FREEDOM + 1) / (FREEDOM + squares / scale2)
            scale2 = np.maximum(np.mean(weight * squares, 0), self._floor_rad**2)
        return np.asarray(np.sqrt(scale2))

    def cost(self, error: FloatArray) -> FloatArray:
        """Return minus twice the log likelihood of each joint's readings, shape (n_joints,)."""
        scale = self._spread(error)
        tails = np.log1p((error / scale) ** 2 / FREEDOM).mean(0)
        return np.asarray(len(error) * (2 * np.log(scale) + (FREEDOM + 1) * tails))

    def alike(self, error: FloatArray) -> FloatArray:
        """Return how many neighbouring readings count as one, joint by joint."""
        z = np.clip(error / self._spread(error), -4, 4)
        power = np.maximum((z**2).mean(0), 1e-12)
        found: FloatArray = np.ones(self._n)
        for lag in range(1, min(len(z) // 4, 100)):
            pairs = (z[:-lag] * z[lag:]).mean(0) / power
            open_ = (found > 0) & (pairs > 0.05)
            if not open_.any():
                break
            found = np.where(open_, found + 2 * pairs, -np.abs(found))
        return np.asarray(np.minimum(np.abs(found), MOST_ALIKE))

    def bic(self, fit: Fit, alike: FloatArray) -> float:
        """Return the criterion, with neighbouring readings counted as `alike` has it.

        Extended by the number of candidates that were looked through (Chen and Chen 2008,
        Biometrika 95:759): of fifty that aren't there, some fit by chance.
        """
        count = float((len(self._read) / alike).sum())
        price = math.log(count) + 2.0 * math.log(len(candidates(self.arm)))
        return float((self.cost(fit.error) / alike).sum()) + len(fit.x) * price

    def late(self) -> Fit:
        """Return the delay alone that explains most."""
        late = [Candidate(*LATENCY.shared, "", None, LATENCY)]
        tries = self.errors([merged({}, late, [x]) for x in (0.0, *LATENCY.starts)])
        best = int(np.argmin([self.cost(error).sum() for error in tries]))
        return self.fit(late, [LATENCY.starts[best - 1]], QUICK) if best else self.at([], [])

    def choose(
        self, judge: DriveFitter, jumps_rad: Sequence[float] = ()
    ) -> tuple[Fit, tuple[Candidate, ...]]:
        """Return the parameters that the logs speak for, and others that explain them nearly as
        well: of the two sets one is right.

        What lowers the criterion most at first may be wrong: a weak gain looks like a delay until
        friction is there as well. So where one parameter doesn't explain it all, the next best
        beginning is followed too, and the better end counts. What the motion of `judge`, which
        nothing is learned from here, does as well without is dropped from either.

        Args:
            jumps_rad: of each joint, as `jump_rad` finds them: it begins with such dead bands.
        """
        bands = [c for c in candidates(self.arm) if c.quantity is DEAD_BAND]
        deaf = {c: by for c, by in zip(bands, jumps_rad, strict=False) if by}
        nominal = self.at([*deaf], [BEGIN * by for by in deaf.values()])
        begun = self._begun(nominal)
        ends = [self._grown(nominal, begun[:1], judge)]
        first = ends[0]
        most = np.maximum(ALL_BUT * self._spread(nominal.error), self._open_rad)
        one = len(first.chosen) == 1 and bool((self._spread(first.error) < most).all())
        if begun and 0 < len(first.chosen) <= RIVALS and not one:
            new = len(deaf)
            used = begun[0].chosen[new].quantity
            others = [f for f in begun if f.chosen[new].quantity is not used]
            others = [f for f in others if not f.chosen[new].joint]
            ends.append(self._grown(nominal, others[:1], judge))
        alike = np.minimum.reduce([self.alike(fit.error) for fit in ends])
        best, *rest = sorted(ends, key=lambda fit: self.bic(fit, alike))
        rivals = [fit for fit in rest if {*fit.chosen} != {*best.chosen}
                  and self.bic(fit, alike) - self.bic(best, alike) < CLEAR]  # fmt: skip
        return best, rivals[0].chosen if rivals else ()

    def _begun(self, best: Fit) -> list[Fit]:
        """Return quick fits with one parameter more, the best first.

        To see which are worth a fit, a quantity is tried in all joints at once, and each joint is
        looked at for itself; what is fitted already may give way, as far as its slopes tell.
        """
        alike = self.alike(best.error)
        # Where a joint rests most of the time, as in a probe, its motion is few of its rows.
        left = np.maximum(self._spread(best.error), self._moving_spread(best.error))
        open_ = left > self._open_rad
        own = [
            c
            for c in candidates(self.arm)
            if c not in best.chosen and (open_.any() if c.column is None else open_[c.column])
            if c.quantity is not DEAD_BAND
        ]
        if not own:
            return []
        tries = [(q, start) for q in (LATENCY, *QUANTITIES) for start in q.starts]
        settings = []
        for quantity, start in tries:
            moved = [c for c in own if c.quantity is quantity and (c.joint or quantity is LATENCY)]
            settings.append(merged(best.setting, moved, [c.scaled(start) for c in moved]))
        slopes, now = self.slopes(best), self.cost(best.error) / alike
        found = dict[Candidate, tuple[float, float]]()
        for (quantity, start), error in zip(tries, self.errors(settings), strict=True):
            for c in (c for c in own if c.quantity is quantity):
                tried = error
                if c.column is not None:
                    tried = best.error.copy()
                    tried[:, c.column] = error[:, c.column]
                gain = float((now - self.cost(self._given_way(tried, slopes)) / alike).sum())
                if c not in found or gain > found[c][0]:
                    found[c] = gain, c.scaled(start)
        by_gain = sorted(found, key=lambda c: -found[c][0])
        joints = [c for c in by_gain if c.joint]
        each = {c.joint: c for c in reversed(joints) if found[c][0] > CLEAR_GAIN}
        # What is of different joints hardly interacts: the best of each is tried with the others'.
        worth = list[tuple[Candidate, ...]]()
        worth += [(c,) for c in by_gain if not c.joint][: SHARED_FITTED + 2 * (not best.chosen)]
        worth += [(c,) for c in joints[: JOINTS_FITTED if len(each) < 2 else 1]]
        worth += [tuple(each.values())] if len(each) > 1 else []
        fits = [
            self.fit((*best.chosen, *w), (*best.x, *(found[c][1] for c in w)), FIRST) for w in worth
        ]
        return sorted(fits, key=lambda f: self.bic(f, alike))

    def _grown(self, best: Fit, begun: Sequence[Fit], judge: DriveFitter) -> Fit:
        """Add parameters as long as the criterion falls; `begun` has the best fit first.

        Then drop those that `judge` doesn't need.
        """
        while begun and len(best.chosen) < MOST_ADDED and self.steps < MOST_STEPS:
            alike, better = self.alike(best.error), self.fit(begun[0].chosen, begun[0].x)
            if self.bic(best, alike) <= self.bic(better, alike):
                break
            before, best = best, self.without_idle(better)
            if {*best.chosen} <= {*before.chosen}:
                break
            begun = self._begun(best)
        cut_short = bool(begun) and self.steps >= MOST_STEPS
        self.cut_short |= cut_short
        while best.chosen:
            # The others give way by their slopes, to see which could do without; those are fitted.
            slopes, has = self.slopes(best), judge.spread(best)
            tried = self.errors([merged({}, *best.start(k)) for k in range(len(best.chosen))])
            left = [
                self.cost(self._given_way(error, np.delete(slopes, k, 2))).sum()
                for k, error in enumerate(tried)
            ]
            without = [self.fit(*best.start(int(k)), QUICK) for k in np.argsort(left)[:WEAKEST]]
            grown = [float((judge.spread(fit) / has).max()) for fit in without]
            if min(grown) >= (CERTAIN if cut_short else 1 / (1 - LEAST_GAIN)):
                break
            best = without[int(np.argmin(grown))]
        return best

    def spread(self, fit: Fit) -> FloatArray:
        """Return the scale of a fit's errors where joints move, joint by joint [rad].

        In a probe each joint rests most of the time, and what it is there says nothing of a delay.
        """
        return self._moving_spread(self.errors([fit.setting])[0])

    def _moving_spread(self, error: FloatArray) -> FloatArray:
        moves = np.concatenate(
            [moving(log.q_rad[:, self.arm.arm_columns], log.t_s) for log in self.logs]
        )
        moves[:, moves.sum(0) < LEAST_MOVING] = True
        columns = zip(error.T, moves.T, strict=True)
        return np.concatenate([self._spread(column[rows, None]) for column, rows in columns])

    def _given_way(self, error: FloatArray, slopes: FloatArray) -> FloatArray:
        """Return errors once what is fitted already gave way, by its slopes."""
        if not slopes.shape[2]:
            return error
        scale = self._spread(error)
        weight = 1 / (FREEDOM + (error / scale) ** 2) / scale**2
        left = np.einsum("nj,njk,njl->kl", weight, slopes, slopes)
        right = np.einsum("nj,njk,nj->k", weight, slopes, error)
        return np.asarray(error - slopes @ np.linalg.lstsq(left, right, rcond=1e-9)[0])

    def without_idle(self, best: Fit) -> Fit:
        """Drop what no longer lowers the criterion, or moves readings by less than is worth it."""
        while best.chosen:
            alike = self.alike(best.error)
            moved = self.moved(best)
            least = int(np.argmin(moved))
            if moved[least] >= 10 * LEAST_EFFECT_RAD:
                return best
            again = self.fit(*best.start(least), QUICK)
            if moved[least] >= LEAST_EFFECT_RAD and self.bic(again, alike) > self.bic(best, alike):
                return best
            best = again
        return best

    def with_dead_bands(self, fit: Fit) -> tuple[Fit, dict[Candidate, float]]:
        """Return a fit with the dead bands that explain most of those about what was found, and
        half their 90 % intervals: what the best is where other spans are drawn (bootstrap; Efron
        1979)."""
        halves, x = dict[Candidate, float](), fit.x.copy()
        for k, c in enumerate(fit.chosen):
            if c.quantity is not DEAD_BAND or c.column is None:
                continue
            values = fit.x[k] * BANDS
            tries = [np.where(np.arange(len(x)) == k, value, x) for value in values]
            errors = self.errors([merged({}, fit.chosen, at) for at in tries])
            costs = np.array([self.cost(error)[c.column] for error in errors])
            best = int(np.argmin(costs))
            scale = self._spread(errors[best])[c.column]
            far = np.stack([error[:, c.column] / scale for error in errors])
            spans = np.zeros((int(self.block[-1]) + 1, len(values)))
            np.add.at(spans, self.block, np.log1p(far**2 / FREEDOM).T)
            lots = np.random.default_rng(0).multinomial(
                len(spans), np.full(len(spans), 1 / len(spans)), 400
            )
            # Goals come a step at a time: bands between two of them do the same, to the bit.
            first, last = (
                values[:: 1 - 2 * back][np.argmin((lots @ spans)[:, :: 1 - 2 * back], axis=1)]
                for back in (0, 1)
            )
            x[k] = np.mean(values[costs == costs[best]])
            # Where a joint stood at the beginning is known to half an encoder's step.
            off = values[1] - values[0] + 0.5 * max(ENCODER_STEP_RAD, encoder_step_rad(self.logs))
            inside = 0 < best < len(values) - 1  # else it may lie further off
            ends = np.quantile(first, 0.05) - off, np.quantile(last, 0.95) + off
            halves[c] = float(max(x[k] - ends[0], ends[1] - x[k])) if inside else math.inf
        return (self.fit(fit.chosen, x, QUICK) if halves else fit), halves

    def moved(self, fit: Fit) -> list[float]:
        """Return how far each parameter moves the joint that it moves most [rad], root mean
        square."""
        without = [merged({}, *fit.start(k)) for k in range(len(fit.chosen))]
        errors = self.errors(without) if without else []
        return [float(np.sqrt(np.mean((e - fit.error) ** 2, 0)).max()) for e in errors]

    def intervals(
        self, error: FloatArray, slopes: FloatArray, may_differ: Sequence[float] = ()
    ) -> tuple[FloatArray, FloatArray]:
        """Return one more step of the fit and half the interval's width, as fitted, shape (k,).

        Args:
            error: readings minus simulation [rad].
            slopes: its derivatives, shape (n, n_joints, k).
            may_differ: of the last ones, by how much they may be off, since nothing tells (one
                standard deviation); the others' intervals allow for it.
        """
        prior: FloatArray = np.zeros(slopes.shape[2])
        if may_differ:
            prior[-len(may_differ) :] = 1 / np.square(may_differ)
        scale = self._spread(error)
        z2 = (error / scale) ** 2
        weight = (FREEDOM + 1) / (FREEDOM + z2) / scale**2
        bend = (FREEDOM + 1) * (FREEDOM - z2) / (FREEDOM + z2) ** 2 / scale**2
        share = np.maximum(bend.mean(0) / weight.mean(0), 0.2)
        alike = float(self.alike(error).mean())  # so much too often neighbouring readings count
        prior *= alike
        bread = np.einsum("nj,njk,njl->kl", weight * share, slopes, slopes) + np.diag(prior)
        score = np.einsum("nj,njk->nk", weight * error, slopes)
        blocks = np.zeros((int(self.block[-1]) + 1, slopes.shape[2]))
        np.add.at(blocks, self.block, score)
        count = max(len(blocks), 2)
        moves = np.sqrt(np.diag(bread))
        told = moves > 1e-9
        unit = np.where(told, moves, 1.0)
        inverse = np.linalg.pinv(bread / unit / unit[:, None], rcond=1e-8, hermitian=True)
        inverse = inverse / unit / unit[:, None]
        meat = blocks.T @ blocks * count / (count - 1) + np.diag(prior) * alike
        spread = np.sqrt(np.maximum(np.diag(inverse @ meat @ inverse), 0))
        bias = BIAS_RAD / np.maximum(np.sqrt(np.mean(slopes**2, 0)).max(0), 1e-12)
        half = np.hypot(student.ppf(0.5 + CONFIDENCE / 2, count - 1) * spread, bias)
        return -inverse @ score.sum(0), np.where(told, half, np.inf)


def jump_rad(logs: Sequence[DriveLog], column: int) -> float:
    """Return what a joint most often jumps by, from one place where it stood to the next while its
    goal went on [rad]; 0 where it hardly does. An encoder's step takes no time, a jump does."""
    found, step_rad = list[float](), encoder_step_rad(logs)
    coarse = step_rad > 1.5 * ENCODER_STEP_RAD
    still_rad = 1.5 * max(step_rad, ENCODER_STEP_RAD)
    for log in logs:
        q, sent = log.q_rad[:, column], log.sent()[:, column]
        n = COARSE if coarse else 1
        change = np.abs(q[n:] - q[:-n])
        stands = change < still_rad + 4.0 * np.median(change)
        ends: NDArray[np.intp] = np.flatnonzero(np.diff(np.r_[False, stands, False].astype(int)))
        ends = ends.reshape(-1, 2)
        lasts_s = log.t_s[ends[:, 1]] - log.t_s[ends[:, 0]]
        ends = np.asarray(ends[lasts_s > STANDS_S])
        places = [np.median(q[first : last + 1]) for first, last in ends]
        jumps = np.diff(places)
        for k in range(1, len(jumps)):  # where it turns round, play takes a part
            (first, last), by = ends[k], jumps[k]
            moved = sent[last] - sent[first]
            onwards = by * jumps[k - 1] > 0.0 and by * moved > 0.0
            if onwards and ends[k + 1, 0] - last > 1 and abs(moved) > 0.1 * abs(by):
                found.append(abs(by))
    least = STEPS * step_rad if coarse else LEAST_BAND_RAD
    jumps = np.array([by for by in found if by > least])
    alike = np.abs(jumps[:, None] - jumps) < np.maximum(0.05 * jumps, 0.5 * step_rad)
    if not len(jumps) or (often := alike.sum(1)).max() < max(JUMPS, len(jumps) / 3):
        return 0.0  # a person's motions are of any size
    return float(np.median(jumps[alike[np.argmax(often)]]))


def moving(q_rad: FloatArray, t_s: FloatArray) -> NDArray[np.bool_]:
    """Return at which readings each joint has lately moved, or soon will, shape (n, n_joints)."""
    rows = 2 * round(REST_S / max(float(np.median(np.diff(t_s))), 1e-3)) + 1
    span = maximum_filter1d(q_rad, rows, 0) - minimum_filter1d(q_rad, rows, 0)
    noise_rad = np.median(np.abs(np.diff(q_rad, axis=0)), 0) / NORMAL_MEDIAN / math.sqrt(2)
    return np.asarray(span > MOVES_RAD + NOISE_SPAN * noise_rad)
