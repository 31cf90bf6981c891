"""A session of `gaploop rollout`: with an operator, or the embedded cell by itself."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gaploop.collect.campaign import Quota, in_blocks
from gaploop.collect.policy_leader import Pace, PolicyLeader
from gaploop.collect.policy_thread import PatientLeader
from gaploop.collect.rollout import Attempts, RolloutNote, Rollouts
from gaploop.collect.session import SessionEnd, SessionSpec, TakeResult, record_takes
from gaploop.collect.smoothing import lag_share
from gaploop.collect.speed_ramp import SpeedRamp
from gaploop.collect.take_over import OnMotion, OnRequest, OnStall, TakeOver
from gaploop.core.errors import UnusableInputError
from gaploop.core.protocols import Follower, Policy
from gaploop.core.station import Station
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets.lerobot_publish import PublishReport
from gaploop.scripts import _arms, _session_devices, options, record
from gaploop.scripts._attended_session import AttendedJob
from gaploop.scripts._campaign import require_consents
from gaploop.scripts._pushing import push_after
from gaploop.scripts._record_checks import check_display, check_targets, check_wanted_sensors
from gaploop.scripts._record_publish import STOPPING, Publisher
from gaploop.scripts._record_report import video_figures
from gaploop.scripts._rolling import Rolling
from gaploop.scripts._signals import stoppable
from gaploop.scripts._watching import Watching, watching

log = logging.getLogger(__name__)


def roll_out(config: Any) -> int:
    """Run the session that the options describe; return the exit code."""
    _check(config)
    root = config.dataset.folder().absolute()
    journal = (config.journal or root.with_name(f"{root.name}_journal")).absolute()
    policy, policy_id = _policy(config)
    is_embedded = config.robot.type == _arms.EMBEDDED
    fixed = 1.0 if is_embedded and config.speed_scale is None else config.speed_scale
    by_itself = _is_by_itself(config)
    watched = watching(config, policy, policy_id, is_embedded)
    rolling = Rolling(
        policy,
        functools.partial(
            PolicyLeader if by_itself else PatientLeader,  # simulated time waits for a policy
            lag_s=config.smoothing.exponential_s,
        ),
        Attempts(SpeedRamp(journal, policy_id, fixed), watched=watched),
        functools.partial(_wishes, config),
        has_person=config.take_over != "never",
        drives_between=not is_embedded,
    )
    station = _arms.station_for(config.robot, config.station)
    job = AttendedJob(
        config,
        station,
        root,
        journal,
        _quotas(config, station),
        _spec(config, journal, policy_id),
        rolling=rolling,
    )
    require_consents(job.quotas, job.station, config.consent, config.consents)
    _remind(job, policy_id)
    if by_itself:
        end, reports, stopped = _by_itself(job, rolling)
    else:
        from gaploop.scripts._attended import attend

        end, reports, stopped = attend(job)
    return _tell(job, rolling, watched, end, reports, stopped)


def _remind(job: AttendedJob, policy_id: str) -> None:
    """Say that policy and arm weren't checked together, where a real arm is about to move."""
    if job.station.domain is not Domain.REAL:
        return
    from gaploop.collect.preflight import Checked, missing
    from gaploop.scripts._preflight import robot_words

    why = missing(job.journal, Checked(policy_id, robot_words(job.config.robot)))
    if why:
        log.warning(
            "Without a preflight: %s. Run gaploop preflight with the same --policy and --robot.",
            why,
        )


def _is_by_itself(config: Any) -> bool:
    """Say whether nobody is needed: the embedded cell on simulated time, with its expert."""
    alone = config.take_over == "never" or _arms.kind(config.teleop) == _arms.EXPERT
    watched = config.display in ("window", "terminal")
    return config.robot.type == _arms.EMBEDDED and alone and not watched


def _by_itself(
    job: AttendedJob, rolling: Rolling
) -> tuple[SessionEnd, list[PublishReport], list[int]]:
    """Roll out in the embedded cell as fast as it goes; its expert takes over, where one may."""
    config, attempts = job.config, rolling.attempts
    make_rig = functools.partial(record.embedded, config)
    check_targets(make_rig, job.quotas, job.root, job.journal)
    attempts.on_note = _log
    publisher = Publisher(job.journal, job.root, config.dataset.repo_id, config.consents)
    wanted = config.dataset.num_episodes
    with (
        stoppable(STOPPING) as stopped,
        publisher,
        options.progress("Rolling out", wanted) as advance,
    ):

        def on_take(_result: TakeResult, counts: bool) -> None:
            advance(int(counts))

        end = record_takes(
            job.spec,
            job.quotas,
            make_rig,
            _session_devices.led(rolling, None),
            stop=lambda: bool(stopped),
            on_take=on_take,
            publish=publisher.behind,
            attendant=Rollouts(attempts, config.reconnect_s),
        )
    return end, publisher.reports, stopped


def _log(note: RolloutNote, result: TakeResult) -> None:
    log.info("%s", note.words(result))


# -- what the options ask for -------------------------------------------------------------------


