"""What each camera showed in the episodes that a policy learned from: `cameras.npz` beside it.

Whether a camera has moved since, or another one hangs in its place, `gaploop doctor` asks by
matched features (Lowe 2004) and RANSAC. What has changed in pictures, `camera_check` tells.
"""

from __future__ import annotations

import functools
import io
import json
import logging
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import DAMAGE, GaploopError, UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.core.messages import FloatArray, Image
from gaploop.core.take import Take
from gaploop.datasets.lerobot_read import load_takes
from gaploop.failure_analysis.reference import LEAST_TAKES
from gaploop.failure_analysis.views.pictures import SIZE_PX, squared
from gaploop.failure_analysis.views.registration import Similarity

log = logging.getLogger(__name__)

FILE: Final = "cameras.npz"
"""Beside a policy; it doesn't decide how the policy acts, so that its id stays what it is."""
SCHEMA: Final = "gaploop.cameras.v1"
MOST_TAKES: Final = 40
LEAST_MATCHES: Final = 20
"""Features that lie alike in two pictures, from which on they show the same place."""
LEAST_SHARE: Final = 0.4
"""Of the matched features; where fewer lie alike, chance may have arranged them."""


@dataclass(frozen=True)
class CameraReference:
    """What the cameras showed in the takes, `name` in words, that a policy learned from.

    Of each camera the median of the takes' first pictures, RGB, shape (192, 192, 3): what doesn't
    change.
    """

    name: str
    cameras: Mapping[str, Image]

    @classmethod
    def build(cls, takes: Iterable[Take], name: str) -> CameraReference | None:
        """Return the reference of a policy's training takes; `MOST_TAKES`, spread over all, do.

        None where fewer than `LEAST_TAKES` takes have pictures.
        """
        every = [t for t in takes if t.cameras and len(t.frames)]
        if len(every) < LEAST_TAKES:
            return None
        chosen = np.unique(np.linspace(0, len(every) - 1, MOST_TAKES, dtype=int))
        firsts = [{n: next(iter(show())) for n, show in every[i].cameras.items()} for i in chosen]
        cameras = {}
        for camera in [n for n in firsts[0] if all(n in shown for shown in firsts)]:
            pictures = np.stack([squared(shown[camera]) for shown in firsts])
            cameras[camera] = np.asarray(np.median(pictures, axis=0), dtype=np.uint8)
        return cls(name, cameras)

    def shown_by(self, name: str, picture: Image) -> str:
        """Return the camera that showed in training what `name` shows: itself, unless swapped."""
        moves = {n: moved(usual, squared(picture)) for n, usual in self.cameras.items()}
        alike = {n: move.match if move else 0.0 for n, move in moves.items()}
        best = max(alike, key=lambda n: alike[n])
        return best if alike[best] >= max(LEAST_MATCHES, 2 * alike[name]) else name

    def save(self, path: Path) -> None:
        """Write the reference, atomically."""
        meta = {"schema": SCHEMA, "name": self.name, "cameras": list(self.cameras)}
        pictures: dict[str, Any] = {
            f"{number}.picture": usual for number, usual in enumerate(self.cameras.values())
        }
        with io.BytesIO() as stream:
            np.savez_compressed(stream, meta=np.array(json.dumps(meta)), **pictures)
            write_atomically(path, stream.getvalue())

    @classmethod
    def load(cls, path: Path) -> CameraReference:
        """Read what `save` wrote.

        Raises:
            UnusableInputError: it is missing, of another kind, or damaged.
        """
        try:
            with np.load(path, allow_pickle=False) as held:
                meta = json.loads(str(held["meta"]))
                if meta["schema"] != SCHEMA:
                    raise ValueError(f"schema {meta['schema']}")
                cameras = {}
                for number, name in enumerate(meta["cameras"]):
                    picture = held[f"{number}.picture"]
                    if (picture.shape, picture.dtype) != ((SIZE_PX, SIZE_PX, 3), np.uint8):
                        raise ValueError(f"{name}: a picture of shape {picture.shape}")
                    cameras[str(name)] = picture
                return cls(str(meta["name"]), cameras)
        except (*DAMAGE, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise UnusableInputError(
                f"{path} is no camera reference ({error}). Make it: gaploop diagnose Episodes "
                f"--save_reference={path}, on episodes that the policy learned from."
            ) from None


def keep_cameras(policy: Path, roots: Sequence[Path]) -> None:
    """Write beside a policy what the cameras showed in training.

    Args:
        roots: the datasets that it learned from; the first with enough takes counts, since two
            stations' cameras have no picture in common.
    """
    try:
        for root in roots:
            built = CameraReference.build(load_takes(root), root.name)
            if built is not None:
                built.save(policy / FILE)
                return
    except (GaploopError, *DAMAGE) as error:  # the policy is trained all the same
        later = f"gaploop diagnose Episodes --save_reference={policy / FILE}"
        log.warning("%s: its cameras can't be kept (%s). Later: %s", policy, error, later)


def moved(usual: Image, picture: Image) -> Similarity | None:
    """Return how a picture lies on the usual one, RGB of 192 px; None where that can't be told.

    From matched SIFT features by RANSAC. `match` counts those that lie alike.
    """
    ours, theirs = (_features(p.tobytes()) for p in (usual, picture))
    if min(len(ours[0]), len(theirs[0])) < LEAST_MATCHES:
        return None
    pairs = cv2.BFMatcher().knnMatch(ours[1], theirs[1], k=2)
    near = [p[0] for p in pairs if len(p) == 2 and p[0].distance < 0.8 * p[1].distance]
    if len(near) < LEAST_MATCHES:
        return None
    fixed = ours[0][[m.queryIdx for m in near]].astype(np.float32)
    moving = theirs[0][[m.trainIdx for m in near]].astype(np.float32)
    matrix, inside = cv2.estimateAffinePartial2D(fixed, moving, ransacReprojThreshold=1.5)
    if matrix is None:
        return None
    count = len(np.unique(moving[inside.ravel() > 0].round(1), axis=0))
    scale = float(np.hypot(matrix[0, 0], matrix[1, 0]))
    if count < LEAST_MATCHES or count < LEAST_SHARE * len(near) or not 0.5 < scale < 2.0:
        return None
    middle = np.full(2, 0.5 * (SIZE_PX - 1))
    shift = np.asarray(matrix[:, :2] @ middle + matrix[:, 2] - middle, dtype=np.float64)
    turn = float(np.arctan2(matrix[1, 0], matrix[0, 0]))
    return Similarity(float(count), shift, scale, turn)


@functools.lru_cache(maxsize=64)
def _features(pixels: bytes) -> tuple[FloatArray, NDArray[np.float32]]:
    """Return places, shape (n, 2), and descriptors, shape (n, 128), of a picture's features."""
    picture = np.frombuffer(pixels, dtype=np.uint8).reshape(SIZE_PX, SIZE_PX, 3)
    grey = cv2.createCLAHE(4.0, (4, 4)).apply(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY))
    sift: Any = cv2.SIFT_create  # type: ignore[attr-defined]  # OpenCV's stubs lack it
    keys, described = sift(600, contrastThreshold=0.01).detectAndCompute(grey, None)
    places = np.array([key.pt for key in keys], dtype=np.float64).reshape(-1, 2)
    return places, described if described is not None else np.empty((0, 128), np.float32)


def describe_move(move: Similarity) -> str:
    """Return in words which way a picture's content has moved, in a picture of 192 px."""
    right, down = move.shift_px
    return (
        f"{abs(right):.1f} px to the {'right' if right > 0 else 'left'}, {abs(down):.1f} px "
        f"{'down' if down > 0 else 'up'}, turned by {np.degrees(move.turn_rad):.1f}°, "
        f"{move.scale:.3f} times as large"
    )
