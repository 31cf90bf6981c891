"""One training loop for pretraining and adapting: thin, deterministic, resumable.

Everything random is drawn from (seed, step): the batch by the mixture, dropout by seeding
torch anew each step. A run that was stopped and resumed therefore ends with the same weights
as one that wasn't. Checkpoints are whole or not at all, with the one before kept.

Batch normalisation in a policy's picture encoder learns without a gradient: its running mean and
variance move with every batch in training mode. Where its weights are trained they belong to what a
checkpoint holds; where they are frozen, as under an adapter, they stay as the base has them: an
adapter doesn't carry them.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import math
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, Protocol

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from gaploop.core import platform_calls
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.finetune.tuning.presets import TrainSpec

METRICS: Final = "metrics.jsonl"

type Progress = Callable[[int, int, float], None]
"""Called after each step with (steps done, steps in all, loss)."""
FOR_MEMORY: Final = ("batch_size", "accumulation", "gradient_checkpointing")
"""Settings that may differ in a run that is gone on with, after it ran out of memory."""
CHECKPOINT: Final = "checkpoint.pt"
PREVIOUS: Final = "checkpoint.previous.pt"
PROGRESS: Final = ("step", "recent", "held_out", "best", "best_step", "is_settled")
"""What of a run a checkpoint holds beside weights and optimiser, by its names here and there."""
PARTS: Final = frozenset({"spec", "step", "weights", "optimizer"})
"""What tells a checkpoint from another file of PyTorch's."""
_DAMAGED: Final = (
    RuntimeError, EOFError, OSError, LookupError, ValueError, TypeError, AttributeError,
    pickle.UnpicklingError,
)  # fmt: skip


class Batches(Protocol):
    """Where samples come from: any batches, as long as a step always gets the same."""

    def stream(self, first: int) -> Iterator[Any]:
        """Yield the batches of steps `first`, `first + 1`, … without end."""
        ...


class Learner(Protocol):
    """Something trainable; `training` knows no more about the policy than this."""

    module: torch.nn.Module
    """What is trained."""

    def loss(self, batch: Any) -> torch.Tensor:
        """Return the scalar loss of a batch, with gradients, by calling `module`."""
        ...

    def held_out_error(self) -> float:
        """Return the error on held-out takes; the lower, the better. 0 where none tell."""
        return 0.0


@dataclass(frozen=True)
class TrainResult:
    """How a training run ended.

    Attributes:
        loss: mean loss of the last logged steps.
        held_out: step to held-out error, as far as it was measured.
        best_step: the step whose weights were kept.
    """

    steps: int
    loss: float
    held_out: Mapping[int, float]
    best_step: int
    weights_sha256: str = ""


def train(
    learner: Learner,
    batches: Batches,
    spec: TrainSpec,
    folder: Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    device: str = "cpu",
) -> TrainResult:
    """Train `learner` in place on `batches`.

    Ctrl-C and SIGTERM write a checkpoint and are raised on; the same call with `resume` goes on
    from it.

    Args:
        learner: what to train; only parameters that require gradients change.
        folder: where checkpoint.pt and metrics.jsonl go.

    Raises:
        UnusableInputError: the loss is not finite, memory runs out (a checkpoint is kept), or
            the checkpoint is of another run.
    """
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    run = _Run(learner, batches, spec, folder, device)
    if resume:
        run.restore()
    else:
        for name in (METRICS, CHECKPOINT, PREVIOUS):
            (folder / name).unlink(missing_ok=True)
    try:
        run.catch_up()
        while run.step < spec.steps:
            loss = run.advance()
            if progress:
                progress(run.step, spec.steps, loss)
    except (KeyboardInterrupt, SystemExit):
        run.checkpoint()
        raise
    return run.finish()


def learning_rate(spec: TrainSpec, step: int) -> float:
    """Return the learning rate of a step: linear warm-up, then half a cosine."""
    if step < spec.warmup_steps:
        return spec.lr * (step + 1) / spec.warmup_steps
    span = max(1, spec.steps - spec.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, (step - spec.warmup_steps) / span)))
    return spec.lr * (spec.final_lr + (1 - spec.final_lr) * cosine)


