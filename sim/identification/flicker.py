"""Finds the bands that a lamp's flicker lays over pictures, and takes them out.

A lamp on alternating current swings at 100 or 120 Hz. A shutter that exposes row after row sees
that as bright and dark bands, which roll as far as the frame rate doesn't divide the lamp's. In
views that stand still nothing else brightens whole rows like a wave that is as high everywhere: so
what pictures have in common is the scene, and a wave that explains most of the rest is the flicker.
No simulation is compared with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import t as student

from gaploop.core.messages import FloatArray, Image
from gaploop.sim.identification.stills import Still

FLICKER: Final = "visual_domain.flicker"
EXPLAINS: Final = 0.75
"""Of what pictures don't share: of a lamp that is switched on and off, one wave explains 81 %."""
BRIGHT_PCT: Final = 75.0
"""Of a row's pixels: the table, where no more than so much of the row is arm."""
CUT_OFF: Final = 250.0
"""A level that a sensor may have cut off says nothing of the light."""
DARKEST: Final = 0.1
"""Of the mean light: rows that are darker hold little but noise to brighten."""
BANDS: Final = np.arange(1.0, 8.0, 0.1)
"""Over a picture's height. Less than a whole wave may be any shadow."""
SHADE_BANDS, ROLLS_HZ = 2.0, 0.02
"""Fewer bands that roll no faster may be shade that came and went between the views."""
NEAR: Final = np.linspace(-0.1, 0.1, 5)
"""About how many bands there are in all views, each view's own number is looked for."""
FEW: Final = 4
"""Pictures of a view that its bands are counted by; of fewer views any shadow is nearly a wave."""
NOISE_SHARE: Final = 0.03
"""Of a scene's contrast, a pixel's noise and rounding: two levels of 60. In rows in which little
light is left a pixel is believed the less (Wiener 1949), and else taken for table."""
FORGETS: Final = 0.98
"""Of what is known of the scene, so much counts at the next picture."""


type Waves = NDArray[np.complexfloating]


