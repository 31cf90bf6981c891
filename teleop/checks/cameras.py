"""Cameras: who may open them, what they give, and whether their pictures are new and in time."""

import contextlib
import functools
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError
from gaploop.core.messages import CameraFrame
from gaploop.core.protocols import CameraSource, CountedCamera
from gaploop.teleop.checks import CheckResult, Level
from gaploop.teleop.checks.machine import Access
from gaploop.teleop.servos.port import Usb, permission_fix, port_holder

AREA: Final = "camera"
NAME: Final = "cameras"
MEASURE_S: Final = 1.0
"""Each camera is watched this long [s]."""
SLOW_SHARE: Final = 0.8
"""Fewer pictures than this share of what the camera promises is a warning."""
MORE_PICTURES: Final = (
    "More light (a long exposure slows a camera down), another USB port or hub, or MJPG "
    "(fourcc: MJPG)."
)
LOOK_S: Final = 0.005
STALE_S: Final = 0.5
"""An episode ends where a picture is older than this [s]."""
OLD_S: Final = 0.15
"""Pictures older than this make a policy late [s]."""
FROZEN_S: Final = 1.0
"""A picture that is the same to the last bit for this long, while the arm moves, is frozen [s]."""
FROZEN_RAD: Final = 0.1
"""… by so much, in any joint [rad]."""
FLAT_GREY: Final = 2.0
"""Pictures whose grey levels spread less than this show nothing: a lens cap, a dead sensor."""


def too_slow(camera: CountedCamera, rate_hz: float, fps: float) -> str:
    """Return what to say of a camera that gives `rate_hz` pictures a second where `fps` are asked.

    It is "" where it gives what it should: its own config may ask for fewer.
    """
    asked_hz = min(fps, camera.fps or fps)
    if not rate_hz < SLOW_SHARE * asked_hz:
        return ""
    return f"Camera {camera.name} gives {rate_hz:.0f} of {asked_hz:g} pictures a second"


# --- those that Linux offers -------------------------------------------------------------------


def check_devices(root: Path = Path("/"), access: Access = os.access) -> list[CheckResult]:
    """Return what every camera at this machine gives; each is opened for about a second.

    `root` holds /sys, /dev and /proc; `access` says what the user may open, as `os.access`.
    """
    results = []
    nodes = root.glob("sys/class/video4linux/video*")
    for node in sorted(nodes, key=lambda one: (len(one.name), one.name)):
        index = node / "index"
        if index.exists() and index.read_text().strip() != "0":
            continue  # it gives metadata
        device = str(root / "dev" / node.name)
        name = node.name
        with contextlib.suppress(OSError):
            name = (node / "name").read_text().strip() or name
        fail = functools.partial(CheckResult, AREA, Level.FAIL, subject=device)
        if not os.path.exists(device):
            results.append(fail(f"{name}: no such device", "Plug it in again."))
            continue
        if not access(device, os.R_OK | os.W_OK):
            fix = permission_fix(device, os.stat(device).st_gid)
            results.append(fail(f"{name}: no permission", fix))
            continue
        held = port_holder(device, root)
        if held is not None:
            found = f"{name}: held by {held[1]} (process {held[0]})"
            results.append(fail(found, f"Stop it: kill {held[0]}"))
            continue

        video = cv2.VideoCapture(device, cv2.CAP_V4L2)
        try:
            ok, picture = video.read()
            promised_hz = float(video.get(cv2.CAP_PROP_FPS))
            start_s, count, took_s = time.monotonic(), 0, 0.0
            while ok and took_s < MEASURE_S:
                count += int(video.grab())
                took_s = time.monotonic() - start_s
        finally:
            video.release()
        if not ok:
            fix = "Plug it into another USB port (two cameras on one hub may be too much)."
            results.append(fail(f"{name}: opens but gives no picture", fix))
            continue
        measured_hz = count / took_s
        height, width = picture.shape[:2]
        data = {"width": width, "height": height, "fps": promised_hz, "measured_fps": measured_hz}
        found = f"{name}: {width}×{height}, {measured_hz:.1f} of {promised_hz:.0f} pictures/s"
        level, fix = Level.OK, ""
        if measured_hz < SLOW_SHARE * promised_hz:
            level = Level.WARN
            fix = MORE_PICTURES
        results.append(CheckResult(AREA, level, found, fix, data, device))
    if results:
        return results
    fix = "Plug one in, or serve one over the network (LeRobot's camera type zmq)."
    none = "no camera at this machine"
    return [CheckResult(AREA, Level.OK, none, data={"hint": fix}, subject="none")]


