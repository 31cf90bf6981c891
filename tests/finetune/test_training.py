from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.mixing.mixture import MixtureStage
from gaploop.finetune import lerobot_act as act
from gaploop.finetune import training
from gaploop.finetune.batches import Batch, MixedBatches, TrainingSource
from gaploop.finetune.training import (
    CHECKPOINT,
    METRICS,
    learning_rate,
    read_checkpoint,
    train,
    write_checkpoint,
)
from gaploop.finetune.tuning.presets import TRACKED_SPECS, TrainSpec
from gaploop.finetune.tuning.tracked import ActLearner

SPEC = TrainSpec(steps=6, batch_size=4, warmup_steps=2, log_every=2, checkpoint_every=2)


@pytest.fixture
def batches(make_source: Callable[..., TrainingSource]) -> MixedBatches:
    return MixedBatches([make_source()], [MixtureStage((1.0,))], chunk=4, batch_size=4, seed=1)


def weights(bundle: act.ActBundle) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in bundle.policy.parameters()])


@pytest.mark.members(2)
@pytest.mark.parametrize("preset", sorted(TRACKED_SPECS))
@pytest.mark.parametrize("stopped_after", [1, 3])
def test_resuming_equals_not_stopping(
    make_bundle: Callable[..., act.ActBundle],
    batches: MixedBatches,
    tmp_path: Path,
    preset: str,
    stopped_after: int,
) -> None:
    """Also where Ctrl-C comes between two checkpoints: it writes one itself."""
    spec = replace(TRACKED_SPECS[preset], steps=5, batch_size=4, checkpoint_every=2, log_every=1)
    folders = [tmp_path / "whole", tmp_path / "stopped"]
    for folder in folders:
        folder.mkdir()
    whole = make_bundle()
    train(ActLearner(whole, whole.policy), batches, spec, folders[0])

    def stop(step: int, *_: float) -> None:
        if step == stopped_after:
            raise KeyboardInterrupt

    cut = make_bundle()
    with pytest.raises(KeyboardInterrupt):
        train(ActLearner(cut, cut.policy), batches, spec, folders[1], progress=stop)
    again = make_bundle(seed=9)
    train(ActLearner(again, again.policy), batches, spec, folders[1], resume=True)
    assert torch.equal(weights(whole), weights(again))
    logs = [[json.loads(x) for x in (f / METRICS).read_text().splitlines()] for f in folders]
    assert logs[0] == logs[1]


def test_training_learns(
    make_bundle: Callable[..., act.ActBundle],
    make_source: Callable[..., TrainingSource],
    tmp_path: Path,
) -> None:
    bundle, held_out = make_bundle(), make_source(2, first=90).episodes
    batches = MixedBatches([make_source()], [MixtureStage((1.0,))], chunk=4, batch_size=32, seed=1)
    spec = replace(SPEC, steps=60, lr=5e-3, eval_every=20, log_every=5)
    learner = ActLearner(bundle, bundle.policy, held_out)
    before = learner.held_out_error()
    result = train(learner, batches, spec, tmp_path)
    assert result.held_out[60] < before
    assert learner.held_out_error() == pytest.approx(result.held_out[60])


def test_the_best_weights_are_kept_where_asked(
    make_bundle: Callable[..., act.ActBundle],
    make_source: Callable[..., TrainingSource],
    tmp_path: Path,
) -> None:
    bundle, held_out = make_bundle(), make_source(2, first=90).episodes
    batches = MixedBatches([make_source()], [MixtureStage((1.0,))], chunk=4, batch_size=4, seed=1)
    spec = replace(SPEC, steps=30, lr=3e-2, eval_every=3, keep_best=True)
    learner = ActLearner(bundle, bundle.policy, held_out)
    result = train(learner, batches, spec, tmp_path)
    assert learner.held_out_error() == pytest.approx(min(result.held_out.values()))
    assert result.held_out[result.best_step] == min(result.held_out.values())


