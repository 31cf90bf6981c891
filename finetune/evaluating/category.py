"""What went wrong in a rollout that failed: the failure mode that diagnosis sees, and its phase."""

from __future__ import annotations

from gaploop.core.take import Take


def category(take: Take) -> tuple[str, str]:
    """Return a failed take's failure mode and phase; "" for what can't be told.

    Labels come first. Without one the rules of `gaploop diagnose` look at motion, effort and the
    tracked scene; pictures, which only they can decode slowly, aren't looked at.
    """
    if take.failure_mode:
        return take.failure_mode, take.phase
    # Here: most rollouts of a good policy need none of it.
    from gaploop.failure_analysis.modes.rules import failure_mode
    from gaploop.failure_analysis.reference import choose_reference
    from gaploop.failure_analysis.signals.registry import measure
    from gaploop.failure_analysis.views.view import TakeView

    view = TakeView(take, images=False)
    call = failure_mode(view, measure(view), choose_reference([take]))
    return (call.mode or "", call.phase or "")
