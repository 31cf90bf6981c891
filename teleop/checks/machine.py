"""The machine itself, from its versions and rights to its disk, and its serial ports."""

import errno
import functools
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import av
from av.codec import Codec

from gaploop.core.clock import realtime_rights
from gaploop.teleop.checks import CheckResult, Level
from gaploop.teleop.servos.port import SUPERVISOR, permission_fix, port_holder

AREA: Final = "this machine"
PYTHON: Final = (3, 12)
LEROBOT: Final = ("0.6.1", "0.7")
"""Oldest LeRobot that works, and the first that isn't tried."""

JOURNAL_MB_PER_MIN: Final = 35.0
"""Two 640×480 cameras at 50 Hz (4.3 KiB a frame) and 200 Hz telemetry of 80 columns [MB/min]."""
LOW_DISK_GB: Final = 10.0
FULL_DISK_GB: Final = 1.0
LOW_MEMORY_GB: Final = 2.0
"""A session with two encoders and a policy of a few MB holds about 1 GB; less than this left, and
pictures may be lost where something else grows [GB]."""
LEAST_MEMORY_GB: Final = 0.5
RENDER_TIMEOUT_S: Final = 30.0

_RENDER: Final = "import mujoco; c = mujoco.GLContext(16, 16); c.make_current(); c.free()"


def check_machine(journal: Path, codec: str) -> list[CheckResult]:
    """Return what the machine offers for takes in `journal`, which need not exist, in `codec`."""
    return [
        check_python(),
        check_lerobot(),
        check_real_time(),
        *check_governor(),
        check_memory(),
        check_disk(journal),
        check_encoder(codec),
        check_rendering(),
    ]


def check_python() -> CheckResult:
    """Return whether this Python is new enough."""
    found = ".".join(map(str, sys.version_info[:3]))
    new = sys.version_info >= PYTHON
    fix = "" if new else "gaploop needs Python 3.12 or newer: make setup PYTHON=/path/to/python3.12"
    level = Level.OK if new else Level.FAIL
    return CheckResult(AREA, level, found, fix, {"version": found}, "Python")


def check_lerobot() -> CheckResult:
    """Return whether the LeRobot installed here is one that gaploop is tried with."""
    try:
        found = version("lerobot")
    except PackageNotFoundError:
        return CheckResult(AREA, Level.FAIL, "not installed", "Run: make setup", subject="LeRobot")
    low, high = LEROBOT
    oldest, here, untried = (
        tuple(int(part) for part in text.split(".")[:3] if part.isdigit())
        for text in (low, found, high)
    )
    fits = oldest <= here < untried
    fix = "" if fits else f'Run: pip install "lerobot>={low},<{high}"'
    level = Level.OK if fits else Level.FAIL
    return CheckResult(AREA, level, found, fix, {"version": found}, "LeRobot")


def check_real_time() -> CheckResult:
    """Return whether the control loop may have real-time scheduling, and how to grant it."""
    rights, name = realtime_rights(), "real-time rights"
    if rights.granted:
        return CheckResult(AREA, Level.OK, "granted", data={"granted": True}, subject=name)
    found, _, fix = rights.hint.partition(": ")
    return CheckResult(AREA, Level.WARN, found, fix or rights.hint, {"granted": False}, name)


def check_governor(root: Path = Path("/")) -> list[CheckResult]:
    """Return how the processor's clock is governed; nothing where the system doesn't say."""
    files = root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
    names = sorted({file.read_text().strip() for file in files})
    if not names:
        return []
    level, fix = Level.OK, ""
    if names != ["performance"]:
        level = Level.WARN
        fix = "A clock that idles makes turns late: sudo cpupower frequency-set -g performance"
    return [CheckResult(AREA, level, ", ".join(names), fix, {"governors": names}, "CPU governor")]


