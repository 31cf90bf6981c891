"""What `check` says and `--fix` does: findings with codes that scripts may rely on, and actions."""

import contextlib
import shlex
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import av
import pyarrow as pa

from gaploop.core import errors
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_json
from gaploop.datasets import layout
from gaploop.datasets.layout import numbers

ERROR: Final = "error"
"""Training on it fails or teaches something wrong."""
WARNING: Final = "warning"
"""It loads and trains; something is missing or odd."""
NOTE: Final = "info"
"""Nothing is wrong; something could be added."""
DAMAGE: Final = (
    UnusableInputError,
    *errors.DAMAGE,
    pa.ArrowException,
    av.FFmpegError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a damaged file may raise in pyarrow, PyAV, json, zipfile or our own conversions."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        code: stable name, such as `missing_video`.
        severity: `error`, `warning` or `info`.
        where: file, column or episodes.
        message: what is wrong, with values.
        fix: the command that fixes it, or what to do where no command can.
    """

    code: str
    severity: str
    where: str
    message: str
    fix: str

    def to_json(self) -> dict[str, str]:
        """As `--json` prints it; the key of the fix is `mend`."""
        answer = asdict(self)
        answer["mend"] = answer.pop("fix")
        return answer


@dataclass
class Findings:
    """Collects findings while a folder of so many episodes is checked; 0 where nothing says."""

    root: Path = Path()
    episodes: int = 0
    items: list[Finding] = field(default_factory=list)
    _about: dict[tuple[str, ...], list[int]] = field(default_factory=dict)

    def error(self, code: str, where: object, message: str, fix: str = "") -> None:
        """Add an error; `gaploop check --fix` fixes it unless `fix` says otherwise."""
        self.items.append(Finding(code, ERROR, str(where), message, fix or self.command()))

    def warn(self, code: str, where: object, message: str, fix: str = "") -> None:
        """Add a warning; `gaploop check --fix` fixes it unless `fix` says otherwise."""
        self.items.append(Finding(code, WARNING, str(where), message, fix or self.command()))

    def about(
        self,
        episodes: Sequence[int],
        code: str,
        where: object,
        message: str,
        fix: str = "",
        severity: str = ERROR,
    ) -> None:
        """Add what is wrong with some episodes, if any; the same of others is said once."""
        if not episodes:
            return
        said = (code, severity, str(where), message, fix or self.command())
        known = self._about.setdefault(said, [])
        before, now = (f"Episodes {numbers(e)}: {message}" for e in (known, [*known, *episodes]))
        found = Finding(code, severity, str(where), now, said[-1])
        if known:
            self.items[self.items.index(replace(found, message=before))] = found
        else:
            self.items.append(found)
        known += episodes

    def command(self, options: str = "") -> str:
        """Return the command that fixes the folder."""
        return f"gaploop check {shlex.quote(str(self.root))} --fix {options}".rstrip()

    def delete(self, episodes: Sequence[int]) -> str:
        """Return the command that writes the dataset anew without some episodes, if any stay."""
        if len(episodes) >= self.episodes > 0:
            return "That is in every episode: find out why, and record them again."
        out = shlex.quote(f"{self.root}_clean")
        listed = ", ".join(str(e) for e in episodes)
        where = shlex.quote(str(self.root))
        return f"gaploop edit delete {where} --episodes='[{listed}]' --output_dir={out}"

    @contextlib.contextmanager
    def guard(self, where: object) -> Iterator[None]:
        """Turn what a damaged file makes a rule raise into a finding; the other rules go on."""
        try:
            yield
        except DAMAGE as error:
            self.error("unreadable", where, f"It can't be read: {reason(error)}")


def reason(error: BaseException) -> str:
    """Return what an error says, in one short line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


@dataclass(frozen=True)
class FixAction:
    """One thing that `--fix` does: a stable name, such as `renamed`, and what, in words."""

    code: str
    what: str


@dataclass
class FixDraft:
    """A dataset being fixed, in a folder of its own whose files are links or copies.

    Files are only ever replaced there, never written in place. `info` is what `meta/info.json`
    holds, `actions` what has been done so far, `lost` what that leaves out.
    """

    root: Path
    info: dict[str, Any] = field(default_factory=dict)
    actions: list[FixAction] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def did(self, code: str, what: str) -> None:
        """Note what was done."""
        self.actions.append(FixAction(code, what))

    def left_out(self, code: str, what: str) -> None:
        """Note what was done, and that something was given up by it."""
        self.did(code, what)
        self.lost.append(what)

    def save(self) -> None:
        """Write the description."""
        path = self.root / layout.INFO
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, self.info)
