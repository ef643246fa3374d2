"""What a setting names by its import path."""

import importlib
from typing import Any

from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import named


def imported(key: str, path: str, what: str) -> Any:
    """What an import path leads to; `ConfigError` where it leads to nothing, or to no `what`.

    `what` says in words what is wanted there, such as "a class": it has to be callable.
    """
    module, _, name = path.rpartition(".")
    if not module:
        raise ConfigError(f"{key}={path}: an import path such as my_module.my_name is needed")
    found = getattr(imported_module(key, module), name, None)
    if not callable(found):
        raise ConfigError(f"{key}={path}: module {module} has no {name} that is {what}")
    return found


def imported_module(key: str, name: str) -> Any:
    """A module by name; `ConfigError` where it cannot be imported."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(
            f"{key}={name}: cannot be imported ({named(error)}); "
            "is it on PYTHONPATH, and does it run?"
        ) from error
