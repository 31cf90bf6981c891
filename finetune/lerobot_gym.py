"""Any policy and any gymnasium environment, rolled out by LeRobot's own code.

`lerobot_eval.rollout` steps a batch of environments; here its batches are counted scene by scene,
kept as they come and given intervals, like rollouts of the embedded cell. A script that was written
for an environment drives it as it is.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.envs import (
    close_envs,
    env_to_policy_features,
    make_env,
    make_env_pre_post_processors,
)
from lerobot.envs.configs import EnvConfig
from lerobot.policies import make_policy, make_pre_post_processors
from lerobot.utils.constants import ACTION, OBS_IMAGE, OBS_IMAGES
from numpy.typing import NDArray
from peft import PeftModel

from gaploop.collect.policy_leader import checked_speed
from gaploop.core import platform_calls
from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.journal_format import TRUTH, append_truth
from gaploop.core.labels import LabelEvent
from gaploop.core.schema import named_function
from gaploop.core.take import Take
from gaploop.core.vocabulary import Domain
from gaploop.datasets.labels import open_labelled
from gaploop.datasets.lerobot_read import load_takes
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.evaluate import condition_name
from gaploop.finetune.evaluation import Evaluation, Rollout, RolloutLog, summarise
from gaploop.finetune.lerobot_act import ActBundle
from gaploop.finetune.lerobot_formats import REFERENCE, format_named
from gaploop.finetune.lerobot_policy import device_named, policy_id, resolve
from gaploop.finetune.lerobot_trust import refuse_foreign_code
from gaploop.finetune.workers import run_jobs
from gaploop.sim.demonstrators import Demonstration, Demonstrator, Replayed, show
from gaploop.sim.gaps.mechanism import UnavailableError
from gaploop.sim.lerobot_worlds import STATES, GymAttempts, GymEnvConfig, features_of, vectors
from gaploop.sim.scene_file import load_scene
from gaploop.sim.scene_world import SceneWorld
from gaploop.sim.world import NOMINAL as NOMINAL_WORLD
from gaploop.sim.world import WorldSpec, shows_scenes_in_turn

logger = logging.getLogger(__name__)

DEMONSTRATOR: Final = "demonstrator"
"""Names a scene file's own as a policy."""
REPLAY: Final = "replay:"
"""Before a folder of demonstrations that are carried over to other scenes of their file."""
WORTHWHILE: Final = 4
"""Attempts for which another process isn't too much: it takes seconds to begin."""
EXTRAS: Final = {"gym_pusht": "pusht", "gym_aloha": "aloha", "libero": "libero"}
"""Package of an environment to the extra of LeRobot that installs it."""


