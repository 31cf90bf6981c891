"""Policies through LeRobot: load any, save any, build a small ACT on joint and scene state.

ACT is Zhao et al. 2023 (arXiv:2304.13705) in LeRobot's implementation. Two things differ from
LeRobot's defaults, both because nothing here comes from images: `ENV` is in the normalisation
map (by default the environment state goes in unnormalised, silently), and the variational
encoder is off, since the scripted demonstrations have one style.
"""

import contextlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError

import torch
from draccus.utils import DraccusException
from huggingface_hub.errors import LocalEntryNotFoundError
from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.train import TRAIN_CONFIG_NAME
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.factory import get_policy_class, make_pre_post_processors
from lerobot.processor import PolicyProcessorPipeline
from lerobot.processor.pipeline import ProcessorMigrationError
from safetensors import SafetensorError

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.datasets.absolute.examine import training_set
from gaploop.datasets.layout import read_info
from gaploop.finetune.batches import Batch, FeatureMoments, Signature
from gaploop.finetune.lerobot_trust import SIDECAR as SIDECAR
from gaploop.finetune.lerobot_trust import refuse_foreign_code
from gaploop.finetune.training import is_out_of_memory
from gaploop.sim.catalogue import arm_of
from gaploop.sim.lerobot_tracker_step import TrackerStep
from gaploop.sim.tracker import NAMES as SCENE

STATE: Final = "observation.state"
ENVIRONMENT: Final = "observation.environment_state"
ACTION: Final = "action"
TRAIN_CONFIG: Final = str(TRAIN_CONFIG_NAME)
"""Beside a policy that lerobot-train made: which dataset it learned from."""
FEATURE_KEYS: Final = {"state": STATE, "environment": ENVIRONMENT, "action": ACTION}
FAULTS: Final = (
    OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError, ImportError,
    SafetensorError, DraccusException, ProcessorMigrationError,
)  # fmt: skip
"""What LeRobot and its libraries raise for files that are missing, damaged or another kind's."""
REASON: Final = 400
"""Characters of it that are shown."""


@dataclass(frozen=True)
class ActSize:
    """How large the network is and how far it looks ahead.

    Attributes:
        chunk: actions predicted at once.
        execute: actions executed before the next prediction.
    """

    chunk: int = 20
    execute: int = 10
    width: int = 128
    heads: int = 4
    feedforward: int = 512
    encoder_layers: int = 1
    dropout: float = 0.0


@dataclass
class ActBundle:
    """A policy with its processors and what they were made for."""

    policy: Any
    preprocessor: PolicyProcessorPipeline[Any, Any]
    postprocessor: PolicyProcessorPipeline[Any, Any]
    signature: Signature

    @property
    def chunk(self) -> int:
        """Actions predicted at once."""
        return int(self.policy.config.chunk_size)

    @property
    def execute(self) -> int:
        """Actions executed before the next prediction."""
        return int(getattr(self.policy.config, "n_action_steps", 1) or 1)


def build(
    signature: Signature,
    moments: Mapping[str, FeatureMoments],
    size: ActSize,
    *,
    seed: int,
    task: str = "pick_place",
) -> ActBundle:
    """Make an untrained policy.

    Args:
        moments: of `state`, `environment` and `action`, by which they are normalised.
        task: the cell's task, which decides what a camera tracker looks for.

    Raises:
        UnusableInputError: no environment state, without which ACT refuses state-only input.
    """
    if not signature.environment_names:
        raise UnusableInputError(
            "No observation.environment_state in the data, and ACT refuses joint state alone. "
            "Record with a tracker, or import with the joint state copied to it."
        )
    torch.manual_seed(seed)
    config = ACTConfig(
        chunk_size=size.chunk,
        n_action_steps=size.execute,
        dim_model=size.width,
        n_heads=size.heads,
        dim_feedforward=size.feedforward,
        n_encoder_layers=size.encoder_layers,
        n_decoder_layers=1,
        dropout=size.dropout,
        use_vae=False,
        pretrained_backbone_weights=None,
        device="cpu",
        push_to_hub=False,
        input_features={
            STATE: PolicyFeature(FeatureType.STATE, (len(signature.state_names),)),
            ENVIRONMENT: PolicyFeature(FeatureType.ENV, (len(signature.environment_names),)),
        },
        output_features={ACTION: PolicyFeature(FeatureType.ACTION, (len(signature.action_names),))},
        normalization_mapping=dict.fromkeys(("STATE", "ENV", "ACTION"), NormalizationMode.MEAN_STD),
    )
    stats = {
        FEATURE_KEYS[k]: {"mean": torch.tensor(m.mean), "std": torch.tensor(m.std)}
        for k, m in moments.items()
    }
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    if signature.environment_names == SCENE:  # other datasets' 7 entries mean other things
        # First after renaming, so that plain lerobot-rollout runs it.
        tracker = TrackerStep(task=task, robot=arm_of(signature.robot_type).name)
        before.steps = [before.steps[0], tracker, *before.steps[1:]]
    return ActBundle(ACTPolicy(config), before, after, signature)


