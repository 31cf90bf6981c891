"""Tests of an arm from commands and readings alone; no reference, label or model.

What a joint does is fitted as y = o + g P_w[u](t - d): commands u go through a play operator of
width w (Krasnosel'skii and Pokrovskii 1989), a gain g and a delay d; o is free in every episode.
Play and dry friction are one operator in these columns. Limits are public facts, or were exceeded
by no clean recording of arms other than those that `python -m benchmarks absolute` scores: a real
Piper's and emulated OpenMANIPULATORs.

`examine_heat` says whether joints follow later, stand further off or pull harder as servos warm.
Temperatures are in the control-rate records, so this is told of what gaploop recorded alone. Over
episodes, each figure is set against its joint's temperature: Kendall's tau for whether they go
together, the median of pairwise slopes (Theil 1950, Sen 1968) for by how much. A session warms
as it goes on, so whatever else changed with it looks the same, and the sentence says so.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.signal import lfilter
from scipy.stats import kendalltau, theilslopes

from gaploop.core.errors import UnusableInputError
from gaploop.core.grippers import gripper_of
from gaploop.core.messages import FloatArray
from gaploop.core.statistics import Estimate, median_interval
from gaploop.core.telemetry import Telemetry
from gaploop.datasets import layout
from gaploop.datasets.absolute.findings import UNKNOWN, AbsoluteReport
from gaploop.datasets.absolute.recording import Episode, MotionRecording, evenly
from gaploop.datasets.check.frames import stretches
from gaploop.datasets.telemetry_zarr import read_telemetry, telemetry_path

WIDTHS_DEG: Final = np.array([0.0, 0.3, 0.6, 0.9, 1.2, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.5, 8.0])
LATEST_S: Final = 0.6
EARLIEST_FRAMES: Final = 4
STILL_S: Final = 0.4
STILL_DEG: Final = 1.0
"""A command rests that moves less than this over `STILL_S`."""
SETTLED_DEG: Final = 0.5
"""A reading that still moves by more from the first half of a rest to the second isn't there."""
MOVES_DEG: Final = 8.0
"""A joint whose command covers less says nothing about delay, play and gain."""
PLAY_GAIN: Final = 0.015
"""A play must explain so much more of what is left than none does."""
PLAY_LEAVES: Final = 0.42
"""What a play leaves over [rms], at most, as a share of its width: friction in emulated SO-101 and
Koch leaves 0.34 at most, a humanoid's wrists, which are slow and have no play, 0.53 and more."""
SLOW_S: Final = (0.1, 0.3, 1.0)
"""Time constants of what a slow drive does: that, too, looks like play, whatever its delay."""
PUSHED_DEG: Final = 8.0
PUSHED_S: Final = 0.1
"""A push moves a joint so far, and keeps it beyond half of that for so long: no glitch."""
BY_ITSELF: Final = 3.0
"""Times all of its own commands' way meanwhile is further than an arm that leans against something
bends a joint that is told to stand."""
OFF, WORSE = 0.02, 3.0
"""So much more of what readings vary by, and so many times as much as in the middle episode, no
delay explains where the arm isn't just late."""
RESAMPLED: Final = 60
FEWEST_ROWS: Final = 15


@dataclass(frozen=True)
class JointFit:
    """How one joint follows its command; NaN where it moves too little.

    Attributes:
        delay_s, gain, play_deg: with intervals over the episodes.
        explained: share of the reading's variance that the command explains.
        limits_deg: lowest and highest reading, where the reading stops short of its command.
    """

    delay_s: Estimate
    gain: Estimate
    play_deg: Estimate
    explained: float
    limits_deg: tuple[float, float]


