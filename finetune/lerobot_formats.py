"""A policy in the number formats and runtimes that may make it faster here, and how fast it is.

bf16 and fp16 are `torch.autocast`, as LeRobot's `--policy.use_amp`: weights stay as they are. int8
is torch's dynamic quantisation of the linear layers: weights are stored in 8 bits, inputs are
quantised as they come, nothing has to be calibrated; attention's own projections stay, as PyTorch's
MultiheadAttention reads their weights as bare parameters. int8_ao and int4 are torchao's. The
runtimes get what `torch.export` makes of `predict_action_chunk`, by way of an ONNX file.

Plans in all formats are timed in turn, block by block, so that what else the machine does falls on
all of them; ratios are of processor time, which other programs don't change.
"""

from __future__ import annotations

import copy
import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.messages import FloatArray, Observation
from gaploop.finetune.lerobot_latency import time_plans, warm_up
from gaploop.finetune.lerobot_policy import (
    ActPolicy,
    LerobotDriver,
    load_policy,
    policy_id,
    resolve,
)
from gaploop.finetune.policy_fit import facts_of
from gaploop.sim.arms import to_degrees
from gaploop.sim.cell import SimCell
from gaploop.sim.tracker import Tracker

type Plan = Callable[..., torch.Tensor]
REFERENCE: Final = "fp32"
ONNX: Final = ("onnx", "onnxscript")
FILE: Final = "policy.onnx"
BLOCKS: Final = 20
PLANS: Final = 30
"""Plans in a format in a block."""
VIEWS: Final = 20
"""In so many views actions are compared."""


@dataclass(frozen=True)
class Format:
    """How a policy computes.

    Attributes:
        torch: changes a copy of the policy in place; None where another program computes.
        runtime: opens an ONNX file on a device; returns what plans from named arrays.
        needs: packages that gaploop doesn't require.
        extra: which of gaploop's extras has them.
    """

    torch: Callable[[Any], None] | None = None
    runtime: Callable[[Path, str], Callable[[dict[str, FloatArray]], FloatArray]] | None = None
    needs: tuple[str, ...] = ()
    extra: str = "formats"


def _autocast(dtype: torch.dtype) -> Callable[[Any], None]:
    def change(policy: Any) -> None:
        plan, kind = policy.predict_action_chunk, torch.device(str(policy.config.device)).type

        def planned(*given: Any, **options: Any) -> torch.Tensor:
            with torch.autocast(kind, dtype):
                made: torch.Tensor = plan(*given, **options)
            return made.float()

        policy.predict_action_chunk = planned

    return change


def _int8(policy: Any) -> None:
    quantised: Any = torch.ao.quantization.quantize_dynamic  # PyTorch's isn't typed
    policy.model = quantised(_network(policy), {torch.nn.Linear}, dtype=torch.qint8)


def _torchao(name: str) -> Callable[[Any], None]:
    def change(policy: Any) -> None:
        from torchao import quantization

        quantization.quantize_(_network(policy), getattr(quantization, name)())

    return change


def _compiled(policy: Any) -> None:
    policy.model = torch.compile(_network(policy))


def _network(policy: Any) -> Any:
    if not hasattr(policy, "model"):
        raise NotImplementedError(f"a {policy.config.type} policy keeps no network in `model`")
    return policy.model


def _onnxruntime(file: Path, device: str, wanted: str = "") -> Callable[..., FloatArray]:
    import onnxruntime

    wanted = wanted or ("CUDAExecutionProvider" if device == "cuda" else "CPUExecutionProvider")
    if wanted not in onnxruntime.get_available_providers():
        raise RuntimeError(f"ONNX Runtime here has no {wanted}")
    threads = onnxruntime.SessionOptions()
    threads.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file, threads, providers=[wanted])
    return lambda given: np.asarray(session.run(None, given)[0])


