"""`gaploop identify`: what differs at a station from the simulated cell, by its episodes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.scripts import options

POSITIONAL: Final = "roots"
RARE: Final = ("units", "pictures", "resume", "dry_run", "env.kwargs", "roles")
DEVICES: Final = {"robot": "so101_sim"}
EXAMPLE: Final = """\
gaploop identify ./station_check --measure --robot.type=so101_follower --robot.port=/dev/ttyACM0 \\
    --robot.cameras='{top: {type: opencv, index_or_path: 0, width: 480, height: 480, fps: 30}}' \\
    --robot.id=white --station=station.yaml --output_dir=./station
gaploop identify ./station_journal --output_dir=./station
gaploop identify monday tuesday --robot.model=my_arm.xml --env.scene=my.yaml --output_dir=./station
gaploop evaluate --policy.path=base --env.twin=./station/station_twin.yaml
"""


@dataclass
class IdentifyConfig:
    """Measure what differs at a station from the simulated cell, each value with an interval.

    Drives (delay, gain, friction, backlash and more) are fitted to goals and readings of any takes:
    telemetry where there is some, else LeRobot's action and observation.state. The arm is simulated
    on the goals alone; parameters are added one by one, as long as the episodes support it. Camera,
    light and object are measured in pictures in which the arm stands still; friction, mass and the
    like by what is felt of the object (embedded cell only). What the episodes
    can't show is listed as not excited.

    --measure records the most useful episodes first, in three minutes and without a policy: the arm
    rests, shows itself in some poses, moves each joint slowly back and forth, then faster and
    faster, then in steps to either side, and closes the gripper on nothing. Then you put the
    object into the jaws and into two cells of the placement grid (Enter continues, s skips it).
    Begin with the arm in the middle of its workspace, the gripper above what lies on the table.
    Space is the emergency stop. A trip ends the part; Ctrl-C keeps what is done, and --resume
    does the rest. In the embedded cell all of it runs by itself. Nothing learns from these
    episodes.

    Writes station_twin.yaml, for --env.twin and --robot.twin, held_out.png with the curves, and
    run.json.
    """

    roots: list[Path] = field(default_factory=list)
    """Journals or datasets of one station."""
    output_dir: Path | None = None
    """Where to write; <first folder>_twin by default."""
    units: str = ""
    """Units of joints, for datasets without: degrees (the gripper from 0 to 100), radians or, with
    a model's file, normalized; unless given, taken from robot and values where these are clear."""
    pictures: bool = True
    """Measure camera, light and object from pictures, too; without, only the drives."""
    measure: bool = False
    """Record the episodes first, into the folder that is named: an episode for each part."""
    robot: Any = None
    """With --measure: the arm, with its cameras. Without: --robot.model, the MJCF file of any arm
    of position servos; beside --env.* the drives are fitted by it, and nothing is replayed."""
    dry_run: bool = False
    """With --measure: list the parts, their seconds and what they measure, and move nothing."""
    resume: bool = False
    """With --measure: do what was left out before."""
    station: Path | None = None
    """station.yaml with the station's name, limits and placement grid, the camera of the scene and
    the colours of object and target there; the episodes' name, the first camera, red and blue
    unless given."""
    env: options.WorldOptions = field(default_factory=options.WorldOptions)
    roles: Path | None = None
    """roles.yaml, with --env.gym (docs/start/my_simulation.md)."""
    json: bool = False
    """Print one JSON object."""


@dataclass
class Modelled:
    """The arm that episodes are of."""

    model: str = ""
    """so101, or the MJCF file of any arm of position servos; the arm of the cell with the
    episodes' joints unless given."""


@dataclass
class ReadConfig(IdentifyConfig):
    """Options where nothing is measured."""

    robot: Modelled = field(default_factory=Modelled)


def config_class_for(arguments: Sequence[str]) -> type | None:
    """Return the options where nothing is measured; None where they are as `DEVICES` says."""
    names = {argument.partition("=")[0] for argument in arguments}
    needs_arm = {"--measure", "--dry_run", "--help", "-h", "--config_path"} & names
    devices = {n for n in names if n.startswith("--robot.")} - {"--robot.model"}
    return None if needs_arm or devices else ReadConfig
