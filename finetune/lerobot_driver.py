"""Drives with any policy of LeRobot's: pictures, joint states, an instruction.

`ActPolicy` is for the small ACT that sees the tracked scene. Everything else goes the way of
lerobot-rollout: LeRobot's `prepare_observation_for_inference`, processors, `predict_action_chunk`.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from lerobot.configs import FeatureType
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.factory import get_policy_class, make_pre_post_processors
from lerobot.policies.utils import prepare_observation_for_inference
from peft import PeftModel
from safetensors import SafetensorError

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json
from gaploop.core.types import FloatArray, Observation
from gaploop.finetune import lerobot_act as act
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.batches import Batch, Signature
from gaploop.finetune.lerobot_policy import ActPolicy
from gaploop.finetune.lerobot_trust import refuse_foreign_code

FPS: Final = 30.0
"""What LeRobot records and rolls out at, where a policy doesn't say its rate [Hz]."""
IMAGES: Final = "observation.images."
FAULTS: Final = (
    OSError, ValueError, KeyError, RuntimeError, TypeError, ImportError, SafetensorError,
)  # fmt: skip
"""What LeRobot and its libraries raise for files that are missing, damaged or another kind's."""


class LerobotDriver(ActPolicy):
    """Drives with a policy of any of LeRobot's types.

    One that looks back over several observations (`n_obs_steps`) is asked on every frame, since its
    own queue counts them; the others plan a chunk at a time.

    Args:
        bundle: policy, processors, names.
        execute: actions executed before the next prediction; by default the policy's own.
        task: the instruction, for policies that read one.
    """

    def __init__(self, bundle: act.ActBundle, execute: int | None = None, task: str = "") -> None:
        config: Any = bundle.policy.config
        self._looks_back = int(getattr(config, "n_obs_steps", 1) or 1) > 1
        own = int(getattr(config, "n_action_steps", 1) or 1)
        super().__init__(bundle, 1 if self._looks_back else execute or own)
        self.task = task
        self._device = torch.device(str(config.device))

    def plan(self, observation: Observation) -> FloatArray:
        """Return the next joint targets, shape (n_steps, n_action), in LeRobot units.

        Raises:
            UnusableInputError: the observation lacks what the policy sees.
        """
        policy = self.bundle.policy
        inputs = self.bundle.preprocessor(self._inputs(observation))
        with torch.inference_mode():
            if self._looks_back:
                answer = policy.select_action(inputs)[:, None]
            else:
                answer = policy.predict_action_chunk(inputs)
            chunk = self.bundle.postprocessor(answer)[0]
        self.chunk = np.asarray(chunk.float().cpu().numpy(), dtype=np.float64)
        return self.chunk

    def predict(self, batch: Batch) -> FloatArray:
        """Raise: what such a policy sees isn't in a batch of states."""
        del batch
        raise UnusableInputError(
            f"A {self.bundle.policy.config.type} policy that sees pictures can't be asked by joint "
            "and scene states alone."
        )

    def _inputs(self, observation: Observation) -> dict[str, Any]:
        wanted = self.bundle.policy.config.input_features or {}
        given: dict[str, Any] = {act.STATE: np.asarray(observation.state, dtype=np.float32)}
        for name, image in observation.images.items():
            if not any(f.type is FeatureType.VISUAL for f in wanted.values()):
                break
            given[f"{IMAGES}{name}"] = np.array(image)  # torch wants it writable
        if observation.environment_state is not None and act.ENVIRONMENT in wanted:
            given[act.ENVIRONMENT] = np.asarray(observation.environment_state, dtype=np.float32)
        empty = int(getattr(self.bundle.policy.config, "empty_cameras", 0) or 0)
        missing = [key for key in wanted if key not in given and not (empty and IMAGES in key)]
        if missing:
            raise UnusableInputError(
                f"The policy needs {', '.join(missing)}; there is {', '.join(given)}. Name the "
                "cameras so in --robot.cameras."
            )
        made: dict[str, Any] = prepare_observation_for_inference(given, self._device, self.task)
        return made


def is_for_driver(folder: Path) -> bool:
    """Say whether a policy folder holds another policy than the small ACT on the tracked scene."""
    file = folder / "config.json"
    if not file.exists():
        return False
    config = read_json(file)
    features = (config.get("input_features") or {}).values()
    kinds = {str(feature.get("type")) for feature in features}
    return config.get("type") != "act" or "VISUAL" in kinds or "ENV" not in kinds


def load_driver(
    folder: Path, *, execute: int | None = None, device: str = "cpu", task: str = ""
) -> LerobotDriver:
    """Load a policy or an adapter of any of LeRobot's types.

    Args:
        folder: where it is; an adapter's base is in it or on the Hub.
        execute: as of `LerobotDriver`.
        device: torch device.
        task: as of `LerobotDriver`.

    Raises:
        UnusableInputError: it, its base, or a library that it needs is missing or damaged, or its
            files name code to run.
    """
    refuse_foreign_code(folder)
    weights = adapter.base_folder(folder) if adapter.is_adapter(folder) else folder
    with _in_words(folder), contextlib.redirect_stdout(io.StringIO()):
        config = PreTrainedConfig.from_pretrained(
            folder, local_files_only=True, cli_overrides=[f"--device={device}"]
        )
        kind = get_policy_class(config.type)
        policy = kind.from_pretrained(str(weights), config=config)
        before, after = make_pre_post_processors(
            config,
            pretrained_path=str(folder),
            preprocessor_overrides={"device_processor": {"device": device}},
        )
        if adapter.is_adapter(folder):
            policy = adapter.merged(PeftModel.from_pretrained(policy, str(folder)))
    policy.to(device)
    policy.eval()
    bundle = act.ActBundle(policy, before, after, _signature(folder, config))
    return LerobotDriver(bundle, execute, task)


@contextlib.contextmanager
def _in_words(folder: Path) -> Iterator[None]:
    try:
        yield
    except UnusableInputError:
        raise
    except FAULTS as error:
        reason = " ".join(str(error).split())[:200]
        raise UnusableInputError(
            f"{folder} is not a loadable policy ({reason}). Name a folder that gaploop or "
            "lerobot-train saved, or 'base'."
        ) from None


def _signature(folder: Path, config: PreTrainedConfig) -> Signature:
    file = folder / act.SIDECAR
    said = read_json(file) if file.exists() else {}
    features = {**(config.input_features or {}), **(config.output_features or {})}

    def names(key: str, feature: str) -> tuple[str, ...]:
        known = features.get(feature)
        numbers = tuple(str(i) for i in range(int(known.shape[0]))) if known else ()
        return tuple(said.get(key) or numbers)

    return Signature(
        float(said.get("fps") or FPS),
        names("state_names", act.STATE),
        names("environment_names", act.ENVIRONMENT),
        names("action_names", act.ACTION),
        units=str(said.get("units") or ""),
        robot_type=str(said.get("robot_type") or ""),
    )
