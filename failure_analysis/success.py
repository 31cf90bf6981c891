"""Tells from an episode's last pictures whether it succeeded, and how often that is wrong.

Where object and target show in the station's colours, how far they are apart says it. Where they
don't, it is which colours lie side by side in the picture, wherever in it (a colour correlogram:
Huang et al. 1997, CVPR), at the end and against the beginning. A logistic regression is fitted to
the station's own labels. How often it is wrong is counted on episodes that it wasn't fitted to;
what isn't counted is never used.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from gaploop.core import labels
from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_content, read_json
from gaploop.core.journal_format import after_path, is_journal, read_take
from gaploop.core.labels import SOURCES, LabelEvent
from gaploop.core.messages import FloatArray, Image
from gaploop.core.paths import plain_name
from gaploop.core.station import Station, StationScene
from gaploop.core.statistics import Estimate, TrialCounts, percent, rate, weighted_sum
from gaploop.core.take import Take
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.datasets.labels import LabelStore, open_labelled
from gaploop.datasets.layout import EpisodeRow, is_dataset
from gaploop.datasets.video import pictures_at
from gaploop.failure_analysis.review.takes import TakeSource
from gaploop.failure_analysis.views.pictures import coloured_outlines, picture_of, squared
from gaploop.sim.recolour import THE_CELLS, recoloured

SUFFIX: Final = ".success.json"
SCHEMA: Final = "gaploop.success.v1"
AUTHOR: Final = "success_detector"
"""Author of its labels; their source is auto, so that a person's count before them."""
LAST_S: Final = (0.5, 0.25, 0.0)
"""Pictures so long before an episode's end are looked at [s]."""
LEAST: Final = 10
"""Labelled successes, and failures, that it takes to measure anything."""
FOLDS: Final = 10
TRACKED_SHARE: Final = 0.9
"""Object and target must show at the beginning of this share of the episodes."""
SURE: Final = 0.99
"""Confidence that a detector does better than chance, or it is refused."""
THUMB_PX: Final = 96
HUES: Final = 12
GREY: Final = 60
"""Of 255: what has less saturation counts as dark, grey or bright."""
BESIDE_PX: Final = 7
"""Colours within half as much lie side by side."""
RIDGE: Final = {"tracked": 0.1, "pictures": 30.0}
"""Penalty on the squares of standardised weights; in pictures there are some 200 of them."""


@dataclass(frozen=True)
class SuccessDetector:
    """What tells successes at one station, in one task: fitted, and measured.

    Attributes:
        how: tracked or pictures.
        camera: whose pictures it looks at.
        after: it looks at the scene once the arm is out of the way, as `--reset=script` leaves it.
        is_real: the episodes were of a real robot.
        failures: labelled failures that it was measured on; it calls `false_successes` of them a
            success. Likewise `successes` and `false_failures`.
        middle: of each feature, shape (p,); `spread` and `weights` likewise.

    Raises:
        ValueError: it isn't measured, or not what its features need.
    """

    station: str
    task: str
    camera: str
    after: bool
    how: str
    is_real: bool
    failures: int
    false_successes: int
    successes: int
    false_failures: int
    middle: Sequence[float]
    spread: Sequence[float]
    weights: Sequence[float]
    bias: float
    scene: StationScene = THE_CELLS

    def __post_init__(self) -> None:
        if min(self.failures, self.successes) < LEAST or self.shown(SURE).low <= 0:
            raise ValueError("it isn't measured")
        p = len(FEATURES[self.how](np.zeros((2, 8, 8, 3), np.uint8)))
        values = np.array([self.middle, self.spread, self.weights], dtype=np.float64)
        if values.shape != (3, p) or not np.isfinite([*values.flat, self.bias]).all():
            raise ValueError("its weights are damaged")

    @property
    def false_success(self) -> Estimate:
        """Share of failures that it calls a success, with its 95 % interval."""
        return rate(self.false_successes, self.failures)

    @property
    def false_failure(self) -> Estimate:
        """Share of successes that it calls a failure, with its 95 % interval."""
        return rate(self.false_failures, self.successes)

    def shown(self, confidence: float = 0.95) -> Estimate:
        """Return the share of a true difference in success that its labels show.

        1 - α - β for a false success α and a false failure β (Rogan and Gladen 1978, Am J
        Epidemiol 107:71).
        """
        right = TrialCounts(self.successes - self.false_failures, self.successes)
        wrong = TrialCounts(self.false_successes, self.failures)
        return weighted_sum([(1.0, [right]), (-1.0, [wrong])], confidence)

    def words(self) -> str:
        """Say how often it is wrong."""
        return (
            f"of {self.failures} failures it calls {self.false_successes} a success, "
            f"{percent(self.false_success)}; of {self.successes} successes {self.false_failures} a "
            f"failure, {percent(self.false_failure)}"
        )

    def label_of(self, folder: Path) -> LabelEvent:
        """Return `label` of the take that a journal's folder holds."""
        return self.label(read_take(folder, {}), folder)

    def label(self, take: Take, folder: Path | None = None) -> LabelEvent:
        """Return what a take's last pictures show, as an automatic label.

        Its confidence is how often such a word was right where it was measured.

        Raises:
            UnusableInputError: the take is of another task, or has no such pictures.
        """
        if take.info.task != self.task:
            raise UnusableInputError(
                f"Success was learned for the task '{self.task}', and this is '{take.info.task}'."
            )
        if (take.info.domain is Domain.REAL) != self.is_real:
            raise UnusableInputError(
                "Success was learned from pictures of a "
                f"{'real robot' if self.is_real else 'simulation'}, and this is none."
            )
        after = _after(folder, self.camera)
        if self.after and after is None:
            raise UnusableInputError(
                "Success is told once the arm is out of the way, and it didn't go there: use "
                "--reset=script."
            )
        shown = _pictures(take, self.camera, self.scene, after if self.after else None)
        x = FEATURES[self.how](shown)
        won = bool((x - self.middle) / self.spread @ self.weights + self.bias > 0)
        right, wrong = self.successes - self.false_failures, self.false_successes
        if not won:
            right, wrong = self.failures - self.false_successes, self.false_failures
        said, sure = Outcome.SUCCESS if won else Outcome.FAILURE, right / max(right + wrong, 1)
        note = f"by the last pictures ({self.how}): {self.words()}"
        return LabelEvent(
            take.info.uid, "outcome", said.value, AUTHOR, SOURCES[0], "", round(sure, 3), note
        )


