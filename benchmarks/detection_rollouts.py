"""Rollouts of three policies with and without gaps, for `benchmarks detection` (sim-to-sim)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from benchmarks.sight import by_tracker
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, Tick
from gaploop.core.vocabulary import GapDimension, Outcome
from gaploop.failure_analysis.live import SignalTrack, SignalTracker

if TYPE_CHECKING:
    from gaploop.collect.rig import EmbeddedRig
    from gaploop.core.protocols import Leader

CLASSES: Final = ("act", "diffusion", "scripted")
"""The shipped ACT, a diffusion policy, and the scripted controller that the tracker drives."""
MAX_S: Final = 6.0
"""A rollout's time limit [simulated s]; successes take 3 to 4."""
SCENES: Final = 3_000_000
"""First scene: neither the training's, nor the evaluation's, nor the reference's."""
SEVERITIES: Final = (0.3, 1.0)
NOMINAL: Final = "nominal"
CHUNK: Final = 10
"""Trials in a block, and in a file."""
GAPS: Final = 5
"""Trials with a gap in a block."""


@dataclass(frozen=True)
class DetectionTrial:
    """One rollout to make.

    Attributes:
        scene: seed of the scene.
        dimension: the gap's dimension, or "nominal".
        severity: of the gap.
        gap_seed: draws its mechanism and direction; each trial is a station of its own.
        part: "fit" for what a detector may learn from, "test" for what it is judged by.
    """

    scene: int
    dimension: str
    severity: float
    gap_seed: int
    part: str


@dataclass(frozen=True)
class Rolled:
    """One rollout made.

    Attributes:
        track: its live signals.
        seen: what the policy saw, shape (frames, n_state + n_environment).
    """

    trial: DetectionTrial
    track: SignalTrack
    seen: FloatArray


def trials(seed: int, n: int) -> list[DetectionTrial]:
    """Draw `n` trials with gaps to test on, with four nominal to fit on and one to test per five.

    They come in blocks of ten, so that more trials of the same seed go on where fewer ended.
    """
    rng = np.random.default_rng([seed, 41])
    dimensions = [d.value for d in GapDimension]
    drawn: list[DetectionTrial] = []
    for block in range(max(n // GAPS, 1)):
        first = block * CHUNK
        drawn += [
            DetectionTrial(first + k, NOMINAL, 0.0, 0, "fit") for k in range(CHUNK - GAPS - 1)
        ]
        drawn.append(DetectionTrial(first + CHUNK - GAPS - 1, NOMINAL, 0.0, 0, "test"))
        for k in range(CHUNK - GAPS, CHUNK):
            place = dimensions[(block * GAPS + k) % len(dimensions)]
            severity = round(float(rng.uniform(*SEVERITIES)), 2)
            drawn.append(
                DetectionTrial(first + k, place, severity, int(rng.integers(1_000_000)), "test")
            )
    return drawn


def rolled(
    name: str,
    wanted: Sequence[DetectionTrial],
    folder: Path,
    seed: int,
    progress: Callable[[int], None],
) -> list[Rolled]:
    """Return the rollouts of one policy class, made and kept in `folder` where they aren't yet."""
    result: list[Rolled] = []
    policy = None
    for start in range(0, len(wanted), CHUNK):
        part = wanted[start : start + CHUNK]
        path = folder / f"{name}_{start:04d}.npz"
        if not path.exists():
            policy = policy or _policy(name, folder)
            with _Rigs() as rigs:
                _keep(path, [_roll(name, policy, rigs, trial, seed) for trial in part])
        result += _kept(path, part)
        progress(len(part))
    return result


def _policy(name: str, folder: Path) -> Any:
    from benchmarks.detection_policies import diffusion_policy
    from gaploop.finetune.lerobot_policy import load_policy

    if name == "act":
        return load_policy("base")
    return diffusion_policy(folder / "policies") if name == "diffusion" else name


class _Rigs:
    """The cell of a trial; the last one is kept, as long as the next trial is on it."""

    def __init__(self) -> None:
        self._rig: EmbeddedRig | None = None
        self._cell: tuple[str, float, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._rig is not None:
            self._rig.close()

    def of(self, trial: DetectionTrial) -> EmbeddedRig:
        """Return the cell with the trial's gap."""
        from gaploop.collect.rig import embedded_rig

        cell = (trial.dimension, trial.severity, trial.gap_seed)
        if self._rig is None or cell != self._cell:
            self.__exit__()
            gaps = {trial.dimension: trial.severity} if trial.dimension != NOMINAL else None
            self._rig, self._cell = embedded_rig(gaps=gaps, gap_seed=trial.gap_seed), cell
        return self._rig


def _roll(name: str, policy: Any, rigs: _Rigs, trial: DetectionTrial, seed: int) -> Rolled:
    from gaploop.collect.take import run_take

    rig, scene = rigs.of(trial), SCENES + 10_000 * seed + trial.scene
    rig.reset(scene)
    leader = _leader(name, policy, rig, scene)
    tracker = SignalTracker(rig.follower.joint_names, rig.control_hz, rig.fps)
    eyes = _Eyes(rig)
    take = run_take(rig, leader, seed=scene, max_s=MAX_S, sinks=(tracker, eyes))
    track = tracker.track(take.outcome is not Outcome.SUCCESS)
    return Rolled(trial, track, np.array(eyes.rows, dtype=np.float32))


def _leader(name: str, policy: Any, rig: EmbeddedRig, scene: int) -> Leader:
    from gaploop.collect.policy_leader import PolicyLeader

    if name == "scripted":
        return by_tracker(rig.cell, scene)
    return PolicyLeader(policy, rig.follower, rig.fps, rig.control_hz)


class _Eyes:
    """A sink that keeps what a policy sees."""

    def __init__(self, rig: EmbeddedRig) -> None:
        self._follower = rig.follower
        self.rows: list[FloatArray] = []

    def tick(self, tick: Tick) -> None:
        if tick.policy_frame and tick.environment_state is not None:
            state = self._follower.to_units(tick.state.position_rad)
            self.rows.append(np.concatenate((state, tick.environment_state)))


def _keep(path: Path, done: Sequence[Rolled]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {}
    for k, r in enumerate(done):
        arrays |= {f"t{k}": r.track.t_s, f"v{k}": r.track.values, f"s{k}": r.seen}
    notes = [{**asdict(r.trial), "failed": r.track.failed} for r in done]
    part = path.with_suffix(".part.npz")
    np.savez(part, notes=json.dumps(notes), **arrays)
    part.replace(path)


def _kept(path: Path, wanted: Sequence[DetectionTrial]) -> Iterator[Rolled]:
    with np.load(path) as kept:
        notes = json.loads(str(kept["notes"]))
        for k, note in enumerate(notes):
            failed = bool(note.pop("failed"))
            if DetectionTrial(**note) != wanted[k]:
                raise UnusableInputError(
                    f"{path} holds other trials. Name another --output_dir, or delete it."
                )
            yield Rolled(
                wanted[k], SignalTrack(kept[f"t{k}"], kept[f"v{k}"], failed), kept[f"s{k}"]
            )
