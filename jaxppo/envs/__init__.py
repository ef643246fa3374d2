"""Environments: one adapter per library, each imported only when it is used."""

import contextlib
import dataclasses
import difflib
import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from jaxppo.config import importing
from jaxppo.config.fields import ConfigError, check
from jaxppo.config.given import is_given
from jaxppo.config.given import shown as name_of  # `shown` is a module here
from jaxppo.config.messages import installing, named, of_gymnasium
from jaxppo.config.schema import HOW_RUN, LIBRARIES, OF_GAMES, ArchConfig, EnvConfig
from jaxppo.envs.extras import Extras
from jaxppo.envs.forms import line, problems
from jaxppo.envs.frames import Frames
from jaxppo.envs.mask import Mask
from jaxppo.envs.ranges import check_known, evaluation_config, kind_of
from jaxppo.simulators.faults import ANY_ERROR
from jaxppo.types import Environment, describe

OF_SIMULATORS = ("batch", "wrappers", *HOW_RUN)  # of env
# Library -> name of its package; the adapter and the extra are named as the library
PACKAGES = {name: name for name in LIBRARIES} | {"playground": "mujoco_playground"}


def make(config: EnvConfig) -> Environment:
    """Make the environment of `config`; `ConfigError` if it does not exist or is broken."""
    env = build(config)
    found = [] if is_simulated(env) else problems(env)
    if found:
        raise ConfigError(f"{_key(config)}: {'; '.join([*found, way_out(config)])}")
    return env


def make_for_evaluation(config: EnvConfig, env: Environment) -> Environment:
    """Make the environment in which policies are evaluated: `env`, unless its parameters vary."""
    changed = evaluation_config(config)
    return env if changed == config else build(changed)


def build(config: EnvConfig) -> Environment:
    """Make the environment of `config` without the checks of `problems`."""
    if config.name is None and config.target is None:
        raise ConfigError(
            "env.name=null and env.target=null: give one of them, a registered id of env.library "
            "or the import path of a class"
        )
    if config.module is not None:
        importing.load("env.module", config.module, config.module)
    adapter = _adapter(config)
    is_listed = config.target is None and config.library != "gymnasium"  # takes more than names()
    try:
        if is_listed and config.name not in (known := _names(config, adapter)):
            raise unknown(config, known)
        env: Environment = adapter.make(config)
    except ConfigError:
        raise
    except (OSError, subprocess.SubprocessError) as error:  # including URLError
        files = getattr(adapter, "FILES", "the file")
        raise ConfigError(
            f"{_key(config)}: needs a file that could not be downloaded or read ({line(error)}); "
            f"make it once where there is a network and copy {files} from there, or choose another "
            "environment"
        ) from error
    except ANY_ERROR as error:  # a constructor may raise anything
        given = f"env.kwargs={config.kwargs}, env.params={config.params}"
        if config.wrappers:
            given += f", env.wrappers={config.wrappers}"
        hint = _of_params(config, adapter)
        raise ConfigError(
            f"{_key(config)}: cannot be made with {given}: {line(error)}{hint}"
        ) from error
    if not hasattr(env, "seated"):
        why = f"is for games of two players, and {env.name} is none; leave it out"
        refuse(config, OF_GAMES, why)
    if is_simulated(env):
        simulated: Any = env
        return simulated.shown(partial(_shown, config))
    return _shown(config, env)


def _of_params(config: EnvConfig, adapter: ModuleType) -> str:
    """Return, after a semicolon, which of `env.kwargs` are parameters instead; "" if none is."""
    if not config.kwargs:
        return ""
    with contextlib.suppress(Exception):
        params = adapter.make(dataclasses.replace(config, kwargs={}, params={})).params
        names = [field.name for field in dataclasses.fields(params) if field.name in config.kwargs]
        found = [f"env.params.{name}={config.kwargs[name]}" for name in names]
        return f"; parameters are written {' '.join(found)}" if found else ""
    return ""


def _shown(config: EnvConfig, env: Environment) -> Environment:
    """Return an environment that hides, stacks and extends observations as the settings say."""
    if config.mask:
        env = Mask(env, tuple(config.mask))
    if config.frame_stack > 1:
        env = Frames(env, config.frame_stack, config.action_mask)
    _check_action_mask(config.action_mask, env)
    return Extras(env, tuple(config.extras)) if config.extras else env


def way_out(config: EnvConfig) -> str:
    """Return what to do about an environment that does not keep the contract."""
    if config.target is None:
        return (
            f"do the versions of {config.library} and jax fit? Take others, or another environment"
        )
    legacy = config.gymnax_legacy
    if _runs(dataclasses.replace(config, gymnax_legacy=not legacy)):
        if legacy:
            return "it runs without env.gymnax_legacy=true, which is for gymnax 0.0.x; leave it out"
        return "if it was written for gymnax 0.0.x, env.gymnax_legacy=true runs it unchanged"
    return "it must keep the contract of docs/environments.md"


def _runs(config: EnvConfig) -> bool:
    """Return whether an environment can be made and has the forms of the contract."""
    try:
        return not problems(build(config))
    except Exception:  # an environment may raise anything
        return False


def outline(config: EnvConfig) -> tuple[str, str, int | None]:
    """Return the observation space and action space in words, and the time limit in steps."""
    env = build(config)
    observation, action = (
        describe(space).replace("num_values=", "")
        for space in (env.observation_space, env.action_space)
    )
    return observation, action, env.time_limit


