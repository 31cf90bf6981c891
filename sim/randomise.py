"""Draws a cell for every take from ranges: presets, and the values that a take gets.

What the literature randomises (Tobin et al. 2017, arXiv:1703.06907; Peng et al. 2018,
arXiv:1710.06537), in the units of the mechanisms that gaps and twins act through. A draw depends on
(seed, take) and the parameter's name alone.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import mujoco
import numpy as np

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.twin import (
    Randomisation,
    Range,
    around_twin,
    load_randomisation,
    load_twin,
    read_settings,
)
from gaploop.sim.gaps import Parameter, add_mechanisms, all_mechanisms, put_into
from gaploop.sim.gaps.mechanism import Appliers, Mechanism, SpecEdit, Values, stream
from gaploop.sim.gaps.randomised import PER_FRAME
from gaploop.sim.textures import LOOKS, Library, files_of
from gaploop.sim.views import read_cameras

_DEG: Final = math.pi / 180.0
_SETTING: Final = re.compile(r",(?=\w+=)")
_PERCENTILE_95: Final = 1.6449  # standard deviations

BACKGROUND: Final = (
    Range("visual_domain.table_top.hue_deg", -180.0, 180.0, "deg"),
    Range("visual_domain.table_top.saturation_factor", 0.0, 1.6, "1"),
    Range("visual_domain.table_top.value_factor", 0.4, 1.2, "1"),
)
LIGHT: Final = (
    Range("visual_domain.lamps.key_factor", 0.5, 1.6, "1", "log_uniform"),
    Range("visual_domain.lamps.fill_factor", 0.6, 1.4, "1", "log_uniform"),
    Range("visual_domain.lamps.temperature_k", 4000.0, 9000.0, "K", "log_uniform"),
    Range("visual_domain.lamps.azimuth_rad", -3.1, 3.1, "rad"),
    Range("visual_domain.lamps.tilt_rad", -0.2, 0.5, "rad"),
    Range("visual_domain.frame_jitter.exposure_stops", 0.0, 0.15, "1"),
    Range("visual_domain.frame_jitter.tint_fraction", 0.0, 0.05, "1"),
)
TEXTURE: Final = (
    Range("visual_domain.table_top.grain", 0.0, 3.0, "1", "integer"),
    Range("visual_domain.table_top.contrast_factor", 0.2, 3.0, "1"),
    Range("environmental_complexity.clutter.count", 0.0, 4.0, "1", "integer"),
    Range("environmental_complexity.clutter.height_m", 0.015, 0.035, "m"),
)
CAMERA: Final = (
    Range("spatial_geometry.camera_pose.dx_m", -0.03, 0.03, "m"),
    Range("spatial_geometry.camera_pose.dy_m", -0.03, 0.03, "m"),
    Range("spatial_geometry.camera_pose.dz_m", -0.02, 0.02, "m"),
    Range("spatial_geometry.camera_pose.dyaw_rad", -4.0 * _DEG, 4.0 * _DEG, "rad"),
    Range("spatial_geometry.camera_pose.droll_rad", -3.0 * _DEG, 3.0 * _DEG, "rad"),
    Range("spatial_geometry.camera_pose.dpitch_rad", -3.0 * _DEG, 3.0 * _DEG, "rad"),
    Range("spatial_geometry.field_of_view.dfovy_deg", -2.0, 2.0, "deg"),
)
TABLE: Final = (Range("spatial_geometry.table_height.table_m", -0.02, 0.016, "m"),)
OBJECT: Final = (
    Range("object_property.size.size_factor", 0.75, 1.4, "1", "log_uniform"),
    Range("object_property.mass.mass_factor", 0.5, 4.0, "1", "log_uniform"),
    Range("contact_dynamics.slippery.friction_factor", 0.3, 1.5, "1", "log_uniform"),
)
DYNAMICS: Final = (
    Range("actuator_response.joint_dynamics.gain_factor", 0.3, 1.5, "1", "log_uniform"),
    Range("actuator_response.joint_dynamics.damping_factor", 0.5, 2.0, "1", "log_uniform"),
    Range("actuator_response.joint_dynamics.friction_factor", 0.3, 3.0, "1", "log_uniform"),
    Range("actuator_response.joint_dynamics.armature_factor", 0.7, 1.5, "1", "log_uniform"),
    Range("actuator_response.latency.latency_s", 0.0, 0.06, "s"),  # 0 to 3 frames
    Range("actuator_response.backlash.backlash_rad", 0.0, 2.0 * _DEG, "rad"),
    Range("contact_dynamics.gravity.gravity_m_s2", 9.6, 10.0, "m/s2"),
)
NOISE: Final = (
    Range("sensor_noise.torn_frames.pixel_noise", 0.0, 12.0, "1"),
    Range("sensor_noise.camera_delay.delay_s", 0.0, 0.1, "s"),
    Range("sensor_noise.encoder_drift.noise_rad", 0.0, 0.3 * _DEG, "rad"),
    Range("sensor_noise.force_drift.drift_n", 0.0, 1.0, "N"),
    Range("sensor_noise.force_drift.noise_n", 0.0, 0.2, "N"),
)
SHADOWS: Final = (
    Range("visual_domain.placed_lamps.count", 0.0, 4.0, "1", "integer"),
    Range("visual_domain.placed_lamps.layout", 0.0, 1e6, "1", "integer"),
    Range("visual_domain.placed_lamps.intensity_factor", 0.5, 1.25, "1", "log_uniform"),
    Range("visual_domain.placed_lamps.ambient_fraction", 0.1, 0.6, "1"),
    Range("visual_domain.placed_lamps.temperature_k", 3000.0, 9000.0, "K", "log_uniform"),
    Range("visual_domain.placed_lamps.temperature_spread", 0.0, 0.2, "1"),
    Range("visual_domain.placed_lamps.elevation_rad", 0.5, 1.3, "rad"),
    Range("visual_domain.placed_lamps.distance_m", 0.8, 2.5, "m", "log_uniform"),
    Range("visual_domain.placed_lamps.shadows", 0.0, 1.0, "1", centre=0.5),
    Range("visual_domain.placed_lamps.radius_m", 0.0, 0.08, "m"),
)
SURFACES: Final = tuple(
    Range(f"visual_domain.surfaces.{role}", 0.0, LOOKS, "1", "integer")
    for role in ("table", "room")
)
COLOURS: Final = tuple(
    r
    for role in ("object", "target")
    for r in (
        Range(f"visual_domain.colours.{role}_hue_deg", -180.0, 180.0, "deg"),
        Range(f"visual_domain.colours.{role}_saturation_factor", 0.5, 1.2, "1"),
        Range(f"visual_domain.colours.{role}_value_factor", 0.5, 1.1, "1"),
        Range(f"visual_domain.surfaces.{role}", 0.0, LOOKS, "1", "integer"),
    )
)
DISTRACTORS: Final = (
    Range("environmental_complexity.distractors.count", 0.0, 5.0, "1", "integer"),
    Range("environmental_complexity.distractors.pick", 0.0, 1e6, "1", "integer"),
    Range("environmental_complexity.distractors.size_m", 0.02, 0.05, "m"),
)
CONTACT: Final = (
    Range("actuator_response.gripper_drive.stiffness_factor", 0.3, 2.0, "1", "log_uniform"),
    Range("actuator_response.action_noise.noise_rad", 0.0, 0.5 * _DEG, "rad"),
    Range("object_property.centre_of_mass.com_x_fraction", -0.5, 0.5, "1"),
    Range("object_property.centre_of_mass.com_y_fraction", -0.5, 0.5, "1"),
    Range("contact_dynamics.restitution.damping_factor", 0.2, 1.0, "1", "log_uniform"),
)
PRESETS: Final[Mapping[str, tuple[Range, ...]]] = {
    "BG": BACKGROUND,
    "LT": LIGHT,
    "TD": TEXTURE,
    "CP": CAMERA,
    "TH": TABLE,
    "visual": (*BACKGROUND, *LIGHT, *TEXTURE, *CAMERA, NOISE[0]),
    "dynamics": (*OBJECT, *DYNAMICS, *NOISE[1:]),
    "all": (*BACKGROUND, *LIGHT, *TEXTURE, *CAMERA, *TABLE, *OBJECT, *DYNAMICS, *NOISE),
    # Beyond what `all` has drawn ever since figures were measured with it.
    "LS": SHADOWS,
    "TX": SURFACES,
    "OC": COLOURS,
    "DM": DISTRACTORS,
    "CD": CONTACT,
    "looks": (*SHADOWS, *SURFACES, *COLOURS, *DISTRACTORS, *CAMERA),
}
"""Background, light, texture and distractors, camera pose, table height; and unions of them. Lamps
with shadows, textures, objects' colours, distractors of meshes, contact and drives; and a union."""
EVERYTHING: Final = "all+looks+CD"


