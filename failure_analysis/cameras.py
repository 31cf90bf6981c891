"""What each camera shows, and what a policy makes of it, against the takes that it learned from.

A `CameraReference` lies as `cameras.npz` beside the policy. A take is set against it camera by
camera: light, colour, sharpness and noise by photometry; the camera's place by matched features
(Lowe 2004) and RANSAC; and in the policy's own encoder by each cell's distance to the nearest of
its training's (PatchCore, Roth et al. 2022, arXiv:2106.08265). What a station's takes share, such
as dirt on a lens, is looked for in the median of their first pictures.
"""

from __future__ import annotations

import functools
import io
import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
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
"""Of a training take whose cells are kept."""
LEAST_MATCHES: Final = 20
"""Features that lie alike in two pictures, from which on they show the same place."""
LEAST_SHARE: Final = 0.4
"""Of the matched features; where fewer lie alike, chance may have arranged them."""
NAMED_Z: Final = 5.0
"""Spreads from usual from which on a station's camera is named."""
UNFAMILIAR_Z: Final = 4.0
"""The same of what the policy's encoder makes of its pictures, which chance moves less."""
FLOORS: Final[Mapping[str, float]] = {
    "brightness": 4.0, "contrast": 2.0, "saturation": 5.0, "cast_red": 0.02, "cast_blue": 0.03,
    "sharpness": 0.06, "noise": 0.6, "corners": 0.03, "moved_px": 0.3, "scale": 0.002,
    "turn_rad": 0.002, "unfamiliar": 0.05,
}  # fmt: skip
"""Spreads below these mean nothing; lengths in pixels of a 192 px picture."""
KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "brightness": ("light", ": {brighter}, median grey {value:.0f} of 255, usually {usual:.0f}"),
    "contrast": (
        "light", ": {more} contrast, grey levels spread by {value:.0f}, usually {usual:.0f}"
    ),
    "corners": (
        "light", ": corners have {value:.2f} times the middle's light, usually {usual:.2f}"
    ),
    "saturation": ("colour", ": {more} colour, saturation {value:.0f} of 255, usually {usual:.0f}"),
    "cast_red": ("colour", ": colours are cast along red ({value:+.2f} log, usually {usual:+.2f})"),
    "cast_blue": (
        "colour", ": colours are cast along blue ({value:+.2f} log, usually {usual:+.2f})"
    ),
    "sharpness": (
        "sharpness", ": {more} sharp, edges {value:.2f} times the contrast, usually {usual:.2f}"
    ),
    "noise": ("noise", ": {more} noise, {value:.1f} grey levels, usually {usual:.1f}"),
    **dict.fromkeys(
        ("moved_px", "scale", "turn_rad"), ("moved", " has moved: its picture lies {way}")
    ),
    "unfamiliar": (
        "unfamiliar",
        ": pictures unlike those that the policy learned from, {value:.2f} of their reach, usually "
        "{usual:.2f}",
    ),
}  # fmt: skip
"""Measure to its kind and to what is said of a camera in which it is unusual."""
OTHER_DIMENSIONS: Final = {
    "noise": GapDimension.SENSOR_NOISE, "moved": GapDimension.SPATIAL_GEOMETRY,
}  # fmt: skip
"""Of kinds that don't speak for the visual domain."""
PHOTOMETRY: Final = tuple(
    key for key in FLOORS if key not in ("moved_px", "scale", "turn_rad", "unfamiliar")
)
CELLS: Final = 16
"""Across a picture in which dirt and covers are looked for."""
SOFT: Final = 0.45
"""Share of its usual detail below which a cell is blurred, where the whole picture isn't."""
COVERED: Final = 6.0
"""Grey levels' spreads from usual above which a cell shows something else."""
SPOT_CELLS: Final = 2
AGREE: Final = 0.8
"""Share of the takes that have to show it."""


