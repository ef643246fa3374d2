"""Restrict what the settings of a stored run, perhaps from a stranger, may import."""

import contextlib
import hashlib
import json
import os
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxppo.config.fields import ConfigError, is_import_path
from jaxppo.config.given import is_given
from jaxppo.config.schema import is_player

TRUSTED = (
    *("jaxppo.algorithms", "jaxppo.envs", "jaxppo.networks"),
    *("flax.linen", "optax", "gymnax"),
)


def check_trust(settings: dict[str, Any], trust: Sequence[str]) -> list[str]:
    """Raise `ConfigError` if settings import something that is neither in `TRUSTED` nor trusted.

    Return what is trusted beyond `TRUSTED`: `trust`, the comma-separated names in JAXPPO_TRUST, and
    the imports of these settings if this user has trained with the same; see `remember`.

    `settings` are plain containers, because parsing them would already import `system.algorithm`.
    A path is imported only if its prefix is trusted. The object found must also be defined under a
    trusted prefix, unless `trust` has the whole path: a trusted module may have imported it from
    elsewhere. From this project and its libraries only classes are allowed, since a function may do
    anything with its arguments. Also allowed are `_FUNCTIONS`, and functions of optax, which only
    make optimisers.
    """
    if isinstance(trust, str):
        raise ConfigError(f"trust={trust!r}: must be a list, such as [{trust!r}]")
    trust = [*trust, *filter(None, os.environ.get("JAXPPO_TRUST", "").split(","))]
    if _digest(settings) in _remembered():
        trust += [path for _, path in _named(settings)]
    allowed = (*TRUSTED, *trust)
    for key, value in _texts(settings):
        if "${" in value and key != "resume":  # the name of a directory, which is text
            raise ConfigError(
                f"{key}={value}: a stored run must not contain ${{...}}; write the value"
            )
    for key, path in _named(settings):
        if is_given(path):  # the caller gives it, and nothing is imported
            continue
        if not (_within(path, allowed) and (key == "env.module" or _is_defined_there(path, trust))):
            raise ConfigError(
                f"{key}={path}: is not among what a stored run may name (classes of "
                f"{', '.join(allowed)}); if you trust it, add trust=[{path.partition('.')[0]}]"
            )
    return trust


def remember(settings: dict[str, Any]) -> None:
    """Note that this user has trained with these settings, if they import anything of a user's.

    The note is the hash of the settings, import paths among them, in a file of the user's own: a
    run that others made is not noted, and one that they changed is not the same. If the file cannot
    be written, such runs need `trust`.
    """
    own = [path for _, path in _named(settings) if not _within(path, TRUSTED) or is_given(path)]
    if not own or any(map(is_given, own)) or _digest(settings) in _remembered():
        return
    with contextlib.suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _file().open("a") as file:
            file.write(f"{_digest(settings)}\n")


def _file() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "jaxppo" / "trained"


def _remembered() -> set[str]:
    try:
        return set(_file().read_text().split())
    except (OSError, UnicodeDecodeError):
        return set()


def _digest(settings: Mapping[str, Any]) -> str:
    """Return the hash of all settings that may name imports."""
    sections = {name: settings.get(name) for name in ("env", "network", "system")}
    return hashlib.sha256(json.dumps(sections, sort_keys=True, default=str).encode()).hexdigest()


def _within(path: str, allowed: Sequence[str]) -> bool:
    return any(f"{path}.".startswith(f"{prefix.rstrip('.')}.") for prefix in allowed)


def _is_defined_there(path: str, trust: Sequence[str]) -> bool:
    """Return whether the object at `path` is trusted, or defined under a trusted prefix."""
    if path in trust:
        return True
    try:
        found = pkgutil.resolve_name(path)
        home = f"{found.__module__}.{found.__qualname__}"
    except Exception:  # an import may raise anything
        return False
    if _within(path, trust) and _within(home, (*TRUSTED, *trust)):
        return True
    allowed = isinstance(found, type) or path in _FUNCTIONS or _within(home, ("optax",))
    return _within(home, TRUSTED) and allowed


# These may also hold names of our own
_NAMES = ("system.algorithm", "system.objective", "system.optimizer")
_PATHS = ("env.target", "env.module", *_NAMES)
_PLAYERS = {"env.opponent", "env.evaluation_opponent"}
_BASELINE = "pgx.make_baseline_model"  # which unpickles a file
_FUNCTIONS = ("jaxppo.networks.heads.follow",)  # functions that make a layer


def _named(settings: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield (key, import path) for every import path in settings."""
    if isinstance(settings, dict):
        for name, value in settings.items():
            inner = f"{key}.{name}".lstrip(".")
            if inner in _PLAYERS:
                if value == "baseline" or is_player(str(value)):
                    yield inner, _BASELINE if value == "baseline" else value
            elif name == "_target_" or inner in _PATHS:
                if value is not None and (inner not in _NAMES or is_import_path(str(value))):
                    yield inner, str(value)
            else:
                yield from _named(value, inner)
    elif isinstance(settings, list):
        for value in settings:
            if key == "env.wrappers" and isinstance(value, str):
                yield key, value
            yield from _named(value, key)


def _texts(settings: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield (key, text) for every text in settings; names of keys count as texts."""
    if isinstance(settings, dict):
        for name, value in settings.items():
            yield key, str(name)
            yield from _texts(value, f"{key}.{name}".lstrip("."))
    elif isinstance(settings, list):
        for value in settings:
            yield from _texts(value, key)
    elif isinstance(settings, str):
        yield key, settings
