"""What an arm's logs show of its readings: their noise (see `sim.gaps.readings`), and outages.

A reading's noise is what it is beyond a local polynomial (Savitzky and Golay 1964) over a quarter
of a second, so motion faster than some hertz counts as noise, and drift slower than that is not
told. The spectrum is a sum of processes with known correlation times whose autocovariance, sent
through the same filter, is nearest to the readings' own (Whittle's likelihood, 1953). Louder spans
are the wider part of a mixture of two normal distributions with one mean (expectation
maximisation; Dempster et al. 1977).

Outages of a simulated station's bus come at random: no replay by a gap's size has them where the
episodes have them. But a simulation repeats itself to the bit, so that one replay can follow an
episode row by row: where it leaves it, the command before hadn't arrived, or arrived again. What
can't be followed so far isn't an outage. Readings that repeat to the bit while the simulation's
move weren't read.

Of a real arm a joint that loses goals is told where it stands while it should move, then jumps.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter
from scipy.optimize import minimize, nnls
from scipy.signal import savgol_coeffs, savgol_filter, welch
from scipy.stats import t as student

from gaploop.core.messages import FloatArray
from gaploop.core.telemetry import lost_goals
from gaploop.core.twin import TwinParameter
from gaploop.sim.cell import ENCODER_STEP_RAD
from gaploop.sim.gaps.readings import NOISE, TAUS_S, ReadingNoise
from gaploop.sim.identification.open_loop import DriveLog, DrivenArm, OpenLoopArm, Setting

WINDOW_S: Final = 0.25
LEAST_WINDOW: Final = 9
DEGREE: Final = 5
BINS: Final = 8
"""Spans of speed in which the noise is measured, with equally many readings each."""
NORMAL_MEDIAN: Final = 0.6745
"""Median of the absolute value of a standard normal variable."""
ROUNDS: Final = 4
LEAST_RAD: Final = ENCODER_STEP_RAD
"""Readings that are off by less on average are taken to have steps only: rounding alone makes a
quarter of a step."""
DOWN_S: Final = 0.1
FEWEST, GROUPS = 4, 6
"""Takes below which no noise is learned, and groups of them that are left out for intervals."""
SPIKE: Final = 12.0
"""A reading so many standard deviations off its neighbours' median is none of the noise."""


def window_of(period_s: float) -> int:
    """Return over how many readings the polynomial goes."""
    return max(LEAST_WINDOW, 2 * round(0.5 * WINDOW_S / period_s) + 1)


def smooth(q_rad: FloatArray, period_s: float) -> tuple[FloatArray, FloatArray]:
    """Return readings [rad], shape (n,), without noise, and their speed [rad/s], same shape."""
    n = window_of(period_s)
    speed = savgol_filter(q_rad, n, DEGREE, deriv=1, delta=period_s)
    return np.asarray(savgol_filter(q_rad, n, DEGREE)), np.abs(speed)