@dataclass(frozen=True)
class UsualCamera:
    """What one camera showed in the training takes.

    Attributes:
        size_px: height and width of its pictures.
        picture: median of the takes' first pictures, RGB, shape (192, 192, 3).
        detail: usual detail of each cell of single first pictures, shape (CELLS, CELLS).
        spread: how much takes' first pictures differ in it [grey levels], shape (CELLS, CELLS).
        values: measure to its usual value and spread over takes.
        patches: where the cells of its pictures lie in the policy's encoder, if it looks at any.
    """

    size_px: tuple[int, int]
    picture: Image
    detail: FloatArray
    spread: FloatArray
    values: Mapping[str, UsualValue] = field(default_factory=dict)
    patches: PatchSpace | None = None

    def z(self, name: str, value: float) -> float:
        """Return how many spreads a measure stands from usual; NaN where either is unknown."""
        usual = self.values.get(name)
        if usual is None or not np.isfinite(value):
            return float("nan")
        return (value - usual.mean) / max(usual.std, FLOORS[name])

    def measured(self, trace: CameraTrace) -> dict[str, float]:
        """Return every measure of a take."""
        values = {key: trace.photometry.get(key, np.nan) for key in PHOTOMETRY}
        if (move := moved(self.picture, trace.first)) is not None:
            values |= {"moved_px": float(np.hypot(*move.shift_px)), "scale": move.scale,
                       "turn_rad": move.turn_rad}  # fmt: skip
        if np.isfinite(trace.score).any():
            values["unfamiliar"] = float(np.median(trace.score))
        return values

    def named(
        self, name: str, values: Mapping[str, float], move: Similarity | None
    ) -> list[CameraFinding]:
        """Return what of a camera's measures is far from usual, the farthest of a kind."""
        worst = dict[str, tuple[float, CameraFinding]]()
        for key, value in values.items():
            kind, words = KINDS[key]
            z = self.z(key, value)
            if not (z > UNFAMILIAR_Z if key == "unfamiliar" else abs(z) > NAMED_Z):
                continue
            usual = self.values[key].mean
            said = f"camera {name}" + words.format(
                value=value, usual=usual, more="more" if z > 0 else "less",
                brighter="brighter" if z > 0 else "darker", way=describe_move(move) if move else "",
            )  # fmt: skip
            if abs(z) > worst.get(kind, (0.0, None))[0]:
                worst[kind] = abs(z), CameraFinding(name, kind, said, value)
        return [finding for _, finding in worst.values()]

    def spots(self, name: str, firsts: NDArray[np.uint8]) -> list[CameraFinding]:
        """Return where nearly all takes lack detail or show something else: dirt, a cover.

        From their first pictures, shape (n, 192, 192, 3); from fewer than three nothing is told.
        """
        if len(firsts) < 3:
            return []
        move = moved(self.picture, still(firsts))
        if move is not None:
            flags, size = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, (SIZE_PX, SIZE_PX)
            matrix, border = move.matrix(SIZE_PX), cv2.BORDER_REPLICATE
            firsts = np.stack([
                cv2.warpAffine(first, matrix, size, flags=flags, borderMode=border)
                for first in firsts
            ])  # fmt: skip
        shares = [(detail(first) + 0.5) / (self.detail + 0.5) for first in firsts]
        sharpest = np.quantile([s / np.median(s) for s in shares], AGREE, axis=0, method="higher")
        apart = [_apart(first, self.picture) for first in firsts]
        nearest = np.quantile(apart, 1.0 - AGREE, axis=0, method="lower")
        other = nearest > COVERED * np.maximum(self.spread, 2.0)
        soft = sharpest < SOFT
        found = []
        for kind, cells, words in (
            ("dirt", soft & ~other, "is blurred"), ("cover", other, "shows something else"),
        ):  # fmt: skip
            _, labels, stats, _ = cv2.connectedComponentsWithStats(cells.astype(np.uint8))
            sizes = stats[1:, cv2.CC_STAT_AREA]  # of connected patches of cells
            if not len(sizes) or sizes.max() < SPOT_CELLS:
                continue
            where = labels == 1 + int(np.argmax(sizes))
            row, column = (float(np.mean(axis)) / CELLS for axis in np.nonzero(where))
            down = "upper " if row < 1 / 3 else "lower " if row > 2 / 3 else ""
            across = "left" if column < 1 / 3 else "right" if column > 2 / 3 else "middle"
            covers = float(where.mean())
            message = f"camera {name}: {covers:.0%} of the picture {words}, {down}{across}"
            found.append(CameraFinding(name, kind, message, covers))
        return found


