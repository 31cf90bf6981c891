"""A scene as a file: MJCF of bench and arm, what is reset and where, and when its task is done."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from string import Template
from typing import Any, Final

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core import schema
from gaploop.core.arm import ModelFile
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.kinematics import read_spec, strip
from gaploop.core.vocabulary import OTHER_WORDS, SEEN
from gaploop.sim.camera import look_at_quat
from gaploop.sim.hand import (
    FAR_M,
    Partner,
    read_partner,
    span_within,
    triple,
)
from gaploop.sim.views import View, read_cameras, view_of

SIZE_PX: Final = (128, 128)
_QUIET: Final = threading.RLock()
ROOT_HALF: Final = float(np.sqrt(0.5))
OUT: Final[Mapping[str, tuple[float, ...]]] = {
    "z": (1.0, 0.0, 0.0, 0.0), "-z": (0.0, 1.0, 0.0, 0.0),
    "x": (ROOT_HALF, 0.0, ROOT_HALF, 0.0), "-x": (ROOT_HALF, 0.0, -ROOT_HALF, 0.0),
    "y": (ROOT_HALF, -ROOT_HALF, 0.0, 0.0), "-y": (ROOT_HALF, ROOT_HALF, 0.0, 0.0),
}  # fmt: skip
"""Axis of a tool that points out of the hand, to the turn (w, x, y, z) that makes it z."""


def _size_px(value: Any, where: str) -> tuple[int, int]:
    width, height = schema.pair(value, where, 8, 4096, "[width, height] in px")
    return int(width), int(height)


@dataclass(frozen=True)
class SceneCamera:
    """A camera of the model, or one that the file adds.

    Attributes:
        eye_m: where it is, or None for one of the model's.
        size_px: width and height.
        view: as a calibration file has it, or None.
    """

    name: str = schema.not_in_file("")
    size_px: tuple[int, int] = schema.read_with(_size_px, SIZE_PX)
    view: View | None = schema.not_in_file(None)
    eye_m: NDArray[np.float64] | None = schema.read_with(triple, None)
    at_m: NDArray[np.float64] | None = schema.read_with(triple, None)
    fovy_deg: float = schema.ranged(45.0, 1.0, 170.0)


@dataclass(frozen=True)
class Tool:
    """What goes to waypoints: a site of the model, or a place on one of its bodies.

    Attributes:
        on_body: it is named after a body, not a site.
        at_m: in the frame of that body or site.
        out: of `OUT`.
    """

    name: str = ""
    on_body: bool = False
    at_m: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    out: str = "z"

    @property
    def site(self) -> str:
        """Name of the site in the compiled model."""
        return f"tool on {self.name}" if self.on_body else self.name


@dataclass(frozen=True)
class PlacedBody:
    """Where a loose body starts.

    Attributes:
        x_m: lowest and highest; likewise y_m.
        yaw_deg: about the vertical.
        z_m: None for the height that it has in the model.
    """

    x_m: tuple[float, float] = schema.read_with(span_within(-FAR_M, FAR_M))
    y_m: tuple[float, float] = schema.read_with(span_within(-FAR_M, FAR_M))
    yaw_deg: tuple[float, float] = schema.read_with(span_within(-360.0, 360.0), (0.0, 0.0))
    z_m: float | None = schema.ranged(None, -FAR_M, FAR_M)
    body: str = schema.not_in_file("")


def _tool(said: Any, where: str) -> Tool:
    if not isinstance(said, dict):
        return Tool(str(said or ""))
    schema.check_keys(said, ("site", "body", "at_m", "out"), where)
    if ("site" in said) == ("body" in said):
        raise UnusableInputError(f"{where}: give site, or body with at_m.")
    if (out := str(said.get("out", "z"))) not in OUT:
        raise unknown_choice("axis", out, OUT, f"{where}, out")
    at_m = triple(said.get("at_m", [0.0] * 3), f"{where}, at_m")
    return Tool(str(said.get("site") or said.get("body")), "body" in said, at_m, out)


def _cameras(said: Any, where: str) -> tuple[SceneCamera, ...]:
    found = list[SceneCamera]()
    for name, given in schema.mapping(said, where, "name: {eye_m, at_m}").items():
        place = f"{where}, {name}"
        if "calibration" in (given or {}):
            known = read_cameras({name: given}, where)[str(name)]
            view = view_of(str(name), known, str(name), SIZE_PX, place)
            found.append(SceneCamera(str(name), view.size_px, view))
            continue
        camera = schema.read_as(SceneCamera, given, place)
        if (camera.eye_m is None) != (camera.at_m is None):
            raise UnusableInputError(f"{place}: eye_m and at_m go together.")
        found.append(replace(camera, name=str(name)))
    return tuple(found)


def _reset(said: Any, where: str) -> tuple[PlacedBody, ...]:
    return tuple(
        replace(schema.read_as(PlacedBody, spot, f"{where}, {name}"), body=str(name))
        for name, spot in schema.mapping(said, where, "body: {x_m, y_m}").items()
    )


def _gripper(said: Any, where: str) -> tuple[dict[str, Any], tuple[tuple[str, float, float], ...]]:
    """Return a gripper by its first joint, and what goes with it: (name, closed, open) of each."""
    given = schema.mapping(said, where, "{joint: NAME, open: …, closed: …}")
    schema.check_keys(given, ("joint", "open", "closed"), where)
    lists = {key: value if isinstance(value, list) else [value] for key, value in given.items()}
    count = len(lists.get("joint", ()))
    if count < 2:
        return given, ()
    for key in ("closed", "open"):
        if len(lists.get(key, ())) != count:
            raise UnusableInputError(f"{where}: give open and closed of all {count} joints.")
        lists[key] = [
            schema.number(value, f"{where}, {key}", -FAR_M, FAR_M) for value in lists[key]
        ]
    if lists["closed"][0] == lists["open"][0]:
        raise UnusableInputError(f"{where}: open and closed are the same.")
    others = zip(lists["joint"], lists["closed"], lists["open"], strict=True)
    first = {key: values[0] for key, values in lists.items()}
    return first, tuple((str(name), low, high) for name, low, high in others)[1:]


def _choices(said: Any, where: str) -> dict[str, list[str]]:
    found = schema.mapping(said, where, "name: [this, that]")
    for name, values in found.items():
        if not isinstance(values, list) or not values or not str(name).isidentifier():
            raise UnusableInputError(f"{where}, {name}: give a list of names, such as [red, blue].")
    return {str(name): [str(v) for v in values] for name, values in found.items()}


def _words(said: Any, _where: str = "") -> tuple[str, ...]:
    return tuple(map(str, said)) if said and isinstance(said, list) else (str(said),)


def _as_it_is(said: Any, _where: str) -> Any:
    return said


def _listed(said: Any, _where: str) -> tuple[Any, ...]:
    return tuple(said or ())


@dataclass(frozen=True)
class Scene:
    """A scene file as read.

    Attributes:
        joints: of the arm with its gripper; () for all that position servos drive.
        gripper: {joint, open, closed [rad or m]}, or empty.
        fingers: what else has a servo in it and goes along: joint, where closed, where open.
        home_deg: joint to where it starts [°, m].
        choices: what `$name` stands for in the three that follow, one drawn for each episode.
        instruction: the task in words; of several that mean the same, one is drawn.
        wordings: level of `OTHER_WORDS` to other words for it, which recordings don't draw.
        demonstrator: waypoints, as `Demonstrator` takes them.
        partner: a person's hand that gives the robot something, or takes it.
    """

    mjcf: Path = schema.read_with(_as_it_is)
    success: Any = schema.read_with(_as_it_is)
    instruction: Sequence[str] = schema.read_with(_words)
    path: Path = schema.not_in_file(Path())
    arm: Path | None = schema.read_with(_as_it_is, None)
    arm_at_m: Sequence[float] | NDArray[np.float64] = schema.read_with(triple, (0.0, 0.0, 0.0))
    arm_turn_deg: float = schema.ranged(0.0, -360.0, 360.0)
    joints: tuple[str, ...] = schema.read_with(_listed, ())
    gripper: Mapping[str, Any] = field(default_factory=dict)
    tool: Tool = schema.read_with(_tool, Tool())
    fingers: tuple[tuple[str, float, float], ...] = schema.not_in_file(())
    home_deg: Mapping[str, float] = field(default_factory=dict)
    cameras: tuple[SceneCamera, ...] = schema.read_with(_cameras, ())
    fps: float = schema.ranged(25.0, 1.0, 500.0)
    reset: tuple[PlacedBody, ...] = schema.read_with(_reset, ())
    choices: Mapping[str, Sequence[str]] = schema.read_with(_choices, default_factory=dict)
    wordings: Mapping[str, Sequence[str]] = field(default_factory=dict, metadata={"read": None})
    demonstrator: Sequence[Mapping[str, Any]] = schema.read_with(_listed, ())
    max_s: float = schema.ranged(12.0, 0.1, 600.0)
    partner: Partner | None = schema.read_with(read_partner, None)

    @property
    def is_worded_anew(self) -> bool:
        """Whether each episode draws what is asked for, or how."""
        return bool(self.choices) or len(self.instruction) > 1

    def asked(self) -> list[Scene]:
        """Return this scene with every choice made; itself where there is none."""
        where, made = f"Scene {self.path}", list[Scene]()
        for values in product(*self.choices.values()):
            chosen = dict(zip(self.choices, values, strict=True))
            parts = {
                part: _chosen(getattr(self, part), chosen, f"{where}, {part}")
                for part in ("instruction", "wordings", "success", "demonstrator")
            }
            made.append(replace(self, choices={}, **parts) if chosen else self)
        return made

    def told(self, seed: int, level: str = SEEN) -> tuple[int, str]:
        """Return which of `asked` an episode is, and in what words of a level."""
        rng, asked = np.random.default_rng([seed, 81]), self.asked()
        number = int(rng.integers(len(asked)))
        words = asked[number].instruction if level == SEEN else asked[number].wordings[level]
        return number, words[int(rng.integers(len(words)))]


def _chosen(said: Any, chosen: Mapping[str, str], where: str) -> Any:
    """Return what a file says with `$name` replaced."""
    if isinstance(said, str):
        try:
            return Template(said).substitute(chosen)
        except (KeyError, ValueError):
            known = ", ".join(f"${name}" for name in chosen) or "nothing"
            raise UnusableInputError(
                f"{where}: {said!r} has a $ before what isn't under choices ({known} is)."
            ) from None
    if isinstance(said, Mapping):
        return {key: _chosen(value, chosen, where) for key, value in said.items()}
    return [_chosen(v, chosen, where) for v in said] if isinstance(said, list | tuple) else said


def load_scene(path: Path) -> Scene:
    """Read a scene file; UnusableInputError: it can't be read, or says something unknown."""
    said, where = schema.load_yaml(path, "Scene"), f"Scene {path}"
    for camera in schema.mapping(
        said.get("cameras"), f"{where}, cameras", "name: {eye_m, at_m}"
    ).values():
        if isinstance(camera, dict) and "calibration" in camera:  # beside the scene
            camera["calibration"] = str(path.parent / str(camera["calibration"]))
    said |= {key: _model_file(said[key], path) for key in ("mjcf", "arm") if key in said}
    wordings = dict[str, Sequence[str]]()
    if isinstance(levels := said.get("instruction"), dict):
        schema.check_keys(levels, (SEEN, *OTHER_WORDS), f"{where}, instruction", (SEEN,))
        wordings = {k: _words(v) for k, v in levels.items() if k != SEEN}
        said["instruction"] = levels[SEEN]
    said["gripper"], fingers = _gripper(said.get("gripper"), f"{where}, gripper")
    return replace(
        schema.read_as(Scene, said, where), path=path, wordings=wordings, fingers=fingers
    )


