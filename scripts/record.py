"""`gaploop record`: takes into a journal, published to a LeRobot dataset."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gaploop.collect.campaign import Quota
from gaploop.collect.campaign import campaign as in_order
from gaploop.collect.lerobot_factory import EMBEDDED, EXPERT, evidence_of, session_station
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.core.errors import UnusableInputError
from gaploop.core.plan import load_plan
from gaploop.core.protocols import Follower
from gaploop.core.station import SIM_STATION, Station, load_station
from gaploop.core.vocabulary import TakeKind
from gaploop.scripts import options
from gaploop.scripts._arguments import all_types
from gaploop.scripts._campaign import Campaign, require_consents, takes_now
from gaploop.scripts._library import command
from gaploop.teleop.leaders.options import CartesianOptions, ForceOptions
from gaploop.teleop.loop import Rates

if TYPE_CHECKING:
    from gaploop.collect.devices import SharedDriver

log = logging.getLogger(__name__)

RARE = (
    "dataset.private", "dataset.tags", "dataset.reset_time_s", "journal", "yes", "sensors",
    "keys", "auto_start", "play_sounds", "cartesian.*", "consents", "reconnect_s", "seed",
    "publish_every",
)  # fmt: skip
EXAMPLE: Final = """\
gaploop record --robot.type=so101_follower --robot.port=/dev/ttyACM0 --robot.id=white \\
    --robot.cameras='{top: {type: opencv, index_or_path: 0, width: 640, height: 480, fps: 30}}' \\
    --teleop.type=so101_leader --teleop.port=/dev/ttyACM1 --teleop.id=blue \\
    --dataset.repo_id=me/cube --dataset.root=cube --dataset.single_task="Put the cube on the disc"
gaploop record --robot.type=so101_sim --teleop.type=scripted --dataset.repo_id=me/cube \\
    --dataset.root=cube --dataset.num_episodes=20 --dataset.single_task="Put the cube on the disc"
"""


@dataclass
class RobotOptions(options.StationCell):
    """The arm and its cell."""

    type: str = "so101_sim"
    """so101_sim, the embedded cell; or an arm that LeRobot knows, such as so101_follower."""
    task: str = "pick_place"
    """pick_place, pick_lift or stack_cube."""
    gaps: dict[str, float] = field(default_factory=dict)
    """Gap dimension to severity from 0 to 1, such as '{"contact_dynamics": 0.6}'."""
    gap_seed: int = 0
    """Draws mechanism and direction of each gap."""
    conditions: dict[str, Any] = field(default_factory=dict)
    """What is set up, such as '{"distractors": 4}'."""
    model: str = "so101"
    """so101_sim: the cell's arm, so101 or vx300s (a ViperX 300 S)."""


@dataclass
class TeleopOptions:
    """Who drives, where no policy does."""

    type: str = "scripted"
    """scripted, an expert that sees the embedded scene; or keyboard, gamepad, a leader arm."""


@dataclass
class RecordDataset(options.DatasetOptions):
    """Where takes are published."""

    num_episodes: int = 20
    """Takes to record in this session; failed demonstrations are kept and don't count."""
    episode_time_s: float = 10.0
    """Longest time of one take [s]."""
    reset_time_s: float = 5.0
    """Time for putting things back between two takes [s]; a key ends it early. Nobody waits
    where the embedded cell records by itself."""


@dataclass
class ArmDataset(RecordDataset):
    """Where takes are published; times as in lerobot-record."""

    episode_time_s: float = 60.0
    """Longest time of one take [s]."""
    reset_time_s: float = 60.0
    """Time for putting things back between two takes [s]; a key ends it early."""


