"""Hydra's side of a run: composing, checking before anything is written, and one-line errors."""

import contextlib
import os
import re
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from jaxppo.config import Config, ConfigError, help_text, parse, unknown_key


def config_dir() -> Path:
    """The folder of the YAML files: inside an installed package, beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def main(config_name: str, run: Callable[[Config, Path], float]) -> None:
    """Run the command line: `run(config, run_dir)` for every job that Hydra composes.

    A user's mistake is one line on standard error and exit status 2; a run that failed, 1.
    """
    OmegaConf.register_new_resolver("jaxppo.help", _help, replace=True)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach the handlers below

    def job(settings: DictConfig) -> float:
        hydra_config = HydraConfig.get()
        run_dir = Path(hydra_config.runtime.output_dir)
        config = parse(_plain(settings))
        OmegaConf.save(settings, run_dir / "config.yaml", resolve=True)
        if hydra_config.mode == RunMode.MULTIRUN:
            return run(config, run_dir)  # a failed job is Hydra's to report: others go on
        with _one_line():
            return run(config, run_dir)

    with _one_line():
        hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=config_name)(
            job
        )()


class Check(Callback):
    """Refuses what `prepare` refuses before Hydra makes a directory."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check a single run."""
        with _one_line():
            _check(config, "hydra.run.dir")

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check what the jobs of a sweep have in common."""
        with _one_line():
            _check(config, "hydra.sweep.dir")


def _check(config: DictConfig, dir_key: str) -> None:
    from jaxppo.experiment import check_run_dir, prepare

    check_run_dir(dir_key, Path(OmegaConf.select(config, dir_key)))
    prepare(parse(_plain(config)))


def _plain(config: DictConfig) -> dict[str, Any]:
    settings = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    plain = OmegaConf.to_container(settings, resolve=True)
    return {str(key): value for key, value in typing.cast(dict[Any, Any], plain).items()}


@contextlib.contextmanager
def _one_line() -> Any:
    """Turn a user's mistake into its one line and an exit status."""
    from jaxppo.experiment import NonFiniteError

    try:
        yield
    except (ConfigError, OSError) as error:
        _refuse(str(error), 2)
    except NonFiniteError as error:
        _refuse(str(error), 1)
    except (HydraException, OmegaConfBaseException) as error:
        _refuse(_translate(str(error)), 2)


def _refuse(message: str, status: int) -> NoReturn:
    sys.stderr.write(" ".join(message.split()) + "\n")
    raise SystemExit(status)


def _translate(message: str) -> str:
    """Hydra's words for a bad override, as key, rule and way out."""
    if match := re.search(r"Could not override '([^']+)'", message):
        return unknown_key(match[1])
    return message


def _help() -> str:
    return help_text()
