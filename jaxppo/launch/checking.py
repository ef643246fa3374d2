"""Check runs and sweeps before Hydra makes a directory."""

import dataclasses
import os
import sys
import typing
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict

from jaxppo import envs
from jaxppo.analysis import sweep
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config
from jaxppo.config.stored import CONFIG, LOCAL, plain
from jaxppo.envs import contract
from jaxppo.envs.contract import glance
from jaxppo.launch.command_line import checked, endings
from jaxppo.launch.composing import literal, without_plus
from jaxppo.launch.continuing import end_sweep
from jaxppo.launch.errors import one_line
from jaxppo.launch.resuming import settings_of, warn_of_omitted_sinks
from jaxppo.launch.sharing import check_workers
from jaxppo.launch.sweeping import check_sweep, check_sweeper
from jaxppo.runtime.hosts import clusters, processes
from jaxppo.runtime.run.jobs import prepare
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.directories import check_run_dir, claim


class Check(Callback):
    """Checks a run or sweep before Hydra makes its directory, then locks that directory.

    Nothing is written to the directory of a run or sweep before the checks.
    """

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check a single run. Of several processes only the first has its directory."""
        with one_line():
            processes.join(_distributed(config))
            without_plus(config)
            with processes.agreeing():
                settings = settings_of(config, config.hydra)
            settings = _with_one_seed(config, settings)
            processes.check_alike(_facts(settings))
            with processes.agreeing():
                checked[:] = [(settings, prepare(settings))]
                if processes.is_first():
                    _check_run(config, settings)
            if processes.count() > 1:
                _share_directory(config)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check a sweep."""
        with one_line():
            if clusters.find(_distributed(config), os.environ) is not None:
                raise ConfigError(
                    "-m: a sweep cannot run in several processes; start it once with "
                    "hydra/launcher=jaxppo_slurm or jaxppo_ray, or train it in each process with "
                    "arch.distributed=null"
                )
            check_workers(config.hydra.launcher)
            sweep_dir = _directory(config, "hydra.sweep.dir")
            _check_sweep_dir(sweep_dir)
            typed = list(config.hydra.overrides.task)
            check_sweeper(config.hydra.sweeper, typed)
            check_sweep(config.hydra.job.config_name, typed)
            _claim("hydra.sweep.dir", sweep_dir)
            _check_sweep_dir(sweep_dir)  # another process may have been faster
            console = bool(OmegaConf.select(config, "logger.console"))
            endings.callback(end_sweep, sweep_dir, console=console)


def _check_run(config: DictConfig, settings: Config) -> None:
    """Check the directory of a run, warn of its settings, and lock it."""
    if settings.resume is None:
        run_dir = _directory(config, "hydra.run.dir")
        check_run_dir("hydra.run.dir", run_dir)
    else:
        warn_of_omitted_sinks(Path(settings.resume), settings)
    _warn_of_environment(settings)
    if settings.resume is None:
        _claim("hydra.run.dir", run_dir)
        check_run_dir("hydra.run.dir", run_dir)  # another process may have been faster


def _distributed(config: DictConfig) -> dict[str, Any] | None:
    """Return arch.distributed."""
    found = OmegaConf.select(config, "arch.distributed")
    return None if found is None else typing.cast(dict[str, Any], OmegaConf.to_container(found))


def _facts(settings: Config) -> dict[str, Any]:
    """Return what must be the same on all hosts."""
    own = plain(settings)
    arch = {key: value for key, value in own["arch"].items() if f"arch.{key}" not in LOCAL}
    return {**own, "arch": arch, "versions": checkpoint.versions()}


def _share_directory(config: DictConfig) -> None:
    """Check that all processes see the directory of the first.

    Hydra takes the directory from `config` after this. The other processes write nothing there.
    """
    run_dir = processes.agree(str(_directory(config, "hydra.run.dir").absolute()))
    with processes.agreeing():
        if not Path(run_dir).is_dir():
            raise ConfigError(
                f"hydra.run.dir={run_dir}: this host does not see it; choose a directory that all "
                "hosts share"
            )
    if not processes.is_first():
        with open_dict(config):
            config.hydra.run.dir, config.hydra.output_subdir = literal(run_dir), None


def _warn_of_environment(config: Config) -> None:
    """Warn of problems in a user's environment class, found within a second; the run goes on."""
    if config.env.target is not None:
        for finding in glance(config.env):
            sys.stderr.write(
                f"env.target={config.env.target}: {' '.join(finding.split())}; python -m "
                "jaxppo.check_env checks more\n"
            )


def _with_one_seed(config: DictConfig, settings: Config) -> Config:
    """Return settings in which a seed that was drawn is the same in all processes.

    It is set in `config` too, from which Hydra reads it later.
    """
    seed = processes.agree(settings.arch.seed)
    if OmegaConf.select(config, "arch.seed") is not None:
        return settings
    config.arch.seed = seed
    return dataclasses.replace(settings, arch=dataclasses.replace(settings.arch, seed=seed))


def _directory(config: DictConfig, key: str) -> Path:
    return Path(OmegaConf.select(config, key, throw_on_missing=True) or "")


def _check_sweep_dir(sweep_dir: Path) -> None:
    """Raise `ConfigError` if a sweep cannot be written to `sweep_dir`, which may not exist yet."""
    check_run_dir("hydra.sweep.dir", sweep_dir)
    for path in sweep_dir.iterdir() if sweep_dir.is_dir() else ():
        of_job = (path / ".hydra").is_dir() or (path / CONFIG).exists()
        if of_job or path.name in (sweep.TABLE, "multirun.yaml"):
            raise ConfigError(
                f"hydra.sweep.dir={sweep_dir}: holds a sweep already ({path}); choose another "
                "directory"
            )


def _claim(key: str, folder: Path) -> None:
    """Make a directory and lock it; `ConfigError` if that fails or another process has it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        claim(folder)
    except OSError as error:
        raise ConfigError(
            f"{key}={folder}: cannot be written to ({error.strerror}); choose another"
        ) from error


def trains(config: Config) -> contract.Check:
    """Check an environment for what a run checks first, such as that evaluations end."""
    try:
        num = envs.build(config.env).num_agents  # so that whole worlds are trained
        arch = dataclasses.replace(config.arch, total_num_envs=config.arch.total_num_envs * num)
        prepare(dataclasses.replace(config, arch=arch))
    except ConfigError as error:
        return contract.Check("trains", [str(error)], "")
    return contract.Check("trains", [], "with the default network, or the settings given")
