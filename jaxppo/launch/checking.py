"""What is refused before Hydra makes a directory."""

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
from jaxppo.launch.resuming import say_what_is_left_out, settings_of
from jaxppo.launch.sweeping import check_sweep
from jaxppo.runtime.directories import check_run_dir, claim, release
from jaxppo.runtime.jobs import prepare


class Check(Callback):
    """Refuses what `prepare` refuses before Hydra makes a directory, and holds that directory.

    Nothing in the directory of a run or of a sweep is written before.
    """

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check a single run."""
        with one_line():
            settings = settings_of(config, config.hydra)
            if settings.resume is None:
                run_dir = _directory(config, "hydra.run.dir")
                check_run_dir("hydra.run.dir", run_dir)
            else:
                say_what_is_left_out(Path(settings.resume), settings)
            prepare(settings)
            _look_at_environment(settings)
            if settings.resume is None and not settings.arch.plan_only:
                _claim("hydra.run.dir", run_dir)
                check_run_dir("hydra.run.dir", run_dir)  # nobody was quicker

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check a sweep."""
        with one_line():
            sweep_dir = _directory(config, "hydra.sweep.dir")
            _check_sweep_dir(sweep_dir)
            check_sweep(config.hydra.job.config_name, list(config.hydra.overrides.task))
            _claim("hydra.sweep.dir", sweep_dir)
            _check_sweep_dir(sweep_dir)  # nobody was quicker

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Say what a sweep found, also where some of its jobs failed."""
        with one_line():
            console = bool(OmegaConf.select(config, "logger.console"))
            sweep.report(Path(config.hydra.sweep.dir), console=console)
            release(Path(config.hydra.sweep.dir))


def _look_at_environment(config: Config) -> None:
    """Say what is wrong with a user's own class, as far as a second shows it; the run goes on."""
    if config.env.target is not None:
        for finding in glance(config.env):
            sys.stderr.write(
                f"env.target={config.env.target}: {' '.join(finding.split())}; python -m "
                "jaxppo.check_env looks closer\n"
            )


def _directory(config: DictConfig, key: str) -> Path:
    return Path(OmegaConf.select(config, key, throw_on_missing=True) or "")


def _check_sweep_dir(sweep_dir: Path) -> None:
    """`ConfigError` where a sweep cannot be written there; it need not exist yet."""
    check_run_dir("hydra.sweep.dir", sweep_dir)
    for path in sweep_dir.iterdir() if sweep_dir.is_dir() else ():
        of_job = (path / ".hydra").is_dir() or (path / CONFIG).exists()
        if of_job or path.name in (sweep.TABLE, "multirun.yaml"):
            raise ConfigError(
                f"hydra.sweep.dir={sweep_dir}: holds a sweep already ({path.name}); choose another "
                "directory"
            )


def _claim(key: str, folder: Path) -> None:
    """Make a directory and hold it; `ConfigError` where it cannot be, or another process does."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        claim(folder)
    except OSError as error:
        raise ConfigError(
            f"{key}={folder}: cannot be written to ({error.strerror}); choose another"
        ) from error
