"""Saved policies as gaploop's `Policy`: a base folder, an adapter folder, a run folder, `base`.

`ActPolicy` is for the small ACT that sees joints and the tracked scene. Everything else is driven
by `LerobotDriver`, the way of lerobot-rollout: LeRobot's `prepare_observation_for_inference`,
processors, `predict_action_chunk`.
"""

import hashlib
import inspect
import json
import logging
import math
import os
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from lerobot.configs import FeatureType, PreTrainedConfig, RTCAttentionSchedule
from lerobot.policies.rtc import RTCConfig
from lerobot.policies.utils import prepare_observation_for_inference
from lerobot.processor import RelativeActionsProcessorStep
from lerobot.utils.device_utils import is_torch_device_available

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, sha256
from gaploop.core.messages import FloatArray, Observation
from gaploop.core.schema import number
from gaploop.datasets.columns import FORCE
from gaploop.datasets.hub.target import SHIPPED, is_hub_name, policy_not_found
from gaploop.datasets.hub.upload import fetch
from gaploop.finetune import lerobot_act as act
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.batches import Batch
from gaploop.finetune.lerobot_formats import (
    FORMATS,
    REFERENCE,
    format_named,
    possible_views,
    put_in_format,
)
from gaploop.finetune.lerobot_trust import refuse_odd_files
from gaploop.finetune.runs import withdrawn_from
from gaploop.sim.catalogue import SO101
from gaploop.sim.lerobot_recalibration_steps import LightStep
from gaploop.sim.lerobot_tracker_step import TrackerStep
from gaploop.sim.tracker import NAMES as SCENE_NAMES

PACKAGED_BASE: Final = Path(__file__).parent / "base"
"""The base policy that ships with gaploop; its README has the command that rebuilds it."""
PACKAGED: Final = {name: PACKAGED_BASE.with_name(name) for name in SHIPPED}
"""Name to folder of the policies that ship with gaploop: of tracked poses, and one that sees."""
NOTES: Final = ("base.json", "lineage.json")
"""Files beside a policy that don't decide how it acts; gaploop push adds the latter."""
RUN_PARTS: Final = (
    "adapter", "policy", "merged", "checkpoints/last/pretrained_model", "last/pretrained_model",
    "pretrained_model",
)  # fmt: skip
"""Where a run folder keeps its policy: ours, and what lerobot-train writes."""
WEIGHTS: Final = "model.safetensors"
PREPROCESSOR: Final = "policy_preprocessor.json"
TRACKER: Final = "gaploop.sim.lerobot_tracker_step.TrackerStep"
"""As a saved policy names the step that finds the scene in pictures."""
_WORDS: Final = re.compile(r"""["']task["']|OBS_LANGUAGE|TokenizerProcessorStep""")
DELAY_S: Final = "delay_s"
"""In the sidecar: how long the arm takes to act on a command [s]; see `PolicyLeader`."""
CAMERA_DELAY_S: Final = "camera_delay_s"
"""In the sidecar: how much later pictures come than readings [s]."""
NOISE_RAD: Final = "noise_rad"
"""In the sidecar: standard deviation of each joint's readings [rad], in the state's order."""
IMAGES: Final = "observation.images."