def success_path(station: Path) -> Path:
    """Return where a station's detector is: `lab/left.yaml` has `lab/left.success.json`."""
    return station.with_name(f"{station.stem}{SUFFIX}")


def load_detector(file: Path | None, station: Station) -> SuccessDetector | None:
    """Read the detector beside a station's file; None where there is none.

    Raises:
        UnusableInputError: it isn't measured, is damaged, or is of another station.
    """
    if file is None or not success_path(file).exists():
        return None
    path = success_path(file)
    measures = f"Measure it: gaploop label DATASET --success_detector={file}"
    try:
        said = dict(read_json(path))
        if said.pop("schema") != SCHEMA:
            raise ValueError("another schema")
        found = SuccessDetector(**said, scene=station.scene)
    except DAMAGE as error:
        raise UnusableInputError(f"{path} can't be used ({error}). {measures}") from None
    if found.station != station.name:
        raise UnusableInputError(
            f"{path} was measured at {found.station}; this is {station.name}. {measures}"
        )
    return found


def as_json(detector: SuccessDetector) -> dict[str, Any]:
    """Return what `load_detector` reads, as JSON."""
    said = {k: v for k, v in asdict(detector).items() if k != "scene"}
    return {"schema": SCHEMA, **said}


def learn(
    store: LabelStore,
    rows: Sequence[EpisodeRow],
    station: Station,
    advance: Callable[[int], None] = lambda _n: None,
) -> SuccessDetector:
    """Fit a detector to labelled episodes and measure it on those that each fit leaves out.

    Episodes that a detector labelled don't count: it would agree with itself.

    Raises:
        UnusableInputError: there are too few labels, or pictures don't show success here.
    """
    said = labels.standing(store.events)
    by_itself = {uid for (uid, name), e in said.items() if name == "outcome" and e.author == AUTHOR}
    told = [
        row
        for row in rows
        if row.outcome in (Outcome.SUCCESS, Outcome.FAILURE) and row.info.uid not in by_itself
    ]
    scene = station.scene
    source = TakeSource(store, scene=StationScene(scene.camera))
    camera = scene.camera or next(
        (
            v.camera
            for row in told[:1]
            for v in sorted(source.pictures(row), key=lambda v: v.camera)
        ),
        "",
    )
    afters = {row.info.uid: _after(_folder(store, row), camera) for row in told}
    looked = [row for row in told if afters[row.info.uid] is not None]
    if after := min(Counter(row.outcome for row in looked).values(), default=0) >= LEAST:
        told = looked
    y = np.array([row.outcome is Outcome.SUCCESS for row in told], dtype=bool)
    if min(y.sum(), (~y).sum()) < LEAST:
        raise UnusableInputError(
            f"{store.root}: a success detector is measured on {LEAST} labelled successes and "
            f"{LEAST} failures at least; here are {y.sum()} and {(~y).sum()}. Label more, by hand: "
            f"gaploop review {store.root}"
        )
    kinds = {(row.info.task, row.info.station, row.info.domain is Domain.REAL) for row in told}
    if len(kinds) > 1:
        raise UnusableInputError(
            f"{store.root}: a success detector is of one task at one station; here are "
            f"{'; '.join(f'{task} at {name or "?"}' for task, name, _ in sorted(kinds))}. Choose "
            "with --where or --episodes."
        )
    task, name, real = kinds.pop()
    if name and name != station.name:
        raise UnusableInputError(
            f"{store.root} was recorded at {name}, and {station.where} is {station.name}. Name its "
            "station file."
        )
    found: dict[str, list[FloatArray]] = {how: [] for how in FEATURES}
    tracked = list[bool]()
    for row in told:
        shown = afters[row.info.uid] if after else None
        pictures = _pictures(source.take(row), camera, scene, shown)
        for how, features in FEATURES.items():
            found[how].append(features(pictures))
        tracked.append(all(coloured_outlines(pictures[0])))
        advance(1)
    tried = list[str]()
    for how, rows_x in found.items():
        if how == "tracked" and np.mean(tracked) < TRACKED_SHARE:
            continue
        x = np.array(rows_x)
        wrong = _held_out(x, y, RIDGE[how]) != y
        middle, spread, weights, bias = _fit(x, y, RIDGE[how])
        failed, won = int((~y).sum()), int(y.sum())
        false, missed = int((wrong & ~y).sum()), int((wrong & y).sum())
        try:
            return SuccessDetector(
                station=station.name,
                task=task,
                camera=camera,
                after=after,
                how=how,
                is_real=real,
                failures=failed,
                false_successes=false,
                successes=won,
                false_failures=missed,
                middle=middle.tolist(),
                spread=spread.tolist(),
                weights=weights.tolist(),
                bias=bias,
                scene=scene,
            )
        except ValueError:
            tried.append(
                f"{how}: {false} of {failed} failures and {missed} of {won} successes are told "
                "wrongly"
            )
    raise UnusableInputError(
        f"{store.root}: the last pictures of camera {camera} don't show success here, no better "
        f"than chance ({'; '.join(tried)}). Label more episodes, or judge them yourself."
    )


