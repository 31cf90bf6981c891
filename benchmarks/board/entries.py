"""What is entered into a benchmark, and the look at it before any of it is loaded.

A board is a folder, or a dataset repository on a Hub:

    benchmark.json                          what is measured, the commitment, the server's key
    submissions/<user>/<name>/entry.json    what is entered; files/ beside it, if not on a Hub
    results/<user>/<name>.json              what came of it, signed
    ranking.json  index.html  videos/       signed, too; a page for people

Whoever writes there is a stranger: names are checked, files counted, weights measured.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from benchmarks.board.confined import MB
from benchmarks.board.sandbox import Limits
from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import parse_json, read_content, read_json, write_json
from gaploop.core.paths import inside, relative_path
from gaploop.datasets.hub.target import endpoint
from gaploop.datasets.hub.upload import (
    FETCH_PATIENCE,
    HubUnreachableError,
    connected,
    fetch,
    retried,
)
from gaploop.finetune import lerobot_trust as trust

ENTRY: Final = "entry.json"
SCHEMA: Final = "gaploop.benchmark_entry.v1"
POLICY: Final = "policy"
ATTRIBUTION: Final = "attribution"
TRACKS: Final = (POLICY, ATTRIBUTION)
PROGRAM: Final = "run.py"
"""What is run of an attribution submission."""
NAME: Final = re.compile(r"[A-Za-z0-9](?:[\w-]|\.(?!\.)){0,63}", re.ASCII)
COMMIT: Final = re.compile(r"[0-9a-f]{40}")
WORDS: Final = 500
"""Characters of a declaration."""
FILES: Final = 200
HEADER: Final = 8 * MB
"""A header of safetensors that is longer describes more tensors than policies have [bytes]."""
NOTES: Final = (".md", ".txt", ".gitattributes")
PARTS: Final = (".safetensors", ".json", ".yaml", ".yml", *NOTES)
IGNORED: Final = ("train_config.json",)
"""How it was trained, with paths of another computer; nothing that drives reads it."""
READ: Final = (trust.CONFIG, trust.ADAPTER_CONFIG, trust.SIDECAR)
"""Of these, and of processors, every text is looked at: it may be opened as a path."""
SIZES: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2,
    "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip
"""Bytes of a number, by safetensors' names."""


@dataclass(frozen=True)
class Submission:
    """What is entered.

    Attributes:
        user: whose it is; the owner of `source`, where that is given.
        name: unique among the user's.
        track: `policy`, or `attribution`, a program.
        source: name of a model repository on the Hub; "" where the files are on the board.
    """

    user: str
    name: str
    track: str
    trained_on: str
    source: str = ""
    revision: str = ""

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            UnusableInputError: a name that can't be one, an unknown track, nothing declared.
        """
        for what in ("user", "name", "track", "trained_on", "source", "revision"):
            if not isinstance(getattr(self, what), str):
                raise UnusableInputError(
                    f"{what} must be text. Enter it with python -m benchmarks.board."
                )
        for what in ("user", "name"):
            if not NAME.fullmatch(getattr(self, what)):
                raise UnusableInputError(
                    f"--{what}={getattr(self, what)[:80]!a} can't be a name: up to 64 letters, "
                    "digits and single -, _ or . between them."
                )
        if self.track not in TRACKS:
            raise UnusableInputError(
                f"{self.track[:80]!a} is no track. One of: policy, attribution."
            )
        if not 0 < len(self.trained_on.strip()) <= WORDS or not self.trained_on.isprintable():
            raise UnusableInputError(
                "What was it trained on? Say so in one line with --training_data='me/dataset, 200 "
                "takes', up to 500 characters."
            )
        if self.source:
            owner = self.source.partition("/")[0]
            if owner != self.user:
                raise UnusableInputError(
                    f"{self.source[:100]!a} is {owner[:80]!a}'s: only they can enter it. Leave "
                    "--user out."
                )
            if not COMMIT.fullmatch(self.revision):
                raise UnusableInputError(f"{self.revision[:80]!a} is no commit of 40 digits.")

    @property
    def key(self) -> str:
        """What it is called: user/name."""
        return f"{self.user}/{self.name}"

    def folder(self, board: Path) -> Path:
        """Return its folder on a board."""
        return board / "submissions" / self.user / self.name


def enter(board: Path, submission: Submission, files: Mapping[str, Path]) -> Path:
    """Put a submission on a board that is a folder; return its folder.

    Args:
        files: path below it to the file here, where it isn't on a Hub.

    Raises:
        UnusableInputError: the user has entered one of that name.
    """
    folder = submission.folder(board)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise UnusableInputError(
            f"{submission.key} is entered already. Give this one another --name."
        ) from None
    for name, path in files.items():
        target = folder / "files" / relative_path(name, "file")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    write_json(folder / ENTRY, {"schema": SCHEMA, **asdict(submission)})
    return folder


def entered(board: Path) -> Iterator[Submission | UnusableInputError]:
    """Yield what is entered on a board, by user and name; an error for what can't be read."""
    for path in sorted(board.glob(f"submissions/*/*/{ENTRY}")):
        try:
            inside(board, path.relative_to(board), "entry", of_snapshot=True)
            value = parse_json(read_content(path, limit=64 << 10))
            if value.pop("schema") != SCHEMA:
                raise UnusableInputError(f"it isn't a {SCHEMA} file")
            found = Submission(**value)
            if found.folder(board) != path.parent:
                raise UnusableInputError(f"it states that it is {found.key}")
            yield found
        except (UnusableInputError, *DAMAGE) as error:
            yield UnusableInputError(f"{path}: {error}")


