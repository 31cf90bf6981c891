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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig
from gaploop.collect.take import run_take
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import append_line, writable_folder, write_atomically, write_json
from gaploop.core.messages import FloatArray
from gaploop.core.run_record import write_run
from gaploop.core.vocabulary import Outcome
from gaploop.finetune import lerobot_act as act
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.adapt import ADAPTER, MERGED, base_of, is_tracked
from gaploop.finetune.batches import Batch
from gaploop.finetune.config import FinetuneConfig
from gaploop.finetune.evaluate import CellSpec, rig_of
from gaploop.finetune.lerobot_policy import ActPolicy, policy_id
from gaploop.finetune.pretrain import TrainedPolicy
from gaploop.finetune.training import Learner, Progress, read_checkpoint, train
from gaploop.finetune.tuning.presets import PRESETS, REINFORCE_SPEC, LoraOptions, TrainSpec
from gaploop.finetune.tuning.tracked import say_domain
from gaploop.finetune.workers import run_jobs

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
FAR: Final = 0.1
"""Divergence from the policy that made a round's attempts, beyond which it is only pulled back."""


@dataclass(frozen=True)
class Decisions:
    """Chunks that were planned in attempts, one row each.

    Attributes:
        state, environment: what the policy saw, shapes (b, n_state) and (b, n_environment).
        explored: normalised actions that were executed, shape (b, execute, n_action).
        planned: what the policy planned, and the offsets were drawn about, of the same shape.
        advantage: how much better the attempt went than its group, shape (b,).
    """

    state: FloatArray
    environment: FloatArray
    explored: FloatArray
    planned: FloatArray
    advantage: FloatArray

    def rows(self, which: Any) -> Decisions:
        """Return some of them."""
        return Decisions(*(getattr(self, name)[which] for name in vars(self)))


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


class Explorer(ActPolicy):
    """Drives with a policy's plans and random offsets, and remembers both.

    Args:
        spread: of the offsets, in standard deviations of the action; 0 for none.
    """

    def __init__(self, bundle: act.ActBundle, spread: float) -> None:
        super().__init__(bundle)
        self.spread = spread
        self.rng = np.random.default_rng(0)
        self.kept: list[tuple[FloatArray, ...]] = []
        """State, environment, normalised actions and plan of each decision since it was last
        emptied."""
        self._drawn: FloatArray = np.zeros(0)

    def predict(self, batch: Batch) -> FloatArray:
        """Return a chunk with offsets, shape (1, execute, n_action), in LeRobot units."""
        tensors = act.to_tensors(batch)
        with torch.inference_mode():
            known = {k: tensors[k] for k in (act.STATE, act.ENVIRONMENT)}
            chunk = self.bundle.policy.predict_action_chunk(self.bundle.preprocessor(known))
            mean = chunk[:, : self.execute]
            basis = offsets(mean.shape[1])
            drawn = self.rng.normal(size=(len(basis), mean.shape[2]))
            if self.kept:
                drawn = HELD * self._drawn + math.sqrt(1 - HELD**2) * drawn
            self._drawn = drawn
            tried = torch.from_numpy((basis.T @ (self.spread * drawn))[None])
            explored = mean + tried.to(mean.dtype)
            plans = (explored[0].numpy().copy(), mean[0].numpy().copy())
            self.kept.append((batch.state[0], batch.environment[0], *plans))
            answer = self.bundle.postprocessor(explored)
        return np.asarray(answer.cpu().numpy(), dtype=np.float64)


@dataclass(frozen=True)
class SceneGroup:
    """One scene to attempt, as plain data that can go to another process."""

    base: Path
    lora: LoraOptions
    weights: Mapping[str, torch.Tensor]
    cell: CellSpec
    scene: int
    seed: tuple[int, ...]


_loaded: dict[str, Any] = {}
"""What a process keeps between groups: policy and rigs."""


def _close_rigs() -> None:
    for rig in _loaded.pop("rigs", {}).values():
        rig.close()
    _loaded.clear()


def in_cell(explorer: Explorer, job: SceneGroup) -> bool:
    """Attempt a scene of the embedded cell once; say whether it succeeded."""
    key, spec = repr(job.cell), job.cell
    if key not in _loaded["rigs"]:
        _loaded["rigs"][key] = rig_of(spec)
    rig: EmbeddedRig = _loaded["rigs"][key]
    leader = PolicyLeader(explorer, rig.follower, rig.fps, rig.control_hz)
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
        _loaded.update(base=(job.base, job.lora), bundle=bundle, module=module, rigs={})
    own = dict(_loaded["module"].named_parameters())
    with torch.no_grad():
        for name, value in job.weights.items():
            own[name].copy_(value)
    _loaded["module"].eval()
    explorer = Explorer(_loaded["bundle"], SPREAD)
    won, kept = [], []
    for member in range(GROUP):
        explorer.rng, explorer.kept = np.random.default_rng([*job.seed, member]), []
        won.append(attempt(explorer, job))
        kept.append(explorer.kept)
    share = float(np.mean(won))
    if not USEFUL[0] <= share <= USEFUL[1]:
        return job.scene, won, []
    found = []
    for is_won, decisions in zip(won, kept, strict=True):
        advantage = (is_won - share) / np.std(won)
        seen = (np.stack(part) for part in zip(*decisions, strict=True))
        state, environment, explored, planned = seen
        shared = np.full(len(decisions), advantage)
        found.append(Decisions(state, environment, explored, planned, shared))
    return job.scene, won, found


