"""The browser that tests and benchmarks drive is ended, whatever it does."""

from __future__ import annotations

import pytest

from benchmarks.chromium import browser, open_tab

PROGRAM = browser()


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed")
def test_a_page_that_spins_is_ended() -> None:
    """One had a processor to itself for eight minutes, until somebody looked."""
    assert PROGRAM is not None
    with (
        open_tab(PROGRAM, cpu_s=3) as tab,
        pytest.raises(RuntimeError, match="the page has ended"),
    ):
        tab.js("for (;;);")
