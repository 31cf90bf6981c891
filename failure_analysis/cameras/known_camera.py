"""What one camera shows in reference takes, how much that varies, and how another take differs.

Every number is known of each reference take against the others, left out in blocks of neighbours,
so that slow drift counts as usual. Pictures are compared with those of the reference in which the
joints stood nearest, so that a camera on a wrist or head can be judged, too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import stdtrit

from gaploop.core.messages import FloatArray, Image
from gaploop.failure_analysis.views.camera_samples import (
    HEIGHT,
    WIDTH,
    CameraSamples,
    TakeLook,
    by_cells,
    median_over,
)
from gaploop.failure_analysis.views.registration import (
    Grey,
    Similarity,
    match_at_rest,
    refine,
    register,
)

LEAST: Final = 3
"""Reference episodes below which nothing is told."""
BLOCKS: Final = 6
"""Reference episodes are left out in so many blocks of neighbours."""
NEIGHBOURS: Final = 5
"""Pictures of the reference that each picture is compared with."""
BLACK: Final = 8.0
"""Mean grey level of an episode below which it shows nothing."""
COMES_AND_GOES: Final = 0.1
"""Share of a take's pictures that show a place as usual by which nothing covers it: an arm may have
stood there. What is before a lens is in all of them."""
FIXED: Final = 2 / 3
"""Share of a picture that stands where it is from which on the camera does: an arm seldom covers
more than a third, its own camera shows a gripper in less than two."""
EDGE: Final = 0.6
"""Strength of an edge that stays, 0 to 1, from which on pictures are laid on it."""
LEAST_STILL: Final = 0.04
"""Share of a picture near such edges below which there is nothing to lay it on."""
ALIKE: Final = 0.5
"""Correlation there from which on one picture lies on another."""
MOSTLY: Final = 0.6
"""The same of the middle one of all cells from which on the camera stands about where it stood."""
ENOUGH: Final = 0.8
"""The same from which on no other start is tried."""
CLIPPED: Final = 250
"""Grey level of the brightest channel from which on a pixel has no shades left."""
FLOORS: Final[Mapping[str, float]] = {
    "light": 0.02, "red": 0.01, "blue": 0.01, "haze": 0.03, "vignette": 0.02, "slope_x": 0.02,
    "slope_y": 0.02, "flicker": 0.1, "bands": 0.1, "sharpness": 0.02, "noise": 0.05,
    "right": 0.08, "down": 0.08, "turn": 0.06, "scale": 0.1, "bend": 0.2, "cover": 0.1,
    "match": 0.02,
}  # fmt: skip
"""Spreads that can't be measured: one grey level, a tenth of a kept pixel."""
type Still = tuple[Grey, NDArray[np.bool_], Grey, NDArray[np.bool_]]


class Kind(StrEnum):
    """How a camera moves."""

    FIXED = "fixed"
    WRIST = "moves with the arm"
    HEAD = "moves, but not with the joints"


@dataclass(frozen=True)
class Unit:
    """How a number varies between reference takes.

    Attributes:
        most: farthest from `middle` that a reference take lies.
        blocks: of neighbours among them, which vary together: what is independent.
    """

    middle: float
    spread: float
    most: float
    blocks: int

    def reach(self, share: float) -> float:
        """Return how far from `middle` a new take may lie, but for a share of them, by chance."""
        wide = float(stdtrit(self.blocks - 1, 1.0 - 0.5 * share))
        wide *= float(np.sqrt(1.0 + 1.0 / self.blocks))
        return max(wide * self.spread, self.most)


