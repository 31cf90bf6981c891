"""Pushes that are still to be done, one small file each, so that none is forgotten.

A push is written down before it begins and struck out once it is done: what a kill or a Hub that
is down interrupts is sent by the next `gaploop push`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import filelock

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json, writable_folder, write_json
from gaploop.core.paths import plain_name
from gaploop.datasets.hub.target import HubTarget

SCHEMA: Final = "gaploop.push.v1"
ENVIRONMENT: Final = "GAPLOOP_PUSH_QUEUE"


@dataclass(frozen=True)
class QueuedPush:
    """A push that was asked for; its target as in `HubTarget`, the rest as in `PushOptions`.

    Attributes:
        folder: what to push, absolute.
        endpoint: a push is only ever sent to the Hub that it was meant for.
        consents: the consent register; the default one where "".
        at: when it was asked for, ISO 8601, UTC.
        error: why it isn't done yet; "" where it was interrupted.
    """

    folder: str
    repo_id: str
    kind: str
    endpoint: str
    private: bool | None = None
    license: str = ""
    tags: tuple[str, ...] = ()
    consents: str = ""
    allow_paths: bool = False
    at: str = dataclasses.field(default_factory=lambda: datetime.now(UTC).isoformat())
    error: str = ""

    @property
    def target(self) -> HubTarget:
        """Where it goes."""
        return HubTarget(self.repo_id, self.kind, self.endpoint, self.private)


def default_queue() -> Path:
    """Return where pushes wait: `$GAPLOOP_PUSH_QUEUE`, or `gaploop/push` in `$XDG_STATE_HOME`.

    The latter is `~/.local/state` unless set (XDG Base Directory Specification).
    """
    named = os.environ.get(ENVIRONMENT)
    if named:
        return Path(named).expanduser()
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "gaploop" / "push"


def put(push: QueuedPush) -> None:
    """Write a push down; an older one to the same repository gives way.

    Raises:
        UnusableInputError: it can't be written.
    """
    path = _writable(push)
    try:
        write_json(path, {"schema": SCHEMA, **asdict(push)})
    except OSError as error:
        raise UnusableInputError(
            f"{path} can't be written ({error.strerror or error}). Make room, or name another "
            f"folder with ${ENVIRONMENT}."
        ) from None


def drop(push: QueuedPush) -> None:
    """Strike a push out: it is done, or no longer wanted."""
    _file(push).unlink(missing_ok=True)


def waiting() -> list[QueuedPush]:
    """Return what waits, oldest first; UnusableInputError where a file can't be read."""
    found = []
    known = {field.name for field in dataclasses.fields(QueuedPush)}
    for path in sorted(default_queue().glob("*.json")):
        try:
            value: Any = read_json(path)
        except UnusableInputError:
            if path.exists():
                raise
            continue  # another process has just sent it
        try:
            fields = {k: v for k, v in value.items() if k in known}
            found.append(QueuedPush(**{**fields, "tags": tuple(fields.get("tags", ()))}))
        except DAMAGE as error:
            raise UnusableInputError(f"{path} is no queued push ({error}). Delete it.") from None
    return sorted(found, key=lambda push: push.at)


@contextlib.contextmanager
def sending(push: QueuedPush) -> Iterator[None]:
    """Hold a repository for this process: two pushes of it at once would undo each other.

    Raises:
        UnusableInputError: another process is pushing to it.
    """
    lock = filelock.FileLock(_writable(push).with_suffix(".lock"))
    try:
        held = lock.acquire(timeout=0)
    except filelock.Timeout:
        raise UnusableInputError(
            f"{push.repo_id} is being pushed by another process. Wait until it is done."
        ) from None
    with held:
        yield


def _file(push: QueuedPush) -> Path:
    key = "\n".join((push.endpoint, push.kind, push.repo_id))
    repo_id = plain_name(push.repo_id.replace("/", "--"), "repo_id", "push queue")
    return default_queue() / f"{repo_id}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.json"


def _writable(push: QueuedPush) -> Path:
    writable_folder(default_queue(), "Push queue", f"${ENVIRONMENT}")
    return _file(push)
