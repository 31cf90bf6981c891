"""Roll a policy out on the embedded cell and count: the same loop as recording, many seeds.

A rollout's numbers stay in memory, so that what went wrong in it can be told without recording it.
Rollouts that `gaploop rollout` recorded are counted likewise, by what was set up.
"""

import json
import math
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from gaploop.collect.journal import FrameRow, Recorder, channels
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig, Rig, cell_tracker
from gaploop.collect.take import TakeResult, run_take
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import CameraFrame, FloatArray
from gaploop.core.protocols import Policy
from gaploop.core.station import SIM_STATION
from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.twin import as_yaml
from gaploop.core.vocabulary import INSTRUCTION, SEEN, Domain, Outcome, TakeKind, set_up
from gaploop.datasets.lerobot_read import load_takes
from gaploop.failure_analysis.modes import failure_mode
from gaploop.failure_analysis.reference import Ground, ground_of
from gaploop.failure_analysis.signals.registry import measure
from gaploop.failure_analysis.station import limited_to_tier
from gaploop.failure_analysis.views.view import TakeView
from gaploop.finetune.demonstrations import TargetCell
from gaploop.finetune.evaluation import NOMINAL, Evaluation, Rollout, RolloutLog, summarise
from gaploop.finetune.lerobot_policy import ActPolicy, load_policy, policy_id, resolve
from gaploop.finetune.workers import run_jobs
from gaploop.sim.catalogue import arm_named, wording
from gaploop.sim.cell import CellCamera
from gaploop.sim.conditions import parse_conditions

MAX_S: Final = 8.0
LONGEST_S: Final = 30.0
"""A rollout's time limit [simulated s]; the scripted demonstrations take 3 to 4."""
EVALUATION_SEEDS: Final = 1_000_000
"""Scenes of evaluations begin here, demonstrations at 0: a policy never meets a scene it saw."""
LATER: Final = (
    "speed_scale",
    "robot",
    "parameters",
    "randomise",
    "cameras",
    "sees",
    "policy_fps",
    "policy_format",
)
"""Of `CellSpec`, what settings.json holds only where it isn't as usual."""
NOT_KEPT: Final = ("device", "threads")
"""What decides how long rollouts take, not what comes of them."""
TAKEN_OVER: Final = "a person took over"
CHUNK: Final = 4
"""Rollouts that a worker does between two reports; keeps both workers busy until the end."""


