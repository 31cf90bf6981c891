"""What a policy makes of what its cameras show, against the takes that it learned from.

A `CameraReference` lies as `cameras.npz` beside the policy: of each camera the usual picture, and
where the cells of its pictures lie in the policy's own encoder. A take is set against it by each
cell's distance to the nearest of training's (PatchCore, Roth et al. 2022, arXiv:2106.08265). Light,
colour, dirt and covers are told by `camera_check`, from takes. Whether a camera has moved since, or
another one hangs in its place, `gaploop doctor` asks by matched features (Lowe 2004) and RANSAC.
"""

from __future__ import annotations

import functools
import io
import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.core.messages import FloatArray, Image
from gaploop.core.protocols import PolicyProbe
from gaploop.core.take import Take
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.reference import LEAST_TAKES, UsualValue, usual_values
from gaploop.failure_analysis.views.pictures import SIZE_PX, Similarity, squared
from gaploop.failure_analysis.views.policy_view import (
    CameraTrace,
    Layers,
    PatchSpace,
    observations,
    unfamiliar,
)

FILE: Final = "cameras.npz"
"""Beside a policy; it doesn't decide how the policy acts, so that its id stays what it is."""
SCHEMA: Final = "gaploop.cameras.v1"
MOST_TAKES: Final = 40
PICTURES: Final = 8
"""Of a training episode whose cells are kept."""
LEAST_MATCHES: Final = 20
"""Features that lie alike in two pictures, from which on they show the same place."""
LEAST_SHARE: Final = 0.4
"""Of the matched features; where fewer lie alike, chance may have arranged them."""
UNFAMILIAR: Final = "unfamiliar"
SIGNAL: Final = "view_unfamiliar"
"""Name in the registry of the same, of the camera where it is largest."""
NAMED_Z: Final = 4.0
"""Spreads from usual from which on a camera's pictures are said to be unfamiliar."""
FLOOR: Final = 0.05
"""A smaller spread means nothing."""


@dataclass(frozen=True)
class UsualCamera:
    """What one camera showed in the training takes.

    Attributes:
        size_px: height and width of its pictures.
        picture: median of the takes' first pictures, RGB, shape (192, 192, 3).
        unfamiliar: how unfamiliar the pictures of a take usually are to the policy's encoder.
        patches: where the cells of its pictures lie there; None if it looks at no pictures.
    """

    size_px: tuple[int, int]
    picture: Image
    unfamiliar: UsualValue | None = None
    patches: PatchSpace | None = None

    def z(self, value: float) -> float:
        """Return how many spreads a take's pictures are less familiar than usual; NaN: unknown."""
        if self.unfamiliar is None:
            return float("nan")
        return (value - self.unfamiliar.mean) / max(self.unfamiliar.std, FLOOR)


@dataclass(frozen=True)
class CameraFinding:
    """Something about one camera, in one line, and how much, in that line's unit."""

    camera: str
    kind: str
    message: str
    value: float


@dataclass(frozen=True)
class StationCameras:
    """What a policy makes of the cameras of a station in its failed takes.

    Attributes:
        values: camera to the median over takes of how unfamiliar its pictures are.
        scores: camera to take to how unfamiliar its pictures are, every 0.1 s.
        worst: camera to the take whose pictures are least familiar, and what it showed.
    """

    reference: CameraReference
    findings: tuple[CameraFinding, ...]
    values: Mapping[str, float]
    scores: Mapping[str, Mapping[str, FloatArray]]
    worst: Mapping[str, tuple[str, CameraTrace]]

    def to_json(self) -> dict[str, Any]:
        """Return `summary.cameras` of a diagnosis."""
        cameras = {}
        for name, value in self.values.items():
            usual = self.reference.cameras[name]
            uid, trace = self.worst[name]
            known = usual.unfamiliar is not None and np.isfinite(value)
            cameras[name] = {
                "values": {UNFAMILIAR: {
                    "value": round(value, 4), "usual": round(usual.unfamiliar.mean, 4),
                    "spreads": round(usual.z(value), 2),
                }} if known and usual.unfamiliar else {},
                "findings": [
                    {"kind": f.kind, "says": f.message, "value": round(f.value, 4),
                     "dimension": GapDimension.VISUAL_DOMAIN.value}
                    for f in self.findings if f.camera == name
                ],
                UNFAMILIAR: {
                    take: score.round(3).tolist() for take, score in self.scores[name].items()
                    if np.isfinite(score).all()
                },
                "worst_take": uid,
                "where": trace.where.round(2).tolist(),
            }  # fmt: skip
        return {"reference": self.reference.name, "cameras": cameras}


