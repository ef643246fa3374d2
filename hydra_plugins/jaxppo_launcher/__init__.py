"""Hydra finds launchers here alone: `hydra/launcher=jaxppo`, a sweep as one program."""

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class Together(Launcher):
    """Jobs whose programs have one shape are members of one program; see jaxppo.launcher."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keep what `launch` needs."""
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Any], initial_job_idx: int) -> list[JobReturn]:
        """Run the jobs, and return what became of each."""
        from jaxppo.launcher import launch

        return launch(self.context, self.task, self.config, job_overrides, initial_job_idx)


ConfigStore.instance().store(
    group="hydra/launcher",
    name="jaxppo",
    node={"_target_": "hydra_plugins.jaxppo_launcher.Together"},
    provider="jaxppo",
)