class MemoryTake:
    """What a `Recorder` writes to, in place of a journal: all numbers, no pictures."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._units = channels(rig.follower, rig.sensors)
        self._t_ns: list[int] = []
        self._rows: list[FloatArray] = []
        self._frames: list[FrameRow] = []

    def event(self, t_s: float, name: str, **details: Any) -> None:
        """Pass over: events are in the rows, too."""

    def telemetry(self, t_ns: int, values: FloatArray) -> None:
        """Keep a row of telemetry."""
        self._t_ns.append(t_ns)
        self._rows.append(values.copy())

    def frame(self, row: FrameRow) -> None:
        """Keep a policy frame but its pictures."""
        self._frames.append(replace(row, pictures={}))

    def take(self, outcome: Outcome) -> Take:
        """Return the take as `read_take` would return it from a journal, without pictures."""
        rig = self._rig
        info = TakeInfo(
            uid="",
            fps=rig.fps,
            kind=TakeKind.ROLLOUT,
            domain=rig.domain,
            joint_names=rig.follower.joint_names,
            robot_type=rig.follower.robot_type,
            units=rig.follower.units,
        )
        t_ns = np.array(self._t_ns, dtype=np.int64)
        values = np.array(self._rows).reshape(len(t_ns), len(self._units))
        columns = dict(zip(self._units, values.T, strict=True))
        telemetry = Telemetry((t_ns - t_ns[:1].sum()) * 1e-9, columns, self._units)
        rows, frames = self._frames, Frames.empty(len(rig.follower.joint_names))
        if rows:
            names = [f.name for f in fields(Frames)[:-2]]  # a row's are called the same
            arrays: dict[str, Any] = {n: np.array([getattr(r, n) for r in rows]) for n in names}
            ages = {c: np.array([r.camera_age_s[c] for r in rows]) for c in rows[0].camera_age_s}
            tracked = rig.header(info).environment_state_names
            frames = Frames(**arrays, camera_age_s=ages, environment_names=tracked)
        return Take(info, outcome, frames, telemetry)


def category(take: Take, sees: str = "scene") -> tuple[str, str]:
    """Return a failed take's failure mode and phase; "" for what can't be told.

    Args:
        sees: an evidence tier, `lerobot`, `telemetry` or `scene`: what is above it isn't looked at.

    Labels come first. Without one the rules of `gaploop diagnose` look at motion, effort and the
    tracked scene; pictures, which only they can decode slowly, aren't looked at.
    """
    if take.failure_mode:
        return take.failure_mode, take.phase
    # Here: most rollouts of a good policy need none of it.

    take = limited_to_tier(take, sees)
    view = TakeView(take, images=False)
    call = failure_mode(view, measure(view))
    return (call.mode or "", call.phase or "")


def attempt_s(takes: Iterable[Take], arm: str) -> float:
    """Return how long a policy tries in a station's twin [simulated s]: as long as there.

    No shorter than usual, for a person may end attempts early, and no longer than `LONGEST_S`.
    """
    driven = (t.duration_s for t in takes if t.info.kind is not TakeKind.DEMONSTRATION)
    longest_s = min(float(math.ceil(max(driven, default=0.0))), LONGEST_S)
    return max(MAX_S * len(arm_named(arm).arms), longest_s)


class _Undrawn:
    """A picture that is drawn when somebody looks at it."""

    dtype, ndim = np.dtype(np.uint8), 3

    def __init__(self, draw: Callable[[], CameraFrame], width: int, height: int) -> None:
        self._draw, self.shape = draw, (height, width, 3)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._draw().image, dtype=dtype, copy=copy)


class _Unhurried(CellCamera):
    """A camera of which most pictures are never drawn: a policy looks once for each plan."""

    def frame(self) -> CameraFrame:
        """Return the newest picture; how old it is isn't told."""
        size_px = next(v.size_px for v in self._cell.views if v.name == self.name)
        return CameraFrame(cast(Any, _Undrawn(super().frame, *size_px)), self._cell.now_s)


def unhurried(rig: EmbeddedRig) -> EmbeddedRig:
    """Return a rig that draws what its policy looks at; nothing else is tracked in pictures."""
    cameras = tuple(_Unhurried(rig.cell, view.name) for view in rig.cell.views)
    return replace(rig, cameras=cameras, tracker=None)


@dataclass(frozen=True, kw_only=True)
class CellSpec(TargetCell):
    """The cell a policy is tried on, as plain data that can go to another process.

    Attributes:
        max_s: longest rollout [simulated s].
        domain: what the policy is told of where it is, 0 for simulation and 1 for the target cell;
            None for what each condition makes it.
        speed_scale: as of `PolicyLeader`; a rollout gets as much more time.
        sees: by which evidence failure modes are told; as of `category`.
        policy_fps: frames a second that the policy was trained at [Hz]; None for what it says
            itself.
        policy_format: how it computes, one of `FORMATS`; "" for fp32.
        device, threads: as of `load_policy`.
    """

    max_s: float = MAX_S
    domain: float | None = None
    speed_scale: float = 1.0
    sees: str = "scene"
    policy_fps: float | None = None
    policy_format: str = ""
    device: str = "cpu"
    threads: int = 0

    @property
    def nominal(self) -> "CellSpec":
        """The embedded cell as it is, with the same task and arm."""
        return CellSpec(task=self.task, robot=self.robot, max_s=self.max_s)

    @property
    def is_target(self) -> bool:
        """Whether it stands for a real cell."""
        return bool(self.parameters or self.gaps)

    def load(self, path: str) -> ActPolicy:
        """Load the policy that is tried."""
        return load_policy(
            path, fps=self.policy_fps, format=self.policy_format, device=self.device,
            threads=self.threads,
        )  # fmt: skip


