"""What has changed about a camera, in units of how much it varies between takes by itself.

Reference takes, such as a policy's training or a set's own successes, are each compared with the
others; a take to judge is compared with all. Every question is answered by one or more numbers,
each set against what the reference takes, left out in blocks of neighbours, give (so that slow
drift counts as usual). Pictures are compared with those of the reference in which the joints stood
nearest, so that a camera on a wrist or head can be judged, too. Nothing was fitted to pictures of
any place: limits follow from the reference, `ERROR_RATE` and how finely pictures can be measured.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import stdtrit

from gaploop.core.messages import FloatArray, Image
from gaploop.core.take import Take
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.views.pictures import (
    HEIGHT,
    STANDING,
    WIDTH,
    CameraSamples,
    Grey,
    Similarity,
    TakeLook,
    by_cells,
    lasting_edges,
    match_at_rest,
    median_over,
    refine,
    register,
    sample,
)

ERROR_RATE: Final = 0.02
"""Of an unaltered episode, how often any question about one of its cameras may be answered by
yes."""
OFTEN: Final = 0.05
"""The same where neighbouring episodes have drifted together, and of sets: named is what more
episodes say than that explains."""
LEAST: Final = 3
"""Reference episodes below which nothing is told."""
MOST: Final = 40
"""Takes that are looked at, of a reference and of those judged, evenly spread."""
BLOCKS: Final = 6
"""Reference episodes are left out in so many blocks of neighbours."""
HARDEST: Final = 0.1
"""Share of a picture's places at which a cover that is denied would not have shown."""
COVER_STOPS: Final = 1.0
"""What covers a part of a picture makes it so much darker or lighter, at least."""
NEARLY: Final = 0.75
"""Share of what chance reaches from which on a cover isn't denied."""
COMES_AND_GOES: Final = 0.1
"""Share of a take's pictures that show a place as usual by which nothing covers it: an arm may have
stood there. What is before a lens is in all of them."""
NEIGHBOURS: Final = 5
"""Pictures of the reference that each picture is compared with."""
BLACK: Final = 8.0
"""Mean grey level of an episode below which it shows nothing."""
LIGHT_STOPS: Final = 2.2
"""Stops of light that double the grey of a picture, which is kept with a gamma of about 2.2."""
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
CLEARLY: Final = 0.1
"""Share of what still differs there that a move, or another lens, must take away: an arm or a thing
that stands elsewhere, or other light, takes away a little, too."""
LIES_BETTER: Final = {"bend": "through_lens"} | dict.fromkeys(
    ("right", "down", "turn", "scale"), "by_move"
)
"""What says so of each number about place."""


def _quarter(picture: NDArray[Any], times: int) -> NDArray[Any]:
    """Turn a kept picture by 90° to the left, so many times; its sides are swapped back."""
    turned = np.ascontiguousarray(np.rot90(picture, times))
    return np.asarray(cv2.resize(turned, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA))


UPRIGHT: Final[Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]]] = {
    "mirrored left to right": lambda p: p[:, ::-1],
    "mirrored top to bottom": lambda p: p[::-1],
    "turned by 180°": lambda p: p[::-1, ::-1],
    "turned by 90° to the right": lambda p: _quarter(p, 1),
    "turned by 90° to the left": lambda p: _quarter(p, -1),
}
"""What may have been done to whole pictures, and what undoes it."""
FITS: Final = 0.75
"""Share of how well reference takes fit each other from which on turned pictures fit; as they are
they must fit by less than half of that, as those of no scene that looks alike turned do."""
COLOUR_FITS: Final = 0.5
"""The same of how red places are to how blue they are."""
GREY: Final = (4, 20)
"""Spread of the channels, of the most colourful hundredth of a take's pixels, up to which it shows
no colour, and from which on a reference take does [levels]."""
FROZEN: Final = (0.5, 2.0)
"""How much pixels typically change over a take that shows one picture, and over a reference take,
as long as the arm moves [levels]."""


type Still = tuple[Grey, NDArray[np.bool_], Grey, NDArray[np.bool_]]


class Kind(StrEnum):
    """How a camera moves."""

    FIXED = "fixed"
    WRIST = "moves with the arm"
    HEAD = "moves, but not with the joints"


