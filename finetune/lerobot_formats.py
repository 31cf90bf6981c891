"""A policy in the number formats and runtimes that may make it faster here.

bf16 and fp16 are `torch.autocast`, as LeRobot's `--policy.use_amp`: weights stay as they are. int8
is torch's dynamic quantisation of the linear layers: weights are stored in 8 bits, inputs are
quantised as they come, nothing has to be calibrated; attention's own projections stay, as PyTorch's
MultiheadAttention reads their weights as bare parameters. int8_ao and int4 are torchao's. The
runtimes get what `torch.export` makes of `predict_action_chunk`, by way of an ONNX file.
"""

from __future__ import annotations

import copy
import gc
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import psutil
import torch

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.messages import FloatArray, Observation
from gaploop.finetune.lerobot_latency import warm_up
from gaploop.finetune.lerobot_policy import ActPolicy, LerobotDriver

type Plan = Callable[..., torch.Tensor]
REFERENCE: Final = "fp32"
ONNX: Final = ("onnx", "onnxscript")
FILE: Final = "policy.onnx"


@dataclass(frozen=True)
class Format:
    """How a policy computes.

    Attributes:
        torch: changes a copy of the policy in place; None where another program computes.
        runtime: opens an ONNX file on a device; returns what plans from named arrays.
        needs: packages that gaploop doesn't require.
        extra: which of gaploop's extras has them.
    """

    about: str
    torch: Callable[[Any], None] | None = None
    runtime: Callable[[Path, str], Callable[[dict[str, FloatArray]], FloatArray]] | None = None
    needs: tuple[str, ...] = ()
    extra: str = "formats"


@dataclass(frozen=True)
class Made:
    """A policy in a format.

    Attributes:
        file_mb: size of its weights on disk [MB].
        memory_mb: by how much the process grew when it was opened and planned; on a GPU, what is
            allocated there [MB].
    """

    policy: ActPolicy
    file_mb: float
    memory_mb: float


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
    REFERENCE: Format("as trained", lambda _policy: None),
    "bf16": Format("torch.autocast to bfloat16", _autocast(torch.bfloat16)),
    "fp16": Format("torch.autocast to float16", _autocast(torch.float16)),
    "int8": Format("linear layers by torch's dynamic quantisation", _int8),
    "int8_ao": Format(
        "linear layers by torchao: weights and inputs in 8 bits",
        _torchao("Int8DynamicActivationInt8WeightConfig"),
        needs=("torchao",),
    ),
    "int4": Format(
        "linear layers by torchao: weights in 4 bits",
        _torchao("Int4WeightOnlyConfig"),
        needs=("torchao",),
    ),
    "compile": Format("torch.compile", _compiled),
    "onnx": Format("ONNX Runtime", runtime=_onnxruntime, needs=(*ONNX, "onnxruntime")),
    "openvino": Format("OpenVINO", runtime=_openvino, needs=(*ONNX, "openvino")),
    "tensorrt": Format(
        "TensorRT by ONNX Runtime",
        runtime=_tensorrt,
        needs=(*ONNX, "onnxruntime", "tensorrt"),
        extra="tensorrt",
    ),
}
"""Formats by name."""


def made_in(policy: ActPolicy, name: str, seen: Observation, folder: Path) -> Made:
    """Return a copy of a policy that computes in another format.

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
            before_mb = _held_mb(policy)
            network = _run_by(policy, format_.runtime, file)
        else:
            before_mb = _held_mb(policy)
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
        memory_mb = _held_mb(policy) - before_mb
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
    return Made(made, sum(part.stat().st_size for part in files) / 1e6, max(memory_mb, 0.0))


def _held_mb(policy: ActPolicy) -> float:
    gc.collect()
    if torch.device(str(policy.bundle.policy.config.device)).type == "cuda":
        return torch.cuda.memory_allocated() / 1e6
    return float(psutil.Process().memory_info().rss) / 1e6


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
