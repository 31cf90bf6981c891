"""`gaploop plan`: from a diagnosis to what to collect, or what to do instead."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gaploop.failure_analysis.planning.gains import Budget
from gaploop.scripts import options

RARE: Final = ("record_with",)
EXAMPLE = """\
gaploop plan --diagnosis=./diagnosis/diagnosis.json --budget.takes=50 --output_dir=./plan
gaploop plan ./diagnosis --budget.hours=4 --takes='[./rollouts]' --station=station.yaml
gaploop plan ./diagnosis --policy.path=base --twin=station_twin.yaml --output_dir=./plan
gaploop plan ./diagnosis --policy.path=base --twin=station_twin.yaml --try --output_dir=./plan
gaploop plan ./after_diagnosis --carried_out=./plan/plan.yaml
"""
POSITIONAL = "diagnosis"


@dataclass
class PlanConfig:
    """Turn a diagnosis into plan.yaml: how many episodes of what, or what to do instead.

    With the station's twin each remedy that a command carries out is priced beside collecting, and
    what brings most success for an operator's hour is chosen; its commands are in the plan and run
    as printed. Episodes go where the next one is expected to bring most success for its price, and
    stop where more aren't worth it. Where none of this helps, the plan names what to change,
    with a cheap test.
    """

    diagnosis: Path | None = None
    """A diagnosis.json of `gaploop diagnose`, or its folder."""
    budget: Budget = field(default_factory=Budget)
    takes: list[Path] = field(default_factory=list)
    """Journals or datasets: the diagnosed one shows under which conditions episodes failed, any of
    them how long episodes and resets are and how many attempts a good episode needs."""
    station: Path | None = None
    """station.yaml with costs and currency, grid and what can be set up."""
    policy: options.PolicyFolder = field(default_factory=lambda: options.PolicyFolder("base"))
    try_: bool = False
    """Carry the leading causes' command remedies out in the twin first, small, and choose by what
    they bring there: minutes of the machine for each. Ctrl-C loses the one that runs."""
    twin: Path | None = None
    """station_twin.yaml of gaploop identify: what differs there can be fixed in its simulation."""
    record_with: str = ""
    """How episodes are recorded at the station, such as '--robot.type=so101_follower
    --robot.port=/dev/ttyACM0 --teleop.type=so101_leader --teleop.port=/dev/ttyACM1'; in the twin
    of a gymnasium environment, who shows the task: '--policy.path=my_script:act'."""
    carried_out: Path | None = None
    """plan.yaml that was carried out before these rollouts: what it brought is kept in ledger.jsonl
    beside --station, --twin or the diagnosis's folder, and the station's next plans build on it."""
    json: bool = False
    """Print the plan as one JSON object on stdout."""
    output_dir: Path | None = None
    """Where to write; the diagnosis's folder by default."""
