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
from jaxppo.config.schema import Config, NetworkConfig

HOME = __name__
_given: dict[str, Callable[..., Any]] = {}  # name -> what returns the object


def give(example: Any, make: Callable[..., Any]) -> str:
    """Return a new import path of what `make` returns, which tells the class of `example`.

    No two objects have the same path, in any process.
    """
    name = f"{type(example).__name__}_{uuid.uuid4().hex[:12]}"
    _given[name] = make
    return f"{HOME}.{name}"


def with_given(
    config: Config, env: Any, network: Mapping[str, Any] | None, *, again: bool
) -> Config:
    """Return settings that name an environment and flax modules, by place in the network.

    With `again`, the settings are of a stored run, and each takes the place of one given then;
    `ConfigError` if there was none.
    """
    if isinstance(env, str):
        raise ConfigError(
            f"env={env}: takes an environment object; a name is a setting, as in "
            f'jaxppo.train(["env={env}"])'
        )
    if network is not None and not isinstance(network, Mapping):
        raise ConfigError(
            f'network={network}: takes flax modules by place, such as {{"actor_torso": MyTorso()}}'
        )
    if env is not None:
        _check_again("env", config.env.target, config, again=again)
        path = give(env, lambda **_: env)
        given = dataclasses.replace(config.env, name=None, target=path, kwargs={})
        config = dataclasses.replace(config, env=given)
    layers = {}
    places = [field.name for field in dataclasses.fields(NetworkConfig)]
    for place, module in (network or {}).items():
        if place not in places:
            raise ConfigError(f"network={place}: no such place; one of {', '.join(places)}")
        if isinstance(module, type) or not (hasattr(module, "clone") and hasattr(module, "apply")):
            raise ConfigError(
                f"network[{place!r}]: must be a flax module, such as MyTorso(), not {module!r}"
            )
        stored = (getattr(config.network, place) or {}).get("_target_")
        _check_again("network", stored, config, again=again)
        layers[place] = {"_target_": give(module, partial(_copy, module))}
    return dataclasses.replace(config, network=dataclasses.replace(config.network, **layers))


def _check_again(key: str, stored: str | None, config: Config, *, again: bool) -> None:
    """Raise `ConfigError` if a stored run would get an object in place of its own settings."""
    if again and not is_given(stored) and key not in config.resume_allow:
        raise ConfigError(
            f"{key}: the run has no object there, but {stored}, and a run keeps its settings; "
            f"leave it out, or allow it: resume_allow=[{key}]"
        )


def _copy(module: Any, **_: Any) -> Any:
    """Return a copy of a flax module, which keeps the places of one module apart."""
    return module.clone()


def is_given(path: Any) -> bool:
    """Return whether an import path is one of a given object."""
    return isinstance(path, str) and path.startswith(f"{HOME}.")


def __getattr__(name: str) -> Any:
    if name in _given:
        return _given[name]
    if name.startswith("__"):
        raise AttributeError(name)
    raise ConfigError(
        f"{HOME}.{name}: was an object in Python, which no file holds; give it again, such as "
        "jaxppo.load(DIR, env=OBJECT) or network={PLACE: MODULE}"
    )