def check_memory(root: Path = Path("/")) -> CheckResult:
    """Return whether memory is left for a session; `root` holds /proc."""
    try:
        lines = (root / "proc" / "meminfo").read_text().splitlines()
    except OSError:
        lines = []
    pairs = (line.partition(":") for line in lines)
    kib = {name: int(rest.split()[0]) for name, _, rest in pairs if rest.split()}
    if "MemAvailable" not in kib:
        return CheckResult(AREA, Level.WARN, "not reported by this system", subject="memory")
    free_gb, whole_gb = (kib[key] * 1024 / 1e9 for key in ("MemAvailable", "MemTotal"))
    found = f"{free_gb:.1f} of {whole_gb:.1f} GB left"
    data = {"free_gb": free_gb, "total_gb": whole_gb}
    if free_gb >= LOW_MEMORY_GB:
        return CheckResult(AREA, Level.OK, found, data=data, subject="memory")
    level = Level.WARN if free_gb >= LEAST_MEMORY_GB else Level.FAIL
    return CheckResult(AREA, level, found, "End other programs.", data, "memory")


def check_disk(journal: Path) -> CheckResult:
    """Return how much can be recorded to where `journal` lies, which need not exist."""
    folder, name = journal.absolute(), "journal disk"
    while not folder.exists():
        folder = folder.parent
    free_gb = shutil.disk_usage(folder).free / 1e9
    minutes = free_gb * 1e3 / JOURNAL_MB_PER_MIN
    found = f"{free_gb:.0f} GB free in {folder}: about {minutes / 60:.0f} h of episodes"
    data = {"free_gb": free_gb, "folder": str(folder)}
    if not os.access(folder, os.W_OK):
        fix = f"Choose another with --journal=DIR, or: sudo chown $USER {folder}"
        return CheckResult(AREA, Level.FAIL, f"{folder} can't be written", fix, data, name)
    if free_gb >= LOW_DISK_GB:
        return CheckResult(AREA, Level.OK, found, data=data, subject=name)
    level = Level.WARN if free_gb > FULL_DISK_GB else Level.FAIL
    fix = "Make room, or name another folder with --journal=DIR."
    return CheckResult(AREA, level, found, fix, data, name)


def check_encoder(codec: str) -> CheckResult:
    """Return whether pictures can be encoded as recording does it."""
    name = "video encoder"
    try:
        encoder = Codec(codec, "w").name
    except (av.error.FFmpegError, ValueError):
        fix = "Recording pictures needs it: pip install --force-reinstall av"
        return CheckResult(AREA, Level.FAIL, f"no encoder for {codec}", fix, subject=name)
    data = {"encoder": encoder}
    return CheckResult(AREA, Level.OK, f"{codec} by {encoder}", data=data, subject=name)


def check_rendering() -> CheckResult:
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
        return CheckResult(AREA, Level.OK, found, data=data, subject="rendering")
    fix = (
        "Only simulated pictures need it: export MUJOCO_GL=egl and "
        "apt-get install libegl1 libgl1-mesa-dri, or MUJOCO_GL=osmesa"
    )
    found = f"MUJOCO_GL='{chosen}' fails"
    return CheckResult(AREA, Level.WARN, found, fix, data, "rendering")


PORT: Final = "serial port"

ADAPTERS: Final[dict[tuple[int, int], str]] = {
    (0x1A86, 0x55D3): "WCH CH343 (Waveshare / Feetech bus servo adapter)",
    (0x1A86, 0x7523): "WCH CH340",
    (0x1A86, 0x7522): "WCH CH340",
    (0x0403, 0x6014): "FTDI FT232H (ROBOTIS U2D2)",
    (0x0403, 0x6001): "FTDI FT232R",
    (0x10C4, 0xEA60): "Silicon Labs CP210x",
    (0x2F5D, 0x2202): "ROBOTIS OpenRB-150",
    (0xFFF1, 0xFF48): "ROBOTIS OpenCM 9.04",
}
"""USB vendor and product id of adapters that servo buses hang on (the makers' USB ids)."""

SLOW_LATENCY_MS: Final = 1
"""An FTDI adapter hands its bytes over after this long [ms]; Linux sets 16 unless told."""

type Access = Callable[[str, int], bool]


