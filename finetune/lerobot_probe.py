"""What a LeRobot policy makes of an observation: its encoder's features and its next actions."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import numpy as np
import torch
from lerobot.policies.pretrained import PreTrainedPolicy
from torch.nn import functional

from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.messages import FloatArray, Observation
from gaploop.datasets.sources import load_takes
from gaploop.failure_analysis.cameras import FILE, CameraReference
from gaploop.finetune.lerobot_act import ENVIRONMENT, FAULTS, STATE
from gaploop.finetune.lerobot_policy import IMAGES, ActPolicy, load_policy

log = logging.getLogger(__name__)
ENCODERS: Final = (
    "model.encoder",
    "diffusion.rgb_encoder",
    "vqbet.rgb_encoder",
    "model.vlm_with_expert",
    "model.backbone",
)
"""Where LeRobot 0.6's policies keep what turns observations into features; the first that is there
counts. ACT's is the transformer encoder, behind the image backbone."""

LEAST_CELLS: Final = 12
"""Across a picture: layers with at least so many tell what its cells show."""

LARGEST_BYTES: Final = 1_000_000_000
"""Weights of a policy that is loaded once more after its training, on a processor."""

type Tensors = dict[str, torch.Tensor]


class LeRobotProbe:
    """A policy asked beside driving; implements `core.protocols.PolicyProbe`.

    The features are what the encoder yields, averaged over its tokens; where a policy that looks
    at pictures has none of `ENCODERS`, what their cells show, averaged over each picture. One
    forward pass answers all questions about an observation; it changes nothing about driving.

    Raises:
        UnusableInputError: it has none of `ENCODERS` and looks at no pictures.
    """

    def __init__(self, loaded: ActPolicy) -> None:
        bundle = loaded.bundle
        self._before, self._after = bundle.preprocessor, bundle.postprocessor
        policy: PreTrainedPolicy = bundle.policy
        self._policy = policy
        self._history: deque[Tensors] = deque(maxlen=int(getattr(policy.config, "n_obs_steps", 1)))
        self._features = torch.empty(0)
        self._asked: Observation | None = None
        self._chunk: FloatArray = np.empty((0, 0))
        self._layers: list[torch.Tensor] = []
        self._cameras = [key.removeprefix(IMAGES) for key in policy.config.image_features]
        if self._cameras:
            for name, module in policy.named_modules():
                module.register_forward_hook(
                    self._keep_tokens if "vision" in name else self._keep_layer
                )
        modules: dict[str, torch.nn.Module] = dict(policy.named_modules())
        encoder = next((modules[name] for name in ENCODERS if name in modules), None)
        if encoder is not None:
            encoder.register_forward_hook(self._take_note)
        elif not self._cameras:
            raise UnusableInputError(
                f"No module {' or '.join(ENCODERS)} in the {policy.name} policy. Name its encoder; "
                f"it has {', '.join(n for n in modules if n and n.count('.') <= 1)}."
            )

    @property
    def needs_images(self) -> bool:
        """Whether the policy looks at pictures."""
        return bool(self._policy.config.image_features)

    def reset(self) -> None:
        """Forget the take before."""
        self._history.clear()
        self._asked = None
        self._policy.reset()

    def features(self, observation: Observation) -> FloatArray:
        """Return the encoder's features, shape (d,)."""
        self._ask(observation)
        if not self._features.numel():
            shown = self.maps(observation).values()
            return np.concatenate([m.mean(axis=(0, 1)) for layers in shown for m in layers])
        return np.asarray(self._features.numpy(), dtype=np.float64)

    def maps(self, observation: Observation) -> Mapping[str, Sequence[FloatArray]]:
        """Return by camera what its picture's cells show, to a shallow and a deep layer.

        The first and the last of the layers with `LEAST_CELLS` cells across or more, on the grid of
        the last, each of shape (h, w, channels). Cameras that a policy stacks go through a layer at
        once, others one after another.

        Raises:
            UnusableInputError: which layer's output is of which camera can't be told.
        """
        self._ask(observation)
        count, layers = len(self._cameras), self._layers
        if not count or not layers:
            return {}
        each = len(layers) // count
        if len(layers[-1]) % (count * (self._history.maxlen or 1)) == 0:
            ends = [(layers[0][n - count], layers[-1][n - count]) for n in range(count)]
        elif each * count == len(layers):
            ends = [(layers[n * each][-1], layers[(n + 1) * each - 1][-1]) for n in range(count)]
        else:
            raise UnusableInputError(
                f"{len(layers)} layers of the {self._policy.name} policy show {count} cameras: "
                "it is unclear which is which. Leave --trained_on out."
            )
        found = {}
        for name, (first, last) in zip(self._cameras, ends, strict=True):
            both = (
                functional.adaptive_avg_pool2d(first.float(), (last.shape[1], last.shape[2])),
                last.float(),
            )
            found[name] = [np.asarray(m.permute(1, 2, 0).cpu().numpy(), np.float64) for m in both]
        return found

    def chunk(self, observation: Observation) -> FloatArray:
        """Return the actions it would take from now on, shape (h, n_action), LeRobot units."""
        self._ask(observation)
        return self._chunk

    def lacks(self, observation: Observation) -> str:
        """Return in words what the policy needs and an observation doesn't hold; "" if nothing."""
        given = _tensors(observation)
        unlike = []
        for key, feature in (self._policy.config.input_features or {}).items():
            known = given.get(key)
            if known is None:
                if "empty_camera" not in key:
                    unlike.append(key)
            elif key in (STATE, ENVIRONMENT) and tuple(known.shape[1:]) != tuple(feature.shape):
                unlike.append(f"{key} of shape {tuple(feature.shape)}")
        there = ", ".join(f"{key} of shape {tuple(v.shape[1:])}" for key, v in given.items())
        return f"the policy needs {', '.join(unlike)}; they hold {there}" if unlike else ""

    def _ask(self, observation: Observation) -> None:
        if observation is self._asked:
            return
        if why := self.lacks(observation):
            raise UnusableInputError(
                f"These takes can't be shown to the policy: {why}. Name the policy that drove "
                "them, or leave the policy out."
            )
        given = _tensors(observation)
        self._layers.clear()
        with torch.inference_mode():
            now = {
                k: v
                for k, v in self._before(given).items()
                if isinstance(v, torch.Tensor) and v.ndim > 0 and v.is_floating_point()
            }
            self._history.append(now)
            inputs, steps = dict(now), self._history.maxlen or 1
            if steps > 1:  # it looks at several: they get a time axis
                rows = [self._history[0]] * (steps - len(self._history)) + list(self._history)
                inputs = {key: torch.stack([row[key] for row in rows], dim=1) for key in now}
            planned = self._policy.predict_action_chunk(inputs)
            chunk = self._after(planned)
        self._chunk = np.asarray(chunk[0].cpu().numpy(), dtype=np.float64)
        self._asked = observation

    def _take_note(self, _module: torch.nn.Module, _inputs: object, output: object) -> None:
        first = output[0] if isinstance(output, tuple | list) else output
        tokens = cast(torch.Tensor, first).detach().float().cpu()
        self._features = tokens.reshape(-1, tokens.shape[-1]).mean(dim=0)

    def _keep_layer(self, _module: torch.nn.Module, _inputs: object, output: object) -> None:
        """Keep what is shaped as pictures are, (b, c, h, w)."""
        is_map = isinstance(output, torch.Tensor) and output.ndim == 4 and output.shape[1] > 3
        if is_map and min(cast(torch.Tensor, output).shape[2:]) >= LEAST_CELLS:
            self._layers.append(cast(torch.Tensor, output).detach())

    def _keep_tokens(self, module: torch.nn.Module, inputs: object, output: object) -> None:
        """Keep also a vision transformer's tokens, (b, h · w, c), as pictures."""
        if isinstance(output, torch.Tensor) and output.ndim == 3:
            side = math.isqrt(output.shape[1])
            if side * side == output.shape[1]:
                output = output.transpose(1, 2).reshape(len(output), -1, side, side)
        self._keep_layer(module, inputs, output)