def evaluate_gym(
    policy_path: str | Path,
    env: EnvConfig,
    n: int = 50,
    *,
    seed: int = 0,
    batch: int = 1,
    folder: Path | None = None,
    on_rollouts: Callable[[Sequence[Rollout]], None] = lambda _rollouts: None,
    on_cores: Callable[[int], None] = lambda _cores: None,
    spec: WorldSpec = NOMINAL_WORLD,
    conditions: Sequence[Mapping[str, Any]] = ({},),
    demonstrations: Demonstrations | None = None,
    ray: str = "",
    loading: Mapping[str, Any] | None = None,
    speed_scale: float = 1.0,
) -> Evaluation:
    """Try a policy on `n` scenes of each task of an environment, under each condition.

    Args:
        policy_path: a LeRobot policy or adapter, a folder or its name on the Hub; or a script's
            module:name, a function from observation to action, or a class of such with get_action.
        seed: of the first scene; equal seeds give equal scenes where the environment keeps to them.
        batch: processes, or environments that step side by side; one alone where an environment
            doesn't keep to its seeds.
        ray: address of a Ray cluster that does the work of a world; "" for processes here.
        folder, on_cores: as for `evaluate`.
        spec: what is injected.
        conditions: settings to try one at a time; what the environment can't have is left out with
            a warning.
        demonstrations: gets the attempts that succeed.
        loading: device, threads and format of the policy, as of `load_policy`.
        speed_scale: as of `GymAttempts`.

    Raises:
        UnusableInputError: no rollouts asked for, no policy, no such environment installed, or a
            gap that it can't have.
        GaploopError: policy and environment don't fit.
    """
    if demonstrations is not None and not isinstance(env, GymEnvConfig):
        raise UnusableInputError("--dataset.root keeps what happens in --env.gym or --env.scene.")
    if n < 1 or batch < 1:
        raise UnusableInputError(f"--n={n} and --workers={batch} must be at least 1.")
    how = dict(loading or {})
    driver = GymDriver(policy_path, how, checked_speed(speed_scale))
    log = RolloutLog(folder, _settings(driver, env, spec, how, speed_scale)) if folder else None
    held = log.held if log else {}
    rollouts = list[Rollout]()
    left_out = dict[tuple[str, str], list[Mapping[str, Any]]]()
    for setting in conditions:
        here = replace(spec, conditions={**spec.conditions, **setting})
        alone = driver.script is not None or not here.is_nominal or isinstance(env, GymEnvConfig)
        alone = alone or speed_scale < 1
        kept = demonstrations is not None
        made = driver.worlds(env, here, kept=kept) if alone else _environments(env, batch, n)
        with contextlib.ExitStack() as stack:
            try:
                tasks = stack.enter_context(made)
            except UnavailableError as error:
                if not setting:
                    raise
                why = str(error.__cause__ or error)
                left_out.setdefault((", ".join(setting), why), []).append(setting)
                continue
            for task, vector in tasks.items():
                names = [f"task={task}"] if task else []
                names += [condition_name(setting)] if setting or not task else []
                condition = ", ".join(names)
                known = [r for s in range(seed, seed + n) if (r := held.get((condition, s)))]
                rollouts += known
                on_rollouts(known)
                lacking = sorted({*range(seed, seed + n)} - {r.seed for r in known})
                job = Job(str(policy_path), env, here, task, tuple(lacking), how, speed_scale)
                if alone and not kept and (batch > 1 or ray) and job.can_be_spread():
                    count = len(lacking) if ray else 2 * batch
                    parts = run_jobs(_do, job.parts(count), batch, ray, on_cores)
                else:
                    on_cores(1 if alone else vector.num_envs)
                    parts = _here(driver, env, vector, lacking)
                for seeds, found in parts:
                    done = [
                        Rollout(scene, condition, won, lasted_s, reason)
                        for scene, (won, lasted_s, reason) in zip(seeds, found, strict=True)
                    ]
                    rollouts += done
                    if log:
                        log.add(done)
                    if demonstrations is not None:
                        told: dict[str, Any] = {"source": driver.source} if driver.source else {}
                        told |= {"seed": seeds[0], "gap_seed": spec.gap_seed}
                        demonstrations.add(vector.envs[0], told, success=done[0].success)
                    on_rollouts(done)
    for (factor, why), left in left_out.items():
        logger.warning("Left out: %s, %d settings: %s.", factor, len(left), why)
    return summarise(
        rollouts,
        domain=Domain.SIM,
        policy=driver.id,
        gaps=spec.gaps,
        gap_seed=spec.gap_seed,
        base=rollouts[0].condition,
        where=_where(env, spec, speed_scale),
    )


def _settings(
    driver: GymDriver, env: EnvConfig, spec: WorldSpec, how: Mapping[str, Any], speed_scale: float
) -> dict[str, Any]:
    """Return what `RolloutLog` keeps: rollouts of other settings aren't gone on with."""
    # The environment's options as JSON gives them back; its features follow from them.
    said = {k: v for k, v in asdict(env).items() if not k.startswith("features")}
    if not spec.is_nominal:
        said |= {"gaps": dict(spec.gaps), "gap_seed": spec.gap_seed, "roles": spec.roles}
        like = {"parameters": spec.parameters, "randomise": spec.randomise and str(spec.randomise)}
        said |= {name: value for name, value in like.items() if value}
    plain: dict[str, Any] = json.loads(json.dumps(said, default=str))
    settings = {"policy": driver.id, "env": env.type, **plain}
    if speed_scale != 1:
        settings["speed_scale"] = speed_scale
    if how.get("format"):
        settings["policy_format"] = how["format"]
    return settings


def _where(env: EnvConfig, spec: WorldSpec, speed_scale: float) -> str:
    if isinstance(env, GymEnvConfig):
        where = env.called
    else:
        where = f"{env.type}, {env.task}" if env.task else env.type
    where += f", {', '.join(spec.parameters)} as in the twin" if spec.parameters else ""
    where += ", drawn anew each time" if spec.randomise else ""
    return where + (f", at {speed_scale:g} of its speed" if speed_scale != 1 else "")