def fit_joints(recording: MotionRecording) -> list[JointFit]:
    """Fit every joint over all episodes."""
    fps = recording.info.fps
    late, shifts = _shifts(fps)
    seen = np.concatenate([e.reading for e in recording.episodes])
    limits = list(zip(seen.min(axis=0).tolist(), seen.max(axis=0).tolist(), strict=True))
    unknown = [JointFit(UNKNOWN, UNKNOWN, UNKNOWN, np.nan, ends) for ends in limits]
    sums = []  # (episodes, 3, widths, shifts, joints): centred xx, xy, yy
    behind = []  # each episode's commands behind every width of play, and its readings
    for episode in recording.episodes:
        n = len(episode.command)
        if n < late + EARLIEST_FRAMES + FEWEST_ROWS:
            continue
        u, y = episode.command, episode.reading
        played = play(u, WIDTHS_DEG)
        behind.append((played, y))
        y = y[late : n - EARLIEST_FRAMES]
        free = np.ones_like(y)
        for k, (low, high) in enumerate(limits):
            free[:, k] = (y[:, k] > low + 0.3) & (y[:, k] < high - 0.3)
        sums.append(_shifted_products(played, y, free))
    if not sums:
        return unknown
    every = np.array(sums)
    draws = np.random.default_rng(0).multinomial(
        len(sums), np.full(len(sums), 1 / len(sums)), size=RESAMPLED
    )
    draws = np.concatenate([np.ones((1, len(sums))), draws.astype(np.float64)])
    fits = []
    for k, (low, high) in enumerate(limits):
        moved = max(float(np.ptp(e.command[:, k])) for e in recording.episodes)
        if moved < MOVES_DEG:
            fits.append(unknown[k])
            continue
        pooled = np.tensordot(draws, every[..., k], axes=(1, 0))  # draws, 3, widths, shifts
        values = np.array([_best(p, shifts) for p in pooled])
        lag = round(float(values[0, 0]))
        free_deg = (low + 0.3, high - 0.3)
        of_each = [_play_moments(p[:, :, k], y[:, k], lag, fps, free_deg) for p, y in behind]
        moments = np.tensordot(draws, np.array([m for m, _ in of_each]), axes=(1, 0))
        if _is_play(moments[0], sum(n for _, n in of_each)):
            values[:, 2] = [_width(m) for m in moments]
        else:
            values[:, 2] = 0.0
        ends = np.percentile(values[1:], [2.5, 97.5], axis=0) if len(sums) > 1 else values[[0, 0]]
        delay, gain, width = (
            Estimate(float(v), float(min(a, v)), float(max(b, v)))
            for v, a, b in zip(values[0, :3], ends[0, :3], ends[1, :3], strict=True)
        )
        delay = Estimate(delay.value / fps, delay.low / fps, delay.high / fps)
        fits.append(JointFit(delay, gain, width, float(values[0, 3]), (low, high)))
    return fits


def _shifts(fps: float) -> tuple[int, FloatArray]:
    """Return the latest delay that is looked for, and all of them, by half rows [rows]."""
    late = max(3, round(LATEST_S * fps))
    return late, np.arange(-EARLIEST_FRAMES, late + 0.25, 0.5, dtype=np.float64)


def delays_by_episode(recording: MotionRecording, joints: Sequence[int]) -> dict[int, float]:
    """Return after which delay joints follow their commands best in each episode [s].

    Of all joints together; left out are episodes that are too short, in which they move little, or
    that a delay explains worse than the others, as where something blocks the arm.
    """
    fps, found, off = recording.info.fps, dict[int, float](), dict[int, float]()
    late, shifts = _shifts(fps)
    for e in recording.episodes:
        moved = [k for k in joints if np.ptp(e.command[:, k]) >= MOVES_DEG]
        if len(e.command) < late + EARLIEST_FRAMES + FEWEST_ROWS or not moved:
            continue
        y = e.reading[late : len(e.reading) - EARLIEST_FRAMES, moved]
        sums = _shifted_products(e.command[None][..., moved], y, np.ones_like(y)).sum(axis=3)
        delay, _, _, explained = _best(sums, shifts)
        found[e.index], off[e.index] = delay / fps, 1.0 - explained
    most = OFF + WORSE * float(np.median([*off.values()])) if off else 0.0
    return {index: delay_s for index, delay_s in found.items() if off[index] <= most}


