"""Reinforcement in simulation: attempts in groups on equal scenes, and more of what went better.

Group relative policy optimisation (GRPO, Shao et al. 2024, arXiv:2402.03300) for policies that plan
chunks of actions, with DAPO's wider upper clip (Yu et al. 2025, arXiv:2503.14476). A planned chunk
is the mean of a Gaussian over a few smooth offsets of it, most of which the next plan keeps:
exploration that an arm can follow, and a density in few dimensions. On each scene a policy makes a
group of attempts; an attempt's advantage is its success less its group's, by their spread. Groups
in which nearly all or nearly none succeed teach nothing and are left out. No demonstration and no
operator is needed: the cell is a station's twin, as `identify` measured it, or randomised around
it.

It is a source of batches and a learner for `training.train`, which brings checkpoints, resuming and
metrics. A round that was cut short is attempted anew.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig
from gaploop.collect.take import run_take
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import append_line, writable_folder, write_atomically, write_json
from gaploop.core.messages import FloatArray
from gaploop.core.run_record import write_run
from gaploop.core.twin import load_twin
from gaploop.core.vocabulary import Outcome
from gaploop.finetune import lerobot_act as act
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.adapt import ADAPTER, MERGED, base_of, kind_of
from gaploop.finetune.config import FinetuneConfig, TrainingCell
from gaploop.finetune.evaluate import CellSpec, rig_of, unhurried
from gaploop.finetune.lerobot_gym import attempted
from gaploop.finetune.lerobot_policy import ActPolicy, LerobotDriver, policy_id
from gaploop.finetune.pretrain import TrainedPolicy
from gaploop.finetune.training import Learner, Progress, read_checkpoint, train
from gaploop.finetune.tuning.presets import (
    PRESETS,
    REINFORCE_SPEC,
    TRACKED,
    LoraOptions,
    TrainSpec,
)
from gaploop.finetune.tuning.tracked import say_domain
from gaploop.finetune.workers import run_jobs
from gaploop.sim.lerobot_worlds import GymEnvConfig, vectors, world_of
from gaploop.sim.randomise import known_and_drawn
from gaploop.sim.world import WorldSpec

ROUNDS: Final = "rounds.jsonl"
GROUP: Final = 8
"""Attempts on each scene."""
UPDATES: Final = 6
"""Optimiser steps on a round's attempts."""
SPREAD: Final = 0.015
"""Standard deviation of the offsets, in those of the action."""
NOMINAL_SHARE: Final = 0.1
"""Of a round's scenes, those in the nominal cell, so that nothing is forgotten."""
SCENES: Final = 2_000_000
"""Scenes of attempts begin here: those of demonstrations and evaluations are others."""
USEFUL: Final = (0.1, 0.9)
"""Shares of a group that must have succeeded for it to teach anything."""
CLIP: Final = (0.2, 0.28)
"""How far below and above 1 the ratio of densities is followed."""
HELD: Final = 0.95
"""Share of an offset that the next plan's keeps: what a station needs may be one and the same
change (colored noise: Eberhard et al. 2023). At the one station where both were tried, offsets
drawn anew for each plan did as well."""
KINDS: Final = (TRACKED, "keypoint")
"""Policies that plan a chunk at once: of tracked poses, and of pictures."""
FAR: Final = 0.1
"""Divergence from the policy that made a round's attempts, beyond which it is only pulled back."""


@dataclass(frozen=True)
class Decisions:
    """Chunks that were planned in attempts, one row each.

    Attributes:
        seen: LeRobot's key to what the policy saw, normalised, shapes (b, …).
        explored: normalised actions that were executed, shape (b, execute, n_action).
        planned: what the policy planned, and the offsets were drawn about, of the same shape.
        advantage: how much better the attempt went than its group, shape (b,).
    """

    seen: Mapping[str, NDArray[Any]]
    explored: FloatArray
    planned: FloatArray
    advantage: FloatArray

    def rows(self, which: Any) -> Decisions:
        """Return some of them."""
        seen = {key: values[which] for key, values in self.seen.items()}
        return Decisions(seen, self.explored[which], self.planned[which], self.advantage[which])

    @classmethod
    def joined(cls, parts: Sequence[Decisions]) -> Decisions:
        """Return several as one."""
        seen = {k: np.concatenate([p.seen[k] for p in parts]) for k in parts[0].seen}
        rest = ("explored", "planned", "advantage")
        return cls(seen, *(np.concatenate([getattr(p, n) for p in parts]) for n in rest))


