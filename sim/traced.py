"""Pictures by path tracing: what MuJoCo draws of a scene, lit by Mitsuba 3 on a CPU, offline.

Geoms, lamps and camera are those of an `MjvScene`, so that what is shown, and from where, is the
same. Colours are taken for sRGB; a white surface that faces every lamp is as bright as MuJoCo's.
Light from all around has shade in corners, colours bleed, and lamps that aren't far away throw
shadows as soft as their bulbs are large. What is left out: sheen that MuJoCo draws as a mirror,
geoms that glow, textures but flat ones of planes and meshes (their mean colour stands for others).
"""

import logging
import multiprocessing
from functools import cache
from typing import Any, Final

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError

logger = logging.getLogger(__name__)

SAMPLES: Final = 16
"""Paths of each pixel."""
BOUNCES: Final = 4
ROUND: Final = 32
"""Sides of what is round."""
SECONDS: Final = "about 1 s of a core for each 224 px picture"

type Floats = NDArray[np.floating]
type Shape = tuple[Floats, NDArray[np.integer], Floats | None]
"""Corners, shape (n, 3), triangles, shape (m, 3), and places in a texture, shape (n, 2)."""


@cache
def renderer() -> Any:
    """Return Mitsuba, on one core; UnusableInputError where it isn't installed."""
    try:
        import drjit
        import mitsuba
    except ImportError:
        raise UnusableInputError(
            "fidelity traced: Mitsuba isn't installed: pip install mitsuba"
        ) from None
    drjit.set_thread_count(1)
    mitsuba.set_variant("scalar_rgb")
    mitsuba.set_log_level(mitsuba.LogLevel.Error)
    return mitsuba


@cache
def announce() -> None:
    """Refuse what can't be traced before anything begins, and say once what it costs."""
    renderer()
    if multiprocessing.parent_process() is None:
        logger.warning("Pictures are path-traced: %s.", SECONDS)