class ActPolicy:
    """Drives with an ACT policy: predicts a chunk, hands out its first actions one by one.

    Args:
        delay_s: the arm's known delay [s], which whoever drives with the policy allows for.

    Attributes:
        execute: actions executed before the next prediction.
        camera_delay_s: how much later pictures come than readings [s], likewise.
        noise_rad: standard deviation of each joint's readings [rad], likewise; none if unknown.
        task: the instruction; most policies read none.
    """

    camera_delay_s = 0.0
    noise_rad: Sequence[float] = ()
    task = ""

    def __init__(self, bundle: act.ActBundle, delay_s: float = 0.0) -> None:
        self.bundle, self.execute, self.delay_s = bundle, bundle.execute, delay_s
        self.runs = ""
        """Where and how it computes, in words; as `load_policy` was asked."""
        self.chunk: FloatArray | None = None
        """What was planned last, shape (chunk, n_action), in LeRobot units; None before."""
        self._queue: deque[FloatArray] = deque()

    @property
    def fps(self) -> float:
        """Policy frames a second that it was trained at [Hz].

        Raises:
            UnusableInputError: nothing says it.
        """
        if not self.bundle.signature.fps:
            raise UnusableInputError(
                "The frame rate that the policy was trained at is not stated: it has no "
                f"{act.SIDECAR}, and the dataset that its {act.TRAIN_CONFIG} names isn't here. "
                f'Give it, such as --policy.fps=30, or for good: {{"fps": 30}} in {act.SIDECAR} '
                "beside the policy."
            )
        return self.bundle.signature.fps

    @property
    def robot_type(self) -> str:
        """LeRobot's name of the arm that it was trained for; "" where nothing says."""
        return self.bundle.signature.robot_type

    @property
    def needs_scene(self) -> bool:
        """Say whether the policy was trained on the camera tracker's view of the scene."""
        return self.bundle.signature.environment_names == SCENE_NAMES

    @property
    def forces(self) -> tuple[str, ...]:
        """Sensors whose readings it sees."""
        wanted = self.bundle.policy.config.input_features or {}
        return tuple(key.removeprefix(FORCE) for key in wanted if key.startswith(FORCE))

    @property
    def gpu_left_mb(self) -> float | None:
        """Memory that its GPU has left now [MB]; None without an NVIDIA GPU."""
        device = torch.device(str(self.bundle.policy.config.device))
        return torch.cuda.mem_get_info(device)[0] / 1e6 if device.type == "cuda" else None

    def reset(self) -> None:
        """Forget the episode before."""
        self.chunk = None
        self._queue.clear()
        self.bundle.policy.reset()
        self.bundle.preprocessor.reset()

    def act(self, observation: Observation) -> FloatArray:
        """Return the next joint target, shape (n_action,), in the policy's LeRobot units.

        Raises:
            UnusableInputError: the observation lacks the tracked scene or has another size.
        """
        if not self._queue:
            self._queue.extend(self.plan(observation)[: self.execute])
        return self._queue.popleft()

    def plan(self, observation: Observation) -> FloatArray:
        """Return the next joint targets, shape (n_steps, n_action), in LeRobot units.

        Raises:
            UnusableInputError: as `act`.
        """
        self.chunk = self.predict(_single(observation, self.bundle))[0]
        return self.chunk

    def predict(self, batch: Batch) -> FloatArray:
        """Return predicted chunks, shape (b, chunk, n_action), in LeRobot units."""
        tensors = act.to_tensors(batch, str(self.bundle.policy.config.device))
        with torch.inference_mode():
            inputs = self.bundle.preprocessor({k: tensors[k] for k in (act.STATE, act.ENVIRONMENT)})
            chunk = self.bundle.postprocessor(self.bundle.policy.predict_action_chunk(inputs))
        return np.asarray(chunk.cpu().numpy(), dtype=np.float64)