class YesNo(StrEnum):
    """To one question about one camera."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "can't tell"


@dataclass(frozen=True)
class CameraQuestion:
    """One thing that may have happened to a camera.

    Attributes:
        words: as a sentence goes on after the camera's name.
        numbers: what tells it.
        unit: of the first of them.
        worth: change from which on it matters, in each number's unit: where chance alone reaches
            that far, the answer is not "no".
    """

    words: str
    numbers: tuple[str, ...]
    unit: str
    worth: float
    dimension: GapDimension = GapDimension.VISUAL_DOMAIN


_SPACE: Final = GapDimension.SPATIAL_GEOMETRY
QUESTIONS: Final[Mapping[str, CameraQuestion]] = {
    "exposure": CameraQuestion("is {more} exposed", ("light",), "stops", 0.5),
    "white_balance": CameraQuestion("has another white balance", ("red", "blue"), "stops", 0.3),
    "haze": CameraQuestion("has {less} contrast in the shadows", ("haze",), "stops", 0.5),
    "vignette": CameraQuestion("is {more} dark in its corners", ("vignette",), "stops", 0.4),
    "local_light": CameraQuestion("is lit from another side", ("slope_x", "slope_y"), "stops", 0.5),
    "flicker": CameraQuestion("flickers {more}", ("flicker", "bands"), "log", 1.0),
    "sharpness": CameraQuestion("is {more} sharp", ("sharpness",), "log", 0.1),
    "noise": CameraQuestion(
        "is {more} noisy", ("noise",), "log", 0.7, GapDimension.SENSOR_NOISE
    ),
    "moved": CameraQuestion(
        "has moved", ("right", "down", "turn"), "% of its width or degrees", 3.0, _SPACE
    ),
    "crop": CameraQuestion(
        "shows a larger or smaller cut, or through another lens", ("scale", "bend"), "%", 5.0,
        _SPACE,
    ),
    "cover": CameraQuestion(
        "is covered in part, or something new stands before it", ("cover",), "", 3.0
    ),
}  # fmt: skip
SPOILT_BY: Final[Mapping[str, str]] = {
    "size": "", "turned": "flicker", "colour_order": "", "colourless": "white_balance",
    "frozen": " ".join(QUESTIONS), "black": " ".join(QUESTIONS),
}  # fmt: skip
"""Questions about whole pictures, and what a yes to them leaves no evidence of. Light or a push
does none of it: a single take that shows it is told."""
BY_PLACE: Final[Mapping[str, tuple[str, ...]]] = {
    "local_light": (), "vignette": ("local_light",),
    "cover": ("exposure", "white_balance", "local_light"),
}  # fmt: skip
"""Questions told by cells of the picture, which must show the same places; of cameras that don't
move along with an arm, in the same light."""
CLIPPED: Final = 250
"""Grey level of the brightest channel from which on a pixel has no shades left."""
BY_SHADES: Final = "white_balance haze noise vignette moved crop cover"
"""Questions that need shades in bright parts."""
MORE_CLIPPED: Final = 0.02
"""Share of a picture by which more of it is clipped than ever in the reference."""
SPOILS: Final[Sequence[tuple[str, int, str, str]]] = (
    ("noise", 1, "flicker sharpness moved crop", "it is noisy"),
    ("crop", 0, "sharpness noise haze", "it shows another cut"),
    ("exposure", 0, "noise", "the light has changed, and noise with it"),
    ("exposure", -1, "haze", "the light has changed"),
    ("cover", 1, "vignette local_light haze sharpness", "it is covered in part"),
    ("local_light", 0, "vignette haze noise", "it is lit from another side"),
    ("vignette", 0, "exposure haze noise", "corners and middle have changed apart"),
    ("haze", 1, "white_balance moved crop", "haze takes colour and edges away"),
)
"""A question, the direction of a yes to it (0: any), what it leaves no evidence of, why."""
LIT_BY: Final = {"vignette": "a vignette", "local_light": "light from a side", "haze": "haze"}
"""What may have made a picture brighter or darker where it can't be told."""
FLOORS: Final[Mapping[str, float]] = {
    "light": 0.02, "red": 0.01, "blue": 0.01, "haze": 0.03, "vignette": 0.02, "slope_x": 0.02,
    "slope_y": 0.02, "flicker": 0.1, "bands": 0.1, "sharpness": 0.02, "noise": 0.05,
    "right": 0.08, "down": 0.08, "turn": 0.06, "scale": 0.1, "bend": 0.2, "cover": 0.1,
    "match": 0.02,
}  # fmt: skip
"""Spreads that can't be measured: one grey level, a tenth of a kept pixel."""


