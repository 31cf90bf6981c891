"""`gaploop finetune --job.target=…`: the same command on a machine of Hugging Face's."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaploop.core.errors import UnusableInputError
from gaploop.scripts import options

if TYPE_CHECKING:
    from gaploop.scripts.finetune import FinetuneConfig


@dataclass
class JobFlags:
    """Where the training runs."""

    target: str = ""
    """A machine of HF Jobs, such as a10g-small (hf jobs hardware lists them); here unless given."""
    image: str = "huggingface/lerobot-gpu:latest"
    """Container of the job."""
    timeout: str = "2h"
    """The longest the job may take."""
    package: str = "gaploop"
    """What pip installs in the job, such as git+https://… of a repository."""
    dry_run: bool = False
    """Print the job and don't submit it."""

    @property
    def is_remote(self) -> bool:
        """Whether it runs elsewhere."""
        return self.target not in ("", "local")


def hand_in(config: FinetuneConfig, plain: FinetuneConfig) -> int:
    """Submit the job and say where it runs, or print it with --job.dry_run.

    Args:
        config: the command's options.
        plain: the same with nothing given.
    """
    from gaploop.finetune.tuning import jobs

    if config.mixture is not None or config.plan is not None:
        raise UnusableInputError(
            f"--job.target={config.job.target}: the job can't see --mixture and --plan, which are "
            "files here. Name datasets with --real and --sim."
        )
    datasets = [str(d) for d in (*config.real, *config.sim)]
    there = dataclasses.replace(
        config,
        real=[Path(jobs.place_of(str(d))) for d in config.real],
        sim=[Path(jobs.place_of(str(d))) for d in config.sim],
        job=plain.job,
    )
    job = jobs.job_for(
        arguments_of(there, plain),
        datasets,
        flavor=config.job.target,
        image=config.job.image,
        timeout=config.job.timeout,
        package=config.job.package,
    )
    if config.job.dry_run:
        options.emit(config.json, job.as_json(), f"{job.flavor}, {job.image}:\n{job.command[-1]}")
        return 0
    done = jobs.submit(job)
    options.emit(
        config.json,
        {**job.as_json(), **done},
        f"Job {done['id']} runs on {job.flavor}: {done['url']} (hf jobs logs {done['id']})",
    )
    return 0


def arguments_of(config: Any, plain: Any, prefix: str = "--") -> list[str]:
    """Return the arguments that make `config` of what stands in `plain`."""
    words: list[str] = []
    for field in dataclasses.fields(config):
        given, default = getattr(config, field.name), getattr(plain, field.name)
        if given == default:
            continue
        if dataclasses.is_dataclass(given):
            words += arguments_of(given, default, f"{prefix}{field.name}.")
        else:
            words.append(f"{prefix}{field.name}={_text(given)}")
    return words


def _text(value: Any) -> str:
    if isinstance(value, list | dict | bool):
        return json.dumps(value, default=str)
    return str(value)
