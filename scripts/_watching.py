"""Rollouts watched while they run: an alarm in the take's events, in the log and in the summary."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import UnusableInputError

if TYPE_CHECKING:
    from gaploop.collect.journal import JournalWriter
    from gaploop.collect.rig import Rig
    from gaploop.core.protocols import Policy, TakeSink
    from gaploop.core.types import FloatArray
    from gaploop.failure_analysis.live.score import FailureScore
    from gaploop.failure_analysis.live.watch import Alarm

log = logging.getLogger(__name__)

AUTO: Final = "auto"
NEVER: Final = "never"


class Watching:
    """Watches every attempt of a session.

    Args:
        score: says how unusual an attempt is; None where nothing is watched.
        false_alarms: share of the attempts that go well that may alarm.
        planned: the policy's newest plan, in degrees; None where it doesn't show one.
    """

    def __init__(
        self,
        score: FailureScore | None,
        false_alarms: float,
        planned: Callable[[], FloatArray | None] | None,
    ) -> None:
        self.score, self._false_alarms, self._planned = score, false_alarms, planned
        self.alarms: dict[str, Alarm] = {}
        """Take to its alarm."""

    def __call__(self, rig: Rig, writer: JournalWriter) -> Sequence[TakeSink]:
        """Return what watches an attempt that begins."""
        from gaploop.failure_analysis.live.watch import ALARM, FailureWatch

        uid, score = writer.header.info.uid, self.score
        if score is None:
            return ()

        def alarmed(alarm: Alarm) -> None:
            self.alarms[uid] = alarm
            said = {"score": alarm.score, "p_value": alarm.p_value, "why": alarm.why}
            writer.event(alarm.t_s, ALARM, **said)
            log.warning(
                "This attempt looks like failing since %.1f s: %s (p = %.2g).",
                alarm.t_s, alarm.why, alarm.p_value,
            )  # fmt: skip

        follower = rig.follower
        planned = self._planned if follower.units.startswith("deg") else None
        return (
            FailureWatch(
                score,
                follower.joint_names,
                rig.control_hz,
                rig.fps,
                planned=planned,
                false_alarms=self._false_alarms,
                on_alarm=alarmed,
            ),
        )


def watching(config: Any, policy: Policy, policy_id: str, is_embedded: bool) -> Watching:
    """Return what watches the session's attempts, as `--watch` says.

    Raises:
        UnusableInputError: a false-alarm rate that isn't a share, or too few successful takes.
    """
    if not 0 < config.watch_false_alarms < 1:
        raise UnusableInputError(
            f"--watch_false_alarms must be above 0 and below 1, got {config.watch_false_alarms:g}."
        )
    score = _score(config.watch, policy_id, is_embedded)
    if score is not None and math.isinf(score.threshold(config.watch_false_alarms)):
        raise UnusableInputError(
            f"{score.name}: {len(score.peaks)} takes that went well can't state a false-alarm rate "
            f"of {config.watch_false_alarms:g}: record {math.ceil(1 / config.watch_false_alarms)} "
            "or raise --watch_false_alarms."
        )
    planned = (lambda: policy.chunk) if hasattr(policy, "chunk") else None
    return Watching(score, config.watch_false_alarms, planned)


def _score(watch: str, policy_id: str, is_embedded: bool) -> FailureScore | None:
    from gaploop.failure_analysis.live.watch import score_of, shipped_score

    if watch == NEVER:
        return None
    if watch == AUTO:
        shipped = shipped_score() if is_embedded else None
        return shipped if shipped is not None and shipped.policy == policy_id else None
    from gaploop.datasets.sources import open_takes

    return score_of(open_takes(Path(watch)), watch)