def registered(library: str) -> list[str]:
    """Return the names of a library's environments; `ConfigError` if it is not installed."""
    config = EnvConfig(library=library)
    return _names(config, _adapter(config))


def downloads(library: str, name: str) -> bool:
    """Return whether an environment downloads files when it is made for the first time."""
    ask = getattr(_adapter(EnvConfig(library=library)), "downloads", None)
    return ask is not None and bool(ask(name))


def is_installed(library: str) -> bool:
    """Return whether a library of environments is installed, without importing it."""
    return importing.is_installed(PACKAGES[library])


def is_simulated(env: Any) -> bool:
    """Return whether the environment is not written in JAX."""
    module = sys.modules.get("jaxppo.envs.simulated")  # imports Gymnasium, which may not be there
    return module is not None and isinstance(env, module.Simulated)


def _key(config: EnvConfig) -> str:
    if config.target is None:
        return f"env.name={config.name}"
    return f"env{'' if is_given(config.target) else '.target'}={name_of(config.target)}"


def _names(config: EnvConfig, adapter: ModuleType) -> list[str]:
    """Return the names of a library's environments; `ConfigError` if it has no such list."""
    try:
        return adapter.names()
    except Exception as error:
        raise _unusable(config.library, "used", error) from error


def _unusable(library: str, verb: str, error: Exception) -> ConfigError:
    spec = importlib.util.find_spec(PACKAGES[library])
    return ConfigError(
        f"env.library={library}: cannot be {verb} ({named(error)}); "
        f"{installing(library)} brings versions that fit each other, unless "
        f"{spec and spec.origin} is not {library}: then rename it"
    )


def _adapter(config: EnvConfig) -> ModuleType:
    """Import the module that makes the environment; `ConfigError` if its library is missing."""
    if config.batch and is_installed("gymnasium"):
        if config.target is None and config.library != "gymnasium":
            refuse(config, ["batch"], "is for env.library=gymnasium, and for env.target")
        return importlib.import_module("jaxppo.envs.batch")
    if config.target is not None:
        return importlib.import_module("jaxppo.envs.own")
    refuse(config, ["gymnax_legacy"], "is for a class of your own (env.target); leave it out")
    library = config.library
    if not is_installed(library):
        raise ConfigError(f"env.library={library}: is not installed; {installing(library)}")
    if library not in ("gymnax", "gymnasium", "envpool"):
        refuse_ranges(config, f"environments of {library}")
    if library not in ("gymnax", "craftax", "xminigrid"):
        why = f"environments of {library} have none; what their constructor takes goes into "
        refuse(config, ["params"], f"{why}env.kwargs")
    try:
        return importlib.import_module(f"jaxppo.envs.{library}")
    except ConfigError:
        raise
    except Exception as error:  # an incomplete installation may raise anything
        raise _unusable(library, "imported", error) from error


def refuse_ranges(config: EnvConfig, owner: str) -> None:
    """Raise `ConfigError` if parameters are drawn or change, which is for gymnax's interface."""
    refuse(
        config,
        ("randomize", "curriculum"),
        f"is for gymnax and for classes (env.target) with its interface or with an attribute "
        f"params, not for {owner}; leave it out, or draw in the reset of a class of your own",
    )


def refuse(section: EnvConfig | ArchConfig, names: Iterable[str], why: str) -> None:
    """Raise `ConfigError` if one of these settings is not as it is by default."""
    default, group = type(section)(), "env" if isinstance(section, EnvConfig) else "arch"
    for name in names:
        if (value := getattr(section, name)) != getattr(default, name):
            raise ConfigError(f"{group}.{name}={value}: {why}")


def unknown(config: EnvConfig, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown environment name; it lists the nearest names."""
    name, ids = str(config.name), sorted(known)
    lower = {each.lower(): each for each in ids}
    near = [lower[m] for m in difflib.get_close_matches(name.lower(), list(lower), 3, 0.3)]
    more = "; a module that registers yours goes into env.module"
    if config.library != "gymnasium" and (settings := of_gymnasium(name)):
        more += f"; an id of Gymnasium: {settings}"
    some = f"the nearest: {', '.join(near)}" if near else f"there are {', '.join(ids[:3])}, ..."
    return ConfigError(
        f"env.name={name}: no such {config.library} environment; {some} (of {len(ids)}{more})"
    )


def replace_params(name: str, params: Any, changes: dict[str, Any]) -> Any:
    """Return a library's parameters, a dataclass, with the changes of `env.params`.

    Numbers get the parameter's type, if it is known: 10 for a float is 10.0. `ConfigError` if they
    cannot.
    """
    known = [field.name for field in dataclasses.fields(params)]
    typed = {k: v.item() if isinstance(v, np.generic) else v for k, v in changes.items()}
    for key, value in typed.items():
        check_known("env.params", key, name, known)
        own = type(getattr(params, key))
        if own in (bool, int, float):
            kind = bool if own is bool else kind_of(params, key)
            number = check(f"env.params.{key}", value, kind or float, {"infinite": True})
            typed[key] = value if kind is None else number
    return dataclasses.replace(params, **typed)


def _check_action_mask(entry: str | None, env: Environment) -> None:
    """Raise `ConfigError` if the mask is missing; the default name may be missing."""
    if entry in (None, "action_mask"):
        return
    space = env.observation_space
    entries = list(space) if isinstance(space, dict) else []
    if entry not in entries:
        has = f"it has {', '.join(map(str, entries))}" if entries else "it is no dict"
        raise ConfigError(
            f"env.action_mask={entry}: the observation of {env.name} has no such entry ({has}); "
            "give one that it has, or null"
        )