def learn_noise(
    logs: Sequence[FloatArray], period_s: float, motions: Sequence[FloatArray] = ()
) -> dict[str, float]:
    """Return one joint's figures by the names of `sim.gaps.readings.NOISE`.

    Args:
        logs: readings [rad], shape (n,) each, at even times, longer than `window_of(period_s)`.
        period_s: between two of them [s].
        motions: what of each the joint's motion is known to be beyond the polynomial [rad].
    """
    motions = motions or [np.zeros(len(log)) for log in logs]
    step_rad, dead_rad = _steps(logs)
    clean, wild = zip(*(without_spikes(log, dead_rad) for log in logs), strict=True)
    wild_rad = np.concatenate(wild)
    total_s = period_s * sum(map(len, logs))
    paths = [smooth(log, period_s) for log in clean]
    speed = [v for _, v in paths]
    residual = [log - p - m for log, (p, _), m in zip(clean, paths, motions, strict=True)]
    at_rest, per_speed = _by_speed(residual, speed, step_rad, period_s)
    floor = max(step_rad / math.sqrt(12), 1e-12)
    unit = [r / np.hypot(np.hypot(at_rest, per_speed * v), floor)
            for r, v in zip(residual, speed, strict=True)]  # fmt: skip
    white, fast, slow = _spectrum(unit, period_s)
    total = white + fast + slow
    values = {
        "noise_rad": at_rest, "per_speed_s": per_speed,
        "fast_share": fast / total, "slow_share": slow / total,
        **_loud(unit, period_s),
        "spike_hz": len(wild_rad) / total_s,
        "spike_rad": float(np.sqrt(np.mean(wild_rad**2))) if len(wild_rad) else 0.0,
        **_held(clean, speed, dead_rad, period_s),
        "dead_rad": dead_rad, "step_rad": step_rad,
    }  # fmt: skip
    wanted = np.mean(np.abs(np.concatenate(residual)))
    for _ in range(ROUNDS if wanted else 0):  # until what it replays is as large as what was read
        true = [p + m for (p, _), m in zip(paths, motions, strict=True)]
        made = replay({**values, "spike_hz": 0.0}, true, period_s, 0)
        size = np.mean(np.abs(_beyond(made, period_s, motions)))
        times = float(np.clip(wanted / max(size, 1e-12), 0.25, 4.0))
        values |= {k: values[k] * times for k in ("noise_rad", "per_speed_s")}
    return values


def replay(
    values: Mapping[str, float], paths: Sequence[FloatArray], period_s: float, seed: int
) -> list[FloatArray]:
    """Return readings of true paths [rad], shape (n,) each, with one joint's noise."""
    longest = max(map(len, paths))
    together = np.stack([np.pad(path, (0, longest - len(path)), mode="edge") for path in paths], 1)
    noise = ReadingNoise([values] * len(paths))
    noise.reset(np.random.default_rng(seed))
    made = np.array([noise.read(k * period_s, row) for k, row in enumerate(together)])
    return [made[: len(path), k] for k, path in enumerate(paths)]


def without_spikes(log: FloatArray, change_rad: float) -> tuple[FloatArray, FloatArray]:
    """Return readings without wild ones, shape (n,), and by how much these were off [rad].

    `change_rad` is what readings change by at least [rad].
    """
    middle = median_filter(log, 5, mode="nearest")
    off = np.abs(log - middle)
    noise = np.median(off[off > 0]) / NORMAL_MEDIAN if (off > 0).any() else 0.0
    wild = off > np.maximum(SPIKE * max(noise, change_rad), 3 * np.abs(np.gradient(middle)))
    return np.where(wild, middle, log), (log - middle)[wild]


def _steps(logs: Sequence[FloatArray]) -> tuple[float, float]:
    """Return the steps of readings, 0 for none, and what they change by at least [rad]."""
    changes = np.concatenate([np.abs(np.diff(log)) for log in logs])
    changes = changes[changes > 1e-7]
    if not len(changes):
        return 0.0, 0.0
    least = float(np.quantile(changes, 0.05))
    small = changes[changes < 20 * least]
    for begin in np.quantile(changes, [0.3, 0.1, 0.02]):
        step = float(begin)
        for _ in range(5):
            counts = np.round(small / step)
            if not counts.any():
                break
            step = float(small @ counts / (counts @ counts))
        off = np.abs(small - np.round(small / step) * step)
        if np.quantile(off, 0.9) < 0.1 * step:
            return step, step
    return 0.0, least


def _by_speed(
    residual: Sequence[FloatArray], speed: Sequence[FloatArray], step_rad: float, period_s: float
) -> tuple[float, float]:
    """Return the noise at rest [rad] and per speed [s], from its size in spans of speed."""
    left, fast, rows = np.abs(np.concatenate(residual)), np.concatenate(speed), []
    for part in np.array_split(np.argsort(fast), BINS):
        v = float(np.sqrt(np.mean(fast[part] ** 2)))
        size = float(np.mean(np.minimum(left[part], 4 * np.std(left[part]))))
        rounding = step_rad**2 / 12 * min(1.0, v * period_s / max(step_rad, 1e-12))
        rows.append((v**2, max(size**2 * math.pi / 2 - rounding, 0.0)))
    v2, s2 = np.array(rows).T
    weight = 1 / np.maximum(s2, 1e-3 * s2.max() + 1e-18)  # a span counts by its relative error
    found = nnls(np.stack([weight, weight * v2], 1), weight * s2)[0]
    return math.sqrt(found[0]), min(math.sqrt(found[1]), period_s)