class _Run:
    """The state of one training run."""

    def __init__(
        self, learner: Learner, batches: Batches, spec: TrainSpec, folder: Path, device: str
    ) -> None:
        self.learner, self.batches, self.spec, self.folder = learner, batches, spec, folder
        self.device = torch.device(device)
        self._stream: Iterator[Any] | None = None
        self.trained = {n: p for n, p in learner.module.named_parameters() if p.requires_grad}
        self.kept = {**self.trained, **running_statistics(learner.module)}
        matrices = [p for p in self.trained.values() if p.dim() > 1]
        vectors = [p for p in self.trained.values() if p.dim() <= 1]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": spec.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=spec.lr,
        )
        self.step = 0
        self.recent: list[float] = []
        self.held_out: dict[int, float] = {}
        self.best: dict[str, torch.Tensor] | None = None
        self.best_step = 0
        self.is_settled = True
        """What is due after the last step has been done."""

    def advance(self) -> float:
        """Do one optimiser step and whatever is due after it; return its loss."""
        if self._stream is None:
            self._stream = self.batches.stream(self.step)
        batch = next(self._stream)  # before the seed: PyTorch's loader draws from it, too
        torch.manual_seed(step_seed(self.spec.seed, self.step))
        training_mode(self.learner.module)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.spec, self.step)
        self.optimizer.zero_grad(set_to_none=True)
        is_half = self.spec.precision == "bf16" and _computes_in_bf16(self.device)
        loss, is_whole = 0.0, True
        try:
            for part, share in _parts(batch, self.spec.accumulation):
                with torch.autocast(self.device.type, torch.bfloat16, enabled=is_half):
                    lost = share * self.learner.loss(part)
                loss += float(lost.item())
                if not math.isfinite(loss):
                    raise UnusableInputError(
                        f"The loss became {loss} at step {self.step}. Lower --lr, or check the "
                        "data with gaploop check."
                    )
                lost.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(list(self.trained.values()), self.spec.grad_clip)
            with defer_signals():  # a step broken off in the middle is no checkpoint
                is_whole = False
                self.optimizer.step()
                self.step, self.is_settled = self.step + 1, False
                self.recent.append(loss)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._out_of_memory(keep=is_whole and self.step > 0)
        self.catch_up()
        return loss

    def catch_up(self) -> None:
        """Do what is due after a step, unless it has been done."""
        if self.is_settled:
            return
        last = self.step == self.spec.steps
        if self.spec.eval_every and (self.step % self.spec.eval_every == 0 or last):
            try:
                error = float(self.learner.held_out_error())
            except (RuntimeError, MemoryError) as reason:
                if not is_out_of_memory(reason):
                    raise
                self._out_of_memory(keep=True)
            if not math.isfinite(error):
                raise UnusableInputError(
                    f"The error on held-out episodes became {error} at step {self.step}. Lower "
                    "--lr, or check the data with gaploop check. The last checkpoint is kept."
                )
            if not self.held_out or error < min(self.held_out.values()):
                self.best_step = self.step
                if self.spec.keep_best:
                    self.best = {n: p.detach().clone() for n, p in self.kept.items()}
            self.held_out[self.step] = error
        is_logged = self.step % self.spec.log_every == 0 or last
        if is_logged:
            line: dict[str, float] = {
                "step": self.step,
                "loss": sum(self.recent) / len(self.recent),
                "lr": learning_rate(self.spec, self.step - 1),
            }
            if self.step in self.held_out:
                line["held_out_error"] = self.held_out[self.step]
            with (self.folder / METRICS).open("a") as stream:
                stream.write(json.dumps(line) + "\n")
        self.recent, self.is_settled = [] if is_logged else self.recent, True
        if self.step % self.spec.checkpoint_every == 0 or last:
            self.checkpoint()

    def finish(self) -> TrainResult:
        """Put the kept weights in place and say how it went."""
        if self.best is not None and self.spec.keep_best:
            self._put(self.best)
        else:
            self.best_step = self.step
        if self.recent:
            loss = sum(self.recent) / len(self.recent)
        else:
            path = self.folder / METRICS
            lines = path.read_text().splitlines() if path.exists() else []
            loss = float(json.loads(lines[-1])["loss"]) if lines else math.nan
        digest = hashlib.sha256()
        for tensor in self.trained.values():
            values = tensor.detach().to("cpu", torch.float32).contiguous()
            digest.update(values.numpy().tobytes())
        return TrainResult(self.step, loss, dict(self.held_out), self.best_step, digest.hexdigest())

    def checkpoint(self) -> None:
        """Write everything needed to go on, whole or not at all, and keep the one before."""
        state = {
            "spec": json.dumps(asdict(self.spec)),
            "weights": {n: p.detach() for n, p in self.kept.items()},
            "optimizer": self.optimizer.state_dict(),
        }
        write_checkpoint(self.folder, state | {n: getattr(self, n) for n in PROGRESS})

    def restore(self) -> None:
        """Load the checkpoint, or the one before where it is damaged; nothing if there is none."""
        state = read_checkpoint(self.folder)
        if state is None:
            _cut_metrics(self.folder / METRICS, 0)
            return
        path, then = self.folder / CHECKPOINT, json.loads(state["spec"])
        now = json.loads(json.dumps(asdict(self.spec)))
        # At one rate all along more steps go on where fewer ended.
        free = (*FOR_MEMORY, "steps") if self.spec.final_lr == 1.0 else FOR_MEMORY
        if any(then.get(k) != v for k, v in now.items() if k not in free):
            raise UnusableInputError(
                f"{path} is of a run with other settings. Resume with the options of that run, "
                "or start anew in another --output_dir."
            )
        if state["weights"].keys() != self.kept.keys():
            raise UnusableInputError(f"{path} is of another model. Use another --output_dir.")
        self._put(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name in PROGRESS:  # older checkpoints don't say all of it
            setattr(self, name, state.get(name, getattr(self, name)))
        _cut_metrics(self.folder / METRICS, self.step - (not self.is_settled))

    def _out_of_memory(self, keep: bool) -> NoReturn:
        self.optimizer.zero_grad(set_to_none=True)
        if keep:
            self.checkpoint()
        size = self.spec.batch_size
        less = f"--batch_size={size // 2}" if size > 1 else "--device=cpu, or on a larger GPU"
        raise UnusableInputError(
            f"Out of memory at step {self.step} with --batch_size={size}. The last checkpoint is "
            f"kept: go on with the same command and --resume {less}."
        ) from None

    def _put(self, weights: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in self.kept.items():
                tensor.copy_(weights[name])


def _computes_in_bf16(device: torch.device) -> bool:
    """Say whether bfloat16 is worth it: without instructions for it a step takes 25 times as long.

    Losses are in float32 then, which takes more memory.
    """
    if device.type != "cpu":
        return True
    known = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    return known and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _parts(batch: Any, number: int) -> Iterator[tuple[Any, float]]:
    """Yield parts of a batch, and each one's share of its samples."""
    if number == 1:
        yield batch, 1.0
        return
    if not isinstance(batch, dict):
        raise UnusableInputError("--accumulation is for policies that see pictures. Leave it out.")
    size = next(len(value) for value in batch.values() if isinstance(value, torch.Tensor))
    places = [size * i // number for i in range(number + 1)]
    for first, last in itertools.pairwise(places):
        if first < last:
            yield (
                {
                    name: value[first:last]
                    if isinstance(value, torch.Tensor | list) and len(value) == size
                    else value
                    for name, value in batch.items()
                },
                (last - first) / size,
            )


def _cut_metrics(path: Path, step: int) -> None:
    """Drop lines written after the checkpoint, so that no step is logged twice."""
    lines = path.read_text().splitlines() if path.exists() else []
    kept = []
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a kill cut it short
            if float(json.loads(line)["step"]) <= step:
                kept.append(line)
    write_atomically(path, "".join(f"{line}\n" for line in kept))


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """Return torch's seed of a process for a step (odd constants from SplitMix64)."""
    step += rank << 32
    return (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9) % (1 << 63)


log = logging.getLogger(__name__)


def write_checkpoint(folder: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint; a kill leaves it, or the one before, and never a part."""
    part, path = folder / f"{CHECKPOINT}.part", folder / CHECKPOINT
    try:
        with part.open("wb") as stream:
            torch.save(dict(state), stream)
            stream.flush()
            os.fsync(stream.fileno())
    except (OSError, RuntimeError) as error:  # PyTorch says "unexpected pos" of a full disk
        part.unlink(missing_ok=True)
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:120]
        raise UnusableInputError(
            f"{path} can't be written ({reason}); is the disk full? The checkpoint before is kept: "
            "make room and go on with --resume."
        ) from None
    if path.exists():
        os.replace(path, folder / PREVIOUS)
    os.replace(part, path)
    platform_calls.sync_path(folder)


def read_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return the newest checkpoint that can be read; None where there is none."""
    for name in (CHECKPOINT, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
            if isinstance(state, dict) and state.keys() >= PARTS:
                return state
        except _DAMAGED as error:
            if is_out_of_memory(error):
                raise
        # Out of the way: the next checkpoint would put it in the place of the good one before.
        log.warning("%s is damaged and left aside as %s.damaged.", path, name)
        os.replace(path, path.with_name(f"{name}.damaged"))
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether memory ran out, on a GPU (PyTorch has a class for it) or off it (it has none)."""
    says = ("out of memory", "not enough memory", "can't allocate memory")
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or any(word in str(error).lower() for word in says)


def training_mode(module: torch.nn.Module) -> None:
    """Put `module` into training mode, but for batch normalisation that isn't trained."""
    module.train()
    for part in module.modules():
        if isinstance(part, _BatchNorm) and not _is_trained(part):
            part.eval()


def running_statistics(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the running statistics that training moves, by name."""
    return {
        f"{name}.{key}": value
        for name, part in module.named_modules()
        if isinstance(part, _BatchNorm) and _is_trained(part)
        for key, value in part.named_buffers()
    }


def _is_trained(part: _BatchNorm) -> bool:
    return any(parameter.requires_grad for parameter in part.parameters())


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back until the block is over; only the main thread gets any."""
    came: list[int] = []

    def later(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    try:
        before = {s: signal.signal(s, later) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler or signal.SIG_DFL)
        for number in came[:1]:
            signal.raise_signal(number)
