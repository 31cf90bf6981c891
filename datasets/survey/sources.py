"""Where the metadata of many datasets is: folders on disk, repositories on a Hub.

Only what is asked for is read: of a Parquet file on a Hub its footer and the columns wanted, by
ranges. Servers that don't answer ranges are asked for whole files.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Final, cast
from urllib.parse import quote

from fsspec.caching import BlockCache
from fsspec.spec import AbstractBufferedFile

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import LARGEST_TEXT, VIDEO_FORMATS, regular_file
from gaploop.datasets import layout
from gaploop.datasets.layout import DatasetInfo

HUB: Final = "hf://datasets/"
TIMEOUT_S: Final = 30.0
"""A request without an answer for this long is tried again [s]."""
RETRIES: Final = 5
"""So often; as huggingface_hub does."""
READ_AHEAD_BYTES: Final = 1 << 16
"""Least size of a ranged request; a Parquet footer and its length fit into one."""
VIDEO_BLOCK_BYTES: Final = 1 << 18
"""Of a video so much is read at once: some pictures."""
_REPO_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")


@dataclass(frozen=True)
class LocalMetadata:
    """A dataset on disk."""

    root: Path

    @property
    def name(self) -> str:
        """Its folder."""
        return str(self.root)

    @property
    def files(self) -> frozenset[str]:
        """Paths of the files below meta, data and videos, relative to the dataset."""
        found = set()
        for folder in ("meta", "data", "videos"):
            for here, _, names in os.walk(self.root / folder):
                base = os.path.relpath(here, self.root)
                found |= {os.path.join(base, name) for name in names}
        return frozenset(found)

    def open(self, path: str) -> BinaryIO:
        """Open one of its files, no pipe in its place.

        Raises:
            OSError: it can't be read.
            UnusableInputError: it is no regular file.
        """
        return regular_file(self.root / path).open("rb")


@dataclass(frozen=True)
class HubMetadata:
    """A dataset on a Hub, of a branch, tag or commit; None is the main branch."""

    repo_id: str
    revision: str | None = None

    @property
    def name(self) -> str:
        """Its address."""
        return f"{HUB}{self.repo_id}" + (f"@{self.revision}" if self.revision else "")

    @cached_property
    def _sizes(self) -> dict[str, int]:
        from gaploop.datasets.hub.target import endpoint

        revision = quote(self.revision or "main", safe="")
        url = f"{endpoint()}/api/datasets/{self.repo_id}/tree/{revision}?recursive=true"
        sizes: dict[str, int] = {}
        while url:
            page = _get(url)
            try:
                files = [entry for entry in page.json() if entry["type"] == "file"]
                sizes |= {str(entry["path"]): int(entry["size"]) for entry in files}
            except (ValueError, TypeError, KeyError):
                raise OSError(f"{url}: the answer is not a list of files.") from None
            url = page.links.get("next", {}).get("url", "")
        return sizes

    @property
    def files(self) -> frozenset[str]:
        """Paths of its files, relative to it."""
        return frozenset(self._sizes)

    def open(self, path: str) -> BinaryIO:
        """Open one of its files; it is read by ranges.

        Raises:
            OSError: it isn't there, or can't be read.
        """
        from huggingface_hub import hf_hub_url

        from gaploop.datasets.hub.target import endpoint

        if path not in self._sizes:
            raise FileNotFoundError(f"{self.name} has no {path}")
        where = {"repo_type": "dataset", "revision": self.revision, "endpoint": endpoint()}
        url = hf_hub_url(self.repo_id, path, **where)
        return cast(BinaryIO, RangedFile(url, self._sizes[path]))

    def open_video(self, path: str) -> Any:
        """Open one of its videos with PyAV; only what is decoded is read.

        Raises:
            OSError: it isn't there, or can't be read.
            av.FFmpegError: it is no video.
        """
        import av

        if path not in self._blocks:
            self._blocks[path] = cast(RangedFile, self.open(path)).in_blocks()
        file = self._blocks[path]  # its index is read once, however often it is opened
        file.seek(0)
        return av.open(file, options={"format_whitelist": VIDEO_FORMATS})

    @cached_property
    def _blocks(self) -> dict[str, RangedFile]:
        return {}


type Metadata = LocalMetadata | HubMetadata
"""One dataset's files, wherever they are."""


class RangedFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec is not typed
    """A file on a Hub, read by ranges; requests are repeated where a server is overloaded."""

    def __init__(self, url: str, size: int) -> None:
        self._url, self._whole = url, b""
        super().__init__(None, url, "rb", READ_AHEAD_BYTES, "readahead", size=size)

    def in_blocks(self) -> RangedFile:
        """Keep what was read, for a file that is read here and there; return it."""
        self.cache = BlockCache(VIDEO_BLOCK_BYTES, self._fetch_range, self.size, maxblocks=64)
        return self

    def _fetch_range(self, start: int, end: int) -> bytes:
        end = min(end, self.size)  # a cache asks for whole blocks
        if not self._whole:
            answer = _get(self._url, range=f"bytes={start}-{end - 1}")
            content: bytes = answer.content
            due = end - start if answer.status_code == 206 else self.size
            if len(content) != due:
                raise OSError(f"{self._url}: {len(content)} bytes of {due} came.")
            if answer.status_code == 206:
                return content
            self._whole = content  # a server without ranges
        return self._whole[start:end]


def _get(url: str, **headers: str) -> Any:
    """Return a Hub's answer, or raise OSError; requests are repeated where it is overloaded."""
    import httpx
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

    try:
        answer = http_backoff(
            "GET",
            url,
            headers={**headers, **build_hf_headers(library_name="gaploop")},
            timeout=TIMEOUT_S,
            follow_redirects=True,
            max_retries=RETRIES,
        )
        hf_raise_for_status(answer)
    except (httpx.HTTPError, httpx.InvalidURL, HfHubHTTPError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise OSError(reason if url in reason else f"{url}: {reason}") from None
    return answer


def is_hub_address(name: str) -> bool:
    """Say whether a name can only mean a repository: owner/name, and no such folder here."""
    is_name = bool(_REPO_ID.fullmatch(name)) and not Path(name).exists()
    return name.startswith(HUB) or (is_name and not Path(name).parent.exists())


def find_datasets(names: Iterable[str]) -> list[Metadata]:
    """Return the datasets that names stand for, in order, each once.

    Args:
        names: folders of datasets, folders above any number of them, and repositories on a Hub as
            `hf://datasets/OWNER/NAME`, or `OWNER/NAME` where there is no folder OWNER; `@REVISION`
            may follow.

    Raises:
        UnusableInputError: a name that is neither, or a folder without a dataset below it.
    """
    found: dict[str, Metadata] = {}
    for name in names:
        path = Path(name)
        if path.is_dir():
            local: dict[str, Metadata] = {}
            for here, folders, _ in os.walk(path):
                if (Path(here) / layout.INFO).is_file():
                    local[str(Path(here))] = LocalMetadata(Path(here))
                    folders[:] = []
                folders[:] = sorted(f for f in folders if not f.startswith("."))
            if not local:
                raise UnusableInputError(
                    f"{path}: neither a dataset nor a folder above one (none has {layout.INFO})."
                    " Name one of them."
                )
            found |= local
        elif is_hub_address(name):
            repo_id, _, revision = name.removeprefix(HUB).partition("@")
            source = HubMetadata(repo_id, revision or None)
            found[source.name] = source
        else:
            raise UnusableInputError(
                f"{name} not found. Name folders of datasets, folders above them, or repositories "
                f"as {HUB}OWNER/NAME."
            )
    return list(found.values())


def read_info(source: Metadata) -> DatasetInfo:
    """Return what a dataset's `meta/info.json` says.

    Raises:
        UnusableInputError: as in `layout.read_info`.
        OSError: it can't be read.
    """
    if isinstance(source, LocalMetadata):
        return layout.read_info(source.root)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, layout.INFO)
        copy.parent.mkdir()
        with source.open(layout.INFO) as stream:
            copy.write_bytes(stream.read(LARGEST_TEXT + 1))  # more is refused there
        try:
            return layout.read_info(Path(folder))
        except UnusableInputError as error:
            raise UnusableInputError(str(error).replace(folder, source.name)) from None