def lone_jump(values: FloatArray) -> float:
    """Return by how much a value is off both neighbours, which are alike; 0 where none is."""
    if len(values) < 5:
        return 0.0
    off = np.abs(values[1:-1] - (values[:-2] + values[2:]) / 2)
    return float(off[np.abs(values[2:] - values[:-2]) < 0.3 * off].max(initial=0.0))


def _shifted_products(played: FloatArray, y: FloatArray, free: FloatArray) -> FloatArray:
    """Return sums over rows of xx, xy, yy, both centred, for every width and shift by half rows.

    Those of half shifts follow from the whole ones beside them. Shape (3, widths, shifts, joints).

    Args:
        played: the command behind each width of play, shape (widths, n, joints).
        y: readings of the rows for which every shift of the command is there, shape (rows, joints).
        free: 1.0 where a reading counts, else 0.0.
    """
    weight = np.maximum(free.sum(axis=0), 1.0)
    y = free * (y - (free * y).sum(axis=0) / weight)
    x = played - played.mean(axis=1, keepdims=True)
    x = np.ascontiguousarray(x.transpose(0, 2, 1))

    def sums(values: FloatArray, by: FloatArray) -> FloatArray:
        windows = np.lib.stride_tricks.sliding_window_view(values, len(by), axis=2)[:, :, ::-1]
        return np.asarray(np.einsum("wjsn,jn->wjs", windows, np.ascontiguousarray(by.T)))

    def with_halves(whole: FloatArray, halves: FloatArray) -> FloatArray:
        both = np.empty((*whole.shape[:2], 2 * whole.shape[2] - 1))
        both[..., ::2], both[..., 1::2] = whole, halves
        return both

    of_x, xy, xx = sums(x, free), sums(x, y), sums(x * x, free)
    beside = sums(x[..., 1:] * x[..., :-1], free)
    of_x, xy = (with_halves(s, (s[..., 1:] + s[..., :-1]) / 2) for s in (of_x, xy))
    xx = with_halves(xx, (xx[..., 1:] + xx[..., :-1] + 2 * beside) / 4)
    xx -= of_x**2 / weight[:, None]
    yy = np.broadcast_to((y * y).sum(axis=0)[:, None], xx.shape)
    return np.stack([xx, xy, yy]).transpose(0, 1, 3, 2)


def _best(sums: FloatArray, shifts: FloatArray) -> tuple[float, float, float, float]:
    """Return delay [frames], gain, width [deg] and share explained, where least is left over."""
    xx, xy, yy = np.maximum(sums[0], 1e-9), sums[1], sums[2]
    left = yy - xy * np.abs(xy) / xx  # a reversed command explains nothing
    of_width = left.min(axis=1)
    w = int(of_width.argmin())
    if of_width[0] - of_width[w] < PLAY_GAIN * of_width[0]:
        w = 0
    d = int(left[w].argmin())
    delay = float(shifts[d])
    if 0 < d < len(shifts) - 1:
        delay = vertex(shifts[d - 1 : d + 2], left[w, d - 1 : d + 2])
    share = 1.0 - float(left[w, d] / yy[w, d]) if yy[w, d] > 1e-9 else 0.0  # or it stands
    return delay, float(xy[w, d] / xx[w, d]), float(WIDTHS_DEG[w]), share


