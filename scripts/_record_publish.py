"""Publishing beside a running control loop: in a process of its own, so that no turn is late."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gaploop.core.files import read_json

if TYPE_CHECKING:
    from gaploop.datasets.lerobot_publish import PublishReport

log = logging.getLogger(__name__)

NICE = 15
"""The control loop and the encoder come first."""


class Publisher:
    """Publishes a journal, at most once at a time.

    Args:
        journal: the takes.
        root: the dataset.
        repo_id: LeRobot's name of it.
        consents: the consent register; the default one where None.
        before: called before every publication, such as to write labels that wait.
    """

    def __init__(
        self,
        journal: Path,
        root: Path,
        repo_id: str,
        consents: Path | None,
        before: Callable[[], None],
    ) -> None:
        self._journal, self._root, self._repo_id = journal, root, repo_id
        self._consents, self._before = consents, before
        self._child: subprocess.Popen[bytes] | None = None
        self.reports: list[PublishReport] = []

    def behind(self) -> None:
        """Begin to publish what is sealed, in another process; one that still does goes on."""
        self._before()
        if not self._any() or (self._child is not None and self._child.poll() is None):
            return
        self._reap()
        command = [sys.executable, "-m", "gaploop.scripts.cli", "publish", "--json"]
        command += [f"--journal={self._journal}", f"--dataset.root={self._root}"]
        command += [f"--dataset.repo_id={self._repo_id}"]
        command += [f"--consents={self._consents}"] if self._consents is not None else []
        said = self._said.open("wb")
        with said:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the session; publishing ends in order
            )
        os.setpriority(os.PRIO_PROCESS, self._child.pid, NICE)

    def now(self) -> None:
        """Publish what is sealed, here; waits for a process that does already.

        Raises:
            UnusableInputError: the dataset can't take it.
        """
        from gaploop.datasets.lerobot_publish import publish_takes

        self._before()
        self._reap()
        if self._any():
            self.reports.append(
                publish_takes(self._journal, self._root, self._repo_id, consents=self._consents)
            )

    @property
    def _said(self) -> Path:
        return self._journal / "publish.json"

    def _any(self) -> bool:
        from gaploop.core.journal_format import END

        return next(self._journal.glob(f"*/{END}"), None) is not None

    def _reap(self) -> None:
        """Wait for the process, if there is one, and take in what it says."""
        if self._child is None:
            return
        code, self._child = self._child.wait(), None
        if code not in (0, 1):  # the publication at the end says what is wrong
            log.info("publishing behind the takes failed (exit code %d)", code)
            return
        from gaploop.datasets.lerobot_publish import PublishReport

        said = read_json(self._said)
        self.reports.append(
            PublishReport(
                tuple(said["published"]),
                said["present"],
                said["skipped"],
                said["refused"],
                said["labels"],
                said["withheld"],
            )
        )
        self._said.unlink(missing_ok=True)
