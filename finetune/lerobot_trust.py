"""What a policy folder may make LeRobot run: read before LeRobot builds anything from it.

LeRobot imports whatever class path a processor's JSON names and calls it with the arguments that
stand beside it: `{"class": "subprocess.Popen", "config": {"args": ["…"]}}` runs a program. Some of
its policies fetch a tokenizer or a backbone by a name in config.json and run the Python that lies
there (`trust_remote_code=True`), and PEFT imports a module that adapter_config.json names. A
policy from elsewhere must do none of that, so every module that loads one calls
`refuse_foreign_code` first (tests/test_policy_trust.py holds it).

What counts as known: steps and policy types of LeRobot and gaploop, of installed plug-ins
(`lerobot_policy_*` and the like, which LeRobot imports by their name), and of packages that the
user imports by `--policy.discover_packages_path=PACKAGE`.
"""

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import lerobot.policies
import lerobot.rewards  # noqa: F401  both register theirs by name
from lerobot.configs.parser import load_plugin
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.rewards import RewardModelConfig
from lerobot.processor import ProcessorStep, ProcessorStepRegistry
from lerobot.utils.import_utils import register_third_party_plugins

from gaploop.collect.lerobot_types import DISCOVERED
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, regular_file
from gaploop.core.paths import plain_name

CONFIG: Final = "config.json"
ADAPTER_CONFIG: Final = "adapter_config.json"
SIDECAR: Final = "gaploop.json"
"""Beside a saved policy: rate, names and units, which LeRobot's config has no place for."""
BASE: Final = "base"
"""Where gaploop's adapters keep their base."""
OUR_STEPS: Final = (
    "gaploop.datasets.cache.lerobot_scale_step.ScaleStep",
    "gaploop.finetune.lerobot_force_step.ForceStep",
    "gaploop.sim.lerobot_recalibration_steps.LightStep",
    "gaploop.sim.lerobot_recalibration_steps.ReadingGoalStep",
    "gaploop.sim.lerobot_recalibration_steps.RecalibrateStep",
    "gaploop.sim.lerobot_tracker_step.TrackerStep",
)
"""Steps that gaploop saves by their class path; see `TrackerStep` for why it isn't registered."""
PICKLES: Final = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
"""Files whose loading can run code; weights are read from .safetensors only."""
CODE_REPOSITORIES: Final = {
    "gaussian_actor": ("vision_encoder_name",),
    "groot": ("base_model_path", "tokenizer_assets_repo"),
    "pi0_fast": ("action_tokenizer_name", "text_tokenizer_name"),
    "reward_classifier": ("model_name",),
    "robometer": ("base_model_id",),
    "topreward": ("vlm_name",),
    "wall_x": ("action_tokenizer_path",),
}
"""By type: the fields of config.json whose repository LeRobot loads with trust_remote_code=True."""
STEP_REPOSITORIES: Final = {
    "action_tokenizer_processor": ("action_tokenizer_name", "paligemma_tokenizer_name"),
    "groot_n1_7_vlm_encode_v1": ("model_name",),
    "reward_classifier_processor": ("pretrained_path",),
    "robometer_encoder": ("base_model_id",),
    "topreward_encoder": ("vlm_name",),
}
"""The same of processor steps, by the name they are registered under."""
KNOWN_REPOSITORIES: Final = frozenset({
    "Qwen/Qwen3-VL-4B-Instruct", "Qwen/Qwen3-VL-8B-Instruct", "google/paligemma-3b-pt-224",
    "helper2424/resnet10", "lerobot/fast-action-tokenizer", "lerobot/resnet10",
    "nvidia/Cosmos-Reason2-2B", "nvidia/GR00T-N1.7-3B", "physical-intelligence/fast",
})  # fmt: skip
"""What LeRobot's own defaults name for them."""
TRUSTED: Final = "GAPLOOP_TRUSTED_REPOSITORIES"
"""Environment variable: further repositories or folders whose code may run, with commas between."""
DISCOVER: Final = "--policy.discover_packages_path=PACKAGE"