def save(bundle: Any, folder: Path) -> None:
    """Write a bundle of this or any policy as a folder that LeRobot's `from_pretrained` loads."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.redirect_stdout(io.StringIO()):
        bundle.policy.save_pretrained(folder)
    save_processors(bundle, folder)


def save_processors(bundle: Any, folder: Path) -> None:
    """Write the processors and the sidecar of a policy or adapter folder."""
    bundle.preprocessor.save_pretrained(folder)
    bundle.postprocessor.save_pretrained(folder)
    write_json(folder / SIDECAR, {"schema": "gaploop.policy.v1", **asdict(bundle.signature)})


def load(folder: Path, device: str = "cpu", processors: Path | None = None) -> ActBundle:
    """Load a policy of any of LeRobot's types, from local files only.

    Args:
        processors: where its configuration, processors and, if it has one, its sidecar are: those
            of an adapter.

    Raises:
        UnusableInputError: not a policy folder, its files are damaged, or they name code.
    """
    refuse_foreign_code(folder)
    refuse_foreign_code(processors or folder)
    with in_words(folder):
        config = PreTrainedConfig.from_pretrained(
            processors or folder, local_files_only=True, cli_overrides=[f"--device={device}"]
        )
        strict: dict[str, Any] = {"strict": True} if config.type == "act" else {}
        policy = get_policy_class(config.type).from_pretrained(str(folder), config=config, **strict)
        before, after = make_pre_post_processors(
            config,
            pretrained_path=str(processors or folder),
            preprocessor_overrides={"device_processor": {"device": device}},
        )
        told = [at for at in (processors, folder) if at and (at / SIDECAR).exists()]
        signature = signature_of(told[0] if told else folder, config)
    refuse_not_finite(policy, folder)
    policy.to(device)
    policy.eval()
    return ActBundle(policy, before, after, signature)


def refuse_not_finite(policy: torch.nn.Module, folder: Path) -> None:
    """Refuse a policy with NaN or infinite weights: all that it would say is NaN.

    Raises:
        UnusableInputError: the first tensor with such a number.
    """
    for name, weights in policy.named_parameters():
        if weights.is_floating_point() and not torch.isfinite(weights).all():
            raise UnusableInputError(
                f"{folder}: NaN or infinite numbers in the weights {name}. Use an earlier "
                "checkpoint, or train it again."
            )


@contextlib.contextmanager
def in_words(folder: Path, kind: str = "policy") -> Iterator[None]:
    """Say in one line what LeRobot raises while it opens a policy; its prints go nowhere."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # stdout is for --json
            yield
    except UnusableInputError:
        raise
    except ImportError as error:
        raise UnusableInputError(
            f"{folder} needs a library that isn't installed: {' '.join(str(error).split())[:200]}"
        ) from None
    except FAULTS as error:
        reason = " ".join(str(error).partition("\n\nOriginal error")[0].split())[:REASON]
        if is_out_of_memory(error):
            raise UnusableInputError(
                f"{folder} doesn't fit into memory ({reason}). Use a GPU with more, or a smaller "
                "policy."
            ) from None
        raise UnusableInputError(
            f"{folder} is not a loadable {kind} ({reason}). {_fix_of(error)}"
        ) from None


def _fix_of(error: Exception) -> str:
    """Return what helps against what LeRobot raised while it opened a policy."""
    if isinstance(error, ProcessorMigrationError):  # its own line names the folder twice
        return "LeRobot before 0.4 saved it: run that command, and name the folder that it writes."
    if isinstance(error, (ConnectionError, URLError, LocalEntryNotFoundError)):
        return "It needs files from the network: connect once, then it goes without."
    if isinstance(error, DraccusException):
        return "Another version of LeRobot may have saved it: use that one, or this one's config."
    return "Name a folder that gaploop or lerobot-train saved, or 'base'."


def to_tensors(batch: Batch, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Return a batch under LeRobot's keys, still in LeRobot units."""
    tensors = {
        STATE: torch.from_numpy(batch.state),
        ENVIRONMENT: torch.from_numpy(batch.environment),
        ACTION: torch.from_numpy(batch.action),
        "action_is_pad": torch.from_numpy(batch.is_pad),
    }
    return {k: v.to(device) for k, v in tensors.items()}


def signature_of(folder: Path, config: PreTrainedConfig) -> Signature:
    """Return what a policy was trained on, by its sidecar.

    Without one, by the dataset that `train_config.json` of lerobot-train names, where that is on
    this machine; what neither says stays open: names are numbers, and the rate is 0.

    Raises:
        KeyError: a sidecar without a rate.
    """
    file = folder / SIDECAR
    said: dict[str, Any] = {}
    if file.exists():
        said = read_json(file)
    else:
        try:
            info = read_info(training_set(folder).root)
        except UnusableInputError:
            pass  # it isn't here
        else:
            said = {f"{key}_names": info.names(feature) for key, feature in FEATURE_KEYS.items()}
            said |= {"fps": info.fps, "robot_type": info.robot_type}
    features = {**(config.input_features or {}), **(config.output_features or {})}

    def names(key: str, feature: str) -> tuple[str, ...]:
        known, told = features.get(feature), tuple(said.get(key) or ())
        numbers = tuple(str(i) for i in range(int(known.shape[0]))) if known else ()
        return told if file.exists() or len(told) == len(numbers) else numbers

    return Signature(
        float(said["fps"] if file.exists() else said.get("fps") or 0.0),
        names("state_names", STATE),
        names("environment_names", ENVIRONMENT),
        names("action_names", ACTION),
        units=str(said.get("units") or ""),
        robot_type=str(said.get("robot_type") or ""),
        cameras=tuple(said.get("cameras") or ()),
    )
