"""A folder onto a Hub, in one commit, resumable, with a tag that is never missing; and from it.

Every call is a public one of huggingface_hub, so that it works with huggingface.co and with any
server that speaks the same protocol (`HF_ENDPOINT`). What huggingface_hub 1.33 doesn't do by
itself: time out, upload to a server without Xet while `hf_xet` is installed, put up with a server
without a card check, delete what the folder no longer holds, repeat a commit whose answer got
lost, and move a tag so that loading by it works at every instant. Its `upload_large_folder` (in
1.33 deprecated) and `upload_folder` cut an upload into many commits: who loads meanwhile gets half
a dataset.
"""

import contextlib
import errno
import functools
import hashlib
import json
import logging
import os
import re
import ssl
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import av
import httpx
import huggingface_hub
import tenacity
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    HfFileSystem,
    constants,
)
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
    parse_ratelimit_headers,
)

from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.files import VIDEO_FORMATS
from gaploop.datasets.hub.target import HubTarget, endpoint

logger = logging.getLogger(__name__)

README: Final = "README.md"
MAIN: Final = "main"
BATCH_FILES: Final = 8
"""Files that are uploaded before progress is said and the retries are counted anew."""
BATCH_BYTES: Final = 64 << 20
"""No more than one file beyond that [bytes]."""
CONNECT_S: Final = 10.0
"""A server that doesn't take a connection within this isn't there [s]."""
NO_CARD_CHECK: Final = frozenset({404, 405, 501})
"""Answers of a server that has no card check."""
BUSY_STATUSES: Final = frozenset({408, 409, 412, 423, 425, 429})
"""Answers below 500 that say "not now": time-out, somebody else's commit, rate limit."""
UPLOAD_RETRIES: Final = 1
"""Of a batch: huggingface_hub has tried each of its requests six times by then."""
SENT_BYTES: Final = 4 << 20
"""So much may wait in this computer's socket after the last byte was written [bytes]."""
SLOWEST_BYTES_PER_S: Final = 20e3
"""An upload that is slower than this has failed."""
LONGEST_RETRY_AFTER_S: Final = 300.0
"""A server that asks for more patience than this is taken at this [s]."""
WRITE_RIGHTS: Final = "Check --repo_id, and that your token may write there: hf auth whoami"
BAD_CARD: Final = "Invalid metadata in README.md"
READ_RIGHTS: Final = "Check its name, and that your token may read it: hf auth whoami"


class ChangedError(GaploopError):
    """A file was changed while it was being pushed; what was read before doesn't hold any more."""


class HubUnreachableError(GaploopError):
    """The Hub didn't take a push this time; nothing is wrong with what was to be pushed."""

    exit_code = 1


@dataclass(frozen=True)
class Patience:
    """How long to go on trying.

    Attributes:
        retries: how many times each step is tried again; its count starts anew with every step
            that succeeds, so that a long upload survives many faults.
        wait_s: before the first retry; doubled each time, up to the longest, with jitter [s].
        timeout_s: without a byte from the server for this long, a request has failed [s].
    """

    retries: int = 5
    wait_s: float = 1.0
    longest_wait_s: float = 30.0
    timeout_s: float = 30.0


@dataclass(frozen=True)
class HubFile:
    """A file as it shall be in the repository: its path there, and the file here or the content."""

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
    """What a push did; `commit` is what `main` points to now.

    Attributes:
        replaced: of those uploaded, which took the place of others.
        before: the commit that has what was replaced or deleted, or "".
    """

    url: str
    commit: str
    uploaded: tuple[str, ...] = ()
    unchanged: int = 0
    deleted: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    before: str = ""


# -- What goes wrong: what deserves another try, what a person must fix ---------------------------