@dataclass
class RecordConfig:
    """Record takes into a journal and publish them to a LeRobot dataset.

    Each take is sealed before the next begins, so that a crash, a kill or Ctrl-C loses the open
    take at most. `--dataset.num_episodes` asks for that many new takes, as in lerobot-record;
    with `--resume` the takes that the journal holds already count. `--plan` records what a plan
    asks for instead, in blocks so that no condition is recorded all at once, and always counts
    what it has already; `--status` shows how far it has come. Takes with people in them need
    their consent: see gaploop consent --help.

    With an arm, or where a person drives, the operator says in a window or terminal when a take
    begins and how it went. The embedded cell with its expert records by itself.
    """

    robot: RobotOptions = field(default_factory=RobotOptions)
    teleop: TeleopOptions = field(default_factory=TeleopOptions)
    policy: options.PolicyOptions = field(default_factory=options.PolicyOptions)
    dataset: RecordDataset = field(default_factory=RecordDataset)
    journal: Path | None = None
    """Folder of the takes; beside the dataset, as <dataset.root>_journal, unless given."""
    plan: Path | None = None
    """plan.yaml whose quotas to fill."""
    status: bool = False
    """Show how far the plan has come and what comes next, and record nothing."""
    yes: bool = False
    """Don't wait for Enter where a real station has to be set up for the plan."""
    station: Path | None = None
    """station.yaml with the cell's name, limits and conditions."""
    sensors: dict[str, Any] = field(default_factory=dict)
    """What else is recorded with an arm, at the control rate: name to
    '{port: /dev/ttyACM2, baud: 115200, channels: {fx_n: N, fy_n: N, fz_n: N}}', where lines of
    numbers arrive, or '{driver: "my_lab.tactile:Pad", options: {}}'."""
    display: str = "auto"
    """window, terminal or none; auto: a window if there is a display and a person is needed."""
    keys: dict[str, Any] = field(default_factory=dict)
    """Other keys, pedals or gamepad buttons, such as '{"success": "b", "next": "right pad:a"}'."""
    auto_start: bool = False
    """Begin each take when the reset is over, as lerobot-record does, not on a key."""
    play_sounds: bool = True
    """Tones when a take begins and ends, and when the arm trips."""
    consent: str = ""
    """Consent ids of the people who take part, such as c-k3v7q2mzna,c-p5xw7akq3d."""
    consents: Path | None = None
    """The consent register; see gaploop consent --help."""
    resume: bool = False
    """Count the takes that the journal holds already."""
    reconnect_s: float = 60.0
    """How long to wait for an arm that was lost, a camera or room on the disk, where nobody is
    there to end the session [s]."""
    seed: int = 0
    """Draws the scenes."""
    operator: str = ""
    """Who records."""
    publish_every: int = 10
    """Publish after this many takes, and at the end."""
    json: bool = False
    """Print one JSON object."""


def config_class_for(arguments: Sequence[str]) -> type:
    """Return the options: of LeRobot's devices only where one of them is asked for."""
    if {"--status", "--status=true"} & set(arguments):
        return StatusConfig
    chosen = all_types(arguments)
    if chosen.get("robot", EMBEDDED) == EMBEDDED and chosen.get("teleop", EXPERT) == EXPERT:
        return RecordConfig
    from gaploop.collect.lerobot_registry import with_devices

    return with_devices(RecordArmConfig, {"robot": EMBEDDED, "teleop": EXPERT})


@dataclass
class RecordArmConfig(RecordConfig):
    """With one of LeRobot's devices."""

    dataset: ArmDataset = field(default_factory=ArmDataset)
    cartesian: CartesianOptions = field(default_factory=CartesianOptions)
    force: ForceOptions = field(default_factory=ForceOptions)


@dataclass
class StatusConfig(RecordConfig):
    """With `--status`: no arm is needed, so that what a command says of one is left unread."""

    UNREAD: ClassVar[tuple[str, ...]] = ("robot", "teleop", "cartesian", "force")


RecordArmConfig.__doc__ = StatusConfig.__doc__ = RecordConfig.__doc__


@dataclass(frozen=True)
class RecordResult:
    """What came of a session; what `--json` prints.

    Attributes:
        plan: id of the plan that was followed, or "".
        evidence: what the takes are evidence of, such as sim-to-sim.
        counted: takes that count for what was asked for, of `wanted`.
        withheld: take to why it isn't published.
        recovered: takes of an earlier session that were found unsealed.
        gave_up: a line for each quota that was given up.
        trip: what tripped the safety filter and ended the session, or "".
        video: what the encoder couldn't do in time.
        push: what became of `--dataset.push_to_hub`.
    """

    journal: Path
    root: Path
    plan: str
    evidence: str
    takes: int
    outcomes: dict[str, int]
    counted: int
    wanted: int
    published: int
    withheld: dict[str, str]
    campaign: Mapping[str, Any] | None
    recovered: int
    reconnected: int
    interrupted: bool
    gave_up: Sequence[str]
    trip: str
    uids: list[str]
    video: dict[str, float]
    push: Mapping[str, Any] | None


def run(config: Any) -> int:
    """Record and publish; 1 where a quota was given up or a trip ended it, 128 + the signal."""
    if options.show_ranges(config.robot):
        return 0
    if config.status:
        station = load_station(config.station) if config.station else SIM_STATION
        campaign = _request(config, station)[1]
        if campaign is None:
            raise UnusableInputError("--status of what? Name a plan with --plan=plan.yaml.")
        options.emit(config.json, campaign.as_json(), campaign.as_text())
        return 0
    result, stopped = _recorded(config)
    words = ", ".join(f"{count} {name}" for name, count in result.outcomes.items()) or "none"
    text = f"{result.takes} takes ({words}) in {result.journal}; "
    text += f"{result.published} published to {result.root}."
    if result.interrupted:
        text += " Stopped; go on with the same command and --resume."
    options.emit(config.json, result, text)
    return 128 + stopped[0] if stopped else int(bool(result.gave_up or result.trip))


@command
def record(config: Any) -> RecordResult:
    """Record takes into a journal and publish them to a LeRobot dataset.

    Raises:
        UnusableInputError: options don't go together, or a consent is missing.
        DeviceError: a device can't be used.
    """
    return _recorded(config)[0]


