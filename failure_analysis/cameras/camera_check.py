"""What has changed about a camera, in units of how much it varies between takes by itself.

Reference takes, such as a policy's training or a set's own successes, are each compared with the
others; a take to judge is compared with all. Every question is answered by one or more numbers,
each set against what the reference takes, left out in blocks of neighbours, give (so that slow
drift counts as usual). Pictures are compared with those of the reference in which the joints stood
nearest, so that a camera on a wrist or head can be judged, too. Nothing was fitted to pictures of
any place: limits follow from the reference, `ERROR_RATE` and how finely pictures can be measured.
Whole pictures come first (`put_right`): whether they had been turned, mirrored, frozen, or lost
their colours.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.grippers import gripper_columns, gripper_of, is_grip
from gaploop.core.messages import FloatArray, Image
from gaploop.core.take import Take
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.cameras.known_camera import (
    ALIKE,
    BLACK,
    FLOORS,
    LEAST,
    Kind,
    KnownCamera,
    Unit,
    alike,
    clipped,
    red_to_blue,
)
from gaploop.failure_analysis.views.camera_samples import (
    HEIGHT,
    PLACES,
    STANDING,
    WIDTH,
    CameraSamples,
    TakeLook,
    lasting_edges,
    sample,
)
from gaploop.failure_analysis.views.phases import CLOSED_SHARE


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


def dimension_of(question: str) -> GapDimension:
    """Return the gap dimension that a yes to a question speaks for."""
    asked = QUESTIONS.get(question)
    turned = GapDimension.SPATIAL_GEOMETRY if question == "turned" else GapDimension.VISUAL_DOMAIN
    return asked.dimension if asked else turned


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


def put_right(
    camera: KnownCamera, samples: CameraSamples
) -> tuple[CameraSamples, list[CameraAnswer]]:
    """Return a take's pictures as this camera's usually lie, and what had been done to them."""
    said = dict.fromkeys(list(SPOILT_BY)[1:], "")
    if len(camera.takes) >= LEAST and samples.pictures.mean() <= BLACK:
        said["black"] = "its pictures are black"
    elif len(camera.takes) >= LEAST:
        fits, coloured = camera.fits
        edges = TakeLook.of(samples).edges
        now = {how: alike(undo(edges), camera.edges) for how, undo in UPRIGHT.items()}
        how, lies = max(now, key=lambda name: now[name]), alike(edges, camera.edges)
        if fits > ALIKE and now[how] > FITS * fits and lies < 0.5 * now[how]:
            said["turned"], lies = f"its pictures are {how}", now[how]
            height, width = samples.size_px
            back = "90" in how and (width, height) == camera.takes[0].size_px
            samples = replace(
                samples, pictures=np.stack([UPRIGHT[how](p) for p in samples.pictures]),
                size_px=(width, height) if back else (height, width),
            )  # fmt: skip
        colour = alike(red_to_blue(samples), camera.colour)
        if lies > FITS * fits and coloured > ALIKE and colour < -COLOUR_FITS * coloured:
            said["colour_order"] = "red and blue are swapped in its pictures"
            of = samples.measures
            samples = replace(
                samples, pictures=samples.pictures[..., ::-1],
                measures=of | {"red": of["blue"], "blue": of["red"]},
            )  # fmt: skip
        if _colours(samples) <= GREY[0] and min(map(_colours, camera.takes)) >= GREY[1]:
            said["colourless"] = "its pictures are grey, without colour"
        moves = samples.has_joints and camera.moves(samples) > 0.5 * camera.least_moving
        if moves and _changes(samples) < FROZEN[0] and min(map(_changes, camera.takes)) > FROZEN[1]:
            said["frozen"] = "it shows one picture while the arm moves"
    return samples, [
        CameraAnswer(camera.name, q, YesNo.YES if why else YesNo.NO, q, 0.0, 1.0, why=why)
        for q, why in said.items()
    ]


def _quarter(picture: NDArray[Any], times: int) -> NDArray[Any]:
    """Turn a kept picture by 90° to the left, so many times; its sides are swapped back."""
    turned = np.ascontiguousarray(np.rot90(picture, times))
    return np.asarray(cv2.resize(turned, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA))


def _colours(samples: CameraSamples) -> float:
    """Return how far apart channels are in the most colourful hundredth of a take [levels]."""
    return float(np.percentile(np.ptp(samples.pictures, axis=-1), 99))


def _changes(samples: CameraSamples) -> float:
    """Return how much the tenth of pixels that change most do over a take [levels]."""
    grey = samples.pictures.astype(np.float32).mean(axis=-1)
    return float(np.percentile(np.abs(grey - np.median(grey, axis=0)).mean(axis=0), 90))


# -- how one is answered of a take --------------------------------------------------------------


ERROR_RATE: Final = 0.02
"""Of an unaltered episode, how often any question about one of its cameras may be answered by
yes."""
OFTEN: Final = 0.05
"""The same where neighbouring episodes have drifted together, and of sets: named is what more
episodes say than that explains."""
MOST: Final = 40
"""Takes that are looked at, of a reference and of those judged, evenly spread."""
UNLIKE: Final = "what it is laid on looks different, too"
"""Why it can't be told whether a camera has moved: by much, or before another place."""
HINTS: Final = 0.5
"""Of what chance reaches, the part from which on a change is hinted at."""
HARDEST: Final = 0.1
"""Share of a picture's places at which a cover that is denied would not have shown."""
COVER_STOPS: Final = 1.0
"""What covers a part of a picture makes it so much darker or lighter, at least."""
NEARLY: Final = 0.75
"""Share of what chance reaches from which on a cover isn't denied."""
LIGHT_STOPS: Final = 2.2
"""Stops of light that double the grey of a picture, which is kept with a gamma of about 2.2."""
CLEARLY: Final = 0.1
"""Share of what still differs there that a move, or another lens, must take away: an arm or a thing
that stands elsewhere, or other light, takes away a little, too."""
LIES_BETTER: Final = {"bend": "through_lens"} | dict.fromkeys(
    ("right", "down", "turn", "scale"), "by_move"
)
"""What says so of each number about place."""
BY_PLACE: Final[Mapping[str, tuple[str, ...]]] = {
    "local_light": (), "vignette": ("local_light",),
    "cover": ("exposure", "white_balance", "local_light"),
}  # fmt: skip
"""Questions told by cells of the picture, which must show the same places; of cameras that don't
move along with an arm, in the same light."""
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
    ("sharpness", -1, "haze", "a blur mixes what is dark with what is around"),
)
"""A question, the direction of a yes to it (0: any), what it leaves no evidence of, why."""
LIT_BY: Final = {"vignette": "a vignette", "local_light": "light from a side", "haze": "haze"}
"""What may have made a picture brighter or darker where it can't be told."""