def refuse_odd_files(folder: Path) -> None:
    """Refuse a policy folder whose files aren't of the kind that everything which reads it expects.

    Raises:
        UnusableInputError: the file, and what is wrong in it.
    """
    for path in sorted(folder.rglob("*.safetensors")):
        regular_file(path)  # reading a pipe would never end
    for path in sorted(folder.glob("*.json")):
        value = read_json(path)
        if path.name in (CONFIG, ADAPTER_CONFIG, SIDECAR) and not isinstance(value, dict):
            raise _odd(path, "it", "an object")
        value = value if isinstance(value, dict) else {}
        if path.name == CONFIG:
            for key in ("input_features", "output_features"):
                features = value.get(key) or {}
                if not isinstance(features, dict) or not _are(features.values(), dict):
                    raise _odd(path, key, "objects by name")
        elif path.name == SIDECAR:
            for key in ("state_names", "environment_names", "action_names"):
                names = value.get(key) or []
                if not isinstance(names, list) or not _are(names, str):
                    raise _odd(path, key, "names")
            fps = value.get("fps")
            if fps is not None and not (isinstance(fps, int | float) and 0 < fps < 1e6):
                raise _odd(path, "fps", "a rate in Hz")
        elif isinstance(steps := value.get("steps"), list) or path.stem.endswith("processor"):
            if not isinstance(steps, list) or not _are(steps, dict):
                raise _odd(path, "steps", "a list of objects")
            if not _are((step.get("config", {}) for step in steps), dict):
                raise _odd(path, "a step's config", "an object")


def _are(values: Iterable[object], kind: type) -> bool:
    return all(isinstance(value, kind) for value in values)


def _odd(path: Path, what: str, due: str) -> UnusableInputError:
    return UnusableInputError(f"{path}: {what} must be {due}. Fetch or train the policy again.")


def refuse_foreign_code(folder: Path) -> None:
    """Refuse a policy folder whose files would make LeRobot or PEFT run what isn't known.

    Nothing that the files name is imported or called for it.

    Args:
        folder: a policy, an adapter (with its base, if that is inside) or a reward model: a local
            folder, or a snapshot from the Hub.

    Raises:
        UnusableInputError: what was found, in which file, and how to allow it.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix.lower() in PICKLES:
            raise UnusableInputError(
                f"{path} is a pickle, which can run code when it is loaded, and no policy needs "
                "one: weights are read from .safetensors. Convert it where you trust it, or move "
                "it out of the folder."
            )
    refuse_odd_files(folder)
    kind = _check_config(folder / CONFIG)
    _check_adapter(folder / ADAPTER_CONFIG)
    for path in sorted(folder.glob("*.json")):
        steps = _mapping(path).get("steps")
        for number, step in enumerate(steps if isinstance(steps, list) else ()):
            if "class" in step or "registry_name" in step:
                _check_step(step, f"{path}, step {number}", kind)
    if (folder / BASE).is_dir():
        refuse_foreign_code(folder / BASE)


def _mapping(path: Path) -> dict[str, Any]:
    value = read_json(path)
    return value if isinstance(value, dict) else {}


def _check_config(path: Path) -> str:
    """Check a policy's config.json; return its type, "" where there is none."""
    if not path.exists():
        return ""
    config = _mapping(path)
    kind = config.get("type")
    if kind is None:  # a GR00T checkpoint as NVIDIA saves it; LeRobot says what to do with it
        return ""
    if not isinstance(kind, str) or not _with_plugins(lambda: kind in _types()):
        raise UnusableInputError(
            f"{path}: policy type {_shown(kind)} is not one of LeRobot's or of an installed "
            f"plug-in's. One of: {', '.join(sorted(_types()))}. If it is yours, import it with "
            f"{DISCOVER}."
        )
    for name in CODE_REPOSITORIES.get(kind, ()):
        _check_repository(config.get(name), f"{path}: {name}")
    if any("auto_map" in value for value in _mappings(config)):
        raise UnusableInputError(
            f"{path}: auto_map names code that transformers would fetch and run. Fetch the "
            "policy from its author again, without it."
        )
    return kind


def _mappings(value: object) -> Iterator[dict[str, Any]]:
    """Yield a JSON value and what is in it, as far as these are objects."""
    if isinstance(value, dict):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in inner:
        yield from _mappings(part)


