"""Whether the prompts of a step can be shared out among processes and random streams."""

from typing import Any

from grpo_lab.errors import ConfigError


def check(config: Any) -> None:
    """Raise ConfigError where processes or streams would not get equal shares of a step, or would drift apart."""
    processes, streams = config.run.processes, config.run.streams or config.run.processes
    if streams % processes:
        raise ConfigError(
            f"run.streams = {streams} with run.processes = {processes}: each process needs the same number of streams; "
            f"use {processes} or a multiple of it"
        )
    if processes > 1 and config.loss.accumulation == "step_inside":
        raise ConfigError(
            f"loss.accumulation = 'step_inside' with run.processes = {processes}: each process would update by its own "
            "gradients, and they would drift apart; show it with one process"
        )
    prompts = {"data.num_prompts": config.data.num_prompts}
    prompts |= {f"objectives.{each.name}.num_prompts": each.num_prompts for each in config.objectives}
    if "sft" in config.run.stages:
        prompts["sft.batch_size"] = config.sft.batch_size
    for name, count in prompts.items():
        if count and count % streams:
            over = "more processes than prompts" if count < processes else "unequal shares"
            raise ConfigError(
                f"{name} = {count} with run.processes = {processes} and {streams} random streams: {over}; "
                f"use {streams} prompts or a multiple of it"
            )


def resized(config: Any, processes: int | None) -> Any:
    """The config of a run that goes on with another number of processes; None for as many as it has.

    It keeps its random streams, and so the tokens that it samples, where the processes can share them out.
    """
    if processes is None or processes == config.run.processes:
        return config
    if processes < 1:
        return config.with_(f"run.processes={processes}")  # which raises ConfigError
    streams = config.run.streams or config.run.processes
    return config.with_(f"run.processes={processes}", f"run.streams={0 if streams % processes else streams}")
