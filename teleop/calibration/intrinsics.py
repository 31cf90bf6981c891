"""Camera intrinsics from pictures of a board, judged by pictures that they were not fitted to.

And the little geometry of 4x4 matrices that calibration needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation
from scipy.stats import median_abs_deviation

from gaploop.core.camera import read_intrinsics
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, Image
from gaploop.teleop.calibration.board import Board, BoardView


def pose(rotation_vector_rad: FloatArray, translation_m: FloatArray) -> FloatArray:
    """Return a pose, shape (4, 4), from a rotation vector [rad] and a translation [m], (3,)."""
    T = np.eye(4)
    # A tenth of the time of SciPy's Rotation, and fits call this some 10,000 times.
    T[:3, :3] = cv2.Rodrigues(np.ascontiguousarray(rotation_vector_rad, dtype=np.float64))[0]
    T[:3, 3] = np.ravel(translation_m)
    return T


def inverse(T: FloatArray) -> FloatArray:
    """Return the inverse of poses, shape (..., 4, 4)."""
    return np.asarray(np.linalg.inv(T))


def rotation_vector(R: FloatArray) -> FloatArray:
    """Return the rotation vectors [rad], shape (..., 3), of rotation matrices, (..., 3, 3)."""
    vectors = Rotation.from_matrix(R.reshape(-1, 3, 3)).as_rotvec()
    return np.asarray(vectors, dtype=np.float64).reshape(R.shape[:-1])


def angle_rad(R: FloatArray) -> FloatArray:
    """Return the rotation angles [rad], shape (...), of rotation matrices, (..., 3, 3)."""
    return np.asarray(np.linalg.norm(rotation_vector(R), axis=-1))


def transform(T: FloatArray, points_m: FloatArray) -> FloatArray:
    """Apply poses, shape (..., 4, 4), to points, shape (k, 3); returns shape (..., k, 3)."""
    turned = points_m @ np.swapaxes(T[..., :3, :3], -1, -2)
    return np.asarray(turned + T[..., None, :3, 3])


LENSES: Final = ("standard", "wide")
"""`standard`: OpenCV's k1 k2 p1 p2 k3; `wide`: its rational model with k4 k5 k6 besides."""
MAX_RMS_PX: Final = 0.5
"""A calibration with a larger RMS reprojection error is refused [px]: of pictures up to
`RMS_WIDTH_PX` wide; of larger ones it grows with the width, as a corner's blur does."""
RMS_WIDTH_PX: Final = 640
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
CELLS: Final = (6, 8)
"""Rows and columns of the grid in which corners are counted."""
REGIONS: Final = {
    (0, 0): "top left",
    (0, 2): "top right",
    (2, 0): "bottom left",
    (2, 2): "bottom right",
    (0, 1): "top",
    (2, 1): "bottom",
    (1, 0): "left",
    (1, 2): "right",
    (1, 1): "middle",
}
"""Row and column of the ninths of the picture, in the order in which they are asked for."""
TILTED_DEG: Final = 15.0
"""A board whose normal is nearer to the optical axis says little about the focal length: parallel
to the picture's plane it says nothing, wherever it is (Zhang, PAMI 2000, sections 2.4 and 4)."""
AGAINST: Final = "against the optical axis"
TILTED_VIEWS: Final = 6
"""How many tilted views to ask for."""
SPREAD_ON_AXIS: Final = 2
"""How many of them about each of the picture's axes."""


