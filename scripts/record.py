"""`gaploop record`: episodes into a journal, published to a LeRobot dataset."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich import box
from rich.table import Table

from gaploop.collect.campaign import Campaign, Quota, require_consents, takes_now, words
from gaploop.collect.campaign import campaign as in_order
from gaploop.collect.lerobot_types import EMBEDDED, EXPERT, evidence_of, kind, session_station
from gaploop.collect.session_options import SessionOptions, check_session, go_on_with
from gaploop.core.errors import UnusableInputError
from gaploop.core.plan import load_plan
from gaploop.core.progress import loading, words_of_time
from gaploop.core.station import SIM_STATION, Station, load_station
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.scripts import options
from gaploop.scripts.cli import command
from gaploop.scripts.push import push_after
from gaploop.teleop.loop import Rates

if TYPE_CHECKING:
    from gaploop.collect.take import SessionEnd
    from gaploop.datasets.lerobot_publish import PublishReport

log = logging.getLogger(__name__)

RARE = (
    "dataset.private", "dataset.reset_time_s", "journal", "sensors", "auto_start",
    "display", "operator", "consent", "dataset.push_to_hub",
    "dataset.new_task", "dataset.fps", "status", "dataset.episode_time_s",
)  # fmt: skip
EXAMPLE: Final = """\
gaploop record --robot.type=so101_follower --robot.port=/dev/ttyACM0 --robot.id=white \\
    --robot.cameras='{top: {type: opencv, index_or_path: 0, width: 640, height: 480, fps: 30}}' \\
    --teleop.type=so101_leader --teleop.port=/dev/ttyACM1 --teleop.id=blue \\
    --dataset.repo_id=me/cube --dataset.root=cube --dataset.single_task="Put the cube on the disc"
gaploop record --robot.type=so101_sim --teleop.type=scripted --dataset.repo_id=me/cube \\
    --dataset.root=cube --dataset.num_episodes=20 --dataset.single_task="Put the cube on the disc"
"""

POSITIONAL: Final = ()
DEVICES: Final = {"robot": EMBEDDED, "teleop": EXPERT}


@dataclass
class RecordDataset(options.DatasetOptions):
    """Where episodes are published."""

    num_episodes: int = 20
    """Episodes to record in this session; failed demonstrations are kept and don't count."""
    episode_time_s: float | None = None
    """Longest time of one episode [s]; 60 unless given, 20 for the embedded cell's expert."""
    reset_time_s: float | None = None
    """Time for putting things back between two episodes [s]; a key ends it early. 60 unless given,
    5 in the embedded cell with its expert; nobody waits where it records by itself."""


@dataclass
class RecordConfig(SessionOptions):
    """Record episodes into a journal and publish them to a LeRobot dataset.

    Each episode is sealed before the next begins, so that a crash, a kill or Ctrl-C loses the open
    episode at most. `--dataset.num_episodes` asks for that many new episodes, as in lerobot-record;
    with `--resume` the episodes that the journal holds already count. `--plan` records what a plan
    asks for instead, in blocks so that no condition is recorded all at once, and always counts
    what it has already; `--status` shows how far it has come. Episodes with people in them need
    their consent: see gaploop consent --help. Episodes of a policy: gaploop rollout.

    With an arm, or where a person drives, the operator says in a window or terminal when an episode
    begins and how it went. The embedded cell with its expert records by itself.
    """

    dataset: RecordDataset = field(default_factory=RecordDataset)
    plan: Path | None = None
    """plan.yaml whose quotas to fill."""
    status: bool = False
    """Show how far the plan has come and what comes next, and record nothing."""
    resume: bool = False
    """Count the episodes that the journal holds already."""


@dataclass
class StatusConfig(RecordConfig):
    """With `--status`: no arm is needed, so that what a command says of one is left unread."""

    UNREAD: ClassVar[tuple[str, ...]] = ("robot", "teleop")


StatusConfig.__doc__ = RecordConfig.__doc__