def told(detector: SuccessDetector, folder: Path) -> bool:
    """Return whether the newest episode in a folder succeeded, and write down what pictures say.

    What a person or the robot's own judge said of it counts before.

    Raises:
        UnusableInputError: there is no such episode, or its pictures can't tell.
    """
    places = [path for path in sorted(folder.iterdir()) if path.is_dir()]
    roots = [p for p in places if is_journal(p)] or [p for p in places if is_dataset(p)]
    if not roots:
        raise UnusableInputError(f"{folder} holds no dataset or journal of the attempt.")
    store = open_labelled(roots[-1])
    row = store.episodes[-1]
    if row.outcome is Outcome.UNLABELLED:
        take = TakeSource(store, scene=StationScene(detector.camera)).take(row)
        said = detector.label(take, _folder(store, row))
        if not store.lacks_columns:
            store.say([said])
        return bool(said.value == Outcome.SUCCESS)
    if row.outcome not in (Outcome.SUCCESS, Outcome.FAILURE):
        raise UnusableInputError(f"the attempt is {row.outcome.value}.")
    return row.outcome is Outcome.SUCCESS


def _fit(x: FloatArray, y: NDArray[np.bool_], ridge: float) -> tuple[Any, Any, Any, float]:
    """Return middle, spread and weights of each feature, and the bias, at even odds of both."""
    middle, spread = x.mean(0), x.std(0) + 1e-6
    z, sign = (x - middle) / spread, np.where(y, 1.0, -1.0)
    share = len(y) * np.where(y, 0.5 / y.sum(), 0.5 / (~y).sum())

    def loss(b: FloatArray) -> tuple[float, FloatArray]:
        margin = sign * (z @ b[1:] + b[0])
        pull = -share * sign / (1.0 + np.exp(np.clip(margin, -500.0, 500.0)))
        value = share @ np.logaddexp(0.0, -margin) + 0.5 * ridge * b[1:] @ b[1:]
        return float(value), np.array([pull.sum(), *(z.T @ pull + ridge * b[1:])])

    b = minimize(loss, np.zeros(z.shape[1] + 1), jac=True, method="L-BFGS-B").x
    return middle, spread, b[1:], float(b[0])