def _openvino(file: Path, _device: str) -> Callable[..., FloatArray]:
    import openvino

    config = {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
    model = openvino.compile_model(file, "CPU", config)
    return lambda given: np.asarray(model(given)[0])


def _tensorrt(file: Path, device: str) -> Callable[..., FloatArray]:
    if not torch.cuda.is_available():
        raise RuntimeError("TensorRT needs an NVIDIA GPU")
    return _onnxruntime(file, device, "TensorrtExecutionProvider")


FORMATS: Final[Mapping[str, Format]] = {
    REFERENCE: Format(lambda _policy: None),
    "bf16": Format(_autocast(torch.bfloat16)),
    "fp16": Format(_autocast(torch.float16)),
    "int8": Format(_int8),
    "int8_ao": Format(_torchao("Int8DynamicActivationInt8WeightConfig"), needs=("torchao",)),
    "int4": Format(_torchao("Int4WeightOnlyConfig"), needs=("torchao",)),
    "compile": Format(_compiled),
    "onnx": Format(runtime=_onnxruntime, needs=(*ONNX, "onnxruntime")),
    "openvino": Format(runtime=_openvino, needs=(*ONNX, "openvino")),
    "tensorrt": Format(
        runtime=_tensorrt, needs=(*ONNX, "onnxruntime", "tensorrt"), extra="tensorrt"
    ),
}
"""Formats by name; docs/teleoperate/doctor.md says what each is."""


def policy_in_format(
    policy: ActPolicy, name: str, seen: Observation, folder: Path
) -> tuple[ActPolicy, float]:
    """Return a copy of a policy that computes in another format, and the size of its weights [MB].

    Args:
        name: one of `FORMATS`.
        folder: its weights are written there.

    Raises:
        UnusableInputError: an unknown name, or this machine can't compute so; why.
    """
    if name not in FORMATS:
        raise unknown_choice("format", name, FORMATS)
    format_ = FORMATS[name]
    lacking = [package for package in format_.needs if importlib.util.find_spec(package) is None]
    if lacking:
        raise UnusableInputError(
            f"{', '.join(lacking)} not installed: pip install 'gaploop[{format_.extra}]'"
        )
    try:
        if format_.runtime is not None:
            file = _exported(policy, seen, folder)
            network = _run_by(policy, format_.runtime, file)
        else:
            network = copy.deepcopy(policy.bundle.policy)
            if format_.torch is not None:
                format_.torch(network)
        bundle = replace(policy.bundle, policy=network)
        made = (
            LerobotDriver(bundle, policy.execute, policy.task)
            if isinstance(policy, LerobotDriver)
            else ActPolicy(bundle, policy.execute)
        )
        warm_up(made, seen)
        if format_.torch is not None:
            file = folder / f"{name}.pt"
            torch.save(network.state_dict(), file)
    except UnusableInputError:
        raise
    except Exception as error:  # noqa: BLE001 - exporters and runtimes raise all there is
        lines = [line for line in str(error).splitlines() if line.strip()]
        why = lines[0] if lines else type(error).__name__
        raise UnusableInputError(f"{name} can't be computed on this machine: {why[:200]}") from None
    files = [part for part in folder.iterdir() if part.name.startswith(file.name)]
    return made, sum(part.stat().st_size for part in files) / 1e6


def _exported(policy: ActPolicy, seen: Observation, folder: Path) -> Path:
    """Return the ONNX file of what plans, made once."""
    if isinstance(policy, LerobotDriver) and policy.looks_back:
        raise NotImplementedError("the policy looks back over several observations")
    file, network = folder / FILE, policy.bundle.policy
    if file.exists():
        return file
    batch: dict[str, torch.Tensor] = {}
    plan: Plan = network.predict_action_chunk

    def noted(given: Mapping[str, Any]) -> torch.Tensor:
        batch.update({k: v for k, v in given.items() if isinstance(v, torch.Tensor)})
        return plan(given)

    network.predict_action_chunk = noted
    try:
        policy.plan(seen)
    finally:
        del network.predict_action_chunk
    names = list(batch)

    class Plans(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy = network

        def forward(self, *values: torch.Tensor) -> torch.Tensor:
            return plan(dict(zip(names, values, strict=True)))

    values = tuple(value.clone() for value in batch.values())  # those of inference can't be traced
    program = torch.export.export(Plans().eval(), values, strict=False)
    torch.onnx.export(program, (), file, input_names=names, dynamo=True, verbose=False)
    return file


def _run_by(policy: ActPolicy, runtime: Any, file: Path) -> Any:
    """Return what stands for a LeRobot policy and plans in another program."""
    import onnx

    config: Any = policy.bundle.policy.config
    plan = runtime(file, torch.device(str(config.device)).type)
    inputs = [entry.name for entry in onnx.load(file, load_external_data=False).graph.input]

    def planned(batch: Mapping[str, Any]) -> torch.Tensor:
        given = {name: batch[name].cpu().numpy() for name in inputs}
        return torch.from_numpy(plan(given))

    return SimpleNamespace(config=config, predict_action_chunk=planned, reset=lambda: None)


def action_error(made: ActPolicy, plans: list[FloatArray], views: list[Observation]) -> FloatArray:
    """Return how far a format's actions are from those as trained.

    Args:
        plans: what the policy as trained plans in each view.

    Returns:
        Mean and largest absolute difference of what is executed, in the arm's units.
    """
    numbered = enumerate(zip(views, plans, strict=True))
    off = [np.abs(planned(made, view, i) - plan) for i, (view, plan) in numbered]
    return np.array([np.mean(off), np.max(off)])


def planned(policy: ActPolicy, seen: Observation, number: int) -> FloatArray:
    """Return what a policy executes of a plan, from random numbers of its own for each `number`."""
    policy.reset()
    torch.manual_seed(number)
    return policy.plan(seen)[: policy.execute]


def measure(
    chosen_policy: str,
    fps: float | None,
    only: Sequence[str],
    device: str,
    advance: Callable[[], object],
) -> dict[str, Any]:
    """Time every format that this machine can compute.

    Args:
        chosen_policy: folder or name of the policy; `fps` where that doesn't state it [Hz].
        only: which formats besides fp32; all where empty.
        advance: called after each of `BLOCKS`.
    """
    path = resolve(chosen_policy)
    policy = load_policy(path, device=device, fps=fps)
    views = _views(policy)
    plans = [planned(policy, view, i) for i, view in enumerate(views)]
    made: dict[str, ActPolicy] = {}
    variants: dict[str, dict[str, Any]] = {}
    lacking: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as written:
        for name in (n for n in FORMATS if not only or n in (REFERENCE, *only)):
            try:
                made[name], size_mb = policy_in_format(policy, name, views[0], Path(written))
                mean, worst = action_error(made[name], plans, views)
            except UnusableInputError as error:
                made.pop(name, None)
                lacking[name] = str(error)
                continue
            variants[name] = {
                "file_mb": size_mb, "error_mean": float(mean), "error_max": float(worst)
            }  # fmt: skip

    def plan(policy: ActPolicy) -> object:
        policy.reset()  # one that looks back would hand out what is left of its last plan
        return policy.plan(views[0])

    timed: dict[str, list[tuple[tuple[float, ...], ...]]] = {name: [] for name in made}
    for block in range(BLOCKS):
        first = block % len(made)
        for name in [*list(made)[first:], *list(made)[:first]]:
            timing = time_plans(lambda name=name: plan(made[name]), PLANS)  # type: ignore[misc]
            timed[name].append((timing.took_s, timing.cpu_s))
        advance()
    cpu_s = {name: np.median(np.array(rows)[:, 1], axis=1) for name, rows in timed.items()}
    draws = np.random.default_rng(0).integers(BLOCKS, size=(2000, BLOCKS))
    for name, rows in timed.items():
        clock_s, ratios = np.array(rows)[:, 0], cpu_s[name] / cpu_s[REFERENCE]
        variants[name] |= {
            "p50_ms": 1e3 * float(np.median(clock_s)),
            "p99_ms": 1e3 * float(np.quantile(clock_s, 0.99)),
            "cpu_p50_ms": 1e3 * float(np.median(np.array(rows)[:, 1])),
            "ratio": float(np.median(ratios)),
            "ratio_interval": np.quantile(np.median(ratios[draws], 1), [0.025, 0.975]).tolist(),
        }
    return {
        "policy": policy_id(path),
        "fps": policy.fps,
        "execute": policy.execute,
        "plan_lasts_ms": 1e3 * policy.execute / policy.fps,
        "device": device,
        "units": policy.bundle.signature.units,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "plans": BLOCKS * PLANS,
        "variants": variants,
        "lacking": lacking,
    }


def table(result: Mapping[str, Any]) -> str:
    """Return what `measure` returned as text."""
    lines = [
        f"{result['policy']}, {result['threads']} thread(s), {result['plans']} plans each; a plan "
        f"of {result['execute']} steps lasts {result['plan_lasts_ms']:.0f} ms",
        f"{'':10}{'p50 ms':>8}{'p99 ms':>8}{'CPU ms':>8}{'MB file':>9}{'error':>8}{'worst':>8}"
        "   CPU, times fp32",
    ]
    for name, one in result["variants"].items():
        low, high = one["ratio_interval"]
        lines.append(
            f"{name:<10}{one['p50_ms']:>8.2f}{one['p99_ms']:>8.2f}{one['cpu_p50_ms']:>8.2f}"
            f"{one['file_mb']:>9.1f}{one['error_mean']:>8.3f}{one['error_max']:>8.3f}   "
            f"{one['ratio']:.2f} [{low:.2f}, {high:.2f}]"
        )
    lines += [f"{name}: left out: {why}" for name, why in result["lacking"].items()]
    units = result["units"] or "the policy's units"
    lines.append(f"Error, worst: difference of actions to fp32 in {VIEWS} views [{units}].")
    return "\n".join(lines)


def _views(policy: ActPolicy) -> list[Observation]:
    """Return what the policy may see: scenes of the cell, or coarse random pictures."""
    facts = facts_of(policy)
    if not policy.needs_scene:
        if policy.bundle.signature.environment_names:
            raise UnusableInputError(
                "The policy sees a scene that gaploop doesn't track, so that it can't be asked "
                "here. Name a policy on joints and pictures, or on the tracked scene."
            )
        rng = np.random.default_rng(0)
        views = []
        for _ in range(VIEWS):
            state: FloatArray = np.zeros(len(facts.state_names))
            if facts.state is not None:
                state = rng.normal(facts.state.mean, facts.state.std)
            pictures = {}
            for name, (height, width) in facts.cameras.items():
                cells = rng.integers(0, 256, (8, 8, 3), np.uint8)
                tall = cells.repeat(-(-height // 8), axis=0)[:height]
                wide = tall.repeat(-(-width // 8), axis=1)[:, :width]
                pictures[name] = np.ascontiguousarray(wide)
            views.append(Observation(state, None, pictures))
        return views

    grey = {n: np.full((*size, 3), 127, np.uint8) for n, size in facts.cameras.items()}
    views = []
    with SimCell() as cell:
        tracker = Tracker.nominal(cell.image_size)
        for scene in range(VIEWS):
            cell.reset(scene)
            state = to_degrees(cell.read().position_rad)
            views.append(Observation(state, tracker.observe(cell.frame().image), grey))
    return views
