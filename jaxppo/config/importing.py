"""Import classes and functions that settings name by their import path."""

import importlib
import importlib.util
from collections.abc import Iterable
from typing import Any

from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import named, where


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # its parent package is not installed
        return False
    return spec is not None and spec.origin is not None  # None: a folder of that name


def imported(key: str, path: str, what: str, choices: Iterable[str]) -> Any:
    """Import the callable at `path`; `ConfigError` if there is none.

    `what` is the word for it in the error, "class" or "function". `choices` are the names that the
    setting takes instead.
    """
    module, _, name = path.rpartition(".")
    if not module:
        raise ConfigError(f"{key}={path}: an import path such as my_module.my_name is needed")
    found = getattr(load(key, path, module), name, None)
    if not callable(found):
        others = list(choices)
        instead = f"one of {', '.join(others)}" if len(others) > 1 else others[0]
        raise ConfigError(
            f"{key}={path}: module {module} has no {what} {name}; give the path of one that is "
            f"there, or {instead}"
        )
    return found


def load(key: str, path: str, module: str) -> Any:
    """Import the module of the setting `key=path`; `ConfigError` if that fails."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(
            f"{key}={path}: {module} cannot be imported ({named(error)}{where(error)}); "
            "is it on PYTHONPATH, and does it run?"
        ) from error