@dataclass(frozen=True)
class Unit:
    """How a number varies between reference takes.

    Attributes:
        most: farthest from `middle` that a reference take lies.
        n: reference takes that it is known of.
        blocks: of neighbours among them, which vary together: what is independent.
    """

    middle: float
    spread: float
    most: float
    n: int
    blocks: int

    def reach(self, share: float) -> float:
        """Return how far from `middle` a new take may lie, but for a share of them, by chance."""
        wide = float(stdtrit(self.blocks - 1, 1.0 - 0.5 * share))
        wide *= float(np.sqrt(1.0 + 1.0 / self.blocks))
        return max(wide * self.spread, self.most)


@dataclass(frozen=True)
class CameraAnswer:
    """One question about one camera in one take.

    Attributes:
        number: what told it, or what could not.
        value: its change from usual; `reach` is what chance alone reaches, in the same unit.
        where: cells that show it, shape (rows, columns); empty where it is of the whole picture.
        why: why it can't be told; of a yes, what it leaves open.
    """

    camera: str
    question: str
    answer: YesNo
    number: str
    value: float
    reach: float
    where: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    why: str = ""

    @property
    def line(self) -> str:
        """The answer in one line."""
        asked = QUESTIONS.get(self.question)
        if self.question == "swapped" and self.answer is YesNo.UNKNOWN:
            return f"camera {self.camera}: can't tell whether it is swapped: {self.why}"
        if self.question == "swapped":
            return f"camera {self.camera} has changed places with {self.number}"
        if asked is None:
            return f"camera {self.camera}: {self.why}"
        more, less = ("more", "less") if self.value > 0 else ("less", "more")
        words = asked.words.format(more=more, less=less)
        if self.question == "exposure":
            words = f"is {'brighter' if self.value > 0 else 'darker'}"
        unit = {"turn": "°", "right": " % of its width", "down": " % of its height"}.get(
            self.number, f" {asked.unit}".rstrip()
        )
        size = f"{self.value:+.2g}{unit} ({self.number}; chance reaches {self.reach:.2g})"
        if self.answer is YesNo.UNKNOWN:
            return f"camera {self.camera}: can't tell whether it {words}: {self.why}"
        if self.where.size:
            rows, columns = np.nonzero(self.where)
            row, column = rows.mean() / len(self.where), columns.mean() / self.where.shape[1]
            down = "upper" if row < 1 / 3 else "lower" if row > 2 / 3 else "middle"
            across = "left" if column < 1 / 3 else "right" if column > 2 / 3 else "middle"
            size = f"{self.where.mean():.0%} of the picture, {down} {across}"
        return f"camera {self.camera} {words}: {size}{f', {self.why}' if self.why else ''}"


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
        self.least_moving = min(map(self._moves, takes))
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
        return max(map(_clipped, self.takes))

    def _moves(self, samples: CameraSamples) -> float:
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
        if counts.mean() >= LEAST_STILL:
            move = register(_spread(edges), _spread(look.edges), everywhere, counts, ENOUGH)
        lies, best = _texture(look.even, base, mask), _best(look.evens, base, mask)
        if np.isfinite(best).sum() > 10 and np.nanmedian(best) > MOSTLY:
            # Most cells lie where they lay: something new in others mustn't drag the rest along.
            agrees = cv2.resize((np.nan_to_num(lies) > ALIKE).astype(np.uint8), (WIDTH, HEIGHT)) > 0
            where = counts & agrees
            still = register(_spread(edges), _spread(look.edges), everywhere, where, 0.0)
            move = still if still.match >= ALIKE else Similarity(1.0, np.zeros(2), 1.0, 0.0)
        if move is not None and move.match >= ALIKE:
            turn, size = move.turn_rad, move.scale
            start = [size * math.cos(turn) - 1.0, size * math.sin(turn), *move.shift_px, 0.0]
            usual_edges, edges_now = _spread(edges), _spread(look.edges)
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
    def _cells(self) -> dict[str, tuple[FloatArray, FloatArray]]:
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
        z = {key: (maps[key] - m) / s for key, (m, s) in self._cells.items()}
        odd = np.maximum(-np.nan_to_num(z["texture"]), np.abs(z["level"]))
        if self.kind is not Kind.FIXED:
            odd = np.median(z["motion"]) - z["motion"]
        worst = float(_patches(odd).max())
        return float(np.log(max(worst, 1.0))), (odd > 0.5 * worst).astype(np.float64)

    def _other_structure(self, maps: Mapping[str, FloatArray], share: float) -> bool:
        """Return whether structure alone, whatever the light, is odder than chance somewhere."""
        unit, level = self.units.get("cover"), self._cells["level"][0]
        alone = self.cover({**maps, "level": level})[0]
        return unit is not None and alone - unit.middle > unit.reach(share)

    def _would_show(self, maps: Mapping[str, FloatArray], share: float) -> bool:
        """Return whether nearly any place that is covered a little would be told from chance.

        Of a camera that stands, by a change of `COVER_STOPS`: its references may differ by more;
        of one that moves along, by pixels that don't change. Four cells of a patch's nine, as 3 %
        of a picture fill.
        """
        if "cover" not in self.units:
            return True
        least = math.exp(self.units["cover"].middle + self.units["cover"].reach(share))
        if self.kind is Kind.FIXED:
            shown = COVER_STOPS / self._cells["level"][1]
            return float(np.quantile(shown, HARDEST)) > least
        middle, spread = self._cells["motion"]
        usual = np.median([look.motion for look in self.looks], axis=0)
        now = float(np.median((maps["motion"] - middle) / spread))
        shown = now - (STANDING - usual - middle) / spread
        return float(np.quantile(shown, HARDEST)) * 4 / 9 > least

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
                units[key] = Unit(middle, spread, float(apart.max()), len(values), blocks)
        return units

    @cached_property
    def _fits(self) -> tuple[float, float]:
        """How well reference takes fit the others: by edges that stay, by colour [correlation]."""
        rows = [
            (_alike(self.looks[k].edges, self._still(tuple(self._others(int(self.block[k]))))[2]),
             _alike(_red_to_blue(take), self._colour))
            for k, take in enumerate(self.takes)
        ]  # fmt: skip
        edges, colour = np.median(np.array(rows), axis=0)
        return float(edges), float(colour)

    @cached_property
    def _colour(self) -> Grey:
        return median_over(np.array([_red_to_blue(t) for t in self.takes]))

    def put_right(self, samples: CameraSamples) -> tuple[CameraSamples, list[CameraAnswer]]:
        """Return a take's pictures as this camera's usually lie, and what had been done to them."""
        said = dict.fromkeys(list(SPOILT_BY)[1:], "")
        if len(self.takes) >= LEAST and samples.pictures.mean() <= BLACK:
            said["black"] = "its pictures are black"
        elif len(self.takes) >= LEAST:
            fits, coloured = self._fits
            edges = TakeLook.of(samples).edges
            now = {how: _alike(undo(edges), self.edges) for how, undo in UPRIGHT.items()}
            how, lies = max(now, key=lambda name: now[name]), _alike(edges, self.edges)
            if fits > ALIKE and now[how] > FITS * fits and lies < 0.5 * now[how]:
                said["turned"], lies = f"its pictures are {how}", now[how]
                height, width = samples.size_px
                back = "90" in how and (width, height) == self.takes[0].size_px
                samples = replace(
                    samples, pictures=np.stack([UPRIGHT[how](p) for p in samples.pictures]),
                    size_px=(width, height) if back else (height, width),
                )  # fmt: skip
            colour = _alike(_red_to_blue(samples), self._colour)
            if lies > FITS * fits and coloured > ALIKE and colour < -COLOUR_FITS * coloured:
                said["colour_order"] = "red and blue are swapped in its pictures"
                of = samples.measures
                samples = replace(
                    samples, pictures=samples.pictures[..., ::-1],
                    measures=of | {"red": of["blue"], "blue": of["red"]},
                )  # fmt: skip
            if _colours(samples) <= GREY[0] and min(map(_colours, self.takes)) >= GREY[1]:
                said["colourless"] = "its pictures are grey, without colour"
            moves = samples.has_joints and self._moves(samples) > 0.5 * self.least_moving
            if (
                moves
                and _changes(samples) < FROZEN[0]
                and min(map(_changes, self.takes)) > FROZEN[1]
            ):
                said["frozen"] = "it shows one picture while the arm moves"
        return samples, [
            CameraAnswer(self.name, q, YesNo.YES if why else YesNo.NO, q, 0.0, 1.0, why=why)
            for q, why in said.items()
        ]

    def judge(self, samples: CameraSamples) -> list[CameraAnswer]:
        """YesNo every question about this camera in a take, put right."""
        if len(self.takes) < LEAST:
            why = f"{len(self.takes)} episodes to compare with; {LEAST} are needed"
            return [
                CameraAnswer(self.name, q, YesNo.UNKNOWN, "", np.nan, np.nan, why=why)
                for q in QUESTIONS
            ]
        look = TakeLook.of(samples)
        numbers, maps = self.compared(samples, look)
        share = ERROR_RATE / len(FLOORS)
        answers = list[CameraAnswer]()
        usual_size = self.takes[0].size_px
        if samples.size_px != usual_size:
            (h, w), (uh, uw) = samples.size_px, usual_size
            cut = "" if h * uw == w * uh else ": cropped or stretched"
            why = f"gives {w}x{h} pictures, usually {uw}x{uh}{cut}"
            answers.append(
                CameraAnswer(self.name, "size", YesNo.YES, "size", h * w / (uh * uw), 1.0, why=why)
            )
        numbers["cover"], where = self.cover(maps)
        told = {q: self._answer(q, asked, numbers, share) for q, asked in QUESTIONS.items()}

        def spoilt(questions: str, why: str) -> None:
            for q in questions.split():
                if why and told[q].answer is YesNo.YES:
                    told[q] = replace(told[q], answer=YesNo.UNKNOWN, why=why)

        nearly = told["cover"].value > NEARLY * told["cover"].reach
        if told["cover"].answer is YesNo.NO and (nearly or not self._would_show(maps, share)):
            why = "a small one would not stand out from how the episodes to compare with differ"
            told["cover"] = replace(told["cover"], answer=YesNo.UNKNOWN, why=why)
        clipped = _clipped(samples) > self.most_clipped + MORE_CLIPPED
        brighter = told["exposure"].answer if told["exposure"].value > 0 else YesNo.NO
        light = {brighter, told["local_light"].answer} if clipped else set()
        may_be = "cover" if YesNo.UNKNOWN in light else ""  # a light that is just within chance
        spoilt(BY_SHADES if YesNo.YES in light else may_be, "its bright parts have no shades left")
        still = self.kind is not Kind.WRIST
        moved = "it has moved", "where it looks" if still else ""
        strange = told["cover"].answer is YesNo.YES and not clipped
        for asked, lights in BY_PLACE.items():
            why = _unsure(told, ("moved", "crop"), *moved)
            if not why and still:
                why = _unsure(told, lights, "the light has changed", "light")
            spoilt(asked, why)
        strange &= YesNo.YES not in {told[q].answer for q in ("moved", "crop", "cover")}
        if strange and self._other_structure(maps, share):
            spoilt("local_light haze", "something may stand before it")
        if self._moves(samples) < self.least_moving:
            spoilt("cover", "its arm moves less than in any other episode: it may stand before it")
        if told["noise"].value < 0:
            spoilt("noise", _unsure(told, ("cover", "sharpness"), "it shows less", "what it shows"))
        for cause, sign, questions, why in SPOILS:
            if told[cause].answer is YesNo.YES and sign * told[cause].value >= 0:
                spoilt(questions, why)
        if told["haze"].answer is YesNo.YES and 0 < told["exposure"].value < 2 * told["haze"].value:
            spoilt("exposure", "haze makes it brighter, too")
        causes = {q: words for q, words in LIT_BY.items() if told[q].answer is not YesNo.NO}
        if told["exposure"].value < 0:
            causes.pop("haze", None)
        if told["exposure"].answer is YesNo.YES and causes:
            why = f"perhaps by {' or '.join(causes.values())}"
            told["exposure"] = replace(told["exposure"], why=why)
        if told["cover"].answer is YesNo.YES:
            told["cover"] = replace(told["cover"], where=where)
        return [*answers, *told.values()]

    def _answer(
        self, asked: str, question: CameraQuestion, numbers: Mapping[str, float], share: float
    ) -> CameraAnswer:
        found = list[tuple[float, str, float, float]]()
        unknown = ""
        for key in question.numbers:
            value, unit = numbers.get(key, np.nan), self.units.get(key)
            if unit is None or not np.isfinite(value):
                unknown = unknown or (
                    "too little stands still in its pictures" if asked in ("moved", "crop")
                    else "it varies too much between the episodes to compare with"
                )  # fmt: skip
                continue
            scale = LIGHT_STOPS if question.unit == "stops" else 1.0
            away, reach = scale * (value - unit.middle), scale * unit.reach(share)
            by = LIES_BETTER.get(key)
            alike = by is not None and numbers[by] < CLEARLY
            found.append((min(abs(away) / reach, 1.0 if alike else np.inf), key, away, reach))
        if not found:
            return CameraAnswer(self.name, asked, YesNo.UNKNOWN, "", np.nan, np.nan, why=unknown)
        ratio, key, away, reach = max(found)
        match = self.units.get("match")
        laid = asked in ("moved", "crop") and match is not None and ratio > 1.0
        if laid and match and numbers["match"] < match.middle - 3.0 * match.spread:
            why = "what it is laid on looks different, too"
            return CameraAnswer(self.name, asked, YesNo.UNKNOWN, key, away, reach, why=why)
        one_sided = key in ("cover", "flicker", "bands")
        if ratio > 1.0 and (away > 0 or not one_sided):
            return CameraAnswer(self.name, asked, YesNo.YES, key, away, reach)
        # What the reference's own variation leaves open may be worth it: then it isn't denied.
        sides = [max(away if one_sided else abs(away), 0.0) + reach for _, _, away, reach in found]
        if unknown or max(sides) > question.worth:
            why = unknown or f"{key} varies by {reach:.2g} {question.unit} by chance"
            return CameraAnswer(self.name, asked, YesNo.UNKNOWN, key, away, reach, why=why)
        return CameraAnswer(self.name, asked, YesNo.NO, key, away, reach)


