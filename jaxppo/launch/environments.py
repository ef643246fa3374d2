"""List the environments that `env.library` and `env.name` select, for `python -m jaxppo.envs`."""

import contextlib
import difflib
import io
import textwrap
import typing
import warnings
from typing import Any

from omegaconf import OmegaConf

from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import installing
from jaxppo.config.schema import EnvConfig
from jaxppo.envs import PACKAGES, downloads, is_installed, outline, registered
from jaxppo.launch.door import choices, config_dir
from jaxppo.runtime.sinks.console import print_lines, print_table

MAX_BUILT = 50  # environments whose spaces are shown at once; each is made to find them
_MAX_NAMES = 100  # of one library in the list of all
_OWN = "jaxppo"  # the library of classes of our own, which have import paths instead of names


def show(word: str) -> None:
    """Print the environments that have `word` in their name, library or file of settings.

    Without a word, print all: those of gymnax and ours in full, those of other libraries by name.
    """
    files = tuned()
    if word:
        _show_found(word.lower(), files)
        return
    own = [("gymnax", name) for name in registered("gymnax")]
    own += [key for key in files if key[0] == _OWN]
    print_table("gymnax, and environments of jaxppo", [_row(*key, files) for key in own])
    for library in PACKAGES:
        if library != "gymnax":
            print_lines(_names(library, files))
    print_lines(
        "",
        "env=NAME trains with tuned settings, env.library=LIBRARY env.name=NAME with general ones.",
        "python -m jaxppo.envs WORD shows spaces and episode lengths of those whose name has WORD.",
    )


def _names(library: str, files: dict[tuple[str, str], list[str]]) -> str:
    """Return one line with a library's names and its files of tuned settings."""
    settings = sorted(f"env={file}" for key in files if key[0] == library for file in files[key])
    known = f"; tuned settings: {', '.join(settings)}" if settings else ""
    if not is_installed(library):
        return f"{library}: not installed: {installing(library)}{known}"
    try:
        names = _quietly(lambda: registered(library))
    except ConfigError as error:
        return str(error)
    few = names if len(names) <= _MAX_NAMES else [*names[:10], "..."]
    return f"{library}, {len(names):,} environments: {', '.join(few)}{known}"


def _registered(library: str) -> list[str]:
    """Return the names of a library; none if it cannot be imported."""
    with contextlib.suppress(ConfigError):
        return _quietly(lambda: registered(library))
    return []


def _show_found(word: str, files: dict[tuple[str, str], list[str]]) -> None:
    """Print what `word` matches; `ConfigError` if it matches nothing."""
    searched = [word] if word in PACKAGES else list(PACKAGES)
    known = [(library, name) for library in searched for name in _registered(library)]
    known += [key for key in files if key not in known]
    found = [key for key in known if word in " ".join((*key, *files.get(key, ()))).lower()]
    missing = ", ".join(library for library in searched if not is_installed(library))
    unseen = f"not installed, and not searched: {missing}" if missing else ""
    if not found:
        names = {name.lower(): name for _, name in known}
        near = [names[name] for name in difflib.get_close_matches(word, list(names), 3, 0.0)]
        raise ConfigError(
            f"{word}: no environment has this in its name; the nearest: {', '.join(near)}"
            + (f"; {unseen}" if unseen else "")
        )
    print_table(f"environments with {word}", [_row(*key, files) for key in found[:MAX_BUILT]])
    if len(found) > MAX_BUILT:
        print_lines(f"and {len(found) - MAX_BUILT:,} more; a longer word shows fewer")
    if missing:
        print_lines(f"{unseen}; python -m jaxppo.envs says how to install them")


def _row(library: str, name: str, files: dict[tuple[str, str], list[str]]) -> dict[str, Any]:
    """Return the row of an environment, which is made to find its spaces."""
    own, observation, action, steps = library == _OWN, "", "-", "-"
    config = EnvConfig(target=name) if own else EnvConfig(library=library, name=name)
    try:
        if not own and downloads(library, name):
            observation = "downloads files when it is made"
        else:
            observation, action, limit = _quietly(lambda: outline(config))
            steps = "no limit" if limit is None else f"{limit:,}"
    except ConfigError as error:  # a library's own words, where there are some
        observation = textwrap.shorten(str(error.__cause__ or error), 120, placeholder="...")
    return {
        "library": library,
        "name": name,
        "observation": observation,
        "action": action,
        "steps": steps,
        "tuned settings": " ".join(f"env={file}" for file in files.get((library, name), ())) or "-",
    }


def _quietly(function: Any) -> Any:
    """Call a library's function without its warnings and what it prints on standard output."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return function()


def tuned() -> dict[tuple[str, str], list[str]]:
    """Return the files of configs/env with settings for an environment: (library, name) -> files.

    A class of jaxppo has its import path for a name.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for file in choices("env"):
        env = _env_of(file)
        key = (_OWN, env["target"]) if env.get("target") else (env.get("library"), env.get("name"))
        if key[1] is not None:
            found.setdefault((key[0] or "gymnax", key[1]), []).append(file)
    return found


def _env_of(file: str) -> dict[str, Any]:
    """Return what a file of configs/env, and those that it extends, set in `env`."""
    raw = OmegaConf.to_container(OmegaConf.load(config_dir() / "env" / f"{file}.yaml"))
    content = typing.cast(dict[str, Any], raw)
    env: dict[str, Any] = {}
    for parent in content.get("defaults", ()):
        if isinstance(parent, str) and parent != "_self_" and not parent.endswith("@env"):
            env |= _env_of(parent.removeprefix("/env/"))
    return {**env, **content.get("env", {})}