def steadied(
    stills: Sequence[Still], confidence: float
) -> tuple[list[Still], dict[str, tuple[float, float]]]:
    """Return views without the lamp's flicker, as they are where there is none, and what it is.

    That is the mechanism's parameters by name, each with the half width of its interval; empty
    where too few views tell, or it may be shade.
    """
    if len(stills) < FEW:
        return list(stills), {}
    few = [p for still in stills for p in still.pictures[:: max(1, len(still.pictures) // FEW)]]
    levels = np.stack([_levels(picture) for picture in few])
    others = np.linalg.svd(levels.transpose(2, 0, 1), compute_uv=False)[:, 1:]
    varies = float((others**2).sum() / levels.size)  # beyond the scene in each picture's exposure

    def left(bands: float) -> float:
        return _waves(levels, bands)[1]

    best = min(map(float, BANDS), key=left)
    bands = float(minimize_scalar(left, bounds=(best - 0.1, best + 0.1), method="bounded").x)
    _, rest, scene = _waves(levels, bands, turns=12)
    if rest >= (1.0 - EXPLAINS) * varies:
        return list(stills), {"depth": (0.0, 0.0)}
    plain, told = list[Still](), list[tuple[float, float, float, float]]()
    for still in stills:
        seen = np.stack([_levels(picture) for picture in still.pictures])
        waves = _waves(seen, bands, scene)[0]
        gains = 1.0 + np.real(waves[:, None] * _wave(seen.shape[1], bands)[:, None])
        clear = still.pictures / np.maximum(gains, DARKEST)[:, :, None]
        plain.append(replace(still, pictures=np.clip(clear + 0.5, 0, 255).astype(np.uint8)))
        bent, slope, _ = np.polyfit(NEAR, [_waves(seen, n, scene)[1] for n in bands + NEAR], 2)
        lag_rad = np.angle((waves[:, 0] * waves[:, 2].conj()).sum())
        drift_hz = _drift_hz(still.taken_s, waves.sum(axis=1)) if len(seen) > 2 else np.nan
        told.append((np.median(np.abs(waves)), bands - 0.5 * slope / bent, lag_rad, drift_hz))
    found = {}
    for name, each in zip(
        ("depth", "bands", "lag_rad", "drift_hz"), np.transpose(told), strict=True
    ):
        known = each[np.isfinite(each)]
        if len(known) > 1:
            sure = student.ppf(0.5 + confidence / 2.0, len(known) - 1) / np.sqrt(len(known))
            found[name] = (float(np.median(known)), float(sure * np.std(known)))
    speed_hz, unsure_hz = found.get("drift_hz", (0.0, 0.0))
    if bands < SHADE_BANDS and abs(speed_hz) <= max(unsure_hz, ROLLS_HZ):
        return list(stills), {}
    return plain, found


class FlickerFilter:
    """Takes a lamp's bands, as a twin has them, out of one picture after the other.

    What pictures had in common, cleared, says where the next one's bands have rolled to. In the
    first they are where they leave the scene smoothest. A picture without them, by daylight, stays
    as it is. `lamp` is the mechanism's values.
    """

    def __init__(self, lamp: Mapping[str, float]) -> None:
        self._depth, self._bands = lamp["depth"], lamp["bands"]
        self._lag_rad = lamp.get("lag_rad", 0.0) * np.array([0.5, 0.0, -0.5])
        self.reset()

    def reset(self) -> None:
        """Forget the scene."""
        self._bright: FloatArray | None = None
        self._weight: FloatArray | float = 0.0

    def __call__(self, picture: FloatArray, cut_off: FloatArray) -> FloatArray:
        """Return a picture as in steady light, shape (height, width, 3), levels at least 0.

        A level of `cut_off` or more, of each colour, says nothing of the light.
        """
        levels = _levels(picture)
        if self._bright is None:
            waves = self._depth * np.exp(2j * np.pi * np.arange(96) / 96)
            wave = min([*waves, 0.0], key=lambda w: self._rough(levels, cut_off, w))
        else:
            scene = self._bright / self._weight
            waves, _, _ = _waves(levels[None], self._bands, scene, cut_off=cut_off)
            wave = (waves[0] * np.exp(-1j * self._lag_rad)).mean()
            wave *= self._depth / abs(wave) if abs(wave) > self._depth / 2.0 else 0.0
        gains = self._gains(len(levels), wave)
        tells = np.where(levels < cut_off, gains, 1e-3)
        before = 0.0 if self._bright is None else FORGETS * self._bright
        self._bright, self._weight = before + tells * levels, FORGETS * self._weight + tells * gains
        sure = gains.min(axis=1, keepdims=True) ** 2
        sure /= sure + NOISE_SHARE**2
        dim = (1.0 - sure) * self._bright / self._weight
        return np.asarray(picture * (sure / gains)[:, None] + dim[:, None])

    def _gains(self, height: int, wave: complex) -> FloatArray:
        """Return what a wave in the middle of the picture brightens each row by, (height, 3)."""
        waves = wave * _wave(height, self._bands)[:, None] * np.exp(1j * self._lag_rad)
        return np.asarray(np.maximum(1.0 + waves.real, 1e-3))

    def _rough(self, levels: FloatArray, cut_off: FloatArray, wave: complex) -> float:
        """Return how far rows lie off light that falls off smoothly, under these bands."""
        at, off = np.linspace(-1.0, 1.0, len(levels)), 0.0
        for colour, gains in enumerate(self._gains(len(levels), wave).T):
            tells = levels[:, colour] < cut_off[colour]
            smooth = (gains[:, None] * at[:, None] ** np.arange(3))[tells]
            level = levels[tells, colour]
            off += np.sum((smooth @ np.linalg.lstsq(smooth, level)[0] - level) ** 2)
        return float(off)


def _levels(picture: Image | FloatArray) -> FloatArray:
    """Return how bright the table is in each row, shape (height, 3)."""
    return np.asarray(np.percentile(picture, BRIGHT_PCT, axis=1), dtype=np.float64)


def _wave(height: int, bands: float) -> Waves:
    """Return a wave of so many bands over a picture's height, at each row, shape (height,)."""
    place = (np.arange(height) + 0.5) / height - 0.5
    return np.asarray(np.exp(2j * np.pi * bands * place))


def _waves(
    levels: FloatArray,
    bands: float,
    scene: FloatArray | None = None,
    turns: int = 4,
    cut_off: FloatArray | float = CUT_OFF,
) -> tuple[Waves, float, FloatArray]:
    """Return each picture's wave, what it leaves unexplained, and the scene without it.

    One lamp swings all pictures equally far, each from where it just was: without that, a part of
    the wave could as well be the scene's own shading.

    Args:
        levels: of rows, shape (n, height, 3).
        scene: without the wave, shape (height, 3); what the pictures have in common unless given.
        turns: how often scene and waves are fitted to each other.
        cut_off: levels from here on say nothing.

    Returns:
        Waves, as shares of the mean light, shape (n, 3); the mean square left [levels²]; the scene.
    """
    wave = _wave(levels.shape[1], bands)
    basis = np.stack([np.ones(len(wave)), wave.real, wave.imag], axis=1)
    tells = np.where(levels < cut_off, 1.0, 1e-6)
    common = levels.mean(axis=0) if scene is None else scene
    for turn in range(turns if scene is None else 1):
        shape = common.T[:, :, None] * basis
        masked = tells.transpose(0, 2, 1)[..., None] * shape
        right = (masked * levels.transpose(0, 2, 1)[..., None]).sum(axis=2)
        normal = masked.transpose(0, 1, 3, 2) @ shape + 1e-6 * np.eye(3)  # also of a black picture
        parts = np.linalg.solve(normal, right[..., None])[..., 0]
        bright = np.maximum(parts[..., 0], 1e-3)
        waves = (parts[..., 1] - 1j * parts[..., 2]) / bright
        if scene is None:
            far = np.abs(waves)
            waves *= (far.max() if turn < 2 else np.median(far)) / np.maximum(far, 1e-9)
        gains = bright[:, None] * (1.0 + np.real(waves[:, None] * wave[:, None]))
        if scene is None:
            common = (tells * gains * levels).sum(axis=0) / (tells * gains**2).sum(axis=0)
    off = tells * (levels - common * gains) ** 2
    return waves, float(off.sum() / tells.sum()), common


def _drift_hz(taken_s: FloatArray, waves: Waves) -> float:
    """Return how often a second bands pass a row, of waves one after another, shape (n,)."""
    step_s = float(np.median(np.diff(taken_s)))
    nearly = np.angle((waves[1:] * waves[:-1].conj()).sum()) / (2.0 * np.pi * step_s)
    ahead = np.exp(-2j * np.pi * nearly * (taken_s - taken_s[0]))
    rest = np.unwrap(np.angle(waves * ahead))
    return float(nearly + np.polyfit(taken_s, rest, 1)[0] / (2.0 * np.pi))
