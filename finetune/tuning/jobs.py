"""The same command on Hugging Face's machines: `--job.target=a10g-small`.

LeRobot submits `lerobot-train` this way; its images don't know `gaploop`, and it submits nothing
else. So the job is made here, of `huggingface_hub.run_job`: a container that installs gaploop,
fetches the datasets by their names on the Hub, runs the command, and pushes the adapter.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.datasets.hub.target import REPO_ID

LOCAL: Final = ("", "local")
"""Values of `--job.target` that mean this machine."""
IMAGE: Final = "huggingface/lerobot-gpu:latest"
PACKAGE: Final = "gaploop"
DATA: Final = "/data"


@dataclass(frozen=True)
class RemoteJob:
    """A command to be run elsewhere.

    Attributes:
        flavor: the machine, see `hf jobs hardware`.
        image: the container.
        command: what it runs.
        timeout: such as `2h`.
    """

    flavor: str
    image: str
    command: tuple[str, ...]
    timeout: str

    def as_json(self) -> dict[str, Any]:
        """Return it for `--json`."""
        return {**asdict(self), "command": list(self.command)}


def job_for(
    arguments: Sequence[str],
    datasets: Sequence[str],
    *,
    flavor: str,
    image: str = IMAGE,
    timeout: str = "2h",
    package: str = PACKAGE,
) -> RemoteJob:
    """Return the job that runs `gaploop finetune` with these arguments.

    Args:
        arguments: of the command, with datasets as `place_of` says.
        datasets: their names on the Hub.
        flavor: the machine.
        image: the container.
        timeout: the longest it may take.
        package: what pip installs for `gaploop`, such as an address of a git repository.

    Raises:
        UnusableInputError: a dataset that isn't on the Hub, or nothing that keeps the result.
    """
    for name in datasets:
        if not REPO_ID.fullmatch(name):
            raise UnusableInputError(
                f"--job.target={flavor}: {name} is a folder here, and the job can't see it. Push "
                f"it first (gaploop push {name} --dataset.repo_id=me/name) and give that name."
            )
    if not any(a.startswith("--policy.push_to_hub") for a in arguments):
        raise UnusableInputError(
            f"--job.target={flavor}: the machine is gone when the job ends. Add "
            "--policy.push_to_hub --policy.repo_id=me/name, so that the adapter stays."
        )
    lines = [f"pip install --quiet {shlex.quote(package)}"]
    lines += [
        f"hf download --repo-type dataset {name} --local-dir {place_of(name)}" for name in datasets
    ]
    lines.append(shlex.join(["gaploop", "finetune", *arguments]))
    return RemoteJob(flavor, image, ("bash", "-c", "set -e; " + "; ".join(lines)), timeout)


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
    from huggingface_hub import get_token, run_job
    from huggingface_hub.errors import HfHubHTTPError

    token = get_token()
    if not token:
        raise UnusableInputError("Nobody is logged in to the Hub. Run: hf auth login")
    try:
        info = run_job(
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
