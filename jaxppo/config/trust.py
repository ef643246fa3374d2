"""What a stored run, perhaps of a stranger, may name."""

from collections.abc import Iterator, Sequence
from typing import Any

from jaxppo.config.fields import ConfigError, is_import_path

TRUSTED = (
    *("jaxppo.algorithms", "jaxppo.envs", "jaxppo.networks"),
    *("flax.linen", "optax", "gymnax"),
)


def check_trust(settings: dict[str, Any], trust: Sequence[str]) -> None:
    """`ConfigError` where settings name something to import that is not within `trust`.

    `settings` are plain containers: parsing them already imports what `system.algorithm` names. For
    settings that come with a run, perhaps of a stranger. A path is looked up only where its
    beginning is trusted, and what it leads to has to come from there too: not from a module that
    a trusted one has imported. Of this project and its libraries it has to be a class, since a
    function may do anything with the arguments that it is given.
    """
    allowed = (*TRUSTED, *trust)
    for key, value in _texts(settings):
        if "${" in value:
            raise ConfigError(f"{key}={value}: a stored run looks nothing up; write the value")
    for key, path in _named(settings):
        if not (_within(path, allowed) and (key == "env.module" or _is_what_it_says(path, trust))):
            raise ConfigError(
                f"{key}={path}: is not among what a stored run may name (classes of "
                f"{', '.join(allowed)}); if you trust it, add trust=[{path.partition('.')[0]}]"
            )


def _within(path: str, allowed: Sequence[str]) -> bool:
    return any(f"{path}.".startswith(f"{prefix.rstrip('.')}.") for prefix in allowed)


def _is_what_it_says(path: str, trust: Sequence[str]) -> bool:
    """Whether a path leads to what was defined under a trusted one."""
    from hydra.utils import get_object

    try:
        found = get_object(path)
        home = f"{found.__module__}.{found.__qualname__}"
    except Exception:  # whatever an import raises
        return False
    if _within(path, trust) and _within(home, (*TRUSTED, *trust)):
        return True
    return _within(home, TRUSTED) and (isinstance(found, type) or path in _FUNCTIONS)


_PATHS = ("env.target", "env.module", "system.algorithm", "system.objective")
_NAMES = ("system.algorithm", "system.objective")  # which may be names of ours instead
_FUNCTIONS = ("jaxppo.networks.heads.follow",)  # that make a layer


def _named(settings: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every import path in settings, by its key."""
    if isinstance(settings, dict):
        for name, value in settings.items():
            inner = f"{key}.{name}".lstrip(".")
            if name == "_target_" or inner in _PATHS:
                if value is not None and (inner not in _NAMES or is_import_path(str(value))):
                    yield inner, str(value)
            else:
                yield from _named(value, inner)
    elif isinstance(settings, list):
        for value in settings:
            yield from _named(value, key)


def _texts(settings: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in settings, keys too, by its key."""
    if isinstance(settings, dict):
        for name, value in settings.items():
            yield key, str(name)
            yield from _texts(value, f"{key}.{name}".lstrip("."))
    elif isinstance(settings, list):
        for value in settings:
            yield from _texts(value, key)
    elif isinstance(settings, str):
        yield key, settings
