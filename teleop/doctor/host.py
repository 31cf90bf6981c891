"""The machine itself: versions, real-time rights, governor, disk space, encoder, rendering."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from gaploop.teleop.doctor.finding import DoctorFinding, Level
from gaploop.teleop.realtime import realtime_rights

AREA: Final = "this machine"
PYTHON: Final = (3, 12)
LEROBOT: Final = ("0.6.1", "0.7")
"""Oldest LeRobot that works, and the first that isn't tried."""

JOURNAL_MB_PER_MIN: Final = 35.0
"""Two 640×480 cameras at 50 Hz (4.3 KiB a frame) and 200 Hz telemetry of 80 columns [MB/min]."""
LOW_DISK_GB: Final = 10.0
FULL_DISK_GB: Final = 1.0
RENDER_TIMEOUT_S: Final = 30.0

_RENDER: Final = "import mujoco; c = mujoco.GLContext(16, 16); c.make_current(); c.free()"


def look(journal: Path, codec: str, root: Path = Path("/")) -> list[DoctorFinding]:
    """Return what the machine itself offers.

    Args:
        journal: folder that takes would be written to; need not exist.
        codec: the encoder that recording uses, such as `h264`.
        root: where `/sys` is looked for.
    """
    return [
        python_version(),
        lerobot_version(),
        real_time(),
        *governor(root),
        disk(journal),
        encoder(codec),
        rendering(),
    ]


def python_version() -> DoctorFinding:
    """Return whether this Python is new enough."""
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= PYTHON:
        return DoctorFinding(AREA, "Python", Level.OK, found, data={"version": found})
    mend = "gaploop needs Python 3.12 or newer: make setup PYTHON=/path/to/python3.12"
    return DoctorFinding(AREA, "Python", Level.FAIL, found, mend, {"version": found})


def lerobot_version() -> DoctorFinding:
    """Return whether the LeRobot installed here is one that gaploop is tried with."""
    try:
        found = version("lerobot")
    except PackageNotFoundError:
        return DoctorFinding(AREA, "LeRobot", Level.FAIL, "not installed", "Run: make setup")
    low, high = LEROBOT
    fits = _numbers(low) <= _numbers(found) < _numbers(high)
    mend = "" if fits else f'Run: pip install "lerobot>={low},<{high}"'
    data = {"version": found}
    return DoctorFinding(AREA, "LeRobot", Level.OK if fits else Level.FAIL, found, mend, data)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


def real_time() -> DoctorFinding:
    """Return whether the control loop may have real-time scheduling, and how to grant it."""
    rights = realtime_rights()
    if rights.granted:
        return DoctorFinding(AREA, "real-time rights", Level.OK, "granted", data={"granted": True})
    found, _, mend = rights.hint.partition(": ")
    data = {"granted": False}
    return DoctorFinding(AREA, "real-time rights", Level.WARN, found, mend or rights.hint, data)


def governor(root: Path = Path("/")) -> list[DoctorFinding]:
    """Return how the processor's clock is governed; nothing where the system doesn't say."""
    files = sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))
    names = sorted({file.read_text().strip() for file in files})
    if not names:
        return []
    found, data = ", ".join(names), {"governors": names}
    if names == ["performance"]:
        return [DoctorFinding(AREA, "CPU governor", Level.OK, found, data=data)]
    mend = "A clock that idles makes turns late: sudo cpupower frequency-set -g performance"
    return [DoctorFinding(AREA, "CPU governor", Level.WARN, found, mend, data)]


def disk(journal: Path) -> DoctorFinding:
    """Return how much can be recorded to where `journal` lies."""
    folder = journal.absolute()
    while not folder.exists():
        folder = folder.parent
    free_gb = shutil.disk_usage(folder).free / 1e9
    minutes = free_gb * 1e3 / JOURNAL_MB_PER_MIN
    found = f"{free_gb:.0f} GB free in {folder}: about {minutes / 60:.0f} h of takes"
    data = {"free_gb": free_gb, "folder": str(folder)}
    if not os.access(folder, os.W_OK):
        mend = f"Choose another with --journal=DIR, or: sudo chown $USER {folder}"
        return DoctorFinding(
            AREA, "journal disk", Level.FAIL, f"{folder} can't be written", mend, data
        )
    level = Level.OK
    if free_gb < LOW_DISK_GB:
        level = Level.WARN if free_gb > FULL_DISK_GB else Level.FAIL
    mend = "" if level is Level.OK else "Make room, or name another folder with --journal=DIR."
    return DoctorFinding(AREA, "journal disk", level, found, mend, data)


def encoder(codec: str) -> DoctorFinding:
    """Return whether pictures can be encoded as recording does it."""
    import av
    from av.codec import Codec

    try:
        name = Codec(codec, "w").name
    except (av.error.FFmpegError, ValueError):
        mend = "Recording pictures needs it: pip install --force-reinstall av"
        return DoctorFinding(AREA, "video encoder", Level.FAIL, f"no encoder for {codec}", mend)
    return DoctorFinding(
        AREA, "video encoder", Level.OK, f"{codec} by {name}", data={"encoder": name}
    )


def rendering() -> DoctorFinding:
    """Return whether MuJoCo can draw here (for the embedded cell and the emulator's cameras)."""
    chosen = os.environ.get("MUJOCO_GL", "")
    run = [sys.executable, "-c", _RENDER]
    try:
        done = subprocess.run(run, capture_output=True, text=True, timeout=RENDER_TIMEOUT_S)
        works = done.returncode == 0
    except subprocess.TimeoutExpired:
        works = False
    data = {"mujoco_gl": chosen}
    if works:
        found = f"MUJOCO_GL={chosen}" if chosen else "MuJoCo's own choice"
        return DoctorFinding(AREA, "rendering", Level.OK, found, data=data)
    mend = (
        "Only simulated pictures need it: export MUJOCO_GL=egl and "
        "apt-get install libegl1 libgl1-mesa-dri, or MUJOCO_GL=osmesa"
    )
    return DoctorFinding(AREA, "rendering", Level.WARN, f"MUJOCO_GL='{chosen}' fails", mend, data)