def evaluate(
    policy_path: str | Path,
    n: int = 100,
    *,
    conditions: Sequence[Mapping[str, Any]] = (),
    seed: int = 0,
    workers: int = 2,
    max_s: float | None = None,
    base: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    on_rollouts: Callable[[Sequence[Rollout]], None] = lambda _rollouts: None,
    on_cores: Callable[[int], None] = lambda _cores: None,
    ray: str = "",
    where: str = "",
    **cell: Any,
) -> Evaluation:
    """Try a policy on `n` scenes under each condition.

    Equal `seed` gives equal scenes whatever policy, gaps and conditions: results pair up.

    Args:
        policy_path: as for `load_policy`.
        conditions: settings to try one at a time; the plain cell if there are none.
        workers: processes; 1 stays in this one.
        max_s: longest rollout [simulated s]; None for `MAX_S` for each arm of the cell.
        base: the setting that the others are variations of, one of `conditions`. The policy is
            then told the same domain under all of them, so that only what is varied differs.
        folder: keeps every rollout as it comes; what it holds of this policy in this cell isn't
            rolled out again.
        on_rollouts: called with the rollouts just finished, those that `folder` held first.
        on_cores: called with the number of processes that roll out.
        ray: address of a Ray cluster that does the work, such as `auto`; "" for `workers` here.
        where: what the cell is made like, in words; "" for nominal.
        cell: what of `CellSpec` isn't as usual, under every condition.

    Raises:
        UnusableInputError: no rollouts asked for, an unknown gap or condition, no policy, or a
            folder with rollouts of something else.
    """
    if n < 1:
        raise UnusableInputError(f"--n={n} must be at least 1; 100 gives ±10 points or better.")
    found = resolve(policy_path)
    cell = {name: value for name, value in cell.items() if value is not None}
    spec = CellSpec(**cell)
    # Does the cell stand for a real one?
    injected = any(severity > 0 for severity in spec.gaps.values())
    is_target = bool(base or spec.parameters) or injected
    arm = arm_named(spec.robot)
    spec = replace(
        spec,
        gaps=dict(spec.gaps),
        parameters=dict(spec.parameters),
        cameras=dict(spec.cameras),
        robot=arm.name,
        max_s=MAX_S * len(arm.arms) if max_s is None else max_s,
        domain=None if base is None else float(is_target),
    )
    for condition in conditions:
        SIM_STATION.check_conditions(laid := _laid(condition), "--env.conditions")
        parse_conditions(laid)
        wording(CellSpec.task, condition.get(INSTRUCTION, SEEN), 0)
    settings = {condition_name(c): c for c in list(conditions) or [{}]}
    # On other machines a policy that isn't a folder here is fetched or found by its name.
    path = str(policy_path) if ray and not Path(policy_path).exists() else str(found)
    identity, seeds = policy_id(found), range(seed, seed + n)
    log = RolloutLog(folder, {"policy": identity, **_plain(spec)}) if folder else None
    held = log.held if log else {}
    rollouts = [held[name, s] for name in settings for s in seeds if (name, s) in held]
    jobs = []
    for name, condition in settings.items():
        lacking = [s for s in seeds if (name, s) not in held]
        jobs += [
            CellJob(path, identity, spec, condition, tuple(lacking[i : i + CHUNK]))
            for i in range(0, len(lacking), CHUNK)
        ]
    on_rollouts(rollouts)
    one = len(jobs) == 1
    try:
        for done in run_jobs(_run, jobs, 1 if one else workers, ray if jobs else "", on_cores):
            rollouts += done
            if log:
                log.add(done)
            on_rollouts(done)
    finally:  # workers keep policy and rig for the next call
        _station.close()
        _station.policy = None
    return summarise(
        rollouts,
        domain=Domain.SIM_TARGET if is_target or any(settings.values()) else Domain.SIM,
        policy=identity,
        gaps=spec.gaps,
        gap_seed=spec.gap_seed,
        base=condition_name(base or {}),
        where=where,
    )


