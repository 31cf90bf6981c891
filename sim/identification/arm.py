"""The simulated arm alone, driven open loop by the goals that a station's arm was given.

Arm and servos are the cell's, and what changes them acts through the cell's own appliers; table,
object and contacts are left out. Many settings are simulated at a time by `mujoco.rollout`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Final

import mujoco
import numpy as np
from mujoco import rollout

from gaploop.core.arm import CellArm
from gaploop.core.messages import FloatArray
from gaploop.sim import scene
from gaploop.sim.gaps import put_into
from gaploop.sim.gaps.mechanism import Appliers, CommandPath, ModelApplier, Values
from gaploop.sim.identification.logs import DriveLog
from gaploop.sim.scene import TIMESTEP_S

BATCH_STEPS: Final = 400_000
"""So many steps are simulated at a time: 60 MB of states."""
MOST_THREADS: Final = 8

type Setting = Mapping[str, Values]
"""Mechanism to values of its parameters, as `SimCell(parameters=…)` takes them."""


class OpenLoopArm:
    """Simulates settings of an arm's drives on logs; each begins at rest at its first reading."""

    def __init__(self, arm: CellArm, logs: Sequence[DriveLog]) -> None:
        self.arm, self.logs = arm, tuple(logs)
        self._options = scene.SceneOptions(arm=arm)
        alone = ModelApplier(self._options, 0)

        @alone.edit
        def strip(spec: mujoco.MjSpec) -> None:
            for name in ("object", "target", "table"):
                spec.delete(spec.body(name))
            spec.option.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)

        self._nominal = alone.compile()
        # The cell, too, keeps goals within the joints' limits before anything else happens to them.
        self._limits_rad = np.array([self._nominal.joint(n).range for n in arm.joint_names]).T
        threads = min(os.cpu_count() or 1, MOST_THREADS)
        self._datas = [mujoco.MjData(self._nominal) for _ in range(threads)]

    def readings(self, settings: Sequence[Setting]) -> list[list[FloatArray]]:
        """Return what each setting's encoders would read [rad], log by log, shape (n, n_joints)."""
        longest = sum(log.steps for log in self.logs)
        at_once = max(1, BATCH_STEPS // max(longest, 1))
        found: list[list[FloatArray]] = []
        for begin in range(0, len(settings), at_once):
            found += self._batch(settings[begin : begin + at_once])
        return found

    def _batch(self, settings: Sequence[Setting]) -> list[list[FloatArray]]:
        models, commands, zeros = [], [], []
        for setting in settings:
            on = Appliers.of(self._options)
            put_into(on, (), setting)
            model = copy.copy(self._nominal)  # drives change a compiled model; compiling is slower
            on.model.put_on(model)
            models.append(model)
            commands.append(on.commands)
            zeros.append(on.sensors.zero_rad)
        zero, first = np.stack(zeros), models[0]
        servos = [first.actuator(name).id for name in self.arm.joint_names]
        qpos = [int(first.joint(name).qposadr[0]) for name in self.arm.joint_names]
        kind = mujoco.mjtState.mjSTATE_FULLPHYSICS  # the time, then positions
        read = 1 + np.array(qpos)
        found: list[list[FloatArray]] = [[] for _ in settings]
        for log, points in zip(self.logs, self._set_points(commands), strict=True):
            control = np.ones((len(models), log.steps, first.nu))
            control[..., servos] = points - zero[:, None]
            starts = []
            for model, offset in zip(models, zero, strict=True):
                data = mujoco.MjData(model)
                data.qpos[qpos] = log.q_rad[0] - offset
                scene.settle_gears(model, data)
                starts.append(np.zeros(mujoco.mj_stateSize(model, kind)))
                mujoco.mj_getState(model, data, starts[-1], kind)
            after, _ = rollout.rollout(
                models, self._datas, np.stack(starts), control, persistent_pool=True
            )
            # A row a physics step; readings lie between them.
            place = log.t_s / TIMESTEP_S
            row = np.minimum(place.astype(int), log.steps - 1)
            share = np.clip(place - row, 0.0, 1.0)[:, None]
            for k, offset in enumerate(zero):
                path = np.concatenate([starts[k][None, read], after[k][:, read]]) + offset
                found[k].append(np.asarray(path[row] + share * (path[row + 1] - path[row])))
        return found

    def _set_points(self, paths: Sequence[CommandPath]) -> list[FloatArray]:
        """Return each log's set points [rad], shape (n_paths, steps, n_joints).

        One command path does it for all logs and settings at once.
        """
        goals = [
            np.clip([log.goals(path.latency_s) for path in paths], *self._limits_rad)
            for log in self.logs
        ]
        shape = (len(self.logs), len(paths), goals[0].shape[2])
        joined = CommandPath()
        joined.play_rad = np.stack([np.broadcast_to(p.play_rad, shape[2:]) for p in paths])
        joined.speed_limit_rad_s = np.stack(
            [np.broadcast_to(p.speed_limit_rad_s, shape[2:]) for p in paths]
        )
        begins = np.stack([log.q_rad[0] for log in self.logs])
        joined.reset(np.broadcast_to(begins[:, None], shape), [0])
        if not joined.active:
            return goals
        longest = max(log.steps for log in self.logs)
        padded = np.stack([np.pad(g, ((0, 0), (0, longest - g.shape[1]), (0, 0))) for g in goals])
        for step in range(longest):
            t_s = step * TIMESTEP_S
            joined.push(t_s, padded[:, :, step])
            padded[:, :, step] = joined.set_point(t_s)
        return [p[:, : log.steps] for p, log in zip(padded, self.logs, strict=True)]