def test_a_checkpoint_of_other_settings_is_refused(
    make_bundle: Callable[..., act.ActBundle], batches: MixedBatches, tmp_path: Path
) -> None:
    bundle = make_bundle()
    train(ActLearner(bundle, bundle.policy), batches, SPEC, tmp_path)
    other = replace(SPEC, lr=0.5)
    with pytest.raises(UnusableInputError, match="other settings"):
        train(ActLearner(bundle, bundle.policy), batches, other, tmp_path, resume=True)
    assert (tmp_path / CHECKPOINT).exists()


def test_a_loss_that_is_not_finite_ends_training_in_words(
    batches: MixedBatches, tmp_path: Path
) -> None:
    class Broken:
        module: torch.nn.Module = torch.nn.Linear(1, 1)

        def loss(self, batch: Batch) -> torch.Tensor:
            return self.module(torch.full((len(batch.state), 1), float("nan"))).sum()

        def held_out_error(self) -> float:
            return 0.0

    with pytest.raises(UnusableInputError, match="nan at step 0"):
        train(Broken(), batches, SPEC, tmp_path)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    make_bundle: Callable[..., act.ActBundle], batches: MixedBatches, tmp_path: Path
) -> None:
    """A disk that filled up had left a checkpoint of half its size."""
    whole = make_bundle()
    train(ActLearner(whole, whole.policy), batches, SPEC, tmp_path)
    for damage in (lambda b: b[: len(b) // 2], lambda _: b"", lambda _: b"not a checkpoint"):
        content = (tmp_path / CHECKPOINT).read_bytes()
        (tmp_path / CHECKPOINT).write_bytes(damage(content))
        again = make_bundle(seed=9)
        done = train(ActLearner(again, again.policy), batches, SPEC, tmp_path, resume=True)
        assert done.steps == SPEC.steps
        assert torch.equal(weights(whole), weights(again))


class Greedy:
    """Runs out of memory at one step, as PyTorch says it on a CPU."""

    def __init__(self, learner: ActLearner, at: int) -> None:
        self.learner, self.module, self.at, self.calls = learner, learner.module, at, 0

    def loss(self, batch: Batch) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.at + 1:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        return self.learner.loss(batch)

    def held_out_error(self) -> float:
        return 0.0


def test_out_of_memory_names_the_batch_size_and_loses_nothing(
    make_bundle: Callable[..., act.ActBundle], batches: MixedBatches, tmp_path: Path
) -> None:
    bundle = make_bundle()
    spec = replace(SPEC, checkpoint_every=100)
    greedy = Greedy(ActLearner(bundle, bundle.policy), at=3)
    with pytest.raises(UnusableInputError, match=r"step 3 .*--resume --batch_size=2"):
        train(greedy, batches, spec, tmp_path)
    steps: list[int] = []
    smaller = replace(spec, batch_size=2)
    again = make_bundle()
    learner = ActLearner(again, again.policy)
    train(learner, batches, smaller, tmp_path, resume=True, progress=lambda k, *_: steps.append(k))
    assert steps == [4, 5, 6]


def test_the_best_step_is_kept_where_held_out_takes_stop_getting_better(
    make_bundle: Callable[..., act.ActBundle], batches: MixedBatches, tmp_path: Path
) -> None:
    class Worsening(Greedy):
        def held_out_error(self) -> float:
            return abs(self.calls - 2) + 1.0

    bundle = make_bundle()
    learner = Worsening(ActLearner(bundle, bundle.policy), at=99)
    spec = replace(SPEC, steps=5, eval_every=1, keep_best=True)
    done = train(learner, batches, spec, tmp_path)
    assert (done.steps, done.best_step) == (5, 2)
    again = train(learner, batches, spec, tmp_path, resume=True)
    assert (again.steps, again.best_step) == (5, 2)


@pytest.mark.parametrize("at", ["step", "held-out"])
def test_a_stop_at_any_instant_is_gone_on_from_as_if_it_had_not_been(
    make_bundle: Callable[..., act.ActBundle],
    make_source: Callable[..., TrainingSource],
    batches: MixedBatches,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
) -> None:
    """Ctrl-C between weights half updated had made a checkpoint that did the step twice; one in
    the middle of looking at held-out takes skipped the look for good."""
    spec = replace(SPEC, eval_every=2, keep_best=True, checkpoint_every=100, log_every=1)
    held_out = make_source(1, first=90).episodes
    folders = [tmp_path / "whole", tmp_path / "cut"]
    for folder in folders:
        folder.mkdir()
    bundle = make_bundle()
    whole = train(ActLearner(bundle, bundle.policy, held_out), batches, spec, folders[0])

    def interrupting(method: Callable[..., Any], when: int) -> Callable[..., Any]:
        calls = iter(range(when + 1))

        def call(*args: Any, **options: Any) -> Any:
            if next(calls, None) == when - 1:
                signal.raise_signal(signal.SIGINT)
            return method(*args, **options)

        return call

    place = torch.optim.AdamW if at == "step" else ActLearner
    name, when = ("step", 4) if at == "step" else ("held_out_error", 2)
    cut = make_bundle()
    with monkeypatch.context() as patched:
        patched.setattr(place, name, interrupting(getattr(place, name), when))
        with pytest.raises(KeyboardInterrupt):
            train(ActLearner(cut, cut.policy, held_out), batches, spec, folders[1])
    with (folders[1] / METRICS).open("a") as stream:
        stream.write('{"step": 5, "lo')  # of a kill, which can come on top
    again = make_bundle(seed=9)
    done = train(ActLearner(again, again.policy, held_out), batches, spec, folders[1], resume=True)
    assert done == whole
    assert torch.equal(weights(bundle), weights(again))
    logs = [(f / METRICS).read_text() for f in folders]
    assert logs[0] == logs[1]


def test_what_no_checkpoint_covers_is_trained_and_logged_anew(
    make_bundle: Callable[..., act.ActBundle], batches: MixedBatches, tmp_path: Path
) -> None:
    """A kill before the first checkpoint left lines of steps that --resume then did again."""
    (tmp_path / METRICS).write_text('{"step": 2, "loss": 1.0}\n')
    torch.save([1], tmp_path / CHECKPOINT)  # another file of PyTorch's is no checkpoint either
    bundle = make_bundle()
    train(ActLearner(bundle, bundle.policy), batches, SPEC, tmp_path, resume=True)
    lines = [json.loads(x)["step"] for x in (tmp_path / METRICS).read_text().splitlines()]
    assert lines == [2, 4, 6]


def test_a_terminated_training_keeps_its_last_step(
    make_bundle: Callable[..., act.ActBundle], batches: MixedBatches, tmp_path: Path
) -> None:
    """Clusters end jobs with SIGTERM, which the command line makes a SystemExit of."""

    def stop(step: int, *_: float) -> None:
        if step == 3:
            raise SystemExit(143)

    bundle, spec = make_bundle(), replace(SPEC, checkpoint_every=100)
    with pytest.raises(SystemExit):
        train(ActLearner(bundle, bundle.policy), batches, spec, tmp_path, progress=stop)
    state = read_checkpoint(tmp_path)
    assert state is not None
    assert state["step"] == 3


def test_memory_and_numbers_that_fail_on_held_out_takes_are_said(
    make_bundle: Callable[..., act.ActBundle], batches: MixedBatches, tmp_path: Path
) -> None:
    class Failing(Greedy):
        def held_out_error(self) -> float:
            if self.at == 98:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return float("nan")

    spec = replace(SPEC, eval_every=3, checkpoint_every=100)
    for at, says in (
        (98, "Out of memory at step 3"),
        (99, "held-out episodes became nan at step 3"),
    ):
        bundle = make_bundle()
        with pytest.raises(UnusableInputError, match=says):
            train(Failing(ActLearner(bundle, bundle.policy), at), batches, spec, tmp_path)
    with pytest.raises(UnusableInputError, match="--lr=-1 must be above 0"):
        replace(SPEC, lr=-1.0)


def test_a_disk_that_is_full_keeps_the_checkpoint_before(
    make_bundle: Callable[..., act.ActBundle],
    batches: MixedBatches,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch says "unexpected pos 704 vs 598" then, as a RuntimeError."""
    bundle = make_bundle()
    train(ActLearner(bundle, bundle.policy), batches, SPEC, tmp_path)

    def full(_state: object, stream: Any) -> None:
        stream.write(b"a part")
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598")

    monkeypatch.setattr(torch, "save", full)
    state = read_checkpoint(tmp_path)
    assert state is not None
    with pytest.raises(UnusableInputError, match="is the disk full"):
        write_checkpoint(tmp_path, state)
    assert read_checkpoint(tmp_path) is not None
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("has_bf16", [True, False])
def test_bfloat16_learns_too_and_keeps_weights_in_full(
    make_bundle: Callable[..., act.ActBundle],
    batches: MixedBatches,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_bf16: bool,
) -> None:
    """A LoRA of base_vision took hours where a processor only imitates bfloat16, not minutes."""
    monkeypatch.setattr(training, "_computes_in_bf16", lambda _device: has_bf16)
    used, autocast = set[bool](), torch.autocast

    def spied(*given: Any, enabled: bool) -> torch.autocast:
        used.add(enabled)
        return autocast(*given, enabled=enabled)

    monkeypatch.setattr(torch, "autocast", spied)
    bundle = make_bundle()
    before = weights(bundle)
    spec = replace(SPEC, precision="bf16")
    train(ActLearner(bundle, bundle.policy), batches, spec, tmp_path)
    assert used == {has_bf16}
    assert weights(bundle).dtype == torch.float32
    assert not torch.equal(before, weights(bundle))
    with pytest.raises(UnusableInputError, match="bf16"):
        replace(SPEC, precision="fp8")


def test_the_learning_rate_warms_up_and_falls() -> None:
    spec = replace(SPEC, steps=100, warmup_steps=10)
    rates = [learning_rate(spec, k) for k in range(100)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert max(rates) == spec.lr
    assert rates[-1] == pytest.approx(spec.lr * spec.final_lr, rel=0.1)


def test_no_steps_are_refused() -> None:
    with pytest.raises(UnusableInputError, match="at least 1"):
        TrainSpec(steps=0)


class Line:
    """Learns to multiply; a batch is a dictionary, as one of pictures is."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.module = torch.nn.Linear(3, 1)
        self.sizes: list[int] = []

    def loss(self, batch: Any) -> torch.Tensor:
        self.sizes.append(len(batch["x"]))
        assert len(batch["task"]) == len(batch["x"])
        return torch.nn.functional.mse_loss(self.module(batch["x"]), batch["y"])

    def held_out_error(self) -> float:
        return 0.0


class Points:
    def stream(self, first: int) -> Iterator[dict[str, Any]]:
        for step in itertools.count(first):
            x = torch.randn(7, 3, generator=torch.Generator().manual_seed(step))
            yield {"x": x, "y": x.sum(1, keepdim=True), "task": ["go"] * 7, "fps": 50.0}


def test_a_batch_worked_through_in_parts_is_the_same_step(tmp_path: Path) -> None:
    ways = []
    for accumulation in (1, 3):
        learner, spec = Line(), replace(SPEC, accumulation=accumulation)
        train(learner, Points(), spec, tmp_path)
        ways.append(learner.module.weight.detach().clone())
    assert learner.sizes[:3] == [2, 2, 3]
    torch.testing.assert_close(ways[0], ways[1])


def test_whoever_ran_out_of_memory_goes_on_in_smaller_parts(tmp_path: Path) -> None:
    train(Line(), Points(), SPEC, tmp_path)
    less = replace(SPEC, accumulation=2, batch_size=2, gradient_checkpointing=True)
    assert train(Line(), Points(), less, tmp_path, resume=True).steps == SPEC.steps