def _held_out(x: FloatArray, y: NDArray[np.bool_], ridge: float) -> NDArray[np.bool_]:
    """Return what is said of each episode by a fit that hasn't seen it; the same each time."""
    rng, fold, said = np.random.default_rng(0), np.zeros(len(y), int), np.zeros(len(y), bool)
    for kind in (y, ~y):
        fold[kind] = rng.permutation(kind.sum()) % FOLDS
    for k in range(FOLDS):
        out = fold == k
        middle, spread, weights, bias = _fit(x[~out], y[~out], ridge)
        said[out] = (x[out] - middle) / spread @ weights + bias > 0
    return said


def _folder(store: LabelStore, row: EpisodeRow) -> Path | None:
    """Return a take's folder in a journal; None in a dataset."""
    return store.root / plain_name(row.info.uid, "uid", store.root) if store.journal else None


def _after(folder: Path | None, camera: str) -> Image | None:
    """Return what a camera showed once the arm was out of the way, RGB; None where it stayed."""
    if folder is None or not (path := after_path(folder, camera)).exists():
        return None
    try:
        return picture_of(read_content(path))
    except ValueError as error:
        raise UnusableInputError(f"{path} can't be read ({error}). Delete it.") from None


def _pictures(take: Take, camera: str, scene: StationScene, after: Image | None) -> Image:
    """Return the first and the last pictures, in the cell's colours, 192 px, shape (n, …, 3).

    That from after the attempt is the last one where it is given.
    """
    if camera not in take.cameras:
        raise UnusableInputError(
            f"Episode {take.info.uid} has no camera '{camera}', by which success is told."
        )
    n = len(take.frames)
    last_s = LAST_S if after is None else ()
    rows = sorted({0, *(max(0, n - 1 - round(s * take.info.fps)) for s in last_s)})
    shown = [p for _, p in pictures_at(take.cameras[camera], rows)]
    if len(shown) < len(rows):
        raise UnusableInputError(f"Episode {take.info.uid} lacks its last pictures of {camera}.")
    shown += [] if after is None else [after]
    return np.stack([recoloured(squared(picture), scene) for picture in shown])


# -- what is looked at -------------------------------------------------------------------------


def _tracked(pictures: Image) -> FloatArray:
    """Return how far apart object and target are at the end, shape (1,) [radii of the target].

    At most 1: beyond the rim, or not to be seen, is as far off as any.
    """
    seen = [coloured_outlines(picture) for picture in pictures]
    goals = [blue[0] for _, blue in seen if blue]
    things = [red[0] for red, _ in seen[1:] if red]
    if not goals or not things:
        return np.ones(1)
    middle_px, radius_px = cv2.minEnclosingCircle(max(goals, key=cv2.contourArea))
    places_px = np.array([cv2.minEnclosingCircle(thing)[0] for thing in things])
    far = np.linalg.norm(places_px - middle_px, axis=1) / radius_px
    return np.array([min(float(far.mean()), 1.0)])


def _correlogram(picture: Image) -> FloatArray:
    """Return how often each two colours lie side by side [log of a share], wherever that is."""
    small = cv2.resize(picture, (THUMB_PX, THUMB_PX), interpolation=cv2.INTER_AREA)
    hue, saturation, value = np.moveaxis(cv2.cvtColor(small, cv2.COLOR_RGB2HSV).astype(int), -1, 0)
    kind = np.where(saturation < GREY, HUES + value // 86, (hue * HUES // 180) % HUES)
    is_kind = np.eye(HUES + 3, dtype=np.float32)[kind]
    near = np.stack(
        [cv2.blur(plane, (BESIDE_PX, BESIDE_PX)) for plane in np.moveaxis(is_kind, -1, 0)]
    )
    pairs = np.einsum("ija,bij->ab", is_kind, near) / THUMB_PX**2
    shares: FloatArray = (pairs + pairs.T)[np.triu_indices(HUES + 3)].astype(np.float64)
    return np.log(shares + 1e-4)


def _side_by_side(pictures: Image) -> FloatArray:
    """Return the correlogram of the last pictures, and how it differs from the first's."""
    first, *last = (_correlogram(picture) for picture in pictures)
    end = np.mean(last, axis=0)
    return np.concatenate([end, end - first])


FEATURES: Final[Mapping[str, Callable[[Image], FloatArray]]] = {
    "tracked": _tracked,
    "pictures": _side_by_side,
}
"""By how success is told, what is taken from pictures, the first of which is the episode's."""
