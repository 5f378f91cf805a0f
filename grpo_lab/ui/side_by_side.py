"""Runs side by side, each in a child process, with a progress bar each; Ctrl-C ends all of them."""

import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from grpo_lab.analysis.memory import IMPORTS, MIB, free_mib, parts
from grpo_lab.config.schema import Config
from grpo_lab.errors import RunError
from grpo_lab.models.loading import locate
from grpo_lab.runs.child_pool import warm_child
from grpo_lab.runs.session import Session
from grpo_lab.training.registry import check
from grpo_lab.ui import console

ONE_THREAD = ("run.threads=1",)
"""One thread each, because the runs share the cores."""


def check_empty(directory: Path) -> None:
    """Raise RunError for a folder that holds anything."""
    if directory.exists() and any(directory.iterdir()):
        raise RunError(f"{directory} is not empty; choose another folder with --out, or delete it")


def run_all(configs: Mapping[str, Config], directory: Path) -> dict[str, Session]:
    """The finished session of each config, begun in their order, each in the folder of its name.

    Ctrl-C ends all runs. Raises ModelError for a model that is not here, and ConfigError as a session does.
    """
    for config in configs.values():
        check(config)
    for model in {config.model.name for config in configs.values()}:
        locate(model)
    stopping, sessions = threading.Event(), dict[str, Session]()

    def run(name: str) -> None:
        with warm_child() as child:
            session = sessions[name] = Session(configs[name], directory / name, child=child)
            session.views.append(console.ProgressView(bars, name))
            if stopping.is_set():
                session.stop()
            session.run()

    with console.progress() as bars, ThreadPoolExecutor(_jobs(configs.values())) as pool:
        running = [pool.submit(run, name) for name in configs]
        try:
            for one in as_completed(running):
                one.result()
        except BaseException:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for session in list(sessions.values()):
                session.stop()
            raise  # the pool waits for the running sessions, so that no process is left behind
    return {name: sessions[name] for name in configs}


def _jobs(configs: Iterable[Config]) -> int:
    """The number of runs that cores and free memory have room for; of each model one config is looked at.

    Half of the memory is left to activations, logits and cache.
    """
    cores, free = os.cpu_count() or 1, free_mib("cpu") or 0.0
    of_models = {config.model.name: config.with_("run.device=cpu") for config in configs}.values()
    largest = max((sum(parts(config).values()) for config in of_models), default=0)
    return max(1, min(cores, int(free * MIB / 2 / (IMPORTS + largest))))
