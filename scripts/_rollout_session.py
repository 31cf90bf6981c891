"""A session of `gaploop rollout`: connect, roll out, find again what was lost, until it is over."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.collect.campaign import Quota
from gaploop.collect.intervention import SharedLeader
from gaploop.collect.policy_leader import Pace, PolicyLeader
from gaploop.collect.policy_thread import PatientLeader
from gaploop.collect.rollout import RolloutNote, Rollouts
from gaploop.collect.session import SessionEnd, SessionSpec, TakeResult, record_takes
from gaploop.collect.smoothing import SmoothedPolicy
from gaploop.collect.speed_ramp import SpeedRamp
from gaploop.collect.take_over import OnMotion, OnRequest, OnStall, TakeOver
from gaploop.core.errors import DeviceError, LostError, UnusableInputError
from gaploop.core.protocols import Follower, Leader, Policy
from gaploop.core.types import FloatArray
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets.lerobot_publish import PublishReport
from gaploop.scripts import _arms, options
from gaploop.scripts._campaign import require_consents
from gaploop.scripts._find_again import Headway, find_again
from gaploop.scripts._keys import keys
from gaploop.scripts._pushing import push_after
from gaploop.scripts._record_checks import check_targets
from gaploop.scripts._record_publish import Publisher
from gaploop.scripts._rollout_cast import Cast, arm_cast, embedded_cast
from gaploop.scripts._rollout_keys import RolloutKeys
from gaploop.scripts._signals import stoppable
from gaploop.teleop.loop import Rates

log = logging.getLogger(__name__)

WAITED_S: Final = 0.2
"""A policy that let the arm wait this long in an attempt is told of [s]."""


@dataclass
class _Told:
    """What a session has come to so far, over all its connections."""

    results: list[TakeResult] = field(default_factory=list)
    notes: list[RolloutNote] = field(default_factory=list)
    finished: int = 0
    """Takes that weren't interrupted, those included whose seal isn't known yet."""
    recovered: int = 0
    reconnected: int = 0
    lost: list[str] = field(default_factory=list)


def roll_out(config: Any) -> int:
    """Run the session that the options describe; return the exit code."""
    _check(config)
    root = config.dataset.folder().absolute()
    journal = (config.journal or root.with_name(f"{root.name}_journal")).absolute()
    policy, policy_id = _policy(config)
    is_embedded = config.robot.type == _arms.EMBEDDED
    fixed = 1.0 if is_embedded and config.speed_scale is None else config.speed_scale
    speed = SpeedRamp(journal, policy_id, fixed)
    spec = _spec(config, journal, policy_id)
    lead = functools.partial(_lead, config, policy)
    told = _Told()
    publisher = Publisher(journal, root, config.dataset.repo_id, config.consents)
    with publisher, contextlib.ExitStack() as stack:
        stopped = stack.enter_context(stoppable())
        pressed = RolloutKeys(stack.enter_context(keys()), stopped)
        cast_of = embedded_cast if is_embedded else arm_cast
        headway = Headway()
        connect = functools.partial(cast_of, config, policy, lead, pressed)
        while not _is_over(config, told, stopped, pressed):
            try:
                with contextlib.ExitStack() as devices:
                    cast = _connected(config, devices, connect, pressed, told)
                    if cast is None:
                        break
                    _check_before(config, cast, root, journal)
                    _start(cast, told)
                    _roll(config, cast, speed, spec, publisher, pressed, told)
            except LostError as error:
                told.lost.append(str(error))
                log.warning("%s", error)
                if not pressed.works:
                    headway.lost(str(error), told.finished)
                pressed.drives(None)
            else:
                break
    return _tell(config, root, journal, told, publisher.reports, stopped)


def _is_over(config: Any, told: _Told, stopped: list[int], pressed: RolloutKeys) -> bool:
    return bool(stopped) or pressed.left or len(told.results) >= config.dataset.num_episodes


def _connected(
    config: Any,
    devices: contextlib.ExitStack,
    connect: Callable[[], contextlib.AbstractContextManager[Cast]],
    pressed: RolloutKeys,
    told: _Told,
) -> Cast | None:
    """Connect; where something was lost, wait for it. None where the session ends meanwhile.

    Raises:
        DeviceError: a device doesn't answer; after a loss, not within `reconnect_s` either.
    """
    if not told.lost:
        cast = devices.enter_context(connect())
        pressed.drives(cast)
        return cast
    found = find_again(
        lambda: devices.enter_context(connect()),
        stop=pressed.stops,
        patience_s=math.inf if pressed.works else config.reconnect_s,
        tell=lambda why: log.info("Waiting for it to return: %s", why),
        pause=pressed.pause,
    )
    if found is None:
        return None
    told.reconnected += 1
    pressed.drives(found)
    return found if pressed.agreed() else None


def _start(cast: Cast, told: _Told) -> None:
    """Drive.

    Raises:
        LostError: what was found again doesn't take it.
    """
    try:
        cast.start()
    except DeviceError as error:
        if not told.lost:
            raise
        raise LostError(str(error)) from error


def _roll(
    config: Any,
    cast: Cast,
    speed: SpeedRamp,
    spec: SessionSpec,
    publisher: Publisher,
    pressed: RolloutKeys,
    told: _Told,
) -> SessionEnd:
    """Record with one connection until all takes are there, or it is lost."""

    def note(said: RolloutNote, result: TakeResult) -> None:
        told.notes.append(said)
        told.finished += result.outcome is not Outcome.INTERRUPTED
        log.info("%s", _line(said, result))

    attendant = Rollouts(speed, pressed.poll, note, functools.partial(cast.ready, told.results))
    attendant.patience_s = math.inf if pressed.works else config.reconnect_s
    attendant.pause = pressed.pause
    wanted = config.dataset.num_episodes - len(told.results)
    with options.progress("Rolling out", wanted) as advance:

        def on_take(result: TakeResult, counts: bool) -> None:
            told.results.append(result)
            advance(int(counts))

        end = record_takes(
            spec,
            [Quota(wanted)],
            cast.make_rig,
            cast.make_leader,
            stop=pressed.stops,
            on_take=on_take,
            publish=publisher.behind,
            attendant=attendant,
        )
    told.recovered += end.recovered
    return end


def _line(note: RolloutNote, result: TakeResult) -> str:
    words = [f"{result.outcome.value} after {result.duration_s:.1f} s ({result.reason})"]
    if note.interventions:
        words.append(f"taken over {note.interventions}x, {note.person_s:.1f} s")
    if note.speed_scale < 1:
        words.append(f"at {note.speed_scale:.0%} of its speed")
    if note.pace.waited_s >= WAITED_S:
        words.append(
            f"the arm waited {note.pace.waited_s:.1f} s for the policy (mean "
            f"{1e3 * note.pace.mean_s:.0f}, worst {1e3 * note.pace.worst_s:.0f} ms)"
        )
    return "; ".join(words)


# -- what the options ask for -------------------------------------------------------------------


def _check(config: Any) -> None:
    config.policy.required()
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
    """Load the policy, smoothed as asked, and its id."""
    from gaploop.finetune.lerobot_policy import load_policy, policy_id

    coefficient = config.smoothing.temporal_ensemble_coeff
    policy: Policy = load_policy(config.policy.path, temporal_ensemble_coeff=coefficient)
    if config.smoothing.exponential_s is not None:
        policy = SmoothedPolicy(policy, config.smoothing.exponential_s)
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
        publish_every=config.publish_every,
        consent=config.consent,
        consents=config.consents,
    )


def _lead(
    config: Any,
    policy: Policy,
    follower: Follower,
    rates: Rates,
    sent_rad: Callable[[], FloatArray],
    person: Leader | None,
) -> SharedLeader:
    """Return who drives an arm: the policy, and the person who can take over."""
    is_by_itself = config.take_over == "never" or _arms.kind(config.teleop) == _arms.EXPERT
    waits = config.robot.type == _arms.EMBEDDED and is_by_itself  # time that can wait, waits
    kind = PolicyLeader if waits else PatientLeader
    leader = kind(policy, follower, rates.fps, rates.control_hz)
    return SharedLeader(leader, person, sent_rad, _wishes(config, follower, rates.fps))


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


def _check_before(config: Any, cast: Cast, root: Path, journal: Path) -> None:
    """Refuse what can't be recorded or published before anything moves."""
    quota = Quota(config.dataset.num_episodes)
    require_consents([quota], cast.station, config.consent, config.consents)
    check_targets(cast.make_rig, [quota], root, journal)


