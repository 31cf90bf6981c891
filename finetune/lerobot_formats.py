"""The number formats and runtimes that a policy can compute in, to be faster or smaller.

bf16 and fp16 are `torch.autocast`, as LeRobot's `--policy.use_amp`: weights stay as they are. int8
is torch's dynamic quantisation of the linear layers: weights are stored in 8 bits, inputs are
quantised as they come, nothing has to be calibrated; attention's own projections stay, as PyTorch's
MultiheadAttention reads their weights as bare parameters. int8_ao and int4 are torchao's. The
runtimes get what `torch.export` makes of `predict_action_chunk`, by way of an ONNX file.
"""

from __future__ import annotations

import importlib.util
import io
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.messages import FloatArray, Observation
from gaploop.datasets.absolute.checkpoint import read_checkpoint
from gaploop.datasets.columns import ENVIRONMENT, FORCE, IMAGES, STATE

if TYPE_CHECKING:
    from gaploop.finetune.lerobot_policy import ActPolicy

REFERENCE: Final = "fp32"
ONNX: Final = ("onnx", "onnxscript")
WRONG: Final = 0.25
"""Of how far plans in unlike views are apart: an export whose plans are off by more is wrong."""


@dataclass(frozen=True)
class Format:
    """How a policy computes.

    Attributes:
        torch: changes a policy in place; None where another program computes.
        runtime: opens an ONNX file on a device; returns what plans from named arrays.
        needs: packages that gaploop doesn't require.
        extra: which of gaploop's extras has them.
        has_gradients: LeRobot's real-time chunking, which needs them, works.
    """

    torch: Callable[[Any], None] | None = None
    runtime: Callable[[Path, str], Callable[[dict[str, FloatArray]], FloatArray]] | None = None
    needs: tuple[str, ...] = ()
    extra: str = "formats"
    has_gradients: bool = False


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
    if torch.device(str(policy.config.device)).type != "cpu":
        raise NotImplementedError("torch's int8 runs on a CPU only; int8_ao is for GPUs")
    quantise: Any = torch.ao.quantization.quantize_dynamic  # PyTorch's isn't typed
    quantise(policy, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)


def _torchao(name: str) -> Callable[[Any], None]:
    def change(policy: Any) -> None:
        from torchao import quantization

        quantization.quantize_(policy, getattr(quantization, name)())

    return change


def _compiled(policy: Any) -> None:
    if not hasattr(policy, "model"):
        raise NotImplementedError(f"a {policy.config.type} policy keeps no network in `model`")
    policy.model = torch.compile(policy.model)


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
    REFERENCE: Format(lambda _policy: None, has_gradients=True),
    "bf16": Format(_autocast(torch.bfloat16), has_gradients=True),
    "fp16": Format(_autocast(torch.float16), has_gradients=True),
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


def format_named(name: str) -> Format:
    """Return a format.

    Raises:
        UnusableInputError: an unknown name, or packages that aren't installed.
    """
    if name not in FORMATS:
        raise unknown_choice("format", name, FORMATS, "--policy.format")
    found = FORMATS[name]
    lacking = [package for package in found.needs if importlib.util.find_spec(package) is None]
    if lacking:
        raise UnusableInputError(
            f"{', '.join(lacking)} not installed: pip install 'gaploop[{found.extra}]'"
        )
    return found


def put_in_format(policy: ActPolicy, name: str, views: Sequence[Observation]) -> None:
    """Let a policy compute in another format from now on; it plans, to see that it can.

    Args:
        views: what the policy may see; three or more.

    Raises:
        UnusableInputError: as `format_named`, or this machine can't compute so; why.
    """
    format_ = format_named(name)
    try:
        if format_.torch is not None:
            format_.torch(policy.bundle.policy)
            policy.plan(views[0])
        else:
            known, otherwise = _plans(policy, views), _plans(policy, views, seed=1)
            changed = _run_elsewhere(policy, format_, views[0])
            policy.bundle = replace(policy.bundle, policy=changed)
            error = float(np.abs(_plans(policy, views) - known).max())
            usual = float(np.abs(known - known[0]).max()), float(np.abs(known - otherwise).max())
            if error > WRONG * usual[0] + 2.0 * usual[1]:
                # Such as one that keeps its first view: an export has that of when it was made.
                raise NotImplementedError(
                    f"its plans are off by up to {error:.3g} then; the policy may remember what "
                    "it saw before"
                )
        policy.reset()
    except UnusableInputError:
        raise
    except Exception as error:  # noqa: BLE001 - exporters and runtimes raise all there is
        lines = [line for line in str(error).splitlines() if line.strip()]
        why = lines[0] if lines else type(error).__name__
        raise UnusableInputError(
            f"--policy.format={name} can't be computed on this machine: {why[:200]}"
        ) from None