class KnownCamera:
    """What one camera shows in reference takes, and how much that varies."""

    def __init__(self, name: str, takes: Sequence[CameraSamples | None]) -> None:
        usable = {n: t for n, t in enumerate(takes) if t is not None and t.pictures.mean() > BLACK}
        self.name, self.takes, self.numbers = name, tuple(usable.values()), tuple(usable)
        self._weights = dict[int | None, FloatArray | None]()  # by what is left out
        self._stills = dict[tuple[int, ...], Still]()
        takes = self.takes
        if not takes:
            return
        self.owner = np.repeat(np.arange(len(takes)), [len(t.pictures) for t in takes])
        self.pose = np.concatenate([t.pose for t in takes])
        self.passed = np.concatenate([_passed(t) for t in takes])
        self.pose_scale = np.maximum(self.pose.std(axis=0), 1e-3 * (1 + np.abs(self.pose).max()))
        self.measures = {
            key: np.concatenate([t.measures[key] for t in takes]) for key in takes[0].measures
        }
        self.looks = [TakeLook.of(t) for t in takes]
        self.levels = np.concatenate([look.levels for look in self.looks])
        self.least_moving = min(map(self.moves, takes))
        self.block = np.minimum(np.arange(len(takes)) * BLOCKS // max(len(takes), 1), BLOCKS - 1)
        if len(takes) <= BLOCKS:
            self.block = np.arange(len(takes))

    @cached_property
    def kind(self) -> Kind:
        """How the camera moves, from how much of its picture stands still over takes."""
        if float(np.median([look.stands for look in self.looks])) >= FIXED:
            return Kind.FIXED
        told = [self.follows(take, None) for take in self.takes]
        return Kind.WRIST if np.isfinite(told).any() and np.nanmedian(told) > 0.3 else Kind.HEAD

    def follows(self, samples: CameraSamples, left_out: int | None) -> float:
        """Return how well a take's pictures change as this camera's do when its joints move.

        Their correlation; NaN without joints. A block of the reference may be left out.
        """
        known = self._weights
        if left_out not in known:
            takes = [self.takes[k] for k in self._others(left_out)]
            speed = np.concatenate([t.speed for t in takes]) / self.pose_scale
            change = np.exp(np.concatenate([t.change for t in takes]))
            sure = np.isfinite(change) & np.isfinite(speed).all(axis=1)
            basis = np.column_stack([speed, np.ones(len(speed))])
            known[left_out] = nnls(basis[sure], change[sure])[0] if sure.sum() > 20 else None
        weights = known[left_out]
        if weights is None or not samples.has_joints or len(samples.change) < 5:
            return float("nan")
        expected = np.log(samples.speed / self.pose_scale @ weights[:-1] + weights[-1] + 1e-3)
        if min(float(expected.std()), float(samples.change.std())) < 1e-6:
            return float("nan")
        return float(np.corrcoef(samples.change, expected)[0, 1])

    def resembles(self, look: TakeLook, left_out: int | None) -> float:
        """Return the correlation of a take's lasting edges with this camera's; NaN without any."""
        edges = self._still(tuple(self._others(left_out)))[2]
        if min(float(edges.std()), float(look.edges.std())) < 1e-6:
            return float("nan")
        return float(np.corrcoef(edges.reshape(-1), look.edges.reshape(-1))[0, 1])

    @cached_property
    def usual(self) -> Image:
        """The median of all pictures, RGB, shape (HEIGHT, WIDTH, 3): what stays is sharp."""
        firsts = [np.median(take.pictures, axis=0) for take in self.takes]
        return np.asarray(np.median(firsts, axis=0), dtype=np.uint8)

    @property
    def edges(self) -> Grey:
        """Edges that stay where they are in all takes, 0 to 1, shape (HEIGHT, WIDTH)."""
        return self._still(tuple(self._others(None)))[2]

    @cached_property
    def most_clipped(self) -> float:
        """Share of a reference take's pixels without shades above them, at most."""
        return max(map(clipped, self.takes))

    def moves(self, samples: CameraSamples) -> float:
        """Return how far from its usual pose of this take the arm typically is."""
        away = (samples.pose - np.median(samples.pose, axis=0)) / self.pose_scale
        return float(np.median(np.sqrt((away**2).sum(axis=1))))

    def _others(self, left_out: int | None) -> list[int]:
        takes = range(len(self.takes))
        return [k for k in takes if left_out is None or self.block[k] != left_out]

    def compared(
        self, samples: CameraSamples, look: TakeLook, left_out: int | None = None
    ) -> tuple[dict[str, float], dict[str, FloatArray]]:
        """Return how a take differs from the reference, and by cells; a block may be left out."""
        others = self._others(left_out)
        rows = np.flatnonzero(np.isin(self.owner, others))
        numbers, maps = dict[str, float](), dict[str, FloatArray]()
        away = (samples.pose[:, None] - self.pose[rows][None]) / self.pose_scale
        later = _passed(samples)[:, None] - self.passed[rows][None]
        apart = (away**2).sum(axis=2) + 1e-6 * later**2  # joints that never move tell nothing
        near = np.argsort(apart, axis=1)[:, : min(NEIGHBOURS, len(rows))]
        for key, values in samples.measures.items():
            usual = np.median(self.measures[key][rows][near], axis=1)
            numbers[key] = float(np.median(values - usual))
        # Light by cells, less that of the whole picture, and its even slopes and fall to corners.
        usual = np.median(self.levels[rows][near], axis=1)
        levels = look.levels - usual
        numbers["light"] = float(np.median(np.median(levels, axis=(1, 2))))
        each = levels - np.median(levels, axis=(1, 2), keepdims=True)
        typical = np.median(each, axis=0)
        if self.kind is Kind.FIXED:
            typical = np.sign(typical) * np.quantile(np.abs(each), COMES_AND_GOES, axis=0)
        surface, shape = _surface(typical, np.median(usual, axis=0))
        numbers |= shape
        for column, key in enumerate(("flicker", "bands")):
            of_others = [_flicker(self.takes[k].steps[:, column]) for k in others]
            numbers[key] = _flicker(samples.steps[:, column]) - float(np.median(of_others))
        # Place: edges that stay where they are, of the scene or of a gripper, laid on the others'.
        base, mask, edges, counts = self._still(tuple(others))
        move, everywhere, where = None, np.ones_like(edges), counts
        usual_edges, edges_now = _spread(edges), _spread(look.edges)
        if counts.mean() >= LEAST_STILL:
            move = register(usual_edges, edges_now, everywhere, counts, ENOUGH)
        lies, best = _texture(look.even, base, mask), _best(look.evens, base, mask)
        if (count := int(np.isfinite(best).sum())) > 10 and np.nanmedian(best) > MOSTLY:
            # Most cells lie where they lay: something new in others mustn't drag the rest along.
            agrees = cv2.resize((np.nan_to_num(lies) > ALIKE).astype(np.uint8), (WIDTH, HEIGHT)) > 0
            where = counts & agrees
            still = register(usual_edges, edges_now, everywhere, where, 0.0)
            move = still if still.match >= ALIKE else Similarity(1.0, np.zeros(2), 1.0, 0.0)
        elif move is not None and count:
            # A move that lays cells worse than where they lie is an arm's, which stands elsewhere.
            moved = _best(np.stack([_laid(even, move) for even in look.evens]), base, mask)
            lay = float(np.nanmedian(best))
            if np.nanmedian(moved) < lay:  # where neither does, nothing is known
                move = Similarity(1.0 if lay >= ALIKE else lay, np.zeros(2), 1.0, 0.0)
        if move is not None and move.match >= ALIKE:
            turn, size = move.turn_rad, move.scale
            start = [size * math.cos(turn) - 1.0, size * math.sin(turn), *move.shift_px, 0.0]
            lens = refine(usual_edges, edges_now, everywhere, where, np.array(start))
            rest = match_at_rest(usual_edges, edges_now, where)
            numbers |= {
                "match": move.match,
                "bend": 100.0 * lens.bend,
                "through_lens": (lens.match - move.match) / (1.0 - move.match + 1e-6),
                "by_move": (move.match - rest) / (1.0 - rest + 1e-6),
                "right": 100.0 * float(move.shift_px[0]) / WIDTH,
                "down": 100.0 * float(move.shift_px[1]) / HEIGHT,
                "turn": float(np.degrees(move.turn_rad)),
                "scale": 100.0 * (move.scale - 1.0),
            }
        maps["level"] = typical - surface
        maps["motion"] = look.motion - np.median([self.looks[k].motion for k in others], axis=0)
        if move is not None and self.kind is Kind.FIXED:
            best = _best(np.stack([_laid(even, move) for even in look.evens]), base, mask)
        maps["texture"] = best
        return numbers, maps

    def _still(self, others: tuple[int, ...]) -> Still:
        """Return the reference's still picture, where it stands still, its edges, where they are.

        Each of shape (HEIGHT, WIDTH).
        """
        if others not in self._stills:
            evens = np.stack([self.looks[k].even for k in others])
            base = median_over(evens)
            spread = median_over(np.abs(evens - base))
            always = np.mean([self.looks[k].still for k in others], axis=0) > 0.5
            always &= spread < 0.5 * max(float(base.std()), 1e-3)
            edges = median_over(np.array([self.looks[k].edges for k in others]))
            near = cv2.dilate((edges > EDGE).astype(np.uint8), np.ones((9, 9), np.uint8)) > 0
            self._stills[others] = base, always, edges, near
        return self._stills[others]

    @cached_property
    def _left_out(self) -> list[tuple[dict[str, float], dict[str, FloatArray]]]:
        return [
            self.compared(t, self.looks[k], int(self.block[k])) for k, t in enumerate(self.takes)
        ]

    @cached_property
    def cells(self) -> dict[str, tuple[FloatArray, FloatArray]]:
        """Middle and spread of each cell's numbers over reference takes."""
        found = {}
        floors = {"level": 0.05, "motion": 0.15, "texture": 0.05}
        for key, floor in floors.items():
            rows = np.stack([maps[key] for _, maps in self._left_out])
            middle = np.median(rows, axis=0)
            spread = np.maximum(rows.std(axis=0), 1.4826 * np.median(np.abs(rows - middle), axis=0))
            found[key] = middle, np.maximum(spread, floor)
        return found

    def cover(self, maps: Mapping[str, FloatArray]) -> tuple[float, FloatArray]:
        """Return how far the oddest patch of cells lies from usual [log], and which cells show it.

        Cells that show something else; of a camera that moves along, those that don't move with it.
        """
        z = {key: (maps[key] - m) / s for key, (m, s) in self.cells.items()}
        odd = np.maximum(-np.nan_to_num(z["texture"]), np.abs(z["level"]))
        if self.kind is not Kind.FIXED:
            odd = np.median(z["motion"]) - z["motion"]
        worst = float(patches(odd).max())
        return float(np.log(max(worst, 1.0))), (odd > 0.5 * worst).astype(np.float64)

    @cached_property
    def units(self) -> dict[str, Unit]:
        """How each number varies between reference takes."""
        rows = [{**numbers, "cover": self.cover(maps)[0]} for numbers, maps in self._left_out]
        units, blocks = {}, len(set(self.block.tolist()))
        for key, floor in FLOORS.items():
            values = np.array([row[key] for row in rows if np.isfinite(row.get(key, np.nan))])
            if len(values) >= max(LEAST, 0.7 * len(rows)):
                middle = float(np.median(values))
                apart = np.abs(values - middle)
                spread = max(float(values.std(ddof=1)), 1.4826 * float(np.median(apart)), floor)
                units[key] = Unit(middle, spread, float(apart.max()), blocks)
        return units

    @cached_property
    def fits(self) -> tuple[float, float]:
        """How well reference takes fit the others: by edges that stay, by colour [correlation]."""
        rows = [
            (alike(self.looks[k].edges, self._still(tuple(self._others(int(self.block[k]))))[2]),
             alike(red_to_blue(take), self.colour))
            for k, take in enumerate(self.takes)
        ]  # fmt: skip
        edges, colour = np.median(np.array(rows), axis=0)
        return float(edges), float(colour)

    @cached_property
    def colour(self) -> Grey:
        """How red places are, to how blue [stops], shape (HEIGHT, WIDTH)."""
        return median_over(np.array([red_to_blue(t) for t in self.takes]))


def alike(a: Grey, b: Grey) -> float:
    """Return the correlation of two pictures, a little blurred; 0 where one shows nothing."""
    one, two = (cv2.GaussianBlur(np.ascontiguousarray(p), (0, 0), 1.5).ravel() for p in (a, b))
    flat = min(float(one.std()), float(two.std())) < 1e-3
    return 0.0 if flat else float(np.corrcoef(one, two)[0, 1])


def red_to_blue(samples: CameraSamples) -> Grey:
    """Return how red a take's still picture is, to how blue [stops], shape (HEIGHT, WIDTH)."""
    stops = np.log2(np.median(samples.pictures, axis=0).astype(np.float32) + 4.0)
    return np.asarray(stops[..., 0] - stops[..., 2], dtype=np.float32)


def clipped(samples: CameraSamples) -> float:
    """Return the share of a take's pixels that have no shades left above them."""
    return float((samples.pictures.max(axis=-1) >= CLIPPED).mean())


def patches(cells: FloatArray) -> FloatArray:
    """Return the mean of the nine cells around each."""
    mean = cv2.blur(cells.astype(np.float32), (3, 3), borderType=cv2.BORDER_REPLICATE)
    return np.asarray(mean, dtype=np.float64)


def _passed(samples: CameraSamples) -> FloatArray:
    """Return how much of the take has passed at each picture, 0 to 1."""
    return np.asarray(np.linspace(0.0, 1.0, len(samples.pictures)), np.float64)


def _spread(picture: Grey) -> Grey:
    return np.asarray((picture - picture.mean()) / (picture.std() + 1e-6), dtype=np.float32)


def _flicker(steps: FloatArray) -> float:
    """Return how far brightness typically steps between pictures [log]; NaN where not known."""
    known = steps[np.isfinite(steps)]
    return float(np.log(np.median(np.abs(known)) + 2e-3)) if len(known) else float("nan")


def _surface(levels: FloatArray, usual: FloatArray) -> tuple[FloatArray, dict[str, float]]:
    """Fit slopes and fall to the corners to light by cells, odd cells aside [stops].

    Haze, clipping and another tone curve change a cell by how bright it usually is, wherever it
    lies. So what is left of each beside that counts, and no more than without it.
    """
    rows, columns = levels.shape
    y, x = np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, columns), indexing="ij")
    tone = (usual - usual.mean()) / (usual.std() + 0.1)
    place = [np.ones_like(x), x, y, x**2 + y**2, x * y, x**2 - y**2]
    surface, shapes = levels, list[FloatArray]()
    for terms in (place, [*place, tone, tone**2]):
        basis = np.stack(terms, -1).reshape(levels.size, -1)
        values, weight = levels.reshape(-1), np.ones(levels.size)
        fitted = np.zeros(len(terms))
        for _ in range(5):
            root = np.sqrt(weight)
            fitted = np.linalg.lstsq(basis * root[:, None], values * root, rcond=None)[0]
            left = values - basis @ fitted
            scale = 1.4826 * np.median(np.abs(left)) + 1e-3
            weight = 1.0 / (1.0 + (left / (2.0 * scale)) ** 2)
        surface = (basis @ fitted).reshape(rows, columns)
        shapes.append(fitted[1:4] * (2.0, 2.0, -2.0))
    alone, beside = shapes
    least = np.where(alone * beside > 0, np.sign(alone) * np.minimum(abs(alone), abs(beside)), 0.0)
    return surface, dict(zip(("slope_x", "slope_y", "vignette"), least.tolist(), strict=True))


