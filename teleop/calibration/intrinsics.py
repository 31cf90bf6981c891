"""Camera intrinsics from pictures of a board, judged by pictures that they were not fitted to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import cv2
import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.types import FloatArray
from gaploop.teleop.calibration.board import Board, BoardView
from gaploop.teleop.calibration.camera_model import LENSES, Intrinsics
from gaploop.teleop.calibration.coverage import TILTED_DEG, Coverage, coverage

MAX_RMS_PX: Final = 0.5
"""A calibration with a larger RMS reprojection error is refused [px]."""
MIN_VIEWS: Final = 8
"""Fewer pictures are refused; 15 to 25 are a good number."""
MAX_FOCAL_STD: Final = 0.02
"""A focal length that is less certain than this is refused [share]."""
MIN_TILTED: Final = 3
"""Without this many tilted boards the focal length is not determined (Zhang, PAMI 2000)."""
FOLDS: Final = 5
SUSPECT_Z: Final = 3.5
"""Robust z-score above which an image's error is not chance (Iglewicz and Hoaglin, 1993)."""
MAX_SUSPECTS: Final = 5
_UNTIL: Final = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 60, 1e-9)


@dataclass(frozen=True)
class ImageError:
    """How well one picture fits.

    Attributes:
        name: of the picture's file.
        corners: found in it.
        rms_px: reprojection error of the fit [px].
        worst_px: of its worst corner [px].
        held_out_px: error under intrinsics that this picture had no part in [px].
        sharpness: see `BoardView`.
    """

    name: str
    corners: int
    rms_px: float
    worst_px: float
    held_out_px: float
    sharpness: float


@dataclass(frozen=True)
class HurtingImage:
    """A picture that makes the calibration worse.

    Attributes:
        name: of its file.
        rms_px: its own error in the fit with all pictures [px].
        held_out_px: its error under the intrinsics of the others [px].
        others_px: RMS error of the others, fitted without it [px].
        shift_px: how far it moved the projection of the picture's points, on average [px].
        why: what is probably wrong with it, and what to do.
    """

    name: str
    rms_px: float
    held_out_px: float
    others_px: float
    shift_px: float
    why: str