def load_policy(
    path: str | Path,
    *,
    device: str = "cpu",
    threads: int = 0,
    format: str = REFERENCE,
    task: str = "",
    fps: float | None = None,
) -> ActPolicy:
    """Load a policy, ready to drive.

    Args:
        path: a policy folder, an adapter folder, a run folder that holds one, or `base`.
        device: of torch, such as `cuda:0`; `auto` for the best there is.
        threads: processor threads of this whole process; 0 for OMP_NUM_THREADS, or else 1.
        format: how it computes, one of `FORMATS`; "" for fp32.
        fps: frames a second that it was trained at [Hz]; by default what its folder says.

    Raises:
        UnusableInputError: nothing loadable there, no such device, a format that can't be computed
            here, or `fps` isn't above 0 or isn't what the policy's folder says.
    """
    device, chosen = device_named(device), format_named(format or REFERENCE)
    if threads < 0:
        raise UnusableInputError(f"--policy.threads={threads} must be at least 1.")
    torch.set_num_threads(threads or int(os.environ.get("OMP_NUM_THREADS", "1")))
    folder = resolve(path)
    bundle = (adapter.load if adapter.is_adapter(folder) else act.load)(folder, device)
    sidecar = folder / act.SIDECAR
    said = read_json(sidecar) if sidecar.exists() else {}
    delay_s, camera_delay_s = (
        number(said.get(name, 0.0), f"{sidecar}: {name}", 0.0, 2.0)
        for name in (DELAY_S, CAMERA_DELAY_S)
    )
    policy = ActPolicy(bundle, delay_s)
    if _is_for_driver(bundle.policy.config):
        can_go_on = hasattr(bundle.policy, "init_rtc_processor") and bundle.policy.supports_rtc()
        is_relative = any(  # actions, to where each plan began
            isinstance(s, RelativeActionsProcessorStep) and s.enabled
            for s in bundle.preprocessor.steps
        )
        is_own = can_go_on and chosen.has_gradients and not is_relative
        policy = (RealTimeDriver if is_own else LerobotDriver)(bundle, delay_s)
        policy.task = task
    policy.camera_delay_s = camera_delay_s
    signature = policy.bundle.signature
    policy.noise_rad = _noise_rad(
        said.get(NOISE_RAD, []), len(signature.state_names), f"{sidecar}: {NOISE_RAD}"
    )
    if fps is not None:
        if not 0 < fps < math.inf or signature.fps not in (0.0, fps):
            known = f"policy was trained at {signature.fps:g}" if signature.fps else "not above 0"
            raise UnusableInputError(f"--policy.fps={fps:g} can't be right: {known}. Leave it out.")
        policy.bundle.signature = replace(signature, fps=fps)
    if chosen is not FORMATS[REFERENCE]:
        put_in_format(policy, format, possible_views(folder, 3))
    used = torch.get_num_threads()
    policy.runs = f"{device}, {format or REFERENCE}, {used} thread{'s' * (used > 1)}"
    return policy


def device_named(device: str, option: str = "--policy.device") -> str:
    """Return a device of torch; for `auto` the best that this machine has.

    LeRobot would take another one where it can't be used, and only log it.

    Raises:
        UnusableInputError: it can't be used here.
    """
    if device == "auto":
        return next(d for d in ("cuda", "mps", "xpu", "cpu") if is_torch_device_available(d))
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
        raise UnusableInputError(
            f"{option}={device}: PyTorch can't use it here ({reason}). Give auto for the best "
            "there is, or cpu."
        ) from None
    return device


def _noise_rad(said: Any, joints: int, where: str) -> tuple[float, ...]:
    if not isinstance(said, list) or len(said) not in (0, joints):
        raise UnusableInputError(f"{where} must be a list of {joints} numbers, one for each joint.")
    return tuple(number(value, where, 0.0, 1.0) for value in said)


def resolve(path: str | Path) -> Path:
    """Return the absolute folder that `path` means; me/name is fetched from the Hub.

    Raises:
        UnusableInputError: no such folder or repository, or no policy in it.
    """
    if str(path) in PACKAGED and not Path(path).is_dir():
        path = PACKAGED[str(path)]
    folder = (fetch(str(path)) if is_hub_name(path) else Path(path)).expanduser().absolute()
    if not folder.exists() and not is_hub_name(path):
        raise policy_not_found(path)
    # Copied without links, a run of lerobot-train has no "last": its newest checkpoint then.
    steps = sorted(folder.glob("checkpoints/[0-9]*/pretrained_model"), reverse=True)
    for candidate in (folder, *(folder / name for name in RUN_PARTS), *steps):
        if adapter.is_adapter(candidate) or (candidate / WEIGHTS).exists():
            refuse_odd_files(candidate)
            return candidate
    raise UnusableInputError(
        f"No policy in {path}: neither model.safetensors nor adapter_config.json. Name the "
        "--output_dir of gaploop finetune, a LeRobot policy folder, or 'base'."
    )


def cell_of(path: str | Path) -> tuple[str, str] | None:
    """Return task and arm of the cell whose scene a policy's tracker step sees; None without one.

    Raises:
        UnusableInputError: as `resolve`.
    """
    for step in _said(path, PREPROCESSOR).get("steps", []):
        if step.get("class") == TRACKER:
            said = step.get("config", {})
            return str(said.get("task", "pick_place")), str(said.get("robot", SO101.name))
    return None


def cameras_of(path: str | Path) -> set[str]:
    """Return the cameras that a policy sees by.

    Raises:
        UnusableInputError: as `resolve`.
    """
    features = _said(path, "config.json").get("input_features") or {}
    return {name.removeprefix(IMAGES) for name in features if name.startswith(IMAGES)}


