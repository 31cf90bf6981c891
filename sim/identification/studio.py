"""Draws the nominal cell, with parameters put in, as its camera sees an arm that stands still."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import mujoco
import numpy as np

from gaploop.core.arm import CellArm
from gaploop.core.types import FloatArray, Image
from gaploop.sim import scene
from gaploop.sim.camera import LayeredCamera
from gaploop.sim.gaps import put_into
from gaploop.sim.gaps.mechanism import Appliers, Values
from gaploop.sim.placement import set_free_body

type Point = tuple[float, float] | FloatArray
AWAY_M: Final = (9.0, 9.0)
"""Where what isn't to be seen is put [m]."""
_KEPT: Final = ("cam_pos", "cam_quat", "body_pos", "geom_size")


class Studio:
    """One compiled nominal cell; parameters are put into it for each square picture."""

    def __init__(self, arm: CellArm, size_px: int) -> None:
        self._arm, self._size_px = arm, size_px
        self._model = scene.build_model(scene.SceneOptions(arm=arm))
        self._data = mujoco.MjData(self._model)
        self._nominal = {name: getattr(self._model, name).copy() for name in _KEPT}
        self._qpos = [int(self._model.joint(name).qposadr[0]) for name in arm.joint_names]
        self._camera = LayeredCamera(self._model, scene.CAMERA_NAME, size_px, size_px)

    def draw(
        self,
        q_rad: FloatArray,
        parameters: Mapping[str, Values],
        target_m: Point = AWAY_M,
        object_m: Point = AWAY_M,
        object_yaw_rad: float = 0.0,
    ) -> Image:
        """Return what the lens is shown, RGB, shape (size, size, 3).

        Args:
            q_rad: where the joints read [rad], shape (n_joints,).
            parameters: "dimension.mechanism" to values, as of `SimCell`; what they do to pictures
                is for `develop`.
            target_m: where the disc lies [m].
            object_m: where the object lies [m].
            object_yaw_rad: how it is turned.
        """
        model, data = self._model, self._data
        for name, values in self._nominal.items():
            getattr(model, name)[:] = values
        on = self._put(parameters)
        on.model.put_on(model)
        half_m = on.model.options.thing.half_size_m
        model.geom("object").size[:] = half_m
        table_z_m = float(model.body("table").pos[2])
        model.body("target").pos[:] = [*target_m, table_z_m + scene.DISC_HALF_HEIGHT_M]
        mujoco.mj_resetData(model, data)
        data.qpos[self._qpos] = q_rad - on.sensors.offset(0.0, q_rad)
        scene.settle_gears(model, data)
        place_m = np.array([*object_m, table_z_m + half_m[2]])
        set_free_body(model, data, "object", place_m, object_yaw_rad)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        return self._camera.draw_whole(data)

    def develop(self, picture: Image, parameters: Mapping[str, Values], seed: int = 0) -> Image:
        """Return a picture through lens, exposure and readout; `seed` draws its noise."""
        return self._put(parameters).images.picture(picture, np.random.default_rng(seed), 0.0)

    def _put(self, parameters: Mapping[str, Values]) -> Appliers:
        on = Appliers.of(scene.SceneOptions(arm=self._arm), self._size_px)
        put_into(on, (), parameters)
        return on

    def close(self) -> None:
        """Free the renderer."""
        self._camera.close()
