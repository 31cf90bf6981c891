"""Worker processes that share a machine: one thread each, kept for the next piece of work.

Importing torch and LeRobot takes a process many seconds, a rollout under one: starting workers
anew for each evaluation would cost more than the rollouts.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from gaploop.core.errors import GaploopError

_pools: dict[int, ProcessPoolExecutor] = {}


def run_jobs[J, R](work: Callable[[J], R], jobs: Iterable[J], workers: int) -> Iterator[R]:
    """Yield `work(job)` of each job as it comes, in no particular order.

    Args:
        work: a function that other processes can import.
        jobs: its arguments, to be pickled.
        workers: processes; 1 works in this one.

    Raises:
        GaploopError: a worker died.
    """
    if workers <= 1:
        yield from map(work, jobs)
        return
    futures: list[Future[R]] = []
    try:
        pool = _pool(workers)
        futures += [pool.submit(work, job) for job in jobs]
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool:
        _pools.pop(workers, None)
        raise GaploopError(
            "A worker process died, perhaps for want of memory. Try again with --workers=1."
        ) from None
    finally:
        for future in futures:
            future.cancel()


def _pool(workers: int) -> ProcessPoolExecutor:
    """Return the pool of that size, started if need be with one thread per process.

    Two threads on a shared core were 4 to 11 times slower than one.
    """
    if workers not in _pools:
        context = multiprocessing.get_context("spawn")
        _pools[workers] = ProcessPoolExecutor(workers, context, _use_one_thread)
    return _pools[workers]


def _use_one_thread() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # read by torch, which is not imported yet