def preset(name: str, strength: float = 1.0) -> Randomisation:
    """Return a preset, or several joined by +, such as BG+LT, or raise UnknownChoiceError."""
    found: dict[str, Range] = {}
    for part in name.split("+"):
        if part not in PRESETS:
            raise unknown_choice("randomisation", part, PRESETS, "randomise")
        found |= {r.name: r for r in PRESETS[part]}
    return Randomisation(name, tuple(found.values()), strength)


def check(randomisation: Randomisation) -> None:
    """Refuse ranges that the cell can't be drawn from.

    Raises:
        UnusableInputError: no such mechanism or parameter, another unit, or ends that the
            parameter can't have.
    """
    known = all_mechanisms()
    for r in randomisation.ranges:
        _parameter(r, known)
    for kind, folder in randomisation.folders.items():
        files_of(kind, folder, randomisation.held_out)


def _parameter(r: Range, mechanisms: Mapping[str, Mechanism]) -> Parameter:
    where = f"randomisation {r.name}"
    if r.mechanism not in mechanisms:
        raise unknown_choice("mechanism", r.mechanism, mechanisms, where)
    found = mechanisms[r.mechanism].parameter(r.key)
    if r.unit != found.unit:
        raise UnusableInputError(f"{where}: its unit is {found.unit}, not {r.unit}.")
    # These are of measurements: what can't be is cut off.
    if r.distribution not in ("normal", "together") and (r.low < found.low or r.high > found.high):
        raise UnusableInputError(
            f"{where}: {r.low:g} to {r.high:g} leaves {found.low:g} to {found.high:g} "
            f"[{found.unit}]."
        )
    return found


