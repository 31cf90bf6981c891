"""What an experimenter sets in the cell on purpose, as opposed to gaps, which nobody asked for."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gaploop.core.arm import Paint
from gaploop.core.arm import Rgba as Rgba
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.vocabulary import CONDITIONS

PAINT = Paint(
    arm=(0.17, 0.18, 0.21, 1.0), servo=(0.07, 0.07, 0.08, 1.0), jaw=(0.80, 0.80, 0.78, 1.0)
)
OBJECT_RGBA: Rgba = (0.90, 0.12, 0.06, 1.0)
TARGET_RGBA: Rgba = (0.08, 0.30, 0.85, 1.0)
SKIN_RGBA: Rgba = (0.86, 0.66, 0.53, 1.0)
SLEEVE_RGBA: Rgba = (0.38, 0.40, 0.44, 1.0)
# Of set-up distractors: none near the hues of object and target.
DISTRACTOR_RGBA: tuple[Rgba, ...] = (
    (0.15, 0.55, 0.22, 1.0),
    (0.86, 0.78, 0.15, 1.0),
    (0.45, 0.20, 0.50, 1.0),
    (0.25, 0.25, 0.25, 1.0),
)

TEXTURE_SIZE_PX = 256
PHOTOS = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True)
class TableTop:
    """A table top: two tones mixed by a grain pattern.

    Attributes:
        light_rgb: brighter tone, 0..255.
        dark_rgb: darker tone, 0..255.
        grain: "wood" (stripes), "speckle" (noise) or "plain".
    """

    light_rgb: tuple[int, int, int]
    dark_rgb: tuple[int, int, int]
    grain: str


BACKGROUNDS: dict[str, TableTop] = {
    "wood": TableTop((205, 178, 140), (176, 146, 108), "wood"),
    "grey": TableTop((172, 173, 175), (158, 159, 161), "speckle"),
    "white": TableTop((232, 232, 228), (222, 222, 218), "speckle"),
    "dark": TableTop((74, 72, 70), (58, 56, 55), "speckle"),
    "cloth": TableTop((168, 160, 132), (126, 122, 104), "speckle"),
}


@dataclass(frozen=True)
class Lighting:
    """Lamp strengths as factors of the nominal ones, per colour channel.

    Attributes:
        key_rgb: factor on the slanted lamp.
        fill_rgb: factor on the ceiling light and the ambient term.
    """

    key_rgb: tuple[float, float, float]
    fill_rgb: tuple[float, float, float]


LIGHTINGS: dict[str, Lighting] = {
    "nominal": Lighting((1.0, 1.0, 1.0), (1.0, 1.0, 1.0)),
    "dim": Lighting((0.55, 0.55, 0.55), (0.55, 0.55, 0.55)),
    "bright": Lighting((1.35, 1.35, 1.35), (1.25, 1.25, 1.25)),
    "warm": Lighting((1.15, 0.95, 0.68), (1.08, 0.95, 0.75)),
    "cold": Lighting((0.80, 0.95, 1.18), (0.85, 0.96, 1.12)),
    "side": Lighting((1.7, 1.7, 1.7), (0.5, 0.5, 0.5)),
}


@lru_cache(maxsize=8)  # every cell has one, nearly always the same
def table_texture(background: TableTop) -> NDArray[np.uint8]:
    """Return a table top, RGB, shape (TEXTURE_SIZE_PX, TEXTURE_SIZE_PX, 3), read-only."""
    size = TEXTURE_SIZE_PX
    rng = np.random.default_rng(7)  # a fixed pattern: the table is not part of the seed
    if background.grain == "wood":
        across = np.cumsum(rng.normal(0.0, 0.22, size))
        wave = 0.35 * np.sin(np.linspace(0.0, 5.0, size))[:, None]
        mix = 0.5 + 0.5 * np.sin(across[None, :] * 2.0 + wave)
        mix = mix + rng.normal(0.0, 0.05, (size, size))
    elif background.grain == "speckle":
        mix = 0.5 + rng.normal(0.0, 0.25, (size, size))
    else:
        mix = np.ones((size, size))
    weight = np.clip(mix, 0.0, 1.0)[..., None]
    light = np.asarray(background.light_rgb, dtype=np.float64)
    dark = np.asarray(background.dark_rgb, dtype=np.float64)
    texture = np.asarray(light * weight + dark * (1.0 - weight), dtype=np.uint8)
    texture.flags.writeable = False
    return texture


GRID_ROWS = 3  # by azimuth about the middle of the spawn region
GRID_COLUMNS = 3  # by radius
MAX_DISTRACTORS = 8


@dataclass(frozen=True)
class ObjectKind:
    """A carried object: a "box", or a "cylinder" (radius and half height from the half sizes).

    Attributes:
        com_m: centre of mass relative to the geometric centre, shape (3,).
    """

    half_size_m: tuple[float, float, float] = (0.0125, 0.0125, 0.0125)
    mass_kg: float = 0.01
    shape: str = "box"
    com_m: tuple[float, float, float] = (0.0, 0.0, 0.0)


OBJECTS: dict[str, ObjectKind] = {
    "red_cube": ObjectKind(),
    "small_cube": ObjectKind((0.0095, 0.0095, 0.0095), 0.005),
    "large_cube": ObjectKind((0.016, 0.016, 0.016), 0.02),
    "huge_cube": ObjectKind((0.0195, 0.0195, 0.0195), 0.04),
    "heavy_cube": ObjectKind(mass_kg=0.25),
    "long_box": ObjectKind((0.022, 0.0125, 0.0125), 0.02),
    "cylinder": ObjectKind((0.014, 0.014, 0.014), 0.012, "cylinder"),
}

HUMANS: dict[str, dict[str, float]] = {
    "none": {},
    "reach_in": {"side_rad": 0.6, "stay_s": 1.5, "start_s": 0.4},
    "nudge": {"side_rad": 0.6, "push_m": 0.035},
    "take": {"side_rad": 0.6, "carry_m": 0.08},
}
"""What a person does, to the parameters of the gap mechanism of the same name."""

PLACEMENTS = ("nominal", "inner", "flank")
"""Where the object starts. Only in nominal has any demonstration of the embedded cell begun; the
others are beside it and within reach: `placement` says where."""


FIDELITIES = ("plain", "shadows", "traced")
"""Fast; every lamp throws shadows, edges are multisampled; paths of light are traced (`traced`)."""
LOOKS = ("backdrop", "fidelity")
"""Free conditions that only cameras see."""


@dataclass(frozen=True)
class Conditions:
    """Conditions of a cell; the defaults are the nominal cell.

    Attributes:
        background: name in BACKGROUNDS.
        lighting: name in LIGHTINGS.
        object: name in OBJECTS.
        camera_pose: offset (dx, dy, dz [m], droll, dpitch, dyaw [rad]) of the camera.
        table_height: offset of the table top [m].
        grid_cell: (row, column) of the spawn region that the object starts in, or None.
        human: name in HUMANS.
        placement: name in PLACEMENTS; a free condition, which only the embedded cell knows.
        backdrop: a photo, or a folder that each episode's is drawn from; "" for none.
        fidelity: how pictures are drawn, one of FIDELITIES.
    """

    background: str = "wood"
    lighting: str = "nominal"
    distractors: int = 0
    object: str = "red_cube"
    camera_pose: tuple[float, float, float, float, float, float] = (0.0,) * 6
    table_height: float = 0.0
    grid_cell: tuple[int, int] | None = None
    human: str = "none"
    placement: str = "nominal"
    backdrop: str = ""
    fidelity: str = "plain"


NAMES: dict[str, Sequence[str]] = {
    "background": tuple(BACKGROUNDS),
    "lighting": tuple(LIGHTINGS),
    "object": tuple(OBJECTS),
    "human": tuple(HUMANS),
}
"""Condition that takes a name, to the names the embedded cell knows."""


def photo_of(source: Path, seed: int) -> Path:
    """Return the photo of an episode: `source` itself, or one of the folder drawn by `seed`.

    Raises:
        UnusableInputError: there is none.
    """
    if source.is_dir():
        photos = sorted(p for p in source.iterdir() if p.suffix.lower() in PHOTOS)
        if photos:
            return photos[int(np.random.default_rng([seed, 26]).integers(len(photos)))]
    elif source.is_file():
        return source
    raise UnusableInputError(
        f"Backdrop {source}: there is no photo. Give a {', '.join(PHOTOS)} file, or a folder of "
        "them."
    )


def parse_conditions(values: Mapping[str, object]) -> Conditions:
    """Check conditions, as in vocabulary.CONDITIONS, and fill in the nominal ones.

    Raises:
        UnknownChoiceError: for a condition or a name that the cell doesn't have.
        UnusableInputError: for a value of the wrong kind or out of range.
    """
    known: dict[str, object] = {}
    for key, value in values.items():
        choices = (*CONDITIONS, "placement", *LOOKS)
        if key not in choices:
            raise unknown_choice("condition", key, choices, "conditions")
        names = {"placement": PLACEMENTS, "fidelity": FIDELITIES, **NAMES}.get(key)
        if names is not None:
            if value not in names:
                raise unknown_choice(key, value, names, f"condition '{key}'")
            known[key] = value
            if value == "traced":
                from gaploop.sim import traced  # loads MuJoCo, which names of conditions don't need

                traced.announce()
        elif key == "backdrop":
            if value:
                photo_of(Path(str(value)), 0)
            known[key] = str(value)
        elif key == "distractors":
            known[key] = int(_numbers(key, [value], 1, 0, MAX_DISTRACTORS)[0])
        elif key == "table_height":
            known[key] = _numbers(key, [value], 1, -0.05, 0.05)[0]
        elif key == "camera_pose":
            known[key] = _numbers(key, value, 6, -0.6, 0.6)
        else:
            row, column = _numbers(key, value, 2, 0, max(GRID_ROWS, GRID_COLUMNS) - 1)
            known[key] = int(row), int(column)
    return Conditions(**known)  # type: ignore[arg-type]


def _numbers(key: str, value: object, count: int, low: float, high: float) -> tuple[float, ...]:
    wanted = f"{count} number(s) from {low:g} to {high:g}"
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == count:
        with contextlib.suppress(TypeError, ValueError):
            numbers = tuple(float(v) for v in value)
            if all(low <= number <= high for number in numbers):
                return numbers
    raise UnusableInputError(f"Condition '{key}' is {value!r}: give {wanted}.")
