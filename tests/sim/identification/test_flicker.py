"""A lamp's bands are told from whatever else changes between pictures, and taken out."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest

from gaploop.core.messages import FloatArray
from gaploop.sim.gaps import put_into
from gaploop.sim.identification.flicker import CUT_OFF, FLICKER, FlickerFilter, steadied
from gaploop.sim.identification.scene import CONFIDENCE, FINEST
from gaploop.sim.identification.stills import Still
from gaploop.sim.scene import SceneOptions, cell_appliers

HEIGHT, WIDTH, VIEWS, PICTURES, FRAME_S = 96, 72, 8, 8, 0.04

type Picture = FloatArray
type Light = Callable[[Picture, int, float], Picture]
"""A picture before and after, by the number of its view and when it was taken [s]."""


def views_in(light: Light, rng: np.random.Generator) -> list[Still]:
    """Return views of one bench in which an arm lies elsewhere each time."""
    grain = cv2.GaussianBlur(rng.uniform(70, 260, (HEIGHT, WIDTH, 3)), (0, 0), 5.0)
    views = []
    for number in range(VIEWS):
        scene = grain.copy()
        corner = rng.integers(0, WIDTH - 24)
        scene[int(rng.integers(20, 80)) :, corner : corner + 24] = 25.0
        taken_s = rng.uniform(0.0, 20.0) + FRAME_S * np.arange(PICTURES)
        lit = np.stack([light(scene, number, t_s) for t_s in taken_s])
        noisy = lit + rng.normal(0.0, 2.0, lit.shape)
        pictures = np.clip(noisy + 0.5, 0, 255).astype(np.uint8)
        views.append(Still(f"u{number}", "", np.zeros(6), pictures, taken_s))
    return views


def plain(scene: Picture, _view: int, _t_s: float) -> Picture:
    return scene


def lamp(values: dict[str, float], seed: int) -> Light:
    """Return what the mechanism does, with a phase of its own in every view."""

    def light(scene: Picture, view: int, t_s: float) -> Picture:
        on = cell_appliers(SceneOptions())
        put_into(on, (), {FLICKER: values})
        on.images.reset([seed, view])
        shown = np.clip(scene, 0, 255).astype(np.uint8)
        return on.images.picture(shown, np.random.default_rng(0), t_s).astype(np.float64)

    return light


def drawn(rng: np.random.Generator) -> dict[str, float]:
    return {
        "depth": rng.uniform(0.1, 0.8), "bands": rng.uniform(1.1, 4.0),
        "drift_hz": rng.uniform(-8.0, 8.0), "lag_rad": rng.uniform(-0.5, 0.5),
    }  # fmt: skip


def test_intervals_cover_what_the_lamp_does() -> None:
    covered = dict.fromkeys(("depth", "bands", "drift_hz", "lag_rad"), 0)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        truth = drawn(rng)
        _, found = steadied(views_in(lamp(truth, seed), rng), CONFIDENCE)
        for name, value in truth.items():
            estimate, half = found[name]
            covered[name] += abs(estimate - value) <= max(half, FINEST[f"{FLICKER}.{name}"])
    assert min(covered.values()) >= 5, covered


@pytest.mark.members(3)
@pytest.mark.parametrize("seed", range(12))
def test_a_lamp_that_is_known_is_taken_out_of_each_picture_as_it_comes(seed: int) -> None:
    """Of the first, too, before anything is known of the scene; and after another one's."""
    rng = np.random.default_rng(seed)
    values = drawn(rng)
    bands, far, was = FlickerFilter(values), list[float](), list[float]()
    for bench in range(2):
        bands.reset()
        for lit, dark in zip(
            views_in(plain, np.random.default_rng([seed, bench])),
            views_in(lamp(values, seed), np.random.default_rng([seed, bench])),
            strict=True,
        ):
            shown = bands(dark.pictures[0].astype(np.float64), np.full(3, CUT_OFF))
            seen = (lit.pictures[0] < CUT_OFF) & (dark.pictures[0] < CUT_OFF)
            far.append(float(np.abs(shown - lit.pictures[0])[seen].mean()))
            was.append(float(np.abs(dark.pictures[0] * 1.0 - lit.pictures[0])[seen].mean()))
    assert np.mean(far) < 0.25 * np.mean(was)
    assert max(far) < 0.5 * np.mean(was)


@pytest.mark.parametrize("level", [0.0, 100.0, 255.0])
@pytest.mark.parametrize("depth", [0.05, 1.0])
def test_whatever_a_picture_shows_something_comes_of_it(level: float, depth: float) -> None:
    bands = FlickerFilter({"depth": depth, "bands": 1.5})
    for _ in range(3):
        shown = bands(np.full((48, 32, 3), level), np.full(3, CUT_OFF))
        assert np.isfinite(shown).all()
        assert shown.min() >= 0.0


