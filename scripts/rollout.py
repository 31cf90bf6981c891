"""The command `gaploop rollout`."""

from __future__ import annotations

import functools
import logging
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from gaploop.collect.campaign import require_consents
from gaploop.collect.lerobot_factory import (
    EMBEDDED,
    EXPERT,
    evidence_of,
    kind,
    robot_words,
    station_for,
)
from gaploop.collect.session_options import SessionOptions, check_session, go_on_with
from gaploop.core.errors import UnusableInputError
from gaploop.core.protocols import Follower
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.scripts import options
from gaploop.scripts.push import push_after
from gaploop.scripts.record import RecordResult
from gaploop.teleop.loop import Rates

if TYPE_CHECKING:
    from gaploop.collect.policy_leader import PolicyLeader
    from gaploop.collect.resetting import Resetter
    from gaploop.collect.rollout import RolloutDriver
    from gaploop.core.station import Station
    from gaploop.failure_analysis.live import SessionWatch
    from gaploop.finetune.gate.canary import AssignedPolicy

log = logging.getLogger(__name__)

RARE = (
    "dataset.push_to_hub", "dataset.private", "dataset.reset_time_s", "smoothing_s",
    "journal", "sensors", "auto_start", "display",
    "operator", "consent", "dataset.new_task", "dataset.fps", "dataset.repo_id",
    "factors", "assignment", "watch", "reset_seed", "policy.fps", "policy.threads", "policy.format",
    "dataset.episode_time_s",
)  # fmt: skip
EXAMPLE: Final = """\
gaploop rollout --policy.path=base --robot.type=so101_sim --teleop.type=scripted \\
    --take_over=auto --dataset.root=runs --dataset.num_episodes=10
gaploop rollout --policy.path=base --robot.type=so101_follower --robot.port=./follower \\
    --robot.id=f --robot.cameras='{top: {type: zmq, server_address: 127.0.0.1, port: 5555, \\
    camera_name: top, width: 192, height: 192, fps: 25}}' --take_over=never --dataset.root=runs
gaploop rollout --policy.path=remote://192.168.1.20:8440 --robot.type=so101_sim \\
    --take_over=never --dataset.root=runs
"""

POSITIONAL: Final = ()
DEVICES: Final = {"robot": EMBEDDED, "teleop": EXPERT}


@dataclass
class RolloutDataset(options.DatasetOptions):
    """Where episodes are published."""

    num_episodes: int = 10
    """Attempts to record; failed ones count too."""
    episode_time_s: float = 15.0
    """Longest time of one attempt at full speed [s]; longer where the policy drives slowly."""
    reset_time_s: float = 30.0
    """Time for putting things back between two attempts [s]; a key ends it early. Nobody waits
    where the embedded cell rolls out by itself."""


@dataclass
class RolloutConfig(SessionOptions):
    """Let a policy drive, take over where it fails, and record whole attempts.

    Attempts go into a journal and are published, with gap.intervention true on the frames
    in which the person drove; gaploop finetune trains on those. A leader arm is moved to the
    follower's pose before it takes over; any other leader takes over from where it is, and
    its motion counts from there. Handing back, the policy plans anew.

    With an arm, or where a person drives, the operator sees in a window or terminal what
    gaploop record shows, and says there when an attempt begins and how it went. t takes over
    and hands back, between attempts too, to put things back. What fails in an attempt (the
    policy, a camera, a cable) ends that attempt only. The embedded cell with its expert, or
    with --take_over=never, rolls out by itself on simulated time.
    """

    policy: options.DrivingPolicy = field(default_factory=options.DrivingPolicy)
    dataset: RolloutDataset = field(default_factory=RolloutDataset)
    take_over: Literal["key", "auto", "never"] = "key"
    """key: t takes over and hands back. auto: also when the arm has stood still for 1.5 s
    or the attempt is late (6 s; both longer where the policy drives slowly), for runs that nobody
    watches. never: no leader is used."""
    watch: str = "auto"
    """Episodes that went well, as the reference: an attempt that looks like failing is reported
    while it runs; 5 % of those that go well may be. A folder with 20 or more of this policy on
    this station, auto (what ships, for the packaged base in the embedded cell; else nothing), or
    never."""
    speed_scale: float | None = None
    """Share of its speed at which the policy drives, above 0 and up to 1: its targets are
    passed through in the same order, more slowly. Unless given: 1 in the embedded cell; on an
    arm 0.1 for a policy that is new to this journal, rising to 1 over 20 successes without
    help."""
    smoothing_s: float | None = None
    """Follow the policy's targets with a lag of this time constant [s]; 0.1 is gentle."""
    assignment: str = ""
    """File or address of a fleet's assignment.json (docs/train/gate.md#a-robots-side): before each
    attempt it says whether --policy.path, the baseline, or the candidate drives; this robot is
    --robot.id there."""
    reset: str = "person"
    """Who puts the scene back before each attempt: person, script (the robot finds the object by
    the station's colours, puts it at the next drawn start and looks whether it lies there), or the
    folder of a policy that resets. After three tries a person is called
    (docs/teleoperate/unattended.md)."""
    reset_seed: int = 0
    """Draws the first start; each attempt takes the next one."""
    factors: list[str] = field(default_factory=list)
    """What to vary, one factor at a time, to see what costs success: --dataset.num_episodes
    attempts with the station as usual, and as many at each level that the station defines, in
    blocks. Attempts that the journal holds count. gaploop evaluate --rollouts counts them."""