@dataclass(frozen=True)
class CameraReference:
    """What the cameras showed in the takes, `name` in words, that a policy learned from.

    `signals` holds the registry's own of what is usual in them.
    """

    name: str
    cameras: Mapping[str, UsualCamera]
    signals: Mapping[str, UsualValue]

    @classmethod
    def build(cls, takes: Iterable[Take], name: str, probe: PolicyProbe) -> CameraReference | None:
        """Return the reference of a policy's training takes; `MOST_TAKES`, spread over all, do.

        None where fewer than `LEAST_TAKES` takes have pictures.
        """
        every = [t for t in takes if t.cameras and len(t.frames)]
        if len(every) < LEAST_TAKES:
            return None
        chosen = np.unique(np.linspace(0, len(every) - 1, MOST_TAKES, dtype=int))
        looks = [_training_take(every[i], probe) for i in chosen]
        cameras, rows = dict[str, UsualCamera](), [dict[str, float]() for _ in looks]
        for camera in [n for n in looks[0] if all(n in seen for seen in looks)]:
            traces = [seen[camera][0] for seen in looks]
            maps = [seen[camera][1] for seen in looks]
            space = PatchSpace.fit(maps) if maps[0] else None
            for own, shown in enumerate(maps if space is not None else ()):
                cells = [unfamiliar(space.distance(m, own)) for m in shown] if space else []
                rows[own][camera] = float(np.median(cells))
            usual = usual_values(rows, [camera]).get(camera)
            picture = still(np.stack([trace.first for trace in traces]))
            cameras[camera] = UsualCamera(traces[0].size_px, picture, usual, space)
        most = [{SIGNAL: max(row.values(), default=float("nan"))} for row in rows]
        return cls(name, cameras, usual_values(most, [SIGNAL]))

    @property
    def patches(self) -> dict[str, PatchSpace | None]:
        """Camera to where its cells are at home, as `ask` takes them."""
        return {name: camera.patches for name, camera in self.cameras.items()}

    def measured(self, seen: Mapping[str, CameraTrace]) -> dict[str, float]:
        """Return the registry's signals of what a take's cameras showed."""
        known = [seen[n].unfamiliar for n in self.cameras if n in seen]
        return {SIGNAL: max((v for v in known if np.isfinite(v)), default=float("nan"))}

    def station(self, takes: Mapping[str, Mapping[str, CameraTrace]]) -> StationCameras:
        """Return what the cameras of some takes of one station showed, take to camera to trace."""
        found, values = list[CameraFinding](), dict[str, float]()
        scores, worst = dict[str, dict[str, FloatArray]](), dict[str, tuple[str, CameraTrace]]()
        for name, usual in self.cameras.items():
            held = {uid: seen[name] for uid, seen in takes.items() if name in seen}
            if not held:
                continue
            scores[name] = {uid: trace.score for uid, trace in held.items()}
            least = max(held, key=lambda uid: float(np.nan_to_num(held[uid].score).max()))
            worst[name] = least, held[least]
            known = [trace.unfamiliar for trace in held.values() if np.isfinite(trace.unfamiliar)]
            values[name] = value = float(np.median(known)) if known else float("nan")
            present = still(np.stack([trace.first for trace in held.values()]))
            wrong = self.identity(name, held[least].size_px, present)
            found += wrong
            if (
                usual.z(value) > NAMED_Z
                and usual.unfamiliar
                and not (wrong and wrong[-1].kind == "swapped")
            ):
                message = (
                    f"camera {name}: pictures unlike those that the policy learned from, "
                    f"{value:.2f} of their reach, usually {usual.unfamiliar.mean:.2f}"
                )
                found.append(CameraFinding(name, UNFAMILIAR, message, value))
        return StationCameras(self, tuple(found), values, scores, worst)

    def identity(self, name: str, size_px: tuple[int, int], picture: Image) -> list[CameraFinding]:
        """Return whether a picture, RGB, of `size_px` as recorded, is of another camera or size."""
        usual, found = self.cameras[name], list[CameraFinding]()
        if size_px != usual.size_px:
            (h, w), (usual_h, usual_w) = size_px, usual.size_px
            cropped = h * usual_w != w * usual_h
            found.append(CameraFinding(
                name, "size", f"camera {name} gives {w}x{h} pictures, the policy learned from "
                f"{usual_w}x{usual_h}" + (": cropped or stretched" if cropped else ""),
                h * w / (usual_h * usual_w),
            ))  # fmt: skip
        moves = {n: moved(camera.picture, squared(picture)) for n, camera in self.cameras.items()}
        alike = {n: move.match if move else 0.0 for n, move in moves.items()}
        best = max(alike, key=lambda n: alike[n])
        if best != name and alike[best] >= max(LEAST_MATCHES, 2 * alike[name]):
            message = f"camera {name} shows what {best} showed in training: swapped or renamed"
            found.append(CameraFinding(name, "swapped", message, alike[best]))
        return found

    def save(self, path: Path) -> None:
        """Write the reference, atomically."""
        arrays: dict[str, Any] = {}
        meta: dict[str, Any] = {"schema": SCHEMA, "name": self.name, "cameras": {}}
        meta["signals"] = {k: asdict(v) for k, v in self.signals.items()}
        for number, (name, camera) in enumerate(self.cameras.items()):
            usual = {} if camera.unfamiliar is None else {UNFAMILIAR: asdict(camera.unfamiliar)}
            meta["cameras"][name] = {"size_px": list(camera.size_px), "values": usual}
            arrays[f"{number}.picture"] = camera.picture
            if camera.patches is not None:
                meta["cameras"][name]["reach"] = list(camera.patches.reach)
                meta["cameras"][name]["widths"] = list(camera.patches.widths)
                arrays[f"{number}.scale"] = camera.patches.scale.astype(np.float32)
                arrays[f"{number}.bank"] = camera.patches.bank.astype(np.float16)
        with io.BytesIO() as stream:
            np.savez_compressed(stream, meta=np.array(json.dumps(meta)), **arrays)
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
                for number, (name, said) in enumerate(meta["cameras"].items()):
                    patches = None
                    if "reach" in said:
                        patches = PatchSpace(
                            held[f"{number}.scale"].astype(np.float64),
                            held[f"{number}.bank"].astype(np.float32),
                            tuple(int(width) for width in said["widths"]),
                            tuple(float(reach) for reach in said["reach"]),
                            np.empty(0, np.int64),
                        )
                    height, width = said["size_px"]
                    picture = held[f"{number}.picture"]
                    if (picture.shape, picture.dtype) != ((SIZE_PX, SIZE_PX, 3), np.uint8):
                        raise ValueError(f"{name}: a picture of shape {picture.shape}")
                    cameras[str(name)] = UsualCamera(
                        (int(height), int(width)),
                        picture,
                        UsualValue(**usual) if (usual := said["values"].get(UNFAMILIAR)) else None,
                        patches,
                    )
                signals = {k: UsualValue(**v) for k, v in meta["signals"].items() if k == SIGNAL}
                return cls(str(meta["name"]), cameras, signals)
        except (*DAMAGE, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise UnusableInputError(
                f"{path} is no camera reference ({error}). Make it: gaploop diagnose Episodes "
                f"--policy.path=POLICY --save_reference={path}, on episodes that it learned from."
            ) from None


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


def still(firsts: NDArray[np.uint8]) -> Image:
    """Return the median of takes' first pictures, shape (n, 192, 192, 3): what doesn't change."""
    return np.asarray(np.median(firsts, axis=0), dtype=np.uint8)


def describe_move(move: Similarity) -> str:
    """Return in words which way a picture's content has moved, in a picture of 192 px."""
    right, down = move.shift_px
    return (
        f"{abs(right):.1f} px to the {'right' if right > 0 else 'left'}, {abs(down):.1f} px "
        f"{'down' if down > 0 else 'up'}, turned by {np.degrees(move.turn_rad):.1f}°, "
        f"{move.scale:.3f} times as large"
    )


def _training_take(take: Take, probe: PolicyProbe) -> dict[str, tuple[CameraTrace, list[Layers]]]:
    """Return by camera what a training take showed, and some of its pictures' cells."""
    probe.reset()
    sizes = dict[str, tuple[int, int]]()
    pictures, maps = dict[str, list[Image]](), dict[str, list[Layers]]()
    every = max(1, int(len(take.frames) / take.info.fps / 0.1) // PICTURES)
    for number, (_, seen) in enumerate(observations(take)):
        cells = probe.maps(seen) if number % every == 0 else {}
        for name, image in seen.images.items():
            sizes[name] = (image.shape[0], image.shape[1])
            pictures.setdefault(name, []).append(squared(image))
            kept = [[layer.astype(np.float32) for layer in cells[name]]] if name in cells else []
            maps.setdefault(name, []).extend(kept)
    return {n: (CameraTrace.of(sizes[n], shown, ()), maps[n]) for n, shown in pictures.items()}


def overlay(trace: CameraTrace) -> Image:
    """Return a take's least familiar picture with the cells marked that the policy doesn't know.

    Red from one reach on, where one in a hundred training cells is.
    """
    if not trace.where.size:
        return trace.worst
    size = (SIZE_PX, SIZE_PX)
    where = cv2.resize(trace.where, size, interpolation=cv2.INTER_LINEAR)
    strength = np.clip(where - 1.0, 0.0, 1.0)[..., None] * 0.65
    grey = cv2.cvtColor(cv2.cvtColor(trace.worst, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    base = 0.5 * trace.worst + 0.5 * grey
    mixed = (1 - strength) * base + strength * np.array([255.0, 30.0, 20.0])
    return np.asarray(mixed, dtype=np.uint8)
