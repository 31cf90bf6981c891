"""The command `gaploop train`: LeRobot's own training, on cached pictures and on mixtures."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.scripts.options import CacheFlags, emit, progress

if TYPE_CHECKING:
    from gaploop.datasets.cache.folder import CacheOptions
    from gaploop.datasets.mixing.sources import OpenMixture

POSITIONAL: Final = "mixture"
PASSED_ON: Final = "lerobot"
EXAMPLE: Final = """
gaploop train mixture.yaml --output_dir=run -- \\
    --policy.type=act --policy.push_to_hub=false --batch_size=64 --steps=20000
gaploop train --cache.size=224 -- --dataset.repo_id=me/takes --dataset.root=takes \\
    --policy.type=act --policy.push_to_hub=false --output_dir=run
gaploop train mixture.yaml -- --resume=true \\
    --config_path=run/checkpoints/last/pretrained_model/train_config.json
accelerate launch --num_processes=4 -m gaploop.scripts.cli train mixture.yaml -- --policy.type=…
"""
_MINE: Final = ("dataset.root", "dataset.repo_id")


@dataclass
class TrainConfig:
    """Train any LeRobot policy with LeRobot's own training, on cached pictures, also on a mixture.

    What stands behind `--` are lerobot-train's options, all of them. Every video is decoded once,
    into a cache that trainings share, instead of anew for every sample. A mixture takes the place
    of --dataset.repo_id: resuming goes on with the very samples that would have come next, and
    under accelerate no two ranks read the same one. OUT/mixture.json says what is drawn, and
    OUT/run.json what was learned from.
    """

    mixture: Path | None = None
    """A mixture, see docs/mixing.md (`gaploop train FILE.yaml` is short for it)."""
    cache: CacheFlags = field(default_factory=CacheFlags)
    output_dir: Path | None = None
    """Run folder, as lerobot-train's option of that name."""
    lerobot: list[str] = field(default_factory=list)
    """Stands for what is written behind `--`."""
    json: bool = False
    """Print {"output_dir", "steps"} at the end, and with a mixture "sources"."""


def run(config: TrainConfig) -> int:
    """Train; the work is LeRobot's."""
    from gaploop.datasets.mixing.sources import open_mixture
    from gaploop.datasets.mixing.spec import load_mixture

    cache = config.cache.options()
    opened = open_mixture(load_mixture(config.mixture)) if config.mixture else None
    with _as_lerobot_train(_arguments(config)):
        return _train(opened, cache, config.json)


def _arguments(config: TrainConfig) -> list[str]:
    given = list(config.lerobot)
    names = {word.removeprefix("--").partition("=")[0] for word in given if word.startswith("--")}
    for name in _MINE if config.mixture else ():
        if name in names:
            raise UnusableInputError(
                f"--{name} doesn't go with a mixture: name datasets in {config.mixture}."
            )
    if config.output_dir is not None:
        given.append(f"--output_dir={config.output_dir}")
    if config.mixture is not None and "config_path" not in names:
        given.append(f"--dataset.repo_id=local/{config.mixture.stem}")
    if config.mixture is None and not names & {"dataset.repo_id", "config_path"}:
        raise UnusableInputError(
            "Train on what? Name a dataset: gaploop train -- --dataset.repo_id=me/takes "
            "--dataset.root=DIR --policy.type=…; or a mixture: gaploop train FILE.yaml -- …"
        )
    return given


@contextlib.contextmanager
def _as_lerobot_train(arguments: list[str]) -> Iterator[None]:
    """Let LeRobot find its options where it looks for them."""
    before, sys.argv = sys.argv, ["lerobot-train", *arguments]
    try:
        yield
    finally:
        sys.argv = before


def _train(opened: OpenMixture | None, cache: CacheOptions, as_json: bool) -> int:
    from accelerate import PartialState
    from lerobot.scripts.lerobot_train import train

    from gaploop.core.files import read_json
    from gaploop.datasets.cache.lerobot_cached import caching
    from gaploop.datasets.mixing.lerobot_mixture import mixing
    from gaploop.datasets.mixing.sources import REPORT

    options = _options()
    for name in ("policy", "reward_model"):
        _refuse_foreign_code(name, getattr(options, name, None))
    with (
        caching(cache, progress),
        mixing(opened) if opened else contextlib.nullcontext(),
        _recorded(opened) as write_result,
    ):
        train(options)
    if PartialState().is_main_process:
        write_result()
        answer = {"output_dir": options.output_dir, "steps": options.steps}
        text = f"{options.output_dir}: {options.steps} steps."
        if opened:
            answer["sources"] = read_json(options.output_dir / REPORT)["sources"]
            parts = ", ".join(f"{s['name']} {s['samples']:,}" for s in answer["sources"])
            text += f" Samples drawn: {parts}."
        emit(as_json, answer, text)
    return 0