def _play_moments(
    played: FloatArray, y: FloatArray, lag: int, fps: float, free: tuple[float, float]
) -> tuple[FloatArray, int]:
    """Return products of a reading with a played command and what a slow drive makes of it.

    `played`: the command behind each width of play, shape (widths, n), the first without any. For
    each width: those of (P, P', P'', P through each of `SLOW_S`, y), centred, shape (widths, 7, 7);
    and of how many rows. The differences stand for what is left of delay and lag, so that they
    aren't taken for play.
    """
    size = 4 + len(SLOW_S)
    rows = np.arange(max(lag, 0) + 2, len(y) - 2 + min(lag, 0))
    inside = np.minimum(y[rows], played[0, rows - lag]) > free[0]
    inside &= np.maximum(y[rows], played[0, rows - lag]) < free[1]  # beyond, a soft stop slows it
    rows = rows[inside]
    if not len(rows):
        return np.zeros((len(played), size, size)), 0
    first = np.gradient(played, axis=1)
    slow = [lagged(played, seconds * fps) for seconds in SLOW_S]
    x = np.stack([played, first, np.gradient(first, axis=1), *slow], axis=2)[:, rows - lag]
    z = np.concatenate([x, np.broadcast_to(y[rows, None], (len(played), len(rows), 1))], axis=2)
    z = z - z.mean(axis=1, keepdims=True)
    return np.asarray(z.transpose(0, 2, 1) @ z), len(rows)


def lagged(values: FloatArray, frames: float) -> FloatArray:
    """Return rows of values through a lag of first order, from rest."""
    part = 1.0 / (1.0 + frames)
    start = (1.0 - part) * values[:, :1]
    return np.asarray(lfilter([part], [1.0, part - 1.0], values, axis=1, zi=start)[0])


def _is_play(moments: FloatArray, rows: float) -> bool:
    """Say whether a play explains what a slow drive leaves, and leaves little beside its width."""
    for left in (_left(moments, 3), _left(moments, 3 + len(SLOW_S))):
        w = int(left.argmin())
        if w == 0 or left[0] - left[w] < PLAY_GAIN * left[0]:
            return False
        if left[w] > rows * (PLAY_LEAVES * WIDTHS_DEG[w]) ** 2:
            return False
    return True


def _width(moments: FloatArray) -> float:
    """Return the play's width [deg] of which least is left over; 0 unless that explains more."""
    left = _left(moments, 3)
    w = int(left.argmin())
    if w == 0 or left[0] - left[w] < PLAY_GAIN * left[0]:
        return 0.0
    if w == len(left) - 1:
        return float(WIDTHS_DEG[w])
    return vertex(WIDTHS_DEG[w - 1 : w + 2], left[w - 1 : w + 2])


def _left(moments: FloatArray, columns: int) -> FloatArray:
    """Return what the first columns leave of a reading, for each width [deg²]."""
    a, b = moments[:, :columns, :columns], moments[:, :columns, -1]
    ridge = 1e-9 * (1.0 + np.trace(moments, axis1=1, axis2=2))
    solved = np.linalg.solve(a + ridge[:, None, None] * np.eye(columns), b[..., None])[..., 0]
    return np.asarray(moments[:, -1, -1] - (b * solved).sum(axis=1))


def vertex(x: FloatArray, y: FloatArray) -> float:
    """Return where a parabola through three points is lowest, within them."""
    left, right = x[0] - x[1], x[2] - x[1]
    down, up = (y[0] - y[1]) / left, (y[2] - y[1]) / right
    a = (up - down) / (right - left)
    return float(np.clip(x[1] - (down - a * left) / (2 * a), x[0], x[2])) if a > 0 else float(x[1])


def play(u: FloatArray, widths: FloatArray) -> FloatArray:
    """Return commands behind a play of each width, shape (widths, n, joints)."""
    half = widths[:, None] / 2
    out = np.empty((len(widths), *u.shape))
    now = np.repeat(u[:1], len(widths), axis=0)
    for row, value in enumerate(u):
        now = np.minimum(np.maximum(now, value - half), value + half)
        out[:, row] = now
    return out


def answers(episodes: Sequence[Episode], joint: int, fps: float) -> tuple[float, float]:
    """Return how well a reading goes with its command at the best delay, and times what: r, slope.

    However small the command's numbers are: they may be in another unit.
    """
    best = 0.0, 0.0
    for late in range(round(LATEST_S * fps) + 1):
        parts = [
            (e.command[: len(e.command) - late, joint], e.reading[late:, joint])
            for e in episodes
            if len(e.command) > late + FEWEST_ROWS
        ]
        u, y = (
            np.concatenate([p[i] - p[i].mean() for p in parts] or [np.zeros(1)]) for i in (0, 1)
        )
        uu, uy, yy = float(u @ u), float(u @ y), float(y @ y)
        r = uy / math.sqrt(uu * yy) if uu * yy > 0 else 0.0
        if abs(r) > abs(best[0]):
            best = r, uy / uu
    return best