@dataclass(frozen=True)
class CameraFinding:
    """Something about one camera of a station, in one line, and how much, in that line's unit."""

    camera: str
    kind: str
    message: str
    value: float

    @property
    def dimension(self) -> GapDimension:
        """The gap dimension that it speaks for."""
        return OTHER_DIMENSIONS.get(self.kind, GapDimension.VISUAL_DOMAIN)


@dataclass(frozen=True)
class StationCameras:
    """What the cameras of a station showed in its failed takes, against a policy's training.

    Attributes:
        values: camera to measure to its median over the takes.
        scores: camera to take to how unfamiliar its pictures are, every 0.1 s.
        worst: camera to the take whose pictures are least familiar, and what it showed.
    """

    reference: CameraReference
    findings: tuple[CameraFinding, ...]
    values: Mapping[str, Mapping[str, float]]
    scores: Mapping[str, Mapping[str, FloatArray]]
    worst: Mapping[str, tuple[str, CameraTrace]]

    def to_json(self) -> dict[str, Any]:
        """Return `summary.cameras` of a diagnosis."""
        cameras = {}
        for name, values in self.values.items():
            usual = self.reference.cameras[name]
            uid, trace = self.worst[name]
            known = {key: value for key, value in values.items() if np.isfinite(value)}
            cameras[name] = {
                "values": {
                    key: {"value": round(value, 4), "usual": round(usual.values[key].mean, 4),
                          "spreads": round(usual.z(key, value), 2)}
                    for key, value in known.items() if key in usual.values
                },
                "findings": [
                    {"kind": f.kind, "says": f.message, "dimension": f.dimension.value,
                     "value": round(f.value, 4)}
                    for f in self.findings if f.camera == name
                ],
                "unfamiliar": {
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

        None where the policy looks at no pictures, or fewer than `LEAST_TAKES` takes have any.
        """
        every = [t for t in takes if t.cameras and len(t.frames)] if probe.needs_images else []
        if len(every) < LEAST_TAKES:
            return None
        chosen = np.unique(np.linspace(0, len(every) - 1, MOST_TAKES, dtype=int))
        looks = [_training_take(every[i], probe) for i in chosen]
        cameras, measured = dict[str, UsualCamera](), [dict[str, dict[str, float]]() for _ in looks]
        for camera in [n for n in looks[0] if all(n in seen for seen in looks)]:
            traces = [seen[camera][0] for seen in looks]
            maps = [seen[camera][1] for seen in looks]
            firsts = np.stack([trace.first for trace in traces])
            picture = still(firsts)
            usual = UsualCamera(
                traces[0].size_px,
                picture,
                np.median([detail(first) for first in firsts], axis=0),
                np.percentile([_apart(first, picture) for first in firsts], 75, axis=0),
                patches=PatchSpace.fit(maps) if maps[0] else None,
            )
            rows = []
            for own, trace in enumerate(traces):
                known = usual.patches
                cells = [known.distance(m, own) for m in maps[own]] if known else []
                score = np.array([unfamiliar(where) for where in cells])
                rows.append(usual.measured(replace(trace, score=score)))
                measured[own][camera] = rows[-1]
            cameras[camera] = replace(usual, values=usual_values(rows, FLOORS))
        found = cls(name, cameras, {})
        signals = [found._signals(row) for row in measured]
        return replace(found, signals=usual_values(signals, signals[0]))

    @property
    def patches(self) -> dict[str, PatchSpace | None]:
        """Camera to where its cells are at home, as `ask` takes them."""
        return {name: camera.patches for name, camera in self.cameras.items()}

    def measured(self, seen: Mapping[str, CameraTrace]) -> dict[str, float]:
        """Return the registry's signals of what a take's cameras showed."""
        known = {n: c.measured(seen[n]) for n, c in self.cameras.items() if n in seen}
        return self._signals(known)

    def _signals(self, values: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Return the signals of measures by camera: each of the camera where it is largest."""
        off = [abs(self.cameras[n].z(key, row.get(key, np.nan))) for n, row in values.items()
               for key in PHOTOMETRY]  # fmt: skip
        return {
            "view_unfamiliar": _largest(row.get("unfamiliar", np.nan) for row in values.values()),
            "view_moved_px": _largest(row.get("moved_px", np.nan) for row in values.values()),
            "view_light": _largest(off),
        }

    def station(self, takes: Mapping[str, Mapping[str, CameraTrace]]) -> StationCameras:
        """Return what the cameras of some takes of one station showed, take to camera to trace."""
        found, medians = list[CameraFinding](), dict[str, dict[str, float]]()
        scores, worst = dict[str, dict[str, FloatArray]](), dict[str, tuple[str, CameraTrace]]()
        for name, usual in self.cameras.items():
            held = {uid: seen[name] for uid, seen in takes.items() if name in seen}
            if not held:
                continue
            traces = list(held.values())
            scores[name] = {uid: trace.score for uid, trace in held.items()}
            least = max(held, key=lambda uid: float(np.nan_to_num(held[uid].score).max()))
            worst[name] = least, held[least]
            rows = [usual.measured(trace) for trace in traces]
            medians[name] = values = {}
            for key in FLOORS:
                known = [row[key] for row in rows if np.isfinite(row.get(key, np.nan))]
                values[key] = float(np.median(known)) if known else float("nan")
            firsts = np.stack([trace.first for trace in traces])
            present = still(firsts)
            wrong = self.identity(name, traces[-1].size_px, present)
            found += wrong
            if not wrong or wrong[-1].kind == "size":
                found += usual.named(name, values, moved(usual.picture, present))
                found += usual.spots(name, firsts)
        return StationCameras(self, tuple(found), medians, scores, worst)

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
            values = {k: asdict(v) for k, v in camera.values.items()}
            meta["cameras"][name] = {"size_px": list(camera.size_px), "values": values}
            arrays |= {f"{number}.picture": camera.picture,
                       f"{number}.detail": camera.detail.astype(np.float32),
                       f"{number}.spread": camera.spread.astype(np.float32)}  # fmt: skip
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
                        held[f"{number}.detail"].astype(np.float64),
                        held[f"{number}.spread"].astype(np.float64),
                        {k: UsualValue(**v) for k, v in said["values"].items()},
                        patches,
                    )
                signals = {k: UsualValue(**v) for k, v in meta["signals"].items()}
                return cls(str(meta["name"]), cameras, signals)
        except (*DAMAGE, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise UnusableInputError(
                f"{path} is no camera reference ({error}). Make it: gaploop diagnose TAKES "
                f"--policy.path=POLICY --save_reference={path}, on takes that it learned from."
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


def detail(picture: Image) -> FloatArray:
    """Return how much detail each cell of a picture shows [grey levels], shape (CELLS, CELLS)."""
    grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY).astype(np.float32)
    fine, coarse = (cv2.GaussianBlur(grey, (0, 0), sigma) for sigma in (0.8, 2.5))  # not noise
    edges = np.abs(fine - coarse)
    return np.asarray(cv2.resize(edges, (CELLS, CELLS), interpolation=cv2.INTER_AREA), np.float64)


def _apart(picture: Image, usual: Image) -> FloatArray:
    """Return how far cells are from usual once light and colour are evened out [grey levels]."""
    now, then = (
        cv2.resize(p, (CELLS, CELLS), interpolation=cv2.INTER_AREA).astype(np.float64) + 1.0
        for p in (picture, usual)
    )
    gain = np.median(np.divide(then, now), axis=(0, 1))
    return np.asarray(np.abs(now * gain - then).max(axis=2))


def describe_move(move: Similarity) -> str:
    """Return in words which way a picture's content has moved, in a picture of 192 px."""
    right, down = move.shift_px
    return (
        f"{abs(right):.1f} px to the {'right' if right > 0 else 'left'}, {abs(down):.1f} px "
        f"{'down' if down > 0 else 'up'}, turned by {np.degrees(move.turn_rad):.1f}°, "
        f"{move.scale:.3f} times as large"
    )


def _largest(values: Iterable[float]) -> float:
    known = [value for value in values if np.isfinite(value)]
    return max(known, default=float("nan"))


def _training_take(take: Take, probe: PolicyProbe) -> dict[str, tuple[CameraTrace, list[Layers]]]:
    """Return by camera what a training take showed, and some of its pictures' cells."""
    probe.reset()
    sizes = dict[str, tuple[int, int]]()
    pictures, maps = dict[str, list[Image]](), dict[str, list[Layers]]()
    every = max(1, int(len(take.frames) / take.info.fps / 0.1) // PICTURES)
    for number, (_, seen) in enumerate(observations(take, True)):
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