@dataclass(frozen=True)
class Intrinsics:
    """OpenCV's pinhole camera: matrix [px], (3, 3), and distortion coefficients, (5,) or (8,)."""

    width: int
    height: int
    camera_matrix: FloatArray
    distortion: FloatArray
    lens: str = "standard"

    @property
    def focal_px(self) -> float:
        """Return the mean focal length [px]."""
        return float((self.camera_matrix[0, 0] + self.camera_matrix[1, 1]) / 2)

    def project(self, T_camera_board: FloatArray, points_m: FloatArray) -> FloatArray:
        """Return where points [m], shape (k, 3), appear [px], shape (k, 2)."""
        turn, _ = cv2.Rodrigues(np.ascontiguousarray(T_camera_board[:3, :3]))
        seen, _ = cv2.projectPoints(
            points_m, turn, T_camera_board[:3, 3].copy(), self.camera_matrix, self.distortion
        )
        return np.asarray(seen, dtype=np.float64).reshape(-1, 2)

    def board_pose(self, board: Board, view: BoardView) -> tuple[FloatArray, float]:
        """Return T_camera_board, (4, 4), and its RMS error [px]; needs the calibrated size."""
        if (view.width, view.height) != (self.width, self.height):
            raise UnusableInputError(
                f"{view.name or 'the picture'} is {view.width}x{view.height} px, the intrinsics "
                f"are for {self.width}x{self.height}. Set the camera to that size, or calibrate "
                "its intrinsics again."
            )
        points = view.points_m(board)
        # IPPE gives both poses that a flat board allows; the better one is refined (Collins and
        # Bartoli, "Infinitesimal Plane-based Pose Estimation", IJCV 2014).
        centre, matrix, lens = points.mean(axis=0), self.camera_matrix, self.distortion
        centred = points - centre
        _, turns, shifts, errors = cv2.solvePnPGeneric(
            centred, view.corners_px, matrix, lens, flags=cv2.SOLVEPNP_IPPE
        )
        best = int(np.argmin(np.ravel(errors)))
        turn, shift = cv2.solvePnPRefineLM(
            centred, view.corners_px, matrix, lens, turns[best].copy(), shifts[best].copy()
        )
        T = pose(np.ravel(turn), np.ravel(shift))
        T[:3, 3] -= T[:3, :3] @ centre
        error = self.project(T, points) - view.corners_px
        return T, float(np.sqrt((error**2).sum(axis=1).mean()))

    def to_json(self) -> dict[str, Any]:
        """Return what the calibration file holds."""
        return {
            "width": self.width,
            "height": self.height,
            "lens": self.lens,
            "camera_matrix": self.camera_matrix.tolist(),
            "distortion": self.distortion.tolist(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> Intrinsics:
        """Read what `to_json` wrote; UnusableInputError where it isn't that."""
        width, height, matrix, lens = read_intrinsics(value, where)
        return cls(width, height, matrix, lens, str(value.get("lens", LENSES[0])))


@dataclass(frozen=True)
class HurtingImage:
    """A picture that makes the calibration worse.

    Attributes:
        held_out_px: its error under the intrinsics of the others [px].
        others_px: RMS error of the others, fitted without it [px].
    """

    name: str
    held_out_px: float
    others_px: float


def most_rms_px(width: int) -> float:
    """Return the RMS error up to which pictures so wide are accepted [px]."""
    return MAX_RMS_PX * max(1.0, width / RMS_WIDTH_PX)


@dataclass(frozen=True)
class IntrinsicsResult:
    """Intrinsics and everything that says how far to trust them.

    Attributes:
        std: parameter to standard deviation: fx, fy, cx, cy [px] and distortion coefficients.
        held_out_px: RMS error over pictures left out of the fit, k-fold [px].
        errors_px: picture to its own error when it was left out [px].
        focal_std_px: of the focal length, by jackknife over the folds [px]. Where boards were
            never tilted the fit's own figure is far too small.
    """

    intrinsics: Intrinsics
    std: dict[str, float]
    rms_px: float
    held_out_px: float
    errors_px: dict[str, float]
    hurting: tuple[HurtingImage, ...]
    coverage: Coverage
    focal_std_px: float

    def refusals(self) -> tuple[str, ...]:
        """Return why these intrinsics must not be used, each with its fix; empty where fine."""
        said = []
        most_px = most_rms_px(self.intrinsics.width)
        if self.rms_px > most_px:
            wide = "" if self.intrinsics.lens == "wide" else " For a lens over 90° try --lens=wide."
            fix = (
                "No single picture stands out: check that the board is flat, that its size is as "
                f"printed and that focus and exposure were fixed.{wide}"
            )
            if self.hurting:
                worst = ", ".join(h.name for h in self.hurting)
                fix = f"Remove or retake {worst}."
            said.append(
                f"RMS reprojection error is {self.rms_px:.2f} px, above {most_px:g} for "
                f"pictures {self.intrinsics.width} px wide. {fix}"
            )
        share = max(self.std["fx"], self.std["fy"], self.focal_std_px) / self.intrinsics.focal_px
        tilted = int((self.coverage.tilt_deg >= TILTED_DEG).sum())
        if share > MAX_FOCAL_STD or tilted < MIN_TILTED:
            said.append(
                f"The focal length is uncertain by {share:.1%}: in {tilted} pictures the board is "
                f"tilted {AGAINST} by {TILTED_DEG:g}° or more. Add some with it tilted so by 20 to "
                "45°, towards every side."
            )
        return tuple(said)

    def lines(self) -> list[str]:
        """Return the result for people."""
        std, K = self.std, self.intrinsics.camera_matrix
        fx, fy = (max(std[of], self.focal_std_px) for of in ("fx", "fy"))
        return [
            f"  focal length  {K[0, 0]:.2f} ± {fx:.2f}, {K[1, 1]:.2f} ± {fy:.2f} px",
            f"  centre        {K[0, 2]:.2f} ± {std['cx']:.2f}, {K[1, 2]:.2f} ± {std['cy']:.2f} px",
            f"  RMS error     {self.rms_px:.3f} px, in held-out pictures {self.held_out_px:.3f} px",
            *(
                f"  hurts         {h.name}: {h.held_out_px:.2f} px (others {h.others_px:.2f}): "
                "blurred, bent, covered or glaring? Retake or delete it"
                for h in self.hurting
            ),
            *(f"  missing       {ask}" for ask in self.coverage.missing()),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return what the calibration file holds."""
        return {
            **self.intrinsics.to_json(),
            "std": self.std,
            "focal_std_px": self.focal_std_px,
            "rms_px": self.rms_px,
            "held_out_px": self.held_out_px,
            "images": len(self.errors_px),
            "coverage": self.coverage.share,
        }


def calibrate_intrinsics(
    board: Board, views: Sequence[BoardView], lens: str = "standard"
) -> IntrinsicsResult:
    """Fit a camera to views of a board, of one size.

    Raises:
        UnusableInputError: fewer than `MIN_VIEWS`, or of several sizes.
    """
    if len(views) < MIN_VIEWS:
        raise UnusableInputError(
            f"The board was found in {len(views)} pictures, {MIN_VIEWS} are needed and 15 to 25 "
            "are good. Episode more, with the board all over the picture and tilted."
        )
    sizes = Counter((view.width, view.height) for view in views)
    if len(sizes) > 1:
        (width, height), _ = sizes.most_common(1)[0]
        odd = [v for v in views if (v.width, v.height) != (width, height)]
        listed = ", ".join(f"{v.name} ({v.width}x{v.height})" for v in odd[:3])
        more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
        raise UnusableInputError(
            f"The pictures are not all {width}x{height} px: {listed}{more}. Intrinsics hold for "
            "one size: remove the others."
        )
    intrinsics, std, errors = _fit(board, views, lens)
    held_out, focal_px = [0.0] * len(views), []
    for fold in range(FOLDS):
        fitted, _, _ = _fit(board, [v for i, v in enumerate(views) if i % FOLDS != fold], lens)
        focal_px.append(fitted.focal_px)
        for i in range(fold, len(views), FOLDS):
            held_out[i] = fitted.board_pose(board, views[i])[1]
    weights = np.array([len(view.ids) for view in views])
    return IntrinsicsResult(
        intrinsics,
        std,
        _rms(np.concatenate(errors)),
        float(np.sqrt(np.average(np.square(held_out), weights=weights))),
        {view.name: held for view, held in zip(views, held_out, strict=True)},
        _hurting(board, views, lens, np.array(held_out)),
        coverage(board, views, intrinsics),
        float(np.std(focal_px) * np.sqrt(FOLDS - 1)),
    )


def _fit(
    board: Board, views: Sequence[BoardView], lens: str
) -> tuple[Intrinsics, dict[str, float], list[FloatArray]]:
    """Return the camera, its parameters' std, and each view's corner errors [px], shape (k, 2)."""
    points = [view.points_m(board).astype(np.float32) for view in views]
    pixels = [view.corners_px.astype(np.float32) for view in views]
    size = views[0].width, views[0].height
    flags, n = (cv2.CALIB_RATIONAL_MODEL, 8) if lens == LENSES[1] else (0, 5)
    _, matrix, distortion, turns, shifts, spread, _, _ = cv2.calibrateCameraExtended(
        points, pixels, size, None, None, flags=flags, criteria=_UNTIL
    )
    found = Intrinsics(*size, matrix, np.ravel(distortion)[:n].astype(np.float64), lens)
    places = [pose(np.ravel(turn), shift) for turn, shift in zip(turns, shifts, strict=True)]
    errors = [
        found.project(T, view.points_m(board)) - view.corners_px
        for T, view in zip(places, views, strict=True)
    ]
    names = ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")
    std = {k: float(v) for k, v in zip(names[: 4 + n], np.ravel(spread), strict=False)}
    return found, std, errors


def _hurting(
    board: Board, views: Sequence[BoardView], lens: str, held_px: FloatArray
) -> tuple[HurtingImage, ...]:
    """Suspect pictures by their errors, and convict those that the others don't bear out."""
    middle = float(np.median(held_px))
    # Among very good pictures a harmless one can be many deviations out: half as bad again counts.
    spread = float(median_abs_deviation(held_px, scale="normal"))
    limit = max(middle + SUSPECT_Z * spread, 1.5 * middle)
    suspects = [i for i in np.argsort(-held_px)[:MAX_SUSPECTS] if held_px[i] > limit]
    if not suspects or len(views) - len(suspects) < 4:
        return ()
    good = [view for i, view in enumerate(views) if i not in suspects]
    without, _, errors = _fit(board, good, lens)
    others_px = _rms(np.concatenate(errors))
    alone_px = {views[i].name: without.board_pose(board, views[i])[1] for i in suspects}
    found = [HurtingImage(name, px, others_px) for name, px in alone_px.items() if px >= limit]
    return tuple(found)


def _rms(errors: FloatArray) -> float:
    return float(np.sqrt((errors**2).sum(axis=1).mean()))


@dataclass(frozen=True)
class Coverage:
    """What a set of views covers.

    Attributes:
        counts: corners in each cell of the picture, shape `CELLS`.
        tilt_deg: angle between the board's normal and the optical axis [deg], shape (n,).
        about_x: tilted about the picture's horizontal axis rather than the vertical, shape (n,).
    """

    counts: NDArray[np.int64]
    tilt_deg: FloatArray
    about_x: NDArray[np.bool_]

    @property
    def share(self) -> float:
        """Return the share of cells that hold a corner."""
        return float((self.counts > 0).mean())

    def missing(self) -> tuple[str, ...]:
        """Return what to show the camera next, most needed first; empty where all is covered."""
        rows, columns = (np.array_split(np.arange(n), 3) for n in CELLS)
        asks = [  # ninths of the picture that are less than half covered
            f"board at the {name}"
            for (i, j), name in REGIONS.items()
            if (self.counts[np.ix_(rows[i], columns[j])] > 0).mean() < 0.5
        ]
        tilted = self.tilt_deg >= TILTED_DEG
        for about_x, words in ((True, "top to bottom"), (False, "left to right")):
            if (tilted & (self.about_x == about_x)).sum() < SPREAD_ON_AXIS:
                asks.append(f"board tilted {AGAINST}, {words}, by 20 to 45°")
        if tilted.sum() < TILTED_VIEWS and not asks:
            asks.append(f"more boards tilted {AGAINST} by 20 to 45°")
        return tuple(asks)


def coverage(board: Board, views: Sequence[BoardView], lens: Intrinsics | None = None) -> Coverage:
    """Return what `views`, at least one and all of one size, cover.

    `lens` gives the tilts; a usual webcam's is assumed where nothing is known yet.
    """
    width, height = views[0].width, views[0].height
    lens = lens or assumed_lens(width, height)
    corners = np.concatenate([view.corners_px for view in views])
    edges = [(-0.5, height - 0.5), (-0.5, width - 0.5)]
    counts, _, _ = np.histogram2d(corners[:, 1], corners[:, 0], bins=CELLS, range=edges)
    T = np.array([lens.board_pose(board, view)[0] for view in views])
    axes = np.cross([0.0, 0.0, 1.0], T[:, :3, 2])  # about which the board's normal is tilted
    tilt_deg = np.degrees(np.arcsin(np.minimum(np.linalg.norm(axes, axis=1), 1.0)))
    return Coverage(counts.astype(np.int64), tilt_deg, np.abs(axes[:, 0]) >= np.abs(axes[:, 1]))


def assumed_lens(width: int, height: int) -> Intrinsics:
    """Return a usual webcam: 60° across, no distortion. For guidance, never for results."""
    focal = 0.5 * width / np.tan(np.radians(30.0))
    matrix = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1.0]])
    return Intrinsics(width, height, matrix, np.zeros(5))


def draw_coverage(views: Sequence[BoardView], result: IntrinsicsResult) -> Image:
    """Return a picture of where corners fell: red of pictures that hurt, pink empty cells."""
    width, height = result.intrinsics.width, result.intrinsics.height
    sheet = np.full((height, width, 3), 255, dtype=np.uint8)
    for (row, column), count in np.ndenumerate(result.coverage.counts):
        x, y = column * width // CELLS[1], row * height // CELLS[0]
        x_end, y_end = (column + 1) * width // CELLS[1], (row + 1) * height // CELLS[0]
        sheet[y:y_end, x:x_end] = (255, 225, 215) if count == 0 else (240, 246, 252)
        cv2.rectangle(sheet, (x, y), (x_end, y_end), (255, 255, 255), 1)
        cv2.putText(sheet, str(count), (x + 4, y + 14), cv2.FONT_HERSHEY_PLAIN, 0.9, (90, 90, 90))
    hurting = {h.name for h in result.hurting}
    for view in views:
        colour = (200, 68, 44) if view.name in hurting else (42, 120, 181)
        for x, y in np.rint(view.corners_px).astype(int).tolist():
            cv2.circle(sheet, (x, y), max(2, width // 320), colour, -1, cv2.LINE_AA)
    return sheet
