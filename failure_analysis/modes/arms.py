"""Every arm of a take by itself, with the loads of its motors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gaploop.core.types import FloatArray
from gaploop.failure_analysis.views.view import ArmMotion, TakeView


def arms(view: TakeView) -> tuple[ArmMotion, ...]:
    """Return the commands and readings of each arm, the one that other signals look at first.

    Two arms are told apart by what their joints' names begin with (`left_elbow_flex`).
    """
    main = view.motion
    if main is None:
        return ()
    sides = {name: name.split("_")[0] for name in main.joints}
    if not set(sides.values()) <= {"left", "right"}:
        return (main,)
    columns = {
        side: [i for i, name in enumerate(main.joints) if sides[name] == side]
        for side in sorted(set(sides.values()))
    }
    return tuple(_part(main, own) for own in columns.values())


def load_share(view: TakeView, motion: ArmMotion) -> FloatArray | None:
    """Return the signed loads of an arm's motors, 1 at stall, or None where they aren't known.

    Shape (n, n_joints), in the order of `motion.joints`.
    """
    record = view.take.telemetry
    if len(record) != len(motion.t_s):
        return None
    for arm in record.arms():
        names, loads = record.joints(arm), record.stack(arm, "load_pct")
        if set(motion.joints) <= set(names) and np.isfinite(loads).any():
            own = [names.index(name) for name in motion.joints]
            return np.nan_to_num(loads[:, own]) / 100.0
    return None


def _part(motion: ArmMotion, columns: list[int]) -> ArmMotion:
    names = tuple(motion.joints[i] for i in columns)
    return replace(
        motion,
        sent_rad=motion.sent_rad[:, columns],
        position_rad=motion.position_rad[:, columns],
        current_a=motion.current_a[:, columns],
        joints=names,
    )
