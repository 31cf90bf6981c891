"""Clocks go forwards, and wait for absolute deadlines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gaploop.core.clock import ManualClock, MonotonicClock


@given(st.lists(st.floats(-10, 10)))
def test_manual_clock_never_goes_back(deadlines: list[float]) -> None:
    clock = ManualClock()
    for deadline in deadlines:
        before = clock.now_s()
        clock.sleep_until(deadline)
        assert clock.now_s() == max(before, deadline)


def test_monotonic_clock_waits_for_the_deadline_and_not_for_one_that_has_passed() -> None:
    clock = MonotonicClock()
    deadline = clock.now_s() + 0.02
    clock.sleep_until(deadline)
    assert clock.now_s() >= deadline
    clock.sleep_until(deadline - 100)
    assert clock.now_s() < deadline + 10