def _said(path: str | Path, name: str) -> dict[str, Any]:
    file = resolve(path) / name
    return read_json(file) if file.exists() else {}


def reads_instruction(path: str | Path) -> bool:
    """Say whether the code of a policy's type reads the task's words; a type not known here may.

    No feature or processor step tells of all of LeRobot's types: evo1, fastwam, lingbot_va and
    vla_jepa read the task in the model.

    Raises:
        UnusableInputError: as `resolve`.
    """
    known = PreTrainedConfig.get_known_choices()
    kind = (_said(path, "config.json") or {"type": "act"}).get("type")
    if kind not in known:
        return True
    sources = Path(inspect.getfile(known[kind])).parent.glob("*.py")
    return any(_WORDS.search(source.read_text()) for source in sources)


def policy_id(path: str | Path) -> str:
    """Return the hash that names a policy in lineage: `sha256:` and 16 hexadecimal digits.

    It covers what decides how the policy acts (weights, configuration, processors), not the
    notes beside them, and is the same on the Hub as here.
    """
    folder = resolve(path)
    files = [p for p in folder.rglob("*") if p.suffix in (".safetensors", ".json")]
    has_base = adapter.is_adapter(folder) and (folder / adapter.BASE).is_dir()
    digest = hashlib.sha256()
    for file in sorted(p for p in files if p.name not in NOTES):
        name = str(file.relative_to(folder))
        if has_base and name == WEIGHTS:
            continue  # the base's once more, where plain LeRobot looks for it
        said = sha256(file)
        if has_base and name == adapter.CONFIG:  # as it is before its base is on a Hub
            config = {**read_json(file), adapter.BASE_KEY: adapter.BASE}
            text = json.dumps(config, indent=1, sort_keys=True) + "\n"
            said = hashlib.sha256(text.encode()).hexdigest()
        digest.update(f"{name} {said}\n".encode())
    return f"sha256:{digest.hexdigest()[:16]}"


def warn_withdrawn(policy: str | Path) -> None:
    """Warn where a policy learned from a person who withdrew consent: it can't be pushed."""
    reason = withdrawn_from(resolve(policy), policy_id(policy))
    if reason:
        logging.getLogger(__name__).warning("%s %s. Train it again.", policy, reason)


def _single(observation: Observation, bundle: act.ActBundle) -> Batch:
    signature = bundle.signature
    environment, steps = observation.environment_state, bundle.preprocessor.steps
    light = next((s for s in steps if isinstance(s, LightStep)), None)
    tracker = next((s for s in steps if isinstance(s, TrackerStep)), None)
    if environment is not None and light is not None and tracker is not None:
        # The policy's own tracker finds the scene, in pictures that are cleared first.
        if light.camera not in observation.images:
            raise UnusableInputError(
                f"The policy allows for the light in pictures of '{light.camera}', and there are "
                f"none: {', '.join(observation.images) or 'no camera'}. Give the overhead "
                "camera that name."
            )
        picture = {f"{IMAGES}{light.camera}": np.array(observation.images[light.camera])}
        found = tracker.observation(light.observation(picture))[act.ENVIRONMENT]
        domain = environment[-1]  # as the rig says
        environment = np.append(np.asarray(found, dtype=np.float64)[:-1], domain)
    if environment is None:
        raise UnusableInputError(
            "The policy needs observation.environment_state and nothing tracks the scene. "
            "Name a policy that learned from what is shown here."
        )
    for name, value, wanted in (
        ("observation.state", observation.state, signature.state_names),
        ("observation.environment_state", environment, signature.environment_names),
    ):
        if np.shape(value) != (len(wanted),):
            raise UnusableInputError(
                f"{name} has shape {np.shape(value)}, the policy was trained on {len(wanted)} "
                f"entries ({', '.join(wanted)}). Use the arm and tracker it was trained with."
            )
    return Batch(
        np.asarray(observation.state, dtype=np.float32)[None],
        np.asarray(environment, dtype=np.float32)[None],
        np.zeros((1, bundle.chunk, len(signature.action_names)), dtype=np.float32),
        np.zeros((1, bundle.chunk), dtype=bool),
        np.zeros(1, dtype=np.int64),
    )