def _loud(unit: Sequence[FloatArray], period_s: float) -> dict[str, float]:
    """Return how much of the time noise is louder, by how much and how long it lasts."""
    u = np.concatenate(unit)
    size = float(np.mean(u**2))
    calm, loud, share = 0.5 * size, 4.0 * size, 0.1
    if not calm:
        return {"loud_share": 0.0, "loud_factor": 1.0, "loud_s": 0.1}
    for _ in range(30):
        a = (1 - share) * np.exp(-(u**2) / (2 * calm)) / math.sqrt(calm)
        b = share * np.exp(-(u**2) / (2 * loud)) / math.sqrt(loud)
        p = b / np.maximum(a + b, 1e-300)
        share = float(np.clip(p.mean(), 1e-4, 0.5))
        loud = max(float(p @ u**2 / p.sum()), 1e-12)
        calm = max(float((1 - p) @ u**2 / (1 - p).sum()), 1e-3 * loud)
    # Neighbours are loud together for a time: their squares' correlation falls by half in it.
    squares = [np.minimum(v**2, 9 * loud) - np.mean(np.minimum(u**2, 9 * loud)) for v in unit]
    lag = max(1, window_of(period_s) // 2)
    alike = sum(float(s[lag:] @ s[:-lag]) for s in squares) / sum(float(s @ s) for s in squares)
    lasts_s = lag * period_s / max(-math.log(min(max(alike, 1e-3), 0.95)), 0.05)
    return {
        "loud_share": share, "loud_factor": math.sqrt(loud / calm),
        "loud_s": max(lasts_s, period_s),
    }  # fmt: skip


def _spectrum(unit: Sequence[FloatArray], period_s: float) -> FloatArray:
    """Return the variances of the white part and of those with `TAUS_S`, before the filter."""
    n = window_of(period_s)
    kernel = -savgol_coeffs(n, DEGREE)
    kernel[n // 2] += 1
    hz, power = np.array([welch(u, 1 / period_s, nperseg=2 * n) for u in unit]).mean(0)
    turn = np.exp(-2j * np.pi * period_s * np.outer(hz, np.arange(n)))
    through = np.abs(turn @ kernel) ** 2
    kept = through > 0.2
    lags = np.arange(-20 * n, 20 * n + 1) * period_s
    wave = np.cos(2 * np.pi * np.outer(hz[kept], lags)) * 2 * period_s
    parts = [(lags == 0).astype(float), *(np.exp(-np.abs(lags) / tau) for tau in TAUS_S)]
    basis = np.stack([wave @ c for c in parts], 1) * through[kept, None]
    seen = np.maximum(power[kept], 1e-12 * power.max() + 1e-30)

    def unlikely(x: FloatArray) -> float:
        says = basis @ np.exp(x)
        return float(np.sum(np.log(says) + seen / says))

    level = math.log(float(np.mean(seen / basis[:, 0])))
    starts = [level + np.log(np.array(w)) for w in ((1, 0.1, 0.1), (0.1, 1, 0.1), (0.1, 0.1, 1))]
    fits = [minimize(unlikely, x, method="Nelder-Mead") for x in starts]
    return np.asarray(np.exp(min(fits, key=lambda fit: fit.fun).x))


def _held(
    logs: Sequence[FloatArray], speed: Sequence[FloatArray], dead_rad: float, period_s: float
) -> dict[str, float]:
    """Return how often readings repeat while the joint moves by several steps, and how long."""
    repeats, moving, runs = 0, 0, 0
    for log, v in zip(logs, speed, strict=True):
        moves = np.minimum(v[1:], v[:-1]) * period_s > 3 * max(dead_rad, 1e-9)
        same = (np.diff(log) == 0) & moves
        repeats, moving = repeats + int(same.sum()), moving + int(moves.sum())
        runs += int((same[1:] & ~same[:-1]).sum()) + int(same[0])
    share = repeats / moving if moving else 0.0
    return {
        "held_share": min(share, 0.95),
        "held_s": period_s * repeats / runs if runs else 0.1,
    }


def _was_down(log: DriveLog) -> bool:
    """Say whether all readings stood still for a while in which goals went on: no noise, but a bus
    that goes down."""
    same = np.all(np.diff(log.q_rad, axis=0) == 0, axis=1)
    ends = np.flatnonzero(np.diff(np.r_[False, same, False].astype(int)))
    for first, last in ends.reshape(-1, 2):
        begin_s, end_s = log.t_s[first], log.t_s[min(last, len(log.t_s) - 1)]
        rows = (log.goal_t_s > begin_s) & (log.goal_t_s < end_s)
        long = end_s - begin_s > DOWN_S and rows.any()
        if long and np.ptp(log.goal_rad[rows], axis=0).max() > 10 * ENCODER_STEP_RAD:
            return True
    return False


def _beyond(
    logs: Sequence[FloatArray], period_s: float, motions: Sequence[FloatArray]
) -> FloatArray:
    both = zip(logs, motions, strict=True)
    return np.concatenate([log - smooth(log, period_s)[0] - motion for log, motion in both])


def _motion(log: FloatArray, simulated: FloatArray, period_s: float) -> FloatArray:
    """Return what of a take is motion beyond the polynomial [rad]: the simulated arm's, made as
    large and as late as it fits best."""
    quick = simulated - smooth(simulated, period_s)[0]
    change = np.gradient(quick)
    basis = np.stack([quick, change, np.gradient(change)], 1)
    return np.asarray(basis @ np.linalg.lstsq(basis, log - smooth(log, period_s)[0])[0])


def noise_parameters(
    logs: Sequence[DriveLog], arm: DrivenArm, setting: Setting, source: str
) -> list[TwinParameter]:
    """Return the noise of the joints whose readings show more than an encoder's steps or white
    noise, each figure with its 90 % interval; [] where none does, or there are too few takes.

    Args:
        logs: all readings of each take.
        setting: of the simulated arm, whose motion is none of the noise.
    """
    if len(logs) < FEWEST or any(map(_was_down, logs)):
        return []
    period_s = float(np.median(np.concatenate([np.diff(log.t_s) for log in logs])))
    logs = [log for log in logs if len(log.t_s) > 2 * window_of(period_s)]
    if len(logs) < FEWEST:
        return []
    (simulated,) = OpenLoopArm(arm, logs).readings([setting])
    rows = []
    for k in arm.arm_columns:
        readings = [log.q_rad[:, k] for log in logs]
        motions = [
            _motion(log, q[:, k], period_s) for log, q in zip(readings, simulated, strict=True)
        ]
        if np.mean(np.abs(_beyond(readings, period_s, motions))) < LEAST_RAD:
            continue
        speed = np.concatenate([smooth(r, period_s)[1] for r in readings])
        usual, total_s = float(np.sqrt(np.mean(speed**2))), len(speed) * period_s
        values = learn_noise(readings, period_s, motions)
        if not _is_shaped(values, usual, total_s):
            continue
        parts = np.array_split(np.arange(len(readings)), min(len(readings), GROUPS))
        without = [
            learn_noise([readings[n] for n in kept], period_s, [motions[n] for n in kept])
            for part in parts
            if (kept := [n for n in range(len(readings)) if n not in part])
        ]  # a jackknife; Quenouille 1956
        if not all(_is_shaped(w, usual, total_s) for w in without):
            continue
        times = student.ppf(0.95, len(parts) - 1) * math.sqrt((len(parts) - 1) ** 2 / len(parts))
        for name, value in values.items():
            known = next(p for p in NOISE if p.name == name)
            half = times * float(np.std([w[name] for w in without], ddof=1))
            low, high = max(value - half, known.low), min(value + half, known.high)
            estimate = min(max(value, known.low), known.high)
            if name == "step_rad" or (name == "dead_rad" and value < 1.5 * ENCODER_STEP_RAD):
                continue  # steps are the cell's own, or coarse_encoder's
            rows.append(TwinParameter(
                f"sensor_noise.readings.{name}", known.unit, known.nominal, estimate,
                (min(low, estimate), max(high, estimate)), True, source, arm.joint_names[k],
            ))  # fmt: skip
    return rows


def _is_shaped(values: Mapping[str, float], speed: float, total_s: float) -> bool:
    """Say whether noise is anything but white, for a usual speed [rad/s] and so much motion [s]."""
    return (
        values["per_speed_s"] * speed > 2 * values["noise_rad"]
        or values["fast_share"] + values["slow_share"] > 0.7
        or (values["loud_factor"] > 2.0 and values["loud_share"] > 0.02)
        or values["held_share"] > 0.1
        or values["spike_hz"] * total_s > 5
    )


type Mask = NDArray[np.bool_]
type Replay = Callable[[FloatArray], FloatArray]
"""From commands, shape (n, n_action), to states, shape (n, n_state), each before its command; it
may end once it has left the take."""

LAG: Final = 3
"""Rows after which a command shows at last."""
MOST_TURNS: Final = 40
"""Ends of outages in one take."""
SEEN: Final = 0.02
"""Least share of rows that repeat, where the simulation's never do."""
FOLLOWED: Final = 0.5
"""Least share of the rows, after episodes left the simulation, that they are followed for, all
together; what touches hard gets away."""
CHANCES: Final = 80
"""That an outage begins in a row, and that it ends, each so many from a thousandth up."""


@dataclass(frozen=True)
class Outages:
    """Of each take, whether a row's command didn't arrive, as far as it could be followed.

    Attributes:
        columns: numbers of the state that repeated meanwhile.
        untold: rows of each take that would be the same either way.
    """

    down: tuple[Mask, ...]
    columns: Mask
    untold: tuple[Mask, ...] = ()

    def read(self, take: int, true: FloatArray) -> FloatArray:
        """Return what was read instead of states, shape (n, n_state)."""
        return np.where(self.columns, last(self.down[take][: len(true)], true), true)

    def further(
        self, take: int, states: FloatArray, sent: FloatArray, replay: Replay, off: FloatArray
    ) -> Mask:
        """Return when the bus was down in more rows of a take, as far as they can be followed."""
        if self.columns.any():
            again = (np.diff(states[:, self.columns], axis=0) == 0).all(axis=1)
            return np.concatenate([[False], again])
        mask, row = followed(states, sent, replay, off, self.down[take])
        return mask[:row]

    def values(self, period_s: float) -> dict[str, tuple[float, float, float]]:
        """Return the share of time and the length [s] of outages, each with its 90 % interval.

        By the likelihood of what is told, for outages that begin and end by chance in any row
        (forward algorithm of a hidden Markov chain; Rabiner 1989), over all that both may be.
        """
        grid = np.geomspace(1e-3, 1.0, CHANCES, endpoint=False)
        begins, ends = (g.ravel() for g in np.meshgrid(grid, grid))
        likely = np.zeros_like(begins)
        for down, untold in itertools.zip_longest(self.down, self.untold, fillvalue=()):
            is_up, is_down = np.ones_like(begins), np.zeros_like(begins)
            told = ~np.asarray(untold, bool) if len(untold) else np.ones(len(down), bool)
            for was_down, known in zip(down[1:], told[1:], strict=True):
                is_up, is_down = (
                    (is_up * (1.0 - begins) + is_down * ends) * (not known or not was_down),
                    (is_up * begins + is_down * (1.0 - ends)) * (not known or was_down),
                )
                both = is_up + is_down
                likely += np.log(both)
                is_up, is_down = is_up / both, is_down / both
        weight = np.exp(likely - likely.max())
        told_of = {"stale_fraction": begins / (begins + ends), "burst_s": period_s / ends}
        found = dict[str, tuple[float, float, float]]()
        for name, values in told_of.items():
            at = np.quantile(values, (0.5, 0.05, 0.95), weights=weight, method="inverted_cdf")
            found[name] = float(at[0]), float(at[1]), float(at[2])
        return found


def last(down: Mask, values: FloatArray) -> FloatArray:
    """Return each row, or while the bus is down the last one before."""
    rows = np.maximum.accumulate(np.where(down, 0, np.arange(len(down))))
    return np.asarray(values[rows])


def same_until(told: FloatArray, states: FloatArray, off: FloatArray) -> int:
    """Return the first row at which two runs of states are further apart than `off`."""
    apart = (np.abs(told - states[: len(told)]) > off).any(axis=1)
    return int(np.argmax(apart)) if apart.any() else len(told)


def find(
    states: Sequence[FloatArray], sent: Sequence[FloatArray], replays: Sequence[Replay],
    simulated: Sequence[FloatArray], off: FloatArray,
) -> Outages | None:  # fmt: skip
    """Return the outages that takes show; None where they show none.

    Args:
        states: of each take, shape (n, n_state).
        sent: the commands after each state, shape (n, n_action).
        replays: of each take, from its own start.
        simulated: states of the commands sent; may end sooner.
        off: by how much each number of two equal states may differ, shape (n_state,).
    """
    again = [np.vstack([np.zeros((1, s.shape[1]), bool), np.diff(s, axis=0) == 0]) for s in states]
    never = np.concatenate([np.diff(s, axis=0) != 0 for s in simulated]).mean(axis=0) > 0.999
    columns = never & (np.concatenate(again).mean(axis=0) > SEEN)
    masks = [a[:, columns].all(axis=1) & columns.any() for a in again]
    if (down := np.concatenate(masks)).mean() > SEEN:
        return Outages(tuple(masks), np.concatenate(again)[down].all(axis=0))
    columns[:] = False
    rows = sum(len(s) - same_until(told, s, off) for s, told in zip(states, simulated, strict=True))
    masks, may_be_lost = [], (1.0 - FOLLOWED) * rows
    for s, a, replay in zip(states, sent, replays, strict=True):
        mask, row = followed(s, a, replay, off)
        masks.append(mask[:row])
        may_be_lost -= len(s) - row
        if not row or may_be_lost < 0:
            return None
    return Outages(tuple(masks), columns) if any(m.any() for m in masks) else None


def followed(
    states: FloatArray,
    sent: FloatArray,
    replay: Replay,
    off: FloatArray,
    known: Mask | tuple[()] = (),
) -> tuple[Mask, int]:
    """Return which commands didn't arrive, and how many rows can be followed so.

    Args:
        known: of the first rows.
    """

    def leaves(mask: Mask) -> int:
        return same_until(replay(last(mask, sent)), states, off)

    n = len(states)
    mask = np.zeros(n, dtype=bool)
    mask[: len(known)] = known
    at = leaves(mask)
    for _ in range(MOST_TURNS):
        best, further = mask, at
        for k in range(at - 1, max(at - 1 - LAG, -1), -1):
            if at == n or further > min(at + LAG, n - 1):
                break
            turned = mask.copy()
            turned[k:] = not mask[k]
            if (until := leaves(turned)) > further:
                best, further = turned, until
        if further == at:
            break
        mask, at = best, further
    mask[at:] = False
    return mask, at


BEHIND_RAD, BEFORE_S, ABOUT_S = 0.012, 0.3, 0.1
"""A joint is behind its goals that is off by this [rad]; it arrives so long after the last one that
it heard at most; a goal that moved by less within so much doesn't show whether it arrived, nor is a
loss seen that ends so soon [s]."""


@dataclass(frozen=True)
class LostGoals:
    """When a joint's goals didn't arrive: by uid of a log from when to when [s] which goal was held
    [rad], and the same row by row."""

    column: int
    spans: Mapping[str, Sequence[tuple[float, float, float]]]
    outages: Outages
    period_s: float

    def heard(self, logs: Sequence[DriveLog]) -> list[DriveLog]:
        """Return logs with the goals that arrived."""
        changed = [replace(log, goal_rad=log.goal_rad.copy()) for log in logs]
        for log in changed:
            for begin_s, end_s, held_rad in self.spans.get(log.uid, ()):
                lost = (log.goal_t_s > begin_s) & (log.goal_t_s <= end_s)
                log.goal_rad[lost, self.column] = held_rad
        return changed

    def parameters(self, joint: str, source: str) -> list[TwinParameter]:
        """Return the share of time in which goals are lost, and how long at a time [s].

        Intervals allow for what ends so soon that nobody saw it.
        """
        share, (usual_s, low_s, high_s) = self.outages.values(self.period_s).values()
        unseen = math.expm1(ABOUT_S / usual_s) * share[2]
        share = (*share[:2], (share[2] + unseen) / (1.0 + unseen))
        lasts_s = usual_s, max(low_s - ABOUT_S, 0.01), high_s
        return [
            TwinParameter(f"actuator_response.lost_goals.{name}", unit, nominal, at, (low, high),
                          True, source, joint)
            for name, unit, nominal, (at, low, high) in (
                ("lost_fraction", "1", 0.0, share), ("lost_s", "s", 0.4, lasts_s)
            )
        ]  # fmt: skip


def losses(
    logs: Sequence[DriveLog], paths: Sequence[FloatArray], late_s: float, step_rad: float
) -> LostGoals | None:
    """Return which goals a joint didn't hear; None where none is known to lose any.

    Args:
        paths: of each log, where the joints would be, had all goals arrived [rad].
        late_s: how late goals arrive [s].
        step_rad: the steps that readings come in [rad].
    """
    records = [
        (log.t_s, log.q_rad[:, log.columns], path[:, log.columns])
        for log, path in zip(logs, paths, strict=True)
    ]
    step_rad = max(step_rad, ENCODER_STEP_RAD)
    if (told_of := lost_goals(records, step_rad, BEHIND_RAD)) is None:
        return None
    joint, found = told_of
    column = int(np.arange(logs[0].q_rad.shape[1])[logs[0].columns][joint])
    period_s = float(np.median(np.concatenate([np.diff(log.t_s) for log in logs])))
    about, spans = max(1, round(ABOUT_S / period_s)), dict[str, list[tuple[float, float, float]]]()
    goals, down, untold = list[FloatArray](), list[Mask](), list[Mask]()
    for log in logs:
        before = np.concatenate([log.q_rad[:1], log.goal_rad])[:, column]
        goals.append(before[np.searchsorted(log.goal_t_s, log.t_s - late_s + 1e-9, side="right")])
    due = [record[2][:, joint] for record in records]
    sag_rad = float(np.median(np.concatenate(due) - np.concatenate(goals)))
    for log, path, goal, stands in zip(logs, due, goals, found, strict=True):
        moved = np.abs(goal[about:] - goal[:-about]) > BEHIND_RAD
        told = np.concatenate([np.zeros(min(about, len(goal)), bool), moved])
        lost, mine = np.zeros(len(goal), bool), spans.setdefault(log.uid, [])
        for first, last, place, _ in stands:
            off_rad = np.abs(path[first : last + 1] - place)
            begin = at = first + int(np.argmax(off_rad > 0.5 * BEHIND_RAD))
            held = place - sag_rad  # the last goal that it heard
            side = np.sign(goal[at] - held)
            while log.t_s[at] - log.t_s[begin] < BEFORE_S and begin and (
                (goal[begin - 1] - held) * side > 0.0
            ):  # fmt: skip
                begin -= 1
            lost[begin : last + 1] = told[begin : last + 2] = True
            told[begin : min(begin + about, last)] = False  # had it ended, nobody had seen it
            began_s = float(log.t_s[begin - 1]) if begin else -math.inf
            mine.append((began_s - late_s, float(log.t_s[last]) - late_s, held))
        down.append(lost)
        untold.append(~told)
    outages = Outages(tuple(down), np.empty(0, bool), tuple(untold))
    return LostGoals(column, spans, outages, period_s)
