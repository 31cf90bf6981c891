"""How the cell looks: colours, table textures and lamps by name.

Colours are chosen so that the tracker's two hues (object red, target blue) occur nowhere
else in the nominal scene: dark arm, wooden table, light grey jaws.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gaploop.core.arm import Paint
from gaploop.core.arm import Rgba as Rgba

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
