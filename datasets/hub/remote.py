"""Videos of a dataset on a Hub, of which only what is decoded is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import av
from huggingface_hub import HfFileSystem

from gaploop.core.files import VIDEO_FORMATS
from gaploop.datasets.hub.target import endpoint

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
