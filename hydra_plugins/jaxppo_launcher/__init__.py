"""Hydra finds launchers here alone: `hydra/launcher=jaxppo`, a sweep as one program."""

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class Together(Launcher):
    """Jobs whose programs have one shape are members of one program; see jaxppo.launch.sweeping."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keep what `launch` needs.

        Hydra's sweepers compose every job once to see that it can be. What they composed is kept
        for `launch`, which would otherwise take as long again.
        """
        self.context, self.task, self.config = hydra_context, task_function, config
        composed: dict[tuple[str, ...], DictConfig] = {}
        loader = hydra_context.config_loader
        load = loader.load_sweep_config

        def keep(master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
            settings = load(master_config, sweep_overrides)
            composed[tuple(sweep_overrides)] = settings
            return settings

        def compose(overrides: Sequence[str]) -> DictConfig:
            return composed.pop(tuple(overrides), None) or load(config, list(overrides))

        loader.load_sweep_config, self.compose = keep, compose

    def launch(self, job_overrides: Sequence[Any], initial_job_idx: int) -> list[JobReturn]:
        """Run the jobs, and return what became of each."""
        from jaxppo.launch.sweeping import launch

        return launch(
            self.context, self.task, self.config, self.compose, job_overrides, initial_job_idx
        )


ConfigStore.instance().store(
    group="hydra/launcher",
    name="jaxppo",
    node={"_target_": "hydra_plugins.jaxppo_launcher.Together"},
    provider="jaxppo",
)
