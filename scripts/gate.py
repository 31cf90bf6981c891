"""`gaploop gate`: may a candidate policy replace the baseline? promote, reject or inconclusive."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

RARE: Final = ("outcomes", "reports", "seed", "station", "policy.format")
EXAMPLE: Final = """\
gaploop gate --baseline=base --candidate=adapted/adapter
gaploop gate --baseline=base --candidate=adapted/adapter --suite=suite.yaml --stage=sim --json
gaploop gate --baseline=base --candidate=adapted/adapter --suite=suite.yaml \\
    --command='gaploop rollout --policy.path={policy} --config_path=rig.yaml
    --dataset.root={out}/takes --dataset.num_episodes=1 --dataset.episode_time_s={timeout_s}'
gaploop gate --outcomes=outcomes.csv --json
gaploop gate --suite=help > suite.yaml
"""
POSITIONAL: Final = ("baseline", "candidate")


@dataclass
class GatePolicies:
    """How both policies compute."""

    format: str = ""
    """In the embedded cell: both compute in this number format, as of gaploop rollout; on a station
    --command says it."""


@dataclass
class GateConfig:
    """Decide whether a candidate policy may replace the baseline: promote, reject, inconclusive.

    Stages run in this order, each with its own rule: sim (nothing forgotten in simulation),
    hardware (blinded, interleaved comparison on the station), canary (a share of a fleet, with
    roll-back), full (all of it). Power is printed before the first attempt; the comparison may
    be inspected and stopped after any. Outcomes are kept as they come: the same command continues
    where it stopped. Without a suite both are tried on the embedded cell, which is sim-to-sim.
    """

    baseline: str = ""
    """The policy in use: a folder, a name on the Hub, or base; in a simulation of your own a
    script, module:name, too."""
    candidate: str = ""
    """The one that may replace it."""
    policy: GatePolicies = field(default_factory=GatePolicies)
    suite: Path | None = None
    """Tasks and rules; help prints one to start from. The embedded cell's unless given."""
    station: Path | None = None
    """Station file that defines what the suite's conditions may be; the embedded cell's unless
    given. Tasks with success_check: script and no check are judged by the success detector that
    was measured for it (docs/teleoperate/unattended.md)."""
    stage: str = "full"
    """Go as far as this stage: sim, hardware, canary or full."""
    command: str = ""
    """Runs one attempt on the station; {policy} {out} {instruction} {timeout_s} {scene}
    {speed_scale} are filled in. Without it, run whatever OUTPUT_DIR/now/policy points to."""
    reset: str = "person"
    """Who puts the scene back on a station: person, who is asked, or script or the folder of a
    policy, which --command, a gaploop rollout, is told."""
    outcomes: Path | None = None
    """Judge outcomes recorded elsewhere instead: CSV with columns policy (baseline or candidate),
    success, and task, pair, safety, phase (in which it failed) where known."""
    reports: Path | None = None
    """What the robots of a fleet report, a line of JSON per episode, in a file or a folder of such;
    for canary and full."""
    seed: int | None = None
    """Draws the order and the scenes; random unless given."""
    output_dir: Path | None = None
    """The gate's folder; outputs/gate/<id of the comparison> unless given."""
    json: bool = False
    """Print one JSON object."""
