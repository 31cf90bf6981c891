"""A session of `gaploop rollout`: with an operator, or the embedded cell by itself."""

from __future__ import annotations

import functools
import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gaploop.collect import lerobot_factory
from gaploop.collect.campaign import Quota, in_blocks
from gaploop.collect.intervention import OnMotion, OnStall, TakeOver
from gaploop.collect.policy_leader import PatientLeader, PolicyLeader, lag_share
from gaploop.collect.remote_policy import SCHEME, RemotePolicy
from gaploop.collect.rollout import Attempts, RolloutDriver, Rollouts, SpeedRamp
from gaploop.collect.session import SessionEnd
from gaploop.core.errors import UnusableInputError
from gaploop.core.protocols import Follower, Policy, TakeSink
from gaploop.core.types import FloatArray
from gaploop.core.vocabulary import Domain, TakeKind
from gaploop.datasets.lerobot_publish import PublishReport
from gaploop.finetune.factors import settings
from gaploop.scripts import options
from gaploop.scripts._campaign import require_consents
from gaploop.scripts._sessions import (
    SessionJob,
    check_session,
    go_on_with,
    record_alone,
    session_figures,
    spec_of,
)
from gaploop.teleop.link import TOKEN_VARIABLE

if TYPE_CHECKING:
    from gaploop.collect.journal import JournalWriter
    from gaploop.collect.rig import Rig
    from gaploop.failure_analysis.live.score import FailureScore
    from gaploop.failure_analysis.live.watch import Alarm

log = logging.getLogger(__name__)


def roll_out(config: Any) -> int:
    """Run the session that the options describe; return the exit code."""
    config.policy.required()
    waits = ("take_over_stall_s", "take_over_late_s", "hand_back_s")
    check_session(config, "take_over_motion_deg", *waits)
    lag_share(config.smoothing.exponential_s, 1.0)
    root = config.dataset.folder().absolute()
    journal = options.journal_beside(root, config.journal)
    go_on_with(config, root, journal)
    policy, id_ = _policy(config)
    is_embedded = config.robot.type == lerobot_factory.EMBEDDED
    fixed = 1.0 if is_embedded and config.speed_scale is None else config.speed_scale
    # Nobody is needed in the embedded cell on simulated time, with its expert or without.
    alone = (
        config.take_over == "never" or lerobot_factory.kind(config.teleop) == lerobot_factory.EXPERT
    )
    by_itself = is_embedded and alone and config.display not in ("window", "terminal")
    watched = watching(config, policy, id_, is_embedded)
    leads = PolicyLeader if by_itself else PatientLeader  # simulated time waits for a policy
    blocker = policy.blocker if isinstance(policy, RemotePolicy) else lambda: ""
    driver = RolloutDriver(
        policy,
        functools.partial(leads, lag_s=config.smoothing.exponential_s),
        Attempts(SpeedRamp(journal, id_, fixed), watched=watched, blocker=blocker),
        functools.partial(_wishes, config),
        has_person=config.take_over != "never",
        drives_between=not is_embedded,
    )
    station = lerobot_factory.station_for(config.robot, config.station)
    spec = spec_of(config, journal, TakeKind.ROLLOUT, id_, resume=bool(config.factors))
    quotas: tuple[Quota, ...] = (Quota(config.dataset.num_episodes),)
    if config.factors:  # as many attempts at each of their levels, in blocks
        levels = [
            replace(quotas[0], conditions=c) for c in settings(config.factors, station=station)
        ]
        quotas = tuple(in_blocks(levels, f"factors {config.seed}"))
    job = SessionJob(
        config, station, root, journal, quotas, spec, driver=driver, shared=driver.leader
    )
    require_consents(job.quotas, job.station, config.consent, config.consents)
    if job.station.domain is Domain.REAL:  # were policy and arm checked together?
        from gaploop.collect.preflight import Checked, missing

        if why := missing(journal, Checked(id_, lerobot_factory.robot_words(config.robot))):
            log.warning(
                "%s. Run gaploop doctor with the same --policy and --robot, and --journal=%s",
                f"{why[0].upper()}{why[1:]}",
                journal,
            )
    if by_itself:
        driver.attempts.on_note = lambda note, result: log.info("%s", note.words(result))
        attendant = Rollouts(driver.attempts, config.reconnect_s)
        end, reports, stopped = record_alone(job, attendant, "Rolling out")
    else:
        from gaploop.scripts._attended import record_attended

        end, reports, stopped = record_attended(job)
    return _tell(job, driver, watched, end, reports, stopped)


