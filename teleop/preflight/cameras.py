"""Do the cameras give new pictures, in time, of something?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError
from gaploop.core.protocols import CameraSource
from gaploop.core.types import CameraFrame
from gaploop.teleop.preflight.item import By, Item, Result

NAME: Final = "cameras"
MEASURE_S: Final = 1.0
"""Each camera is watched this long [s]."""
LOOK_S: Final = 0.005
STALE_S: Final = 0.5
"""A take ends where a picture is older than this [s]."""
OLD_S: Final = 0.15
"""Pictures older than this make a policy late [s]."""
FLAT_GREY: Final = 2.0
"""Pictures whose grey levels spread less than this show nothing: a lens cap, a dead sensor."""


def check_cameras(cameras: Sequence[CameraSource], clock: Clock, is_real: bool) -> list[Item]:
    """Watch every camera for a second.

    Args:
        cameras: connected.
        clock: that capture times are on.
        is_real: they are real ones, whose pictures of a still scene differ by noise.
    """
    return [_watched(camera, clock, is_real) for camera in cameras]


def _watched(camera: CameraSource, clock: Clock, is_real: bool) -> Item:
    ages_s: list[float] = []
    seen: list[CameraFrame] = []
    try:
        camera.frame()  # what is set up for the first picture doesn't count
        clock.sleep_until(clock.now_s() + LOOK_S)
        start_s = now_s = clock.now_s()
        while now_s - start_s < MEASURE_S:
            frame = camera.frame()
            ages_s.append(clock.now_s() - frame.t_capture_s)
            if not seen or frame.t_capture_s > seen[-1].t_capture_s:
                seen.append(frame)
            clock.sleep_until(now_s + LOOK_S)
            now_s = clock.now_s()
    except DeviceError as error:
        return Item(NAME, Result.FAIL, By.MACHINE, str(error), "Run: gaploop doctor")
    return _judged(camera.name, ages_s, seen, (len(seen) - 1) / (now_s - start_s), is_real)


def _judged(
    name: str, ages_s: list[float], seen: list[CameraFrame], rate_hz: float, is_real: bool
) -> Item:
    oldest_s = float(np.percentile(ages_s, 99))
    height, width = seen[-1].image.shape[:2]
    data = {"camera": name, "rate_hz": rate_hz, "age_p99_s": oldest_s, "size": [width, height]}
    words = (
        f"{name}: {width}x{height}, {rate_hz:.0f} pictures/s, at most {oldest_s * 1e3:.0f} ms old"
    )
    why, mend = "", ""
    if rate_hz == 0 or oldest_s > STALE_S:
        why, mend = "it is stale", "Plug it in again, or see gaploop doctor."
    elif float(np.std(seen[-1].image)) < FLAT_GREY:
        why, mend = "the picture shows nothing", "Take the cap off; switch the light on."
    elif (
        is_real and len(seen) > 1 and all(np.array_equal(f.image, seen[0].image) for f in seen[1:])
    ):
        why, mend = "every picture is the same to the last bit", "Connect it anew: it hangs."
    if why:
        return Item(NAME, Result.FAIL, By.MACHINE, f"{words}; {why}", mend, data)
    if oldest_s > OLD_S:
        mend = "Fewer cameras on one USB hub, a lower resolution, or more light."
        return Item(NAME, Result.WARN, By.MACHINE, words, mend, data)
    return Item(NAME, Result.OK, By.MACHINE, words, data=data)
