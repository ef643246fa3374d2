"""Compose settings from the YAML files and the command line."""

import contextlib
import dataclasses
import difflib
import re
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf, open_dict

from jaxppo.config.fields import ConfigError, quoted
from jaxppo.config.importing import is_installed
from jaxppo.config.messages import installing
from jaxppo.config.parse import algorithm_class, known_keys, parse, parse_as, system_type
from jaxppo.config.schema import NETWORK_LAYERS, Config, NetworkConfig, SystemConfig
from jaxppo.launch.door import config_dir

BRANCHES = {  # groups that are used in several places of a network -> those places
    f"network/{kind}": [
        f"network.{field.name}"
        for field in dataclasses.fields(NetworkConfig)
        if field.name.endswith(f"_{kind}")
    ]
    for kind in ("torso", "memory")
} | {"network/input_layer": ["network.input_layer", "network.critic_input"]}
PLUGINS = {  # choice -> the plugin of Hydra that it needs, and our extra that installs it
    "hydra/launcher=jaxppo_ray": ("hydra_ray_launcher", "ray"),
    "hydra/launcher=jaxppo_slurm": ("hydra_submitit_launcher", "slurm"),
    "hydra/sweeper=optuna": ("hydra_optuna_sweeper", "optuna"),
}


def compose(config_name: str, overrides: Sequence[str]) -> Config:
    """Return the settings of a command that does not resume, outside of a Hydra application."""
    return parse(plain_settings(*composed(config_name, overrides)))


def composed(config_name: str, overrides: Sequence[str]) -> tuple[DictConfig, list[str]]:
    """Return what Hydra composes for a command, and the overrides as it took them."""
    check_form(overrides)
    check_groups(overrides)
    typed = [for_hydra(each) for each in overrides]
    with _loading():
        return hydra.compose(config_name, typed), typed


def jobs_of_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each job, as Hydra's own sweeper makes them of those of a sweep."""
    with _loading() as loader:
        parsed = OverridesParser.create(loader).parse_overrides(list(overrides))
        (jobs,) = BasicSweeper.split_arguments(parsed, None)
    return jobs


def subdirs_of_sweep(
    config_name: str, of_hydra: Sequence[str], jobs: Sequence[Sequence[str]]
) -> list[str]:
    """Return the names of the jobs' directories; `of_hydra` are the sweep's settings of Hydra."""
    names = []
    with _loading() as loader:
        for number, own in enumerate(jobs):
            settings = loader.load_configuration(config_name, [*of_hydra, *own], RunMode.MULTIRUN)
            with open_dict(settings):
                settings.hydra.job.id = settings.hydra.job.num = number
            without_plus(settings)
            names.append(str(settings.hydra.sweep.subdir))
    return names


@contextlib.contextmanager
def _loading() -> Iterator[Any]:
    """Provide what loads the YAML files for Hydra."""
    folder = str(config_dir())
    with _apart(), hydra.initialize_config_dir(version_base="1.3", config_dir=folder):
        yield GlobalHydra.instance().config_loader()


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Put aside the state of a Hydra program that calls us, such as one of `@hydra.main`."""
    outer, version = GlobalHydra.instance().hydra, VersionBase.instance().version_base
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = outer
        VersionBase.instance().version_base = version


# Keys that the YAML files may lack: an algorithm, an objective or an environment defines them
_OPEN = re.compile(
    r"(env\.(params|kwargs|randomize|curriculum)|population\.hyperparameters|arch\.distributed"
    r"|system\.(schedules|optimizer_kwargs)|network\.initialization)(\.[\w.]+)?=|system\.\w+="
)


# Keys whose value is a path, quoted whole; only in `resume` is ${x} text, not an interpolation
_PATHS = (
    *("arch.compile_cache", "arch.profile", "resume"),
    *("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir"),
)


_RUNS = ("init_from", "env.opponent", "env.evaluation_opponent")


def for_hydra(argument: str) -> str:
    """Return an argument as Hydra takes it.

    Paths are quoted, so that they may have any character. New keys of open groups get plus signs.
    """
    key, _, value = argument.partition("=")
    text = typed_text(value)
    # A sweep may be over several runs, to begin from or to play against
    of_steps = (text or "").rpartition("@")[0]  # DIR@STEPS
    is_run = key in _RUNS and any(part and Path(part).is_dir() for part in (text, of_steps))
    is_path = key.lstrip("+") in _PATHS or is_run
    if is_path and text is not None:
        return f"{key}={quoted(literal(text) if key.endswith(('resume', *_RUNS)) else text)}"
    return f"++{argument}" if _OPEN.match(argument) else argument


def typed_text(value: str) -> str | None:
    """Return the text that was typed, perhaps in the quotes of Hydra; None for null and nothing."""
    if value[:1] in ("'", '"'):
        with contextlib.suppress(HydraException):  # the quote is a part of the text
            found = OverridesParser.create().parse_override(f"text={value}").value()
            value = found if isinstance(found, str) else value
    elif value in ("", "null"):
        return None
    return value


def literal(text: str) -> str:
    """Escape interpolations, such as ${x}, which then are text."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def without_plus(config: DictConfig) -> None:
    """Take the plus signs of `for_hydra` out of the name of a job's overrides."""
    job: Any = OmegaConf.to_container(config.hydra.job, resolve=False)
    start = f"(^|{re.escape(job['config']['override_dirname']['item_sep'])})"
    with open_dict(config.hydra.job):
        config.hydra.job.override_dirname = re.sub(rf"{start}\+\+", r"\1", job["override_dirname"])