def run(config: Any) -> int:
    """Roll out and publish; 128 + the signal where one came, 1 where a trip ended it."""
    if options.show_file(config.robot):
        return 0
    from gaploop.collect.campaign import Quota, in_blocks
    from gaploop.collect.intervention import OnStall
    from gaploop.collect.policy_leader import AsyncPolicyDriver, PolicyLeader, lag_share
    from gaploop.collect.remote_policy import RemotePolicy
    from gaploop.collect.rollout import Attempts, RolloutDriver, SpeedRamp
    from gaploop.collect.session import Session, about_takes, chosen_interface, runs_by_itself
    from gaploop.failure_analysis.live import session_watch
    from gaploop.failure_analysis.success import load_detector
    from gaploop.finetune.factors import settings

    config.policy.required()
    check_session(config)
    lag_share(config.smoothing_s, 1.0)
    root = config.dataset.folder().absolute()
    journal = options.journal_beside(root, config.journal)
    go_on_with(config, root, journal)
    if not config.policy.is_remote:
        from gaploop.finetune.lerobot_policy import warn_withdrawn

        warn_withdrawn(config.policy.path)
    if scene := getattr(config.robot, "scene", None):
        from gaploop.sim.scene_file import load_scene

        if load_scene(scene).is_worded_anew:
            raise UnusableInputError(
                f"Scene {scene} draws its instruction for each episode, and a recorded policy is "
                "told one for all. Use gaploop evaluate --env.scene, or give the scene one."
            )
    policy, id_ = config.policy.load(config.dataset.single_task)
    is_embedded = config.robot.type == EMBEDDED
    assigned = _assigned(config, policy, id_, journal, is_embedded) if config.assignment else None
    policy = assigned or policy
    fixed = 1.0 if is_embedded and config.speed_scale is None else config.speed_scale
    leads = "" if config.take_over == "never" else kind(config.teleop)
    by_itself = runs_by_itself(config, leads)
    watched = session_watch(config.watch, id_, is_embedded)
    drives = PolicyLeader if by_itself else AsyncPolicyDriver  # simulated time waits for a policy
    blocker = policy.blocker if isinstance(policy, RemotePolicy) else lambda: ""

    def stall(follower: Follower, fps: float) -> OnStall | None:
        if config.take_over != "auto":
            return None
        return OnStall(fps, follower.from_units)

    driver = RolloutDriver(
        policy,
        functools.partial(drives, lag_s=config.smoothing_s),
        Attempts(SpeedRamp(journal, id_, fixed), watched=watched, blocker=blocker),
        stall,
        has_person=bool(leads),
        drives_between=not is_embedded,
    )
    station = station_for(config.robot, config.station)
    if config.reset != "person":
        driver.attempts.resetter = _resetter(config, station, policy.fps, drives)
    if (detector := load_detector(config.station, station)) is not None:
        log.info("Success is told by the last pictures: %s.", detector.words())
        driver.attempts.detector = detector.label_of
    quotas: tuple[Quota, ...] = (Quota(config.dataset.num_episodes),)
    if config.factors:  # as many attempts at each of their levels, in blocks
        levels = [
            replace(quotas[0], conditions=c) for c in settings(config.factors, station=station)
        ]
        quotas = tuple(in_blocks(levels, "factors"))
    require_consents(quotas, station, config.consent)
    if station.domain is Domain.REAL:  # were policy and arm checked together?
        from gaploop.collect.preflight import Checked, missing

        if why := missing(journal, Checked(id_, robot_words(config.robot), policy.runs)):
            log.warning(
                "%s. Run gaploop doctor with the same --policy and --robot, and --journal=%s",
                f"{why[0].upper()}{why[1:]}",
                journal,
            )
    interface = chosen_interface(config.display, leads)
    if by_itself:
        driver.attempts.on_note = lambda note, result: log.info("%s", note.words(result))
    if assigned is not None:
        driver.attempts.choose = lambda: assigned.choose(driver.attempts)
    session = Session(
        config,
        station,
        leads=leads,
        rates=Rates.near(config.dataset.fps or policy.fps),
        interface=interface,
        driver=driver,
    )
    about = about_takes(config, TakeKind.ROLLOUT, id_)
    resume = bool(config.factors)
    end = session.record(about, quotas, root, journal, resume=resume)
    if assigned is not None:
        assigned.report(driver.attempts)
    result = RecordResult(
        end,
        journal,
        root,
        session.published,
        plan="",
        evidence=evidence_of(config.robot, station),
        campaign=None,
        push=push_after(config.dataset, root, end.signals),
    )
    return _tell(config, driver, watched, result)