def draw(
    randomisation: Randomisation, seed: Sequence[int], frame: int | None = None
) -> dict[str, dict[str, float]]:
    """Return what the cell of a take is drawn as by [seed, take], for `SimCell(parameters=…)`.

    With a frame, what its picture is drawn as where pictures are: of that, a take has nothing.

    Raises:
        UnusableInputError: as `check`.
    """
    found: dict[str, dict[str, float]] = {}
    strength, each, known = randomisation.strength, per_frame(randomisation), all_mechanisms()
    seed = seed if frame is None else [*seed, frame]
    for r in randomisation.ranges:
        if (r.mechanism in each) == (frame is None):
            continue
        parameter, rng = _parameter(r, known), stream(seed, r.name, "range")
        # Nominal, or where the range leaves that out (a usual count, no limit), its nearest end:
        # `strength` draws the range together to it.
        centre = float(np.clip(parameter.nominal if r.centre is None else r.centre, r.low, r.high))
        if r.distribution == "log_uniform":
            low, high = (centre * (end / centre) ** strength for end in (r.low, r.high))
            value = math.exp(rng.uniform(math.log(low), math.log(high)))
        else:
            low, high = (centre + strength * (end - centre) for end in (r.low, r.high))
            if r.distribution == "integer":
                value = float(rng.integers(round(low), round(high), endpoint=True))
            elif r.distribution == "together":
                k = stream(seed, "together", "range").integers(len(r.values))
                value = strength * r.values[k] + (1.0 - strength) * centre
            elif r.distribution == "normal":
                spread = np.clip(rng.normal() / _PERCENTILE_95, -2.0, 2.0)
                value = centre + float(spread) * (high - centre if spread > 0 else centre - low)
            else:
                value = float(rng.uniform(low, high))
        value = float(np.clip(value, parameter.low, parameter.high))
        found.setdefault(r.mechanism, {})[r.key] = value
    return found


