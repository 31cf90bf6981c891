"""Pushing, for every command that does: written down first, struck out when it is done."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.files import existing_folder
from gaploop.core.journal_format import is_journal
from gaploop.datasets.hub import queue as push_queue
from gaploop.datasets.hub.queue import QueuedPush
from gaploop.datasets.hub.target import check_repo_id, endpoint
from gaploop.datasets.layout import is_dataset
from gaploop.scripts.options import DatasetTarget, progress

if TYPE_CHECKING:
    from gaploop.datasets.hub.upload import Patience

log = logging.getLogger(__name__)

RETRIES_AFTER_A_SESSION: Final = 2
"""Nobody waits long for a Hub at the end of a session: what it doesn't take then is queued."""
DATASET: Final = "dataset"
MODEL: Final = "model"


@dataclass(frozen=True)
class Sent:
    """What became of one push.

    Attributes:
        state: `pushed`, `queued` where the Hub can't be reached, or `refused`.
        commit: what its main branch points to.
        uploaded: files that were new or changed there.
        unchanged: files that it had already.
        deleted: files that were removed there.
        warnings: what the user should know and may ignore.
        kept: it waits all the same, until what it was refused for is fixed.
    """

    push: QueuedPush
    state: str
    reason: str = ""
    url: str = ""
    commit: str = ""
    uploaded: int = 0
    unchanged: int = 0
    deleted: int = 0
    warnings: tuple[str, ...] = ()
    kept: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return it for `--json`."""
        value = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        value.pop("push")
        named = {"repo_id": self.push.repo_id, "kind": self.push.kind, "folder": self.push.folder}
        return {**named, "endpoint": self.push.endpoint, **value}

    def as_text(self) -> str:
        """Return it in one line."""
        if self.state == "pushed":
            what = f"{self.uploaded} files uploaded" if self.uploaded else "nothing had changed"
            return f"{self.push.folder} is at {self.url} ({what}, {self.unchanged} were there)."
        if self.state == "queued":
            return f"{self.push.repo_id} is queued: {self.reason}. Send it with: gaploop push"
        then = " Once that is fixed: gaploop push" if self.kept else ""
        return f"{self.push.repo_id} was not pushed: {self.reason}{then}"


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


def requested_push(folder: Path, kind: str, asked: Any, consents: Path | None) -> QueuedPush:
    """Return the push of a folder, `dataset` or `model`, that a command's options ask for.

    Those are `repo_id`, `private`, `tags`, perhaps `license` and `allow_paths`.
    """
    return QueuedPush(
        str(folder.absolute()),
        check_repo_id(asked.repo_id),
        kind,
        endpoint(),
        asked.private,
        getattr(asked, "license", ""),
        tuple(asked.tags or ()),
        str(consents.absolute()) if consents is not None else "",
        getattr(asked, "allow_paths", False),
    )


def send(push: QueuedPush, patience: Patience, keep: bool = False) -> Sent:
    """Do one push; it stands in the queue until it is done.

    Never raises for what the Hub or the folder is like: that is the result's state.

    Args:
        keep: leave it in the queue where it is refused, too, to be sent once that is fixed.
    """
    from gaploop.datasets.hub.upload import HubUnreachableError

    try:
        with push_queue.sending(push):
            push_queue.put(push)
            try:
                done = _send(push, patience)
            except GaploopError as error:
                push_queue.put(dataclasses.replace(push, error=str(error)))
                if isinstance(error, HubUnreachableError):
                    return Sent(push, "queued", str(error))
                if not keep:
                    push_queue.drop(push)
                raise
            except (KeyboardInterrupt, SystemExit):
                log.info("%s is interrupted. Go on with: gaploop push", push.repo_id)
                raise
            push_queue.drop(push)
            return done
    except GaploopError as error:  # of the queue itself, too
        return Sent(push, "refused", str(error), kept=keep)


def _send(push: QueuedPush, patience: Patience) -> Sent:
    from gaploop.datasets.hub.dataset import PushOptions, push_dataset

    consents = Path(push.consents) if push.consents else None
    options = PushOptions(push.license, push.tags, consents, push.allow_paths, patience)
    with progress(f"Pushing {push.repo_id}") as advance:
        shown = 0

        def on_progress(done: int, _total: int) -> None:
            nonlocal shown
            advance(done - shown)
            shown = done

        if push.kind == DATASET:
            pushed, parcel = push_dataset(Path(push.folder), push.target, options, on_progress)
        else:
            from gaploop.finetune.hub_policy import push_policy

            pushed, parcel = push_policy(Path(push.folder), push.target, options, on_progress)
    figures = len(pushed.uploaded), pushed.unchanged, len(pushed.deleted)
    return Sent(push, "pushed", "", pushed.url, pushed.commit, *figures, parcel.warnings)


def push_after(
    dataset: DatasetTarget, root: Path, consents: Path | None, stopped: Sequence[int] = ()
) -> dict[str, Any] | None:
    """Push what a session published, if `--dataset.push_to_hub` says so.

    A Hub that is down, or a dataset that must not be pushed, ends nothing: one line says so. Where
    signals `stopped` the session, the push waits for `gaploop push`.

    Returns:
        For the command's JSON object: `repo_id`, `state`, `reason`, `url`, …; None where no push
        was asked for or there is nothing to push.
    """
    if not dataset.push_to_hub or not is_dataset(root):
        return None
    return push_folder(root, DATASET, dataset, consents, bool(stopped)).as_json()


def push_folder(
    folder: Path, kind: str, asked: Any, consents: Path | None, later: bool = False
) -> Sent:
    """Push a folder that a command has just written, and say in one line how that went.

    Arguments are those of `requested_push`; `later` only writes it down.
    """
    from gaploop.datasets.hub.upload import Patience

    push = requested_push(folder, kind, asked, consents)
    if later:
        try:
            push_queue.put(push)
            sent = Sent(push, "queued", "the session was stopped")
        except GaploopError as error:  # of the queue: what the session made is there all the same
            sent = Sent(push, "refused", str(error))
    else:
        sent = send(push, Patience(retries=RETRIES_AFTER_A_SESSION), keep=True)
    for line in (*sent.warnings, sent.as_text()):
        log.info("%s", line)
    return sent