@dataclass(frozen=True)
class FoundPort:
    """One serial port; `stable` is its name that survives re-plugging, or empty."""

    path: str
    stable: str = ""
    adapter: str = ""
    is_servo_adapter: bool = False


def find_ports() -> list[FoundPort]:
    """Return the USB serial ports of this machine."""
    from serial.tools import list_ports

    names = {os.path.realpath(p): str(p) for p in Path("/dev/serial/by-id").glob("*")}
    ports = []
    for info in sorted(list_ports.comports(), key=lambda port: port.device):
        if info.vid is None:
            continue  # a port of the mainboard: no servo bus hangs there
        known = ADAPTERS.get((info.vid, info.pid), "")
        adapter = known or f"{info.description} ({info.vid:04x}:{info.pid:04x})"
        ports.append(FoundPort(info.device, names.get(info.device, ""), adapter, bool(known)))
    return ports


def no_port() -> CheckResult:
    """Return what is said where no serial port is found."""
    fix = "Plug in the arm's adapter and its power supply, or name a port: --port=./follower"
    return CheckResult(PORT, Level.WARN, "no USB serial port at this machine", fix, subject="none")


def check_port(
    port: FoundPort, root: Path = Path("/"), access: Access = os.access
) -> list[CheckResult]:
    """Return what stands in the way of using a port; it isn't opened.

    `root` holds /proc and /sys; `access` says what the user may open, as `os.access`.
    """
    path, fail = (
        Path(port.path),
        functools.partial(CheckResult, PORT, Level.FAIL, subject=port.path),
    )
    try:
        mode = path.stat()
    except OSError as error:
        if error.errno == errno.EACCES:
            return [fail("its folder can't be read", f"sudo chmod a+rx {path.parent}")]
        there = ", ".join(p.stable or p.path for p in find_ports()) or "none"
        found = "dangling link" if path.is_symlink() else "not found"
        return [fail(found, f"Plug it in, or choose one that is there: {there}")]
    if not stat.S_ISCHR(mode.st_mode):
        return [fail("not a serial port", "Name a serial port, such as /dev/ttyACM0.")]
    if not access(port.path, os.R_OK | os.W_OK):
        return [fail("no permission", permission_fix(port.path, mode.st_gid))]
    held = port_holder(port.path, root)
    if held is not None:
        pid, program = held
        found, fix = f"held by {program} (process {pid})", f"Stop that program, or: kill {pid}"
        if program == SUPERVISOR:
            fix = f"Wait: it lowers an arm. To have it let go of at once: kill -INT {pid}"
        return [fail(found, fix, {"holder_pid": pid, "holder": program})]
    real = Path(os.path.realpath(port.path))
    found = " ".join(filter(None, (port.adapter, port.stable))) or str(real)
    data = {"stable": port.stable, "adapter": port.adapter}
    results = [CheckResult(PORT, Level.OK, found, data=data, subject=port.path)]
    timer = root / "sys/bus/usb-serial/devices" / real.name / "latency_timer"
    try:
        wait_ms = int(timer.read_text())
    except (OSError, ValueError):
        return results
    level, found, fix = Level.OK, f"latency timer {wait_ms} ms", ""
    if wait_ms > SLOW_LATENCY_MS:
        level, fix = Level.WARN, f"echo 1 | sudo tee {timer}"
        found += ": every reply waits that long, 200 Hz can't be reached"
    waits = CheckResult(PORT, level, found, fix, {"latency_timer_ms": wait_ms}, real.name)
    return [*results, waits]


def check_modem_manager(root: Path = Path("/")) -> list[CheckResult]:
    """Return a warning where ModemManager runs: it talks to every new serial port for seconds."""
    for comm in (root / "proc").glob("[0-9]*/comm"):
        try:
            name = comm.read_text().strip()
        except OSError:
            continue
        if name == "ModemManager":
            found = "running: it talks to a bus for seconds after it is plugged in"
            fix = "sudo systemctl disable --now ModemManager"
            return [CheckResult(PORT, Level.WARN, found, fix, subject=name)]
    return []
