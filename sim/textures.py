"""What surfaces, objects and distractors may look like: a procedural library, or a folder's files.

`PATTERNS` are small functions of a generator and a size; each look is one of them with drawn
parameters and colours, by its number alone. Categories (a pattern, a shape, a subfolder, a file
where there are none) are split into training's and held-out ones by a hash of their names, so that
what a policy is tried with can be what it has never seen.
"""

import colorsys
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import cv2
import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.twin import Randomisation
from gaploop.sim.conditions import PHOTOS

type Field = NDArray[np.floating]
"""How far from the first colour to the last, 0 to 1, shape (n, n)."""
type Rng = np.random.Generator
type Texture = NDArray[np.uint8]
"""RGB, shape (n, n, 3)."""

HELD_OUT_OF: Final = 5
"""One category of so many is held out."""
PER_PATTERN: Final = 100
"""Looks that are drawn of each pattern."""


def _grid(rng: Rng, n: int, most: float = 12.0) -> tuple[Field, Field]:
    """Return coordinates of the pixels, turned and scaled, shape (n, n) each."""
    y, x = np.mgrid[0:n, 0:n] / n * rng.uniform(2.0, most)
    turn = rng.uniform(0.0, np.pi)
    across = x * np.cos(turn) + y * np.sin(turn) + rng.uniform(0.0, 9.0)
    return across, y * np.cos(turn) - x * np.sin(turn) + rng.uniform(0.0, 9.0)


def _smooth(rng: Rng, n: int, wide: int, high: int = 0) -> Field:
    coarse = rng.random((high or wide, wide)).astype(np.float32)
    return np.asarray(cv2.resize(coarse, (n, n), interpolation=cv2.INTER_CUBIC))


def _clouds(rng: Rng, n: int) -> Field:
    start = int(rng.integers(2, 7))
    layers = [_smooth(rng, n, min(start * 2**k, n)) / 2**k for k in range(4)]
    return np.asarray(sum(layers) / 1.875)


def _wave(value: Field) -> Field:
    return np.asarray(0.5 + 0.5 * np.sin(2.0 * np.pi * value))


def _wood(rng: Rng, n: int) -> Field:
    x, y = _grid(rng, n, 5.0)
    return _wave(np.hypot(x, 0.15 * y) * rng.uniform(0.5, 2.0) + 0.5 * _smooth(rng, n, 4))


def _bricks(rng: Rng, n: int) -> Field:
    x, y = _grid(rng, n)
    x = 0.5 * x + 0.5 * (np.floor(y) % 2)
    joint = rng.uniform(0.04, 0.12)
    stone = rng.random((16, 16))[np.floor(y).astype(int) % 16, np.floor(x).astype(int) % 16]
    return np.where((x % 1 < joint) | (y % 1 < 2 * joint), 0.0, 0.4 + 0.6 * stone)


def _tiles(rng: Rng, n: int) -> Field:
    x, y = _grid(rng, n)
    joint = rng.uniform(0.03, 0.15)
    return np.where((x % 1 < joint) | (y % 1 < joint), 0.0, 0.7 + 0.3 * _clouds(rng, n))


def _on_grid(
    draw: Callable[[Rng, Field, Field], Field], most: float = 12.0
) -> Callable[[Rng, int], Field]:
    """Return what draws a pattern by coordinates of the pixels, as of `_grid`."""
    return lambda rng, n: draw(rng, *_grid(rng, n, most))


def _squares(x: Field, y: Field) -> Field:
    return np.asarray((np.floor(x) + np.floor(y)) % 2)


def _voronoi(rng: Rng, n: int) -> tuple[Field, Field, NDArray[np.int64]]:
    """Return the distances to the nearest and the second of some points, and which it is."""
    near, second = np.full((2, n, n), 9.0, np.float32)
    index, (y, x) = np.zeros((n, n), int), (np.mgrid[0:n, 0:n] / n).astype(np.float32)
    for k, (px, py) in enumerate(rng.random((int(rng.integers(8, 40)), 2)).astype(np.float32)):
        away = np.sqrt((x - px) ** 2 + (y - py) ** 2)
        nearer = away < near
        second = np.where(nearer, near, np.minimum(second, away))
        near, index[nearer] = np.minimum(near, away), k
    return near, second, index


