"""Policies by their name on a Hub, such as me/pick_place_adapter, as LeRobot takes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from huggingface_hub.errors import LocalEntryNotFoundError

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.hub.target import REPO_ID, endpoint
from gaploop.datasets.hub.upload import HubUnreachableError, Patience, connected, retried

PARTS: Final = ["*.safetensors", "*.json", "*.yaml"]
PATIENCE: Final = Patience(retries=2, timeout_s=30.0)


def is_hub_name(path: str | Path) -> bool:
    """Say whether `path` can only mean a repository: owner/name, and no such folder here."""
    text = str(path)
    is_name = bool(REPO_ID.fullmatch(text))
    return is_name and not Path(text).exists() and not Path(text).parent.exists()


def fetch(
    repo_id: str, revision: str | None = None, kind: str = "model", parts: Sequence[str] = PARTS
) -> Path:
    """Return the folder of a policy on the Hub, downloaded into Hugging Face's cache.

    Without a network what was downloaded before is taken. The folder's name is the commit.

    Args:
        revision: a commit, branch or tag; the newest unless given.
        kind: of repository, `model` or `dataset`.
        parts: patterns of the files that are wanted.

    Raises:
        UnusableInputError: there is none of that name, or it can't be read or reached.
    """
    address = endpoint()

    def download() -> str:
        found = api.snapshot_download(
            repo_id, revision=revision, repo_type=kind, allow_patterns=list(parts)
        )
        return str(found)

    try:
        with connected(address, PATIENCE.timeout_s) as api:
            return Path(retried(download, PATIENCE, f"Fetching {repo_id}", address))
    except (UnusableInputError, HubUnreachableError, LocalEntryNotFoundError) as error:
        raise UnusableInputError(
            f"{'Policy' if kind == 'model' else 'Repository'} {repo_id} is no folder here, and "
            f"can't be had from the Hub: {error}"
        ) from None
