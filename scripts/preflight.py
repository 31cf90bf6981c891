"""The command `gaploop preflight`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.scripts import options

EXAMPLE: Final = """\
gaploop preflight --policy.path=adapted --robot.type=so101_follower --robot.port=/dev/ttyACM0 \\
    --robot.id=white --station=station.yaml --dataset.root=runs
gaploop preflight --policy.path=base --robot.type=so101_sim
"""

POSITIONAL: Final = ()
DEVICES: Final = {"robot": "so101_sim"}


@dataclass
class PreflightDataset:
    """Where the rollouts would go."""

    root: Path | None = None
    """Dataset of gaploop rollout; its journal lies beside it."""
    fps: float | None = None
    """Frames a second; the policy's own unless given [Hz]."""


@dataclass
class PreflightConfig:
    """Check everything that must hold before a policy may move an arm.

    What can be measured is: calibration, limits, whether the policy fits the arm, its latency
    here, memory, disk, cameras, the control loop, the emergency stop. Each joint moves a few
    degrees, slowly and behind the safety filter, and somebody says which one moved: swapped
    servo ids look right to every encoder. Keep clear of the arm; Ctrl-C lets go of it.

    Exit code 0 where nothing stands in the way, 1 where something does or a question stayed
    unanswered. What was found goes into preflight.json in the journal's folder, which gaploop
    rollout looks for.
    """

    policy: options.PolicyOptions = field(default_factory=options.PolicyOptions)
    robot: Any = None
    """The arm, as in lerobot-record, or so101_sim, the embedded cell."""
    dataset: PreflightDataset = field(default_factory=PreflightDataset)
    journal: Path | None = None
    """Folder of the takes; beside the dataset, as <dataset.root>_journal, unless given."""
    station: Path | None = None
    """station.yaml with the cell's limits; its calibration lies beside it."""
    calibration: Path | None = None
    """gaploop's calibration file, if it isn't the station's own."""
    speed_scale: float | None = None
    """As it will be given to gaploop rollout."""
    move: bool = True
    """Move the joints and press the program's emergency stop. Without it neither is checked,
    and the answer is no."""
    yes: bool = False
    """Answer yes where a person is asked; never where safety hangs on the answer."""
    output_dir: Path | None = None
    """Where preflight.json goes as well."""
    json: bool = False
    """Print {"ok", "policy", "robot", "items": [{"name", "result", "by", "found", "mend"}]}."""


def run(config: PreflightConfig) -> int:
    """Check, print, and say in the exit code whether the policy may drive."""
    from gaploop.scripts._preflight import preflight

    return preflight(config)
