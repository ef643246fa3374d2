"""Entry points of the commands that train and of the other commands."""

import contextlib
import dataclasses
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import BoundsWarning
from jaxppo.config.schema import Config
from jaxppo.launch.composing import (
    check_form,
    check_groups,
    check_plugin,
    command_settings,
    for_hydra,
)
from jaxppo.launch.door import config_dir, help_of, open_streams, versions
from jaxppo.launch.errors import one_line, refuse
from jaxppo.launch.resuming import resume_overrides, resumed_here, settings_of, sweep_of
from jaxppo.runtime.hosts import devices, processes
from jaxppo.runtime.run.jobs import Prepared
from jaxppo.runtime.simulated.remote import ClusterWarning
from jaxppo.runtime.simulated.training import RaceWarning
from jaxppo.runtime.sinks.console import print_lines
from jaxppo.runtime.store.checkpoint import CheckpointWarning
from jaxppo.simulators.faults import RestartWarning

OWN_WARNINGS = (BoundsWarning, CheckpointWarning, ClusterWarning, RaceWarning, RestartWarning)
_FLAGS = (
    *("-h", "--help", "--hydra-help", "--version", "-c", "--cfg", "--resolve", "-p", "--package"),
    *("-r", "--run", "-m", "--multirun", "-sc", "--shell-completion", "-cp", "--config-path"),
    *("-cn", "--config-name", "-cd", "--config-dir", "--experimental-rerun", "-i", "--info"),
)
_WITH_VALUE = (  # flags that take the next argument
    *("-c", "--cfg", "-p", "--package", "-cp", "--config-path", "-cn", "--config-name"),
    *("-cd", "--config-dir", "--experimental-rerun", "-i", "--info"),
)

checked: list[tuple[Config, Prepared]] = []  # the run that begins, and its `prepare`
endings = contextlib.ExitStack()  # what is done when a command that trains ends, however it ends


def main(config_name: str, run: Callable[..., float]) -> None:
    """Call `run(config, run_dir, resume=, prepared=)` for every job that Hydra composes.

    A user's mistake gives one line on standard error and exit status 2, a failed run status 1.
    """
    for argument in sys.argv[1:]:
        flag = argument.partition("=")[0]
        if flag.startswith("-") and flag not in _FLAGS:
            refuse(f"{argument}: no such flag; settings are key=value, without dashes; see -h", 2)
    devices.prepare()
    OmegaConf.register_new_resolver("jaxppo.help", help_of, replace=True)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that errors reach the handlers below

    def job(settings: DictConfig) -> float:
        config = settings_of(settings, HydraConfig.get())
        run_dir = Path(config.resume or HydraConfig.get().runtime.output_dir).absolute()
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            return run(config, run_dir)  # Hydra reports a failed job, and the others go on
        prepared = next((found for own, found in checked if own == config), None)
        checked.clear()
        with one_line():
            return run(config, run_dir, resume=config.resume is not None, prepared=prepared)

    with one_line(), endings, _warnings_as_lines():
        check_plugin(sys.argv[1:])
        sys.argv[1:] = resumed_here(sys.argv[1:])
        overrides, flags = _split(sys.argv[1:])
        check_groups(overrides)
        if (sweep := sweep_of(overrides)) is not None:
            from jaxppo.launch.continuing import continue_sweep

            raise SystemExit(0 if continue_sweep(config_name, sweep, sys.argv[1:]) else 1)
        overrides += resume_overrides(sys.argv[1:])
        sys.argv[1:] = [*map(for_hydra, overrides), *flags]
        hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=config_name)(
            job
        )()
        processes.leave()


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides and the flags. Hydra takes no overrides on both sides of a flag."""
    overrides: list[str] = []
    flags: list[str] = []
    left = iter(arguments)
    for argument in left:
        if argument.startswith("-"):
            flags += [argument, *islice(left, int(argument in _WITH_VALUE))]
        else:
            overrides.append(argument)
    return overrides, flags


def command(
    settings: type, run: Callable[[Any], None], *, places: str | None = None, bare: bool = False
) -> None:
    """Parse `key=value` arguments and call `run(settings)`, for commands that do not train.

    `settings` is a dataclass of `config.setting`s; its docstring is the help. Errors are reported
    as in `main`. If `places` names a setting, the other arguments, and existing paths, are its
    list; if it is one path, there may be one. Without arguments, `run` is called only if `bare`.
    """

    def parsed(arguments: list[str]) -> None:
        paths = [a for a in arguments if places and not a.startswith("-") and _is_path(a)]
        arguments = [a.lstrip("+") for a in arguments if a not in paths]
        check_form(arguments)
        found = command_settings(settings, arguments)
        if paths and isinstance(getattr(found, str(places)), list):
            found = dataclasses.replace(found, **{str(places): paths})
        elif paths:
            if len(paths) > 1:
                raise ConfigError(
                    f"{paths[1]}: there can be one {places}, and {paths[0]} is given already; "
                    "leave one of them out"
                )
            found = dataclasses.replace(found, **{str(places): paths[0]})
        with _warnings_as_lines():
            run(found)

    attempt(parsed, help_of_settings(settings, places), bare=bare)


def help_of_settings(settings: type, places: str | None = None) -> str:
    """Return the docstring of a dataclass of settings, and its settings but for `places`."""
    lines = [(settings.__doc__ or "").strip(), ""]
    for field in dataclasses.fields(settings):
        if field.name != places or isinstance(field.default, str):
            shown = field.default not in (None, "", dataclasses.MISSING)
            default = f" [{field.default}]" if shown else ""
            lines.append(f"  {field.name:<12} {field.metadata['help']}{default}")
    return "\n".join(lines)


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Show our own warnings as one line each."""
    with warnings.catch_warnings():
        for own in OWN_WARNINGS:
            warnings.simplefilter("always", own)
        warnings.showwarning = partial(_show_warning, warnings.showwarning)
        yield


def _show_warning(usual: Callable[..., None], message: Any, category: Any, *rest: Any) -> None:
    """Show one of our own warnings as one line, others as usual."""
    if issubclass(category, OWN_WARNINGS):
        sys.stderr.write(f"{message}\n")
    else:
        usual(message, category, *rest)


def _is_path(argument: str) -> bool:
    of_steps = argument.rpartition("@")[0]  # DIR@STEPS
    return "=" not in argument or any(x and Path(x).exists() for x in (argument, of_steps))


def attempt(run: Callable[[list[str]], None], help: str, *, bare: bool = False) -> None:
    """Call `run(arguments)`, with errors reported as in `main`; or print `help`, if asked for it.

    Without arguments, `run` is called only if `bare`.
    """
    open_streams()
    arguments = sys.argv[1:]
    if "--version" in arguments:
        print_lines(versions())
        return
    if {"-h", "--help"} & set(arguments) or not (arguments or bare):
        print_lines(help)
        return
    devices.choose_platform()
    with one_line():
        run(arguments)
