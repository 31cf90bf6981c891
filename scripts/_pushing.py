"""Pushing, for every command that does; one that fails says how to go on."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import filelock

from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.files import existing_folder
from gaploop.core.journal_format import is_journal
from gaploop.datasets import staging
from gaploop.datasets.hub.target import HubTarget, check_repo_id, endpoint
from gaploop.datasets.layout import is_dataset
from gaploop.scripts.options import PublishedDataset, progress

if TYPE_CHECKING:
    from gaploop.datasets.hub.upload import Patience

log = logging.getLogger(__name__)

RETRIES_AFTER_A_SESSION: Final = 2
"""Nobody waits long for a Hub at the end of a session: the command for later is printed."""
DATASET: Final = "dataset"
MODEL: Final = "model"


@dataclass(frozen=True)
class PushRequest:
    """A push that is asked for; its target as in `HubTarget`, the rest as in `PushOptions`.

    Attributes:
        folder: what to push.
    """

    folder: Path
    target: HubTarget
    license: str = ""
    tags: tuple[str, ...] = ()
    allow_paths: bool = False

    @property
    def command(self) -> str:
        """Return the command that does it."""
        words = ["gaploop push", shlex.quote(str(self.folder)), f"--repo_id={self.target.repo_id}"]
        words += [] if self.target.private is None else [f"--private={self.target.private}".lower()]
        words += [f"--license={self.license}"] if self.license else []
        words += [shlex.quote(f"--tags=[{', '.join(self.tags)}]")] if self.tags else []
        words += ["--allow_paths"] if self.allow_paths else []
        return " ".join(words)


@dataclass(frozen=True)
class Sent:
    """What became of one push.

    Attributes:
        state: `pushed`, `unreached` where the Hub can't be reached, or `refused`.
        commit: what its main branch points to.
        uploaded: files that were new or changed there.
        unchanged: files that it had already.
        deleted: files that were removed there.
        warnings: what the user should know and may ignore.
    """

    push: PushRequest
    state: str
    reason: str = ""
    url: str = ""
    commit: str = ""
    uploaded: int = 0
    unchanged: int = 0
    deleted: int = 0
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it for `--json`."""
        value = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        push, target = value.pop("push"), self.push.target
        named = {"repo_id": target.repo_id, "kind": target.kind, "folder": str(push.folder)}
        return {**named, "endpoint": target.endpoint, **value, "command": push.command}

    def as_text(self) -> str:
        """Return it in one line."""
        if self.state == "pushed":
            what = f"{self.uploaded} files uploaded" if self.uploaded else "nothing had changed"
            return f"{self.push.folder} is at {self.url} ({what}, {self.unchanged} were there)."
        then = "Go on with" if self.state == "unreached" else "Once that is fixed"
        return f"Not pushed: {self.reason} {then}: {self.push.command}"


def kind_of(folder: Path) -> str:
    """Return `dataset` or `model`.

    Raises:
        UnusableInputError: the folder holds neither.
    """
    existing_folder(folder, "Folder")
    if is_dataset(folder):
        return DATASET
    if is_journal(folder):
        raise UnusableInputError(
            f"{folder} is a journal. Publish it first: gaploop publish --journal={folder} "
            "--dataset.root=DIR; then push that."
        )
    places = (folder, *(folder / part for part in ("adapter", "policy", "merged")))
    if any(any(p.glob("*.safetensors")) for p in places):
        return MODEL
    raise UnusableInputError(
        f"{folder} holds neither a dataset (meta/info.json) nor a policy (*.safetensors). Name a "
        "dataset's folder, an adapter's, or the run folder of gaploop finetune."
    )


def requested_push(folder: Path, kind: str, asked: Any) -> PushRequest:
    """Return the push of a folder, `dataset` or `model`, that a command's options ask for.

    Those are `repo_id`, `private`, perhaps `tags`, `license` and `allow_paths`.
    """
    return PushRequest(
        folder.absolute(),
        HubTarget(check_repo_id(asked.repo_id), kind, endpoint(), asked.private),
        getattr(asked, "license", ""),
        tuple(getattr(asked, "tags", None) or ()),
        getattr(asked, "allow_paths", False),
    )


def send(push: PushRequest, patience: Patience) -> Sent:
    """Do one push. Never raises for what Hub or folder are like: that is the result's state."""
    from gaploop.datasets.hub.upload import HubUnreachableError

    try:
        with filelock.FileLock(staging.sibling(push.folder.absolute(), "push"), timeout=0):
            return _send(push, patience)
    except filelock.Timeout:  # two at once would undo each other
        return Sent(push, "refused", "another process is pushing it. Wait until it is done.")
    except GaploopError as error:
        state = "unreached" if isinstance(error, HubUnreachableError) else "refused"
        return Sent(push, state, str(error))
    except (KeyboardInterrupt, SystemExit):
        log.info("Interrupted. Go on with: %s", push.command)
        raise


def _send(push: PushRequest, patience: Patience) -> Sent:
    from gaploop.datasets.hub.dataset import PushOptions, push_dataset

    options = PushOptions(push.license, push.tags, allow_paths=push.allow_paths, patience=patience)
    with progress(f"Pushing {push.target.repo_id}") as advance:
        shown = 0

        def on_progress(done: int, _total: int) -> None:
            nonlocal shown
            advance(done - shown)
            shown = done

        if push.target.kind == DATASET:
            pushed, parcel = push_dataset(push.folder, push.target, options, on_progress)
        else:
            from gaploop.finetune.hub_policy import push_policy

            pushed, parcel = push_policy(push.folder, push.target, options, on_progress)
    figures = len(pushed.uploaded), pushed.unchanged, len(pushed.deleted)
    return Sent(push, "pushed", "", pushed.url, pushed.commit, *figures, parcel.warnings)


def push_after(
    dataset: PublishedDataset, root: Path, stopped: Sequence[int] = ()
) -> dict[str, Any] | None:
    """Push what a session published, if `--dataset.push_to_hub` says so.

    A Hub that is down, or a dataset that must not be pushed, ends nothing: one line says so. Where
    signals `stopped` the session, the command for later is all there is.

    Returns:
        For the command's JSON object: `repo_id`, `state`, `reason`, `url`, …; None where no push
        was asked for or there is nothing to push.
    """
    if not dataset.push_to_hub or not is_dataset(root):
        return None
    return push_folder(root, DATASET, dataset, bool(stopped)).as_json()


def push_folder(folder: Path, kind: str, asked: Any, later: bool = False) -> Sent:
    """Push a folder that a command has just written, and say in one line how that went.

    Arguments are those of `requested_push`; `later` only says how.
    """
    from gaploop.datasets.hub.upload import Patience

    push = requested_push(folder, kind, asked)
    if later:
        sent = Sent(push, "unreached", "the session was stopped.")
    else:
        sent = send(push, Patience(retries=RETRIES_AFTER_A_SESSION))
    for line in (*sent.warnings, sent.as_text()):
        log.info("%s", line)
    return sent