def _plain(spec: CellSpec) -> dict[str, Any]:
    known, usual = {"gaps": dict(spec.gaps), **vars(spec)}, vars(CellSpec())
    # Folders from before there were these are gone on with.
    value = {
        n: v for n, v in known.items() if n not in NOT_KEPT and (n not in LATER or v != usual[n])
    }
    if spec.randomise is not None:
        value["randomise"] = as_yaml(spec.randomise)
    return value


def rig_of(
    spec: CellSpec, condition: Mapping[str, Any] | None = None, fps: float | None = None
) -> EmbeddedRig:
    """Return the cell that a policy is tried on, under one condition, at its frame rate [Hz]."""
    rig = spec.rig(condition, fps)
    if rig.cell.conditions.fidelity == "traced":
        return unhurried(rig)
    if spec.domain is None:
        return rig
    return replace(rig, tracker=cell_tracker(rig.cell, spec.domain))


def attempts(
    rig: EmbeddedRig,
    policy: Policy,
    seeds: Sequence[int],
    max_s: float,
    speed_scale: float = 1.0,
) -> Iterator[tuple[TakeResult, Take]]:
    """Yield of each scene how the attempt ended, and what it showed in numbers."""
    rig = rig.seen_by(policy)
    leader = PolicyLeader(policy, rig.follower, rig.fps, rig.control_hz)
    leader.speed_scale = speed_scale
    for seed in seeds:
        memory = MemoryTake(rig)
        sinks = (Recorder(memory, rig.follower),)
        longest_s = max_s / speed_scale
        ended = run_take(rig, leader, seed=EVALUATION_SEEDS + seed, max_s=longest_s, sinks=sinks)
        yield ended, memory.take(ended.outcome)


def roll_out(
    rig: EmbeddedRig,
    policy: Policy,
    seeds: Sequence[int],
    condition: str,
    max_s: float,
    speed_scale: float = 1.0,
    sees: str = "scene",
) -> list[Rollout]:
    """Try a policy on a few scenes of one rig, without recording."""
    results = []
    tried = attempts(rig, policy, seeds, max_s, speed_scale)
    for seed, (ended, take) in zip(seeds, tried, strict=True):
        won = take.outcome is Outcome.SUCCESS
        mode, phase = ("", "") if won else category(take, sees)
        results.append(
            Rollout(seed, condition, won, ended.duration_s, ended.reason, "", mode, phase)
        )
    return results


def recorded(
    folder: Path,
    policy: str = "",
    progress: Callable[[int], None] = lambda _takes: None,
) -> tuple[Evaluation, dict[str, int]]:
    """Count a policy's rollouts in a dataset or journal.

    Failure modes are those of labels; only in the embedded cell, where the rules were fitted, they
    are told without. What a person finished is no success of the policy, however it ended. Also
    returned is why takes don't count, in words, to how many.

    Args:
        folder: a journal, or a dataset published from one.
        policy: id of the policy; needed where the takes are of several.

    Raises:
        UnusableInputError: no rollouts that were judged, of several policies, or of both a real
            and a simulated cell.
    """
    rollouts, left_out = list[Rollout](), Counter[str]()
    domains, policies, stations = set[Domain](), Counter[str](), set[str]()
    for number, take in enumerate(load_takes(folder)):
        progress(1)
        info = take.info
        if info.kind is not TakeKind.ROLLOUT:
            left_out["not rollouts"] += 1
        elif take.outcome is Outcome.UNLABELLED:
            left_out["not judged yet"] += 1
        elif take.outcome not in (Outcome.SUCCESS, Outcome.FAILURE):
            left_out[take.outcome.value] += 1
        elif policy and info.policy != policy:
            left_out["of another policy"] += 1
        else:
            helped = bool(take.frames.intervention.any())
            is_won = take.outcome is Outcome.SUCCESS and not helped
            reason = TAKEN_OVER if helped else "" if is_won else "failure"
            mode, phase = take.failure_mode, take.phase
            if take.outcome is Outcome.FAILURE and ground_of([take]) is Ground.CELL:
                mode, phase = category(take)
            name = condition_name(set_up(info.conditions))
            lasted_s, uid = take.duration_s, info.uid
            rollouts.append(Rollout(number, name, is_won, lasted_s, reason, uid, mode, phase))
            domains.add(info.domain)
            policies[info.policy] += 1
            stations.add(info.station)
    if not rollouts:
        why = "; ".join(f"{n} {words}" for words, n in left_out.items()) or "no episodes at all"
        raise UnusableInputError(
            f"{folder} holds no judged rollouts of this policy ({why}). Record some with gaploop "
            "rollout; say how episodes went with gaploop review or label."
        )
    if len(domains) > 1 and Domain.REAL in domains:
        raise UnusableInputError(
            f"{folder} mixes real and simulated rollouts. Split them with gaploop edit split, or "
            "compare them with gaploop diagnose --factors --sim."
        )
    if len(policies) > 1:
        each = ", ".join(f"{name or 'unknown'} ({n})" for name, n in policies.most_common())
        raise UnusableInputError(
            f"{folder} holds rollouts of several policies: {each}. Say which with --policy.path."
        )
    evaluation = summarise(
        rollouts,
        domain=Domain.SIM_TARGET if Domain.SIM_TARGET in domains else next(iter(domains)),
        policy=next(iter(policies)),
        paired=False,
        where=", ".join(sorted(stations - {""})),
    )
    return evaluation, dict(left_out)


