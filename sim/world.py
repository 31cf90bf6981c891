"""A world: a scene that a policy or a person drives, whoever made it.

The embedded cell is one (`cell.SimCell`), a scene file (`scene_world.SceneWorld`), and anybody's
gymnasium environment, which `GymWorld` puts gaps into.
"""

import logging
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol, cast, runtime_checkable

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.twin import Randomisation
from gaploop.core.vocabulary import INSTRUCTION, SEEN
from gaploop.sim.camera import LayeredCamera, at_fidelity, painted
from gaploop.sim.conditions import (
    FIDELITIES,
    HUMANS,
    LIGHTINGS,
    OBJECTS,
    parse_conditions,
    photo_of,
)
from gaploop.sim.gaps import InjectedGap, all_mechanisms, draw_gaps, put_into
from gaploop.sim.gaps.mechanism import (
    OBJECT_HALF_M,
    Appliers,
    CommandPath,
    ImagePath,
    SensorPath,
    UnavailableError,
    Values,
    Vector,
)
from gaploop.sim.gaps.world_model import NoModel, WorldModel
from gaploop.sim.randomise import PRESETS, FrameLooks, background, draw, over, per_frame
from gaploop.sim.roles import (
    ZERO_KEYS,
    Survey,
    diverged,
    edited_models,
    find_model,
    measures_cameras,
    numbers_in,
    period_of,
    picture_of,
    shown_as,
    survey,
    writable,
)
from gaploop.sim.textures import Library

logger = logging.getLogger(__name__)

SUCCESS_KEYS: Final = (
    "is_success", "success", "succeed", "task_success", "task_completed", "goal_achieved", "solved",
)  # fmt: skip
OLDER: Final = {
    "argument 'seed'": " Give it gymnasium's reset(self, *, seed=None, options=None).",
    "argument 'options'": " Give it gymnasium's reset(self, *, seed=None, options=None).",
    "values to unpack (expected 2": " Have its reset return (observation, info).",
    "values to unpack (expected 5": (
        " Have its step return (observation, reward, terminated, truncated, info)."
    ),
}
"""What an environment raises that keeps to an older interface, and what to do."""
OBSERVERS: Final = ("_get_obs", "_compute_observation")
"""Methods by which environments look at their state again."""
ONLY_HERE: Final = ("background", "placement", "grid_cell")
"""Conditions that only the embedded cell has."""
FREE: Final = int(mujoco.mjtJoint.mjJNT_FREE)

type Make = Callable[[], gym.Env[Any, Any]]


def shows_scenes_in_turn(make: Make, seeds: Sequence[int] = (0, 1)) -> bool:
    """Say whether new environments begin with one scene whatever the seed, as metaworld's do."""
    seen = []
    for seed in seeds:
        with closing(make()) as one:
            observation, _ = one.reset(seed=seed)
            seen.append([value.tobytes() for _, value in numbers_in(observation)])
            if (data := find_model(one)[1]) is not None:
                seen[-1].append(data.qpos.tobytes())
    return all(scene == seen[0] for scene in seen)


@runtime_checkable
class World(Protocol):
    """What evaluation, recording and gaps ask of a scene.

    Attributes:
        period_s: time that a step takes [simulated s].
        instruction: the task in words.
        model: MuJoCo's, or None where something else simulates.
        data: its state, or None.
    """

    period_s: float
    instruction: str
    model: mujoco.MjModel | None
    data: mujoco.MjData | None

    def reset(self, seed: int) -> Any:
        """Start an episode; equal seeds give equal scenes."""

    def step(self, command: NDArray[Any]) -> Any:
        """Send a command, shape (n_joints,), and let `period_s` pass."""

    def success(self) -> bool:
        """Judge the present state."""

    def parameters(self) -> Mapping[str, str]:
        """Return "dimension.mechanism" to "" where it can be set here, else to what is missing."""

    def close(self) -> None:
        """Free what it holds; safe to call twice."""