def trace(
    model: mujoco.MjModel, scene: mujoco.MjvScene, drawn: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Return a picture of a scene as it was last updated, RGB, shape (height, width, 3).

    Args:
        drawn: the same by MuJoCo, of the same shape: what is seen where no geom is.

    Raises:
        UnusableInputError: Mitsuba isn't installed, or a geom that can't be traced.
    """
    mi = renderer()
    lamps, camera = scene.lights[: scene.nlight], scene.camera[0]
    eye = 0.5 * (camera.pos + scene.camera[1].pos)  # between the two of a stereo pair
    seen = (v.tolist() for v in (eye, eye + camera.forward, camera.up))
    fovy_deg = 2.0 * np.degrees(np.arctan(camera.frustum_top / camera.frustum_near))
    said: dict[str, Any] = {
        "type": "scene",
        "integrator": {"type": "path", "max_depth": BOUNCES, "hide_emitters": True},
        "sensor": {
            "type": "perspective", "fov": float(fovy_deg), "fov_axis": "y",
            "to_world": mi.ScalarTransform4f().look_at(*seen),
            "near_clip": float(camera.frustum_near), "far_clip": float(camera.frustum_far),
            "film": {
                "type": "hdrfilm", "width": drawn.shape[1], "height": drawn.shape[0],
                "rfilter": {"type": "box"}, "pixel_format": "rgba",
            },
            "sampler": {"type": "multijitter", "sample_count": SAMPLES},
        },
        **_lamps(lamps, np.asarray(model.stat.center)),
    }  # fmt: skip
    gloss = max(float(light.specular.max()) for light in lamps)
    for k, geom in enumerate(scene.geoms[: scene.ngeom]):
        corners, triangles, places = _shape(model, scene, geom)
        surface = mi.load_dict(_surface(mi, model, geom, places is not None, gloss))
        world = corners
        if geom.type != mujoco.mjtGeom.mjGEOM_FLEX:  # which is in the world's frame
            world = corners @ np.asarray(geom.mat, dtype=float).T + geom.pos
        said[f"geom{k}"] = _mesh(mi, world, triangles, places, surface)
    found = np.array(mi.render(mi.load_dict(said), seed=0), dtype=float)
    share = np.clip(found[..., 3:], 0.0, 1.0)
    light = np.clip(found[..., :3] / np.maximum(share, 1e-3), 0.0, 1.0)
    srgb = np.where(light > 0.0031308, 1.055 * light ** (1.0 / 2.4) - 0.055, 12.92 * light)
    return np.asarray(255.0 * srgb * share + drawn * (1.0 - share) + 0.5, dtype=np.uint8)


def _lamps(lights: Any, middle_m: Floats) -> dict[str, Any]:
    """Return MuJoCo's lamps: what they give a white surface in all is what it is in sRGB."""
    shares = [np.asarray(light.diffuse, dtype=float) for light in lights]
    ambient = np.sum([light.ambient for light in lights], axis=0)
    bright = max(float((ambient + np.sum(shares, axis=0)).mean()), 1e-3)
    factor = _linear(bright) / bright
    found: dict[str, Any] = {"around": {"type": "constant", "radiance": _rgb(factor * ambient)}}
    for k, (light, share) in enumerate(zip(lights, shares, strict=True)):
        if not share.any():
            continue
        irradiance = np.pi * factor * share
        if light.headlight or light.type == mujoco.mjtLightType.mjLIGHT_DIRECTIONAL:
            ways = {"type": "directional", "direction": np.asarray(light.dir, float).tolist()}
            found[f"lamp{k}"] = {**ways, "irradiance": _rgb(irradiance)}
            continue
        away_m, radius_m = np.linalg.norm(light.pos - middle_m), max(float(light.bulbradius), 1e-3)
        radiance = irradiance * away_m**2 / (np.pi * radius_m**2)
        found[f"lamp{k}"] = {
            "type": "sphere", "center": light.pos.tolist(), "radius": radius_m,
            "emitter": {"type": "area", "radiance": _rgb(radiance)},
        }  # fmt: skip
    return found


def _linear(srgb: Any) -> Any:
    """Return light of sRGB values; brighter than white goes on in the same way."""
    srgb = np.asarray(srgb, dtype=float)
    return np.where(srgb > 0.04045, ((srgb + 0.055) / 1.055) ** 2.4, srgb / 12.92)


def _rgb(value: Any) -> dict[str, Any]:
    return {"type": "rgb", "value": np.asarray(value, dtype=float).tolist()}


def _surface(
    mi: Any, model: mujoco.MjModel, geom: Any, is_placed: bool, gloss: float
) -> dict[str, Any]:
    """Return what a geom is made of."""
    colour, texture = np.asarray(geom.rgba[:3], dtype=float), -1
    if geom.matid >= 0:
        texture = int(model.mat_texid[geom.matid, mujoco.mjtTextureRole.mjTEXROLE_RGB.value])
    base = _rgb(np.clip(_linear(colour), 0.0, 0.95))
    if texture >= 0:
        size = model.tex_height, model.tex_width, model.tex_nchannel
        height, width, n = (int(v[texture]) for v in size)
        start = int(model.tex_adr[texture])
        pixels = model.tex_data[start : start + height * width * n].reshape(height, width, n)
        tinted = np.asarray(pixels[..., :3] * colour, dtype=np.uint8)
        if is_placed and model.tex_type[texture] == mujoco.mjtTexture.mjTEXTURE_2D:
            base = {"type": "bitmap", "bitmap": mi.Bitmap(np.ascontiguousarray(tinted))}
        else:
            base = _rgb(_linear(tinted.reshape(-1, 3) / 255.0).mean(axis=0))
    material: dict[str, Any] = {"type": "diffuse", "reflectance": base}
    if sheen := gloss * float(geom.specular):
        material = {
            "type": "principled", "base_color": base, "specular": 0.5 * sheen,
            "roughness": float(np.clip(1.0 - geom.shininess, 0.1, 1.0)),
        }  # fmt: skip
    material = {"type": "twosided", "bsdf": material}
    if geom.rgba[3] < 1.0:
        material = {"type": "mask", "opacity": float(geom.rgba[3]), "bsdf": material}
    return material


def _mesh(mi: Any, corners: Floats, triangles: Any, places: Floats | None, surface: Any) -> Any:
    properties = mi.Properties()
    properties["bsdf"] = surface
    made = mi.Mesh(
        "geom", len(corners), len(triangles), props=properties,
        has_vertex_texcoords=places is not None,
    )  # fmt: skip
    held = mi.traverse(made)
    held["vertex_positions"] = np.ravel(corners).astype(np.float32)
    held["faces"] = np.ravel(triangles).astype(np.uint32)
    if places is not None:
        held["vertex_texcoords"] = np.ravel(places).astype(np.float32)
    held.update()
    return made


def _shape(model: mujoco.MjModel, scene: mujoco.MjvScene, geom: Any) -> Shape:
    """Return a geom's surface in its own frame."""
    kind, size = mujoco.mjtGeom(geom.type), np.asarray(geom.size, dtype=float)
    if kind == mujoco.mjtGeom.mjGEOM_MESH:
        return _of_mesh(model, int(geom.dataid) // 2)
    if kind == mujoco.mjtGeom.mjGEOM_FLEX:
        start, used = scene.flexfaceadr[geom.objid], scene.flexfaceused[geom.objid]
        corners = scene.flexface[9 * start : 9 * (start + used)].reshape(-1, 3)
        return corners, np.arange(len(corners)).reshape(-1, 3), None
    if kind == mujoco.mjtGeom.mjGEOM_PLANE:
        half = np.where(size[:2] > 0.0, size[:2], 100.0)
        square = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], dtype=float)
        corners = np.column_stack([square * half, np.zeros(4)])
        return corners, np.array([[0, 1, 2], [0, 2, 3]]), _places(model, geom, square, half)
    if kind == mujoco.mjtGeom.mjGEOM_BOX:
        corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
        sides = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
        quads = corners[np.array(sides)].reshape(-1, 3)  # corners of its own for each side
        halves = np.array([[0, 1, 2], [0, 2, 3]]) + 4 * np.arange(6)[:, None, None]
        return quads * size, halves.reshape(-1, 3), None
    level = np.linspace(-0.5 * np.pi, 0.5 * np.pi, ROUND // 2)
    radius, height = np.cos(level) * size[0], np.sin(level) * size[2]
    if kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
        radius, height = size[0] * np.array([0, 1, 1, 0]), size[2] * np.array([-1, -1, 1, 1])
    elif kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        height = np.sin(level) * size[0] + np.sign(level) * size[2]
    elif kind not in (mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_ELLIPSOID):
        raise UnusableInputError(
            f"fidelity traced: no {kind.name.removeprefix('mjGEOM_').lower()} can be traced. Take "
            "fidelity shadows."
        )
    return _turned(radius, height, size[1] / size[0])


def _turned(radius: Floats, height: Floats, deep: float) -> Shape:
    """Return what a profile gives that turns about z; `deep` is y by x."""
    turn = np.linspace(0.0, 2.0 * np.pi, ROUND, endpoint=False)
    x, y = np.outer(radius, np.cos(turn)), np.outer(radius, deep * np.sin(turn))
    corners = np.stack([x, y, np.broadcast_to(height[:, None], x.shape)], axis=-1).reshape(-1, 3)
    here = np.arange((len(radius) - 1) * ROUND)
    beside = here - here % ROUND + (here + 1) % ROUND
    one = np.stack([here, beside, here + ROUND])
    other = np.stack([beside, beside + ROUND, here + ROUND])
    return corners, np.concatenate([one, other], axis=1).T, None


def _of_mesh(model: mujoco.MjModel, mesh: int) -> Shape:
    """Return a mesh, each corner once for each triangle where it has places in a texture."""
    start, count = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
    first, many = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
    corners = model.mesh_vert[first : first + many]
    triangles = model.mesh_face[start : start + count]
    placed = int(model.mesh_texcoordadr[mesh])
    if placed < 0:
        return corners, triangles, None
    places = model.mesh_texcoord[placed:][model.mesh_facetexcoord[start : start + count].ravel()]
    return corners[triangles.ravel()], np.arange(3 * count).reshape(-1, 3), places


def _places(model: mujoco.MjModel, geom: Any, square: Floats, half: Floats) -> Floats | None:
    """Return where the corners of a plane are in its texture, tiled as MuJoCo does."""
    if geom.matid < 0:
        return None
    repeat = np.asarray(model.mat_texrepeat[geom.matid], dtype=float)
    endless = not geom.size[0]
    if model.mat_texuniform[geom.matid] or endless:
        repeat = repeat * half
    begin = 0.5 if endless else 0.5 * repeat  # a tile begins in the corner
    return np.asarray(0.5 * repeat * square * [1.0, -1.0] + begin)
