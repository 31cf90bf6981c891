"""Any policy and any gymnasium environment that LeRobot knows, rolled out by LeRobot's own code.

`lerobot_eval.rollout` steps a batch of environments; here its batches are counted scene by scene,
kept as they come and given intervals, like rollouts of the embedded cell.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.envs import close_envs, make_env, make_env_pre_post_processors
from lerobot.envs.configs import EnvConfig
from lerobot.policies import make_policy, make_pre_post_processors
from peft import PeftModel

from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.vocabulary import Domain
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.evaluation import NOMINAL, Evaluation, Rollout, RolloutLog, summarise
from gaploop.finetune.lerobot_policy import policy_id, resolve
from gaploop.finetune.lerobot_trust import refuse_foreign_code

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
) -> Evaluation:
    """Try a policy on `n` scenes of each task of an environment.

    Args:
        policy_path: a LeRobot policy or adapter, a folder or its name on the Hub.
        seed: of the first scene; equal seeds give equal scenes where the environment keeps to them.
        batch: environments that step side by side, each in a process of its own from 2 on.
        folder: keeps every rollout as it comes, as for `evaluate`.

    Raises:
        UnusableInputError: no rollouts asked for, no policy, or no such environment installed.
        GaploopError: policy and environment don't fit.
    """
    if n < 1 or batch < 1:
        raise UnusableInputError(f"--n={n} and --workers={batch} must be at least 1.")
    path = resolve(policy_path)
    identity = policy_id(path)
    # The environment's options as JSON gives them back; its features follow from them.
    said = {k: v for k, v in asdict(env).items() if not k.startswith("features")}
    plain: dict[str, Any] = json.loads(json.dumps(said, default=str))
    settings = {"policy": identity, "env": env.type, **plain}
    log = RolloutLog(folder, settings) if folder else None
    rollouts = list[Rollout]()
    with _environments(env, min(batch, n)) as tasks:
        side = _loaded(path, env)
        from lerobot.scripts import lerobot_eval

        lerobot_eval.inside_slurm = lambda: True  # there it draws no bars of its own; ours counts
        for condition, vector in tasks.items():
            known = log.held if log else {}
            held = [known[condition, s] for s in range(seed, seed + n) if (condition, s) in known]
            rollouts += held
            on_rollouts(held)
            done_seeds = {r.seed for r in held}
            lacking = [s for s in range(seed, seed + n) if s not in done_seeds]
            for start in range(0, len(lacking), vector.num_envs):
                wanted = lacking[start : start + vector.num_envs]
                # What a last, fuller batch gives beyond these is left out.
                extra = [max(lacking) + 1 + i for i in range(vector.num_envs - len(wanted))]
                try:
                    with torch.inference_mode():
                        found = lerobot_eval.rollout(env=vector, seeds=[*wanted, *extra], **side)
                except Exception as error:
                    raise GaploopError(
                        f"The rollout broke off ({_one_line(error)}). Does the policy take what "
                        "this environment shows?"
                    ) from error
                done = []
                for row, scene in enumerate(wanted):
                    over = found["done"][row].to(int)
                    steps = int(torch.argmax(over)) + 1
                    won = bool(found["success"][row, :steps].any())
                    ended = "time ran out" if steps == len(over) else "the environment ended it"
                    reason = "success" if won else ended
                    done.append(Rollout(scene, condition, won, steps / env.fps, reason))
                rollouts += done
                if log:
                    log.add(done)
                on_rollouts(done)
    return summarise(
        rollouts,
        domain=Domain.SIM,
        policy=identity,
        base=rollouts[0].condition,
        where=f"{env.type}, {env.task}" if env.task else env.type,
    )


@contextlib.contextmanager
def _environments(env: EnvConfig, count: int) -> Iterator[dict[str, Any]]:
    """Yield the vector environment of every task, by the task's name."""
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
            f"task={suite}/{task}" if several else NOMINAL: vector
            for suite, tasks in made.items()
            for task, vector in tasks.items()
        }
    finally:
        close_envs(made)


def _loaded(path: Path, env: EnvConfig) -> Mapping[str, Any]:
    """Return policy and processors as `lerobot_eval.rollout` takes them."""
    refuse_foreign_code(path)
    try:
        config = PreTrainedConfig.from_pretrained(path)
        config.pretrained_path = path
        if not torch.cuda.is_available() and str(config.device).startswith("cuda"):
            config.device = "cpu"
        is_adapter = adapter.is_adapter(path)
        if is_adapter:  # LeRobot would look for its base from the working directory
            config.pretrained_path, config.use_peft = adapter.base_folder(path), False
        policy = make_policy(cfg=config, env_cfg=env)
        if is_adapter:
            policy = adapter.merged(PeftModel.from_pretrained(policy, str(path)))
        policy.eval()
        device = {"device_processor": {"device": str(policy.config.device)}}
        pre, post = make_pre_post_processors(
            policy_cfg=config, pretrained_path=str(path), preprocessor_overrides=device
        )
        env_pre, env_post = make_env_pre_post_processors(env_cfg=env, policy_cfg=config)
    except UnusableInputError:
        raise
    except Exception as error:
        raise UnusableInputError(
            f"{path} can't drive --env.type={env.type}: {_one_line(error)}. Name a policy that was "
            "trained on this environment."
        ) from error
    return {
        "policy": policy,
        "preprocessor": pre,
        "postprocessor": post,
        "env_preprocessor": env_pre,
        "env_postprocessor": env_post,
    }


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
