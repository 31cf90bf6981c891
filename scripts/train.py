"""The command `gaploop train`: LeRobot's own training, on cached pictures and on mixtures."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from draccus.utils import DraccusException

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json
from gaploop.datasets.mixing.sources import REPORT, open_mixture
from gaploop.datasets.mixing.spec import load_mixture
from gaploop.scripts.options import CacheFlags, emit, progress

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

    Everything after `--` is an option of lerobot-train; all work. Every video is decoded once,
    into a cache that trainings share, instead of anew for every sample. A mixture takes the place
    of --dataset.repo_id: resuming continues with exactly the samples that would come next, and
    under accelerate no two ranks read the same one. OUT/mixture.json records what is drawn, and
    OUT/run.json the data of the training.
    """

    mixture: Path | None = None
    """A mixture, see docs/mixing.md (`gaploop train FILE.yaml` is short for it)."""
    cache: CacheFlags = field(default_factory=CacheFlags)
    output_dir: Path | None = None
    """Run folder, as lerobot-train's option of that name."""
    lerobot: list[str] = field(default_factory=list)
    """Stands for what is written after `--`."""
    json: bool = False
    """Print {"output_dir", "steps"} at the end, and with a mixture "sources"."""


def run(config: TrainConfig) -> int:
    """Train; the work is LeRobot's."""
    from accelerate import PartialState

    from gaploop.finetune.lerobot_train import train

    cache = config.cache.options()
    opened = open_mixture(load_mixture(config.mixture)) if config.mixture else None
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
    before, sys.argv = sys.argv, ["lerobot-train", *given]  # where LeRobot looks for its options
    try:
        options = _options()
        train(options, cache, opened, progress)
        if PartialState().is_main_process:
            answer = {"output_dir": options.output_dir, "steps": options.steps}
            text = f"{options.output_dir}: {options.steps} steps."
            if opened:
                answer["sources"] = read_json(options.output_dir / REPORT)["sources"]
                parts = ", ".join(f"{s['name']} {s['samples']:,}" for s in answer["sources"])
                text += f" Samples drawn: {parts}."
            emit(config.json, answer, text)
    finally:
        sys.argv = before
    return 0


def _options() -> Any:
    """Return LeRobot's config, read by LeRobot."""
    import lerobot.policies  # noqa: F401  registers the policies by name
    from lerobot.configs import parser
    from lerobot.configs.train import TrainPipelineConfig
    from lerobot.utils.import_utils import register_third_party_plugins

    import gaploop.finetune.lerobot_keypoint  # noqa: F401  --policy.type=keypoint

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
        keep = "push the model to the hub" in str(error)
        hint = " Or keep it on this machine: --policy.push_to_hub=false" if keep else ""
        raise UnusableInputError(f"lerobot-train's options: {error}{hint}") from None
    except SystemExit as stop:
        if not stop.code:
            raise
        said = usage.getvalue().strip().rpartition("error: ")[2] or "not understood"
        raise UnusableInputError(
            f"lerobot-train's options: {said}. All of them: lerobot-train --help"
        ) from None
