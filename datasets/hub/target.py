"""What a name stands for: a repository on a Hub, a policy. Options are checked with it: light."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gaploop.core.errors import UnusableInputError

PUBLIC_ENDPOINT: Final = "https://huggingface.co"
HUB: Final = "hf://datasets/"
REPO_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""Owner and name; `check_repo_id` is stricter."""
SHIPPED: Final = ("base", "base_vision")
"""Policies that ship with gaploop."""


def endpoint() -> str:
    """Return the Hub's address: `$HF_ENDPOINT`, or the public one."""
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


@dataclass(frozen=True)
class HubTarget:
    """Where to push.

    Attributes:
        kind: `dataset` or `model`.
        private: of a new repository; None leaves that to the owner's account, as LeRobot does.
    """

    repo_id: str
    kind: str
    endpoint: str
    private: bool | None = None

    @property
    def url(self) -> str:
        """The repository's page."""
        prefix = "datasets/" if self.kind == "dataset" else ""
        return f"{self.endpoint}/{prefix}{self.repo_id}"


def check_repo_id(repo_id: str, option: str = "--repo_id") -> str:
    """Return `repo_id` if it names an owner and a repository, or refuse it."""
    if not repo_id:
        raise UnusableInputError(f"Push to where? Name it with {option}=me/name.")
    bad = not REPO_ID.fullmatch(repo_id) or ".." in repo_id or "--" in repo_id
    if bad or repo_id.endswith((".", "-", ".git")) or repo_id.startswith("local/"):
        raise UnusableInputError(
            f"{option}={repo_id} names no repository on a Hub. Give owner and name, such as "
            "me/pick_place: letters, digits and single -, _ or . between them."
        )
    return repo_id


def is_hub_name(path: str | Path) -> bool:
    """Say whether `path` can only mean a repository: owner/name, and no such folder here."""
    is_name = bool(REPO_ID.fullmatch(str(path)))
    return is_name and not Path(path).exists() and not Path(path).parent.exists()


def is_hub_address(name: str) -> bool:
    """Say the same of a name that may begin with hf:// or end with @revision."""
    return name.startswith(HUB) or is_hub_name(name.partition("@")[0])


def is_script(policy: str) -> bool:
    """Say whether a policy is a script, a scene's demonstrator or served, rather than a folder."""
    return policy == "demonstrator" or (":" in policy and not Path(policy).exists())


def require_policy(path: str) -> None:
    """Refuse a policy that is neither a folder here nor another name of one.

    Raises:
        UnusableInputError: it isn't there.
    """
    is_known = path in SHIPPED or is_script(path) or is_hub_name(path)
    if not (is_known or Path(path).expanduser().exists()):
        raise policy_not_found(path)


def policy_not_found(path: str | Path) -> UnusableInputError:
    """Return the error for a policy that isn't there."""
    return UnusableInputError(
        f"Policy {path} not found. Name a policy, adapter or run folder, its name on the Hub, such "
        f"as me/pick_place, or '{"' or '".join(SHIPPED)}'."
    )
