"""The same command on Hugging Face's machines: `--job.target=a10g-small`.

LeRobot submits `lerobot-train` this way; its images don't know `gaploop`, and it submits nothing
else. So the job is made here, of `huggingface_hub.run_job`: a container that installs gaploop,
fetches the datasets by their names on the Hub, runs the command, and pushes the adapter.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.datasets.hub.target import REPO_ID, endpoint

DATA: Final = "/data"


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


@dataclass(frozen=True)
class RemoteJob:
    """A command to be run elsewhere.

    Attributes:
        flavor: the machine, see `hf jobs hardware`.
        timeout: such as `2h`.
    """

    flavor: str
    image: str
    command: tuple[str, ...]
    timeout: str


def job_for(arguments: Sequence[str], datasets: Sequence[str], where: JobFlags) -> RemoteJob:
    """Return the job that runs `gaploop finetune` with these arguments.

    Args:
        arguments: of the command, with datasets as `place_of` says.
        datasets: their names on the Hub.

    Raises:
        UnusableInputError: a dataset that isn't on the Hub, or nothing that keeps the result.
    """
    for name in datasets:
        if not REPO_ID.fullmatch(name):
            raise UnusableInputError(
                f"--job.target={where.target}: {name} is a folder here, and the job can't see it. "
                f"Push it first (gaploop push {name} --dataset.repo_id=me/name) and give that name."
            )
    if not any(a.startswith("--policy.push_to_hub") for a in arguments):
        raise UnusableInputError(
            f"--job.target={where.target}: the machine is gone when the job ends. Add "
            "--policy.push_to_hub --policy.repo_id=me/name, so that the adapter stays."
        )
    lines = [f"pip install --quiet {shlex.quote(where.package)}"]
    lines += [
        f"hf download --repo-type dataset {name} --local-dir {place_of(name)}" for name in datasets
    ]
    lines.append(shlex.join(["gaploop", "finetune", *arguments]))
    command = ("bash", "-c", "set -e; " + "; ".join(lines))
    return RemoteJob(where.target, where.image, command, where.timeout)


def place_of(dataset: str) -> str:
    """Return the folder in which the job finds a dataset."""
    return f"{DATA}/{dataset}"


def submit(job: RemoteJob) -> dict[str, Any]:
    """Hand a job in and return its id and page; it runs on when this program ends.

    Raises:
        UnusableInputError: nobody is logged in.
        GaploopError: the Hub refuses it or can't be reached.
    """
    import httpx
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError

    token = get_token()
    if not token:
        raise UnusableInputError("Nobody is logged in to the Hub. Run: hf auth login")
    try:
        info = HfApi(endpoint=endpoint()).run_job(
            image=job.image,
            command=list(job.command),
            flavor=job.flavor,
            secrets={"HF_TOKEN": token},
            timeout=job.timeout,
            token=token,
        )
    except (HfHubHTTPError, httpx.HTTPError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise GaploopError(
            f"The Hub didn't take the job ({reason}). Nothing runs; try again, or train here "
            "without --job.target."
        ) from None
    return {"id": info.id, "url": info.url}