@dataclass(frozen=True)
class Rest:
    """A command that rests: where, by how much the reading stands off it [deg], from which side."""

    episode: int
    command: float
    off: float
    side: int
    noise: float
    """Spread of the readings' second differences, as of one reading [deg]."""
    rows: tuple[int, int]
    """From where to where in the episode that is."""


def rests_of(recording: MotionRecording, joint: int) -> list[Rest]:
    """Return the rests of a joint's command, in order."""
    fps = recording.info.fps
    span, found = max(3, round(STILL_S * fps)), list[Rest]()
    for e in recording.episodes:
        u, y = e.command[:, joint], e.reading[:, joint]
        if len(u) < 2 * span:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(u, span + 1)
        still = np.r_[np.zeros(span, dtype=bool), np.ptp(windows, axis=1) < STILL_DEG]
        for a, b in stretches(still):
            halves = np.array_split(y[a:b], 2)
            if b - a < 3 or abs(float(np.median(halves[0]) - np.median(halves[1]))) > SETTLED_DEG:
                continue
            before = u[a] - u[max(0, a - 2 * span)]
            side = int(np.sign(before)) if abs(before) > STILL_DEG else 0
            rows = a - span // 2, b
            bend = np.diff(y[slice(*rows)], 2) ** 2
            early, late = (float(np.mean(half)) for half in np.array_split(bend, 2))
            # A late arm still comes to its stop in the first half.
            noise = math.sqrt((late if early > 4.0 * late else float(np.mean(bend))) / 6.0)
            off = float(np.median((y - u)[a:b]))
            found.append(Rest(e.index, float(np.median(u[a:b])), off, side, noise, rows))
    return found


def pushes_of(recording: MotionRecording, joint: int) -> dict[int, float]:
    """Return by how much something else moved a joint that stood and came back, by episode [deg].

    Its command had rested for as long as an arm may be late. What stands can't do that: an arm
    bends at most as far as it goes itself. Nor do an arm that swings, and a reading that leaps.
    """
    fps, found = recording.info.fps, dict[int, float]()
    late, least = math.ceil(LATEST_S * fps), max(3, round(PUSHED_S * fps))
    for e in recording.episodes:
        u, y = e.command[:, joint], e.reading[:, joint]
        if len(u) <= late + least or np.ptp(y) < PUSHED_DEG:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(u, late + 1)
        for a, b in stretches(np.ptp(windows, axis=1) < STILL_DEG):
            stood = slice(a + late, b + late)
            off = (y - u)[stood] - (y - u)[stood.start]
            peak = int(np.abs(off).argmax())
            push, off = float(abs(off[peak])), off * np.sign(off[peak])
            near, far = np.flatnonzero(off < push / 3.0), off > push / 2.0
            if push < PUSHED_DEG or not near[-1] > peak or far.sum() < least:
                continue
            since = stood.start + int(near[near < peak][-1])
            own = np.ptp(e.command[max(0, since - late) : stood.start + peak + 1], axis=0).sum()
            leaps, swings = np.abs(np.diff(off)).max() > 0.7 * push, off.min() < -push / 2.0
            if BY_ITSELF * own < push and not leaps and not swings:
                found[e.index] = max(push, found.get(e.index, 0.0))
    return found


