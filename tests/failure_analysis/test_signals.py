"""Planted faults are found in the right unit, and what can't be seen is said."""

from __future__ import annotations

import math

import numpy as np
import pytest
from failure_analysis_makers import RATE_HZ, commands, repeated, scene_picture, take, wrench

from gaploop.failure_analysis.signals.registry import SOURCES, measure, registry
from gaploop.failure_analysis.views.pictures import background_of, picture_of, picture_png
from gaploop.failure_analysis.views.registration import register
from gaploop.failure_analysis.views.view import TakeView


def test_every_signal_says_what_it_is() -> None:
    for name, spec in registry().items():
        assert spec.name == name
        assert spec.source in SOURCES
        assert spec.doc, name
        assert "{value}" in spec.sentence, name
        assert spec.floor > 0, name


@pytest.mark.members(2)
@pytest.mark.parametrize("lag_s", [0.0, 0.05, 0.20, 0.40])
def test_a_planted_lag_is_found_in_seconds(lag_s: float) -> None:
    measured = measure(TakeView(take(lag_s=lag_s)))
    assert measured["lag_s"] == pytest.approx(lag_s, abs=0.6 / RATE_HZ)


@pytest.mark.parametrize("noise_rad", [0.005, 0.02])
def test_planted_noise_is_found_in_radians(noise_rad: float) -> None:
    measured = measure(TakeView(take(noise_rad=noise_rad)))
    assert measured["jitter_rad"] == pytest.approx(noise_rad, rel=0.25)


@pytest.mark.parametrize("offset_rad", [0.02, -0.06])
def test_a_planted_offset_is_found_in_radians(offset_rad: float) -> None:
    measured = measure(TakeView(take(offset_rad=offset_rad)))
    assert measured["rest_offset_rad"] == pytest.approx(abs(offset_rad), abs=0.002)


def test_the_step_of_the_readings_is_found() -> None:
    measured = measure(TakeView(take(quantum_rad=0.01)))
    assert measured["quantum_rad"] == pytest.approx(0.01, rel=0.05)


def test_a_speed_limit_shows_as_a_share_of_the_commanded_speed() -> None:
    sent = commands()
    slow = sent.copy()
    for k in range(1, len(sent)):
        slow[k] = slow[k - 1] + np.clip(sent[k] - slow[k - 1], -0.004, 0.004)
    made = take(sent=sent, extra={f"follower.{name}.position_rad": slow[:, j] for j, name in
                                  enumerate(("shoulder_pan", "shoulder_lift", "elbow_flex",
                                             "wrist_flex", "wrist_roll", "gripper"))})  # fmt: skip
    assert measure(TakeView(made))["speed_gain"] < 0.7


def test_what_stops_the_jaws_is_measured() -> None:
    assert measure(TakeView(take(hold_rad=0.25)))["grip_short_rad"] == pytest.approx(0.25, abs=0.01)
    assert math.isnan(measure(TakeView(take(hold_rad=0.0)))["grip_short_rad"])


def test_missing_channels_are_nan_and_said() -> None:
    measured = measure(TakeView(wrench(np.zeros(15))))
    assert math.isnan(measured["lag_s"])
    assert math.isnan(measured["brightness"])
    assert "motion" in measured.unseen
    assert "images" in measured.unseen
    assert measured["force_peak_n"] < 10


def test_readings_of_nan_do_not_crash() -> None:
    made = take()
    columns = {k: v.copy() for k, v in made.telemetry.columns.items()}
    for name in columns:
        if name.endswith("position_rad"):
            columns[name][::3] = np.nan
    measured = measure(TakeView(take(extra=columns)))
    assert measured["dropout_share"] == pytest.approx(1 / 3, abs=0.01)
    blank = {k: np.full(len(made.telemetry), np.nan) for k in columns}
    assert math.isfinite(measure(TakeView(take(extra=blank)))["lag_s"])  # the frames tell it then


@pytest.mark.parametrize("shift_px", [(4, 0), (-6, 5), (0, 0)])
def test_a_moved_camera_is_found_in_pixels(shift_px: tuple[int, int]) -> None:
    background = background_of([scene_picture(object_px=10 + k) for k in range(5)])
    view = TakeView(take(pictures=repeated(scene_picture(shift_px=shift_px))), background)
    assert measure(view)["camera_shift_px"] == pytest.approx(np.hypot(*shift_px), abs=0.8)


def test_light_does_not_look_like_a_moved_camera() -> None:
    background = background_of([scene_picture(object_px=10 + k) for k in range(5)])
    dim = measure(TakeView(take(pictures=repeated(scene_picture(gain=0.7))), background))
    assert dim["camera_shift_px"] < 0.8
    assert (
        dim["brightness"]
        < 0.8 * measure(TakeView(take(pictures=repeated(scene_picture()))))["brightness"]
    )


def test_blobs_are_counted_and_their_size_compared() -> None:
    three = measure(TakeView(take(pictures=repeated(scene_picture(blobs=3)))))
    large = measure(TakeView(take(pictures=repeated(scene_picture(object_px=24)))))
    usual = measure(TakeView(take(pictures=repeated(scene_picture(object_px=12)))))
    assert three["object_blobs"] == 3
    assert large["object_area_ratio"] == pytest.approx(4 * usual["object_area_ratio"], rel=0.25)


def test_a_background_survives_its_file() -> None:
    background = background_of([scene_picture(object_px=10 + k) for k in range(5)])
    assert background is not None
    assert np.array_equal(picture_of(picture_png(background)), background)


def test_registration_finds_scale_and_turn() -> None:
    import cv2

    rng = np.random.default_rng(0)
    fixed = cv2.GaussianBlur(rng.normal(0, 1, (96, 96)).astype(np.float32), (0, 0), 3)
    fixed /= fixed.std()
    matrix = cv2.getRotationMatrix2D((47.5, 47.5), 3.0, 1.04)
    moving = cv2.warpAffine(fixed, matrix, (96, 96), borderMode=cv2.BORDER_REFLECT)
    found = register(fixed, np.asarray(moving, np.float32), np.ones((96, 96), np.float32))
    assert found.scale == pytest.approx(1.04, abs=0.01)
    assert abs(found.turn_rad) == pytest.approx(np.radians(3.0), abs=0.01)
    assert found.match > 0.95