def judge(camera: KnownCamera, samples: CameraSamples) -> list[CameraAnswer]:
    """Answer every question about this camera in a take, put right."""
    if len(camera.takes) < LEAST:
        why = f"{len(camera.takes)} episodes to compare with; {LEAST} are needed"
        return [
            CameraAnswer(camera.name, q, YesNo.UNKNOWN, "", np.nan, np.nan, why=why)
            for q in QUESTIONS
        ]
    look = TakeLook.of(samples)
    numbers, maps = camera.compared(samples, look)
    share = ERROR_RATE / len(FLOORS)
    answers = list[CameraAnswer]()
    usual_size = camera.takes[0].size_px
    if samples.size_px != usual_size:
        (h, w), (uh, uw) = samples.size_px, usual_size
        cut = "" if h * uw == w * uh else ": cropped or stretched"
        why = f"gives {w}x{h} pictures, usually {uw}x{uh}{cut}"
        answers.append(
            CameraAnswer(camera.name, "size", YesNo.YES, "size", h * w / (uh * uw), 1.0, why=why)
        )
    numbers["cover"], where = camera.cover(maps)
    told = {q: _answer(camera, q, asked, numbers, share) for q, asked in QUESTIONS.items()}

    def spoilt(questions: str, why: str) -> None:
        for q in questions.split():
            if why and told[q].answer is YesNo.YES:
                told[q] = replace(told[q], answer=YesNo.UNKNOWN, why=why)

    nearly = told["cover"].value > NEARLY * told["cover"].reach
    if told["cover"].answer is YesNo.NO and (nearly or not _would_show(camera, maps, share)):
        why = "a small one would not stand out from how the episodes to compare with differ"
        told["cover"] = replace(told["cover"], answer=YesNo.UNKNOWN, why=why)
    is_clipped = clipped(samples) > camera.most_clipped + MORE_CLIPPED
    brighter = told["exposure"].answer if told["exposure"].value > 0 else YesNo.NO
    light = {brighter, told["local_light"].answer} if is_clipped else set()
    may_be = "cover" if YesNo.UNKNOWN in light else ""  # a light that is just within chance
    spoilt(BY_SHADES if YesNo.YES in light else may_be, "its bright parts have no shades left")
    still = camera.kind is not Kind.WRIST
    moved = "it has moved", "where it looks" if still else ""
    strange = told["cover"].answer is YesNo.YES and not is_clipped
    for asked, lights in BY_PLACE.items():
        why = _unsure(told, ("moved", "crop"), *moved)
        if not why and still:
            why = _unsure(told, lights, "the light has changed", "light")
        spoilt(asked, why)
    strange &= YesNo.YES not in {told[q].answer for q in ("moved", "crop", "cover")}
    if strange and _other_structure(camera, maps, share):
        spoilt("local_light haze", "something may stand before it")
    if camera.moves(samples) < camera.least_moving:
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
    camera: KnownCamera,
    asked: str,
    question: CameraQuestion,
    numbers: Mapping[str, float],
    share: float,
) -> CameraAnswer:
    found = list[tuple[float, str, float, float]]()
    unknown = ""
    for key in question.numbers:
        value, unit = numbers.get(key, np.nan), camera.units.get(key)
        if unit is None or not np.isfinite(value):
            unknown = unknown or (
                (UNLIKE if unit else "too little stands still in its pictures")
                if asked in ("moved", "crop")
                else "it varies too much between the episodes to compare with"
            )  # fmt: skip
            continue
        scale = LIGHT_STOPS if question.unit == "stops" else 1.0
        away, reach = scale * (value - unit.middle), scale * unit.reach(share)
        by = LIES_BETTER.get(key)
        stays = by is not None and numbers[by] < CLEARLY
        found.append((min(abs(away) / reach, 1.0 if stays else np.inf), key, away, reach))
    if not found:
        return CameraAnswer(camera.name, asked, YesNo.UNKNOWN, "", np.nan, np.nan, why=unknown)
    ratio, key, away, reach = max(found)
    match = camera.units.get("match")
    laid = asked in ("moved", "crop") and match is not None and ratio > 1.0
    if laid and match and numbers["match"] < match.middle - 3.0 * match.spread:
        return CameraAnswer(camera.name, asked, YesNo.UNKNOWN, key, away, reach, why=UNLIKE)
    one_sided = key in ("cover", "flicker", "bands")
    if ratio > 1.0 and (away > 0 or not one_sided):
        return CameraAnswer(camera.name, asked, YesNo.YES, key, away, reach)
    # What the reference's own variation leaves open may be worth it: then it isn't denied.
    sides = [max(away if one_sided else abs(away), 0.0) + reach for _, _, away, reach in found]
    if unknown or max(sides) > question.worth:
        why = unknown or f"{key} varies by {reach:.2g} {question.unit} by chance"
        return CameraAnswer(camera.name, asked, YesNo.UNKNOWN, key, away, reach, why=why)
    return CameraAnswer(camera.name, asked, YesNo.NO, key, away, reach)


