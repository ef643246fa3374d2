"""Objects that a caller in Python gives, where settings hold import paths.

An object gets a path below this module, under which settings name it. The path leads to the object
in this process only: a stored run needs it again.
"""

import dataclasses
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import NETWORK_LAYERS, Config

HOME = __name__
_given: dict[str, Callable[..., Any]] = {}  # name -> what returns the object


def give(example: Any, make: Callable[..., Any]) -> str:
    """Register `make` and return the import path under which settings find it.

    The path contains the name of `example`, or of its class, and is unique over all processes.
    """
    example = example[0] if isinstance(example, tuple) and example else example  # and parameters
    own = getattr(example, "__name__", "")
    own = own if isinstance(own, str) and own.isidentifier() else type(example).__name__
    name = f"{own}_{uuid.uuid4().hex[:12]}"
    _given[name] = make
    return f"{HOME}.{name}"


def with_given(
    config: Config, env: Any, network: Mapping[str, Any] | None, *, resumes: bool
) -> Config:
    """Return settings that name an environment and flax modules, which are given by layer name.

    With `resumes` the settings are those of a stored run, and an object may only replace one that
    was given then, else `ConfigError`.
    """
    if isinstance(env, str):
        raise ConfigError(
            f"env={env}: takes an environment object; a name is a setting, as in "
            f'jaxppo.train(["env={env}"])'
        )
    if env is not None:
        _check_stored("env", config.env.target, config, resumes=resumes)
        path = give(env, lambda **_: env)
        given = dataclasses.replace(config.env, name=None, target=path, kwargs={})
        config = dataclasses.replace(config, env=given)
    if network is not None and not isinstance(network, Mapping):
        raise ConfigError(
            f"network={network}: takes flax modules by layer name, such as "
            '{"actor_torso": MyTorso()}'
        )
    layers = {}
    for name, module in (network or {}).items():
        is_module = hasattr(module, "apply") and not isinstance(module, type)
        if name not in NETWORK_LAYERS or not is_module:
            raise ConfigError(
                f"network={name}: takes a flax module, such as MyTorso(), not {module!r}, for one "
                f"of {', '.join(NETWORK_LAYERS)}"
            )
        stored = (getattr(config.network, name) or {}).get("_target_")
        _check_stored(f"network.{name}", stored, config, resumes=resumes)
        layers[name] = {"_target_": give(module, partial(_copy, module))}
    return dataclasses.replace(config, network=dataclasses.replace(config.network, **layers))


def _check_stored(key: str, stored: str | None, config: Config, *, resumes: bool) -> None:
    """Raise `ConfigError` if a stored run would get an object in place of its own settings."""
    group = key.partition(".")[0]
    if resumes and not is_given(stored) and group not in config.resume_allow:
        has = stored or ("none" if group == "network" else "a registered environment")
        raise ConfigError(
            f"{key}: the stored run has {has}, and a run keeps its settings; leave the object out, "
            f"or allow it: resume_allow=[{group}]"
        )


def _copy(module: Any, **_: Any) -> Any:
    """Return a copy of a flax module, so that one given for two layers makes two layers."""
    return module.clone()


def is_given(path: Any) -> bool:
    """Return whether an import path is one of a given object."""
    return isinstance(path, str) and path.startswith(f"{HOME}.")


def shown(path: str) -> str:
    """Return an import path as users know it: of a given object, the name of its class."""
    return path.rpartition(".")[2].rpartition("_")[0] if is_given(path) else path


def __getattr__(name: str) -> Any:
    if name in _given:
        return _given[name]
    if name.startswith("__"):
        raise AttributeError(name)
    raise ConfigError(
        f"{shown(f'{HOME}.{name}')}: was an object in Python, which no file holds; give it again, "
        "such as jaxppo.load(DIR, env=OBJECT) or network={LAYER: MODULE}"
    )