@dataclass(frozen=True)
class IntrinsicsResult:
    """Intrinsics and everything that says how far to trust them.

    Attributes:
        std: parameter to standard deviation: fx, fy, cx, cy [px] and distortion coefficients.
        rms_px: RMS reprojection error over all corners [px].
        held_out_px: the same over pictures left out of the fit, k-fold [px].
        hurting: pictures that make the result worse.
        focal_std_px: of the focal length, by jackknife over the folds [px]. Where boards were
            never tilted the fit's own figure is far too small.
        dropped: pictures that were left out because they did.
    """

    intrinsics: Intrinsics
    std: dict[str, float]
    rms_px: float
    held_out_px: float
    images: tuple[ImageError, ...]
    hurting: tuple[HurtingImage, ...]
    coverage: Coverage
    focal_std_px: float
    dropped: tuple[str, ...] = ()

    def refusals(self) -> tuple[str, ...]:
        """Return why these intrinsics must not be used, each with its fix; empty where fine."""
        said = []
        if self.rms_px > MAX_RMS_PX:
            said.append(
                f"RMS reprojection error is {self.rms_px:.2f} px, above {MAX_RMS_PX:g}. "
                f"{self._mend()}"
            )
        share = max(self.std["fx"], self.std["fy"], self.focal_std_px) / self.intrinsics.focal_px
        tilted = int((self.coverage.tilt_deg >= TILTED_DEG).sum())
        if share > MAX_FOCAL_STD or tilted < MIN_TILTED:
            said.append(
                f"The focal length is uncertain by {share:.1%}: the board is tilted by "
                f"{TILTED_DEG:g}° or more in {tilted} pictures. Add some with it tilted by 20 to "
                "45°, towards every side."
            )
        return tuple(said)

    def _mend(self) -> str:
        if self.hurting:
            worst = ", ".join(h.name for h in self.hurting)
            return f"Remove or retake {worst} (--drop_outliers leaves them out)."
        wide = "" if self.intrinsics.lens == "wide" else " For a lens over 90° try --lens=wide."
        return (
            "No single picture stands out: check that the board is flat, that its size is as "
            f"printed and that focus and exposure were fixed.{wide}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return what the calibration file holds."""
        return {
            **self.intrinsics.to_json(),
            "std": self.std,
            "focal_std_px": self.focal_std_px,
            "rms_px": self.rms_px,
            "held_out_px": self.held_out_px,
            "images": len(self.images),
            "coverage": self.coverage.share,
        }


def calibrate_intrinsics(
    board: Board, views: Sequence[BoardView], lens: str = "standard", drop_outliers: bool = False
) -> IntrinsicsResult:
    """Fit a camera to views of a board.

    Args:
        board: the board seen.
        views: at least `MIN_VIEWS`, all of one size.
        lens: one of `camera_model.LENSES`.
        drop_outliers: fit again without the pictures that hurt, until none does.

    Raises:
        UnusableInputError: too few views, or of several sizes.
    """
    _check_views(views)
    result = _calibrate_once(board, views, lens)
    dropped: tuple[str, ...] = ()
    while drop_outliers and result.hurting:
        names = {h.name for h in result.hurting}
        left = [view for view in views if view.name not in names]
        if len(left) < MIN_VIEWS:
            raise UnusableInputError(
                f"Without {', '.join(sorted(names))} only {len(left)} pictures are left, "
                f"{MIN_VIEWS} are needed. Take more."
            )
        views, dropped = left, (*dropped, *sorted(names))
        result = replace(_calibrate_once(board, views, lens), dropped=dropped)
    return result


def _check_views(views: Sequence[BoardView]) -> None:
    if len(views) < MIN_VIEWS:
        raise UnusableInputError(
            f"The board was found in {len(views)} pictures, {MIN_VIEWS} are needed and 15 to 25 "
            "are good. Take more, with the board all over the picture and tilted."
        )
    sizes = Counter((view.width, view.height) for view in views)
    if len(sizes) > 1:
        (width, height), _ = sizes.most_common(1)[0]
        odd = [v for v in views if (v.width, v.height) != (width, height)]
        names = ", ".join(f"{v.name} ({v.width}x{v.height})" for v in odd[:3])
        more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
        raise UnusableInputError(
            f"The pictures are not all {width}x{height} px: {names}{more}. Intrinsics hold for one "
            "size: remove the others."
        )


def _calibrate_once(board: Board, views: Sequence[BoardView], lens: str) -> IntrinsicsResult:
    fit = _fit(board, views, lens)
    held_out, focal_std_px = _held_out(board, views, lens)
    images = tuple(
        ImageError(
            view.name,
            len(view.ids),
            _rms(errors),
            float(np.linalg.norm(errors, axis=1).max()),
            held,
            view.sharpness,
        )
        for view, errors, held in zip(views, fit.errors, held_out, strict=True)
    )
    weights = np.array([len(view.ids) for view in views])
    return IntrinsicsResult(
        fit.intrinsics,
        fit.std,
        _rms(np.concatenate(fit.errors)),
        float(np.sqrt((weights * np.square(held_out)).sum() / weights.sum())),
        images,
        _hurting(board, views, lens, images),
        coverage(board, views, fit.intrinsics),
        focal_std_px,
    )


@dataclass(frozen=True)
class _Fit:
    intrinsics: Intrinsics
    std: dict[str, float]
    errors: list[FloatArray]
    """For each view its corners' reprojection errors [px], shape (k, 2)."""


def _fit(board: Board, views: Sequence[BoardView], lens: str) -> _Fit:
    points = [view.points_m(board).astype(np.float32) for view in views]
    pixels = [view.corners_px.astype(np.float32) for view in views]
    size = views[0].width, views[0].height
    flags = cv2.CALIB_RATIONAL_MODEL if lens == LENSES[1] else 0
    _, matrix, distortion, turns, shifts, std, _, _ = cv2.calibrateCameraExtended(
        points, pixels, size, None, None, flags=flags, criteria=_UNTIL
    )
    n = 8 if lens == LENSES[1] else 5
    intrinsics = Intrinsics(*size, matrix, np.ravel(distortion)[:n].astype(np.float64), lens)
    errors = []
    for view, turn, shift in zip(views, turns, shifts, strict=True):
        seen, _ = cv2.projectPoints(
            view.points_m(board), turn, shift, matrix, intrinsics.distortion
        )
        errors.append(np.asarray(seen).reshape(-1, 2) - view.corners_px)
    names = ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")
    spread = {k: float(v) for k, v in zip(names[: 4 + n], np.ravel(std), strict=False)}
    return _Fit(intrinsics, spread, errors)


def _held_out(board: Board, views: Sequence[BoardView], lens: str) -> tuple[list[float], float]:
    """Return each view's error under a fit to the other folds, and the focal length's std [px]."""
    errors, focal = [0.0] * len(views), []
    for fold in range(FOLDS):
        out = [i for i in range(len(views)) if i % FOLDS == fold]
        fitted = _fit(board, [v for i, v in enumerate(views) if i % FOLDS != fold], lens)
        focal.append(fitted.intrinsics.focal_px)
        for i in out:
            errors[i] = fitted.intrinsics.board_pose(board, views[i])[1]
    return errors, float(np.std(focal) * np.sqrt(FOLDS - 1))


def _hurting(
    board: Board,
    views: Sequence[BoardView],
    lens: str,
    images: Sequence[ImageError],
) -> tuple[HurtingImage, ...]:
    """Suspect pictures by their errors, and convict those that the others don't bear out."""
    held = np.array([image.held_out_px for image in images])
    middle = float(np.median(held))
    spread = 1.4826 * float(np.median(np.abs(held - middle)))
    # Among very good pictures a harmless one can be many deviations out: half as bad again counts.
    limit = max(middle + SUSPECT_Z * spread, 1.5 * middle)
    suspects = [i for i in np.argsort(-held)[:MAX_SUSPECTS] if held[i] > limit]
    if not suspects or len(views) - len(suspects) < 4:
        return ()
    good = [view for i, view in enumerate(views) if i not in suspects]
    without = _fit(board, good, lens)
    others = _rms(np.concatenate(without.errors))
    found = []
    for i in suspects:
        alone = without.intrinsics.board_pose(board, views[i])[1]
        if alone < limit:
            continue
        together = _fit(board, [*good, views[i]], lens)
        shift = _shift_px(without.intrinsics, together.intrinsics)
        found.append(
            HurtingImage(
                views[i].name, images[i].rms_px, alone, others, shift, _why(images, i, middle)
            )
        )
    return tuple(found)


def _why(images: Sequence[ImageError], i: int, typical_px: float) -> str:
    image = images[i]
    sharp = float(np.median([other.sharpness for other in images]))
    if image.sharpness < 0.6 * sharp:
        return "blurred: hold the board still and see to the light, or drop it"
    if image.worst_px > 4 * image.rms_px / np.sqrt(2):
        return "one corner is far off: glare, shadow or something in front; retake or drop it"
    if image.corners <= 12:
        return f"only {image.corners} corners: show more of the board, or drop it"
    times = image.held_out_px / max(typical_px, 1e-9)
    return (
        f"{times:.0f} times the usual error: board bent or moved while the picture was "
        "taken, or glare; retake or drop it"
    )


def _shift_px(a: Intrinsics, b: Intrinsics) -> float:
    """Return how far two cameras disagree about where rays go, on average [px]."""
    x, y = np.meshgrid(np.linspace(0.1, 0.9, 5) * a.width, np.linspace(0.1, 0.9, 5) * a.height)
    pixels = np.stack([x.ravel(), y.ravel()], axis=1)
    rays = np.column_stack([a.straightened(pixels), np.ones(len(pixels))])
    return float(np.linalg.norm(b.project(np.eye(4), rays) - pixels, axis=1).mean())


def _rms(errors: FloatArray) -> float:
    return float(np.sqrt((errors**2).sum(axis=1).mean()))
