"""One commit that makes a repository hold what a folder holds, planned anew by every try."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import sha

from gaploop.datasets.hub.errors import is_missing
from gaploop.datasets.hub.target import Contents, HubFile, HubTarget, Pushed

MAIN: Final = "main"

type Ask = Callable[..., Any]
"""Does one call with retries: its name in words, and the call."""

BATCH_FILES: Final = 32
"""Files that are uploaded before progress is said and the retries are counted anew."""
BATCH_BYTES: Final = 256 << 20


def remote_files(api: Any, target: HubTarget, ask: Ask) -> dict[str, Any]:
    """Return what main holds, empty where there is no repository.

    Returns:
        Path to huggingface_hub's `RepoFile`, or to None where the Hub tells only that it is there.
    """
    repo: dict[str, Any] = {"repo_id": target.repo_id, "repo_type": target.kind, "revision": MAIN}
    info = ask("Listing", lambda: _or_none(lambda: api.repo_info(**repo)))
    if info is None:
        return {}
    tree = ask("Listing", lambda: _or_none(lambda: _details(api, repo)))
    names = {sibling.rfilename: None for sibling in info.siblings or ()}
    return {**names, **(tree or {})}


def _details(api: Any, repo: dict[str, Any]) -> dict[str, Any]:
    tree = api.list_repo_tree(**repo, recursive=True)
    return {item.path: item for item in tree if hasattr(item, "blob_id")}


def _or_none[T](work: Callable[[], T]) -> T | None:
    """Return None where the Hub says that it isn't there, or leaves out what the client reads."""
    try:
        return work()
    except HfHubHTTPError as error:
        if not is_missing(error):
            raise
    except (KeyError, TypeError):
        pass
    return None


@dataclass
class Sync:
    """Upload and commit what differs. Plans anew every time it is run.

    An answer to a commit that got lost leaves the commit there: repeating it blindly would make
    a second one, or fail on files that are deleted already.
    """

    api: Any
    target: HubTarget
    contents: Contents
    ask: Ask
    on_progress: Callable[[int, int], None]
    hashes: dict[str, bytes] = field(default_factory=dict)

    def run(self) -> Pushed:
        """Do it; return what was done."""
        try:
            return self._run()
        except (OSError, ValueError, RuntimeError):
            self.contents.check()  # a file that went or changed while it was read says so
            raise

    def _run(self) -> Pushed:
        remote = remote_files(self.api, self.target, self.ask)
        changed = [f for f in self.contents.files if self._differs(f, remote.get(f.name))]
        names = {f.name for f in self.contents.files}
        gone = tuple(n for n in sorted(remote) if n not in names and self.contents.owns(n))
        unchanged = len(self.contents.files) - len(changed)
        if changed or gone:
            commit = self._commit(changed, gone)
        else:
            self.contents.check()
            repo = {"repo_type": self.target.kind, "revision": MAIN}
            look = functools.partial(self.api.repo_info, self.target.repo_id, **repo)
            commit = str(self.ask("Listing", look).sha)
        uploaded = tuple(f.name for f in changed)
        return Pushed(self.target.url, commit, uploaded, unchanged, gone)

    def _commit(self, changed: Sequence[HubFile], gone: Sequence[str]) -> str:
        additions = [self._addition(f) for f in changed]
        done = 0
        for batch in _batches(additions):
            upload = functools.partial(
                self.api.preupload_lfs_files,
                self.target.repo_id,
                batch,
                repo_type=self.target.kind,
                revision=MAIN,
                free_memory=False,
            )
            self.ask("Uploading", upload)
            done += len(batch)
            self.on_progress(done, len(additions))
        self.contents.check()
        commit = self.api.create_commit(
            self.target.repo_id,
            [*additions, *(CommitOperationDelete(name) for name in gone)],
            commit_message=self.contents.message,
            repo_type=self.target.kind,
            revision=MAIN,
        )
        return str(commit.oid)

    def _addition(self, file: HubFile) -> Any:
        source = file.source if isinstance(file.source, bytes) else str(file.source)
        addition = CommitOperationAdd(file.name, source)
        if file.name in self.hashes:
            addition.upload_info.sha256 = self.hashes[file.name]
        return addition

    def _differs(self, file: HubFile, there: Any) -> bool:
        """Compare with what the Hub has; hash only where the size is the same."""
        if there is None or there.size != file.size:
            return True
        lfs = there.lfs
        if lfs is not None:
            return self._sha256(file).hex() != (lfs.sha256 or "")
        content = file.source if isinstance(file.source, bytes) else file.source.read_bytes()
        return bool(sha.git_hash(content) != there.blob_id)

    def _sha256(self, file: HubFile) -> bytes:
        if file.name not in self.hashes:
            self.hashes[file.name] = self._addition(file).upload_info.sha256
        return self.hashes[file.name]


def _batches(additions: Sequence[Any]) -> Iterator[list[Any]]:
    batch: list[Any] = []
    for addition in additions:
        batch.append(addition)
        if len(batch) == BATCH_FILES or sum(a.upload_info.size for a in batch) >= BATCH_BYTES:
            yield batch
            batch = []
    if batch:
        yield batch