@contextlib.contextmanager
def _recorded(opened: OpenMixture | None) -> Iterator[Callable[[], None]]:
    """Write run.json once LeRobot's `train`, called inside, has its data, before it learns.

    A policy without it could be pushed though it learned from somebody who withdrew. Yields what
    adds the policies once they are there.
    """
    from accelerate import PartialState
    from lerobot.scripts import lerobot_train

    from gaploop.core.files import read_json
    from gaploop.core.run_record import RUN, write_run
    from gaploop.datasets.layout import read_episodes, read_info
    from gaploop.finetune.hub_fetch import fetch, is_hub_name
    from gaploop.finetune.lerobot_policy import policy_id
    from gaploop.finetune.runs import CHECKPOINTS, takes_inputs

    make, written = lerobot_train.make_train_eval_datasets, list[Callable[..., None]]()

    def taken(dataset: Any) -> list[tuple[Any, Any]]:
        if opened is not None:
            mine = [[t.episode for t in opened.takes if t.dataset == number]
                    for number in range(len(opened.datasets))]  # fmt: skip
            return list(zip(opened.datasets, mine, strict=True))
        info = read_info(Path(dataset.root))
        return [(info, read_episodes(info, getattr(dataset, "episodes", None)))]

    def made(config: Any) -> Any:
        datasets = make(config)
        if PartialState().is_main_process:
            config.output_dir.mkdir(parents=True, exist_ok=True)
            inputs, base, folder = begun(config, list(takes_inputs(taken(datasets[0]))))

            def write(**result: Any) -> None:
                known = {"output_dir": str(config.output_dir), "steps": config.steps}
                write_run(config.output_dir, "train", known, inputs, result, seed=config.seed,
                          base=base, base_folder=folder)  # fmt: skip

            write()
            written.append(lambda: write(policies=policies(config.output_dir)))
        return datasets

    def begun(config: Any, inputs: list[Any]) -> tuple[list[Any], str, Path | None]:
        """Return inputs and base; what was learned from before a resumption stays learned."""
        if config.resume and (config.output_dir / RUN).exists():
            before = read_json(config.output_dir / RUN)
            inputs += [entry for entry in before["inputs"] if entry not in inputs]
            return inputs, str(before["lineage"]["base"]), None
        base = config.trainable_config.pretrained_path
        if not base:
            return inputs, "", None
        folder = fetch(str(base)) if is_hub_name(base) else Path(base)
        return inputs, policy_id(folder), folder

    def policies(folder: Path) -> list[str]:
        found = sorted(folder.glob(f"{CHECKPOINTS}/*/pretrained_model"))
        return list(dict.fromkeys(policy_id(p) for p in found))

    lerobot_train.make_train_eval_datasets = made
    try:
        yield lambda: written[0]() if written else None
    finally:
        lerobot_train.make_train_eval_datasets = make


def _options() -> Any:
    """Return LeRobot's config, read by LeRobot.

    Raises:
        UnusableInputError: LeRobot can't make sense of it.
    """
    import lerobot.policies  # noqa: F401  registers the policies by name
    from draccus.utils import DraccusException
    from lerobot.configs import parser
    from lerobot.configs.train import TrainPipelineConfig
    from lerobot.utils.import_utils import register_third_party_plugins

    def read(cfg: TrainPipelineConfig) -> TrainPipelineConfig:
        cfg.validate()
        return cfg

    read.__annotations__["cfg"] = TrainPipelineConfig  # LeRobot looks for the class itself
    register_third_party_plugins()
    usage = io.StringIO()  # hundreds of lines, of which the last says what is wrong
    try:
        with contextlib.redirect_stderr(usage):
            return parser.wrap()(read)()
    except (DraccusException, ValueError, NotImplementedError, FileExistsError) as error:
        raise UnusableInputError(f"lerobot-train's options: {error}{_hint(str(error))}") from None
    except SystemExit as stop:
        if not stop.code:
            raise
        said = usage.getvalue().strip().rpartition("error: ")[2] or "not understood"
        raise UnusableInputError(
            f"lerobot-train's options: {said}. All of them: lerobot-train --help"
        ) from None


def _refuse_foreign_code(option: str, config: Any) -> None:
    """Look at the policy that LeRobot is about to start from; what is looked at is what it loads.

    Args:
        option: what LeRobot calls it on the command line, which it reads once more by itself.
        config: its configuration, if it is given.

    Raises:
        UnusableInputError: its files name code to run, or it isn't there.
    """
    from gaploop.finetune import lerobot_adapter as adapter
    from gaploop.finetune.hub_fetch import fetch, is_hub_name
    from gaploop.finetune.lerobot_trust import refuse_foreign_code

    path = getattr(config, "pretrained_path", None)
    if not path:
        return
    folder = Path(path)
    if is_hub_name(path):
        folder = fetch(str(path), getattr(config, "pretrained_revision", None))
        # Another could be pushed in between.
        sys.argv.append(f"--{option}.pretrained_revision={folder.name}")
    refuse_foreign_code(folder)
    if adapter.is_adapter(folder):
        adapter.base_folder(folder)


def _hint(error: str) -> str:
    keep = "push the model to the hub" in error
    return " Or keep it on this machine: --policy.push_to_hub=false" if keep else ""
