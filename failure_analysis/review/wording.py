"""What the page says about takes, filters, progress and saving, in words."""

from __future__ import annotations

import math

from gaploop.failure_analysis.review.choice import Listed, Options, Who
from gaploop.failure_analysis.review.keys import words
from gaploop.failure_analysis.review.label_session import Progress
from gaploop.failure_analysis.review.saver import Saver


def row(take: Listed) -> dict[str, str]:
    """Return what a take's row in the list shows."""
    outcome = take.episode.outcome
    shown = take.mode or outcome.value
    mark, state, says = _mark(take.differ, take.done, take.needs)
    return {
        "uid": take.uid,
        "number": f"#{take.episode.index}",
        "mark": mark,
        "state": f"{state} {outcome.value} {'' if take.episode.failure_mode else 'guess'}",
        "what": words(shown),
        "why": words(take.why),
        "says": says,
    }


def _mark(differ: bool, done: bool, needs: bool) -> tuple[str, str, str]:
    """Return a row's sign, its class and what it means."""
    if differ:
        return "≠", "differ", "people disagree"
    if done:
        return "✓", "done", "labelled by you"
    return ("●", "needs", "needs you") if needs else ("", "", "")


def filter_choices(offered: Options) -> list[tuple[str, str, dict[str, str]]]:
    """Return each filter's field, label and values with the words for them."""

    def plain(values: tuple[str, ...]) -> dict[str, str]:
        return {value: words(value) for value in values}

    def same(values: tuple[str, ...]) -> dict[str, str]:
        return {value: value for value in values}

    return [
        ("who", "show", {who.value: who.value for who in Who}),
        ("outcome", "outcome", plain(offered.outcomes)),
        ("mode", "mode", plain(offered.modes)),
        ("dimension", "dimension", plain(offered.dimensions)),
        ("condition", "condition", same(offered.conditions)),
        ("session", "session", same(offered.sessions)),
        ("policy", "policy", same(offered.policies)),
    ]


def progress_text(now: Progress, listed: int) -> str:
    """Return how far one is with the takes that are listed."""
    parts = [f"{now.done} of {now.total} labelled", f"{listed} listed"]
    if now.rate_per_min:
        parts.append(f"{now.rate_per_min:.1f} a minute")
        if now.left_s is not None and now.done < now.total:
            parts.append(f"{max(1, math.ceil(now.left_s / 60))} min left")
    return " · ".join(parts)


def saving_text(saver: Saver, trouble: str) -> tuple[str, bool]:
    """Return whether everything is on disk, in words, and whether something is wrong.

    Args:
        saver: who writes labels.
        trouble: what else is wrong, or "".
    """
    wrong = saver.trouble or trouble
    if wrong:
        kept = f" {saver.waiting} not saved yet, kept here." if saver.waiting else ""
        return f"{wrong}{kept}", True
    if saver.waiting:
        return "saving …", False
    return (f"saved {saver.saved}" if saver.saved else ""), False
