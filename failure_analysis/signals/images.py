"""Signals of pictures: light, blobs, hands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from gaploop.failure_analysis.signals.registry import known, signal
from gaploop.failure_analysis.views.view import TakeView

_READ: Final = (
    ("brightness", "", 4.0, "the picture's median grey is {value} of 255",
     "brightness", "Median grey level of the pictures, 0 to 255."),
    ("saturation", "", 5.0, "the median saturation is {value} of 255",
     "saturation", "Median HSV saturation, 0 to 255."),
    ("cast_red", "", 0.02, "red stands at {value} (log) to green",
     "cast_red", "Log ratio of the medians of red and green: the colour cast along red."),
    ("cast_blue", "", 0.03, "blue stands at {value} (log) to green",
     "cast_blue", "Log ratio of the medians of blue and green: the colour cast along blue."),
    ("sharpness", "", 0.06, "edges are {value} times as strong as the contrast", "sharpness",
     "99th percentile of the absolute Laplacian over the contrast, after light smoothing."),
    ("corner_light", "", 0.03, "corners are {value} times as bright as the middle",
     "corners", "Median grey of the corners over that of the middle: vignetting."),
    ("pixel_noise", "", 0.6, "still pixels vary by {value} grey levels",
     "noise", "Noise of one pixel, from what changes between pictures in still places."),
    ("light_swing_stops", "stops", 0.03, "the light changes by {value} in it", "swing_stops",
     "Spread (5th to 95th percentile) of the pictures' median grey over the episode, base 2 log. "
     "Flicker, clouds, a person's shadow, an exposure that regulates."),
    ("camera_shift_px", "px", 0.5, "the background stands {value} from its place", "shift_px",
     "Shift of the picture's middle against the reference background, in a 192 px picture."),
    ("camera_scale", "", 0.004, "the background appears {value} times its size", "scale",
     "Scale that lays the picture on the reference background; 1 is the usual distance."),
    ("camera_turn_rad", "rad", 0.004, "the background is turned by {value}",
     "turn_rad", "Turn of the picture against the reference background."),
    ("foreground_share", "share", 0.0015, "{value} of the start picture is unknown",
     "foreground_share",
     "Share of the first picture that is neither background, object nor target."),
    ("object_blobs", "", 0.15, "the start picture holds {value} object-like blobs",
     "object_blobs", "Number of blobs of the object's hue in the first picture."),
    ("object_area_ratio", "", 0.008, "the object's area is {value} of the target's",
     "area_ratio", "Largest object-like blob's area over the target's, in the first picture."),
    ("target_area_px", "px²", 4.0, "the target covers {value}", "target_area_px",
     "Area of the target in the first picture, of a 192 px picture: how far the table is."),
    ("object_aspect", "", 0.06, "the object is {value} times as long as wide",
     "object_aspect", "Sides of the smallest rectangle around the object, long over short."),
    ("object_fill", "", 0.03, "the object fills {value} of its rectangle", "object_fill",
     "Area of the object over that of the smallest rectangle around it; a disc fills 0.79."),
    ("hand_share", "share", 0.0015, "something skin-toned covers {value} of a picture",
     "hand_share", "Largest share of a picture that a new, skin-toned region covers."),
)  # fmt: skip
"""Name, unit, floor, sentence, key in what pictures say, and doc, as of `registry.Signal`."""


def _reader(name: str, key: str, doc: str) -> Callable[[TakeView], float]:
    def read(view: TakeView) -> float:
        return known(view.pictures).values.get(key, np.nan)

    read.__name__, read.__doc__ = name, doc
    return read


for _name, _unit, _floor, _sentence, _key, _doc in _READ:
    signal(_unit, "images", _floor, _sentence)(_reader(_name, _key, _doc))


@signal("s", "scene", 0.02, "the camera's picture is up to {value} old")
def camera_age_s(view: TakeView) -> float:
    """95th percentile of the pictures' age when they were used, the oldest camera."""
    ages = [np.nanpercentile(a, 95) for a in view.take.frames.camera_age_s.values()
            if len(a) and np.isfinite(a).any()]  # fmt: skip
    return float(max(ages)) if ages else np.nan