def trembles(
    recording: MotionRecording, joint: int, rests: Sequence[Rest], delay_s: float
) -> tuple[float, float]:
    """Return how much a command trembles at rest [deg], and which share of the readings' that is.

    The spread of its second differences, as `Rest.noise`, and what those of the rows before
    explain, less what as many numbers explain by chance.
    """
    lags = 4 + (round(delay_s * recording.info.fps) if np.isfinite(delay_s) else 1)
    by_index, asked, read = {e.index: e for e in recording.episodes}, [], []
    for rest in rests:
        e, (a, b) = by_index[rest.episode], rest.rows
        a = max(a, lags)
        if b - a < 3:
            continue
        bends = np.diff(e.command[a - lags : b, joint], 2)
        asked.append(np.lib.stride_tricks.sliding_window_view(bends, lags + 1))
        read.append(np.diff(e.reading[a:b, joint], 2))
    x, y = (np.concatenate(rows or [np.zeros((0, 1))]) for rows in (asked, read))
    free = len(y) - lags - 1
    if free < 1 or not y.any():
        return 0.0, 0.0
    left = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    explained = 1.0 - float(left @ left / (y @ y)) * len(y) / free
    return math.sqrt(float(np.mean(x[:, -1] ** 2)) / 6.0), explained


def by_episode(rests: Sequence[Rest], value: Callable[[Rest], float]) -> dict[int, float]:
    """Return the median over each episode's rests."""
    grouped: dict[int, list[float]] = {}
    for rest in rests:
        grouped.setdefault(rest.episode, []).append(value(rest))
    return {e: float(np.median(v)) for e, v in grouped.items()}


def friction(rests: Sequence[Rest]) -> float:
    """Return by how much friction holds a joint short of its command from either side [deg].

    Half of what rests from below and from above differ by within an episode; 0 where none has both.
    """
    apart = []
    for episode in {r.episode for r in rests}:
        up, down = (
            [r.off for r in rests if r.episode == episode and r.side == side] for side in (1, -1)
        )
        if up and down:
            apart.append(float(np.median(up)) - float(np.median(down)))
    return float(np.median(apart)) / 2 if apart else 0.0


def rest_offset(rests: Sequence[Rest]) -> tuple[Estimate, float]:
    """Return by how much a joint stands off its resting command [deg], and its robust spread.

    What friction does is taken out.
    """
    half = friction(rests)
    off = np.array([r.off - half * r.side for r in rests])
    middle = by_episode(rests, lambda r: r.off - half * r.side)
    spread = 1.4826 * np.median(np.abs(off - np.median(off)))
    return median_interval(np.array(list(middle.values()))), float(spread)


def change_point(values: FloatArray) -> tuple[int, float, float]:
    """Return where a series steps: first place after it, size, and its size over the spread."""
    best = (0, 0.0, 0.0)
    for k in range(2, len(values) - 1):
        a, b = values[:k], values[k:]
        step = float(np.median(b) - np.median(a))
        within = np.r_[a - np.median(a), b - np.median(b)]
        spread = max(float(1.4826 * np.median(np.abs(within))), float(np.std(within)) / 2, 1e-6)
        if abs(step) / spread > best[2] and abs(step) > abs(best[1]) * 0.5:
            best = (k, step, abs(step) / spread)
    return best


def quantum(values: FloatArray) -> float:
    """Return the step that readings come in [deg]: a low gap between their distinct values."""
    distinct = np.unique(np.round(values, 5))
    return float(np.percentile(np.diff(distinct), 25)) if len(distinct) > 8 else float("nan")


def distances(recording: MotionRecording, delay_s: float) -> FloatArray:
    """Return how far readings stay from each command, offsets aside, shape (3, joints, joints).

    Entry [0, i, j]: rms of reading j minus command i [deg]; [1]: of reading j plus command i;
    [2]: of reading j about its mean. The median over episodes.
    """
    lag = round(delay_s * recording.info.fps)
    found = []
    for e in recording.episodes:
        n = len(e.command) - max(lag, 0)
        if n < FEWEST_ROWS:
            continue
        u = e.command[:n] - e.command[:n].mean(axis=0)
        y = e.reading[len(e.command) - n :]
        y = y - y.mean(axis=0)
        same = np.sqrt(((y[:, None, :] - u[:, :, None]) ** 2).mean(axis=0))
        turned = np.sqrt(((y[:, None, :] + u[:, :, None]) ** 2).mean(axis=0))
        own = np.broadcast_to(np.sqrt((y**2).mean(axis=0)), same.shape)
        found.append(np.stack([same, turned, own]))
    joints = len(recording.joints)
    return np.median(found, axis=0) if found else np.full((3, joints, joints), np.nan)