def _laid(picture: Grey, move: Similarity) -> Grey:
    """Return a picture laid on the reference that it was registered to."""
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    matrix = move.matrix((WIDTH, HEIGHT))
    return np.asarray(cv2.warpAffine(picture, matrix, (WIDTH, HEIGHT), flags=flags), np.float32)


def _best(evens: Grey, base: Grey, mask: NDArray[np.bool_]) -> FloatArray:
    """Return `_texture` of the pictures that show each cell most as usual."""
    each = np.stack([_texture(even, base, mask) for even in evens])
    return np.asarray(np.quantile(each, 1.0 - COMES_AND_GOES, axis=0), np.float64)


def _texture(even: Grey, base: Grey, mask: NDArray[np.bool_]) -> FloatArray:
    """Return the correlation of each cell's structure with the reference's; NaN without any."""
    weight = mask.astype(np.float32)
    one, two, both = (
        by_cells(a * b * weight) for a, b in ((even, even), (base, base), (even, base))
    )
    strong = two > (0.15**2) * np.maximum(by_cells(weight), 0.1)
    found = both / np.sqrt(np.maximum(one, 1e-4) * np.maximum(two, 1e-6))
    return np.where(strong & (by_cells(weight) > 0.3), np.clip(found, -1, 1), np.nan)
