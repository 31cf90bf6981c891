"""Asks a LeRobot policy about a dataset's rows: what `gaploop check DIR --policy.path` runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.factory import get_policy_class

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.datasets import layout
from gaploop.datasets.absolute.checkpoint import (
    Checkpoint,
    CheckpointTests,
    read_checkpoint,
    tasks_of,
)
from gaploop.datasets.absolute.demonstrated import DemonstratedTests
from gaploop.datasets.absolute.findings import AbsoluteReport
from gaploop.datasets.absolute.mistakes import Pictures
from gaploop.datasets.absolute.open_loop import OpenLoop, read_rows, statistics
from gaploop.datasets.columns import ACTION, STATE
from gaploop.finetune.lerobot_act import ENVIRONMENT, FAULTS, in_words
from gaploop.finetune.lerobot_policy import load_policy, resolve
from gaploop.finetune.lerobot_trust import refuse_foreign_code

AT_ONCE: Final = 16
"""Rows that a policy is asked about at once."""
LOOKED_BACK: Final = (1, 2, 3, 4)
"""Observation steps that weights are tried with where those of config.json don't fit."""


def examine_policy(
    path: str | Path,
    root: Path,
    report: AbsoluteReport,
    *,
    demonstrations: bool,
    trained_on: Path | None = None,
) -> None:
    """Set a policy against a dataset, and add what is found to the dataset's report.

    Args:
        demonstrations: the dataset shows how it should be done; else these are rollouts.
        trained_on: the policy's training set; by default the one that its train_config.json names.

    Raises:
        UnusableInputError: no policy there, or it names code to run.
    """
    checkpoint = read_checkpoint(resolve(path))
    info = layout.read_info(root)
    tests = CheckpointTests(checkpoint, info, {}, tasks_of(root), report)
    try:
        table = read_rows(checkpoint, tests)
    except UnusableInputError as error:
        report.untested["the policy against these rows"] = str(error)
        return
    tests.stats = {k: statistics(np.asarray(table.columns[k], np.float64)) for k in (ACTION, STATE)}
    tests.run()
    trained = trained_on or checkpoint.trained_on
    if trained is None:
        what = "the policy's training set" if demonstrations else "rollouts against demonstrations"
        report.untested[what] = "its training set isn't on this machine"
    elif trained.resolve() != root.resolve():
        DemonstratedTests(trained, table, report).run(demonstrations=demonstrations)
    if any(f.kind == "wrong_features" for f in report.findings):
        report.untested["what the policy commands here"] = "it doesn't fit this dataset"
    else:
        _ask(checkpoint, tests, table, demonstrations)
    report.rank()


def _ask(checkpoint: Checkpoint, tests: CheckpointTests, table: Any, demonstrations: bool) -> None:
    try:
        policy = LerobotAsk(checkpoint.folder)
        OpenLoop(tests, table, policy).run(demonstrations=demonstrations)
    except UnusableInputError as error:
        steps = _fitting_steps(checkpoint) if "size mismatch" in str(error) else 0
        if steps and steps != checkpoint.observations:
            tests.say(
                "observation_steps", "", f"config.json says that the policy looks at "
                f"{checkpoint.observations} observations, its weights are made for {steps}",
                f'Set "n_obs_steps": {steps} in {tests.policy}/config.json, and give it as many',
                130.0,
            )  # fmt: skip
        else:
            tests.report.untested["what the policy commands here"] = str(error)


class LerobotAsk:
    """A loaded policy as `AskPolicy`; the same noise each time, so that answers can be compared.

    Raises:
        UnusableInputError: it can't be loaded, or asked about several rows at once.
    """

    def __init__(self, folder: Path) -> None:
        bundle = load_policy(folder).bundle
        self._before, self._after = bundle.preprocessor, bundle.postprocessor
        self._policy: Any = bundle.policy
        config: Any = bundle.policy.config
        self._folder = folder
        self._keeps_time = int(getattr(config, "n_obs_steps", 1) or 1) > 1 or (
            config.type == "diffusion"
        )

    def __call__(
        self, state: FloatArray, pictures: Pictures, scene: FloatArray | None, tasks: Sequence[str]
    ) -> FloatArray:
        """Return plans; see `AskPolicy`."""
        plans = []
        with in_words(self._folder, "policy for this data"):
            for first in range(0, len(state), AT_ONCE):
                rows = slice(first, first + AT_ONCE)
                given = {STATE: torch.from_numpy(np.float32(state[rows]))}
                if scene is not None:
                    given[ENVIRONMENT] = torch.from_numpy(np.float32(scene[rows]))
                for key, shown in pictures.items():
                    part = torch.from_numpy(np.ascontiguousarray(shown[rows]))
                    part = part.float() / 255 if part.dtype == torch.uint8 else part
                    given[key] = part.permute(0, 1, 4, 2, 3)
                if not self._keeps_time:
                    given = {k: v[:, -1] for k, v in given.items()}
                torch.manual_seed(0)
                self._policy.reset()
                with torch.no_grad():
                    made = self._before({**given, "task": list(tasks[rows])})
                    plan = self._after(self._policy.predict_action_chunk(made))
                plans.append(np.asarray(plan.float().cpu().numpy(), dtype=np.float64))
        return np.concatenate(plans)


def _fitting_steps(checkpoint: Checkpoint) -> int:
    """Return the observation steps that the weights fit; 0 where none does, or nothing is told."""
    refuse_foreign_code(checkpoint.folder)
    for steps in LOOKED_BACK:
        try:
            config = PreTrainedConfig.from_pretrained(
                checkpoint.folder,
                local_files_only=True,
                cli_overrides=["--device=cpu", f"--n_obs_steps={steps}"],
            )
            with in_words(checkpoint.folder):
                get_policy_class(config.type).from_pretrained(str(checkpoint.folder), config=config)
            return steps
        except (UnusableInputError, *FAULTS):
            continue
    return 0