def retried[T](
    work: Callable[[], T], patience: Patience, what: str, where: str, rights: str = WRITE_RIGHTS
) -> T:
    """Do one step of a push, again and again while the fault is the network's or the server's.

    Args:
        work: the step; must be safe to repeat.
        what: the step in words, for messages, such as "committing".
        where: the Hub's address, for messages.
        rights: what to check where the Hub refuses.

    Raises:
        HubUnreachableError: it went on failing.
        UnusableInputError: the server refused for a reason that trying again doesn't fix.
    """
    backoff = tenacity.wait_exponential_jitter(
        patience.wait_s, patience.longest_wait_s, jitter=patience.wait_s
    )

    def error_of(state: tenacity.RetryCallState) -> BaseException | None:
        return state.outcome.exception() if state.outcome is not None else None

    def deserves_retry(error: BaseException) -> bool:
        offline = any(isinstance(link, OfflineModeIsEnabled) for link in _chain(error))
        return _is_passing(error) and not offline  # HF_HUB_OFFLINE is set: waiting doesn't help

    def wait_s(state: tenacity.RetryCallState) -> float:
        asked_s = 0.0
        for link in _chain(error_of(state)):
            headers: Any = getattr(getattr(link, "response", None), "headers", {})
            limit = parse_ratelimit_headers(headers)  # in every answer of the public Hub
            if limit is not None and limit.remaining == 0:
                asked_s = limit.reset_in_seconds
            elif text := str(headers.get("Retry-After", "")):
                asked_s = _seconds(text)
            if asked_s:
                break
        return max(backoff(state), min(asked_s, LONGEST_RETRY_AFTER_S))

    def tell(state: tenacity.RetryCallState) -> None:
        long_wait = state.upcoming_sleep > patience.longest_wait_s + patience.wait_s
        logger.log(
            logging.WARNING if long_wait else logging.INFO,  # only a Hub asks for so much
            "%s failed (%s); trying again in %.0f s (%d of %d).",
            what,
            _in_words(error_of(state)),
            state.upcoming_sleep,
            state.attempt_number,
            patience.retries,
        )

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(deserves_retry),
        stop=tenacity.stop_after_attempt(patience.retries + 1),
        wait=wait_s,
        before_sleep=tell,
        reraise=True,
    )
    try:
        return retrying(work)
    except GaploopError:
        raise
    except (httpx.HTTPError, HfHubHTTPError, OSError, RuntimeError, ValueError, KeyError) as error:
        words = _in_words(error)
        status = next(filter(None, map(_status, _chain(error))), None)
        if _is_passing(error):
            raise HubUnreachableError(f"{what} on {where} failed: {words}") from error
        if status == 401:
            login = "Log in with: hf auth login; or set HF_TOKEN."
            if os.environ.get("HF_TOKEN"):
                login = "Give HF_TOKEN a valid one, or unset it: it goes before hf auth login."
            raise UnusableInputError(
                f"{where} doesn't know you ({words}, {what}). {login}"
            ) from error
        if status in (403, 404):
            to_do = "Make room there, or push elsewhere." if "storage" in words.lower() else rights
            raise UnusableInputError(f"{where} refused ({words}, {what}). {to_do}") from error
        if status == 413:
            raise UnusableInputError(
                f"{where} takes nothing as large ({words}, {what}). Raise its limit for uploads, "
                "which may be a proxy's in front of it, or push elsewhere."
            ) from error
        if isinstance(error, httpx.UnsupportedProtocol):
            raise UnusableInputError(
                f"HF_ENDPOINT={where} is no address. Give it whole, such as https://{where}"
            ) from error
        to_do = "Nothing was changed."
        if words.startswith(BAD_CARD):
            to_do = f"Correct it between the card's --- lines. {to_do}"
        elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
            to_do = "Make room, or name another place for downloads in HF_HOME."
        elif _is_unsafe(error):
            to_do = (
                "Begin HF_ENDPOINT with http:// where that Hub has no TLS; name the certificate of "
                "your own Hub or proxy in SSL_CERT_FILE."
            )
        raise UnusableInputError(f"{what} on {where} failed: {words}. {to_do}") from error


def _seconds(retry_after: str) -> float:
    """Return how long a Hub asks to wait [s]: in seconds or, by HTTP, until a date."""
    if retry_after.isdigit():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return 0.0