def _terrazzo(rng: Rng, n: int) -> Field:
    near, second, index = _voronoi(rng, n)
    return np.where(second - near < 0.02, 0.1, rng.random(64)[index])


def _drawn(rng: Rng, n: int, draw: Callable[[Texture, tuple[int, ...], float], Any]) -> Field:
    """Return what is drawn in grey with random places and tones."""
    page = np.full((n, n), int(rng.integers(200, 256)), np.uint8)
    for _ in range(int(rng.integers(15, 60))):
        draw(page, tuple(int(v) for v in rng.integers(0, n, 4)), float(rng.integers(0, 200)))
    return np.asarray(page / 255.0)


def _letters(rng: Rng, n: int) -> Field:
    text = "".join(chr(c) for c in rng.integers(65, 91, 200))
    size = float(rng.uniform(0.25, 1.0))

    def write(page: Texture, at: tuple[int, ...], tone: float) -> None:
        start = at[2] % 180
        cv2.putText(page, text[start : start + 12], at[:2], 0, size * n / 256, tone, 1)

    return _drawn(rng, n, write)


PATTERNS: Final[Mapping[str, Callable[[Rng, int], Field]]] = {
    "plain": lambda rng, n: np.full((n, n), rng.random()),
    "speckle": lambda rng, n: 0.5 + rng.normal(0.0, rng.uniform(0.05, 0.35), (n, n)),
    "coarse": lambda rng, n: _smooth(rng, n, int(rng.integers(n // 32 + 2, n // 4))),
    "clouds": _clouds,
    "marble": lambda rng, n: _wave(_grid(rng, n, 4.0)[0] + rng.uniform(0.5, 2.5) * _clouds(rng, n)),
    "wood": _wood,
    "grain": lambda rng, n: _smooth(rng, n, int(rng.integers(n // 8, n)), int(rng.integers(2, 8))),
    "stripes": _on_grid(lambda rng, x, _: (x % 1 < rng.uniform(0.2, 0.8)) * 1.0, 20.0),
    "corduroy": _on_grid(lambda _rng, x, _y: _wave(x), 30.0),
    "checks": _on_grid(lambda _, x, y: _squares(x, y)),
    "plaid": lambda rng, n: sum(
        (0.5 * (v % 1 < rng.uniform(0.2, 0.7)) for v in _grid(rng, n)), np.zeros((n, n))
    ),
    "bricks": _bricks,
    "tiles": _tiles,
    "dots": _on_grid(
        lambda rng, x, y: (np.hypot(x % 1 - 0.5, y % 1 - 0.5) < rng.uniform(0.15, 0.4)) * 1.0
    ),
    "rings": _on_grid(lambda _, x, y: _wave(np.hypot(x - 9.0, y - 9.0))),
    "ripples": _on_grid(lambda rng, x, y: _wave(x + rng.uniform(0.1, 0.6) * np.sin(2.0 * y))),
    "zigzag": _on_grid(lambda _, x, y: ((x + 2.0 * np.abs(y % 1 - 0.5)) % 1 < 0.5) * 1.0),
    "weave": _on_grid(lambda _, x, y: np.where(_squares(x, y), _wave(x), 0.6 * _wave(y)), 30.0),
    "pebbles": lambda rng, n: 1.0 - np.clip(4.0 * _voronoi(rng, n)[0], 0, 1),
    "cracks": lambda rng, n: np.clip(20.0 * np.diff(_voronoi(rng, n)[:2], axis=0)[0], 0, 1),
    "terrazzo": _terrazzo,
    "gradient": _on_grid(lambda _rng, x, _y: x % 4 / 4, 3.0),
    "spots": lambda rng, n: np.exp(-(_smooth(rng, n, int(rng.integers(3, 9))) ** 2) * 6.0),
    "stains": lambda rng, n: (_clouds(rng, n) > rng.uniform(0.35, 0.65)) * 1.0,
    "camouflage": lambda rng, n: np.round(3.0 * _clouds(rng, n)) / 3.0,
    "scratches": lambda rng, n: _drawn(rng, n, lambda p, a, v: cv2.line(p, a[:2], a[2:], v, 1)),
    "patches": lambda rng, n: _drawn(rng, n, lambda p, a, v: cv2.rectangle(p, a[:2], a[2:], v, -1)),
    "letters": _letters,
}
"""Name to what makes a field of it."""
LOOKS: Final = PER_PATTERN * len(PATTERNS)


def _tone(rng: Rng) -> Sequence[float]:
    # Half of them nearly grey, as most tables, walls and cloths are.
    saturation = rng.uniform(0.0, 0.25) if rng.random() < 0.5 else rng.uniform(0.25, 0.9)
    return colorsys.hsv_to_rgb(rng.random(), saturation, rng.uniform(0.12, 1.0))


@lru_cache(maxsize=64)
def procedural(pattern: str, number: int, n: int) -> Texture:
    """Return a look of a pattern, shape (n, n, 3), read-only; the same for the same number."""
    rng = np.random.default_rng([number, *pattern.encode()])
    tones = np.array([_tone(rng) for _ in range(int(rng.integers(2, 5)))])
    mix = np.clip(255.0 * PATTERNS[pattern](rng, n), 0.0, 255.0).astype(np.uint8)
    steps, stops = np.arange(256) / 255.0, np.linspace(0.0, 1.0, len(tones))
    ramp = np.stack([np.interp(steps, stops, tones[:, k]) for k in range(3)], axis=-1)
    texture = (255.0 * ramp).astype(np.uint8)[mix]
    texture.flags.writeable = False
    return texture


SHAPES: Final[Mapping[str, Callable[[Any, Rng], None]]] = {
    "prism": lambda mesh, rng: mesh.make_cone(int(rng.integers(3, 9)), rng.uniform(0.8, 1.0)),
    "cone": lambda mesh, rng: mesh.make_cone(int(rng.integers(4, 24)), rng.uniform(0.0, 0.7)),
    "dome": lambda mesh, _: mesh.make_hemisphere(8),
    "ball": lambda mesh, _: mesh.make_sphere(3),
    "ring": lambda mesh, rng: mesh.make_supertorus(24, rng.uniform(0.2, 0.45), *_powers(rng)),
    "pebble": lambda mesh, rng: mesh.make_supersphere(24, *_powers(rng)),
}
"""Name to what makes a distractor's mesh of it, of MuJoCo's own."""


def _powers(rng: Rng) -> tuple[float, float]:
    return rng.uniform(0.3, 1.8), rng.uniform(0.3, 1.8)


MESHES: Final = (".obj", ".stl", ".msh")
ENDINGS: Final = {"textures": PHOTOS, "backgrounds": PHOTOS, "meshes": MESHES}
"""What a folder may be given for, to how the names of its files end."""


def is_held_out(category: str) -> bool:
    """Say whether a category is held out of training; it depends on its name alone."""
    return hashlib.sha256(category.encode()).digest()[0] % HELD_OUT_OF == 0


@lru_cache(maxsize=32)
def files_of(kind: str, folder: Path, held_out: bool) -> tuple[Path, ...]:
    """Return the files of one part of a folder and its subfolders, in order.

    Raises:
        UnusableInputError: it has none, or none of that part.
    """
    endings = ENDINGS[kind]
    found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in endings and p.is_file())
    where = f"randomise, {kind}={folder}"
    if not found:
        raise UnusableInputError(
            f"{where}: there is no {', '.join(endings)} file. Give a folder of them."
        )
    parts = [p.relative_to(folder).parts[0] for p in found]
    kept = tuple(p for p, part in zip(found, parts, strict=True) if is_held_out(part) == held_out)
    if not kept:
        raise UnusableInputError(
            f"{where}: {'none' if held_out else 'each'} of its {len(set(parts))} categories "
            f"(subfolders, or files) is held out. Give more of them"
            f"{', or leave held_out away' if held_out else ''}."
        )
    return kept


class Mesh:
    """The mesh of a distractor, of a file or of one of `SHAPES`.

    Attributes:
        half: half size along x, y and z, the longest side 1, shape (3,).
    """

    def __init__(self, name: str, put: Callable[[Any], None]) -> None:
        """Measure what `put` puts into a `MjsMesh`; UnusableInputError where MuJoCo can't."""
        self._put = put
        spec = mujoco.MjSpec()
        self._added(spec, "it")
        spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname="it")
        try:
            model = spec.compile()
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise UnusableInputError(f"Mesh {name} can't be read ({reason}). Replace it.") from None
        turn = np.zeros(9)
        mujoco.mju_quat2Mat(turn, model.mesh_quat[0])
        corners = model.mesh_vert @ turn.reshape(3, 3).T + model.mesh_pos[0]
        low, high = corners.min(axis=0), corners.max(axis=0)
        self._scale, self._middle = 1.0 / float((high - low).max()), 0.5 * (low + high)
        self.half = 0.5 * (high - low) * self._scale

    def _added(self, spec: mujoco.MjSpec, name: str) -> Any:
        # Most meshes of the web aren't closed: their hull's inertia is taken.
        convex = mujoco.mjtMeshInertia.mjMESH_INERTIA_CONVEX
        mesh = spec.add_mesh(name=name, inertia=convex, maxhullvert=64)
        self._put(mesh)
        return mesh

    def add_to(
        self, spec: mujoco.MjSpec, body: mujoco.MjsBody, size_m: float, **values: Any
    ) -> None:
        """Give a body this geom, its longest side `size_m`, its middle at the body's origin."""
        scale = size_m * self._scale
        self._added(spec, f"{body.name}_mesh").scale = [scale] * 3
        body.add_geom(
            name=body.name, type=mujoco.mjtGeom.mjGEOM_MESH, meshname=f"{body.name}_mesh",
            pos=-scale * self._middle, **values,
        )  # fmt: skip


class Library:
    """What the numbers of a randomisation's looks stand for.

    Args:
        randomisation: names folders, and which part of them; None for the procedural one.
    """

    def __init__(self, randomisation: Randomisation | None = None) -> None:
        self.folders = dict(randomisation.folders) if randomisation else {}
        self._held_out = bool(randomisation and randomisation.held_out)

    def name(self, kind: str, number: int) -> str:
        """Return the file, relative to its folder, or "" where it is procedural."""
        file = self._file(kind, number)
        return file.relative_to(self.folders[kind]).as_posix() if file else ""

    def _file(self, kind: str, number: int) -> Path | None:
        folder = self.folders.get(kind)
        if folder is None:
            return None
        files = files_of(kind, folder, self._held_out)
        return files[number % len(files)]

    def _category(self, known: Mapping[str, Any], number: int) -> str:
        part = [name for name in known if is_held_out(name) == self._held_out]
        return part[number % len(part)]

    def texture(self, number: int, n: int) -> Texture:
        """Return a look, shape (n, n, 3); UnusableInputError: a file can't be read as a picture."""
        file = self._file("textures", number)
        return _read(file, n) if file else procedural(self._category(PATTERNS, number), number, n)

    def background(self, number: int) -> Path | None:
        """Return the photo of an episode or a picture; None without a folder of them."""
        return self._file("backgrounds", number)

    def mesh(self, number: int) -> Mesh:
        """Return the mesh of a distractor, or raise UnusableInputError."""
        file = self._file("meshes", number)
        if file is not None:
            return Mesh(str(file), lambda mesh: setattr(mesh, "file", str(file.resolve())))
        name = self._category(SHAPES, number)
        return Mesh(name, lambda mesh: SHAPES[name](mesh, np.random.default_rng(number)))


@lru_cache(maxsize=64)
def _read(file: Path, n: int) -> Texture:
    picture = cv2.imread(str(file))
    if picture is None:
        raise UnusableInputError(f"Texture {file}: it can't be read as a picture. Replace it.")
    side = min(picture.shape[:2])
    top, left = ((edge - side) // 2 for edge in picture.shape[:2])
    square = cv2.resize(picture[top : top + side, left : left + side], (n, n))
    return np.ascontiguousarray(square[..., ::-1])