def _other_structure(camera: KnownCamera, maps: Mapping[str, FloatArray], share: float) -> bool:
    """Return whether structure alone, whatever the light, is odder than chance somewhere."""
    unit, level = camera.units.get("cover"), camera.cells["level"][0]
    alone = camera.cover({**maps, "level": level})[0]
    return unit is not None and alone - unit.middle > unit.reach(share)


def _would_show(camera: KnownCamera, maps: Mapping[str, FloatArray], share: float) -> bool:
    """Return whether nearly any place that is covered a little would be told from chance.

    Of a camera that stands, by a change of `COVER_STOPS`: its references may differ by more;
    of one that moves along, by pixels that don't change. Four cells of a patch's nine, as 3 %
    of a picture fill.
    """
    if "cover" not in camera.units:
        return True
    least = math.exp(camera.units["cover"].middle + camera.units["cover"].reach(share))
    if camera.kind is Kind.FIXED:
        shown = COVER_STOPS / camera.cells["level"][1]
        return float(np.quantile(shown, HARDEST)) > least
    middle, spread = camera.cells["motion"]
    usual = np.median([look.motion for look in camera.looks], axis=0)
    now = float(np.median((maps["motion"] - middle) / spread))
    shown = now - (STANDING - usual - middle) / spread
    return float(np.quantile(shown, HARDEST)) * 4 / 9 > least


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

    def __init__(self, takes: Sequence[Mapping[str, CameraSamples]]) -> None:
        self.takes = len(takes)
        names = sorted({name for take in takes for name in take})
        known = [KnownCamera(name, [take.get(name) for take in takes]) for name in names]
        self.cameras = {camera.name: camera for camera in known if camera.takes}

    def judge(self, take: Mapping[str, CameraSamples]) -> list[CameraAnswer]:
        """Answer every question about every camera of a take that the reference has, too."""
        shown, found = dict[str, CameraSamples](), list[CameraAnswer]()
        for name, samples in take.items():
            if (camera := self.cameras.get(name)) is not None:
                shown[name], whole = put_right(camera, samples)
                yes = [a for a in whole if a.answer is YesNo.YES]
                spoilt = {q: a.why for a in yes for q in SPOILT_BY[a.question].split()}
                found += whole + [
                    replace(a, answer=YesNo.UNKNOWN, why=spoilt[a.question])
                    if a.question in spoilt else a for a in judge(camera, shown[name])
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
                len(set(a.block.tolist())),
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
        for camera, kind in self.kinds.items():
            moved = self.answers(camera, "moved")
            told = kind is not Kind.FIXED or any(name == camera for name, _ in self.found)
            n = 0 if told else sum(a.why == UNLIKE for a in moved)
            if 2 * n > len(moved):
                lines.append(
                    f"  camera {camera} doesn't lie on its usual pictures: turned or put elsewhere "
                    f"by much, or the place has changed, in {n} of {len(moved)} episodes"
                )
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
        before, now = (
            [
                replace(t, frames=replace(t.frames, state=np.empty((len(t.frames), 0))))
                for t in takes
            ]
            for takes in (before, now)
        )
    check, seen = _known(before), {take.info.uid: _looked(take) for take in now}
    kinds = {name: camera.kind for name, camera in check.cameras.items()}
    takes = {uid: tuple(check.judge(looks)) for uid, looks in seen.items()}
    if not any(takes.values()):
        return None
    if any(_may_follow(kinds, a) for told in takes.values() for a in told):
        until = [_until_closed(some) for some in (before, now)]
        until[1] = [min(rows, max(until[0])) for rows in until[1]]  # those that fail run on
        if [*until[0], *until[1]] != [len(take.frames) for take in (*before, *now)]:
            early = _known(before, until[0])
            for take, rows in zip(now, until[1], strict=True):
                told = early.judge(_looked(take, rows))
                takes[take.info.uid] = _shown_before(kinds, takes[take.info.uid], told)
    return CameraReport(name, check.takes, kinds, takes, _examples(check, seen, takes))


def _known(takes: Sequence[Take], until: Sequence[int] | None = None) -> CameraCheck:
    looked = [_looked(take, until[n] if until else None) for n, take in enumerate(takes)]
    return CameraCheck([held for held in looked if held])


def _examples(
    check: CameraCheck,
    seen: Mapping[str, Mapping[str, CameraSamples]],
    takes: Mapping[str, Sequence[CameraAnswer]],
) -> dict[tuple[str, str], tuple[str, Image]]:
    """Return what shows each yes best, with the take that it is in."""
    best = dict[tuple[str, str], Any]()
    for uid, answer in ((uid, a) for uid, told in takes.items() for a in told):
        key, size = (answer.camera, answer.question), abs(answer.value) / (answer.reach or 1)
        if answer.answer is YesNo.YES and size > best.get(key, (-math.inf,))[0]:
            usual = check.cameras[answer.camera]
            best[key] = size, uid, overlay(usual, seen[uid][answer.camera], answer)
    return {key: (uid, picture) for key, (_, uid, picture) in best.items()}


def _may_follow(kinds: Mapping[str, Kind], told: CameraAnswer) -> bool:
    """Say whether what an arm takes, or leaves, may bring a yes; or where it stands, `UNLIKE`."""
    stays = kinds.get(told.camera) is Kind.FIXED and told.question in ("moved", "crop")
    yes = told.answer is YesNo.YES and told.question in QUESTIONS and not stays
    return yes or told.why == UNLIKE


def _shown_before(
    kinds: Mapping[str, Kind], whole: Sequence[CameraAnswer], before: Sequence[CameraAnswer]
) -> tuple[CameraAnswer, ...]:
    """Return answers without a yes that nothing speaks for before the gripper closes.

    What pictures show from then on follows from how it went: an object that nobody took was a cover
    where it lay, and to a camera whose jaws held none the white balance was another.
    """
    early, answers = {(a.camera, a.question): a for a in before}, list[CameraAnswer]()
    for a in whole:
        b = early.get((a.camera, a.question))
        if a.why == UNLIKE:
            if b is not None and b.why != UNLIKE:
                a = replace(a, why="an arm that stands in the picture may be what differs")
        elif _may_follow(kinds, a):
            side = math.copysign(1.0, a.value)
            if b is None or not side * b.value > HINTS * b.reach:
                why = "it doesn't show before the gripper closes: the outcome may be what does"
                a = replace(a, answer=YesNo.UNKNOWN, why=why)
        answers.append(a)
    return tuple(answers)


def _looked(take: Take, rows: int | None = None) -> dict[str, CameraSamples]:
    found = {camera: sample(take, camera, rows_until=rows) for camera in take.cameras}
    return {camera: held for camera, held in found.items() if held is not None}


def _until_closed(takes: Sequence[Take]) -> list[int]:
    """Return how many rows of each take go by until a gripper first closes; all where none does."""
    rows = [len(take.frames) for take in takes]
    sent, read = ([getattr(t.frames, name) for t in takes] for name in ("sent", "state"))
    names = takes[0].info.joint_names if takes else ()
    if not names or {values.shape[1:] for values in (*sent, *read)} != {(len(names),)}:
        return rows
    for k in gripper_columns(names, sent, takes[0].info.fps):
        told, answered = ([v[:, k] for v in values] for values in (sent, read))
        grip = gripper_of(k, told, answered, takes[0].info.fps, named=is_grip(names[k]))
        if grip is None:
            continue
        for n, commands in enumerate(told):
            shut = grip.opened(commands, read=False) < CLOSED_SHARE
            closes = np.flatnonzero(shut[1:] & ~shut[:-1])
            if len(closes) and closes[0] >= PLACES:
                rows[n] = min(rows[n], int(closes[0]) + 1)
    return rows


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
