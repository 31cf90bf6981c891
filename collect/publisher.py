"""Publishing beside a session: in a process of its own, so that neither arm nor operator waits."""

from __future__ import annotations

import contextlib
import importlib
import logging
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from gaploop.core import platform_calls
from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.files import read_json
from gaploop.core.journal_format import END
from gaploop.teleop.stopping import one_line

if TYPE_CHECKING:
    from gaploop.datasets.lerobot_publish import PublishReport

log = logging.getLogger(__name__)

NICE: Final = 15
"""The control loop and the encoder come first."""
STOPPING: Final = (
    "Stopping: the open take is left out, sealed ones are published. Ctrl-C again leaves that for "
    "later."
)
"""Told as soon as a session is interrupted."""
FINISH_S: Final = 600.0
"""A publication that takes longer is ended, and what it left undone is done here [s]."""


class Publisher:
    """Publishes a journal beside a session, one publication at a time, and the rest at its end.

    A publication that fails is said in a line and tried again with the next one; it may be killed
    at any instant, and publishing twice is publishing once. Leaving the `with` block publishes
    what is left.
    """

    def __init__(self, journal: Path, root: Path, repo_id: str) -> None:
        self.before: Callable[[], None] = lambda: None
        """Called before every publication, such as to write labels that wait."""
        self.reports: list[PublishReport] = []
        self._journal, self._root, self._repo_id = journal, root, repo_id
        self._child: subprocess.Popen[bytes] | None = None
        # Now: in the middle of a session the import would hold up the control loop.
        self._module = importlib.import_module("gaploop.datasets.lerobot_publish")

    def behind(self) -> None:
        """Begin to publish what is sealed, in another process; one that still does goes on."""
        self.before()
        if not self._any() or (self._child is not None and self._child.poll() is None):
            return
        self._reap()
        try:
            command = [sys.executable, "-m", "gaploop.scripts.cli", *self._words(), "--json"]
            with self._file("json").open("wb") as said, self._file("log").open("wb") as faults:
                self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=faults,
                    start_new_session=True,  # Ctrl-C is for the session; publishing ends in order
                )
            platform_calls.nice(NICE, self._child.pid)
        except OSError as error:
            log.warning("Publishing can't begin (%s); it is tried again.", one_line(error))
            self._clean()

    def finish(self) -> None:
        """Publish what is left, here; waits for a process that publishes already.

        Raises:
            UnusableInputError: the dataset can't take it; the journal has it still.
        """
        try:
            self.before()
            if not self._any():
                self._reap()
                return
            log.info("Publishing to %s …", self._root)
            self._reap()
            report = self._module.publish_takes(self._journal, self._root, self._repo_id)
        except (GaploopError, OSError) as error:
            raise UnusableInputError(
                f"{one_line(error)} Every sealed take is safe in {self._journal}; once that is "
                f"fixed: {self._command()}"
            ) from error
        except (KeyboardInterrupt, SystemExit):
            self._tell_unpublished()
            raise
        self.reports.append(report)

    def _command(self) -> str:
        """Return what publishes the journal later."""
        return shlex.join(["gaploop", *self._words()])

    def _words(self) -> list[str]:
        words = ["publish", f"--journal={self._journal}", f"--dataset.root={self._root}"]
        return [*words, f"--dataset.repo_id={self._repo_id}"]

    def _tell_unpublished(self) -> None:
        if self._any():
            log.warning(
                "Not everything is published. The takes are in the journal; to publish them:"
            )
            log.warning("%s", self._command())

    def _file(self, kind: str) -> Path:
        return self._journal / f"publish.{kind}"

    def _any(self) -> bool:
        return next(self._journal.glob(f"*/{END}"), None) is not None

    def _reap(self) -> None:
        """Wait for the process, if there is one, and take in what it says."""
        if self._child is None:
            return
        child, self._child = self._child, None
        try:
            code = child.wait(FINISH_S)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
        report = self._report() if code in (0, 1) else None
        if report is not None:
            self.reports.append(report)
        else:
            why = self._last_words() or f"exit code {code}"
            log.warning("Publishing failed (%s); it is tried again.", why)
        self._clean()

    def _report(self) -> PublishReport | None:
        """Return what the process says; None where it broke off, with an exit code of 1, too."""
        try:
            said = read_json(self._file("json"))
            kind = self._module.PublishReport
            report: PublishReport = kind(**{f.name: said[f.name] for f in fields(kind)})
        except (UnusableInputError, OSError, KeyError, TypeError):
            return None
        return report

    def _last_words(self) -> str:
        try:
            return self._file("log").read_text(errors="replace").strip().rpartition("\n")[2]
        except OSError:
            return ""

    def _clean(self) -> None:
        for kind in ("json", "log"):
            with contextlib.suppress(OSError):
                self._file(kind).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, KeyboardInterrupt | SystemExit):  # nobody wants to wait any more
            self._tell_unpublished()
            return
        try:
            self.finish()
        except GaploopError as failed:
            if error is None:
                raise
            log.error("%s", one_line(failed))  # its user is told what ended the session
