"""A folder onto a Hub: one commit per push, resumable, and a version tag that is never missing.

Every call is huggingface_hub's own, so that it works with huggingface.co and with any server that
speaks the same protocol (`HF_ENDPOINT`). What huggingface_hub 1.33 doesn't do by itself: time out,
upload to a server without Xet while `hf_xet` is installed, put up with a server without a card
check, delete what the folder no longer holds, repeat a commit whose answer got lost, and move a
tag so that loading by it works at every instant.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HfHubHTTPError

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.hub.client import connected
from gaploop.datasets.hub.errors import Patience, is_missing, retried
from gaploop.datasets.hub.sync import MAIN, Ask, Sync, remote_files
from gaploop.datasets.hub.target import Contents, HubTarget, Pushed


def read_remote(target: HubTarget, name: str, patience: Patience) -> str:
    """Return a text file of the repository's main branch, or "" where there is none."""

    def read() -> str:
        with tempfile.TemporaryDirectory() as cache:
            path = api.hf_hub_download(
                target.repo_id, name, repo_type=target.kind, revision=MAIN, cache_dir=cache
            )
            return Path(path).read_text(errors="replace")

    with connected(target.endpoint, patience.timeout_s) as api:
        ask = _asking(target, patience)
        return str(ask(f"Reading {name}", read)) if name in remote_files(api, target, ask) else ""


def _asking(target: HubTarget, patience: Patience) -> Ask:
    """Return what does single calls with retries: many faults in a row then end no push."""
    return lambda what, work: retried(work, patience, what, target.endpoint)


def push(
    target: HubTarget,
    contents: Contents,
    patience: Patience,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Pushed:
    """Make a repository hold what a folder holds, in one commit.

    Killed at any instant the repository holds what it held before, or the new state; running it
    again goes on: what was uploaded already isn't sent again, and where nothing differs there is
    no new commit.

    Args:
        target: where to.
        contents: what.
        patience: how long to go on over a bad network.
        on_progress: called with files uploaded and files to upload.

    Raises:
        HubUnreachableError: the Hub can't be reached or goes on failing.
        ChangedError: the folder was changed meanwhile.
        UnusableInputError: the Hub refuses.
    """
    with connected(target.endpoint, patience.timeout_s) as api:
        ask = _asking(target, patience)
        ask(f"Making {target.repo_id}", lambda: _create(api, target))
        done: Pushed = ask("Committing", Sync(api, target, contents, ask, on_progress).run)
        if contents.tag:
            move_tag(api, target, contents.tag, done.commit, ask)
    return done


def move_tag(api: Any, target: HubTarget, tag: str, commit: str, ask: Ask) -> None:
    """Let `tag` point to `commit`, main's newest; safe to repeat after a kill in the middle.

    A Hub can't move a tag, only delete and create it. While it is gone a stand-in points to the
    commit: a version that sorts right below, which LeRobot takes where the one it wants is missing
    (`get_safe_version`: the same major version, a minor version no higher).
    """
    repo: dict[str, Any] = {"repo_id": target.repo_id, "repo_type": target.kind}
    refs = ask("Tagging", lambda: api.list_repo_refs(**repo))
    tags = {ref.name: ref.target_commit for ref in refs.tags}
    stand_in = f"{tag}.dev0"

    def create(name: str) -> None:
        ask("Tagging", lambda: api.create_tag(**repo, tag=name, revision=MAIN, exist_ok=True))

    def delete(name: str) -> None:
        if name in tags:
            ask("Tagging", lambda: _delete_tag(api, repo, name))

    if tags.get(tag) != commit:
        if tag in tags and tags.get(stand_in) != commit:
            delete(stand_in)
            create(stand_in)
            tags[stand_in] = commit
        delete(tag)
        create(tag)
    delete(stand_in)


def _delete_tag(api: Any, repo: dict[str, Any], tag: str) -> None:
    try:
        api.delete_tag(**repo, tag=tag)
    except HfHubHTTPError as error:
        if not is_missing(error):  # an answer that got lost: it is deleted already
            raise


def _create(api: Any, target: HubTarget) -> None:
    """Make the repository where it isn't there yet."""
    try:
        info = api.repo_info(target.repo_id, repo_type=target.kind)
    except HfHubHTTPError as error:
        # A Hub answers 401 for a repository that isn't there, too, where nobody is logged in.
        if error.response.status_code not in (401, 404):
            raise
        api.create_repo(
            target.repo_id, repo_type=target.kind, private=target.private, exist_ok=True
        )
        return
    if target.private and getattr(info, "private", None) is False:
        raise UnusableInputError(
            f"{target.url} is public already, and you asked for private. Make it private in its "
            "settings there, or choose another --repo_id."
        )