def per_frame(randomisation: Randomisation) -> list[str]:
    """Return the mechanisms that are drawn anew for every picture, by "dimension.mechanism"."""
    if randomisation.every != "frame":
        return []
    return [m for m in dict.fromkeys(r.mechanism for r in randomisation.ranges) if m in PER_FRAME]


def named(randomisation: Randomisation | None, drawn: Mapping[str, Values]) -> dict[str, Any]:
    """Return what a take keeps of its draw: its values, the files they stand for, what changes."""
    told: dict[str, Any] = dict(drawn)
    if randomisation is None:
        return told
    each = per_frame(randomisation)
    if randomisation.every == "frame" and "backgrounds" in randomisation.folders:
        each.append("backdrop")
    if each:
        told["every_frame"] = dict.fromkeys(each, "drawn")
    if "textures" in randomisation.folders and (values := drawn.get("visual_domain.surfaces")):
        library = Library(randomisation)
        told["textures"] = {k: library.name("textures", int(v)) for k, v in values.items() if v}
    return told


_CAMERAS_SEE: Final = (
    "light_active", "light_ambient", "light_castshadow", "light_cutoff", "light_diffuse",
    "light_dir", "light_exponent", "light_pos", "light_specular",
    "cam_fovy", "cam_pos", "cam_quat", "geom_matid", "geom_rgba", "mat_rgba", "tex_data",
)  # fmt: skip
"""Arrays of a model that only cameras see."""


def background(
    randomisation: Randomisation | None, seed: Sequence[int], frame: int = 0
) -> Path | None:
    """Return the photo behind a take, or one of its pictures; None where none is drawn."""
    if randomisation is None or "backgrounds" not in randomisation.folders:
        return None
    each = [frame] if randomisation.every == "frame" else []
    number = int(stream([*seed, *each], "backgrounds").integers(2**31))
    return Library(randomisation).background(number)


class FrameLooks:
    """Draws what cameras see of a compiled model anew for every picture of an episode.

    Args:
        on: appliers of the scene, with nothing put in.
        seed: of the episode.
        relative: values are in proportion to the scene, like a severity's.
    """

    def __init__(
        self, randomisation: Randomisation, on: Appliers, seed: Sequence[int],
        *, relative: bool = False,
    ) -> None:  # fmt: skip
        self._ranges, self._on, self._seed = randomisation, on, seed
        self._relative = relative
        self._model: mujoco.MjModel | None = None

    def edits(self) -> Sequence[SpecEdit]:
        """Return what has to be compiled into the model, whatever the picture."""
        for key, values in draw(self._ranges, self._seed, 0).items():
            mechanism = all_mechanisms()[key]
            mechanism.apply(mechanism.complete(values), self._on)
        return self._on.model.edits

    def set(self, model: mujoco.MjModel, frame: int) -> Path | None:
        """Give a model the looks of a picture, not of the one before; return the photo behind."""
        head = model.vis.headlight
        if model is not self._model:
            self._model = model
            self._kept = [(a := getattr(model, name), a.copy()) for name in _CAMERAS_SEE]
            self._kept += [
                (a := getattr(head, n), a.copy()) for n in ("ambient", "diffuse", "specular")
            ]
        for array, before in self._kept:
            array[:] = before
        on, drawn = self._on, draw(self._ranges, self._seed, frame)
        on.model.begin_anew()
        if self._relative:
            drawn = {key: all_mechanisms()[key].relative(v, on) for key, v in drawn.items()}
        put_into(on, (), drawn)
        on.model.put_on(model)
        return background(self._ranges, self._seed, frame)


def with_strength(randomise: str) -> tuple[str, float]:
    """Return which ranges, and how strong: all:0.5 draws from half of them."""
    name, _, strength = randomise.rpartition(":")
    try:
        return (name, float(strength)) if name else (randomise, 1.0)
    except ValueError:  # a colon in a file's name
        return randomise, 1.0