def _request(
    config: Any, station: Station
) -> tuple[tuple[Quota, ...], Campaign | None, Path, Path]:
    """Return what is to be recorded at a station, into which dataset and journal."""
    root = config.dataset.folder().absolute()
    journal = options.journal_beside(root, config.journal)
    # A station whose file names nothing that can be set up is asked for what the cell's plans name.
    names = station if station.conditions else replace(station, conditions=SIM_STATION.conditions)
    plan = load_plan(config.plan, names) if config.plan is not None else None
    if plan is None:
        return (Quota(config.dataset.num_episodes),), None, root, journal
    quotas = tuple(in_order(plan, config.seed))
    return quotas, Campaign(plan, quotas, journal, station, config.consents), root, journal


def _recorded(config: Any) -> tuple[RecordResult, list[int]]:
    """Record and publish; return what came of it, and the signals that stopped it."""
    from gaploop.scripts._sessions import (
        SessionJob,
        go_on_with,
        record_alone,
        session_figures,
        spec_of,
    )

    _check(config)
    station = session_station(config.robot, config.station)
    quotas, campaign, root, journal = _request(config, station)
    go_on_with(config, root, journal)
    always = getattr(config.robot, "conditions", {})
    asked = [replace(q, conditions={**always, **q.conditions}) for q in quotas]
    require_consents(asked, station, config.consent, config.consents)
    if campaign is not None:
        for item in campaign.plan.items:
            if not item.takes:
                what = f"{item.id} ({item.dimension.value})"
                log.info("%s: nothing to record; %s.", what, item.remedy)
        log.info("%s", campaign.as_text())
        quotas = tuple(takes_now(campaign, config.consent))

    kind, policy_id = TakeKind.DEMONSTRATION, ""
    shared: SharedDriver | None = None
    if config.policy.path:
        from gaploop.finetune import lerobot_policy

        policy = lerobot_policy.load_policy(config.policy.path, fps=config.policy.fps)
        config.dataset.fps = config.dataset.fps or policy.fps
        kind, policy_id = TakeKind.ROLLOUT, lerobot_policy.policy_id(config.policy.path)

        def drive(follower: Follower, rates: Rates, *_: object) -> PolicyLeader:
            return PolicyLeader(policy, follower, rates.fps, rates.control_hz)

        shared = drive

    spec = spec_of(config, journal, kind, policy_id, resume=config.resume)
    job = SessionJob(config, station, root, journal, quotas, spec, campaign, shared=shared)
    # Nobody is needed where the embedded cell records by itself.
    alone = config.teleop.type == EXPERT or config.policy.path
    if config.robot.type == EMBEDDED and alone and config.display not in ("window", "terminal"):
        from gaploop.collect.take import Attendant

        end, reports, stopped = record_alone(job, Attendant(config.reconnect_s), "Recording")
    else:
        from gaploop.scripts._attended import record_attended

        end, reports, stopped = record_attended(job)

    for line in end.gave_up:
        log.info("%s", line)
    if end.trip:
        log.error("%s", end.trip)
    if end.recovered:
        log.info("%d unsealed takes in %s are marked interrupted.", end.recovered, journal)
    withheld = {uid: why for report in reports for uid, why in report.withheld.items()}
    for why, count in Counter(withheld.values()).items():
        log.info("%d not published: %s.", count, why)
    if campaign is not None:
        log.info("%s", campaign.as_text())
    plan = None if campaign is None else campaign.plan
    result = RecordResult(
        **session_figures(job, end, reports, stopped),
        plan="" if plan is None else plan.id,
        evidence=evidence_of(config.robot, station, as_of_plan=bool(plan and plan.takes)),
        counted=end.counted,
        wanted=end.wanted,
        withheld=withheld,
        campaign=None if campaign is None else campaign.as_json(),
        interrupted=end.interrupted,
        gave_up=end.gave_up,
    )
    return result, stopped


def _check(config: Any) -> None:
    """Refuse options that don't fit each other, or values out of range."""
    from gaploop.scripts._sessions import check_session

    check_session(config)
    if config.robot.type != EMBEDDED and config.teleop.type == EXPERT:
        raise UnusableInputError(
            f"--teleop.type={EXPERT} drives the embedded cell only. For an arm choose a leader "
            "with --teleop.type: so101_leader, keyboard, gamepad, motion, …"
        )
    if config.policy.path and (config.robot.type != EMBEDDED or config.teleop.type != EXPERT):
        raise UnusableInputError(
            "--policy.path lets a policy drive the embedded cell. With an arm, or where a person "
            "can take over, use gaploop rollout."
        )
    if config.policy.path and config.plan is not None:
        raise UnusableInputError(
            "--plan asks for demonstrations and --policy.path for rollouts. Give one of the two."
        )
    if math.isinf(config.dataset.reset_time_s):
        raise UnusableInputError("--dataset.reset_time_s must be finite, got inf.")