def offsets(execute: int) -> FloatArray:
    """Return what offsets are made of: one that stays and one that grows, shape (2, execute)."""
    return np.stack([np.ones(execute), np.linspace(-1.0, 1.0, execute)])


def densities(deviation: torch.Tensor, spread: float) -> torch.Tensor:
    """Return log densities, but for a constant, of chunks that deviate so from their mean.

    Args:
        deviation: shape (b, execute, n_action); what `offsets` don't span counts nothing.
    """
    basis = torch.from_numpy(np.linalg.pinv(offsets(deviation.shape[1]).T)).to(deviation.dtype)
    drawn = torch.einsum("ke,ben->bkn", basis, deviation)
    return -0.5 * (drawn / spread).square().sum((1, 2))


FIRST: Final = "first."
"""Before the key of a picture: the one that its attempt began with."""


def seen_by(policy: Any, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what a policy works a plan out from: of pictures, in the size that it sees, uint8."""
    known = {k: inputs[k] for k in policy.config.input_features}
    for camera in policy.config.image_features:
        small = functional.interpolate(known[camera], policy.config.resize_shape, mode="area")
        known[camera] = (small * 255.0).round().byte()
    return known


def planned(policy: Any, seen: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return normalised chunks with gradients, shape (b, chunk, n_action)."""
    if not policy.config.image_features:
        chunk: torch.Tensor = policy.model(dict(seen))[0]
        return chunk
    first, now = (policy.look({k: seen[at + k] for k in policy.cameras}) for at in (FIRST, ""))
    return cast(torch.Tensor, policy.plan(first, now, seen[act.STATE])[0])


class Explorer:
    """Drives with a policy's plans and random offsets, and remembers both.

    Args:
        spread: of the offsets, in standard deviations of the action; 0 for none.

    Attributes:
        driver: the policy, which now explores.
        kept: what was seen, normalised actions and plan of each decision of an attempt.
    """

    def __init__(self, bundle: act.ActBundle, spread: float) -> None:
        self._policy, self.spread = bundle.policy, spread
        sees = bool(bundle.policy.config.image_features)
        self.driver: ActPolicy = (LerobotDriver if sees else ActPolicy)(bundle)
        bundle.policy.predict_action_chunk = self._explored
        self.begin(np.random.default_rng(0))

    def begin(self, rng: np.random.Generator) -> None:
        """Begin an attempt."""
        self.rng = rng
        self.kept: list[tuple[dict[str, NDArray[Any]], FloatArray, FloatArray]] = []
        self._first: dict[str, torch.Tensor] = {}
        self._drawn: FloatArray = np.zeros(0)

    def _explored(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return a normalised chunk with offsets, shape (1, execute, n_action)."""
        policy = self._policy
        with torch.inference_mode():
            seen = seen_by(policy, inputs)
            pictures = policy.config.image_features
            self._first = self._first or {FIRST + k: seen[k] for k in pictures}
            seen |= self._first
            mean = planned(policy, seen)[:, : self.driver.execute]
        basis = offsets(mean.shape[1])
        drawn = self.rng.normal(size=(len(basis), mean.shape[2]))
        if self.kept:
            drawn = HELD * self._drawn + math.sqrt(1 - HELD**2) * drawn
        self._drawn = drawn
        tried = torch.from_numpy((basis.T @ (self.spread * drawn))[None])
        explored = mean + tried.to(mean.dtype)
        shown = {k: v[0].numpy().copy() for k, v in seen.items()}
        self.kept.append((shown, explored[0].numpy().copy(), mean[0].numpy().copy()))
        return explored


@dataclass(frozen=True)
class TwinWorld:
    """A simulation of others as a station of it was measured."""

    env: GymEnvConfig
    spec: WorldSpec

    @property
    def nominal(self) -> TwinWorld:
        """The simulation as its owner has it."""
        return replace(self, spec=WorldSpec(roles=self.spec.roles))

    @property
    def is_target(self) -> bool:
        """Whether it isn't the nominal one."""
        return not self.spec.is_nominal


@dataclass(frozen=True)
class SceneGroup:
    """One scene to attempt, as plain data that can go to another process."""

    base: Path
    lora: LoraOptions
    weights: Mapping[str, torch.Tensor]
    cell: CellSpec | TwinWorld
    scene: int
    seed: tuple[int, ...]


_loaded: dict[str, Any] = {}
"""What a process keeps between groups: policy and rigs."""


def _close_rigs() -> None:
    for rig in _loaded.pop("rigs", {}).values():
        rig.close()
    _loaded.clear()


def in_cell(explorer: Explorer, job: SceneGroup) -> bool:
    """Attempt a scene once; say whether it succeeded."""
    key, spec = repr(job.cell), job.cell
    if isinstance(spec, TwinWorld):
        if key not in _loaded["rigs"]:
            (_loaded["rigs"][key],) = vectors(spec.env, spec.spec).values()
        bundle = explorer.driver.bundle
        return attempted(bundle, spec.env, _loaded["rigs"][key], job.scene)
    if key not in _loaded["rigs"]:
        made = rig_of(spec)
        sees = isinstance(explorer.driver, LerobotDriver)
        _loaded["rigs"][key] = unhurried(made) if sees else made
    rig: EmbeddedRig = _loaded["rigs"][key]
    leader = PolicyLeader(explorer.driver, rig.follower, rig.fps, rig.control_hz)
    return run_take(rig, leader, seed=job.scene, max_s=spec.max_s).outcome is Outcome.SUCCESS


def attempts(
    job: SceneGroup, attempt: Callable[[Explorer, SceneGroup], bool] = in_cell
) -> tuple[int, list[bool], list[Decisions]]:
    """Attempt a scene `GROUP` times; return it, outcomes, and decisions that teach anything."""
    if _loaded.get("base") != (job.base, job.lora):
        _close_rigs()
        # Before the interpreter's own exit handlers: those end EGL, the renderer needs it.
        Finalize(None, _close_rigs, exitpriority=10)
        bundle = act.load(job.base)
        module = adapter.wrap(bundle.policy, job.base, job.lora)
        explorer = Explorer(bundle, SPREAD)
        _loaded.update(base=(job.base, job.lora), explorer=explorer, module=module, rigs={})
    own = dict(_loaded["module"].named_parameters())
    with torch.no_grad():
        for name, value in job.weights.items():
            own[name].copy_(value)
    _loaded["module"].eval()
    explorer = _loaded["explorer"]
    won, kept = [], []
    for member in range(GROUP):
        explorer.begin(np.random.default_rng([*job.seed, member]))
        won.append(attempt(explorer, job))
        kept.append(explorer.kept)
    share = float(np.mean(won))
    if not USEFUL[0] <= share <= USEFUL[1]:
        return job.scene, won, []
    found = []
    for is_won, decisions in zip(won, kept, strict=True):
        advantage = (is_won - share) / np.std(won)
        shown = [seen for seen, _, _ in decisions]
        seen = {k: np.stack([one[k] for one in shown]) for k in shown[0]}
        tried, meant = (np.stack([d[k] for d in decisions]) for k in (1, 2))
        found.append(Decisions(seen, tried, meant, np.full(len(decisions), advantage)))
    return job.scene, won, found


class Rounds:
    """Attempts in rounds, handed out in parts: what `training.train` draws batches from.

    Args:
        spec: `steps` rounds of `batch_size` attempts.
        cell: where; some of a round's attempts are in the nominal one.
        told: called with each round's successes, by what it is called in `rounds.jsonl`.
    """

    def __init__(
        self, spec: TrainSpec, cell: CellSpec | TwinWorld, workers: int, learner: GroupLearner,
        base: Path, lora: LoraOptions, told: Callable[[Mapping[str, float]], None],
        attempts: Callable[[SceneGroup], tuple[int, list[bool], list[Decisions]]] = attempts,
    ) -> None:  # fmt: skip
        self._spec, self._cell, self._workers, self._lora = spec, cell, workers, lora
        self._learner, self._base, self._told, self._attempts = learner, base, told, attempts

    def stream(self, first: int) -> Iterator[Decisions]:
        """Yield the parts of rounds, beginning with the round of step `first`."""
        cell, seed, scenes = self._cell, self._spec.seed, self._spec.batch_size // GROUP
        nominal = cell.nominal
        apart = round(NOMINAL_SHARE * scenes) if cell != nominal else 0
        begin, barren = first // UPDATES, 0
        for number in range(begin, self._spec.steps):
            module = self._learner.module
            weights = {
                n: p.detach().clone() for n, p in module.named_parameters() if p.requires_grad
            }
            jobs = [
                SceneGroup(
                    self._base, self._lora, weights, nominal if k < apart else cell,
                    SCENES + number * scenes + k, (seed, number, k),
                )
                for k in range(scenes)
            ]  # fmt: skip
            done = sorted(run_jobs(self._attempts, jobs, self._workers), key=lambda group: group[0])
            away = [w for _, won, _ in done[:apart] for w in won]
            success = float(np.mean([w for _, won, _ in done[apart:] for w in won]))
            parts = [part for _, _, found in done for part in found]
            self._told(
                {
                    "round": number,
                    "success": success,
                    "nominal": float(np.mean(away)) if away else float("nan"),
                    "groups": sum(bool(found) for _, _, found in done) / len(done),
                    "decisions": sum(len(part.advantage) for part in parts),
                }
            )
            decisions = Decisions.joined(parts) if parts else None
            barren = barren + 1 if decisions is None and success < 0.5 else 0
            if barren > 5:
                raise UnusableInputError(
                    "In six rounds whole groups of attempts failed: nothing shows what is better. "
                    "Begin with a policy that sometimes succeeds there."
                )
            rng = np.random.default_rng([seed, number, 1])
            skip = first % UPDATES if number == begin else 0
            many = 0 if decisions is None else len(decisions.advantage)
            for part in np.array_split(rng.permutation(many), UPDATES)[skip:]:
                yield decisions.rows(part) if decisions is not None else _NOTHING


_NOTHING: Final = Decisions({}, *(np.zeros(0) for _ in range(3)))


@dataclass
class GroupLearner(Learner):
    """A policy with an adapter that learns from groups of attempts; rounds tell its success."""

    bundle: act.ActBundle
    module: torch.nn.Module
    spread: float = SPREAD

    def loss(self, batch: Decisions) -> torch.Tensor:
        """Return the clipped surrogate of the advantages, negative, and the divergence.

        Clipping alone doesn't hold an optimiser that takes a step of the same size however little
        a gradient says: the divergence from the policy that made the attempts does. 0 where
        nothing was learned.
        """
        if not len(batch.advantage):
            own = [p.sum() for p in self.module.parameters() if p.requires_grad]
            return 0.0 * torch.stack(own).sum()
        seen = {key: torch.from_numpy(values) for key, values in batch.seen.items()}
        explored, then = torch.from_numpy(batch.explored), torch.from_numpy(batch.planned)
        now = planned(self.bundle.policy, seen)[:, : explored.shape[1]]
        divergence = -densities(now - then, self.spread).mean()
        if divergence > FAR:
            return divergence
        advantage = torch.from_numpy(batch.advantage).float()
        change = densities(explored - now, self.spread) - densities(explored - then, self.spread)
        ratio = torch.exp(change.clamp(-10, 10))
        clipped = ratio.clamp(1.0 - CLIP[0], 1.0 + CLIP[1])
        return divergence - torch.minimum(ratio * advantage, clipped * advantage).mean()


def reinforce(
    config: FinetuneConfig,
    cell: CellSpec | TwinWorld | None = None,
    progress: Progress | None = None,
    told: Callable[[Mapping[str, float]], None] = lambda _: None,
    attempts: Callable[[SceneGroup], tuple[int, list[bool], list[Decisions]]] = attempts,
) -> TrainedPolicy:
    """Reinforce a policy in simulation and write an adapter, as `adapt.adapt` does.

    `steps` rounds of `batch_size` attempts; OUT/rounds.jsonl has each round's success. With
    `resume` a checkpoint is gone on with.

    Args:
        cell: where it attempts; what `config.env` names unless given, of a simulation of yours
            its twin.
        told: called after each round with its line of `rounds.jsonl`.
        attempts: makes those of a group; in the embedded cell unless given.

    Raises:
        UnusableInputError: a policy that isn't one of `KINDS`, sizes that can't be,
            or six rounds from which nothing could be learned.
    """
    named, folder = config.policy.path, config.folder
    base, cell = base_of(named), cell or _where(config.env)
    if (kind := kind_of(base)) not in KINDS:
        raise UnusableInputError(
            f"Policy {named} is of type {kind}. Only base, base_vision, what was tuned from them "
            "and an ACT that sees no pictures is reinforced. Others: gaploop record "
            "--robot.twin=FILE, then finetune."
        )
    spec, lora = config.spec(REINFORCE_SPEC), PRESETS[f"{kind}_lora"].lora
    if spec.batch_size < GROUP:
        raise UnusableInputError(
            f"--batch_size={spec.batch_size} must be at least {GROUP}: so often each scene is "
            "attempted in a round."
        )
    writable_folder(folder)
    torch.manual_seed(spec.seed)
    bundle = act.load(base)
    module = adapter.wrap(bundle.policy, base, lora)
    learner = GroupLearner(bundle, module)
    state = read_checkpoint(folder) if config.resume else None
    held = state["step"] // UPDATES if state else 0
    lines = (folder / ROUNDS).read_text().splitlines() if (folder / ROUNDS).exists() else []
    kept = [line for line in lines if json.loads(line)["round"] < held]
    write_atomically(folder / ROUNDS, "".join(f"{line}\n" for line in kept))

    def tell(line: Mapping[str, float]) -> None:
        append_line(folder / ROUNDS, json.dumps(line))
        told(line)

    rounds = Rounds(spec, cell, config.num_workers or 2, learner, base, lora, tell, attempts)
    steps = replace(
        spec, steps=spec.steps * UPDATES, batch_size=GROUP, checkpoint_every=UPDATES,
        log_every=UPDATES,
    )  # fmt: skip
    result = train(learner, rounds, steps, folder, resume=config.resume, progress=progress)
    say_domain(bundle, cell.is_target)
    adapter.save(module, bundle, base, folder / ADAPTER, merge=True)
    identity, merged = policy_id(folder / ADAPTER), policy_id(folder / MERGED)
    chosen = {
        **config.record(),
        "base": named,
        "cell": json.loads(json.dumps(asdict(cell), default=str)),
        "spec": asdict(spec),
    }
    ended = {"policy": identity, "merged": merged, **asdict(result)}
    write_run(
        folder, "reinforce", chosen, (), ended,
        seed=spec.seed, base=policy_id(base), base_folder=base,
    )  # fmt: skip
    write_json(folder / "result.json", {"schema": "gaploop.training.v1", **asdict(result)})
    return TrainedPolicy(folder / ADAPTER, folder / MERGED, folder, identity, result, ())


def _where(env: TrainingCell) -> CellSpec | TwinWorld:
    """Return the simulation that options name."""
    twin = load_twin(env.twin) if env.twin else None
    if twin is None or not twin.world:
        return CellSpec(**env.cell())
    made, roles = world_of(twin)
    known, drawn = known_and_drawn(env.twin, env.randomise)
    return TwinWorld(made, WorldSpec(roles=roles, parameters=known, randomise=drawn))