# -- what is said at the end --------------------------------------------------------------------


def _tell(
    config: Any,
    root: Path,
    journal: Path,
    told: _Told,
    reports: Sequence[PublishReport],
    stopped: list[int],
) -> int:
    by_uid = {note.uid: note for note in told.notes}
    sealed = [by_uid[result.uid] for result in told.results if result.uid in by_uid]
    counts = {o.value: sum(t.outcome is o for t in told.results) for o in Outcome}
    counts = {name: count for name, count in counts.items() if count}
    published = sum(len(report.published) for report in reports)
    helped = sum(note.interventions > 0 for note in sealed)
    summary = {
        "journal": journal,
        "root": root,
        "takes": len(told.results),
        "outcomes": counts,
        "helped": helped,
        "person_s": round(sum(note.person_s for note in sealed), 3),
        "policy": _pace([note.pace for note in sealed]),
        "speed_scale": [note.speed_scale for note in sealed],
        "faults": [note.fault for note in told.notes if note.fault],
        "published": published,
        "recovered": told.recovered,
        "reconnected": told.reconnected,
        "interrupted": bool(stopped),
        "evidence": _evidence(config),
        "uids": [result.uid for result in told.results],
        "push": push_after(config.dataset, root, config.consents, stopped),
    }
    words = ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
    text = (
        f"{len(told.results)} rollouts ({words}; {helped} with help) in {journal}; {published} "
        f"published to {root}."
    )
    options.emit(config.json, summary, text)
    return 128 + stopped[0] if stopped else 0


def _pace(paces: Sequence[Pace]) -> dict[str, float]:
    """Return how long the policy took, over all attempts."""
    asked = sum(pace.asked for pace in paces)
    return {
        "asked": asked,
        "mean_ms": round(1e3 * sum(pace.total_s for pace in paces) / max(asked, 1), 2),
        "worst_ms": round(1e3 * max((pace.worst_s for pace in paces), default=0.0), 2),
        "waited_s": round(sum(pace.waited_s for pace in paces), 2),
    }


def _evidence(config: Any) -> str:
    """Return what the takes are evidence of."""
    if config.robot.type == _arms.EMBEDDED:
        return "sim-to-sim" if config.robot.gaps or config.robot.conditions else "sim"
    station = _arms.station_for(config.robot, config.station)
    return "real" if station.domain is Domain.REAL else "emulated"