def _tensors(observation: Observation) -> Tensors:
    given = {STATE: torch.tensor(observation.state, dtype=torch.float32)[None]}
    if observation.environment_state is not None:
        scene = torch.tensor(observation.environment_state, dtype=torch.float32)
        given[ENVIRONMENT] = scene[None]
    for name, image in observation.images.items():
        pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)
        given[f"{IMAGES}{name}"] = pixels[None].float() / 255.0
    return given


def keep_cameras(policy: Path, roots: Sequence[Path]) -> None:
    """Write what the cameras showed in training beside a policy that looks at pictures.

    Args:
        roots: the datasets that it learned from; the first with enough takes counts, since two
            stations' cameras have no picture in common.
    """
    weights = sum(file.stat().st_size for file in policy.rglob("*.safetensors"))
    later = f"gaploop diagnose TAKES --policy.path={policy} --save_reference={policy / FILE}"
    if weights > LARGEST_BYTES:
        log.info("%s is too large to record what its cameras showed. Later: %s", policy, later)
        return
    try:
        asked = LeRobotProbe(load_policy(policy))
        for root in roots if asked.needs_images else ():
            built = CameraReference.build(load_takes(root), root.name, asked)
            if built is not None:
                built.save(policy / FILE)
                return
    except (GaploopError, *FAULTS) as error:  # the policy is trained all the same
        log.warning("%s: its cameras can't be kept (%s). Later: %s", policy, error, later)
