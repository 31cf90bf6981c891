"""What is pushed where: a repository on a Hub, the files it shall hold, what a push did."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gaploop.core.errors import GaploopError, UnusableInputError

REPO_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""Owner and name; `check_repo_id` is stricter."""


class ChangedError(GaploopError):
    """A file was changed while it was being pushed; what was read before doesn't hold any more."""


@dataclass(frozen=True)
class HubTarget:
    """Where to push.

    Attributes:
        repo_id: owner and name, such as me/pick_place.
        kind: `dataset` or `model`.
        endpoint: the Hub's address.
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


@dataclass(frozen=True)
class HubFile:
    """A file as it shall be in the repository.

    Attributes:
        name: path in the repository.
        source: the local file, or the content itself.
    """

    name: str
    source: Path | bytes

    @property
    def size(self) -> int:
        """Length [bytes]."""
        if isinstance(self.source, bytes):
            return len(self.source)
        return self.source.stat().st_size


@dataclass(frozen=True)
class Contents:
    """What a repository shall hold.

    Attributes:
        files: everything that belongs to the push.
        message: of the commit.
        owns: says of a path in the repository whether the push decides about it; such a file
            that isn't among `files` is deleted there in the same commit.
        tag: moved to the commit, or "" for none.
        check: called right before the commit; raises `ChangedError` where the folder isn't
            any more what was read, or whatever forbids the push since.
    """

    files: tuple[HubFile, ...]
    message: str
    owns: Callable[[str], bool] = lambda _name: False
    tag: str = ""
    check: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Pushed:
    """What a push did.

    Attributes:
        url: the repository's page.
        commit: what `main` points to now.
        uploaded: files that were new or changed.
        unchanged: files that the Hub had already.
        deleted: files that were removed there.
    """

    url: str
    commit: str
    uploaded: tuple[str, ...] = ()
    unchanged: int = 0
    deleted: tuple[str, ...] = ()


def check_repo_id(repo_id: str, option: str = "--repo_id") -> str:
    """Return `repo_id` if it names an owner and a repository.

    Raises:
        UnusableInputError: it doesn't.
    """
    if not repo_id:
        raise UnusableInputError(f"Push to where? Name it with {option}=me/name.")
    bad = not REPO_ID.fullmatch(repo_id) or ".." in repo_id or "--" in repo_id
    if bad or repo_id.endswith((".", "-", ".git")) or repo_id.startswith("local/"):
        raise UnusableInputError(
            f"{option}={repo_id} names no repository on a Hub. Give owner and name, such as "
            "me/pick_place: letters, digits and single -, _ or . between them."
        )
    return repo_id