def _is_passing(error: BaseException) -> bool:
    """Say whether trying again later may help."""
    # A step inside this one has tried already.
    if isinstance(error, GaploopError | httpx.UnsupportedProtocol) or _is_unsafe(error):
        return False
    for link in _chain(error):
        status = _status(link)
        if status is not None:
            return status >= 500 or status in BUSY_STATUSES
        # A page that isn't JSON is a proxy's or a captive portal's, not a Hub's.
        passing = httpx.TransportError | ConnectionError | TimeoutError | json.JSONDecodeError
        if isinstance(link, passing):
            return True
    # hf_xet and the LFS client wrap what happened in a RuntimeError, the LFS batch in ValueError.
    return isinstance(error, RuntimeError) or "LFS batch API" in str(error)


def _is_unsafe(error: BaseException) -> bool:
    """Say whether there was no connection since the other side isn't trusted, or has no TLS."""
    return any(
        isinstance(link, ssl.SSLCertVerificationError)
        or (isinstance(link, ssl.SSLError) and link.reason == "WRONG_VERSION_NUMBER")
        for link in _chain(error)
    )


def _in_words(error: BaseException | None) -> str:
    """Return an error on one short line."""
    if error is None:
        return "no answer"
    if str(error).startswith(BAD_CARD):  # huggingface_hub says what, the answer's status doesn't
        return _short(error)
    for link in _chain(error):
        if isinstance(link, OfflineModeIsEnabled):
            return "HF_HUB_OFFLINE is set; unset it"
        status = _status(link)
        if status is not None:
            said = _short(getattr(link, "server_message", "") or "")
            said = "" if said.startswith("<") else said  # a proxy's page
            return f"HTTP {status}" + (f": {said}" if said else "")
        if isinstance(link, json.JSONDecodeError):
            return "what answers is no Hub, perhaps a network's login page"
    cause = list(_chain(error))[-1]
    if isinstance(cause, httpx.TimeoutException):
        return "no answer in time"
    return _short(cause) or type(cause).__name__


def _short(text: object) -> str:
    return textwrap.shorten(str(text), 160, placeholder=" …")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what caused it, outermost first."""
    seen: list[BaseException] = []
    link = error
    while link is not None and link not in seen:
        yield link
        seen.append(link)
        link = link.__cause__ or link.__context__


def _status(error: BaseException) -> int | None:
    if not isinstance(error, HfHubHTTPError | httpx.HTTPStatusError):
        return None
    response: Any = getattr(error, "response", None)
    return None if response is None else int(response.status_code)


# -- The client: with time-outs, and for any Hub --------------------------------------------------


class _Client(httpx.Client):
    """Never without a time-out, and content with a server that has no card check.

    huggingface_hub asks for one at every commit, and reads the answer as JSON before it looks at
    the status. (Its `RepoCard.validate`, which LeRobot's push calls, asks huggingface.co whatever
    the endpoint.)
    """

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        # Some of huggingface_hub's calls ask for no time-out at all.
        asked = request.extensions["timeout"]
        limits: dict[str, Any] = {k: asked.get(k) or s for k, s in self.timeout.as_dict().items()}
        # Over a slow line the last bytes are on their way long after they were written.
        waiting = min(int(request.headers.get("Content-Length", 0)), SENT_BYTES)
        limits["read"] = (limits["read"] or 0.0) + waiting / SLOWEST_BYTES_PER_S
        request.extensions["timeout"] = limits
        response = super().send(request, **options)
        if not request.url.path.endswith("/api/validate-yaml"):
            return response
        try:
            response.json()
            checked = response.status_code not in NO_CARD_CHECK
        except ValueError:  # no Hub's answer: the commit itself will tell whether there is one
            checked = False
        return response if checked else httpx.Response(200, json={}, request=request)


@contextlib.contextmanager
def connected(address: str, timeout_s: float) -> Iterator[Any]:
    """Yield huggingface_hub's client for an endpoint; for the time-out [s] see `Patience`."""
    try:
        before = huggingface_hub.get_session()
    except (ValueError, ImportError, OSError, httpx.InvalidURL) as error:
        raise UnusableInputError(
            f"This shell's settings allow no connection: {_short(error).rstrip('.')}. Correct the "
            "proxy (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY) or the certificates (SSL_CERT_FILE)."
        ) from error
    known: dict[str, Any] = {"event_hooks": before.event_hooks, "follow_redirects": True}
    timeout = httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s))
    bars = are_progress_bars_disabled()
    disable_progress_bars()  # one for each file, over our own
    xet = constants.HF_HUB_DISABLE_XET
    constants.HF_HUB_DISABLE_XET = not _speaks_xet(address)
    huggingface_hub.set_client_factory(lambda: _Client(**known, timeout=timeout))
    try:
        yield HfApi(endpoint=address, library_name="gaploop")
    finally:
        constants.HF_HUB_DISABLE_XET = xet
        # As before: huggingface_hub has no call that returns to its own factory.
        huggingface_hub.set_client_factory(lambda: httpx.Client(**known, timeout=before.timeout))
        if not bars:
            enable_progress_bars()


