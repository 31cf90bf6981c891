"""Watches an attempt from simulator state, so that it can be said what really happened.

    oracle = Oracle(rig.cell)
    run_take(replace(rig, truth=oracle.truth), leader, sinks=(oracle,), …)

`Oracle` is a sink of the control loop; `oracle.truth` is the cell's truth with what happened under
the key `happened`, ready for `truth.jsonl`. What the words mean is defined in
`oracle_verdict`. Diagnosis never imports either; a test holds that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import mujoco
import numpy as np
from numpy.typing import NDArray

from benchmarks.oracle_facts import Record
from benchmarks.oracle_verdict import Happened, verdict
from gaploop.core.messages import FloatArray, SafetyReason, Tick
from gaploop.sim.cell import SimCell
from gaploop.sim.kinematics import TCP_SITE
from gaploop.sim.predicates import HELD_N

ARM_ROOT: Final = "base"


@dataclass
class _Rows:
    """What is noted every turn of the loop."""

    t_s: list[float] = field(default_factory=list)
    sent_rad: list[FloatArray] = field(default_factory=list)
    set_rad: list[FloatArray] = field(default_factory=list)
    true_rad: list[FloatArray] = field(default_factory=list)
    tool_m: list[FloatArray] = field(default_factory=list)
    object_m: list[FloatArray] = field(default_factory=list)
    pinched: list[bool] = field(default_factory=list)
    contact_n: list[float] = field(default_factory=list)
    contact_with: list[str] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)


class Oracle:
    """A sink that notes, turn by turn, what the arm, the object and all contacts really do.

    Args:
        cell: the cell that is driven; only looked at.
    """

    def __init__(self, cell: SimCell) -> None:
        self._cell = cell
        model = cell.model
        root = model.body(ARM_ROOT).id
        self._is_arm = np.asarray(model.body_rootid) == root
        self._object = model.body("object").id
        self._jaws = tuple(model.body(name).id for name in cell.arm.finger_bodies)
        self._names = [model.body(k).name for k in range(model.nbody)]
        # What a carried object may lie on or be put on.
        self._ground = {model.body(name).id for name in ("table", "target")} | {0}
        self._qpos = [int(model.joint(name).qposadr[0]) for name in cell.joint_names]
        self._servos = [model.actuator(name).id for name in cell.joint_names]
        self._site = model.site(TCP_SITE).id
        self._force = np.zeros(6)
        self._rows = _Rows()

    def tick(self, tick: Tick) -> None:
        """Take note of one turn; the first one starts a new attempt."""
        if tick.index == 0:
            self._rows = _Rows()
        rows, data = self._rows, self._cell.data
        rows.t_s.append(tick.t_s)
        rows.sent_rad.append(tick.command.sent_rad)
        rows.set_rad.append(data.ctrl[self._servos].copy())
        rows.true_rad.append(data.qpos[self._qpos].copy())
        rows.tool_m.append(data.site_xpos[self._site].copy())
        rows.object_m.append(data.xpos[self._object].copy())
        pinched, force_n, name = self._contacts(data)
        rows.pinched.append(pinched)
        rows.contact_n.append(force_n)
        rows.contact_with.append(name)
        reasons = tick.command.reasons
        rows.stops.append(int(reasons) if reasons & SafetyReason.TRIPPED else 0)

    def happened(self) -> Happened:
        """Say what happened from the first turn until now, which is taken for the end."""
        return verdict(self.record())

    def record(self) -> Record:
        """Return everything that was noted since the attempt began."""
        rows, truth = self._rows, self._cell.truth()
        n, joints = len(rows.t_s), len(self._servos)
        tripped = bool(rows.stops and rows.stops[-1])
        return Record(
            task=self._cell.task,
            t_s=np.array(rows.t_s),
            sent_rad=np.array(rows.sent_rad).reshape(n, joints),
            set_rad=np.array(rows.set_rad).reshape(n, joints),
            true_rad=np.array(rows.true_rad).reshape(n, joints),
            tool_m=np.array(rows.tool_m).reshape(n, 3),
            object_m=np.array(rows.object_m).reshape(n, 3),
            pinched=np.array(rows.pinched, dtype=np.bool_),
            contact_n=np.array(rows.contact_n),
            contact_with=tuple(rows.contact_with),
            stops=np.array(rows.stops, dtype=np.int64),
            goal_m=np.asarray(truth["goal_xy_m"]),
            succeeded=bool(truth["success"]) and not tripped,
        )

    def truth(self) -> dict[str, object]:
        """Return the cell's truth and what happened, for `truth.jsonl` only."""
        return {**self._cell.truth(), "happened": self.happened().to_json()}

    def _contacts(self, data: mujoco.MjData) -> tuple[bool, float, str]:
        """Return whether both jaws press on the object, and what else presses on the arm [N].

        The arm's own links and the object between closed jaws aren't "else". What presses on a
        carried object presses on the arm.
        """
        count = data.ncon
        if not count:
            return False, 0.0, ""
        bodies = self._cell.model.geom_bodyid[data.contact.geom[:count]]
        jaws, others = set[int](), dict[int, float]()
        on_jaws = dict[int, float]()
        for row in self._rows_of_interest(bodies):
            one, other = int(bodies[row, 0]), int(bodies[row, 1])
            if self._is_arm[other]:
                one, other = other, one
            mujoco.mj_contactForce(self._cell.model, data, row, self._force)
            force_n = abs(float(self._force[0]))
            if other == self._object and one in self._jaws:
                on_jaws[one] = on_jaws.get(one, 0.0) + force_n
                if force_n > HELD_N:
                    jaws.add(one)
            else:
                thing = one if other == self._object and not self._is_arm[one] else other
                others[thing] = others.get(thing, 0.0) + force_n
        pinched = len(jaws) == len(self._jaws)
        if on_jaws and not pinched:  # a jaw that stands on the object, not one that grips it
            others[self._object] = others.get(self._object, 0.0) + sum(on_jaws.values())
        if not others:
            return pinched, 0.0, ""
        worst = max(others, key=lambda body: others[body])
        return pinched, others[worst], self._names[worst]

    def _rows_of_interest(self, bodies: NDArray[np.int32]) -> list[int]:
        """Return the contacts of the arm with anything else, and of the object with things."""
        arm = self._is_arm[bodies]
        touching = arm[:, 0] != arm[:, 1]
        foreign = (bodies == self._object).any(axis=1) & ~arm.any(axis=1)
        rows = np.flatnonzero(touching | foreign).tolist()
        return [r for r in rows if touching[r] or not self._ground & set(bodies[r].tolist())]
