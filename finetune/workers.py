"""Worker processes that share a machine: one thread each, kept for the next piece of work.

Importing torch and LeRobot takes a process many seconds, a rollout under one: starting workers
anew for each evaluation would cost more than the rollouts.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any, Final

from gaploop.core import platform_calls
from gaploop.core.errors import GaploopError, UnusableInputError

LOCAL: Final = "local"
"""Address of a Ray cluster that is started here, for as long as it is needed."""

_pools: dict[int, tuple[ProcessPoolExecutor, Connection]] = {}
"""By size: the pool, and what its workers hang on; they end when it is closed."""


def run_jobs[J, R](
    work: Callable[[J], R], jobs: Iterable[J], workers: int, ray: str = "",
    on_cores: Callable[[int], None] = lambda _cores: None,
) -> Iterator[R]:  # fmt: skip
    """Yield `work(job)` of each job as it comes, in no particular order.

    Args:
        work: a function that other processes can import.
        ray: address of a Ray cluster whose machines do the work instead, such as `auto` or
            `ray://head:10001`; `local` starts one here. "" for none.
        on_cores: called with how many processes, each with a core, do the work.

    Raises:
        GaploopError: a worker died.
        UnusableInputError: Ray isn't installed, or its cluster can't be reached.
    """
    if ray:
        yield from _on_ray(work, jobs, ray, on_cores)
        return
    on_cores(max(workers, 1))
    if workers <= 1:
        yield from map(work, jobs)
        return
    futures: list[Future[R]] = []
    try:
        # One thread per process: two threads on a shared core were 4 to 11 times slower than one.
        if workers not in _pools:
            context = multiprocessing.get_context("spawn")
            held, leash = context.Pipe(duplex=False)
            _pools[workers] = ProcessPoolExecutor(workers, context, _begin, (held,)), leash
        pool, _ = _pools[workers]
        with platform_calls.starting_deaf():
            futures += [pool.submit(work, job) for job in jobs]
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool:
        _pools.pop(workers, None)
        raise GaploopError(
            "A worker process died, perhaps for want of memory. Try again with --workers=1."
        ) from None
    except (KeyboardInterrupt, SystemExit):
        if workers in _pools:  # ends its workers: else the program would wait many minutes
            _pools.pop(workers)[1].close()
        raise
    finally:
        for future in futures:
            future.cancel()


def _begin(held: Connection) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # read by torch, which is not imported yet
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches them, too: who waits decides
    threading.Thread(target=_end_with_parent, args=(held,), daemon=True).start()


def _end_with_parent(held: Connection) -> None:
    """Wait until who asked for the work wants no more or is gone, however it ended, and go too."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel, held])
        os._exit(1)


def _on_ray[J, R](
    work: Callable[[J], R], jobs: Iterable[J], address: str, on_cores: Callable[[int], None]
) -> Iterator[R]:
    """Do jobs on a Ray cluster, each on a core and with a thread of its own.

    Ray moves a job that died with its machine to another one, and starts no more than the cluster
    has cores for.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise UnusableInputError(
            "Ray isn't installed: pip install 'gaploop[ray]', on every machine of the cluster."
        ) from None
    plain: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {}
    try:
        ray.init(address, log_to_driver=False, logging_level="error", **plain)
    except Exception as error:  # noqa: BLE001  (Ray raises bare ones, too)
        raise UnusableInputError(
            f"{address}: no Ray cluster there ({' '.join(str(error).split())}). "
            "Start one with: ray start --head; then the same again."
        ) from None
    try:
        remote = ray.remote(num_cpus=1, max_retries=3)(work)
        waiting = [remote.remote(job) for job in jobs]
        on_cores(min(int(ray.cluster_resources().get("CPU", 1)), len(waiting)))
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1)
            yield ray.get(done[0])
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, GaploopError) else GaploopError(str(cause)) from None
    except ray.exceptions.RayError as error:
        raise GaploopError(f"Ray gave up: {' '.join(str(error).split())}") from None
    finally:
        ray.shutdown()