class Rounds:
    """Attempts in rounds, handed out in parts: what `training.train` draws batches from.

    Args:
        spec: `steps` rounds of `batch_size` attempts.
        cell: where; some of a round's attempts are in the nominal one.
        learner: whose policy attempts.
        told: called with each round's successes, by what it is called in `rounds.jsonl`.
    """

    def __init__(
        self, spec: TrainSpec, cell: CellSpec, workers: int, learner: GroupLearner, base: Path,
        lora: LoraOptions, told: Callable[[Mapping[str, float]], None],
        attempts: Callable[[SceneGroup], tuple[int, list[bool], list[Decisions]]] = attempts,
    ) -> None:  # fmt: skip
        self._spec, self._cell, self._workers, self._lora = spec, cell, workers, lora
        self._learner, self._base, self._told, self._attempts = learner, base, told, attempts

    def stream(self, first: int) -> Iterator[Decisions]:
        """Yield the parts of rounds, beginning with the round of step `first`."""
        cell, seed, scenes = self._cell, self._spec.seed, self._spec.batch_size // GROUP
        nominal = CellSpec(task=cell.task, robot=cell.robot, max_s=cell.max_s)
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
                    "decisions": sum(len(part.state) for part in parts),
                }
            )
            decisions = None
            if parts:
                names = vars(parts[0])
                joined = {n: np.concatenate([getattr(p, n) for p in parts]) for n in names}
                decisions = Decisions(**joined)
            barren = barren + 1 if decisions is None and success < 0.5 else 0
            if barren > 5:
                raise UnusableInputError(
                    "In six rounds whole groups of attempts failed: nothing shows what is better. "
                    "Begin with a policy that sometimes succeeds there."
                )
            rng = np.random.default_rng([seed, number, 1])
            skip = first % UPDATES if number == begin else 0
            many = 0 if decisions is None else len(decisions.state)
            for part in np.array_split(rng.permutation(many), UPDATES)[skip:]:
                yield decisions.rows(part) if decisions is not None else _NOTHING


_NOTHING: Final = Decisions(*(np.zeros(0) for _ in range(5)))


@dataclass
class GroupLearner(Learner):
    """A policy with an adapter that learns from groups of attempts; rounds tell its success.

    Attributes:
        module: PEFT's wrapper of it.
    """

    bundle: act.ActBundle
    module: torch.nn.Module
    spread: float = SPREAD

    def loss(self, batch: Decisions) -> torch.Tensor:
        """Return the clipped surrogate of the advantages, negative, and the divergence.

        Clipping alone doesn't hold an optimiser that takes a step of the same size however little
        a gradient says: the divergence from the policy that made the attempts does. 0 where
        nothing was learned.
        """
        if not len(batch.state):
            own = [p.sum() for p in self.module.parameters() if p.requires_grad]
            return 0.0 * torch.stack(own).sum()
        known = {
            act.STATE: torch.from_numpy(batch.state),
            act.ENVIRONMENT: torch.from_numpy(batch.environment),
        }
        explored, then = torch.from_numpy(batch.explored), torch.from_numpy(batch.planned)
        now = act.planned(self.bundle, known)[:, : explored.shape[1]]
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
    cell: CellSpec | None = None,
    progress: Progress | None = None,
    told: Callable[[Mapping[str, float]], None] = lambda _: None,
    attempts: Callable[[SceneGroup], tuple[int, list[bool], list[Decisions]]] = attempts,
) -> TrainedPolicy:
    """Reinforce a policy in simulation and write an adapter, as `adapt.adapt` does.

    `steps` rounds of `batch_size` attempts; OUT/rounds.jsonl has each round's success. With
    `resume` a checkpoint is gone on with.

    Args:
        cell: where it attempts; what `config.env` names unless given.
        told: called after each round with its line of `rounds.jsonl`.
        attempts: makes those of a group; in the embedded cell unless given.

    Raises:
        UnusableInputError: a policy that plans no chunks from tracked poses, sizes that can't be,
            or six rounds from which nothing could be learned.
    """
    named, folder = config.policy.path, config.folder
    base, cell = base_of(named), cell or CellSpec(**config.env.cell())
    if not is_tracked(base):
        raise UnusableInputError(
            f"Policy {named} isn't the small ACT on joints and tracked poses, the only "
            "kind supported so far. Others: gaploop record --robot.twin=FILE, then finetune."
        )
    spec, lora = config.spec(REINFORCE_SPEC), PRESETS["tracked_lora"].lora
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
    is_target = bool(cell.parameters or cell.gaps)
    say_domain(bundle, is_target)
    adapter.save(module, bundle, base, folder / ADAPTER, merge=True)
    identity, merged = policy_id(folder / ADAPTER), policy_id(folder / MERGED)
    chosen = {**config.record(), "base": named, "cell": asdict(cell), "spec": asdict(spec)}
    ended = {"policy": identity, "merged": merged, **asdict(result)}
    write_run(
        folder, "reinforce", chosen, (), ended,
        seed=spec.seed, base=policy_id(base), base_folder=base,
    )  # fmt: skip
    write_json(folder / "result.json", {"schema": "gaploop.training.v1", **asdict(result)})
    return TrainedPolicy(folder / ADAPTER, folder / MERGED, folder, identity, result, ())