def _check_step(step: Mapping[str, Any], where: str, kind: str) -> None:
    name, path = step.get("registry_name"), step.get("class")
    if "registry_name" in step:  # LeRobot looks there first, and imports nothing for it
        if not isinstance(name, str) or not _with_plugins(lambda: name in _step_names(kind)):
            raise _unknown_step(where, name)
    elif path not in OUR_STEPS and not _with_plugins(lambda: _is_loaded_step(path, kind)):
        raise _unknown_step(where, path)
    options = step.get("config", {})
    if "state_file" in step:
        plain_name(step["state_file"], "state_file", where)
    if options.get("trust_remote_code") is not False:
        named = STEP_REPOSITORIES.get(str(name), ())
        if options.get("trust_remote_code"):
            named = tuple(k for k, v in options.items() if isinstance(v, str) and "name" in k)
        for key in named:
            _check_repository(options.get(key), f"{where}: {key}")


def _unknown_step(where: str, name: object) -> UnusableInputError:
    return UnusableInputError(
        f"{where}: the processor step {_shown(name)} is not one of LeRobot's, gaploop's or an "
        "installed plug-in's, and loading the policy would run it. Don't, unless you know what it "
        f"is; if it is yours, import it with {DISCOVER}."
    )


def _check_repository(name: object, where: str) -> None:
    if name in (None, ""):
        return
    trusted = [part.strip() for part in os.environ.get(TRUSTED, "").split(",")]
    if name not in KNOWN_REPOSITORIES and name not in trusted:
        raise UnusableInputError(
            f"{where} is {_shown(name)}, and LeRobot would run the Python that lies there. Look at "
            f"it; if you trust it: export {TRUSTED}={name}"
        )


def _check_adapter(path: Path) -> None:
    """Check what PEFT reads of an adapter: it imports `megatron_core` and remembers a library."""
    if not path.exists():
        return
    config = _mapping(path)
    if config.get("megatron_config") or config.get("megatron_core") not in (None, "megatron.core"):
        raise UnusableInputError(
            f"{path}: megatron_core={_shown(config.get('megatron_core'))} would be imported, and "
            "no LeRobot policy needs Megatron. Set megatron_config to null and megatron_core to "
            "megatron.core, or train the adapter again."
        )
    mapping = config.get("auto_mapping")
    library = mapping.get("parent_library") if isinstance(mapping, dict) else mapping
    roots = {"lerobot", "gaploop"} | {t.__module__.partition(".")[0] for t in _types().values()}
    if library is not None and str(library).partition(".")[0] not in roots:
        raise UnusableInputError(
            f"{path}: auto_mapping names the library {_shown(library)}, which is no policy's. "
            f"Delete auto_mapping there, or import the policy with {DISCOVER}."
        )


def _is_loaded_step(path: object, kind: str) -> bool:
    """Say whether a class path is a processor step that is loaded already; nothing is imported."""
    _step_names(kind)
    if not isinstance(path, str):
        return False
    module, _, name = path.rpartition(".")
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    return isinstance(found, type) and issubclass(found, ProcessorStep)


def _types() -> dict[str, type]:
    """Return the registered types of policies and reward models, with their configurations."""
    import gaploop.finetune.lerobot_keypoint  # noqa: F401  gaploop's own, which sees

    return {**RewardModelConfig.get_known_choices(), **PreTrainedConfig.get_known_choices()}


def _step_names(kind: str) -> Collection[str]:
    """Return the registered steps, those of a policy type's own processor module among them."""
    known = _types().get(kind)
    if known is not None and "configuration_" in known.__module__:
        # By LeRobot's own rule for where a registered type keeps its steps. What one of its
        # optional libraries lacks is said when LeRobot loads it.
        with contextlib.suppress(ImportError):
            importlib.import_module(known.__module__.replace("configuration_", "processor_"))
    names: list[str] = ProcessorStepRegistry.list()
    return names


def _with_plugins(is_known: Callable[[], bool]) -> bool:
    """Ask; if the answer is no, once more with the plug-ins that are installed."""
    if is_known():
        return True
    _import_plugins()
    return is_known()


@functools.cache
def _import_plugins() -> None:
    register_third_party_plugins()
    for package in filter(None, os.environ.get(DISCOVERED, "").split(",")):
        load_plugin(package)


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