@dataclass(frozen=True)
class WorldSpec:
    """What a world is made like, beside as it is.

    Attributes:
        gaps: dimension, or "dimension.mechanism", to severity in [0, 1].
        conditions: what is set up, as in vocabulary.CONDITIONS.
        roles: roles.yaml, or None.
        parameters: "dimension.mechanism" to values of its parameters, where they are known, as a
            twin's are.
        randomise: ranges that each episode draws from, over `parameters`; those of a preset are in
            proportion to the scene, like a severity, and where it can't have one it is left out.
    """

    gaps: Mapping[str, float] = field(default_factory=dict)
    gap_seed: int = 0
    conditions: Mapping[str, Any] = field(default_factory=dict)
    roles: Path | None = None
    parameters: Mapping[str, Values] = field(default_factory=dict)
    randomise: Randomisation | None = None

    @property
    def is_nominal(self) -> bool:
        """Whether the world is left as it is."""
        changed = self.conditions or self.parameters or self.randomise or any(self.gaps.values())
        return not changed


NOMINAL: Final = WorldSpec()


class Theirs(gym.Wrapper[Any, Any, Any, Any]):
    """Somebody's environment: what it raises is said in one line, with the place.

    Attributes:
        unsaid: the keys of `info` of its steps while none of them has told of success.
    """

    unsaid: set[str] | None

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.unsaid = set()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode."""
        try:
            observation, info = self.env.reset(seed=seed, options=options)
        except Exception as error:
            raise _broke_off("reset", error) from error
        return observation, info

    def step(self, action: Any) -> Any:
        """Send an action."""
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            takes = self.env.action_space
            other = np.shape(action) != (takes.shape or ())
            sent = f" It was sent shape {np.shape(action)}; its action_space is {takes}."
            raise _broke_off("step", error, sent * other) from error
        if self.unsaid is not None:
            self.unsaid = None if info.keys() & set(SUCCESS_KEYS) else self.unsaid | info.keys()
        return observation, reward, terminated, truncated, info

    def silence(self) -> str:
        """Say that none of its steps has told of success, or "" where one has."""
        if self.unsaid is None:
            return ""
        keys = ", ".join(sorted(map(str, self.unsaid))) or "empty"
        return (
            f"no step's info (its keys: {keys}) said {', '.join(SUCCESS_KEYS[:-1])} "
            f"or {SUCCESS_KEYS[-1]}, so that no success can be seen"
        )


def _broke_off(where: str, error: Exception, sent: str = "") -> GaploopError:
    """Return what a user is told where an environment raised something in a method."""
    if isinstance(error, GaploopError):
        return error
    fix = next((fix for said, fix in OLDER.items() if said in str(error)), "")
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if last.filename == __file__ else f", {Path(last.filename).name}:{last.lineno}"
    said = f"{type(error).__name__}: {' '.join(str(error).split())}{place}"
    return UnusableInputError(f"The environment broke off in {where} ({said}).{sent}{fix}")


class GymWorld(gym.Wrapper[Any, Any, Any, Any]):
    """An environment with gaps; a `World`, and itself an environment.

    Where nothing is injected every call is passed on, so that it gives the same numbers to the bit.
    What is injected acts in one of four places:

    - on the model, in place;
    - on servos at every physics step, through MuJoCo's control callback, which is set only while
      this environment steps; an arm without position servos gets its action late instead;
    - on the angles in the observation that are the arm's joints, found by moving it;
    - on pictures.

    Attributes:
        injected: the gaps as drawn; privileged.
        drawn: what this episode was randomised to, as `parameters`.
    """

    _photo: Path | None = None
    _redraws = _warned = False
    _looks: FrameLooks | None = None

    def __init__(self, make: Make, spec: WorldSpec = NOMINAL, known: Survey | None = None) -> None:
        """Make an environment and put gaps into it.

        Args:
            make: makes it; called again where something is put in.
            known: what another one of it was found to hold; looked for unless given.

        Raises:
            UnusableInputError: unknown gaps, or ones that the environment can't have.
        """
        super().__init__(Theirs(make()))
        self._make, self._spec, self._looked = make, spec, known is not None
        self._survey, self._is_new = known, True
        self._begun = list[int | None]()  # seeds of the episodes so far
        self._left_out = dict[str, str]()
        self._measures = self._redraws = measures_cameras(spec.roles)
        self.period_s = period_of(self.env)
        self.injected = draw_gaps(spec.gaps, spec.gap_seed)
        self._won = False
        self._drawers = dict[tuple[int, int, int], LayeredCamera]()
        self._on: Appliers | None = None
        self.model: Any
        self.data: Any
        self.model, self.data = find_model(self.env)
        self._drawn_gaps, self.drawn = self.injected, dict[str, dict[str, float]]()
        if self._measures or not spec.is_nominal:
            self._put_in()

    def _put_in(self) -> None:
        given = over(self._spec.parameters, self.drawn)
        self._on = on = self._appliers(self._drawn_gaps, self._spec.conditions, given)
        if self._looks is not None:
            on.model.edits += self._looks.edits()
        if self._measures and self._survey is None:
            raise UnavailableError("A measured camera needs a MuJoCo model; none was found.")
        edits = on.model.edits
        with edited_models(edits) if edits else nullcontext([None]) as made:
            # One that was looked at may draw its next scene from where it stands.
            if edits or not self._is_new:
                self.env.close()
                self.env = Theirs(self._make())
        self._is_new = False
        if not made:
            raise UnavailableError(
                "This environment doesn't make its model from MJCF, so that no bodies can be added "
                "to it. Leave out gaps and conditions that add some."
            )
        if isinstance(on.model, WorldModel):
            self._change(on.model)
            if "criterion" in vars(on.model):
                cast(Any, self.unwrapped).criterion = on.model.criterion
        known = all_mechanisms()
        self.injected = tuple(  # as it acts in this scene
            replace(gap, parameters=known[gap.key].relative(gap.parameters, on))
            for gap in self._drawn_gaps
        )

    def _draw(self, seed: int) -> None:
        """Draw what this episode is like, as far as the scene can be so."""
        ranges = self._spec.randomise
        assert ranges is not None
        known, nominal = all_mechanisms(), self.as_it_is()
        is_preset = all(part in PRESETS for part in ranges.name.split("+"))
        self.drawn, take = {}, [self._spec.gap_seed, seed]
        each = per_frame(ranges)
        for key, values in (draw(ranges, take) | draw(ranges, take, 0)).items():
            if key in self._left_out:
                continue
            try:
                here = known[key].relative(values, nominal) if is_preset else dict(values)
                self._appliers((), {}, {key: here})
            except UnavailableError as error:
                if not is_preset:
                    raise
                self._left_out[key] = str(error.__cause__ or error)
                logger.info("Not randomised: %s (%s)", key, self._left_out[key])
            else:
                if key not in each:
                    self.drawn[key] = here
        if ranges.every == "frame":
            kept = tuple(r for r in ranges.ranges if r.mechanism not in self._left_out)
            self._looks = FrameLooks(
                replace(ranges, ranges=kept), self.as_it_is(), take, relative=is_preset
            )

    def _look_anew(self, frame: int) -> None:
        """Give the model the looks of the next picture."""
        if self._looks is None or self.model is None:
            return
        photo, inner = self._looks.set(self.model, frame), cast(Any, self.unwrapped)
        if hasattr(inner, "photo"):
            inner.photo = photo
        elif photo is not None:
            self._photo = photo
        for drawer in (*self._drawers.values(), *getattr(inner, "drawers", {}).values()):
            drawer.forget(photo, textures=True)
        viewer = getattr(getattr(inner, "mujoco_renderer", None), "viewer", None)
        if viewer is not None:
            viewer.make_context_current()
            for texture in painted(self.model):
                mujoco.mjr_uploadTexture(self.model, viewer.con, texture)

    @cached_property
    def _in_turn(self) -> bool:
        return shows_scenes_in_turn(self._make)

    def _change(self, on: WorldModel) -> None:
        """Change the model that the environment holds now."""
        self.model, self.data = find_model(self.env)
        if self.model is None:  # it makes one when it is reset
            self.env.reset(seed=0)
            self.model, self.data = find_model(self.env)
        on.put_on(self.model)

    # What it is.
    @property
    def instruction(self) -> str:
        """The task in words."""
        known = getattr(self.env.unwrapped, "task_description", "")
        return str(known or (self.env.spec.id if self.env.spec else type(self.env.unwrapped)))

    @property
    def is_target(self) -> bool:
        """Whether it stands for a real scene: with gaps, conditions, or as a twin measured one."""
        return not replace(self._spec, randomise=None).is_nominal

    @property
    def units(self) -> str:
        """Units of the joints that its state shows, as takes note them; "" where unknown."""
        if said := getattr(self.unwrapped, "units", ""):
            return str(said)
        states, shown = ((), ("agent_pos",)), set[float]()
        if known := self.surveyed():
            hinges = np.flatnonzero(known.per_rad == 1.0)
            shown = {r.per_rad for r in known.readings if r.path in states and r.joint in hinges}
        return "rad" if shown == {1.0} else "deg" if len(shown) == 1 else ""

    def as_it_is(self) -> Appliers:
        """Return what gaps would act through, with none put in."""
        return self._appliers((), {})

    def surveyed(self) -> Survey | None:
        """Return what is inside; None where it isn't MuJoCo's. Resets the environment."""
        if not self._looked:
            self._survey, self._looked = survey(self.env, self._spec.roles), True
            self._is_new = False
        return self._survey

    def parameters(self) -> Mapping[str, str]:
        """Return "dimension.mechanism" to "" where it can be set here, else to what is missing."""
        found = dict[str, str]()
        for key, mechanism in all_mechanisms().items():
            try:
                values = mechanism.draw(np.random.default_rng(0), 0.5)
            except NotImplementedError:  # no gap is drawn of it
                continue
            dimension, _, name = key.partition(".")
            try:
                self._appliers([InjectedGap(dimension, name, 0.5, values, held_out=False)], {})
            except UnavailableError as error:
                found[key] = str(error.__cause__ or error)
            else:
                found[key] = ""
        return found

    def _appliers(
        self, gaps: Sequence[InjectedGap], conditions: Mapping[str, Any],
        given: Mapping[str, Values] = MappingProxyType({}),
    ) -> Appliers:  # fmt: skip
        """Return what gaps and conditions act through; UnavailableError where something lacks."""
        known, seed = self.surveyed(), self._spec.gap_seed
        if known is None:
            model, timestep_s = NoModel(self.period_s, seed), self.period_s
        else:
            model = WorldModel(known.model, known.data, known.roles, seed, self.period_s)
            if (criterion := getattr(self.unwrapped, "criterion", None)) is not None:
                model.criterion = criterion
            model.library = Library(self._spec.randomise)
            timestep_s = float(known.model.opt.timestep)
        sensors = SensorPath(known.zero_keys if known else ZERO_KEYS)
        on = Appliers(model, ImagePath(), CommandPath(timestep_s), sensors)

        @contextmanager
        def asking_for(what: str) -> Iterator[None]:
            try:
                yield
                _check(on, known)
            except UnavailableError as error:
                raise UnavailableError(f"{what} here: {error}.") from error

        for gap in gaps:
            with asking_for(f"{gap.key} can't be set"):
                put_into(on, [gap])
        with asking_for(f"{', '.join(given)} can't be set"):
            put_into(on, (), given)
        conditions = dict(conditions)
        level = conditions.pop(INSTRUCTION, SEEN)
        if level not in (SEEN, *getattr(getattr(self.unwrapped, "scene", None), "wordings", ())):
            raise UnavailableError(f"no {level} words for its instruction are in a scene file")
        with asking_for(f"{conditions} can't be set up"):
            set_up(on, conditions)
        return on

    # What it does.
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode."""
        before, skipped = self.env, list[int | None]()
        if self._spec.randomise is not None:
            self._draw(seed or 0)
            self._put_in()
            if self._begun and self.env is not before and self._in_turn:
                skipped = self._begun  # one that is made anew would begin with the first scene
        self._is_new = False
        self._before(seed or 0)
        self._look_anew(0)
        edits = self._on.model.edits if self._on else []
        with edited_models(edits) if edits else nullcontext():  # some make it anew
            for past in skipped:
                self.env.reset(seed=past)
            observation, info = self.env.reset(seed=seed, options=options)
        self._begun.append(seed)
        self._won = False
        on, known = self._on, self._survey
        if on is None:
            return observation, info
        take = [self._spec.gap_seed, seed or 0]
        self._t_s, self._start_s, self._frame = 0.0, 0.0, 0
        self._sent: NDArray[Any] | None = None
        self._late = deque[NDArray[Any]]()
        on.images.reset([*take, 23])
        self._noise = np.random.default_rng([*take, 25])
        on.sensors.reset([*take, 21])
        if isinstance(on.model, WorldModel):
            observation = self._reset_model(on.model, seed or 0, observation)
        servos = known.servos if known else ()
        self._columns = np.array([k for k, s in enumerate(servos) if s >= 0], dtype=int)
        self._servos = np.array([s for s in servos if s >= 0], dtype=int)
        sent = known.sent if known and servos else ()
        self._sent_per, self._sent_at_0 = np.reshape(sent, (-1, 2))[self._columns].T
        now = self.data.ctrl[self._servos].copy() if len(self._servos) else np.zeros(0)
        self._goal = (now - self._sent_at_0) / self._sent_per
        on.commands.reset(self._goal, [*take, 24])
        self._written, self._last_t_s = now, -1.0
        return self._seen(observation), info

    def photo(self, seed: int) -> Path | None:
        """Return the photo behind an episode, or None."""
        if source := self._spec.conditions.get("backdrop"):
            return photo_of(Path(str(source)), seed)
        return background(self._spec.randomise, [self._spec.gap_seed, seed])

    def _before(self, seed: int) -> None:
        """Have the next episode drawn before its photo."""
        while self._drawers:
            self._drawers.popitem()[1].close()
        photo = self.photo(seed)
        if hasattr(self.unwrapped, "photo"):  # a scene file draws itself
            inner = cast(Any, self.unwrapped)
            inner.photo, inner.wording = photo, self._spec.conditions.get(INSTRUCTION, SEEN)
            return
        self._photo, known = photo, self._survey
        traced = self._spec.conditions.get("fidelity") == "traced"
        self._redraws = self._measures or photo is not None or traced
        if self._redraws and not (known and known.roles.cameras):
            missing = (
                "no camera of the model was found: name it in roles.yaml (cameras: [name])"
                if known
                else "its pictures aren't drawn by MuJoCo"
            )
            raise UnavailableError(f"Pictures can't be drawn anew here: {missing}.")

    def _redrawn(self, name: str, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return a picture before the photo, traced, or by the measured camera."""
        assert self._survey is not None
        roles = self._survey.roles
        cameras = roles.cameras
        called = {self.model.camera(c).name: c for c in cameras}
        height, width = picture.shape[:2]
        if name not in called and len(cameras) > 1:
            raise UnavailableError(
                f"Pictures can't be drawn anew here: the one {name or 'of render()'} may be of "
                f"{' or '.join(map(str, called))}. Name one camera in roles.yaml (cameras: [name])."
            )
        camera = called.get(name, cameras[0])
        known = next((m.view for m in roles.measured if m.camera == camera), None)
        if known is not None:
            width, height = known.size_px
        key = camera, width, height
        if key not in self._drawers:
            shown, lens = self.model.camera(camera).name, known.lens if known else None
            self._drawers[key] = LayeredCamera(self.model, shown, width, height, lens)
            self._drawers[key].forget(self._photo)
        drawn = self._drawers[key].draw(self.data)
        # gymnasium's renderer takes for granted that its own graphics context is the current one.
        viewer = getattr(getattr(self.unwrapped, "mujoco_renderer", None), "viewer", None)
        if viewer is not None:
            viewer.make_context_current()
        return drawn

    def close(self) -> None:
        """Free what it holds."""
        while self._drawers:
            self._drawers.popitem()[1].close()
        super().close()

    def _reset_model(self, on: WorldModel, seed: int, observation: Any) -> Any:
        if find_model(self.env)[0] is not self.model:  # made anew
            self._change(on)
        model, self.data = self.model, find_model(self.env)[1]
        data, thing = self.data, on.roles.object
        if on.boxes:
            on.place_boxes(model, data, seed)
        joint = int(model.body_jntadr[thing]) if thing >= 0 else -1
        if on.raised_m and joint >= 0 and int(model.jnt_type[joint]) == FREE:
            data.qpos[int(model.jnt_qposadr[joint]) + 2] += on.raised_m
        if on.boxes or on.raised_m:
            mujoco.mj_forward(model, data)
        if on.raised_m:
            for name in OBSERVERS:
                if observer := getattr(self.env.unwrapped, name, None):
                    return observer()
        return observation

    def step(self, action: Any) -> Any:
        """Pass on an action, or what arrives of it, and return what the policy sees of it."""
        on = self._on
        if on is None:
            observation, reward, terminated, truncated, info = self.env.step(action)
        else:
            servo = len(self._servos) > 0
            self._frame += 1
            self._look_anew(self._frame)
            each_step = servo and (on.commands.active or on.sensors.offsets_active)
            arrives = self._arrives(on, np.asarray(action), late=not servo)
            if each_step:
                self._start_s = self.data.time - self._t_s
                mujoco.set_mjcb_control(self._control)
            try:
                observation, reward, terminated, truncated, info = self.env.step(arrives)
            finally:
                if each_step:
                    mujoco.set_mjcb_control(None)
            self._t_s += self.period_s
            observation = self._seen(observation)
        if not self._warned and self.data is not None and diverged(self.data):
            self._warned = True
            logger.warning(
                "MuJoCo met NaN or huge numbers in %s and began anew in the midst of an attempt: "
                "such attempts tell nothing. Give the model a smaller timestep.", self.instruction,
            )  # fmt: skip
        said = [info[key] for key in SUCCESS_KEYS if key in info]
        self._won = bool(said and said[0])
        return observation, reward, terminated, truncated, info

    def _arrives(self, on: Appliers, action: NDArray[Any], *, late: bool) -> NDArray[Any]:
        """Return the action that the arm gets now; between two, as much of each as it is late."""
        if on.sensors.bus_out(self._t_s) and self._sent is not None:
            action = self._sent
        self._sent = action
        if not late or not on.commands.latency_s:
            return action
        steps, part = divmod(on.commands.latency_s / self.period_s, 1.0)
        # A pull starts from rest; where goals are sent, the first one stands for those before.
        rest = np.zeros_like(action) if isinstance(on.model, WorldModel) else action
        before = getattr(self.unwrapped, "rest_action", rest)
        if not self._late:
            self._late.extend([before] * (int(steps) + 2))
        self._late.append(action)
        self._late.popleft()
        mixed = (1.0 - part) * self._late[1] + part * self._late[0]
        return np.asarray(mixed, dtype=action.dtype)

    def _control(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        """Drive the servos; MuJoCo calls it at every physics step."""
        on, t_s = self._on, data.time - self._start_s
        if on is None or model is not self.model:
            return
        is_new, self._last_t_s = t_s != self._last_t_s, t_s  # some look again without stepping
        wanted = data.ctrl[self._servos]
        if not np.array_equal(wanted, self._written):
            self._goal = (wanted - self._sent_at_0) / self._sent_per
            on.commands.push(t_s, self._goal)
        if is_new:
            goal = on.commands.set_point(t_s) if on.commands.active else self._goal
            goal = goal - on.sensors.offset(t_s, self._angles())[self._columns]
            self._written = goal * self._sent_per + self._sent_at_0
        data.ctrl[self._servos] = self._written

    def _angles(self) -> Vector:
        assert self._survey is not None
        return np.asarray(self.data.qpos[self._survey.qpos] / self._survey.per_rad)

    def _seen(self, observation: Any) -> Any:
        """Return an observation through sensors and camera."""
        on, known = self._on, self._survey
        assert on is not None
        if known and known.readings and (on.sensors.shifts or on.sensors.stale_fraction):
            true = self._angles()
            shift = on.sensors.position(self._t_s, true.copy()) - true
            observation = writable(observation)
            vectors = dict(numbers_in(observation))
            for reading in known.readings:
                vectors[reading.path][reading.index] += shift[reading.joint] * reading.per_rad
        return self._pictured(observation) if on.images.active or self._redraws else observation

    def _pictured(self, value: Any, name: str = "") -> Any:
        if isinstance(value, Mapping):
            return {key: self._pictured(v, str(key)) for key, v in value.items()}
        if (picture := picture_of(value)) is None:
            return value
        assert self._on is not None
        if self._redraws:
            picture = self._redrawn(name, picture)
        return shown_as(value, self._on.images.picture(picture, self._noise, self._t_s))

    def render(self) -> Any:
        """Return the environment's picture, RGB, shape (height, width, 3), or None of none."""
        try:
            picture = self.env.render()
        except NotImplementedError:  # gymnasium's own, of an environment that draws nothing
            return None
        changed = self._on and (self._on.images.active or self._redraws)
        return self._pictured(picture) if changed else picture

    def success(self) -> bool:
        """Return what the environment said after the last step."""
        return self._won

    def silence(self) -> str:
        """Say that no step so far has told of success, or "" where one has."""
        return cast(Theirs, self.env).silence()


def _check(on: Appliers, known: Survey | None) -> None:
    """Raise UnavailableError for what nothing in the environment could show."""
    moves, servos = on.commands, bool(known and known.servos)
    limits = np.minimum(moves.speed_limit_rad_s, moves.acceleration_limit_rad_s2)
    bands = np.add(moves.play_rad, moves.dead_band_rad)
    drives = bands.any() or np.isfinite(limits).any()
    forces = on.sensors.force_drift_n or on.sensors.force_noise_n
    shown = servos or (known and known.readings)
    for is_asked, lacks in (
        (known is None and (drives or on.sensors.shifts), "no MuJoCo model was found in it"),
        (not servos and drives, "no position servos drive its arm"),
        (on.sensors.shifts and not shown, "its observation shows no joint angles"),
        (not servos and moves.faults, "no position servos drive its arm"),
        (moves.heat, "only the embedded cell's servos warm over a session"),
        (on.images.active and known and not known.shows_pictures, "it shows no pictures"),
        (on.model.hand, "a person reaches into the embedded cell only"),
        (forces, "only arms of the embedded cell have force sensors"),
    ):
        if is_asked:
            raise UnavailableError(lacks)


def set_up(on: Appliers, conditions: Mapping[str, Any]) -> None:
    """Set up what an experimenter changes; objects are in proportion to the scene's own.

    Raises:
        UnavailableError: the scene hasn't got it.
    """
    for name in conditions:
        if name in ONLY_HERE:
            raise UnavailableError(f"{name} belongs to the embedded cell")
    wanted, model = parse_conditions(conditions), on.model
    if "lighting" in conditions:
        model.light(LIGHTINGS[wanted.lighting])
    for _ in range(wanted.distractors):
        model.add_box((OBJECT_HALF_M,) * 3)
    if wanted.fidelity != FIDELITIES[0]:
        model.edit(at_fidelity(wanted.fidelity))
    model.move_camera(wanted.camera_pose)
    if wanted.table_height:
        model.move_table(wanted.table_height)
    thing, cube = OBJECTS[wanted.object], OBJECTS["red_cube"]
    if thing is not cube:
        factors = [a / b for a, b in zip(thing.half_size_m, cube.half_size_m, strict=True)]
        if thing.shape == "cylinder":
            model.make_cylinder()
        model.scale_object(*factors)
        model.change_density(thing.mass_kg / cube.mass_kg / float(np.prod(factors)))
    if HUMANS[wanted.human]:
        put_into(on, (), {f"human_behavior.{wanted.human}": HUMANS[wanted.human]})
