"""What the gripper takes and puts down, as a fixed camera shows it; no colour or shape is known.

A few pictures are looked at before the gripper closes, while it carries, and after it has opened.
A place has changed if no picture of before agrees there with one of after: the arm, which comes and
goes, drops out. Where it carries as after, something was taken; where as before, something was put.
Where in the picture the gripper is follows from where things were taken and put in all episodes, by
the joints' readings as it closed and opened. The map is linear: an arm works in a small part of its
reach.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc

from gaploop.core.messages import FloatArray, Image
from gaploop.core.station import Interval
from gaploop.core.take import Take
from gaploop.datasets.video import pictures_at
from gaploop.failure_analysis.views.camera_samples import HEIGHT, WIDTH, reduced
from gaploop.failure_analysis.views.view import ArmMotion
from gaploop.sim.recolour import of_hue

PICTURES: Final = 8
"""Of each of the three parts of an episode."""
CHANGED: Final = 14.0
"""Grey levels, at least, by which a place must differ between two parts."""
STANDS_STILL: Final = 0.5
"""Share of a picture that must not change while the arm carries, for a camera to be fixed."""
LEAST_PX: Final = 5
"""Pixels, of a kept picture, that an object covers at least."""
REACH_PX: Final = 12.0
"""Distance of an object from where the gripper acts, below which it is what the gripper has."""
LEAST_PLACES: Final = 10
"""Places from which on the gripper is found in the picture."""
TRIALS: Final = 800
PLAIN: Final = 0.5
"""How plainly something must have been taken or put to tell where the gripper is."""
LEAST_SHARE: Final = 0.4
"""Of the places, the part that must lie on the map."""
SPOT_PX: Final = 5.0
"""Radius of the spot that is looked at where the gripper acts."""


@dataclass(frozen=True)
class Handled:
    """What one camera shows of one closing and opening of the gripper.

    Attributes:
        before, after: medians of the pictures, RGB, shape (HEIGHT, WIDTH, 3).
        changed: where before and after differ, bool, shape (HEIGHT, WIDTH).
        turn: -1 where something was taken, 1 where something was put, and between where that
            can't be told, shape (HEIGHT, WIDTH).
        places: where it does, shape (n, 2) [px right, px down], in no order.
        put: whether something was put there, -1 (was taken) to 1, shape (n,).
        closes, opens: joint readings [rad] as the gripper closed and opened, shape (d,).
    """

    before: Image
    after: Image
    changed: NDArray[np.bool_]
    turn: FloatArray
    places: FloatArray
    put: FloatArray
    closes: FloatArray
    opens: FloatArray


def handled(
    take: Take,
    camera: str,
    motion: ArmMotion,
    close_s: float,
    open_s: float,
    object_hue_deg: Interval | None = None,
) -> Handled | None:
    """Look at a take before, between and after; None unless a fixed camera shows all three.

    Where the object's hue is stated [degree], nothing of another colour counts.
    """
    t_s = take.frames.t_s
    shut, opened = np.searchsorted(t_s, [close_s, open_s]).clip(1, len(t_s) - 1)
    on_its_way = (opened - shut) // 4  # not yet lifted, already put down
    parts = [(0, shut), (shut + on_its_way, opened - on_its_way), (opened, len(t_s))]
    rows = [np.unique(np.linspace(a, b - 1, PICTURES).round().astype(int)) for a, b in parts]
    if min(len(r) for r in rows) < 3:
        return None
    wanted = sorted({int(r) for part in rows for r in part})
    shown = {row: reduced(p) for row, p in pictures_at(take.cameras[camera], wanted)}
    if len(shown) < len(wanted):
        return None
    stacks = [
        np.stack([cv2.GaussianBlur(shown[int(r)], (0, 0), 1.0) for r in part]).astype(np.float64)
        for part in rows
    ]
    varies = np.median(np.abs(stacks[1] - np.median(stacks[1], axis=0)).max(axis=3), axis=0)
    if float(np.mean(varies < CHANGED)) < STANDS_STILL:
        return None
    change, left, came = (_apart(stacks[a], stacks[b]) for a, b in ((0, 2), (0, 1), (1, 2)))
    before, after = (
        np.median([shown[int(r)] for r in rows[k]], axis=0).astype(np.uint8) for k in (0, 2)
    )
    changed = change > CHANGED
    if object_hue_deg is not None:
        changed &= of_hue(before, object_hue_deg) | of_hue(after, object_hue_deg)
    solid = cv2.morphologyEx(changed.astype(np.uint8), cv2.MORPH_OPEN, np.ones((2, 2), np.uint8))
    found, labels, stats, centres = cv2.connectedComponentsWithStats(solid)
    turn = np.clip((came - left) / np.maximum(change, CHANGED), -1.0, 1.0)
    chosen = [k for k in range(1, found) if stats[k, cv2.CC_STAT_AREA] >= LEAST_PX]
    votes = [float(np.mean(turn[labels == k])) for k in chosen]
    at = [
        motion.position_rad[min(int(np.searchsorted(motion.t_s, s)), len(motion.t_s) - 1)]
        for s in (close_s, open_s)
    ]
    return Handled(
        before, after, changed, turn,
        np.array([centres[k] for k in chosen]).reshape(-1, 2), np.array(votes),
        *(pose[motion.arm_joints] for pose in at),
    )  # fmt: skip


def _apart(some: FloatArray, others: FloatArray) -> FloatArray:
    """Return by how many grey levels each place differs in the two pictures that agree best."""
    least = np.full(some.shape[1:3], np.inf)
    # Channels first: the largest of three neighbours in memory took four fifths of the time.
    some, others = (np.ascontiguousarray(np.moveaxis(p, 3, 1)) for p in (some, others))
    for one in some:
        for other in others:
            least = np.minimum(least, np.abs(other - one).max(axis=0))
    return least


@dataclass(frozen=True)
class GripperMap:
    """Where in a camera's picture the gripper acts, by the joints' readings.

    Attributes:
        middle, axes: of poses, shape (d,) and (d, k).
        weights: shape (k + 1, 2), to px right and px down.
    """

    middle: FloatArray
    axes: FloatArray
    weights: FloatArray

    def at(self, pose: FloatArray) -> FloatArray:
        """Return where the gripper is [px right, px down]."""
        return np.asarray(np.r_[(pose - self.middle) @ self.axes, 1.0] @ self.weights)


def gripper_map(seen: Sequence[Handled]) -> GripperMap | None:
    """Return the map that most of what was taken and put lies on; None where few things do.

    None, too, where so many would by chance. Random samples are tried (RANSAC; Fischler and Bolles
    1981), each pose counts once.
    """
    poses, places = list[FloatArray](), list[FloatArray]()
    for one in seen:
        for pose, mask in ((one.closes, one.put <= -PLAIN), (one.opens, one.put >= PLAIN)):
            if mask.any():
                poses.append(pose)
                places.append(one.places[mask])
    if len(poses) < LEAST_PLACES:
        return None
    every = np.array(poses)
    middle = every.mean(axis=0)
    axes = np.linalg.svd(every - middle, full_matrices=False)[2][:3].T
    known = np.c_[(every - middle) @ axes, np.ones(len(every))]
    most = max(len(p) for p in places)
    table = np.full((len(places), most, 2), 1e6)
    for k, found in enumerate(places):
        table[k, : len(found)] = found
    rng, best, weights = np.random.default_rng(0), 0.0, np.zeros((known.shape[1], 2))

    def nearest(tried: FloatArray) -> tuple[FloatArray, FloatArray]:
        away = np.linalg.norm(table - (known @ tried)[:, None], axis=2)
        chosen = away.argmin(axis=1)
        return away.min(axis=1), table[np.arange(len(table)), chosen]

    for _ in range(TRIALS):
        some = rng.choice(len(poses), known.shape[1], replace=False)
        chosen = np.array([places[k][rng.integers(len(places[k]))] for k in some])
        if np.linalg.cond(known[some]) > 1e4:
            continue
        tried = np.linalg.solve(known[some], chosen)
        score = float(np.exp(-((nearest(tried)[0] / 4.0) ** 2)).sum())
        if score > best:
            best, weights = score, tried
    for _ in range(5):
        away, at = nearest(weights)
        near = away < REACH_PX
        if near.sum() < LEAST_PLACES:
            return None
        weights = np.linalg.lstsq(known[near], at[near], rcond=None)[0]
    # Where much changes, some map is near many places by chance: so many are tried.
    missed, free = 1.0 - np.pi * REACH_PX**2 / (WIDTH * HEIGHT), known.shape[1]
    by_chance = float(np.mean([1.0 - missed ** len(p) for p in places]))
    chance = TRIALS * float(bdtrc(near.sum() - free - 1, len(near) - free, by_chance))
    if near.mean() < LEAST_SHARE or chance > 0.05:
        return None
    return GripperMap(middle, axes, weights)


def spots(one: Handled, closes: FloatArray, opens: FloatArray) -> tuple[float, float]:
    """Return the shares of the spots where the gripper closes, opens, that it clears, covers."""
    across, down = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    shares = []
    for place, wanted in ((closes, one.turn < PLAIN), (opens, one.turn > 0)):
        there = np.hypot(across - place[0], down - place[1]) <= SPOT_PX
        seen = float((one.changed & wanted)[there].mean()) if there.sum() >= LEAST_PX else np.nan
        shares.append(seen)
    return shares[0], shares[1]


def marked(one: Handled, closes: FloatArray, opens: FloatArray) -> Image:
    """Return before and after side by side, RGB; red where the gripper closes, green: opens."""
    drawn = []
    for picture in (one.before, one.after):
        large = cv2.resize(picture, (2 * WIDTH, 2 * HEIGHT))
        for place, colour in ((closes, (230, 30, 30)), (opens, (30, 200, 30))):
            at = (int(2 * place[0]), int(2 * place[1]))
            cv2.circle(large, at, int(2 * SPOT_PX), colour, 1, cv2.LINE_AA)
        drawn.append(large)
    return np.asarray(np.hstack(drawn), dtype=np.uint8)
