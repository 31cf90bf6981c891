"""The SO-101's model: the MuJoCo Menagerie one that so101-nexus ships (Apache-2.0).

Only its collision geometry is drawn: on a CPU the visual meshes cost over ten times the time.
"""

from __future__ import annotations

from typing import Final

from gaploop.sim import headless  # noqa: F401  (sets the renderer up before mujoco is imported)

# isort: split
import mujoco
import numpy as np

from gaploop.sim import look

JOINT_NAMES: Final = (
    "shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper",
)  # fmt: skip

PAN_AXIS_X_M: Final = 0.0388353
"""Where its first joint's axis meets the table; other arms of the cell turn there, too."""


def load() -> mujoco.MjSpec:
    """Return the arm alone."""
    import so101_nexus

    spec = mujoco.MjSpec.from_file(str(so101_nexus.get_so101_mujoco_model_path()))
    _draw_by_collision_geometry(spec)
    return spec


def _draw_by_collision_geometry(spec: mujoco.MjSpec) -> None:
    visual = [g for g in spec.geoms if g.classname.name == "visual"]
    for geom in visual:
        spec.delete(geom)
    used = {g.meshname for g in spec.geoms if g.meshname}
    for mesh in list(spec.meshes):
        if (mesh.name or mesh.file.rsplit(".", 1)[0]) not in used:
            spec.delete(mesh)
    for geom in spec.geoms:
        gripper = geom.classname.name.startswith("collision_gripper")
        geom.group = 0
        geom.rgba = np.array(look.JAW_RGBA if gripper else look.ARM_RGBA)
    base = spec.body("base")
    for pos, size, rgba in (
        ((0.012, 0.0, 0.018), (0.048, 0.038, 0.018), look.ARM_RGBA),
        ((0.026, 0.0, 0.044), (0.026, 0.016, 0.014), look.SERVO_RGBA),
    ):
        base.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX, pos=pos, size=size, rgba=rgba,
            contype=0, conaffinity=0, mass=0.0,
        )  # fmt: skip
