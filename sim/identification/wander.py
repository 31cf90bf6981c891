"""Finds joints whose readings wander, from pictures of a pose that was taken more than once.

A servo holds its reading still. Where the reading wanders, as with a loose magnet, a belt that
creeps, a joint that slips on its shaft or warm electronics, the arm goes the other way, and only
pictures show it: the same readings, another outline. Each picture of the pose that most takes have
gets the angles at which the simulated arm has its outline. What these have in common is nobody's
wandering; how they scatter is, beyond what outlines tell and readings jitter (a normal
distribution with these three parts; its likelihood over all that they may be).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray, Image
from gaploop.sim.identification.stills import Still

DRIFT: Final = "sensor_noise.encoder_drift.drift_rad"
NEAR_RAD: Final = 0.12
"""Joints that differ by less show one pose."""
FEW: Final = 6
"""Takes of a pose below which nothing is told of how they scatter."""
MOST: Final = 36
"""Pictures that are looked at."""
APART_S: Final = 0.8
"""Of a rest that is longer the last picture counts, too."""
TURNS: Final = ((6.0, 3), (1.5, 4))
"""Blur of outlines [px], and steps."""
OFF: Final = 0.1
"""A part of a pixel that is off by more counts less."""
FARTHEST_RAD: Final = 0.3
EXPLAINED: Final = 4.0
"""Pictures that are off by more, half of them, are of an arm that isn't drawn where it is."""
UNLIKE: Final = 20.0
"""A picture that is off by so many times more than the others shows something else."""
AMPLITUDES_RAD: Final = np.arange(0.0, 0.3, 0.001)
CLEAR: Final = 6.0
"""Twice the difference of log likelihoods from which on it is clear (Kass and Raftery 1995)."""
LEAST_RAD: Final = 0.01
"""No outline tells a zero more finely."""

type Outline = Callable[[Image, float], NDArray[np.float32]]
"""How much of each pixel is arm, for a picture and a blur [px]."""
type Draw = Callable[[Still, FloatArray], Image]
"""The simulated arm at a view's readings, with zeros off by so much [rad]."""


@dataclass(frozen=True)
class Wander:
    """How far readings swing.

    Attributes:
        drift_rad: amplitude of a swing that scatters as much [rad]; 0 where none is clear.
        interval: of 90 %.
        joint: number of the one that swings among those that were asked; None for all alike.
        takes: in which the pose was seen.
    """

    drift_rad: float
    interval: tuple[float, float]
    joint: int | None
    takes: int


def wander_of(
    stills: Sequence[Still], draw: Draw, outline: Outline, finest: FloatArray, jitter_rad: float
) -> Wander | None:
    """Return how far readings wander; None where no pose was taken often enough, or none is drawn
    as it is seen.

    Args:
        finest: how finely outlines tell the zero of each joint that has one [rad].
        jitter_rad: standard deviation of readings from one to the next.
    """
    if len(stills) < FEW:
        return None
    zeros = len(finest)
    poses = np.array([still.q_rad[:-1] for still in stills])
    alike = np.abs(poses[:, None] - poses).max(axis=-1) < NEAR_RAD
    uids = [still.uid for still in stills]
    often = [len({uids[k] for k in np.flatnonzero(row)}) for row in alike]
    if max(often) < FEW:
        return None
    near = [stills[k] for k in np.flatnonzero(alike[int(np.argmax(often))])]
    shown = [(still, still.pictures[0]) for still in near]
    shown += [(s, s.pictures[-1]) for s in near if s.taken_s[-1] - s.taken_s[0] > APART_S]
    shown = [shown[k] for k in np.linspace(0, len(shown) - 1, min(MOST, len(shown))).astype(int)]
    steps = LEAST_RAD * np.eye(zeros)

    def slopes(still: Still, x: FloatArray, blur_px: float) -> FloatArray:
        ends = [[outline(draw(still, x + s * d), blur_px).ravel() for s in (1, -1)] for d in steps]
        return np.stack([(up - down) / (2.0 * LEAST_RAD) for up, down in ends], axis=1)

    angles, costs = [], []
    usual = {blur_px: slopes(near[0], np.zeros(zeros), blur_px) for blur_px, _ in TURNS}
    for still, picture in shown:
        best: FloatArray = np.zeros(zeros)
        for blur_px, turns in TURNS:
            seen, visited = outline(picture, blur_px).ravel(), list[tuple[float, FloatArray]]()
            x, by = best, usual[blur_px]
            for turn in range(turns + 1):
                off = seen - outline(draw(still, x), blur_px).ravel()
                visited.append((float((off**2).sum()), x))
                if turn == 0 and blur_px == TURNS[-1][0]:
                    by = slopes(still, x, blur_px)
                weighted = by.T / np.sqrt(1.0 + (off / OFF) ** 2)
                step = np.linalg.solve(weighted @ by + np.eye(zeros), weighted @ off - x)
                x = np.clip(x + step, -FARTHEST_RAD, FARTHEST_RAD)
            cost, best = min(visited, key=lambda each: each[0])
        angles.append(best)
        costs.append(cost)
    if np.median(costs) > EXPLAINED:
        return None
    told = np.array(angles)[np.array(costs) < UNLIKE * np.median(costs)]
    fine = usual[TURNS[-1][0]]
    error = np.linalg.inv(fine.T @ fine + np.eye(zeros)) * np.outer(finest, finest)
    return _likeliest(told, error / LEAST_RAD**2, jitter_rad, max(often))


def _likeliest(told: FloatArray, error: FloatArray, jitter_rad: float, takes: int) -> Wander:
    """Return what scatters angles told of a pose, shape (n, zeros): all joints' zeros, or one's.

    Args:
        told: [rad].
        error: of outlines, up to a factor, shape (zeros, zeros).
    """
    scatter, one = np.cov(told.T), np.eye(len(error))
    best, joint, likely = -np.inf, None, np.empty(0)
    for k, shape in ((None, one), *((k, np.outer(e, e)) for k, e in enumerate(one))):
        swing = 0.5 * AMPLITUDES_RAD[:, None, None, None] ** 2 * shape
        blurred = np.geomspace(0.01, 3.0, 40)[:, None, None] ** 2 * error
        known = swing + blurred + (jitter_rad**2 + 1e-8) * one
        far = np.einsum("asij,ji->as", np.linalg.inv(known), scatter)
        each = -0.5 * (takes - 1) * (np.linalg.slogdet(known)[1] + far)
        if each.max() > best + (k is not None) * CLEAR / 2.0:
            best, joint, likely = float(each.max()), k, each
    chances = np.exp(likely - best).sum(axis=1)
    is_clear = 2.0 * (best - float(likely[0].max())) > CLEAR
    low, middle, high = np.quantile(
        AMPLITUDES_RAD, (0.05, 0.5, 0.95), weights=chances, method="inverted_cdf"
    )
    low, high = min(low, middle - LEAST_RAD), max(high, middle + LEAST_RAD)
    if not is_clear or low <= 0.0:
        return Wander(0.0, (0.0, float(high)), None, takes)
    return Wander(float(middle), (float(low), float(high)), joint, takes)
