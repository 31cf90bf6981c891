"""What `gaploop check` shows to people."""

from __future__ import annotations

import pytest

from gaploop.datasets.check.findings import Finding
from gaploop.scripts import _check as check


def test_findings_that_are_alike_are_one_row_with_a_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Incident: 43 equal warnings filled four screens and hid the one error among them."""
    same = [Finding("late", "warning", f"episode {n}", "late", "fix it") for n in range(43)]
    check._show([*same, Finding("gone", "error", "episode 7", "lost", "repair")], "data")
    text = " ".join(capsys.readouterr().out.split())
    assert text.count("warning") == 1
    assert text.count("error") == 1
    assert "43 times" in text
    assert "40 more" in text
    for place in ("episode 0", "episode 2", "episode 7"):
        assert place in text
