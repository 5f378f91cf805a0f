"""Workers of a cluster that do independent tasks in place of processes of this machine: dask or ray.

A task is one call of a function on one worker. The caller waits for each in a thread of `side_by_side`, so that order,
progress and Ctrl-C are those of local tasks; joblib's backends would bring batches, and ray's a result only at the end.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from grpo_lab.errors import ConfigError, RunError, check_known
from grpo_lab.runs.commands import handled, signals

Task = TypeVar("Task")
Done = TypeVar("Done")


def side_by_side(
    tasks: Sequence[Task], run: Callable[[Task], Done], jobs: int, end: Callable[[], None]
) -> Generator[Done]:
    """The result of `run` for each task, in the order in which they are ready, from `jobs` threads.

    Threads are enough, because each task does its work in a process of its own; a pool of processes would die whole
    with one crash. After Ctrl-C or SIGTERM the tasks that did not begin have no result. `end` ends the running tasks
    at once; it is called when a task raises and when this generator is closed before its end.
    """
    stopping = threading.Event()

    def one(task: Task) -> tuple[Done] | None:
        return None if stopping.is_set() else (run(task),)

    with signals(stopping.set, stopping), ThreadPoolExecutor(jobs) as threads:
        try:
            waiting = {threads.submit(one, task) for task in tasks}
            while waiting:
                # Windows handles no Ctrl-C while a thread waits, so no wait is long.
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                yield from (result[0] for future in done if (result := future.result()))
        except BaseException:
            stopping.set()
            end()
            raise


WAIT = 20.0
"""Seconds that a cluster may take to answer."""
RETRIES = 3
"""Workers that a task may lose before it counts as the cause."""


class WorkerLost(RunError):
    """Every worker that had a task died."""


def connect(backend: str, address: str, jobs: int) -> Cluster | None:
    """The cluster behind an address, or a new one on this machine; None for `local`, which needs none.

    Raises ConfigError for an unknown backend and for one that is not installed, RunError where nothing answers.
    """
    check_known("backend", [backend], CLUSTERS)
    if address and backend == "local":
        raise ConfigError(f"--scheduler {address} belongs to --backend dask or ray")
    try:
        # Processes that start here ignore Ctrl-C, which reaches all of a terminal: it is for the command.
        with handled({signal.SIGINT: signal.SIG_IGN}):
            return CLUSTERS[backend](address, jobs)
    except ImportError as error:
        raise ConfigError(f"--backend {backend} is not installed: pip install 'grpo-lab[{backend}]'") from error
    except (OSError, TimeoutError, ValueError, ConnectionError) as error:
        cause = str(error).partition("\n")[0] or type(error).__name__
        raise RunError(f"no {backend} cluster answers at {address or 'this machine'} ({cause})") from error


class Dask:
    """Workers of dask.distributed.

    `jobs` is the number of tasks that they do at a time; `private` says that nobody else can read what travels to them.
    """

    def __init__(self, address: str, jobs: int) -> None:
        import dask.config  # pyright: ignore[reportMissingImports]
        from distributed import Client, LocalCluster  # pyright: ignore[reportMissingImports]

        # By default dask gives a worker up that is being started again 15 s after it was lost, and tasks wait for ever.
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 day"})
        # Without an address, its page would want port 8787, which another cluster may have.
        quiet = {"dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
        self._own = None if address else LocalCluster(n_workers=jobs, threads_per_worker=1, processes=True, **quiet)
        self._client = Client(self._own or address, timeout=WAIT)
        workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        self.jobs = sum(worker["nthreads"] for worker in workers) or jobs
        self.private = not address or address.startswith("tls://")

    def run(self, function: Callable[..., Any], *given: Any) -> Any:
        """The result of a function of this package on a worker; a worker that dies costs one more try.

        Raises WorkerLost, RunError for a worker with another version, and any error of the function.
        """
        from distributed import KilledWorker  # pyright: ignore[reportMissingImports]

        try:
            return self._client.submit(checked, package_digest(), function, *given, pure=False).result()
        except KilledWorker as error:
            raise WorkerLost(f"{RETRIES + 1} workers died with this task") from error

    def close(self) -> None:
        """Leave the cluster, and end it where it was started here."""
        self._client.close()
        if self._own:
            self._own.close()


class Ray:
    """Workers of ray, as Dask has them."""

    def __init__(self, address: str, jobs: int) -> None:
        import ray  # pyright: ignore[reportMissingImports]

        if ":" in address:  # ray itself would wait for minutes
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host, int(port)), WAIT).close()
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # it warns that this will be its default
        more: dict[str, Any] = {"address": address} if address else {"num_cpus": jobs, "include_dashboard": False}
        ray.init(log_to_driver=False, logging_level=logging.CRITICAL, **more)
        self._ray, self._task = ray, ray.remote(max_retries=RETRIES)(checked)
        self.jobs = int(ray.cluster_resources().get("CPU", jobs)) if address else jobs
        self.private = not address or os.environ.get("RAY_USE_TLS") == "1"

    def run(self, function: Callable[..., Any], *given: Any) -> Any:
        """See Dask."""
        try:
            return self._ray.get(self._task.remote(package_digest(), function, *given))
        except self._ray.exceptions.WorkerCrashedError as error:
            raise WorkerLost(f"{RETRIES + 1} workers died with this task") from error
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def close(self) -> None:
        """See Dask."""
        self._ray.shutdown()


Cluster = Dask | Ray
CLUSTERS: dict[str, Callable[[str, int], Cluster | None]] = {
    "local": lambda address, jobs: None,
    "dask": Dask,
    "ray": Ray,
}
"""By the name of a backend: from an address and the number of tasks at a time."""


def checked(version: str, function: Callable[..., Any], *given: Any) -> Any:
    """The result of a function, on a worker. Raises RunError where the worker's package differs from the caller's."""
    if package_digest() != version:
        raise RunError(
            f"the worker on {socket.gethostname()} has another version of grpo_lab; install the same on all workers"
        )
    return function(*given)


@cache
def of_this_worker(kind: Callable[..., Any], *given: Any) -> Any:
    """What `kind` makes of these values, once on a worker, for all of its tasks; it is closed when the worker ends."""
    made = kind(*given)
    atexit.register(made.close)
    return made


@cache
def package_digest() -> str:
    """A digest of the package's code."""
    package = Path(__file__).parents[1]
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return found.hexdigest()