type Attempted = tuple[Sequence[int], list[tuple[bool, float, str]]]
"""Scenes, and of each what `GymDriver.attempts` returns."""


def _here(
    driver: GymDriver, env: EnvConfig, vector: Any, lacking: Sequence[int]
) -> Iterator[Attempted]:
    """Yield attempts in this process, as many at once as there are environments."""
    for start in range(0, len(lacking), vector.num_envs):
        seeds = lacking[start : start + vector.num_envs]
        yield seeds, driver.attempts(env, vector, seeds, max(lacking) + 1)


@dataclass(frozen=True)
class Job:
    """Scenes of one world, as plain data that can go to another process."""

    policy: str
    env: EnvConfig
    spec: WorldSpec
    task: str
    seeds: tuple[int, ...]
    loading: Mapping[str, Any] = field(default_factory=dict)
    speed_scale: float = 1.0

    def parts(self, count: int) -> list[Job]:
        """Return the work in so many parts, or fewer."""
        size = max(WORTHWHILE, -(-len(self.seeds) // count))
        starts = range(0, len(self.seeds), size)
        return [replace(self, seeds=self.seeds[i : i + size]) for i in starts]

    def can_be_spread(self) -> bool:
        """Say whether processes are worth it, and a scene depends on its seed alone.

        Where a new environment begins with the same scene whatever its seed, several would show
        the same scenes again.
        """
        if len(self.seeds) < 2 * WORTHWHILE:
            return False
        return not shows_scenes_in_turn(
            lambda: vectors(self.env, NOMINAL_WORLD, raw=True)[self.task].envs[0], self.seeds[:2]
        )


def _do(job: Job) -> Attempted:
    """Do a job, in any process."""
    driver = GymDriver(job.policy, job.loading, job.speed_scale)
    with driver.worlds(job.env, job.spec) as made:
        parts = list(_here(driver, job.env, made[job.task], job.seeds))
    return job.seeds, [attempt for _, found in parts for attempt in found]


class GymDriver:
    """A policy, or a script, that drives environments.

    Attributes:
        id: the policy's hash, or the script's name.
    """

    def __init__(
        self, policy: str | Path, loading: Mapping[str, Any] | None = None, speed_scale: float = 1.0
    ) -> None:
        """Find it; UnusableInputError where there is none. `loading` is as of `load_policy`."""
        self._loading, self._speed_scale = loading or {}, speed_scale
        self.source = ""
        """Uid of the demonstration that the last attempt replayed, or ""."""
        self.script = script_of(str(policy))
        self._path = None if self.script else resolve(policy)
        self.id = policy_id(self._path) if self._path else str(policy)
        self._side: Mapping[str, Any] | None = None

    @contextlib.contextmanager
    def worlds(
        self, env: EnvConfig, spec: WorldSpec, *, kept: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield an environment of every task, with what is injected, by the task's name."""
        made = vectors(
            env, spec, raw=self.script is not None, kept=kept, speed_scale=self._speed_scale
        )
        try:
            yield made
        finally:
            for vector in made.values():
                vector.close()

    def attempts(
        self, env: EnvConfig, vector: Any, seeds: Sequence[int], beyond: int
    ) -> list[tuple[bool, float, str]]:
        """Return of each scene whether it succeeded, how long it took [s], and why it ended.

        Args:
            beyond: the first scene that nobody asks for; those from there on fill a last batch.

        Raises:
            GaploopError: policy and environment don't fit.
        """
        rate_hz = float(env.fps)
        if isinstance(env, GymEnvConfig):
            rate_hz = self._speed_scale / float(vector.envs[0].world.period_s)
        if self._path and self._side is None:
            if isinstance(env, GymEnvConfig):  # only the environment knows what it shows
                env.features, env.features_map = features_of(vector.envs[0])
            self._side = _loaded(self._path, env, self._loading)
        try:
            if self.script:
                found = [self._attempt(vector.envs[0], seed) for seed in seeds]
            else:
                found = _rolled_out(vector, seeds, beyond, self._side or {})
        except UnusableInputError:
            raise
        except Exception as error:
            raise GaploopError(
                f"The rollout broke off ({_one_line(error)}). Does the policy take what this "
                "environment shows?"
            ) from error
        return [(won, steps / rate_hz, reason) for won, steps, reason in found]

    def _attempt(self, env: Any, seed: int) -> tuple[bool, int, str]:
        """Return success, steps and why it ended of a script's attempt at one scene."""
        observation, _ = env.reset(seed=seed)
        script: Any = self.script
        driver: Any = script
        if script is Demonstrator or isinstance(script, Replays):
            if not isinstance(env.unwrapped, SceneWorld):
                raise UnusableInputError("Only a scene file is demonstrated: name a script.")
            driver = script(env.unwrapped)
            self.source = driver.shown.uid if isinstance(driver, Replayed) else ""
        elif isinstance(script, type):
            driver = script()
        act = getattr(driver, "get_action", driver)
        if not callable(act):
            raise UnusableInputError(f"{self.id}: give the class get_action(observation).")
        steps, over, late, info = 0, False, False, dict[str, Any]()
        while not over and not late:
            observation, _, over, late, info = env.step(act(observation))
            steps += 1
        won = bool(info.get("is_success"))
        return won, steps, _reason(won, late=late)


class Replays:
    """Demonstrations recorded in a scene file, from which each attempt takes one.

    Args:
        folder: a dataset that gaploop recorded there, or its journal.

    Raises:
        UnusableInputError: there is none, or it doesn't say of which scenes its episodes are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, truth = folder, folder / TRUTH
        lines = truth.read_text().splitlines() if truth.is_file() else []
        said = {line["uid"]: line for line in map(json.loads, lines) if "seed" in line}
        self._takes = [
            (t, said[t.info.uid]["seed"]) for t in load_takes(folder) if t.info.uid in said
        ]
        if not self._takes:
            raise UnusableInputError(
                f"{folder} doesn't say of which scenes its episodes are. Record them anew with "
                "gaploop record --robot.scene, or evaluate --env.scene --dataset.root."
            )
        self._shown = dict[Path, list[Demonstration]]()

    def __call__(self, world: SceneWorld) -> Replayed:
        """Return what drives the present episode."""
        path = world.scene.path
        if path not in self._shown:
            with contextlib.closing(SceneWorld(load_scene(path))) as like:
                like.draws = False
                shown = [
                    show(like, take.info.uid, seed, _sent(take, like)) for take, seed in self._takes
                ]
            self._shown[path] = good = [one for one in shown if one.succeeded]
            logger.info(
                "%d of %d demonstrations in %s succeed again where they are replayed as they were "
                "recorded; the others are left out.", len(good), len(shown), self._folder,
            )  # fmt: skip
            if not good:
                raise UnusableInputError(
                    f"No demonstration in {self._folder} succeeds again in {path}. Was it recorded "
                    "in another scene, or with --robot.gaps?"
                )
        return Replayed(world, self._shown[path])


def _sent(take: Take, world: SceneWorld) -> NDArray[np.float64]:
    """Return what was sent to a scene's arm in each of its frames [rad, m]; the newest in time."""
    if take.info.joint_names != world.joint_names:
        raise UnusableInputError(
            f"Episode {take.info.uid} has the joints {', '.join(take.info.joint_names)}, "
            f"{world.scene.path} has {', '.join(world.joint_names)}."
        )
    t_s = take.frames.t_s - take.frames.t_s[0]
    frames = np.arange(round(t_s[-1] / world.period_s) + 1) * world.period_s
    rows = np.searchsorted(t_s, frames + world.period_s / 2.0) - 1
    return world.joints_of(take.frames.sent[rows])


def _rolled_out(
    vector: Any, seeds: Sequence[int], beyond: int, side: Mapping[str, Any]
) -> list[tuple[bool, int, str]]:
    """Return success, steps and why it ended of a policy's attempts at a few scenes."""
    from lerobot.scripts import lerobot_eval

    lerobot_eval.inside_slurm = lambda: True  # there it draws no bars of its own; ours counts
    # What a last, fuller batch gives beyond these is left out.
    extra = [beyond + i for i in range(vector.num_envs - len(seeds))]
    with torch.inference_mode():
        found = lerobot_eval.rollout(env=vector, seeds=[*seeds, *extra], **side)
    results = []
    for row in range(len(seeds)):
        over = found["done"][row].to(int)
        steps = int(torch.argmax(over)) + 1
        won = bool(found["success"][row, :steps].any())
        results.append((won, steps, _reason(won, late=steps == len(over))))
    return results


def attempted(bundle: ActBundle, env: EnvConfig, vector: Any, scene: int) -> bool:
    """Have a policy in memory attempt a scene of one environment; say whether it succeeded."""
    env.features, env.features_map = features_of(vector.envs[0])
    _require_sizes(bundle.policy.config, env)
    side = _side(bundle.policy, bundle.preprocessor, bundle.postprocessor, env)
    return _rolled_out(vector, [scene], scene + 1, side)[0][0]


def _side(policy: Any, before: Any, after: Any, env: EnvConfig) -> Mapping[str, Any]:
    """Return policy and processors as `lerobot_eval.rollout` takes them."""
    first, last = make_env_pre_post_processors(env_cfg=env, policy_cfg=policy.config)
    own = {"policy": policy, "preprocessor": before, "postprocessor": after}
    return {**own, "env_preprocessor": first, "env_postprocessor": last}


def _reason(won: bool, *, late: bool) -> str:
    ended = "time ran out" if late else "the environment ended it"
    return "success" if won else ended


def script_of(policy: str) -> Callable[..., Any] | None:
    """Return what a policy's module:name names; None where it is a folder or on the Hub."""
    if policy == DEMONSTRATOR:
        return Demonstrator
    if policy.startswith(REPLAY):
        return Replays(Path(policy.removeprefix(REPLAY)))
    if ":" not in policy or Path(policy).exists():
        return None
    return named_function(policy, "--policy.path", "module:name, a function or class")


@contextlib.contextmanager
def _environments(env: EnvConfig, batch: int, n: int) -> Iterator[dict[str, Any]]:
    """Yield the vector environment of every task, by the task's name, "" where there is one."""
    count = min(batch, n)
    try:
        made = make_env(env, n_envs=count, use_async_envs=count > 1)
    except ModuleNotFoundError as error:
        package = getattr(env, "package_name", "") or str(error.name)
        extra = EXTRAS.get(package, env.type)
        raise UnusableInputError(
            f"--env.type={env.type} needs the package {package}, which is not installed. Try: "
            f"pip install 'lerobot[{extra}]'"
        ) from None
    except Exception as error:
        raise UnusableInputError(
            f"--env.type={env.type}: the environment can't be made ({_one_line(error)})."
        ) from error
    try:
        several = sum(map(len, made.values())) > 1
        yield {
            f"{suite}/{task}" if several else "": vector
            for suite, tasks in made.items()
            for task, vector in tasks.items()
        }
    finally:
        close_envs(made)


def _loaded(path: Path, env: EnvConfig, how: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return policy and processors as `lerobot_eval.rollout` takes them."""
    refuse_foreign_code(path)
    change = format_named(how.get("format") or REFERENCE).torch
    if change is None:
        raise UnusableInputError(
            f"--policy.format={how['format']} drives arms and the embedded cell; LeRobot's "
            "environments take one that PyTorch computes: bf16, fp16, int8, int8_ao, int4, compile."
        )
    device_ = device_named(how.get("device", "cpu"))
    torch.set_num_threads(how.get("threads") or 1)
    try:
        config = PreTrainedConfig.from_pretrained(path)
        config.pretrained_path = path
        config.device = device_
        _require_sizes(config, env)
        is_adapter = adapter.is_adapter(path)
        if is_adapter:  # LeRobot would look for its base from the working directory
            config.pretrained_path, config.use_peft = adapter.base_folder(path), False
        policy = make_policy(cfg=config, env_cfg=env)
        if is_adapter:
            policy = adapter.merged(PeftModel.from_pretrained(policy, str(path)))
        policy.eval()
        change(policy)
        device = {"device_processor": {"device": device_}}
        pre, post = make_pre_post_processors(
            policy_cfg=config, pretrained_path=str(path), preprocessor_overrides=device
        )
        return _side(policy, pre, post, env)
    except UnusableInputError:
        raise
    except Exception as error:
        raise UnusableInputError(
            f"{path} can't drive --env.type={env.type}: {_one_line(error)}. Name a policy that was "
            "trained on this environment."
        ) from error


def _require_sizes(config: PreTrainedConfig, env: EnvConfig) -> None:
    """Refuse a policy whose vectors aren't as long as the environment's; UnusableInputError."""
    there = env_to_policy_features(env)
    for key, known in {**config.input_features, **config.output_features}.items():
        if key not in there or len(known.shape) != 1 or known.shape == there[key].shape:
            continue
        raise UnusableInputError(
            f"The policy's {key} has {known.shape[0]} numbers, that of "
            f"{getattr(env, 'called', env.type)} {there[key].shape[0]}. Name a policy that was "
            "trained on this environment."
        )


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


class Demonstrations:
    """Writes attempts that succeeded, as a policy would have seen them; a context manager.

    Attributes:
        failures: those that failed are written, too, and all are labelled as rollouts.
    """

    def __init__(self, root: Path, task: str = "", *, failures: bool = False) -> None:
        """Take note of where they go.

        Args:
            task: the instruction; the environment's own if "".

        Raises:
            UnusableInputError: something is there already.
        """
        if root.exists() and any(root.iterdir()):
            raise UnusableInputError(
                f"{root} isn't empty: demonstrations go into a new dataset. Name another "
                "--dataset.root, and put both together with gaploop edit."
            )
        self._root, self._task, self.failures = root, task, failures
        self._won, self._domain, self._units = list[bool](), "sim", ""
        self._scenes = list[dict[str, Any]]()
        self._dataset: Any = None

    def add(self, attempts: GymAttempts, scene: Mapping[str, Any], *, success: bool = True) -> None:
        """Write the last attempt, where it is wanted; of which `scene`, as truth.jsonl has it."""
        if not success and not self.failures:
            return
        frames = list[dict[str, Any]]()
        for seen, action in attempts.finished:
            frames.append({ACTION: action})
            for name, column in STATES.items():
                if np.size(state := seen.get(name, ())):
                    frames[-1][column] = np.asarray(state, dtype=np.float32)
            pixels = seen.get("pixels", {})
            for name, image in pixels.items() if isinstance(pixels, Mapping) else [("", pixels)]:
                frames[-1][f"{OBS_IMAGES}.{name}" if name else OBS_IMAGE] = image
        if self._dataset is None:
            inner = attempts.unwrapped
            said = attempts.metadata.get("joint_names", ())
            joints = inner.joint_names if isinstance(inner, SceneWorld) else said
            self._units = attempts.world.units if joints else ""
            self._dataset = LeRobotDataset.create(
                f"local/{self._root.name}",
                attempts.metadata["render_fps"],
                {key: _feature(key, value, joints) for key, value in frames[0].items()},
                root=self._root,
                robot_type="simulation",
            )
        for frame in frames:
            self._dataset.add_frame({**frame, "task": self._task or attempts.task})
        self._dataset.save_episode()
        platform_calls.no_highest_priority()  # what encoded its pictures took it, run by root
        self._won.append(success)
        injected = [asdict(gap) for gap in attempts.world.injected]
        self._scenes.append({**scene, "injected": injected})
        self._domain = "sim_target" if attempts.world.is_target else "sim"

    def __enter__(self) -> Demonstrations:
        if self._root.exists():
            self._root.rmdir()  # empty; LeRobot makes it itself
        return self

    def __exit__(self, error: object, *_rest: object) -> None:
        if self._dataset is None:
            if error is None:
                raise UnusableInputError(
                    f"No attempt succeeded: nothing is in {self._root}. Mend what demonstrates "
                    "(gaploop doctor tries waypoints), or keep failures: --dataset.failures=true."
                )
            return
        self._dataset.finalize()
        store = open_labelled(self._root)
        for episode, scene in zip(store.episodes, self._scenes, strict=True):
            append_truth(self._root, episode.info.uid, scene)
        if self.failures or self._units:
            store = store.add_columns()
            units = {"units": self._units} if self._units else {}
            rollout = {"kind": "rollout", "domain": self._domain} if self.failures else {}
            store.say([
                LabelEvent(e.info.uid, name, value, "gaploop evaluate", "auto")
                for e, won in zip(store.episodes, self._won, strict=True)
                for name, value in {
                    "outcome": "success" if won else "failure", **rollout, **units
                }.items()
            ])  # fmt: skip


def _feature(key: str, value: np.ndarray[Any, Any], joints: Sequence[str]) -> dict[str, Any]:
    """Return a column's description; `joints` name what gaploop record calls by them, too."""
    if value.dtype == np.uint8:
        names = ["height", "width", "channels"]
        return {"dtype": "video", "shape": value.shape, "names": names}
    names = [f"{key.rpartition('.')[2]}_{k}" for k in range(len(value))]
    if len(joints) == len(value) and key in (ACTION, STATES["agent_pos"]):
        names = [f"{joint}.pos" for joint in joints]
    return {"dtype": "float32", "shape": value.shape, "names": names}