def _speaks_xet(address: str) -> bool:
    """Say whether to upload through Xet: on huggingface.co, or where HF_HUB_DISABLE_XET=0 is set.

    huggingface_hub takes Xet wherever `hf_xet` is installed and fails on servers without it.
    """
    said = os.environ.get("HF_HUB_DISABLE_XET")
    if said is not None:
        return said.upper() not in ("1", "ON", "YES", "TRUE")
    host = urlsplit(address).hostname or ""
    return host == "huggingface.co" or host.endswith(".huggingface.co")


# -- The push -------------------------------------------------------------------------------------


def read_remote(target: HubTarget, name: str, patience: Patience) -> str:
    """Return a text file of the repository's main branch, or "" where there is none."""

    def read() -> str:
        with tempfile.TemporaryDirectory() as cache:
            path = api.hf_hub_download(
                target.repo_id, name, repo_type=target.kind, revision=MAIN, cache_dir=cache
            )
            return Path(path).read_text(errors="replace")

    with connected(target.endpoint, patience.timeout_s) as api:
        repository = _Repository(api, target, patience)
        if name not in repository.files()[1]:
            return ""
        return repository.ask(f"Reading {name}", read)


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
        on_progress: called with bytes uploaded and bytes to upload.

    Raises:
        HubUnreachableError: the Hub can't be reached or goes on failing.
        ChangedError: the folder was changed meanwhile.
        UnusableInputError: the Hub refuses.
    """
    hashes: dict[str, bytes] = {}

    def commit() -> Pushed:
        try:
            return repository.commit(contents, hashes, on_progress)
        except (OSError, ValueError, RuntimeError):
            contents.check()  # a file that went or changed while it was read says so
            raise

    with connected(target.endpoint, patience.timeout_s) as api:
        repository = _Repository(api, target, patience)
        repository.ask(f"Making {target.repo_id}", repository.create)
        done = repository.ask("Committing", commit)
        if contents.tag:
            repository.move_tag(contents.tag, done.commit)
    return done


def _batches(additions: Sequence[CommitOperationAdd]) -> Iterator[list[CommitOperationAdd]]:
    """Yield files that are uploaded together: some small ones, or a large one."""
    batch: list[CommitOperationAdd] = []
    for made in additions:
        batch.append(made)
        if len(batch) == BATCH_FILES or sum(b.upload_info.size for b in batch) >= BATCH_BYTES:
            yield batch
            batch = []
    if batch:
        yield batch


@dataclass(frozen=True)
class _Repository:
    """A repository on a Hub; its single calls are retried: many faults in a row end no push."""

    api: Any
    target: HubTarget
    patience: Patience

    @property
    def _name(self) -> dict[str, str]:
        return {"repo_id": self.target.repo_id, "repo_type": self.target.kind}

    def _main(self) -> Any:
        return self.api.repo_info(**self._name, revision=MAIN)

    def ask[T](self, what: str, work: Callable[[], T]) -> T:
        return retried(work, self.patience, what, self.target.endpoint)

    def create(self) -> None:
        """Make the repository where it isn't there yet."""
        info = None
        try:
            info = self.api.repo_info(**self._name)
        except HfHubHTTPError as error:
            # A Hub answers 401 for a repository that isn't there, too, where nobody is logged in.
            if error.response.status_code not in (401, 404):
                raise
        if info is None:
            self.api.create_repo(**self._name, private=self.target.private, exist_ok=True)
        elif self.target.private and getattr(info, "private", None) is False:
            raise UnusableInputError(
                f"{self.target.url} is public already, and you asked for private. Make it private "
                "in its settings there, or choose another --repo_id."
            )

    def files(self) -> tuple[str, dict[str, Any]]:
        """Return main's commit, and path to huggingface_hub's `RepoFile` of what it holds.

        None stands for the file where the Hub tells only that it is there.
        """

        def known[T](work: Callable[[], T]) -> T | None:
            """Return None where the Hub hasn't got it, or leaves out what the client reads."""
            try:
                return work()
            except HfHubHTTPError as error:
                if error.response.status_code != 404:
                    raise
            except (KeyError, TypeError):
                pass
            return None

        def details() -> dict[str, Any]:
            tree = self.api.list_repo_tree(**self._name, revision=MAIN, recursive=True)
            return {item.path: item for item in tree if hasattr(item, "blob_id")}

        info = self.ask("Listing", lambda: known(self._main))
        if info is None:
            return "", {}
        names = {sibling.rfilename: None for sibling in info.siblings or ()}
        tree = self.ask("Listing", lambda: known(details))
        return str(info.sha or ""), {**names, **(tree or {})}

    def commit(
        self,
        contents: Contents,
        hashes: dict[str, bytes],
        on_progress: Callable[[int, int], None],
    ) -> Pushed:
        """Upload and commit what differs, planned anew by every try.

        An answer to a commit that got lost leaves the commit there: repeating it blindly would
        make a second one, or fail on files that are deleted already.

        Args:
            hashes: SHA-256 of files by name, as far as known from earlier tries; added to.
        """

        def addition(file: HubFile) -> CommitOperationAdd:
            made = CommitOperationAdd(file.name, file.source)
            if file.name in hashes:
                made.upload_info.sha256 = hashes[file.name]
            return made

        def differs(file: HubFile, there: Any) -> bool:
            """Compare with what the Hub has; hash only where the size is the same."""
            if there is None or there.size != file.size:
                return True
            if there.lfs is not None:
                if file.name not in hashes:
                    hashes[file.name] = addition(file).upload_info.sha256
                return hashes[file.name].hex() != (there.lfs.sha256 or "")
            content = file.source if isinstance(file.source, bytes) else file.source.read_bytes()
            blob = b"blob %d\0" % len(content) + content  # as git names it
            return bool(hashlib.sha1(blob, usedforsecurity=False).hexdigest() != there.blob_id)

        head, remote = self.files()
        changed = [f for f in contents.files if differs(f, remote.get(f.name))]
        names = {f.name for f in contents.files}
        gone = tuple(n for n in sorted(remote) if n not in names and contents.owns(n))
        additions = [addition(f) for f in changed]
        done, how = 0, {**self._name, "revision": MAIN, "free_memory": False}
        # What doesn't go into the commit itself; what the Hub has isn't sent again. A .gitignore
        # there would leave files out, with no word: an empty one takes its place.
        upload = functools.partial(self.api.preupload_lfs_files, **how, gitignore_content="# none")
        total = sum(made.upload_info.size for made in additions)
        on_progress(done, total)
        retries = min(self.patience.retries, UPLOAD_RETRIES)
        once = replace(self, patience=replace(self.patience, retries=retries))
        for batch in _batches(additions):
            once.ask("Uploading", functools.partial(upload, additions=batch))
            done += sum(made.upload_info.size for made in batch)
            on_progress(done, total)
        contents.check()
        if changed or gone:
            made = self.api.create_commit(
                **self._name,
                operations=[*additions, *(CommitOperationDelete(name) for name in gone)],
                commit_message=contents.message,
                revision=MAIN,
                # What somebody else pushed since it was listed would stay in between ours; the
                # client takes no longer ids, such as those of another Hub.
                parent_commit=head if constants.REGEX_COMMIT_OID.fullmatch(head) else None,
            )
            commit = str(made.oid)
        else:
            commit = head
        uploaded = tuple(f.name for f in changed)
        replaced = tuple(name for name in uploaded if name in remote)
        unchanged = len(contents.files) - len(changed)
        before = head if replaced or gone else ""
        return Pushed(self.target.url, commit, uploaded, unchanged, gone, replaced, before)

    def move_tag(self, tag: str, commit: str) -> None:
        """Let `tag` point to `commit`; safe to repeat after a kill in the middle.

        Where somebody else has pushed since, and moved it to what `main` is now, it stays.

        A Hub can't move a tag, only delete and create it. While it is gone a stand-in points to
        the commit: a version that sorts right below, which LeRobot takes where the one it wants is
        missing (`get_safe_version`: the same major version, a minor version no higher).
        """
        refs = self.ask("Tagging", lambda: self.api.list_repo_refs(**self._name))
        tags = {ref.name: ref.target_commit for ref in refs.tags}
        newest = {ref.target_commit for ref in refs.branches if ref.name == MAIN}
        stand_in = f"{tag}.dev0"

        def create(name: str) -> None:
            options = {**self._name, "tag": name, "revision": commit, "exist_ok": True}
            self.ask("Tagging", lambda: self.api.create_tag(**options))

        def delete(name: str) -> None:
            def remove() -> None:
                try:
                    self.api.delete_tag(**self._name, tag=name)
                except HfHubHTTPError as error:
                    # An answer that got lost: it is deleted already.
                    if error.response.status_code != 404:
                        raise

            if name in tags:
                self.ask("Tagging", remove)

        if tags.get(tag) not in {commit, *newest}:
            if tag in tags and tags.get(stand_in) != commit:
                delete(stand_in)
                create(stand_in)
                tags[stand_in] = commit
            delete(tag)
            create(tag)
        delete(stand_in)


