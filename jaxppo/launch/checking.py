"""Check runs and sweeps before Hydra makes a directory."""

import sys
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from jaxppo.analysis import sweep
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config
from jaxppo.config.stored import CONFIG
from jaxppo.envs.contract import glance
from jaxppo.launch.errors import one_line
from jaxppo.launch.resuming import settings_of, warn_of_omitted_sinks
from jaxppo.launch.sweeping import check_sweep
from jaxppo.runtime.directories import check_run_dir, claim, release
from jaxppo.runtime.jobs import prepare


class Check(Callback):
    """Checks a run or sweep before Hydra makes its directory, then locks that directory.

    Nothing is written to the directory of a run or sweep before the checks.
    """

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check a single run."""
        with one_line():
            settings = settings_of(config, config.hydra)
            if settings.resume is None:
                run_dir = _directory(config, "hydra.run.dir")
                check_run_dir("hydra.run.dir", run_dir)
            else:
                warn_of_omitted_sinks(Path(settings.resume), settings)
            prepare(settings)
            _warn_of_environment(settings)
            if settings.resume is None and not settings.arch.plan_only:
                _claim("hydra.run.dir", run_dir)
                check_run_dir("hydra.run.dir", run_dir)  # another process may have been faster

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check a sweep."""
        with one_line():
            sweep_dir = _directory(config, "hydra.sweep.dir")
            _check_sweep_dir(sweep_dir)
            check_sweep(config.hydra.job.config_name, list(config.hydra.overrides.task))
            _claim("hydra.sweep.dir", sweep_dir)
            _check_sweep_dir(sweep_dir)  # another process may have been faster

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Report the results of a sweep, even if some of its jobs failed."""
        with one_line():
            console = bool(OmegaConf.select(config, "logger.console"))
            sweep.report(Path(config.hydra.sweep.dir), console=console)
            release(Path(config.hydra.sweep.dir))


def _warn_of_environment(config: Config) -> None:
    """Warn of problems in a user's environment class, found within a second; the run goes on."""
    if config.env.target is not None:
        for finding in glance(config.env):
            sys.stderr.write(
                f"env.target={config.env.target}: {' '.join(finding.split())}; python -m "
                "jaxppo.check_env checks more\n"
            )


def _directory(config: DictConfig, key: str) -> Path:
    return Path(OmegaConf.select(config, key, throw_on_missing=True) or "")


def _check_sweep_dir(sweep_dir: Path) -> None:
    """Raise `ConfigError` if a sweep cannot be written to `sweep_dir`, which may not exist yet."""
    check_run_dir("hydra.sweep.dir", sweep_dir)
    for path in sweep_dir.iterdir() if sweep_dir.is_dir() else ():
        of_job = (path / ".hydra").is_dir() or (path / CONFIG).exists()
        if of_job or path.name in (sweep.TABLE, "multirun.yaml"):
            raise ConfigError(
                f"hydra.sweep.dir={sweep_dir}: holds a sweep already ({path.name}); choose another "
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