@pytest.mark.members(2)
@pytest.mark.parametrize("seed", range(4))
def test_by_daylight_the_bands_of_a_known_lamp_are_not_divided_by(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bands = FlickerFilter(drawn(rng) | {"depth": 0.5})
    for view in views_in(plain, rng):
        picture = view.pictures[0].astype(np.float64)
        assert np.abs(bands(picture, np.full(3, CUT_OFF)) - picture).mean() < 1.0


@pytest.mark.members(1)
@pytest.mark.parametrize("seed", range(3))
def test_without_flicker_the_scene_is_as_in_a_steady_light(seed: int) -> None:
    values = {"depth": 0.4, "bands": 1.7, "drift_hz": 0.3}
    bench, lit = (
        views_in(light, np.random.default_rng(seed)) for light in (plain, lamp(values, seed))
    )
    off = [
        np.median(np.abs(after.view.astype(float) - before.view))
        for before, after in zip(bench, steadied(lit, CONFIDENCE)[0], strict=True)
    ]
    assert np.median(off) < 4.0


def exposes_itself(scene: Picture, view: int, t_s: float) -> Picture:
    return scene * (0.6 + 0.1 * (view % 5) + 0.05 * np.sin(t_s))


def somebody_stands_there(scene: Picture, view: int, _t_s: float) -> Picture:
    edge = np.arange(HEIGHT)[:, None, None] < 15 * (view % 4)
    return np.where(edge, 0.6 * scene, scene)


STRONG = np.random.default_rng(5).uniform(-0.5, 0.5, (2, VIEWS))
DOWN = np.linspace(0.0, 1.0, HEIGHT)[:, None, None]


def day_comes(scene: Picture, view: int, _t_s: float) -> Picture:
    return scene * (1.0 + STRONG[0, view] * (2.0 * DOWN - 1.0))


def soft_shade(scene: Picture, view: int, _t_s: float) -> Picture:
    return scene * (1.0 - 0.5 * np.exp(-(((DOWN - 0.5 - 0.6 * STRONG[1, view]) / 0.25) ** 2)))


def between_two_lamps(scene: Picture, view: int, _t_s: float) -> Picture:
    return scene * (1.0 + 0.3 * np.sign(STRONG[0, view]) * np.sin(2.0 * np.pi * DOWN))


def is_black(scene: Picture, _view: int, _t_s: float) -> Picture:
    return 0.0 * scene - 99.0


def is_white(scene: Picture, _view: int, _t_s: float) -> Picture:
    return 0.0 * scene + 355.0


def tears(scene: Picture, view: int, t_s: float) -> Picture:
    rng = np.random.default_rng([view, int(1e3 * t_s)])
    first, shift = rng.integers(HEIGHT // 2), rng.integers(-20, 20)
    torn = scene.copy()
    torn[first : first + 30] = np.roll(torn[first : first + 30], shift, axis=1)
    return torn


@pytest.mark.members(6)
@pytest.mark.parametrize(
    "light", [plain, exposes_itself, somebody_stands_there, tears, is_black, is_white]
)
@pytest.mark.parametrize("seed", range(3))
def test_what_else_changes_is_no_flicker(light: Light, seed: int) -> None:
    views = views_in(light, np.random.default_rng(seed))
    after, found = steadied(views, CONFIDENCE)
    assert found == {"depth": (0.0, 0.0)}
    assert after == views


@pytest.mark.members(3)
@pytest.mark.parametrize("light", [day_comes, soft_shade, between_two_lamps])
@pytest.mark.parametrize("seed", range(3))
def test_shade_between_views_is_no_flicker(light: Light, seed: int) -> None:
    """Episodes of several days: shade that is nearly a wave over the picture doesn't roll."""
    views = views_in(light, np.random.default_rng(seed))
    after, found = steadied(views, CONFIDENCE)
    assert found in ({}, {"depth": (0.0, 0.0)})
    assert after == views


def rectified(turns: FloatArray) -> FloatArray:
    return 0.4 + 0.6 * np.abs(np.cos(np.pi * turns))


def switched(turns: FloatArray) -> FloatArray:
    return np.where(turns % 1.0 < 0.5, 1.0, 0.5)


@pytest.mark.members(2)
@pytest.mark.parametrize("wave", [rectified, switched])
@pytest.mark.parametrize("exposed", [0.05, 0.3])
def test_what_is_no_pure_wave_is_found_by_its_first(
    wave: Callable[[FloatArray], FloatArray], exposed: float
) -> None:
    """A tube's light is the mains' rectified, an LED's is switched, while rows are exposed."""
    rng = np.random.default_rng(7)

    def tube(scene: Picture, view: int, t_s: float) -> Picture:
        turns = 1.9 * np.arange(HEIGHT) / HEIGHT + 0.4 * t_s + 0.31 * view
        over = turns[:, None] + np.linspace(0.0, exposed, 9)
        return scene * wave(over).mean(axis=1)[:, None, None]

    _, found = steadied(views_in(tube, rng), CONFIDENCE)
    assert found["bands"][0] == pytest.approx(1.9, abs=0.05)
    assert found["drift_hz"][0] == pytest.approx(0.4, abs=0.05)


def test_too_few_views_tell_nothing() -> None:
    rng = np.random.default_rng(0)
    views = views_in(lamp(drawn(rng), 0), rng)[:3]
    assert steadied(views, CONFIDENCE) == (views, {})