def stage(submission: Submission, board: Path, target: Path, limits: Limits) -> Path:
    """Copy a submission's files to where only the server writes, and look at them; return where.

    What was looked at is what runs, whatever happens to the board or the Hub afterwards.

    Raises:
        UnusableInputError: why it isn't run; tells nothing of this computer.
    """
    shutil.rmtree(target, ignore_errors=True)
    if submission.source:
        _, sizes = listing(submission.source, submission.revision)
        wanted = _wanted(sizes, submission.track, limits)
        root = fetch(submission.source, submission.revision, parts=wanted or ("none",))
    else:
        place = submission.folder(board).relative_to(board)
        root = inside(board, place / "files", "folder")
        wanted = _wanted(_walk(root), submission.track, limits)
    for name in wanted:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, path)
    try:
        if submission.track == POLICY:
            look_at_policy(target)
        elif PROGRAM not in wanted:
            raise UnusableInputError(f"There is no {PROGRAM}.")
    except UnusableInputError as error:
        raise UnusableInputError(str(error).replace(f"{target}{os.sep}", "")) from None
    return target


def _walk(root: Path) -> dict[str, int]:
    """Return the files below a folder, with their sizes [bytes]; links and devices are refused."""
    found: dict[str, int] = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            status, word = path.lstat(), path.relative_to(root).as_posix()
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                raise UnusableInputError(f"{word!a} is a link or no file. Put a file in its place.")
            if stat.S_ISREG(status.st_mode):
                found[word] = status.st_size
            if len(found) > FILES:
                return found
    return found


def _wanted(sizes: Mapping[str, int], track: str, limits: Limits) -> list[str]:
    """Return which of a submission's files are taken.

    Raises:
        UnusableInputError: too many or too large, a pickle, or what no policy consists of.
    """
    total = sum(sizes.values())
    if len(sizes) > FILES or total > limits.download_mb * MB:
        raise UnusableInputError(
            f"{len(sizes)} files of {total >> 20} MiB; {FILES} of {limits.download_mb} MiB in all "
            "are the most."
        )
    if track == ATTRIBUTION:
        return [relative_path(name, "file") for name in sizes if not name.startswith(".")]
    for name in sizes:
        path = PurePosixPath(name)
        if path.suffix.lower() in trust.PICKLES:
            raise UnusableInputError(
                f"{name!a} is a pickle, which can run code when it is loaded. Weights are read "
                "from .safetensors only."
            )
        if not name.startswith(".") and path.suffix.lower() not in PARTS and path.suffix:
            raise UnusableInputError(
                f"{name!a} is no file of a policy. Allowed: {', '.join(PARTS)}."
            )
    kept = (n for n in sizes if PurePosixPath(n).suffix in PARTS and not n.endswith(NOTES))
    return [
        relative_path(n, "file")
        for n in kept
        if PurePosixPath(n).name not in IGNORED and not n.startswith(".")
    ]


