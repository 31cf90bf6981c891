"""Signals of the camera: light, colour, sharpness, pose, blobs, hands. One decode per take."""

from __future__ import annotations

import numpy as np

from gaploop.failure_analysis.signals.registry import signal
from gaploop.failure_analysis.views.view import TakeView

NAN = float("nan")


def _photometry(view: TakeView, key: str) -> float:
    return view.pictures.photometry.get(key, NAN) if view.pictures else NAN


def _pose(view: TakeView, key: str) -> float:
    return view.pictures.pose.get(key, NAN) if view.pictures else NAN


def _scene(view: TakeView, key: str) -> float:
    return view.pictures.scene.get(key, NAN) if view.pictures else NAN


@signal("brightness", "", "images", 4.0, "the picture's median grey is {value} of 255")
def brightness(view: TakeView) -> float:
    """Median grey level of the pictures, 0 to 255."""
    return _photometry(view, "brightness")


@signal("contrast", "", "images", 2.0, "grey levels spread by {value}")
def contrast(view: TakeView) -> float:
    """Standard deviation of the grey levels."""
    return _photometry(view, "contrast")


@signal("saturation", "", "images", 5.0, "the median saturation is {value} of 255")
def saturation(view: TakeView) -> float:
    """Median HSV saturation, 0 to 255."""
    return _photometry(view, "saturation")


@signal("cast_red", "", "images", 0.02, "red stands at {value} (log) to green")
def cast_red(view: TakeView) -> float:
    """Log ratio of the medians of red and green: the colour cast along red."""
    return _photometry(view, "cast_red")


@signal("cast_blue", "", "images", 0.03, "blue stands at {value} (log) to green")
def cast_blue(view: TakeView) -> float:
    """Log ratio of the medians of blue and green: the colour cast along blue."""
    return _photometry(view, "cast_blue")


@signal("sharpness", "", "images", 0.06, "edges are {value} times as strong as the contrast")
def sharpness(view: TakeView) -> float:
    """99th percentile of the absolute Laplacian over the contrast, after light smoothing."""
    return _photometry(view, "sharpness")


@signal("corner_light", "", "images", 0.03, "corners are {value} times as bright as the middle")
def corner_light(view: TakeView) -> float:
    """Median grey of the corners over that of the middle: vignetting."""
    return _photometry(view, "corners")


@signal("pixel_noise", "", "images", 0.6, "still pixels vary by {value} grey levels")
def pixel_noise(view: TakeView) -> float:
    """Noise of one pixel, from what changes between pictures in still places."""
    return _photometry(view, "noise")


@signal("clipped_share", "share", "images", 0.005, "{value} of the picture is black or white")
def clipped_share(view: TakeView) -> float:
    """Share of the pixels whose grey level is at most 3 or at least 252: wrong exposure."""
    return _photometry(view, "clipped")


@signal("light_swing_stops", "stops", "images", 0.03, "the light changes by {value} in the take")
def light_swing_stops(view: TakeView) -> float:
    """Spread (5th to 95th percentile) of the pictures' median grey over the take, base 2 log.

    Flicker, clouds, a person's shadow, an exposure that regulates.
    """
    return _photometry(view, "swing_stops")


@signal("camera_shift_px", "px", "images", 0.5, "the background stands {value} from its place")
def camera_shift_px(view: TakeView) -> float:
    """Shift of the picture's middle against the reference background, in a 192 px picture."""
    return _pose(view, "shift_px")


@signal("camera_scale", "", "images", 0.004, "the background appears {value} times its size")
def camera_scale(view: TakeView) -> float:
    """Scale that lays the picture on the reference background; 1 is the usual distance."""
    return _pose(view, "scale")


@signal("camera_turn_rad", "rad", "images", 0.004, "the background is turned by {value}")
def camera_turn_rad(view: TakeView) -> float:
    """Turn of the picture against the reference background."""
    return _pose(view, "turn_rad")


@signal("foreground_share", "share", "images", 0.0015, "{value} of the start picture is unknown")
def foreground_share(view: TakeView) -> float:
    """Share of the first picture that is neither background, object nor target."""
    return _scene(view, "foreground_share")


@signal("object_blobs", "", "images", 0.15, "the start picture holds {value} object-like blobs")
def object_blobs(view: TakeView) -> float:
    """Number of blobs of the object's hue in the first picture."""
    return _scene(view, "object_blobs")


@signal("object_area_ratio", "", "images", 0.008, "the object's area is {value} of the target's")
def object_area_ratio(view: TakeView) -> float:
    """Largest object-like blob's area over the target's, in the first picture."""
    return _scene(view, "object_area_px") / _scene(view, "target_area_px")


@signal("target_area_px", "px²", "images", 4.0, "the target covers {value}")
def target_area_px(view: TakeView) -> float:
    """Area of the target in the first picture, of a 192 px picture: how far the table is."""
    return _scene(view, "target_area_px")


@signal("object_aspect", "", "images", 0.06, "the object is {value} times as long as wide")
def object_aspect(view: TakeView) -> float:
    """Sides of the smallest rectangle around the object, long over short."""
    return _scene(view, "object_aspect")


@signal("object_fill", "", "images", 0.03, "the object fills {value} of its rectangle")
def object_fill(view: TakeView) -> float:
    """Area of the object over that of the smallest rectangle around it; a disc fills 0.79."""
    return _scene(view, "object_fill")


@signal("hand_share", "share", "images", 0.0015, "something skin-toned covers {value} of a picture")
def hand_share(view: TakeView) -> float:
    """Largest share of a picture that a new, skin-toned region covers."""
    return view.pictures.hand_share if view.pictures else NAN


@signal("picture_repeats", "share", "images", 0.05, "{value} of the pictures repeat")
def picture_repeats(view: TakeView) -> float:
    """Share of consecutive pictures that are the same picture."""
    return view.pictures.repeat_share if view.pictures else NAN


@signal("camera_age_s", "s", "scene", 0.02, "the camera's picture is up to {value} old")
def camera_age_s(view: TakeView) -> float:
    """95th percentile of the pictures' age when they were used, the oldest camera."""
    ages = [np.nanpercentile(a, 95) for a in view.take.frames.camera_age_s.values()
            if len(a) and np.isfinite(a).any()]  # fmt: skip
    return float(max(ages)) if ages else NAN
