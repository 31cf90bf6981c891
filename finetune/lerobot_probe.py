"""What a LeRobot policy makes of an observation's pictures."""

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
from gaploop.datasets.columns import FORCE
from gaploop.datasets.sources import load_takes
from gaploop.failure_analysis.cameras import FILE, CameraReference
from gaploop.finetune.lerobot_act import ENVIRONMENT, FAULTS, STATE
from gaploop.finetune.lerobot_policy import IMAGES, ActPolicy, load_policy

log = logging.getLogger(__name__)
LEAST_CELLS: Final = 12
"""Across a picture: layers with at least so many tell what its cells show."""

LARGEST_BYTES: Final = 1_000_000_000
"""Weights of a policy that is loaded once more after its training, on a processor."""

type Tensors = dict[str, torch.Tensor]


class LeRobotProbe:
    """A policy asked beside driving; implements `core.protocols.PolicyProbe`.

    A forward pass tells what its layers make of each picture's cells; it changes nothing about
    driving.

    Raises:
        UnusableInputError: it looks at no pictures.
    """

    def __init__(self, loaded: ActPolicy) -> None:
        bundle = loaded.bundle
        self._before = bundle.preprocessor
        policy: PreTrainedPolicy = bundle.policy
        self._policy = policy
        self._history: deque[Tensors] = deque(maxlen=int(getattr(policy.config, "n_obs_steps", 1)))
        self._asked: Observation | None = None
        self._layers: list[torch.Tensor] = []
        self._cameras = [key.removeprefix(IMAGES) for key in policy.config.image_features]
        if not self._cameras:
            raise UnusableInputError(f"The {policy.name} policy looks at no pictures.")
        for name, module in policy.named_modules():
            module.register_forward_hook(
                self._keep_tokens if "vision" in name else self._keep_layer
            )

    def reset(self) -> None:
        """Forget the take before."""
        self._history.clear()
        self._asked = None
        self._policy.reset()

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
                f"These episodes can't be shown to the policy: {why}. Name the policy that drove "
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
            self._policy.predict_action_chunk(inputs)
        self._asked = observation

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
    for name, values in observation.forces.items():
        given[f"{FORCE}{name}"] = torch.tensor(values, dtype=torch.float32)[None]
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
    later = f"gaploop diagnose Episodes --policy.path={policy} --save_reference={policy / FILE}"
    if weights > LARGEST_BYTES:
        log.info("%s is too large to record what its cameras showed. Later: %s", policy, later)
        return
    try:
        loaded = load_policy(policy)
        if not loaded.bundle.policy.config.image_features:
            return
        asked = LeRobotProbe(loaded)
        for root in roots:
            built = CameraReference.build(load_takes(root), root.name, asked)
            if built is not None:
                built.save(policy / FILE)
                return
    except (GaploopError, *FAULTS) as error:  # the policy is trained all the same
        log.warning("%s: its cameras can't be kept (%s). Later: %s", policy, error, later)