def condition_name(condition: Mapping[str, Any]) -> str:
    """Return how results name a condition: `key=value`, or `nominal` where nothing is set."""
    parts = [f"{k}={json.dumps(v) if not isinstance(v, str) else v}" for k, v in condition.items()]
    return ", ".join(sorted(parts)) or NOMINAL


@dataclass(frozen=True)
class CellJob:
    """A few rollouts, as plain data that can go to another process."""

    path: str
    policy: str
    spec: CellSpec
    condition: Mapping[str, Any]
    seeds: tuple[int, ...]


@dataclass(eq=False)
class _Station:
    """What a process keeps between jobs: the policy and the rig it used last."""

    policy: ActPolicy | None = None
    policy_id: str = ""
    loaded: tuple[str, str, int] = "", "", 0
    rig: EmbeddedRig | None = None
    cell: tuple[CellSpec, Mapping[str, Any], float] | None = None

    def policy_for(self, job: CellJob) -> ActPolicy:
        loaded = (job.spec.policy_format, job.spec.device, job.spec.threads)
        if self.policy is None or (self.policy_id, self.loaded) != (job.policy, loaded):
            if (found := policy_id(job.path)) != job.policy:
                raise UnusableInputError(
                    f"{job.path} on {socket.gethostname()} is policy {found}, not {job.policy}. "
                    "Give every machine the same files, or name the policy on the Hub."
                )
            self.policy, self.policy_id, self.loaded = job.spec.load(job.path), job.policy, loaded
        return self.policy

    def rig_for(self, job: CellJob, fps: float) -> EmbeddedRig:
        wanted = (job.spec, condition := _laid(job.condition), fps)
        if self.rig is None or self.cell != wanted:
            self.close()
            self.rig, self.cell = rig_of(job.spec, condition, fps), wanted
            # Before the interpreter's own exit handlers: those end EGL, the renderer needs it.
            Finalize(self, self.close, exitpriority=10)
        return self.rig

    def close(self) -> None:
        if self.rig is not None:
            self.rig.close()
            self.rig = None


_station = _Station()


def ready(job: CellJob) -> tuple[EmbeddedRig, ActPolicy]:
    """Return rig and policy of a job; a process keeps them for its next one."""
    policy = _station.policy_for(job)
    rig = _station.rig_for(job, policy.fps)
    policy.task = rig.cell.instruction
    return rig, policy


def _run(job: CellJob) -> list[Rollout]:
    rig, policy = ready(job)
    name, spec, rollouts = condition_name(job.condition), job.spec, list[Rollout]()
    for seed in job.seeds:
        policy.task = wording(spec.task, job.condition.get(INSTRUCTION, SEEN), seed)
        rollouts += roll_out(rig, policy, [seed], name, spec.max_s, spec.speed_scale, spec.sees)
    return rollouts


def _laid(condition: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is set up in the cell: all but how the policy is told its task."""
    return {name: value for name, value in condition.items() if name != INSTRUCTION}
