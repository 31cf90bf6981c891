"""LeRobot's own training on cached pictures.

`lerobot_train.train` has no place to hand a dataset in. `caching` puts our class behind the name
that LeRobot's factory opens datasets by; everything else is LeRobot's. Written against LeRobot
0.6.1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from lerobot.datasets import factory
from lerobot.scripts import lerobot_train

from gaploop.datasets.cache.folder import CacheOptions, Progress
from gaploop.datasets.cache.lerobot_cached import CachedLeRobotDataset, silent
from gaploop.datasets.cache.lerobot_scale_step import ScaleStep


@contextlib.contextmanager
def caching(cache: CacheOptions, progress: Progress = silent) -> Iterator[None]:
    """Let LeRobot's `train`, called inside, read from a frame cache.

    Where pictures are scaled, the policy's preprocessor gets a step that scales camera pictures
    the same way; it is saved with the policy.
    """
    dataset, processors = factory.LeRobotDataset, lerobot_train.make_pre_post_processors

    def with_scaling(*args: Any, **kwargs: Any) -> Any:
        before, after = processors(*args, **kwargs)
        if cache.size is not None:
            kept = [step for step in before.steps if not isinstance(step, ScaleStep)]
            before.steps = [ScaleStep(*cache.size), *kept]
        return before, after

    try:
        factory.LeRobotDataset = partial(CachedLeRobotDataset, cache=cache, progress=progress)
        lerobot_train.make_pre_post_processors = with_scaling
        yield
    finally:
        factory.LeRobotDataset = dataset
        lerobot_train.make_pre_post_processors = processors