def closing(recording: MotionRecording, joint: int) -> float:
    """Return 1 where a gripper closes towards lower values, -1 where towards higher ones.

    As of `gripper_of`.
    """
    command, reading = (
        [getattr(e, name)[:, joint] for e in recording.episodes] for name in ("command", "reading")
    )
    grip = gripper_of(joint, command, reading, recording.info.fps, named=True)
    return -1.0 if grip is not None and grip.sent_closed > grip.sent_open else 1.0


LEADER: Final = "leader"
FEWEST: Final = 8
"""Episodes with temperatures, below which nothing is told."""
MOST: Final = 60
"""Episodes looked at, spread evenly: a record takes 20 ms to read."""
RISE_C: Final = 5.0
"""Servos report whole degrees."""
CHANCE: Final = 0.05
"""For all joints and figures together."""
LATE_READ_S: Final = 0.4
STILL_RAD: Final = math.radians(0.5)
"""A command that moves less over half a second rests."""


@dataclass(frozen=True)
class HeatFigure:
    """A figure of a joint that may change as it warms.

    Attributes:
        matters: a smaller change is none to speak of; a unit of it costs `cost_deg`.
        apart: what else would look the same.
    """

    sentence: str
    unit: str
    matters: float
    cost_deg: float
    apart: str = "whatever else changed over the session"


FIGURES: Final[Mapping[str, HeatFigure]] = {
    "late": HeatFigure("follows later", "ms", 8.0, 0.2),
    "off": HeatFigure("stands further off its command", "°", 1.0, 1.0),
    "load": HeatFigure(
        "pulls harder", "% of its stall load", 8.0, 0.1, "a harder task, which warms it, too"
    ),
}


@dataclass(frozen=True)
class WarmEpisode:
    """What one episode shows of one joint; NaN where it doesn't.

    Attributes:
        start_s: wall-clock start [s].
        values: figures by the names of `FIGURES`.
    """

    index: int
    start_s: float
    temperature_c: float
    values: Mapping[str, float]


def examine_heat(recording: MotionRecording, report: AbsoluteReport) -> None:
    """Add what changes with temperature to a report; nothing where no temperatures are recorded."""
    joints = {n: e for n, e in _read(recording).items() if len(e) >= FEWEST}
    if not joints:
        return
    found, spans = False, list[float]()
    for name, episodes in joints.items():
        warm = np.array([e.temperature_c for e in episodes])
        spans += [float(warm.min()), float(warm.max())]
        if np.ptp(warm) < RISE_C:
            continue
        for what, figure in FIGURES.items():
            y = np.array([e.values[what] for e in episodes])
            known = np.isfinite(y)
            change = _change(warm[known], y[known], CHANCE / (len(FIGURES) * len(joints)))
            if change is None or change.value < figure.matters:
                continue
            found = True
            order = [episodes[int(k)] for k in np.argsort(warm)]
            minutes = (order[-1].start_s - order[0].start_s) / 60.0
            after = f" (after {minutes:.0f} min)" if 1.0 <= minutes < 24 * 60 else ""
            text = f"As {name} warms from {warm.min():.0f} to {warm.max():.0f} °C{after}, it "
            hot = [e.index for e in episodes if e.temperature_c >= (warm.min() + warm.max()) / 2]
            report.add(
                "heat", name, f"{text}{figure.sentence}, by", hot, len(episodes),
                "Pause until it is cool, or record fewer episodes at a time; gaploop doctor shows "
                "each servo's temperature.",
                figure.cost_deg * change.value, unit=figure.unit, size=change,
                worst=order[-1].index, apart=figure.apart,
            )  # fmt: skip
    if not found and max(spans) - min(spans) >= RISE_C:
        report.good["heat"] = f"joints do the same from {min(spans):.0f} to {max(spans):.0f} °C"


