"""Files that are either whole or absent, names that sort by time, and hashes for lineage."""

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shlex
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from filelock import FileLock

from gaploop.core import platform_calls
from gaploop.core.errors import DAMAGE, UnusableInputError

LARGEST_TEXT: Final = 256 << 20
"""A million labels are 200 MiB [bytes]."""
VIDEO_FORMATS: Final = "mov,mp4,matroska,webm"
"""What FFmpeg may take a video for: LeRobot writes MP4, journals hold Matroska."""
DEEPEST: Final = 64
"""Nesting of JSON and YAML; a policy's configuration, the deepest there is, has about ten."""
DATASET_FOLDERS: Final = ("data", "image", "meta", "telemetry", "video")
"""How names of folders begin that may hold a dataset's files; some write `video`, or `images`."""
LFS_POINTER: Final = b"version https://git-lfs.github.com/spec/v1"
"""How a file begins that stands for another one, which Git LFS has yet to fetch."""
LARGEST_POINTER: Final = 1024
"""By Git LFS's specification [bytes]."""
MOST_DIGITS: Final = 40
"""Digits of a whole number; 64 bits have 20."""


def write_atomically(path: Path, content: bytes | str, mode: int | None = None) -> None:
    """Write `content`, text as UTF-8, so that a kill leaves the old file or the new one, no part.

    The bytes are on disk (fsync) before the name points to them, and never readable by more
    people than `mode` says: unless given, the permissions of the file that is there, and without
    one what the user's umask leaves of 0666.
    """
    if mode is None and path.exists():
        mode = stat.S_IMODE(path.stat().st_mode)
    data = content.encode() if isinstance(content, str) else content
    name = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    try:
        with open(
            name, "xb", opener=partial(os.open, mode=0o666 if mode is None else 0o600)
        ) as stream:
            stream.write(data)
            stream.flush()
            platform_calls.sync(stream.fileno())
        if mode is not None:
            os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    platform_calls.sync_path(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, so that a power cut leaves them."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        platform_calls.sync_path(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. NaN is refused: it isn't JSON."""
    write_atomically(path, json.dumps(value, indent=1, allow_nan=False, default=str) + "\n")


def regular_file(path: Path) -> Path:
    """Return `path`, or raise UnusableInputError for none, or a pipe that nobody fills."""
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        raise UnusableInputError(f"{path} not found. Check the path.") from None
    if not stat.S_ISREG(kind):
        what = "a folder" if stat.S_ISDIR(kind) else "a pipe, socket or device"
        raise UnusableInputError(f"{path} is {what}, not a file. Put the file in its place.")
    if is_lfs_pointer(path):
        raise UnusableInputError(
            f"{path} is a Git LFS pointer, not the file itself. {fetch_hint(path.parent)}"
        )
    return path


def is_lfs_pointer(path: Path) -> bool:
    """Say whether a regular file only stands for one that Git LFS has yet to fetch."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_POINTER:
        return False
    with path.open("rb") as stream:
        return stream.read(len(LFS_POINTER)) == LFS_POINTER


def lfs_pointers(root: Path) -> list[Path]:
    """Return the files of a dataset that only stand for others, in order; not hidden ones.

    What lies beside a dataset, such as a README's pictures or a checkpoint, needn't be there.
    """
    found = []
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".")]
        if Path(folder) == root and "meta" in names:
            names[:], files = [name for name in names if name.startswith(DATASET_FOLDERS)], []
        for path in (Path(folder, name) for name in files):
            with contextlib.suppress(OSError):  # gone meanwhile, or a link to nothing
                if is_lfs_pointer(path):
                    found.append(path)
    return sorted(found)


def refuse_lfs_pointers(root: Path) -> None:
    """Raise UnusableInputError for a dataset that Git LFS, or a download, has yet to complete."""
    if pointers := lfs_pointers(root):
        raise UnusableInputError(f"{root}: {pointers_text(pointers, root)} {fetch_hint(root)}")


def pointers_text(pointers: Sequence[Path], root: Path) -> str:
    """Say which files are only pointers."""
    return (
        f"{len(pointers)} of its files are Git LFS pointers, not the files themselves, such as "
        f"{pointers[0].relative_to(root)}."
    )


def fetch_hint(folder: Path) -> str:
    """Return what fetches the files that Git LFS pointers stand for."""
    where = shlex.quote(str(folder))
    return (
        f"Fetch them: git -C {where} lfs pull; or, from the Hub: hf download REPO "
        f"--repo-type=dataset --local-dir={where}"
    )


def open_video_file(path: Path, **options: str) -> Any:
    """Open a video that somebody else wrote, with PyAV.

    FFmpeg goes by content, not by name: a text that begins with "ffconcat version 1.0" makes it
    open the files that are listed there, pipes among them. `options` are FFmpeg's, for reading.

    Raises:
        UnusableInputError: it is missing or no regular file.
        av.FFmpegError: it is none of `VIDEO_FORMATS`, or can't be read.
    """
    import av  # here: most readers need no codec

    return av.open(str(regular_file(path)), options={**options, "format_whitelist": VIDEO_FORMATS})


def read_content(path: Path, limit: int = LARGEST_TEXT) -> bytes:
    """Read a file that somebody else wrote, up to a size that nothing sound has.

    Raises:
        UnusableInputError: it is missing, no regular file, or larger than `limit` bytes.
    """
    size = regular_file(path).stat().st_size
    if size > limit:
        raise UnusableInputError(
            f"{path} is larger than {limit >> 20} MiB ({size >> 20} MiB). Check that it is the "
            "right file."
        )
    return path.read_bytes()


def read_text(path: Path) -> str:
    """Read a text file that somebody else wrote, UTF-8 with or without a mark at its begin.

    Raises UnusableInputError as `read_content`, or where it is no text.
    """
    try:
        return read_content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnusableInputError(f"{path} is not UTF-8 text ({error}). Save it as such.") from None


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        UnusableInputError: the file is missing or isn't JSON, or is nested deeper, or holds longer
            whole numbers, than anything sound.
    """
    try:
        return parse_json(read_content(path))
    except ValueError as error:
        raise UnusableInputError(
            f"{path} is not JSON ({error}). Restore it or write it anew."
        ) from None


def parse_json(text: str | bytes) -> Any:
    """Parse JSON that somebody else wrote.

    Raises:
        ValueError: it isn't JSON, is nested deeper than `DEEPEST`, holds a whole number of more
            than `MOST_DIGITS` digits, or half a character: every later look at such a value could
            fail in its own way.
    """
    text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    if not text.strip():
        raise ValueError("it is empty")
    try:
        value = json.loads(text, parse_int=_whole)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if "\\ud" in text.lower():  # half of a surrogate pair can't be printed or written
        json.dumps(value, ensure_ascii=False).encode()
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        if not level:
            return value
        level = [
            entry
            for node in level
            for entry in (node.values() if isinstance(node, dict) else node)
            if isinstance(entry, dict | list)
        ]
    raise ValueError("nested too deeply")


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def printable(text: str) -> str:
    """Return text for a terminal: a file may hold codes that clear it or set its title."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def append_line(path: Path, line: str) -> None:
    """Append one line in a single write and sync it: concurrent appenders don't interleave."""
    append_lines(path, [line])


def append_lines(path: Path, lines: Sequence[str], create: bool = True) -> None:
    """Append lines, all of them or none, and sync them; concurrent appenders don't interleave.

    What a kill left of a line before is cut off first: otherwise the two would run together
    and neither could be read.

    Raises:
        FileNotFoundError: there is no file, and it isn't to be made.
        OSError: they can't be written, such as for want of room; the file is as it was.
    """
    if not lines:
        return
    data = "".join(line.rstrip("\n") + "\n" for line in lines).encode()
    with locked_stream(path, create) as stream:
        end = _repair_tail(stream)
        if len(lines) > 1:  # a kill could cut a long write short between two lines
            stream.seek(0)
            rewrite_locked(stream, path, stream.read() + data)
            return
        try:
            if stream.write(data) != len(data):  # the disk is full: the system writes what fits
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            stream.truncate(end)
            raise
        platform_calls.sync(stream.fileno())
    if not end:  # its name is new
        platform_calls.sync_path(path.parent)


def _repair_tail(stream: BinaryIO) -> int:
    """End the last line of JSON that lacks its line break, cut off a torn one; return the size."""
    length = stream.seek(0, os.SEEK_END)
    stream.seek(max(length - 1, 0))
    if stream.read(1) in (b"", b"\n"):
        return length
    stream.seek(0)
    content = stream.read()
    begun = content.rfind(b"\n") + 1
    with contextlib.suppress(ValueError):
        if isinstance(parse_json(content[begun:]), dict):  # by hand, or a tool that joins lines
            stream.write(b"\n")
            return length + 1
    stream.truncate(begun)
    return begun


def json_lines[T](path: Path, what: str, read: Callable[[Any, str], T]) -> Iterator[T]:
    """Yield what stands on each line of a file that `append_line` writes; none without a file.

    A torn last line, which a kill may leave, is passed over.

    Args:
        what: what a line should be, such as "a label event", for the message.
        read: from a line's JSON value and its place, in words; may raise `DAMAGE`.

    Raises:
        UnusableInputError: another line can't be read.
    """
    lines = read_content(path).split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = read(parse_json(line), where)
        except DAMAGE as error:
            if number == len(lines):
                return
            raise UnusableInputError(
                f"{where}: not {what} ({error}). Fix or remove that line."
            ) from None
        yield value


def remove_lines(path: Path, unwanted: Callable[[bytes], bool]) -> int:
    """Remove lines from a file of `append_line`'s, and return how many; 0 without a file.

    The new file takes the old one's name at once; appenders wait and then write to the new one.
    """
    if not path.exists():
        return 0
    with locked_stream(path) as stream:
        stream.seek(0)
        lines = [line for line in stream.read().split(b"\n") if line]
        kept = [line for line in lines if not unwanted(line)]
        if len(kept) != len(lines):
            rewrite_locked(stream, path, b"".join(line + b"\n" for line in kept))
        return len(lines) - len(kept)


def rewrite_locked(stream: BinaryIO, path: Path, content: bytes | str) -> None:
    """Write all of a file whose `locked_stream` is held; the stream isn't needed any more."""
    if platform_calls.WINDOWS:  # what is open can't be replaced there
        stream.close()
    write_atomically(path, content)


@contextlib.contextmanager
def locked_stream(path: Path, create: bool = True) -> Iterator[BinaryIO]:
    """Open `path` for appending and hold its lock, also where it was replaced meanwhile.

    On Windows the lock is on a hidden file beside it.

    Raises:
        FileNotFoundError: it doesn't exist and isn't to be created, or has no folder.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags if create else flags & ~os.O_CREAT, 0o666)

    if platform_calls.WINDOWS:
        with (
            FileLock(path.with_name(f".{path.name}.lock")),
            open(path, "a+b", buffering=0, opener=opener) as stream,
        ):
            yield stream
        return
    while True:
        with open(path, "a+b", buffering=0, opener=opener) as stream:
            platform_calls.lock(stream.fileno())
            try:
                current = os.stat(path).st_ino == os.fstat(stream.fileno()).st_ino
            except FileNotFoundError:
                current = False
            if current:
                yield stream
                return


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, or of a folder's files with their relative names."""
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    for file in files:
        if path.is_dir():
            digest.update(str(file.relative_to(path)).encode() + b"\0")
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def uuid7() -> str:
    """Return a UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, 12 of a fraction, then random.

    Sorts by time: to a quarter of a microsecond, or as exactly as the machine's clock tells it.
    """
    milliseconds, rest_ns = divmod(time.time_ns(), 1_000_000)
    value = (milliseconds & ((1 << 48) - 1)) << 80 | secrets.randbits(64)
    value |= (rest_ns * 4096 // 1_000_000) << 64
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


def existing_folder(path: Path, what: str) -> Path:
    """Return `path` if it is a folder, or raise UnusableInputError."""
    if not path.exists():
        to_do = "Check the path."
        is_name = path.parts[:-1] == (str(path.parent),) and not path.parent.exists()
        if what in ("Dataset", "Folder") and is_name:
            to_do += f" From a Hub: hf download {path} --repo-type=dataset --local-dir={path.name}"
        raise UnusableInputError(f"{what} {path} not found. {to_do}")
    if not path.is_dir():
        raise UnusableInputError(f"{what} {path} is a file, not a folder. Name the folder.")
    return path


def writable_folder(path: Path, what: str = "Output folder", option: str = "--output_dir") -> Path:
    """Create `path` if needed and return it once it is shown to be writable.

    Raises:
        UnusableInputError: it can't be; the message says `what` it is for and the `option` that
            names another.
    """
    try:
        make_folder(path)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise UnusableInputError(
            f"{what} {path} can't be written ({reason}). Name another with {option}."
        ) from None
    return path