def _assigned(
    config: Any, policy: Any, id_: str, journal: Path, is_embedded: bool
) -> AssignedPolicy:
    """Return the baseline, or the candidate where the fleet's controller says so."""
    from gaploop.finetune.gate.canary import AssignedPolicy
    from gaploop.finetune.lerobot_policy import load_policy, policy_id

    robot = str(getattr(config.robot, "id", None) or "")
    if not robot or config.policy.is_remote:
        raise UnusableInputError(
            "--assignment needs this robot's name in the fleet, --robot.id, and policies that are "
            "on this machine."
        )
    if not is_embedded and config.speed_scale is None:
        raise UnusableInputError(
            "With --assignment both policies drive at one speed, or they couldn't be compared. Say "
            "which: --speed_scale=1, once the candidate has driven this arm."
        )

    def load(name: str) -> tuple[Any, str]:
        loading = {**config.policy.loading(), "task": config.dataset.single_task}
        return load_policy(name, **loading), policy_id(name)

    return AssignedPolicy(config.assignment, robot, (policy, id_), load, journal)


def _resetter(config: Any, station: Station, fps: float, drives: type[PolicyLeader]) -> Resetter:
    """Return what puts the scene back, as `--reset` says."""
    from gaploop.collect.resetting import SCRIPT, Resetter, tracker_for

    robot = config.robot
    is_set_up = (getattr(robot, name, None) for name in ("scene", "randomise"))
    if robot.type == EMBEDDED and any(is_set_up):
        raise UnusableInputError(
            "--robot.scene and --robot.randomise set each scene up anew: leave --reset out with "
            "them."
        )
    make_tracker = tracker_for(station, config.station)
    if config.reset == SCRIPT:
        return Resetter(make_tracker)
    from gaploop.finetune.lerobot_policy import load_policy

    policy = load_policy(config.reset, **config.policy.loading())
    if policy.fps != fps:
        raise UnusableInputError(
            f"--reset={config.reset} was trained at {policy.fps:g} fps and --policy.path at "
            f"{fps:g}. Both drive in one loop: use policies of one rate."
        )
    return Resetter(make_tracker, functools.partial(drives, policy))


# -- what is said at the end --------------------------------------------------------------------


def _tell(config: Any, driver: RolloutDriver, watched: SessionWatch, result: RecordResult) -> int:
    from gaploop.collect.remote_policy import RemotePolicy

    notes, end = driver.attempts.notes, result.end
    sealed = [notes[take.uid] for take in end.takes if take.uid in notes]
    helped = sum(note.interventions > 0 for note in sealed)
    paces = [note.pace for note in sealed]
    asked = sum(pace.asked for pace in paces)
    link = {}  # how long observations and plans were under way to another machine
    if isinstance(driver.policy, RemotePolicy) and driver.policy.on_the_way_s:
        p50, p99 = 1e3 * np.percentile(driver.policy.on_the_way_s, (50, 99))
        link = {"link_p50_ms": round(float(p50), 2), "link_p99_ms": round(float(p99), 2)}
    resetter = driver.attempts.resetter
    resets = [asdict(reset) for reset in resetter.resets] if resetter is not None else []
    summary = {
        **result.as_json(),
        "helped": helped,
        "person_s": round(sum(note.person_s for note in sealed), 3),
        "policy": {
            "asked": asked,
            "mean_ms": round(1e3 * sum(pace.total_s for pace in paces) / max(asked, 1), 2),
            "worst_ms": round(1e3 * max((pace.worst_s for pace in paces), default=0.0), 2),
            "waited_s": round(sum(pace.waited_s for pace in paces), 2),
            **link,
        },
        "speed_scale": [note.speed_scale for note in sealed],
        "alarms": {uid: asdict(alarm) for uid, alarm in watched.alarms.items()},
        "faults": [note.fault for note in notes.values() if note.fault],
        "resets": resets,
        "interrupted": bool(end.signals),
    }
    words = ", ".join(f"{count} {name}" for name, count in result.outcomes.items()) or "none"
    text = (
        f"{len(end.takes)} rollouts ({words}; {helped} with help) in {result.journal}; "
        f"{result.published} published to {result.root}."
    )
    if resets:
        alone = sum(reset["by"] != "person" for reset in resets)
        text += f" {alone} of {len(resets)} scenes put back by the robot, the others by a person."
    options.emit(config.json, summary, text)
    won = {take.uid for take in end.takes if take.outcome is Outcome.SUCCESS}
    won = {uid for uid in won if uid in notes and not notes[uid].interventions}
    if doubt := watched.doubt(won):
        log.warning("%s", doubt)
    if end.trip:
        log.error("%s", end.trip)
    return 128 + end.signals[0] if end.signals else int(bool(end.trip))