def _check(config: Any) -> None:
    config.policy.required()
    check_display(config.display)
    check_wanted_sensors(config)
    lag_share(config.smoothing.exponential_s, 1.0)
    positive = [
        ("dataset.num_episodes", config.dataset.num_episodes),
        ("dataset.episode_time_s", config.dataset.episode_time_s),
        ("publish_every", config.publish_every),
        ("take_over_motion_deg", config.take_over_motion_deg),
        ("take_over_stall_s", config.take_over_stall_s),
        ("take_over_late_s", config.take_over_late_s),
    ]
    if config.hand_back_s is not None:
        positive.append(("hand_back_s", config.hand_back_s))
    for name, value in positive:
        if not value > 0:
            raise UnusableInputError(f"--{name} must be above 0, got {value:g}.")
    for name, value in (
        ("dataset.reset_time_s", config.dataset.reset_time_s),
        ("reconnect_s", config.reconnect_s),
    ):
        if not value >= 0:
            raise UnusableInputError(f"--{name} must be 0 or more, got {value:g}.")


def _policy(config: Any) -> tuple[Policy, str]:
    """Load the policy, and its id."""
    from gaploop.finetune.lerobot_policy import load_policy, policy_id

    options.warn_withdrawn(config.policy.path)
    coefficient = config.smoothing.temporal_ensemble_coeff
    policy: Policy = load_policy(
        config.policy.path,
        temporal_ensemble_coeff=coefficient,
        task=config.dataset.single_task,
    )
    return policy, policy_id(config.policy.path)


def _spec(config: Any, journal: Path, policy_id: str) -> SessionSpec:
    task = config.dataset.single_task or str(getattr(config.robot, "task", "rollout"))
    return SessionSpec(
        journal,
        task.replace("_", " ") if not config.dataset.single_task else task,
        TakeKind.ROLLOUT,
        max_s=config.dataset.episode_time_s,
        seed=config.seed,
        operator=config.operator,
        policy=policy_id,
        resume=bool(config.factors),
        publish_every=config.publish_every,
        consent=config.consent,
        consents=config.consents,
    )


def _quotas(config: Any, station: Station) -> tuple[Quota, ...]:
    """Return what to record: attempts, or as many at each level of the factors, in blocks."""
    takes = config.dataset.num_episodes
    if not config.factors:
        return (Quota(takes),)
    from gaploop.finetune.factors import settings

    quotas = [Quota(takes, conditions=c) for c in settings(config.factors, station=station)]
    return tuple(in_blocks(quotas, f"factors {config.seed}"))


def _wishes(config: Any, follower: Follower, fps: float) -> TakeOver:
    if config.take_over == "motion":
        return OnMotion(math.radians(config.take_over_motion_deg), config.hand_back_s)
    if config.take_over == "auto":
        return OnStall(
            fps,
            follower.from_units,
            stall_s=config.take_over_stall_s,
            late_s=config.take_over_late_s,
            hand_back_s=config.hand_back_s,
        )
    return OnRequest()


# -- what is said at the end --------------------------------------------------------------------


def _tell(
    job: AttendedJob,
    rolling: Rolling,
    watched: Watching,
    end: SessionEnd,
    reports: Sequence[PublishReport],
    stopped: list[int],
) -> int:
    config, notes = job.config, rolling.attempts.notes
    sealed = [notes[take.uid] for take in end.takes if take.uid in notes]
    counts = {o.value: sum(t.outcome is o for t in end.takes) for o in Outcome}
    counts = {name: count for name, count in counts.items() if count}
    published = sum(len(report.published) for report in reports)
    helped = sum(note.interventions > 0 for note in sealed)
    summary = {
        "journal": job.journal,
        "root": job.root,
        "takes": len(end.takes),
        "outcomes": counts,
        "helped": helped,
        "person_s": round(sum(note.person_s for note in sealed), 3),
        "policy": _pace([note.pace for note in sealed]),
        "speed_scale": [note.speed_scale for note in sealed],
        "alarms": {uid: asdict(alarm) for uid, alarm in watched.alarms.items()},
        "faults": [note.fault for note in notes.values() if note.fault],
        "published": published,
        "recovered": end.recovered,
        "reconnected": end.reconnected,
        "interrupted": bool(stopped),
        "trip": end.trip,
        "evidence": _evidence(job),
        "uids": [take.uid for take in end.takes],
        "video": video_figures(end.takes),
        "push": push_after(config.dataset, job.root, config.consents, stopped),
    }
    words = ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
    text = (
        f"{len(end.takes)} rollouts ({words}; {helped} with help) in {job.journal}; {published} "
        f"published to {job.root}."
    )
    options.emit(config.json, summary, text)
    if end.trip:
        log.error("%s", end.trip)
    return 128 + stopped[0] if stopped else int(bool(end.trip))


def _pace(paces: Sequence[Pace]) -> dict[str, float]:
    """Return how long the policy took, over all attempts."""
    asked = sum(pace.asked for pace in paces)
    return {
        "asked": asked,
        "mean_ms": round(1e3 * sum(pace.total_s for pace in paces) / max(asked, 1), 2),
        "worst_ms": round(1e3 * max((pace.worst_s for pace in paces), default=0.0), 2),
        "waited_s": round(sum(pace.waited_s for pace in paces), 2),
    }


def _evidence(job: AttendedJob) -> str:
    """Return what the takes are evidence of."""
    robot = job.config.robot
    if robot.type == _arms.EMBEDDED:
        return "sim-to-sim" if robot.gaps or robot.conditions else "sim"
    return "real" if job.station.domain is Domain.REAL else "emulated"