def known_and_drawn(
    twin: Path | None, randomise: str = "", arm: str = "", option: str = ""
) -> tuple[dict[str, dict[str, float]], Randomisation | None]:
    """Return `parameters` and `randomise` of `SimCell`, as options name them.

    Args:
        twin: a `station_twin.yaml`. What it has measured isn't drawn, unless `randomise` says so.
        randomise: "" for nothing, a preset or several joined by +, a file of ranges, or twin: what
            the twin leaves open. A strength may follow, as in all:0.5, on top of a file's own, and
            settings, as in looks,every=frame,textures=DIR, over a file's own.
        arm: the cell's arm, named by `option`, which has to be the twin's; any if "".

    Raises:
        UnusableInputError: a file can't be read, the twin is of another arm, or there is none to
            draw around.
    """
    station = load_twin(twin) if twin is not None else None
    if station is not None and arm and station.arm != arm:
        fix = f"{option}={station.arm}"
        if station.world:
            fix = "--env.scene=FILE --twin=FILE, a scene with that arm"
        raise UnusableInputError(f"{twin} is of a station with {station.arm}: give {fix}.")
    known = station.values() if station is not None else {}
    if not randomise:
        return known, None
    randomise, *said = _SETTING.split(randomise)
    settings = read_settings(dict(s.split("=", 1) for s in said), "randomise")
    randomise, strength = with_strength(randomise)
    if randomise == "twin":
        if station is None:
            group = option.rpartition(".")[0] or "--env"
            raise UnusableInputError(
                f"{group}.randomise=twin draws around a twin: name it with {group}.twin=FILE."
            )
        ranges = around_twin(station, strength)
    elif randomise.endswith((".yaml", ".yml")):
        found = load_randomisation(Path(randomise))
        ranges = without(replace(found, strength=found.strength * strength), known)
    else:
        ranges = without(preset(randomise, strength), known)
    folders = {**ranges.folders, **settings.pop("folders")}
    ranges = replace(ranges, folders=folders, **settings)
    check(ranges)
    return known, ranges


@dataclass(kw_only=True)
class CellOptions:
    """What options of a simulated robot and of an environment say of the cell alike.

    Attributes:
        task: "pick_place", "pick_lift" or "stack_cube".
        gaps: dimension, or "dimension.mechanism", to severity in [0, 1].
        gap_seed: draws mechanism and direction of each gap.
        conditions: background, lighting, distractors, object, camera_pose, table_height,
            grid_cell, human.
        image_size: width and height of the cameras' pictures [px].
        cameras: {overhead: {}, wrist: {}}, with {size_px: [w, h]} or {calibration: FILE}, in which
            camera it is goes by its name; the overhead one alone by default.
        twin: station_twin.yaml: the cell is as that station was measured.
        randomise: what every scene's cell is drawn from, such as all or looks,every=frame.
        gaps_module: a Python module with gap mechanisms of your own.
    """

    task: str = "pick_place"
    gaps: dict[str, float] = field(default_factory=dict)
    gap_seed: int = 0
    conditions: dict[str, Any] = field(default_factory=dict)
    image_size: int = 192
    cameras: dict[str, Any] = field(default_factory=dict)
    twin: Path | None = None
    randomise: str = ""
    gaps_module: str = ""


def cell_arguments(given: Any, arm: str, option: str) -> dict[str, Any]:
    """Return what `--env.*` or `--robot.*` say of a cell as arguments of what makes one."""
    if given.gaps_module:
        add_mechanisms(given.gaps_module)
    known, drawn = known_and_drawn(given.twin, given.randomise, arm, option)
    same = {name: getattr(given, name) for name in ("task", "gaps", "gap_seed")}
    cameras = read_cameras(given.cameras, f"{option.rpartition('.')[0]}.cameras")
    if cameras:
        same["cameras"] = cameras
    return {**same, "robot": arm, "parameters": known, "randomise": drawn}


def over(known: Mapping[str, Values], drawn: Mapping[str, Values]) -> dict[str, dict[str, float]]:
    """Return what is known, and over it what is drawn, parameter by parameter."""
    return {
        key: {**known.get(key, {}), **drawn.get(key, {})} for key in dict.fromkeys((*known, *drawn))
    }


def without(randomisation: Randomisation, known: Mapping[str, Values]) -> Randomisation:
    """Return the ranges of what isn't known: what was measured of a station isn't drawn."""
    left = tuple(r for r in randomisation.ranges if r.key not in known.get(r.mechanism, {}))
    return replace(randomisation, ranges=left)