class LerobotDriver(ActPolicy):
    """Drives with a policy of any of LeRobot's types.

    One that looks back over several observations (`n_obs_steps`) is asked on every frame, since its
    own queue counts them; the others plan a chunk at a time.

    Args: as of `ActPolicy`.
    """

    def __init__(self, bundle: act.ActBundle, delay_s: float = 0.0) -> None:
        super().__init__(bundle, delay_s)
        config: Any = bundle.policy.config
        self.looks_back = int(getattr(config, "n_obs_steps", 1) or 1) > 1
        self.execute = 1 if self.looks_back else bundle.execute
        self._device = torch.device(str(config.device))
        self._answer = torch.empty(0)
        """The last plan as the policy gave it, shape (n_steps, n_action)."""

    def plan(self, observation: Observation, **options: Any) -> FloatArray:
        """Return the next joint targets, shape (n_steps, n_action), in LeRobot units.

        `options` are the policy's own, of `predict_action_chunk`.

        Raises:
            UnusableInputError: the observation lacks what the policy sees.
        """
        policy = self.bundle.policy
        wanted = policy.config.input_features or {}
        given: dict[str, Any] = {act.STATE: np.asarray(observation.state, dtype=np.float32)}
        for name, image in observation.images.items():
            if not any(f.type is FeatureType.VISUAL for f in wanted.values()):
                break
            given[f"{IMAGES}{name}"] = np.array(image)  # torch wants it writable
        if observation.environment_state is not None and act.ENVIRONMENT in wanted:
            given[act.ENVIRONMENT] = np.asarray(observation.environment_state, dtype=np.float32)
        forces = {f"{FORCE}{name}": values for name, values in observation.forces.items()}
        given |= {
            key: np.asarray(v, dtype=np.float32) for key, v in forces.items() if key in wanted
        }
        empty = int(getattr(policy.config, "empty_cameras", 0) or 0)
        missing = [key for key in wanted if key not in given and not (empty and IMAGES in key)]
        if missing:
            raise UnusableInputError(
                f"The policy needs {', '.join(missing)}; there is {', '.join(given)}. Run it where "
                "cameras and observed --sensors have these names, or choose a policy that sees "
                "these."
            )
        made: dict[str, Any] = prepare_observation_for_inference(given, self._device, self.task)
        inputs = self.bundle.preprocessor(made)
        with torch.no_grad():  # not inference_mode: real-time chunking takes gradients
            if self.looks_back:
                answer = policy.select_action(inputs)[:, None]
            else:
                answer = policy.predict_action_chunk(inputs, **options)
            self._answer = answer[0]
            chunk = self.bundle.postprocessor(answer)[0]
        self.chunk = np.asarray(chunk.float().cpu().numpy(), dtype=np.float64)
        return self.chunk

    def predict(self, batch: Batch) -> FloatArray:
        """Raise: what such a policy sees isn't in a batch of states."""
        del batch
        raise UnusableInputError(
            f"A {self.bundle.policy.config.type} policy that sees pictures can't plan from joint "
            "and scene states alone."
        )


class RealTimeDriver(LerobotDriver):
    """Drives with a policy that has LeRobot's real-time chunking, as SmolVLA, pi0 and pi0.5 have.

    Args: as of `LerobotDriver`.
    """

    def __init__(self, bundle: act.ActBundle, delay_s: float = 0.0) -> None:
        super().__init__(bundle, delay_s)
        policy: Any = bundle.policy
        schedule = RTCAttentionSchedule.EXP
        policy.config.rtc_config = RTCConfig(prefix_attention_schedule=schedule)
        policy.init_rtc_processor()

    def replan(self, observation: Observation, passed: int, delay: int) -> FloatArray:
        """Return a plan that goes on with the last one; as of `RealTimePlanner`."""
        left = self._answer[passed:]
        if self.chunk is None or not len(left):
            return self.plan(observation)
        return self.plan(
            observation,
            inference_delay=delay,
            prev_chunk_left_over=left,
            execution_horizon=len(left),
        )


def _is_for_driver(config: Any) -> bool:
    """Say whether a policy is another one than the small ACT on the tracked scene."""
    kinds = {feature.type for feature in (config.input_features or {}).values()}
    return config.type != "act" or FeatureType.VISUAL in kinds or FeatureType.ENV not in kinds