BLOCK_BYTES: Final = 1 << 18
"""So much of a video is read at once: some pictures."""
BLOCKS: Final = 64
"""So many are kept of each."""


def video_opener(repo_id: str, root: Path) -> Callable[[Path], Any]:
    """Return what opens a repository's videos with PyAV, by their paths below `root`.

    `root` is the snapshot of its tables in Hugging Face's cache, named by its commit. A video that
    isn't there, or can't be read, is an OSError.
    """
    remote, files = HfFileSystem(endpoint=endpoint()), dict[Path, Any]()

    def opened(path: Path) -> Any:
        if path not in files:  # its index is read once, however often it is opened
            name = f"datasets/{repo_id}@{root.name}/{path.relative_to(root).as_posix()}"
            kept = {"cache_type": "blockcache", "cache_options": {"maxblocks": BLOCKS}}
            files[path] = remote.open(name, "rb", block_size=BLOCK_BYTES, **kept)
        files[path].seek(0)
        return av.open(files[path], options={"format_whitelist": VIDEO_FORMATS})

    return opened


# -- Fetching -------------------------------------------------------------------------------------

PARTS: Final = ["*.safetensors", "*.json", "*.yaml"]
FETCH_PATIENCE: Final = Patience(retries=2, timeout_s=30.0)


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
    address, what = endpoint(), "Policy" if kind == "model" else "Dataset"

    def download() -> str:
        found = api.snapshot_download(
            repo_id, revision=revision, repo_type=kind, allow_patterns=list(parts)
        )
        return str(found)

    try:
        with connected(address, FETCH_PATIENCE.timeout_s) as api:
            found = retried(download, FETCH_PATIENCE, f"Fetching {repo_id}", address, READ_RIGHTS)
            return Path(found)
    except (UnusableInputError, HubUnreachableError, LocalEntryNotFoundError) as error:
        raise UnusableInputError(
            f"{what} {repo_id} is no folder here, and can't be had from the Hub: {error}"
        ) from None


def has_version(repo_id: str) -> bool:
    """Say whether a dataset on the Hub has a tag or branch by whose name LeRobot finds it.

    True, too, where the Hub doesn't answer.
    """
    try:
        with connected(address := endpoint(), FETCH_PATIENCE.timeout_s) as api:
            look = functools.partial(api.list_repo_refs, repo_id, repo_type="dataset")
            refs = retried(look, Patience(retries=0), "Listing", address)
    except (UnusableInputError, HubUnreachableError):
        return True
    return any(re.match(r"v?\d", ref.name) for ref in (*refs.branches, *refs.tags))
