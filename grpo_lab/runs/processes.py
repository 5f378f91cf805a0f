"""The processes of a run: the first one starts the others on this machine, or `torchrun` has started all of them.

The first one is the run as everybody knows it, with its folder, views and commands. The others only train; they end
when it does. Run as a program, this module is one of the others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch

from grpo_lab.config.schema import Config
from grpo_lab.errors import ConfigError, GrpoLabError
from grpo_lab.events import encodable
from grpo_lab.models import loading
from grpo_lab.runs import checkpoints
from grpo_lab.training.distributed import PeerFailed, Processes, SharedTraining, launchers_store, new_store
from grpo_lab.training.trainer import events

LAST_WORDS, GRACE = 2.0, 5.0
"""Seconds in which a lost process may turn out to be dead, and in which one ends that was told to."""


def take_part(config: Config, processes: Processes) -> int:
    """Train as one of the other processes; return the exit code. An error is told to all; the first one reports it."""
    try:
        training = SharedTraining(processes, placed(config, processes.rank))
        told: Any = processes.hear(tuple)  # the first process knows what
        folder, training.resumed_at, overrides = told
        if training.resumed_at >= 0:
            training.saved = checkpoints.read(checkpoints.place(Path(folder), training.resumed_at))
        training.saved = {**training.saved, "overrides": overrides}
        for _ in events(training):
            pass
    except PeerFailed:
        return 1  # the process that failed reports it; so ends a run that the user stopped, too
    except GrpoLabError as error:
        print(str(error).partition("\n")[0], file=sys.stderr)
        return 1
    finally:
        processes.close()
    return 0


def started_by_torchrun(environment: Mapping[str, str] = os.environ) -> int:
    """The number of processes that `torchrun` or `accelerate launch` has started; 0 where this one is alone.

    >>> started_by_torchrun({"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node1"}), started_by_torchrun({})
    (4, 0)
    """
    size = int(environment.get("WORLD_SIZE", 0)) if {"RANK", "MASTER_ADDR"} <= environment.keys() else 0
    return size if size > 1 else 0


def joined(config: Config) -> Processes:
    """The processes that `torchrun` has started. Raises ConfigError for another number of them."""
    if (size := started_by_torchrun()) != config.run.processes:
        raise ConfigError(
            f"run.processes = {config.run.processes}, and the launcher started {size} processes; give it that number"
        )
    store, rank = launchers_store()
    return Processes(store, rank, size, config.run.peer_minutes)


def placed(config: Config, rank: int) -> Config:
    """The config with the GPU of this process, where several share a machine and none is named.

    >>> from grpo_lab.config.catalog import preset
    >>> placed(preset("smoke").with_("run.device=cuda", "run.processes=2"), 1).run.device
    'cuda:1'
    """
    if config.run.processes == 1 or ":" in config.run.device or loading.device_type(config.run.device) != "cuda":
        return config
    return config.with_(f"run.device=cuda:{os.environ.get('LOCAL_RANK', rank)}")


@contextmanager
def first_of_several(config: Config) -> Iterator[Processes]:
    """The processes of a run, in its first one; at the end the others end too."""
    if started_by_torchrun():
        with closing(joined(config)) as processes:
            yield processes
        return
    _share_cores(config)
    with closing(Peers(config)) as peers:
        processes = Processes(peers.store, 0, config.run.processes, config.run.peer_minutes, peers.last_words)
        with closing(processes):
            yield processes


class Peers:
    """The other processes of a run on this machine, and the store by which all of them meet."""

    def __init__(self, config: Config) -> None:
        self.store = new_store()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for rank in range(1, config.run.processes):
            process = self._processes[rank] = subprocess.Popen(
                [sys.executable, "-u", "-m", "grpo_lab.runs.processes"],
                stdin=subprocess.PIPE,
                stdout=2,  # a reward function may print
                start_new_session=True,  # Ctrl-C reaches the first process alone
            )
            order = {"rank": rank, "port": self.store.port, "config": encodable(config.to_dict())}
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it is dead, and `last_words` says so
                process.stdin.write(json.dumps(order).encode() + b"\n")
                process.stdin.flush()

    def last_words(self) -> str:
        """The ranks that are dead, and how they ended; empty where all live."""
        deadline = time.monotonic() + LAST_WORDS
        while not (dead := {r: p for r, p in self._processes.items() if p.poll() is not None}):
            if time.monotonic() > deadline:
                return ""
            time.sleep(0.05)
        return "; ".join(f"rank {rank} {_end(process.returncode)}" for rank, process in dead.items())

    def close(self) -> None:
        """End all that still live."""
        for process in self._processes.values():
            with suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.close()
        for process in self._processes.values():
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _end(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _share_cores(config: Config) -> None:
    """Give each process of this machine its part of the cores, where the run does not say how many."""
    if not config.run.threads:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // config.run.processes))


def main() -> int:
    """Take part in the run of the process that wrote the order; return the exit code."""
    lines = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115, a lock held in a read blocks exit
    order = json.loads(lines.readline())
    threading.Thread(target=_end_with, args=(lines,), daemon=True).start()
    config = Config.from_dict(order["config"])
    _share_cores(config)
    processes = Processes(new_store(order["port"]), order["rank"], config.run.processes, config.run.peer_minutes)
    return take_part(config, processes)


def _end_with(lines: IO[bytes]) -> None:
    """End this process when the first one has closed the pipe, or is dead."""
    while lines.readline():
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