def look_at_policy(folder: Path) -> None:
    """Refuse a policy whose weights or configuration aren't what they should be.

    Raises:
        UnusableInputError: no weights, tensors that don't fit their file, a path that leads out, or
            what would run code.
    """
    weights = sorted(folder.rglob("*.safetensors"))
    if not weights:
        raise UnusableInputError("There are no weights (.safetensors).")
    for path in weights:
        look_at_weights(path)
    for path in sorted(folder.rglob("*.json")):
        is_read = path.name in READ or path.stem.endswith("processor")
        for where, text in _texts(read_json(path), "") if is_read else ():
            if re.search(r"^[/~\\]|^[A-Za-z]:[/\\]|(^|[/\\])\.\.([/\\]|$)|^file:", text):
                raise UnusableInputError(
                    f"{path}: {where or 'it'} is {text[:80]!a}, a path that leads out of the "
                    "policy. Set it to null, or to a name in the folder."
                )
    for path in sorted({p.parent for p in folder.rglob("*.json")}):
        trust.refuse_foreign_code(path)


def _texts(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in pairs:
            yield from _texts(part, f"{where}.{key}".lstrip("."))


def look_at_weights(path: Path) -> None:
    """Check a file of safetensors without loading it: its header describes its bytes and no more.

    Raises:
        UnusableInputError: a header that is too long or no JSON, tensors that overlap, leave bytes
            over, or have other sizes than their shapes.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(HEADER, size - 8):
            raise UnusableInputError(f"{path}: a header of {length} bytes in a file of {size}.")
        text = stream.read(length)
    at = 0
    try:
        header = parse_json(text)
        spans = []
        for name, said in header.items():
            if name == "__metadata__":
                continue
            (begin, end), shape = said["data_offsets"], said["shape"]
            if not all(type(n) is int and 0 <= n < 1 << 40 for n in (begin, end, *shape)):
                raise ValueError("a size that is no whole number")
            spans.append((begin, end, math.prod(shape) * SIZES[said["dtype"]]))
        for begin, end, count in sorted(spans):
            if begin != at or end - begin != count:
                raise ValueError(f"a tensor of {count} bytes at {begin} to {end}, {at} is next")
            at = end
        if at != size - 8 - length:
            raise ValueError(f"{at} bytes of tensors in {size - 8 - length}")
    except DAMAGE as error:
        raise UnusableInputError(f"{path}: no sound .safetensors ({str(error)[:120]}).") from None


def listing(
    repo_id: str, revision: str | None = None, kind: str = "model"
) -> tuple[str, dict[str, int]]:
    """Return the commit of a repository, and its files with their sizes [bytes].

    Arguments and errors are as of `upload.fetch`.
    """
    address = endpoint()

    def look() -> tuple[str, dict[str, int]]:
        commit = str(api.repo_info(repo_id, revision=revision, repo_type=kind).sha)
        tree = api.list_repo_tree(repo_id, revision=commit, recursive=True, repo_type=kind)
        return commit, {item.path: item.size for item in tree if hasattr(item, "size")}

    try:
        with connected(address, FETCH_PATIENCE.timeout_s) as api:
            return retried(look, FETCH_PATIENCE, f"Looking at {repo_id}", address)
    except HubUnreachableError as error:
        raise UnusableInputError(f"{repo_id} can't be looked at: {error}") from None
