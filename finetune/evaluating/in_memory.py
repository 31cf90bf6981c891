"""A rollout's numbers in memory, so that what went wrong in it can be told without recording it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gaploop.collect.journal import FrameRow
from gaploop.collect.recorder import channels
from gaploop.collect.rig import Rig
from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.types import FloatArray
from gaploop.core.vocabulary import Outcome, TakeKind


class MemoryTake:
    """What a `Recorder` writes to, in place of a journal: all numbers, no pictures.

    Args:
        rig: where the take is run.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._units = channels(rig.follower, rig.sensors)
        self._t_ns: list[int] = []
        self._rows: list[FloatArray] = []
        self._frames: list[FrameRow] = []

    def event(self, t_s: float, name: str, **details: Any) -> None:
        """Pass over: events are in the rows, too."""

    def telemetry(self, t_ns: int, values: FloatArray) -> None:
        """Keep a row of telemetry."""
        self._t_ns.append(t_ns)
        self._rows.append(values.copy())

    def frame(self, row: FrameRow) -> None:
        """Keep a policy frame but its pictures."""
        self._frames.append(replace(row, pictures={}))

    def take(self, outcome: Outcome) -> Take:
        """Return the take as `read_take` would return it from a journal, without pictures."""
        rig = self._rig
        info = TakeInfo(
            uid="",
            fps=rig.fps,
            kind=TakeKind.ROLLOUT,
            domain=rig.domain,
            joint_names=rig.follower.joint_names,
            robot_type=rig.follower.robot_type,
            units=rig.follower.units,
        )
        t_ns = np.array(self._t_ns, dtype=np.int64)
        values = np.array(self._rows).reshape(len(t_ns), len(self._units))
        columns = dict(zip(self._units, values.T, strict=True))
        telemetry = Telemetry((t_ns - t_ns[:1].sum()) * 1e-9, columns, self._units)
        return Take(info, outcome, self._frames_record(), telemetry)

    def _frames_record(self) -> Frames:
        rows = self._frames
        if not rows:
            return Frames.empty(len(self._rig.follower.joint_names))
        return Frames(
            t_s=np.array([r.t_s for r in rows]),
            state=np.array([r.state for r in rows]),
            action=np.array([r.action for r in rows]),
            sent=np.array([r.sent for r in rows]),
            environment_state=np.array([r.environment_state for r in rows]),
            intervention=np.array([r.intervention for r in rows]),
            safety=np.array([r.safety for r in rows], dtype=np.int64),
            camera_age_s={
                c: np.array([r.camera_age_s[c] for r in rows]) for c in rows[0].camera_age_s
            },
        )