def _unsure(
    told: Mapping[str, CameraAnswer], asked: Sequence[str], changed: str, varies: str
) -> str:
    """Return why another answer can't be trusted: one of these isn't answered by no.

    Where what `varies` is not named, only a yes counts.
    """
    answers = {told[q].answer for q in asked}
    if YesNo.YES in answers:
        return changed
    unknown = varies and YesNo.UNKNOWN in answers
    return f"{varies} varies too much between the reference episodes" if unknown else ""


class CameraCheck:
    """All cameras of reference takes; `judge` answers for those of another take."""

    def __init__(self, takes: Sequence[Mapping[str, CameraSamples]], reference: str = "") -> None:
        self.reference, self.takes = reference, len(takes)
        names = sorted({name for take in takes for name in take})
        known = [KnownCamera(name, [take.get(name) for take in takes]) for name in names]
        self.cameras = {camera.name: camera for camera in known if camera.takes}

    def judge(self, take: Mapping[str, CameraSamples]) -> list[CameraAnswer]:
        """YesNo every question about every camera of a take that the reference has, too."""
        shown, found = dict[str, CameraSamples](), list[CameraAnswer]()
        for name, samples in take.items():
            if (camera := self.cameras.get(name)) is not None:
                shown[name], whole = camera.put_right(samples)
                yes = [a for a in whole if a.answer is YesNo.YES]
                spoilt = {q: a.why for a in yes for q in SPOILT_BY[a.question].split()}
                found += whole + [
                    replace(a, answer=YesNo.UNKNOWN, why=spoilt[a.question])
                    if a.question in spoilt else a for a in camera.judge(shown[name])
                ]  # fmt: skip
                if len(spoilt) > 1:
                    del shown[name]
        for one, other in itertools.combinations(shown, 2):
            found += self._swapped(one, other, shown)
        return found

    def _swapped(
        self, one: str, other: str, shown: Mapping[str, CameraSamples]
    ) -> list[CameraAnswer]:
        """Tell whether two cameras' pictures lie under each other's names.

        By lasting edges, such as those of grippers, and by which joints the pictures move with.
        """
        a, b = self.cameras[one], self.cameras[other]
        both = [
            (a.numbers.index(n), b.numbers.index(n)) for n in a.numbers if n in b.numbers
        ]  # fmt: skip
        if len(both) < LEAST:
            return []

        def crossed(
            of_a: CameraSamples,
            of_b: CameraSamples,
            looks: tuple[TakeLook, TakeLook],
            block: int | None,
        ) -> tuple[float, float]:
            moves = (
                a.follows(of_b, block) + b.follows(of_a, block)
                - a.follows(of_a, block) - b.follows(of_b, block)
            )  # fmt: skip
            edges = (
                a.resembles(looks[1], block) + b.resembles(looks[0], block)
                - a.resembles(looks[0], block) - b.resembles(looks[1], block)
            )  # fmt: skip
            return moves, edges

        usual = np.array([
            crossed(a.takes[k], b.takes[j], (a.looks[k], b.looks[j]), int(a.block[k]))
            for k, j in both
        ])  # fmt: skip
        now = crossed(
            shown[one], shown[other], (TakeLook.of(shown[one]), TakeLook.of(shown[other])), None
        )
        best, said = YesNo.UNKNOWN, (float("nan"), float("nan"))
        for value, known in zip(now, usual.T, strict=True):
            known = known[np.isfinite(known)]
            if len(known) < LEAST or not np.isfinite(value):
                continue
            apart = np.abs(known - np.median(known))
            unit = Unit(
                float(np.median(known)), float(known.std(ddof=1)) + 1e-3, float(apart.max()),
                len(known), len(set(a.block.tolist())),
            )  # fmt: skip
            reach = unit.reach(ERROR_RATE / len(FLOORS))
            if unit.middle + reach > 0:  # straight and crossed look too alike to tell
                continue
            if best is not YesNo.YES:
                said = value - unit.middle, reach
                best = YesNo.YES if value > 0 and value - unit.middle > reach else YesNo.NO
        why = "" if best is not YesNo.UNKNOWN else f"{one} and {other} look and move too much alike"
        return [CameraAnswer(one, "swapped", best, other, *said, why=why)]


