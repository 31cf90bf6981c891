"""What a policy makes of a take."""

from __future__ import annotations

import math

from failure_analysis_makers import take

from gaploop.failure_analysis.signals.registry import measure
from gaploop.failure_analysis.views.view import TakeView


def test_without_the_policy_its_signals_are_unknown_and_that_is_said() -> None:
    measured = measure(TakeView(take()))
    assert math.isnan(measured["view_unfamiliar"])
    assert "queried" in measured.unseen["policy"]
