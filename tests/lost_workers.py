"""What becomes of the tests of a worker that is gone: another one runs them, once.

A worker was ended without a word when all but two of five thousand tests were over. xdist 3.8 hands
the files that such a one had finished to the others, who wait for their results for ever.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_lost = set[str]()


class Files(LoadFileScheduling):
    """xdist's, which takes from a worker that is gone only what it hadn't finished."""

    def remove_node(self, node: WorkerController) -> str | None:
        work = self.assigned_work[node]
        for file in [file for file, tests in work.items() if all(tests.values())]:
            del work[file]
        return super().remove_node(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Files | None:
    return Files(config, log) if config.option.dist == "loadfile" else None


def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport) -> None:
    """Say what ran; a test that ends its second worker, too, has failed."""
    again = "" if crashitem in _lost else " Another worker runs it again."
    print(f"\n{crashitem}: its worker was ended.{again}", file=sys.stderr)
    if again:
        report.outcome = "rerun"  # type: ignore[assignment]
    _lost.add(crashitem)