def _policy(config: Any) -> tuple[Policy, str]:
    """Load the policy, or connect to where it is served; return it and its id."""
    path, coefficient = config.policy.path, config.smoothing.temporal_ensemble_coeff
    if path.startswith(SCHEME):
        if coefficient is not None:
            raise UnusableInputError(
                "A policy on another machine isn't asked on every frame: leave "
                "--smoothing.temporal_ensemble_coeff out."
            )
        token = config.policy.token or os.environ.get(TOKEN_VARIABLE, "")
        policy = RemotePolicy(path, token, config.dataset.single_task)
        return policy, policy.card.id
    from gaploop.finetune.lerobot_policy import load_policy, policy_id, warn_withdrawn

    warn_withdrawn(path)
    loaded = load_policy(
        path,
        temporal_ensemble_coeff=coefficient,
        task=config.dataset.single_task,
        fps=config.policy.fps,
    )
    return loaded, policy_id(path)


# -- what the options ask for -------------------------------------------------------------------


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
    return TakeOver()


# -- what is said at the end --------------------------------------------------------------------


def _tell(
    job: SessionJob,
    driver: RolloutDriver,
    watched: Watching,
    end: SessionEnd,
    reports: Sequence[PublishReport],
    stopped: list[int],
) -> int:
    config, notes = job.config, driver.attempts.notes
    sealed = [notes[take.uid] for take in end.takes if take.uid in notes]
    helped = sum(note.interventions > 0 for note in sealed)
    paces = [note.pace for note in sealed]
    asked = sum(pace.asked for pace in paces)
    link = {}  # how long observations and plans were under way to another machine
    if isinstance(driver.policy, RemotePolicy) and driver.policy.on_the_way_s:
        p50, p99 = 1e3 * np.percentile(driver.policy.on_the_way_s, (50, 99))
        link = {"link_p50_ms": round(float(p50), 2), "link_p99_ms": round(float(p99), 2)}
    summary = {
        **session_figures(job, end, reports, stopped),
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
        "interrupted": bool(stopped),
        "evidence": lerobot_factory.evidence_of(config.robot, job.station),
    }
    words = ", ".join(f"{count} {name}" for name, count in summary["outcomes"].items()) or "none"
    text = (
        f"{len(end.takes)} rollouts ({words}; {helped} with help) in {job.journal}; "
        f"{summary['published']} published to {job.root}."
    )
    options.emit(config.json, summary, text)
    if end.trip:
        log.error("%s", end.trip)
    return 128 + stopped[0] if stopped else int(bool(end.trip))


class Watching:
    """Watches every attempt of a session.

    Args:
        score: says how unusual an attempt is; None where nothing is watched.
        false_alarms: share of the attempts that go well that may alarm.
        planned: the policy's newest plan, in degrees; None where it doesn't show one.
    """

    def __init__(
        self,
        score: FailureScore | None,
        false_alarms: float,
        planned: Callable[[], FloatArray | None] | None,
    ) -> None:
        self.score, self._false_alarms, self._planned = score, false_alarms, planned
        self.alarms: dict[str, Alarm] = {}
        """Take to its alarm."""

    def __call__(self, rig: Rig, writer: JournalWriter) -> Sequence[TakeSink]:
        """Return what watches an attempt that begins."""
        from gaploop.failure_analysis.live.watch import ALARM, FailureWatch

        if self.score is None:
            return ()

        def alarmed(alarm: Alarm) -> None:
            self.alarms[writer.header.info.uid] = alarm
            said = {"score": alarm.score, "p_value": alarm.p_value, "why": alarm.why}
            writer.event(alarm.t_s, ALARM, **said)
            log.warning(
                "This attempt has looked like a failure since %.1f s: %s (p = %.2g).",
                alarm.t_s, alarm.why, alarm.p_value,
            )  # fmt: skip

        follower = rig.follower
        watch = FailureWatch(
            self.score,
            follower.joint_names,
            rig.control_hz,
            rig.fps,
            planned=self._planned if follower.units.startswith("deg") else None,
            false_alarms=self._false_alarms,
            on_alarm=alarmed,
        )
        return (watch,)


def watching(config: Any, policy: Policy, policy_id: str, is_embedded: bool) -> Watching:
    """Return what watches the session's attempts, as `--watch` says.

    Raises:
        UnusableInputError: a false-alarm rate that isn't a share, or too few successful takes.
    """
    rate = config.watch_false_alarms
    if not 0 < rate < 1:
        raise UnusableInputError(f"--watch_false_alarms must be above 0 and below 1, got {rate:g}.")
    score = _score(config.watch, policy_id, is_embedded)
    if score is not None and math.isinf(score.threshold(rate)):
        raise UnusableInputError(
            f"{score.name}: {len(score.peaks)} takes that went well are too few for a false-alarm "
            f"rate of {rate:g}: record {math.ceil(1 / rate)} or raise --watch_false_alarms."
        )
    return Watching(score, rate, (lambda: policy.chunk) if hasattr(policy, "chunk") else None)


def _score(watch: str, policy_id: str, is_embedded: bool) -> FailureScore | None:
    from gaploop.failure_analysis.live.watch import score_of, shipped_score

    if watch == "never":
        return None
    if watch == "auto":
        shipped = shipped_score() if is_embedded else None
        return shipped if shipped is not None and shipped.policy == policy_id else None
    from gaploop.datasets.sources import load_takes

    return score_of(load_takes(Path(watch)), watch)
