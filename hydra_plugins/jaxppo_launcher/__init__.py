"""Hydra finds launchers here alone.

`hydra/launcher=jaxppo` trains a sweep as one program. `jaxppo_ray` and `jaxppo_slurm` split it into
shares, one program each, for the workers of Ray or SLURM.
"""

from collections.abc import Sequence
from functools import partial
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
        if task_function.__module__ != "jaxppo.launch.command_line":
            from jaxppo.launch.errors import refuse

            chosen = config.hydra.runtime.choices["hydra/launcher"]
            refuse(f"hydra/launcher={chosen}: is for jaxppo's own commands only; leave it out", 2)
        self.context, self.config = hydra_context, config
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
            self.context,
            self.config,
            self.compose,
            job_overrides,
            initial_job_idx,
            self._train_all(initial_job_idx),
        )

    def _train_all(self, first: int) -> Any:
        """Return the function that trains all programs; None: `sweeping.train` for each."""
        return None


class Shares(Together):
    """Jobs in shares, which the workers of another launcher train; see jaxppo.launch.sharing."""

    def __init__(self, over: DictConfig, workers: int) -> None:
        """Take the settings, which are read from `config` later."""

    def _train_all(self, first: int) -> Any:
        from jaxppo.launch.sharing import train_in_shares

        # The context is sent to the workers, which need no composed settings
        vars(self.context.config_loader).pop("load_sweep_config", None)
        return partial(train_in_shares, self.context, self.config, first)


def _store(name: str, node: dict[str, Any]) -> None:
    ConfigStore.instance().store(group="hydra/launcher", name=name, node=node, provider="jaxppo")


def _store_shares(name: str, over: str, settings: dict[str, Any]) -> None:
    """Store a launcher whose shares are jobs of the launcher `over`, with changed `settings`."""
    _store(
        name,
        {
            "defaults": [{"/hydra/launcher@over": over}, "_self_"],
            "_target_": "hydra_plugins.jaxppo_launcher.Shares",
            "_recursive_": False,  # the launcher below is made with another configuration
            "workers": 2,
            "over": settings,
        },
    )


_store("jaxppo", {"_target_": "hydra_plugins.jaxppo_launcher.Together"})
_store_shares("jaxppo_shares", "basic", {})  # for hydra/launcher@hydra.launcher.over=NAME
_ray = {
    "init": {"object_store_memory": None},  # a cluster that runs already refuses the plugin's value
    "remote": {"num_cpus": 1, "num_gpus": 0, "max_retries": 3},  # what a share needs
}
_store_shares("jaxppo_ray", "ray", {"ray": _ray})
# A share resumes, so one that reaches its time limit may be submitted again
_store_shares("jaxppo_slurm", "submitit_slurm", {"max_num_timeout": 100})