def video_identity(index_or_path: object, root: Path = Path("/")) -> Usb | None:
    """Return what Linux knows of the USB camera at an index or path; None where nothing."""
    is_index = str(index_or_path).isdigit()
    name = f"video{index_or_path}" if is_index else Path(os.path.realpath(str(index_or_path))).name
    device = root / "sys/class/video4linux" / name / "device"
    try:
        found = Path(os.path.realpath(device, strict=True))
    except OSError:
        return None
    for folder in (found, *found.parents):
        if (folder / "idVendor").exists():
            break
    else:
        return None

    def told(what: str) -> str:
        with contextlib.suppress(OSError):
            return (folder / what).read_text().strip()
        return ""

    return Usb(f"{told('idVendor')}:{told('idProduct')}", told("serial"), folder.name)


# --- those that a policy sees with -------------------------------------------------------------


def check_pictures(
    cameras: Iterable[CameraSource], clock: Clock, is_real: bool
) -> Iterator[CheckResult]:
    """Watch every connected camera for a second: does it give new pictures, in time, of something?

    Capture times are on `clock`; real cameras' pictures of a still scene differ by noise.
    """
    for camera in cameras:
        ages_s: list[float] = []
        frames: list[CameraFrame] = []
        try:
            camera.frame()  # what is set up for the first picture doesn't count
            clock.sleep_until(clock.now_s() + LOOK_S)
            start_s = now_s = clock.now_s()
            while now_s - start_s < MEASURE_S:
                frame = camera.frame()
                ages_s.append(clock.now_s() - frame.t_capture_s)
                if not frames or frame.t_capture_s > frames[-1].t_capture_s:
                    frames.append(frame)
                clock.sleep_until(now_s + LOOK_S)
                now_s = clock.now_s()
        except DeviceError as error:
            yield CheckResult(NAME, Level.FAIL, str(error), "Run: gaploop doctor")
            continue
        rate_hz, oldest_s = (len(frames) - 1) / (now_s - start_s), float(np.percentile(ages_s, 99))
        last = frames[-1].image
        height, width = last.shape[:2]
        data = {
            "camera": camera.name,
            "rate_hz": rate_hz,
            "age_p99_s": oldest_s,
            "brightness": float(np.mean(last)),
            "size": [width, height],
        }
        found = f"{camera.name}: {width}x{height}, {rate_hz:.0f} pictures/s, "
        found += f"at most {oldest_s * 1e3:.0f} ms old"
        level, fix = Level.FAIL, ""
        if rate_hz == 0 or oldest_s > STALE_S:
            found, fix = f"{found}; it is stale", "Plug it in again, or see gaploop doctor."
        elif float(np.std(last)) < FLAT_GREY:
            found += "; the picture shows nothing"
            fix = "Take the cap off; switch the light on."
        elif is_real and all(np.array_equal(f.image, last) for f in frames):
            found += "; every picture is the same to the last bit"
            fix = "Connect it anew: it hangs."
        elif oldest_s > OLD_S:
            level = Level.WARN
            fix = "Fewer cameras on one USB hub, a lower resolution, or more light."
        else:
            level = Level.OK
        yield CheckResult(NAME, level, found, fix, data)
