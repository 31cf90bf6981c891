"""What `gaploop rollout` does: a policy drives, a person may take over."""

import functools
import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from gaploop.collect.campaign import Quota, in_blocks, require_consents
from gaploop.collect.intervention import OnStall
from gaploop.collect.lerobot_types import EMBEDDED, evidence_of, kind, robot_words, station_for
from gaploop.collect.policy_leader import AsyncPolicyDriver, PolicyLeader, lag_share
from gaploop.collect.preflight import Checked, missing
from gaploop.collect.remote_policy import RemotePolicy
from gaploop.collect.resetting import SCRIPT, Resetter, tracker_for
from gaploop.collect.rollout import Attempts, RolloutDriver, SpeedRamp
from gaploop.collect.session import Session, about_takes, chosen_interface, runs_by_itself
from gaploop.collect.session_options import check_session, go_on_with
from gaploop.core.errors import UnusableInputError
from gaploop.core.protocols import Follower
from gaploop.core.station import Station
from gaploop.core.vocabulary import Domain, TakeKind
from gaploop.failure_analysis.live import SessionWatch, session_watch
from gaploop.failure_analysis.success import load_detector
from gaploop.finetune.factors import settings
from gaploop.finetune.gate.canary import AssignedPolicy
from gaploop.scripts import options
from gaploop.scripts.cli import command
from gaploop.scripts.push import push_after
from gaploop.scripts.record import RecordResult
from gaploop.sim.scene_file import load_scene
from gaploop.teleop.loop import Rates

log = logging.getLogger(__name__)


def run(config: Any) -> int:
    """Roll out and publish; 128 + the signal where one came, 1 where a trip ended it."""
    if options.show_file(config.robot):
        return 0
    return _tell(config, *_rolled_out(config))


@command
def rollout(config: Any) -> RecordResult:
    """Let a policy drive, record its attempts into a journal and publish them.

    Raises:
        UnusableInputError: options don't go together, or the policy can't be used.
        DeviceError: a device can't be used.
    """
    return _rolled_out(config)[2]


def _rolled_out(config: Any) -> tuple[RolloutDriver, SessionWatch, RecordResult]:
    config.policy.required()
    check_session(config)
    lag_share(config.smoothing_s, 1.0)
    root = config.dataset.folder().absolute()
    journal = options.journal_beside(root, config.journal)
    go_on_with(config, root, journal)
    if not config.policy.is_remote:
        from gaploop.finetune.lerobot_policy import warn_withdrawn

        warn_withdrawn(config.policy.path)
    if (scene := getattr(config.robot, "scene", None)) and load_scene(scene).is_worded_anew:
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
        policy, functools.partial(drives, lag_s=config.smoothing_s),
        Attempts(SpeedRamp(journal, id_, fixed), watched=watched, blocker=blocker),
        stall, has_person=bool(leads), drives_between=not is_embedded,
    )  # fmt: skip
    watched.won = lambda: driver.attempts.won
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
    checked = Checked(id_, robot_words(config.robot), policy.runs)  # policy and arm together
    if station.domain is Domain.REAL and (why := missing(journal, checked)):
        words = f"{why[0].upper()}{why[1:]}. Run gaploop doctor with the same --policy and --robot"
        log.warning("%s, and --journal=%s", words, journal)
    interface = chosen_interface(config.display, leads)
    if by_itself:
        driver.attempts.on_note = lambda note, result: log.info("%s", note.words(result))
    if assigned is not None:
        driver.attempts.choose = lambda: assigned.choose(driver.attempts)
    rates = Rates.near(config.dataset.fps or policy.fps)
    session = Session(config, station, leads=leads, rates=rates, interface=interface, driver=driver)
    about = about_takes(config, TakeKind.ROLLOUT, id_)
    resume = bool(config.factors)
    end = session.record(about, quotas, root, journal, resume=resume)
    if assigned is not None:
        assigned.report(driver.attempts)
    evidence = evidence_of(config.robot, station)
    push = push_after(config.dataset, root, end.signals)
    return driver, watched, RecordResult(end, journal, root, session.published, evidence, push)


def _assigned(
    config: Any, policy: Any, id_: str, journal: Path, is_embedded: bool
) -> AssignedPolicy:
    """Return the baseline, or the candidate where the fleet's controller says so."""
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


def _tell(config: Any, driver: RolloutDriver, watched: SessionWatch, result: RecordResult) -> int:
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
    text = (
        f"{options.counted(len(end.takes), 'rollout')} ({result.words}; {helped} with help) in "
        f"{result.journal}; {result.published} published to {result.root}."
    )
    if resets:
        alone = sum(reset["by"] != "person" for reset in resets)
        text += f" {alone} of {len(resets)} scenes put back by the robot"
        text += "." if alone == len(resets) else ", the others by a person."
    options.emit(config.json, summary, text)
    if doubt := watched.doubt():
        log.warning("%s", doubt)
    if end.trip:
        log.error("%s", end.trip)
    return 128 + end.signals[0] if end.signals else int(bool(end.trip))
