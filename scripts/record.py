"""`gaploop record`: takes into a journal, published to a LeRobot dataset."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gaploop.collect.campaign import Quota
from gaploop.collect.campaign import campaign as in_order
from gaploop.collect.lerobot_factory import EMBEDDED, EXPERT, evidence_of, kind, session_station
from gaploop.collect.session_options import SessionOptions, check_session
from gaploop.core.errors import UnusableInputError
from gaploop.core.plan import load_plan
from gaploop.core.protocols import Suggest
from gaploop.core.station import SIM_STATION, Station, load_station
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.scripts import options
from gaploop.scripts._campaign import (
    Campaign,
    require_consents,
    require_person,
    takes_now,
    telling_set_ups,
)
from gaploop.scripts._library import command
from gaploop.scripts._pushing import push_after

if TYPE_CHECKING:
    from gaploop.collect.recording import RecordingSession
    from gaploop.collect.session import SessionEnd

log = logging.getLogger(__name__)

RARE = (
    "dataset.private", "dataset.reset_time_s", "journal", "sensors", "keys", "auto_start",
    "cartesian.*", "force.*", "display", "operator", "consent", "dataset.push_to_hub",
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
    """Where takes are published."""

    num_episodes: int = 20
    """Takes to record in this session; failed demonstrations are kept and don't count."""
    episode_time_s: float | None = None
    """Longest time of one take [s]; 60 unless given, 10 for the embedded cell's expert."""
    reset_time_s: float | None = None
    """Time for putting things back between two takes [s]; a key ends it early. 60 unless given, 5
    in the embedded cell with its expert; nobody waits where it records by itself."""


@dataclass
class RecordConfig(SessionOptions):
    """Record takes into a journal and publish them to a LeRobot dataset.

    Each take is sealed before the next begins, so that a crash, a kill or Ctrl-C loses the open
    take at most. `--dataset.num_episodes` asks for that many new takes, as in lerobot-record;
    with `--resume` the takes that the journal holds already count. `--plan` records what a plan
    asks for instead, in blocks so that no condition is recorded all at once, and always counts
    what it has already; `--status` shows how far it has come. Takes with people in them need
    their consent: see gaploop consent --help. Takes of a policy: gaploop rollout.

    With an arm, or where a person drives, the operator says in a window or terminal when a take
    begins and how it went. The embedded cell with its expert records by itself.
    """

    dataset: RecordDataset = field(default_factory=RecordDataset)
    plan: Path | None = None
    """plan.yaml whose quotas to fill."""
    status: bool = False
    """Show how far the plan has come and what comes next, and record nothing."""
    resume: bool = False
    """Count the takes that the journal holds already."""


@dataclass
class StatusConfig(RecordConfig):
    """With `--status`: no arm is needed, so that what a command says of one is left unread."""

    UNREAD: ClassVar[tuple[str, ...]] = ("robot", "teleop", "cartesian", "force")


StatusConfig.__doc__ = RecordConfig.__doc__


def config_class_for(arguments: Sequence[str]) -> type | None:
    """Return the options where no arm is needed; None where they are as `DEVICES` says."""
    return StatusConfig if {"--status", "--status=true"} & set(arguments) else None


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
    if config.status:
        station = load_station(config.station) if config.station else SIM_STATION
        campaign = _request(config, station)[1]
        if campaign is None:
            raise UnusableInputError("--status of what? Name a plan with --plan=plan.yaml.")
        options.emit(config.json, campaign.as_json(), campaign.as_text())
        return 0
    if options.show_file(config.robot):
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
    quotas = tuple(in_order(plan))
    return quotas, Campaign(plan, quotas, journal, station), root, journal


def _recorded(config: Any) -> tuple[RecordResult, tuple[int, ...]]:
    """Record and publish; return what came of it, and the signals that stopped it."""
    from gaploop.collect.recording import RecordingSession, runs_by_itself, spec_of
    from gaploop.collect.session_target import go_on_with

    is_cell = config.robot.type == EMBEDDED
    leads = kind(config.teleop)
    by_expert = is_cell and leads == EXPERT
    times = config.dataset
    if times.episode_time_s is None:
        times.episode_time_s = 10.0 if by_expert else 60.0
    if times.reset_time_s is None:
        times.reset_time_s = 5.0 if by_expert else 60.0
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
    asked = [replace(q, conditions={**always, **q.conditions}) for q in quotas]
    require_consents(asked, station, config.consent)
    if campaign is not None:
        for item in campaign.plan.items:
            if not item.takes:
                what = f"{item.id} ({item.dimension.value})"
                log.info("%s: nothing to record; %s.", what, item.remedy)
        log.info("%s", campaign.as_text())
        quotas = tuple(takes_now(campaign, config.consent))
    suggest: Suggest | None = None
    shows: contextlib.AbstractContextManager[Callable[..., None]]
    if runs_by_itself(config, leads):
        shows = options.progress("Recording", sum(quota.takes for quota in quotas))
    else:
        # Now: later it would hold up the control loop.
        from gaploop.failure_analysis.diagnosis import labels_if_failed

        suggest = labels_if_failed
        shows = contextlib.nullcontext(lambda _steps: None)
    with shows as advance:
        session = RecordingSession(
            config,
            station,
            spec_of(config, journal, TakeKind.DEMONSTRATION, "", resume=config.resume),
            quotas,
            root,
            leads=leads,
            fps=config.dataset.fps,
            progress=None if campaign is None else campaign.progress,
            suggest=suggest,
            set_up=telling_set_ups(station.grid),
            on_take=lambda _take, counts: advance(int(counts)),
        )
        if campaign is not None and session.shown == "none":
            require_person(station, config.auto_start, stdin_is_terminal=False)
        end = session.run()

    for line in end.gave_up:
        log.info("%s", line)
    if end.trip:
        log.error("%s", end.trip)
    if end.recovered:
        log.info("%d unsealed takes in %s are marked interrupted.", end.recovered, journal)
    withheld = {uid: why for report in session.reports for uid, why in report.withheld.items()}
    for why, count in Counter(withheld.values()).items():
        log.info("%d not published: %s.", count, why)
    if campaign is not None:
        log.info("%s", campaign.as_text())
    plan = None if campaign is None else campaign.plan
    result = RecordResult(
        **session_figures(config, session, end),
        plan="" if plan is None else plan.id,
        evidence=evidence_of(config.robot, station, as_of_plan=bool(plan and plan.takes)),
        counted=end.counted,
        wanted=end.wanted,
        withheld=withheld,
        campaign=None if campaign is None else campaign.as_json(),
        interrupted=end.interrupted,
        gave_up=end.gave_up,
    )
    return result, end.signals


def session_figures(config: Any, session: RecordingSession, end: SessionEnd) -> dict[str, Any]:
    """Return what every session says of itself, as of `RecordResult`, after pushing if asked to."""
    from gaploop.collect.recording import video_figures

    outcomes = {o.value: sum(take.outcome is o for take in end.takes) for o in Outcome}
    return {
        "journal": session.journal,
        "root": session.root,
        "takes": len(end.takes),
        "outcomes": {name: count for name, count in outcomes.items() if count},
        "published": sum(len(report.published) for report in session.reports),
        "recovered": end.recovered,
        "reconnected": end.reconnected,
        "trip": end.trip,
        "uids": [take.uid for take in end.takes],
        "video": video_figures(end.takes),
        "push": push_after(config.dataset, session.root, end.signals),
    }
