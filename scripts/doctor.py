"""The command `gaploop doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.text import Text

from gaploop.scripts import options
from gaploop.teleop.checks.result import CheckResult, all_usable

EXAMPLE: Final = """\
gaploop doctor
gaploop doctor --port=/dev/ttyACM0 --port=/dev/ttyACM1
gaploop doctor ./follower ./leader --json | jq '.findings[] | select(.level == "fail")'
"""

POSITIONAL: Final = "port"

_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass
class DoctorConfig:
    """Show what is connected, what is wrong with it, and how to fix it.

    Checks this machine, its serial ports and the servos on them, cameras and calibrations. It
    only reads: nothing moves and no setting is changed. Without --port it talks to ports whose
    adapter is known to carry servo buses; a port that another program holds is left alone. Exit
    code 0 where all is well or could be better, 1 where something can't be used as it is.
    """

    port: list[Path] = field(default_factory=list)
    """Talk to these serial ports (or pseudo-terminals of gaploop emulate) only."""
    cameras: bool = True
    """Open every camera for about a second."""
    journal: Path = Path("recordings")
    """Folder that takes would be written to, for the space left there."""
    calibration_dir: Path | None = None
    """LeRobot's calibration folder, if it is not the usual one."""
    station: Path | None = None
    """station.yaml, whose calibration file is checked."""
    calibration: Path | None = None
    """gaploop's calibration file, if it isn't the station's own."""
    output_dir: Path | None = None
    """Where doctor.json goes, if it is to be kept."""
    json: bool = False
    """Print {"ok", "findings": [{"area", "name", "level", "found", "mend", "data"}]}."""


def run(config: DoctorConfig) -> int:
    """Look at everything; 1 if something can't be used as it is."""
    with options.progress("Looking") as advance:
        results = []
        for result in _look(config):
            results.append(result)
            advance()
    ok = all_usable(results)
    findings = [
        {
            "area": result.check,
            "name": result.subject,
            "level": result.level,
            "found": result.found,
            "mend": result.fix,
            "data": result.data,
        }
        for result in results
    ]
    answer = {"ok": ok, "findings": findings}
    options.keep(config.output_dir, "doctor.json", answer)
    options.emit(config.json, answer)
    if config.json:
        return int(not ok)
    # A line for each result, grouped by area, and its fix whole, to be copied.
    console, area = options.console(highlight=False), ""
    width = max(len(result.subject) for result in results)
    for result in results:
        if result.check != area:
            area = result.check
            console.print(Text(area, style="bold"))
        line = Text(f"  {result.level.value:<5}", style=_COLOURS[result.level])
        line.append(f"{result.subject:<{width}}  {result.found}", style="default")
        console.print(line, soft_wrap=True)
        if result.fix:
            console.print(Text(f"        → {result.fix}", style="cyan"), soft_wrap=True)
    return int(not ok)


def _look(config: DoctorConfig) -> Iterator[CheckResult]:
    from gaploop.collect.video_stream import CODEC
    from gaploop.teleop.calibration.store import calibration_path
    from gaploop.teleop.checks import calibrations, cameras, machine, ports, servos
    from gaploop.teleop.servos.calibration_files import arm_folder

    yield from machine.check_machine(config.journal, CODEC)
    yield from ports.check_modem_manager()
    found = [ports.FoundPort(str(path)) for path in config.port] or ports.find_ports()
    if not found:
        yield ports.no_port()
    folder = config.calibration_dir or arm_folder()
    talk_to = []
    for port in found:
        results = ports.check_port(port)
        yield from results
        if all_usable(results) and (config.port or port.is_servo_adapter):
            talk_to.append(port.path)
    for path in talk_to:
        yield from servos.check_servos(path, folder)
    if config.cameras:
        yield from cameras.check_devices()
    yield from calibrations.check_arm_files(folder)
    yield from calibrations.check_station_ages(calibration_path(config.station, config.calibration))