def _plans(policy: ActPolicy, views: Sequence[Observation], seed: int = 0) -> FloatArray:
    """Return what a policy executes in views, each as a take's first, shape (n, steps, joints)."""
    return np.array([planned(policy, view, seed) for view in views])


def planned(policy: ActPolicy, seen: Observation, number: int) -> FloatArray:
    """Return what a policy executes of a plan, from random numbers of its own for each `number`."""
    policy.reset()
    torch.manual_seed(number)
    return policy.plan(seen)[: policy.execute]


def _run_elsewhere(policy: ActPolicy, format_: Format, seen: Observation) -> Any:
    """Return what stands for a LeRobot policy and plans in another program."""
    import onnx

    network, batch = policy.bundle.policy, dict[str, torch.Tensor]()
    if int(getattr(network.config, "n_obs_steps", 1) or 1) > 1:
        raise NotImplementedError("the policy looks back over several observations")
    plan = network.predict_action_chunk

    def noted(given: Mapping[str, Any]) -> torch.Tensor:
        batch.update({k: v for k, v in given.items() if isinstance(v, torch.Tensor)})
        return torch.as_tensor(plan(given))

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
            return torch.as_tensor(plan(dict(zip(names, values, strict=True))))

    values = tuple(value.clone() for value in batch.values())  # those of inference can't be traced
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "policy.onnx"
        program = torch.export.export(Plans().eval(), values, strict=False)
        torch.onnx.export(program, (), file, input_names=names, dynamo=True, verbose=False)
        assert format_.runtime is not None
        run = format_.runtime(file, torch.device(str(network.config.device)).type)
        inputs = [e.name for e in onnx.load(file, load_external_data=False).graph.input]
        size_mb = sum(part.stat().st_size for part in Path(folder).iterdir()) / 1e6

    def planned(batch: Mapping[str, Any]) -> torch.Tensor:
        return torch.from_numpy(run({name: batch[name].cpu().numpy() for name in inputs}))

    return SimpleNamespace(
        config=network.config,
        predict_action_chunk=planned,
        reset=lambda: None,
        weights_mb=size_mb,
    )


def weights_mb(policy: ActPolicy) -> float:
    """Return the size of a policy's weights in its format, as on disk [MB]."""
    network = policy.bundle.policy
    if isinstance(network, SimpleNamespace):
        return float(network.weights_mb)
    file = io.BytesIO()
    torch.save(network.state_dict(), file)
    return file.tell() / 1e6


def possible_views(folder: Path, n: int) -> list[Observation]:
    """Return what a policy may see: drawn from its takes' mean and spread, coarse pictures."""
    known, rng = read_checkpoint(folder), np.random.default_rng(0)

    def drawn(feature: str) -> FloatArray:
        usual, (size, *_) = known.stats.get(feature, {}), known.inputs.get(feature, (0,))
        if {len(usual.get(of, ())) for of in ("mean", "std")} != {size}:
            return np.zeros(size)
        return rng.normal(usual["mean"], np.maximum(usual["std"], 0.0))

    views = []
    for _ in range(n):
        pictures = {}
        for name, (height, width) in ((k, shape[1:]) for k, shape in known.cameras.items()):
            cells = rng.integers(0, 256, (8, 8, 3), np.uint8)
            tall = cells.repeat(-(-height // 8), axis=0)[:height]
            wide = tall.repeat(-(-width // 8), axis=1)[:, :width]
            pictures[name.removeprefix(IMAGES)] = np.ascontiguousarray(wide)
        scene = drawn(ENVIRONMENT) if ENVIRONMENT in known.inputs else None
        forces = {k.removeprefix(FORCE): drawn(k) for k in known.inputs if k.startswith(FORCE)}
        views.append(Observation(drawn(STATE), scene, pictures, forces))
    return views