def config_class_for(arguments: Sequence[str]) -> type | None:
    """Return the options where no arm is needed; None where they are as `DEVICES` says."""
    return StatusConfig if {"--status", "--status=true"} & set(arguments) else None


@dataclass(frozen=True)
class RecordResult:
    """What came of a session, as `end`, and where its episodes are.

    Attributes:
        plan: id of the plan that was followed, or "".
        evidence: what the episodes are evidence of, such as sim-to-sim.
        push: what became of `--dataset.push_to_hub`.
    """

    end: SessionEnd
    journal: Path
    root: Path
    reports: Sequence[PublishReport]
    evidence: str
    push: Mapping[str, Any] | None
    plan: str = ""
    campaign: Mapping[str, Any] | None = None

    @property
    def outcomes(self) -> dict[str, int]:
        """Outcome to the episodes that have it."""
        counts = {o.value: sum(take.outcome is o for take in self.end.takes) for o in Outcome}
        return {name: count for name, count in counts.items() if count}

    @property
    def words(self) -> str:
        """How many episodes ended how."""
        return ", ".join(f"{count} {name}" for name, count in self.outcomes.items()) or "none"

    @property
    def published(self) -> int:
        """How many episodes were published."""
        return sum(len(report.published) for report in self.reports)

    @property
    def withheld(self) -> dict[str, str]:
        """Take to why it isn't published."""
        return {uid: why for report in self.reports for uid, why in report.withheld.items()}

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        from gaploop.collect.session import video_figures

        end = self.end
        return {
            "journal": self.journal,
            "root": self.root,
            "plan": self.plan,
            "evidence": self.evidence,
            "takes": len(end.takes),
            "outcomes": self.outcomes,
            "counted": end.counted,
            "wanted": end.wanted,
            "published": self.published,
            "withheld": self.withheld,
            "campaign": self.campaign,
            "recovered": end.recovered,
            "reconnected": end.reconnected,
            "interrupted": end.interrupted,
            "gave_up": end.gave_up,
            "trip": end.trip,
            "uids": [take.uid for take in end.takes],
            "video": video_figures(end.takes),
            "push": self.push,
        }


def run(config: Any) -> int:
    """Record and publish; 1 where a quota was given up or a trip ended it, 128 + the signal."""
    if config.status:
        station = load_station(config.station) if config.station else SIM_STATION
        campaign = _request(config, station)[1]
        if campaign is None:
            raise UnusableInputError("--status of what? Name a plan with --plan=plan.yaml.")
        options.emit(config.json, campaign.as_json(), campaign_text(campaign))
        return 0
    if options.show_file(config.robot):
        return 0
    result = record(config)
    end = result.end
    text = f"{options.counted(len(end.takes), 'episode')} ({result.words}) in {result.journal}; "
    text += f"{result.published} published to {result.root}."
    if end.interrupted:
        text += " Stopped; go on with the same command and --resume."
    options.emit(config.json, result.as_json(), text)
    return 128 + end.signals[0] if end.signals else int(bool(end.gave_up or end.trip))


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
    quotas = tuple(in_order(plan))
    return quotas, Campaign(plan, quotas, journal, station), root, journal