def _change(warm: FloatArray, y: FloatArray, chance: float) -> Estimate | None:
    """Return by how much a figure rises over all temperatures, with its 95 % interval, or None."""
    if len(y) < FEWEST or np.ptp(warm) < RISE_C or np.ptp(y) == 0:
        return None
    tau, p = kendalltau(warm, y)
    if not (tau > 0 and p <= chance):
        return None
    slope, _, low, high = theilslopes(y, warm, 0.95)
    return Estimate(*(float(v * np.ptp(warm)) for v in (slope, low, high)))


def _read(recording: MotionRecording) -> dict[str, list[WarmEpisode]]:
    """Return each joint's episodes that have temperatures, in order."""
    info, rows = recording.info, layout.episode_rows(recording.info.root)
    there = [row for row in rows if row.get("gap_uid")]
    there = [row for row in there if telemetry_path(info.root, row["gap_uid"]).is_file()]
    found: dict[str, list[WarmEpisode]] = {}
    for row in (there[k] for k in evenly(len(there), MOST)):
        try:
            record = read_telemetry(telemetry_path(info.root, row["gap_uid"]))
        except UnusableInputError:
            continue  # `gaploop check` names it
        start_s = 1e-9 * float(row.get("gap_t0_ns") or 0)
        for joint in (recording.joints[k].name for k in recording.arm):
            seen = _of_joint(record, joint)
            if seen is not None:
                one = WarmEpisode(int(row["episode_index"]), start_s, *seen)
                found.setdefault(joint, []).append(one)
    return found


def _of_joint(record: Telemetry, joint: str) -> tuple[float, dict[str, float]] | None:
    """Return a joint's temperature in an episode and its figures; None without temperature."""
    arm = next((a for a in record.arms() if a != LEADER and joint in record.joints(a)), None)
    if arm is None or len(record) < 20:
        return None
    missing = np.full(len(record), np.nan)
    of = {q: record.columns.get(f"{arm}.{joint}.{q}", missing)
          for q in ("temperature_c", "sent_rad", "position_rad", "load_pct")}  # fmt: skip
    warm = of["temperature_c"]
    if not np.isfinite(warm).any():
        return None
    step_s = float(np.median(np.diff(record.t_s)))
    known = np.isfinite(of["sent_rad"]) & np.isfinite(of["position_rad"])
    sent, read = of["sent_rad"][known], of["position_rad"][known]
    values = dict.fromkeys(FIGURES, math.nan)
    if len(sent) > 2.5 * LATE_READ_S / step_s:
        late = _late_rows(sent, read, round(LATE_READ_S / step_s))
        if np.ptp(sent) > math.radians(MOVES_DEG):
            values["late"] = 1e3 * late * step_s
        span = max(2, round(0.5 / step_s))
        windows = np.lib.stride_tricks.sliding_window_view(sent, span)
        still = np.r_[np.zeros(span - 1, dtype=bool), np.ptp(windows, axis=1) < STILL_RAD]
        if still.any():
            values["off"] = abs(math.degrees(float(np.median((read - sent)[still]))))
    load = np.abs(of["load_pct"])
    if np.isfinite(load).any():
        values["load"] = float(np.nanmedian(load))
    return float(np.nanmedian(warm)), values


def _late_rows(sent: FloatArray, read: FloatArray, latest: int) -> float:
    """Return the delay after which readings are nearest to commands, offset aside [rows]."""
    rest = read[latest:]
    left = np.array([np.var(rest - sent[latest - d : len(sent) - d]) for d in range(latest + 1)])
    d = int(left.argmin())
    if not 0 < d < latest:
        return float(d)
    return vertex(np.array([d - 1.0, d, d + 1.0]), left[d - 1 : d + 2])