def require_known(kind: str, names: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse names that a model hasn't; UnknownChoiceError."""
    known = [name for name in known if name]
    for name in names:
        if name not in known:
            raise unknown_choice(kind, name, known, where)


def _model_file(said: Any, scene: Path) -> Path:
    """Return the path of a model: beside the scene, or of an installed package, package:path."""
    name, colon, inside = str(said).partition(":")
    if colon:
        path = ModelFile(name, inside, f"pip install {name}").find(f"scene {scene}")
    else:
        path = scene.parent / name
    if not path.is_file():
        raise UnusableInputError(f"Scene {scene}: there is no model {path}.")
    return path


@contextmanager
def without_warnings() -> Iterator[None]:
    """Keep to itself what MuJoCo says of options that a bench overrules, and of equal names.

    One thread at a time: what is said is set for the whole process.
    """
    with _QUIET:
        ours = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(lambda _words: None)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                yield
        finally:
            mujoco.set_mju_user_warning(ours)


@without_warnings()
def compile_scene(scene: Scene, arm: str = "") -> mujoco.MjModel:
    """Return the compiled model of bench and arm; the bench's options count.

    Args:
        arm: one of its joints, for a model in which nothing else moves, and nothing has a shape.

    Raises:
        UnusableInputError: MuJoCo can't read or compile it.
    """
    try:
        spec = read_spec(scene.mjcf)
        half = np.radians(scene.arm_turn_deg) / 2.0
        turn = [np.cos(half), 0.0, 0.0, np.sin(half)]
        if scene.arm is not None:
            frame = spec.worldbody.add_frame(pos=scene.arm_at_m, quat=turn)
            spec.attach(read_spec(scene.arm), prefix="", frame=frame)
        if (tool := scene.tool).on_body:
            bodies = {body.name: body for body in spec.bodies}
            require_known("body", [tool.name], bodies, f"Scene {scene.path}, tool")
            bodies[tool.name].add_site(name=tool.site, pos=tool.at_m)
        for camera in scene.cameras:
            if camera.view is not None:
                camera.view.put_into(spec, tool.site, scene.arm_at_m, turn)
        for camera in scene.cameras:
            if camera.eye_m is not None and camera.at_m is not None:
                quat = look_at_quat(camera.eye_m, camera.at_m)
                spec.worldbody.add_camera(
                    name=camera.name, pos=camera.eye_m, quat=quat, fovy=camera.fovy_deg
                )
        if arm:
            _leave_the_arm(spec, arm)
        model = spec.compile()
    except ValueError as error:
        reason = " ".join(str(error).split())
        urdf = "balanceinertia" in reason and ".urdf" in f"{scene.arm} {scene.mjcf}"
        fix = ' Write <mujoco><compiler balanceinertia="true"/></mujoco> into the URDF.' * urdf
        raise UnusableInputError(
            f"Scene {scene.path}: MuJoCo can't build it ({reason}).{fix}"
        ) from None
    site = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, tool.site)
    if site >= 0 and (tool.out != "z" or tool.at_m.any()):
        was, moved = model.site_quat[site].copy(), np.zeros(3)
        if not tool.on_body:
            mujoco.mju_rotVecQuat(moved, tool.at_m, was)
            model.site_pos[site] += moved
        mujoco.mju_mulQuat(model.site_quat[site], was, np.array(OUT[tool.out]))
        model.site_sameframe[site] = int(mujoco.mjtSameFrame.mjSAMEFRAME_NONE)
    return model


def _leave_the_arm(spec: mujoco.MjSpec, joint_name: str) -> None:
    """Take from a scene what the arm's kinematics can do without."""
    strip(spec)
    roots = ({joint.name for joint in body.find_all("joint")} for body in spec.worldbody.bodies)
    joints = next(names for names in roots if joint_name in names)
    geared = int(mujoco.mjtEq.mjEQ_JOINT)
    for equality in spec.equalities:
        names = {name for name in (equality.name1, equality.name2) if name}
        if int(equality.type) != geared or not names <= joints:
            spec.delete(equality)
    for part in (*spec.keys, *spec.actuators, *spec.tendons, *spec.flexes, *spec.skins):
        spec.delete(part)
    for joint in spec.joints:
        if joint.name not in joints:
            spec.delete(joint)
