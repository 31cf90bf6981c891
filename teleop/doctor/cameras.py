"""Cameras that Linux offers: who may open them, what they give, how fast."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gaploop.teleop.doctor.finding import DoctorFinding, Level
from gaploop.teleop.doctor.ports import Access, holder, permission_mend

AREA: Final = "camera"
MEASURE_S: Final = 1.0
"""Pictures are counted for this long [s]."""
SLOW_SHARE: Final = 0.8
"""Fewer pictures than this share of what the camera promises is a warning."""


def look(root: Path = Path("/"), access: Access = os.access) -> list[DoctorFinding]:
    """Return what every camera gives; each is opened for about a second and closed again."""
    found = [f for device in _devices(root) for f in _look_at(device, root, access)]
    if found:
        return found
    mend = "Plug one in, or serve one over the network (LeRobot's camera type zmq)."
    return [DoctorFinding(AREA, "none", Level.OK, "no camera at this machine", data={"hint": mend})]


def _devices(root: Path) -> Iterator[Path]:
    """Yield the nodes that give pictures; the others of the same camera give its metadata."""
    for node in sorted(root.glob("sys/class/video4linux/video*"), key=_number):
        index = node / "index"
        if not index.exists() or index.read_text().strip() == "0":
            yield node


def _number(node: Path) -> int:
    digits = node.name.removeprefix("video")
    return int(digits) if digits.isdigit() else 0


def _look_at(node: Path, root: Path, access: Access) -> Iterator[DoctorFinding]:
    device = root / "dev" / node.name
    name = _read(node / "name") or node.name
    if not device.exists():
        yield DoctorFinding(
            AREA, str(device), Level.FAIL, f"{name}: no such device", "Plug it in again."
        )
        return
    if not access(str(device), os.R_OK | os.W_OK):
        mend = permission_mend(str(device), device.stat().st_gid)
        yield DoctorFinding(AREA, str(device), Level.FAIL, f"{name}: no permission", mend)
        return
    held = holder(str(device), root)
    if held is not None:
        found, mend = f"{name}: held by {held[1]} (process {held[0]})", f"Stop it: kill {held[0]}"
        yield DoctorFinding(AREA, str(device), Level.FAIL, found, mend)
        return
    yield _measured(str(device), name)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _measured(device: str, name: str) -> DoctorFinding:
    import cv2

    video = cv2.VideoCapture(device, cv2.CAP_V4L2)
    try:
        ok, picture = video.read()
        if not ok:
            mend = "Plug it into another USB port (two cameras on one hub may be too much)."
            return DoctorFinding(
                AREA, device, Level.FAIL, f"{name}: opens but gives no picture", mend
            )
        promised_hz = float(video.get(cv2.CAP_PROP_FPS))
        measured_hz = _rate_hz(video)
    finally:
        video.release()
    height, width = picture.shape[:2]
    data = {"width": width, "height": height, "fps": promised_hz, "measured_fps": measured_hz}
    found = f"{name}: {width}×{height}, {measured_hz:.1f} of {promised_hz:.0f} pictures/s"
    if measured_hz >= SLOW_SHARE * promised_hz:
        return DoctorFinding(AREA, device, Level.OK, found, data=data)
    mend = "More light (long exposures slow a camera down), or another USB port."
    return DoctorFinding(AREA, device, Level.WARN, found, mend, data)


def _rate_hz(video: Any) -> float:
    start_s = time.monotonic()
    count = 0
    while time.monotonic() - start_s < MEASURE_S:
        count += int(video.grab())
    return count / (time.monotonic() - start_s)
