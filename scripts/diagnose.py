"""`gaploop diagnose`: what went wrong in a set of episodes, when, and why."""

from dataclasses import dataclass, field
from pathlib import Path

from gaploop.scripts import options

EXAMPLE = """\
gaploop diagnose ./rollouts --output_dir=./diagnosis
gaploop diagnose ./rollouts --policy.path=adapted --trained_on=./demonstrations
gaploop diagnose ./demonstrations --save_reference=adapted/cameras.npz
gaploop diagnose ./rollouts --twin=station_twin.yaml --policy.path=base
gaploop diagnose ./rollouts --factors
"""
RARE = (
    *("dataset.episodes", "pictures", "n", "sim", "workers", "save_reference"),
    *("units", "station", "trained_on"),
)


@dataclass
class DiagnoseConfig:
    """Show what went wrong in each failed episode, when, and why: mode, phase, gap dimensions.

    First what commands, readings and pictures of any robot show by themselves, without labels.
    And what all episodes show together: what each condition costs. With --twin
    the failures are reproduced in simulation, and the policy itself is a cause of its own. Reads
    images, telemetry and outcomes of a journal or dataset. Successful episodes in it, or those of
    --reference, are the reference. Writes diagnosis.json, report.html and run.json.
    """

    dataset: options.DatasetEpisodes = field(default_factory=options.DatasetEpisodes)
    reference: Path | None = None
    """What is usual: a reference file, or a folder of episodes that went well."""
    save_reference: Path | None = None
    """Write what is usual in these episodes to this file, and diagnose nothing. With a name that
    ends in .npz: what each camera shows in them; gaploop doctor finds cameras.npz beside the policy
    that learned from them."""
    station: Path | None = None
    """station.yaml that names the camera of the scene and the colours of object and target there;
    the first camera, red and blue unless given."""
    units: str = ""
    """Units of joints, for episodes without: degrees, radians, normalized (LeRobot's -100 to 100),
    or unknown to ignore joints. Unless given, taken from robot and values where these are clear.
    Noted in the dataset: once is enough."""
    pictures: bool = True
    """Use pictures; with false, only telemetry and the tracked scene."""
    policy: options.PolicyFolder = field(default_factory=options.PolicyFolder)
    trained_on: Path | None = None
    """Episodes that the policy learned from, to tell what has changed about the cameras, and, with
    --policy.path, where it leaves what it learned."""
    twin: Path | None = None
    """station_twin.yaml of gaploop identify: with --policy.path, roll the policy out in the nominal
    simulation and in the twin, mechanism by mechanism, and show what each costs; where that doesn't
    explain the failures, with every gap that nobody measured, too. Continues where it was
    stopped."""
    n: int = 40
    """With --twin: scenes, the same in every cell. Below 24 no hypotheses are rolled out."""
    workers: int = 2
    """With --twin: processes."""
    factors: bool = False
    """Only what the episodes say together: what each condition costs. Reads no signals. Exit code 3
    where nothing varies, so nothing can be compared."""
    sim: Path | None = None
    """With --factors: episodes in simulation, too; what the domain costs is the gap."""
    json: bool = False
    """Print the diagnosis as one JSON object on stdout."""
    output_dir: Path | None = None
    """Where to write; <DIR>_diagnosis by default, <DIR>_factors with --factors."""