def split_settings(settings: type, arguments: Sequence[str]) -> tuple[Any, list[str]]:
    """Return the settings of a command that also takes those of training, and the others."""
    own = {field.name for field in dataclasses.fields(settings)}
    for key in (each.partition("=")[0] for each in arguments if "=" in each):
        if near := difflib.get_close_matches(key, own, 1, 0.8) if key not in own else []:
            raise ConfigError(f"{key}: no such key; did you mean {near[0]}?")
    mine = [each for each in arguments if each.partition("=")[0] in own]
    return command_settings(settings, mine), [each for each in arguments if each not in mine]


def command_settings(settings: type, arguments: Sequence[str]) -> Any:
    """Parse key=value arguments as a dataclass of settings. Text is taken as it was typed."""
    texts = {f.name for f in dataclasses.fields(settings) if f.type in (str, str | None)}
    pairs = [argument.partition("=") for argument in arguments]
    others = ["".join(pair) for pair in pairs if pair[0] not in texts]
    own = [field.name for field in dataclasses.fields(settings)]
    for key, _, _ in pairs:
        if "." in key and key.partition(".")[0] not in own:
            raise ConfigError(f"{key}: no such key here; there are {', '.join(own)}")
    raw: Any = OmegaConf.to_container(OmegaConf.from_dotlist(others), resolve=False)
    typed = {key: typed_text(value) for key, _, value in pairs if key in texts}
    return parse_as(settings, {**raw, **typed})


def plain_settings(config: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the composed settings as plain containers.

    The files hold settings of several algorithms. Those that the chosen one does not have are left
    out, except those in `overrides`: they stay, and `parse` rejects them. `ConfigError` if
    `overrides` change a layer of the network that the algorithm does not have.
    """
    settings = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    container = OmegaConf.to_container(settings, resolve=True)
    plain = {str(key): value for key, value in typing.cast(dict[Any, Any], container).items()}
    system, population, network = (plain.get(x) for x in ("system", "population", "network"))
    if not isinstance(system, dict):
        return plain
    own = {f"system.{field.name}" for field in dataclasses.fields(system_type(system))}
    typed = {re.split("[=@]", override.lstrip("+"))[0] for override in overrides}
    left_out = set(known_keys()) - own - typed

    def kept(numbers: dict[str, Any]) -> dict[str, Any]:
        return {key: x for key, x in numbers.items() if f"system.{key}" not in left_out}

    plain["system"] = kept(system)
    schedules = system.get("schedules")  # those of an environment's file are for PPO
    if isinstance(schedules, dict) and not any(x.startswith("system.schedules") for x in typed):
        plain["system"]["schedules"] = kept(schedules)
    if isinstance(population, dict) and isinstance(population.get("hyperparameters"), dict):
        bounds = kept(population["hyperparameters"])
        plain["population"] = {**population, "hyperparameters": bounds}
    if isinstance(network, dict):
        name = system.get("algorithm", SystemConfig.algorithm)
        others = {*NETWORK_LAYERS} - {*algorithm_class(name).layers}
        _check_layers(name, others, overrides)
        plain["network"] = {key: None if key in others else x for key, x in network.items()}
    return plain


def _check_layers(algorithm: str, others: set[str], overrides: Sequence[str]) -> None:
    """Raise `ConfigError` if an override is about a layer of `others`."""
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        section, place, *_ = [*key.rpartition("@")[2].replace("/", ".").split("."), ""]
        if section == "network" and place in others:
            raise ConfigError(
                f"{key}: the network of system.algorithm={algorithm} has no {place}; leave it out"
            )


def check_plugin(arguments: Sequence[str]) -> None:
    """Raise `ConfigError` if the command line needs a plugin that is not installed."""
    for argument in arguments:
        plugin, extra = PLUGINS.get(argument.lstrip("+"), ("", ""))
        if plugin and not is_installed(f"hydra_plugins.{plugin}"):
            package = plugin.replace("_", "-")
            raise ConfigError(f"{argument}: needs {package}; {installing(extra)}")


def check_form(arguments: Sequence[str]) -> None:
    """Raise `ConfigError` if an argument is neither key=value nor ~key, which deletes a key."""
    for argument in arguments:
        if argument.startswith("-") or not ("=" in argument or argument.startswith("~")):
            raise ConfigError(f"{argument}: settings are key=value, without dashes; see -h")


def check_groups(arguments: Sequence[str]) -> None:
    """Raise `ConfigError` if a group is given another value than the name of a file."""
    for argument in arguments:
        key, equals, value = argument.lstrip("+").partition("=")
        group = key.partition("@")[0] if equals else ""
        is_name = not re.match(r"$|[\[{]|([\d.]+|null|true|false)$", value)
        if group and not is_name and (config_dir() / group).is_dir():
            raise ConfigError(
                f"{argument}: {group} takes the name of one of its files, see --help; for several, "
                f"-m {key}=ONE,OTHER"
            )