@command
def record(config: Any) -> RecordResult:
    """Record episodes into a journal and publish them to a LeRobot dataset.

    Raises:
        UnusableInputError: options don't go together, or a consent is missing.
        DeviceError: a device can't be used.
    """
    with loading("gaploop record"):
        from gaploop.collect.session import Session, about_takes, chosen_interface

    is_cell = config.robot.type == EMBEDDED
    leads = kind(config.teleop)
    by_expert = is_cell and leads == EXPERT
    dataset = config.dataset
    if dataset.episode_time_s is None:
        dataset.episode_time_s = 20.0 if by_expert else 60.0
    if dataset.reset_time_s is None:
        dataset.reset_time_s = 5.0 if by_expert else 60.0
    check_session(config)
    if not is_cell and leads == EXPERT:
        raise UnusableInputError(
            f"--teleop.type={EXPERT} drives the embedded cell only. For an arm choose a leader "
            "with --teleop.type: so101_leader, keyboard, gamepad, motion, …"
        )
    station = session_station(config.robot, config.station)
    quotas, campaign, root, journal = _request(config, station)
    go_on_with(config, root, journal)
    always = getattr(config.robot, "conditions", {})
    set_ups = [replace(q, conditions={**always, **q.conditions}) for q in quotas]
    require_consents(set_ups, station, config.consent)
    interface = chosen_interface(config.display, leads)
    if campaign is not None:
        for item in campaign.plan.items:
            if not item.takes:
                what = f"{item.id} ({item.dimension.value})"
                log.info("%s: nothing to record; %s.", what, item.remedy)
        log.info("%s", campaign_text(campaign))
        quotas = tuple(takes_now(campaign, config.consent))
        needs_person = station.domain is Domain.REAL and not config.auto_start
        if needs_person and interface == "none":
            raise UnusableInputError(
                "--plan asks for set-ups that a person confirms with Enter, and stdin is no "
                "terminal. Run it in a terminal, or give --auto_start where something else sets "
                "the station up."
            )
    session = Session(
        config,
        station,
        leads=leads,
        rates=None if dataset.fps is None else Rates.near(dataset.fps),
        interface=interface,
    )
    end = session.record(
        about_takes(config, TakeKind.DEMONSTRATION),
        quotas,
        root,
        journal,
        resume=config.resume,
        progress=None if campaign is None else campaign.progress,
    )
    plan = None if campaign is None else campaign.plan
    evidence = evidence_of(config.robot, station, as_of_plan=bool(plan and plan.takes))
    push = push_after(dataset, root, end.signals)
    result = RecordResult(end, journal, root, session.published, evidence, push)
    if campaign is not None:
        result = replace(result, plan=campaign.plan.id, campaign=campaign.as_json())
    for line in end.gave_up:
        log.info("%s", line)
    if end.trip:
        log.error("%s", end.trip)
    if end.recovered:
        recovered = options.counted(end.recovered, "unsealed episode")
        log.info("%s in %s marked interrupted.", recovered, journal)
    for why, count in Counter(result.withheld.values()).items():
        log.info("%d not published: %s.", count, why)
    if campaign is not None:
        log.info("%s", campaign_text(campaign))
    return result


# -- a campaign in words -------------------------------------------------------------------------

_BAR: Final = 18


def campaign_text(campaign: Campaign) -> str:
    """Return a table with a bar for every set-up and band, what comes next, and the time left."""
    now, grid = campaign.progress(), campaign.station.grid
    rows: list[tuple[str, str, int, int]] = []
    for dimension, setups in now.by_dimension().items():
        if len(setups) > 1:
            have = sum(min(s.have, s.wanted) for s in setups)
            rows.append((dimension, "in all", have, sum(s.wanted for s in setups)))
        for n, setup in enumerate(setups, 1):
            name = dimension if len(setups) == 1 else f"  {n}"
            rows.append((name, words(setup.conditions, grid), setup.have, setup.wanted))
    if people := campaign.people():
        bands = people.progress()
        rows += [(p.kind.replace("_", " "), p.band, p.have, p.wanted) for p in bands]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, ratio in (("purpose", 2), ("set-up", 5), ("episodes", 1), ("", 2)):
        table.add_column(name, ratio=ratio, justify="right" if name == "episodes" else "left")
    for name, what, have, wanted in rows:
        done = min(_BAR, _BAR * have // max(1, wanted))
        table.add_row(name, what, f"{have}/{wanted}", "█" * done + "░" * (_BAR - done))
    text = f"{now.have} of {now.wanted} episodes."
    if not now.left:
        text += " The plan is filled."
    else:
        first, left = now.left[0], words_of_time(now.left_s)
        seen = options.counted(now.measured, "episode")
        basis = f"from {seen}" if now.measured else "assumed, before any episode"
        text += f" About {left} left ({basis})."
        text += (
            f"\nNext: {words(first.conditions, grid)}, {options.counted(first.takes, 'episode')}."
        )
    return "\n".join([*options.as_lines(table), text])
