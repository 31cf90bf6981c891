"""The command `gaploop doctor`: what must be well before an arm is used, and before a policy is."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.scripts import options

EXAMPLE: Final = """\
gaploop doctor
gaploop doctor ./follower ./leader --json | jq '.findings[] | select(.level == "fail")'
gaploop doctor --policy.path=adapted --robot.type=so101_follower --robot.port=/dev/ttyACM0 \\
    --robot.id=white --station=station.yaml --journal=runs_journal
gaploop doctor --env.scene=scene.yaml --env.pictures=looked_at
gaploop doctor --policy.path=me/smolvla --policy.device=cuda --policy.format=bf16
"""
POSITIONAL: Final = "port"
DEVICES: Final = {"robot": None}
RARE: Final = (*("policy.fps", "policy.threads", "policy.format", "measure", "env.*", "roles"),)


@dataclass
class SeenWorld(options.WorldOptions):
    """A scene of yours, to be looked at."""

    pictures: Path | None = None
    """Save a picture of each camera in this folder."""


@dataclass
class DoctorConfig:
    """Show what is wrong with machine, arms, cameras, or a policy here, and how to fix it.

    By itself it only reads, from this machine, its serial ports and the servos on them, cameras and
    calibrations; a port that another program holds is left alone. With --policy.path it times the
    policy's plans here. --env.scene and --env.gym look at a simulation of yours instead: what is
    found inside, whether joints move and resets hold, how often its demonstrator succeeds, which
    gaps can be injected. With --robot, too, it checks all that must hold before the policy may move
    that arm: each joint moves a few degrees, slowly and behind the safety filter, and somebody
    says which one moved. With --station, too, this run's figures are kept beside that file, and
    what changed since the runs before is told: run it each morning, two minutes. Keep clear of the
    arm; Ctrl-C lowers it, and the space bar stops it. Exit code 0 where nothing stands in the way,
    1 where something does or a question stayed unanswered.
    """

    port: list[Path] = field(default_factory=list)
    """Talk to these serial ports (or pseudo-terminals of gaploop emulate) only; all whose adapter
    is known to carry servos unless given."""
    robot: Any = None
    """The arm that is to be driven, as in lerobot-record, or so101_sim, the embedded cell."""
    env: SeenWorld = field(default_factory=SeenWorld)
    roles: Path | None = None
    """roles.yaml, with --env.gym: what in its model is arm, gripper, object, table, cameras."""
    policy: options.DrivingPolicy = field(default_factory=options.DrivingPolicy)
    move: bool = True
    """With --robot: move the joints and press the program's emergency stop. Without it neither is
    checked, and the answer is no."""
    measure: Path | None = None
    """With --robot: measure this arm in ten minutes, and write it here, with no name, number or
    path of yours: delay, play, gain, how far it goes on when stopped and drops when let go of,
    whether motors brake a fall, bus errors, age of pictures. Asks before one joint falls by 6°."""
    station: Path | None = None
    """station.yaml with the cell's limits; its calibration file lies beside it."""
    journal: Path | None = None
    """Folder that takes would be written to, for the space left there. With --policy.path and
    --robot the result goes there, into preflight.json, which gaploop rollout looks for."""
    json: bool = False
    """Print {"ok", "findings": [{"area", "name", "level", "by", "found", "mend", "data"}],
    "timing"}."""
