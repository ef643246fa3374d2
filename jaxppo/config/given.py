"""Objects that a caller in Python gives, where settings hold import paths.

An object gets a path below this module, under which settings name it. The path leads to the object
in this process only: a stored run needs it again.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config, NetworkConfig

HOME = __name__
_given: dict[str, Callable[..., Any]] = {}  # name -> what returns the object


def give(example: Any, make: Callable[..., Any], path: str | None = None) -> str:
    """Return the import path of what `make` returns; `path`: the one to use again, of a stored run.

    The path ends with the name of the class of `example`.
    """
    kind = type(example).__name__
    name = kind if path is None else path.rpartition(".")[2]
    if path is None:
        number = 1
        while name in _given:
            number += 1
            name = f"{kind}_{number}"
    _given[name] = make
    return f"{HOME}.{name}"


def with_given(
    config: Config, env: Any, network: Mapping[str, Any] | None, *, again: bool
) -> Config:
    """Return settings that name an environment and flax modules, by place in the network.

    With `again`, they are those that the settings of a stored run name.
    """
    if env is not None:
        path = config.env.target if again else None
        path = give(env, lambda **_: env, path if is_given(path) else None)
        given = dataclasses.replace(config.env, name=None, target=path, kwargs={})
        config = dataclasses.replace(config, env=given)
    layers = {}
    places = [field.name for field in dataclasses.fields(NetworkConfig)]
    for place, module in (network or {}).items():
        if place not in places:
            raise ConfigError(f"network={place}: no such place; one of {', '.join(places)}")
        stored = (getattr(config.network, place) or {}).get("_target_") if again else None
        path = give(module, partial(_copy, module), stored if is_given(stored) else None)
        layers[place] = {"_target_": path}
    return dataclasses.replace(config, network=dataclasses.replace(config.network, **layers))


def _copy(module: Any, **_: Any) -> Any:
    """Return a copy of a flax module, which keeps the places of one module apart."""
    return module.clone()


def is_given(path: str | None) -> bool:
    """Return whether an import path is one of a given object."""
    return path is not None and path.startswith(f"{HOME}.")


def __getattr__(name: str) -> Any:
    if name in _given:
        return _given[name]
    if name.startswith("__"):
        raise AttributeError(name)
    raise ConfigError(
        f"{HOME}.{name}: was an object in Python, which no file holds; give it again, such as "
        "jaxppo.load(DIR, env=OBJECT) or network={PLACE: MODULE}"
    )