@dataclass(frozen=True)
class CameraReport:
    """What is answered of several takes together.

    Attributes:
        kinds: camera to how it moves.
        takes: take to its answers.
        shown: camera and question to what shows a yes best, RGB, and its take.
    """

    reference: str
    n_reference: int
    kinds: Mapping[str, Kind]
    takes: Mapping[str, tuple[CameraAnswer, ...]]
    shown: Mapping[tuple[str, str], tuple[str, Image]]

    def answers(self, camera: str, question: str) -> list[CameraAnswer]:
        """Return the answers to one question about one camera, take by take."""
        every = [a for answers in self.takes.values() for a in answers]
        return [a for a in every if (a.camera, a.question) == (camera, question)]

    @property
    def found(self) -> dict[tuple[str, str], list[CameraAnswer]]:
        """Camera and question to the takes' yes, where more take part than chance would have."""
        asked = {(a.camera, a.question) for answers in self.takes.values() for a in answers}
        result = {}
        for key in sorted(asked):
            every = self.answers(*key)
            yes = [a for a in every if a.answer is YesNo.YES]
            n, k = len(every), len(yes)
            by_chance = sum(
                math.comb(n, j) * OFTEN**j * (1 - OFTEN) ** (n - j) for j in range(k, n + 1)
            )
            if yes and (by_chance <= OFTEN or key[1] in SPOILT_BY):
                result[key] = sorted(yes, key=lambda a: abs(a.value) / max(a.reach, 1e-9))
        return result

    def lines(self) -> list[str]:
        """Return what people read: what is found, then what couldn't be told."""
        if not self.takes or not self.kinds:
            return []
        many = "s" * (self.n_reference != 1)
        lines = [f"Cameras, against {self.n_reference} episode{many} ({self.reference}):"]
        for (camera, question), yes in self.found.items():
            n = len(self.answers(camera, question))
            lines.append(f"  {yes[len(yes) // 2].line}, in {len(yes)} of {n} episodes")
        if len(lines) == 1:
            lines.append("  nothing has changed beyond how these vary by themselves")
        for camera, kind in self.kinds.items():
            open_to = [
                q.replace("_", " ") for q in QUESTIONS
                if any(a.answer is YesNo.UNKNOWN for a in self.answers(camera, q))
            ]  # fmt: skip
            if open_to:
                lines.append(f"  {camera} ({kind}): can't tell {', '.join(open_to)}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return `summary.camera_check` of a diagnosis."""
        found = self.found
        return {
            "reference": self.reference,
            "reference_takes": self.n_reference,
            "kinds": {name: kind.value for name, kind in self.kinds.items()},
            "found": [
                {"camera": camera, "question": question, "takes": len(yes),
                 "dimension": dimension_of(question).value, "says": yes[len(yes) // 2].line}
                for (camera, question), yes in found.items()
            ],
            "takes": {
                uid: {f"{a.camera}.{a.question}": a.answer.value for a in answers}
                for uid, answers in self.takes.items()
            },
        }  # fmt: skip


def dimension_of(question: str) -> GapDimension:
    """Return the gap dimension that a yes to a question speaks for."""
    asked = QUESTIONS.get(question)
    turned = GapDimension.SPATIAL_GEOMETRY if question == "turned" else GapDimension.VISUAL_DOMAIN
    return asked.dimension if asked else turned


def check_takes(
    reference: Sequence[Take], judged: Sequence[Take], name: str
) -> CameraReport | None:
    """Judge takes' cameras by what they showed in the takes of a reference, called `name`.

    Of many takes `MOST`, evenly spread, are looked at. None where nothing can be looked at.
    """
    before, now = _spread_out(reference), _spread_out(judged)
    joints = {t.info.joint_names for t in (*before, *now)}
    if len(joints) > 1 or not all(np.isfinite(t.frames.state).all() for t in (*before, *now)):
        # Poses of other joints, or such as weren't read, can't be set against each other.
        before, now = ([_without_joints(t) for t in takes] for takes in (before, now))
    samples = [
        {camera: s for camera in take.cameras if (s := sample(take, camera)) is not None}
        for take in before
    ]
    check = CameraCheck([held for held in samples if held])
    takes, shown = dict[str, tuple[CameraAnswer, ...]](), dict[tuple[str, str], Any]()
    for take in now:
        seen = {camera: s for camera in take.cameras if (s := sample(take, camera)) is not None}
        takes[take.info.uid] = tuple(check.judge(seen))
        for answer in takes[take.info.uid]:
            key, size = (answer.camera, answer.question), abs(answer.value) / (answer.reach or 1)
            if answer.answer is YesNo.YES and size > shown.get(key, (-math.inf,))[0]:
                usual = check.cameras[answer.camera]
                shown[key] = size, take.info.uid, overlay(usual, seen[answer.camera], answer)
    if not any(takes.values()):
        return None
    return CameraReport(
        name, check.takes, {n: c.kind for n, c in check.cameras.items()}, takes,
        {key: (uid, picture) for key, (_, uid, picture) in shown.items()},
    )  # fmt: skip


def _without_joints(take: Take) -> Take:
    state = np.empty((len(take.frames), 0))
    return replace(take, frames=replace(take.frames, state=state))


def _spread_out(takes: Sequence[Take]) -> list[Take]:
    if len(takes) <= MOST:
        return list(takes)
    return [takes[int(k)] for k in np.linspace(0, len(takes) - 1, MOST)]


def overlay(camera: KnownCamera, samples: CameraSamples, answer: CameraAnswer) -> Image:
    """Return the usual picture beside the take's, with what shows an answer marked, RGB.

    Cells that show it lie under red; where it has moved, its lasting edges lie in green over the
    usual ones in red.
    """
    picture = np.asarray(np.median(samples.pictures, axis=0), dtype=np.uint8)
    marked = picture.copy()
    if answer.where.size:
        size = (WIDTH, HEIGHT)
        where = cv2.resize(answer.where.astype(np.float32), size, interpolation=cv2.INTER_NEAREST)
        marked[where > 0.5] = (0.5 * marked[where > 0.5] + [127, 10, 10]).astype(np.uint8)
    elif answer.question in ("moved", "crop"):
        marked = np.zeros_like(picture)
        marked[..., 0] = 255 * camera.edges
        marked[..., 1] = 255 * lasting_edges(samples.pictures)
    return np.hstack([camera.usual, picture, marked])


def _alike(a: Grey, b: Grey) -> float:
    """Return the correlation of two pictures, a little blurred; 0 where one shows nothing."""
    one, two = (cv2.GaussianBlur(np.ascontiguousarray(p), (0, 0), 1.5).ravel() for p in (a, b))
    flat = min(float(one.std()), float(two.std())) < 1e-3
    return 0.0 if flat else float(np.corrcoef(one, two)[0, 1])


def _red_to_blue(samples: CameraSamples) -> Grey:
    """Return how red a take's still picture is, to how blue [stops], shape (HEIGHT, WIDTH)."""
    stops = np.log2(np.median(samples.pictures, axis=0).astype(np.float32) + 4.0)
    return np.asarray(stops[..., 0] - stops[..., 2], dtype=np.float32)


def _colours(samples: CameraSamples) -> float:
    """Return how far apart channels are in the most colourful hundredth of a take [levels]."""
    return float(np.percentile(np.ptp(samples.pictures, axis=-1), 99))


def _changes(samples: CameraSamples) -> float:
    """Return how much the tenth of pixels that change most do over a take [levels]."""
    grey = samples.pictures.astype(np.float32).mean(axis=-1)
    return float(np.percentile(np.abs(grey - np.median(grey, axis=0)).mean(axis=0), 90))


def _patches(cells: FloatArray) -> FloatArray:
    """Return the mean of the nine cells around each."""
    mean = cv2.blur(cells.astype(np.float32), (3, 3), borderType=cv2.BORDER_REPLICATE)
    return np.asarray(mean, dtype=np.float64)


def _clipped(samples: CameraSamples) -> float:
    """Return the share of a take's pixels that have no shades left above them."""
    return float((samples.pictures.max(axis=-1) >= CLIPPED).mean())


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
