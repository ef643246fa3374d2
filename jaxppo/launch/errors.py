"""Turn errors of Hydra, the file system and JAX into one line: key, rule and way out."""

import contextlib
import difflib
import errno
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import jax
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from jaxppo import envs
from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import of_gymnasium, raised, where
from jaxppo.config.parse import unknown_key
from jaxppo.launch.composing import BRANCHES
from jaxppo.launch.door import LAYERS, choices, config_dir
from jaxppo.runtime.hosts import processes
from jaxppo.runtime.hosts.signals import Interrupted
from jaxppo.runtime.run.jobs import TrainingError
from jaxppo.runtime.store.checkpoint import CheckpointError
from jaxppo.simulators.faults import SimulatorError


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """Turn a user's mistake into one line on standard error and an exit status.

    Other exceptions are printed here with their traceback, since Hydra hides them in callbacks.
    """
    try:
        check_jax()
        yield
    except Interrupted as stopped:
        _end_together(str(stopped), stopped.status)
    except TrainingError as error:
        _end_together(str(error), 1)
    except processes.EndedElsewhere:
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        refuse("interrupted; what was written so far stays", 130)
    except BrokenPipeError:  # the reader of our output is gone
        _close_output()
        raise SystemExit(1) from None
    except Exception as error:
        processes.wait_for_news()
        line = explain(error) or (raised(error) if where(error) else None)  # of a user's code
        if line is None:
            traceback.print_exc()
            processes.abandon(1)
            raise SystemExit(1) from None
        of_user = isinstance(error, ConfigError | HydraException | ValueError)
        refuse(line, 2 if of_user or _is_of_platform(error) else 1)


def check_jax() -> None:
    """Raise `ConfigError` if JAX computes in 64 bits, or does not compile."""
    config: Any = jax.config
    if config.jax_enable_x64:
        raise ConfigError("JAX_ENABLE_X64: jaxppo computes in 32 bits; unset it")
    if config.jax_disable_jit:
        raise ConfigError("JAX_DISABLE_JIT: jaxppo runs compiled programs only; unset it")


def _close_output() -> None:
    """Send further output to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def explain(error: Exception, arguments: Sequence[str] | None = None) -> str | None:
    """Explain a user's mistake in one line; None if the error is not the user's.

    `arguments` are the settings that were given; None: those of the command line.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if isinstance(error, ConfigError | TrainingError | CheckpointError | SimulatorError):
        return str(error)
    if isinstance(error, MissingConfigException) and error.options:
        return _no_choice(error.missing_cfg_file or "", error.options)
    if isinstance(error, HydraException | OmegaConfBaseException):
        typed = getattr(error, "override", None)  # the text that Hydra could not parse
        missing = str(getattr(error.__cause__, "full_key", None) or "")  # may be inside a value
        return _translate(f"parsing override '{typed}'\n{error}" if typed else str(error), missing)
    if isinstance(error, ValueError) and "Config group override" in str(error):
        typed = " ".join(arg for arg in given if re.match(r"[+~]*(\w*|\w+/[\w/@.]+)=", arg))
        return f"{typed}: a group takes the name of one of its files; see --help"
    # OmegaConf's error for a key inside a list
    if match := re.match(r"invalid literal for int\(\) with base 10: '(\w+)'", str(error)):
        for typed in (argument for argument in given if f".{match[1]}=" in argument):
            key = typed.partition("=")[0].rpartition(".")[0].lstrip("+")
            return f"{typed}: {key} is a list; give all of it, such as {key}=[one,two]"
    if isinstance(error, OSError):
        return _explain_os(error)
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        first = str(error).partition("\n")[0] or "no memory is left"
        return (
            f"{first}; lower arch.total_num_envs, system.rollout_length or the number of members; "
            "python -m jaxppo.plan says what a run needs"
        )
    if _is_of_platform(error):
        return (
            f"JAX_PLATFORMS={os.environ['JAX_PLATFORMS']}: there is no such device here; unset it, "
            "or set it to cpu"
        )
    return None


def _is_of_platform(error: Exception) -> bool:
    """Return whether JAX did not find the platform that JAX_PLATFORMS names."""
    frames = traceback.extract_tb(error.__traceback__)
    asked = os.environ.get("JAX_PLATFORMS") and frames
    return bool(asked) and frames[-1].filename.endswith("xla_bridge.py")


def _explain_os(error: OSError) -> str | None:
    """Explain an error of the file system in one line."""
    name = error.filename
    if name is None:
        try:
            os.getcwd()
        except FileNotFoundError:
            return "the working directory does not exist any more; change to another"
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF):
            return None
        _close_output()
        return (
            f"standard output or a file of the run: {error.strerror}; make room, write elsewhere, "
            "or logger.console=false"
        )
    folder = os.path.dirname(os.fspath(name)) or "."
    if isinstance(error, FileNotFoundError) and not os.path.isdir(folder):
        return f"{name}: there is no directory {folder}; name another, or make it"
    unreadable = os.path.exists(name) and not os.access(name, os.R_OK)
    if isinstance(error, FileNotFoundError) or unreadable:
        return f"{name}: cannot be read ({error.strerror})"
    return (
        f"{name}: cannot be written ({error.strerror}); choose another directory for hydra.run.dir "
        "(in a sweep, hydra.sweep.dir), or make room"
    )


def refuse(message: str, status: int) -> NoReturn:
    """Exit with one line on standard error."""
    sys.stderr.write(" ".join(message.split()) + "\n")
    processes.abandon(status)
    raise SystemExit(status)


def _end_together(message: str, status: int) -> NoReturn:
    """Exit together with all other processes; the first prints the message."""
    processes.leave()
    if processes.is_first():
        refuse(message, status)
    raise SystemExit(status)


# What Hydra says of an override, and what we say
_HYDRAS = {
    r"Error merging override \+*(.*)": (
        "{}: the file's value is of another kind; see --cfg job for its form"
    ),
    r"(?:An item is already at '|Multiple values for )([^' ]+)[.']": (
        "+{}: is in the file already; change it without the plus sign"
    ),
    r"Ambiguous value for argument '([\w/]+(?:@[\w.]+)?=.*?)'": (
        "{}: must be one file; to train with each, add -m (--multirun)"
    ),
    r"Ambiguous value for argument '(([^=]*)=(.*?))'": (
        "{}: must be one value; write a list as {}=[{}], or train with each: -m (--multirun), or a "
        "loop in Python"
    ),
    r"Sweep parameters '(.*)' requires": (
        "{}: must be one value; to train with each, add -m (--multirun)"
    ),
    r"parsing override '(.*)'\n": (
        "{}: not an override; write each key=value as one argument, with no space beside the "
        "equals sign, and brackets closed"
    ),
}


def _translate(message: str, missing: str = "") -> str:
    """Translate Hydra's message about a wrong override into key, rule and way out.

    `missing` is the key that was not found, if Hydra names it. Plus signs that `for_hydra` put
    before a key are left out.
    """
    message = re.sub(r"\+\+(?=[a-z_]+\.)", "", message)
    if match := re.search(r"Could not override '([^']+)'", message):
        return _unknown(missing if missing.startswith(f"{match[1]}.") else match[1])
    if match := re.search(r"config group '(.+)' does not exist", message):
        folders = [path for path in config_dir().rglob("*") if path.is_dir()]
        names = [path.relative_to(config_dir()).as_posix() for path in folders]
        (near,) = difflib.get_close_matches(match[1], names, 1, 0.0)
        return f"{match[1]}: no such group; did you mean {near}?"
    for pattern, line in _HYDRAS.items():
        if match := re.search(pattern, message):
            return line.format(*match.groups())
    return message


def _no_choice(file: str, names: Sequence[str]) -> str:
    """Return the line for a file of a group, such as network/torso/mlp, that is not there."""
    group, _, choice = file.rpartition("/")
    if group.startswith("env/"):  # such as env=pgx/hex
        group, choice = "env", file.removeprefix("env/")
    every = choices(group) or names  # also those in folders, such as brax/ant
    (near,) = difflib.get_close_matches(choice, every, 1, 0.0)
    near = next((name for name in every if name.endswith(f"/{choice}")), near)
    found = _of_environment(choice, near) if group == "env" else None
    near = found or f"{group}={near}"
    return f"{group}={choice}: no such choice; did you mean {near}? (of {', '.join(names)})"


def _of_environment(name: str, near: str) -> str | None:
    """Return the settings for an environment's own name: its file, or one of its library.

    Libraries take seconds to import, and are not searched if the nearest file is like the name.
    """
    name = name.rpartition("/")[2]
    libraries = {"gymnax": "gymnax"}
    for file in choices("env"):
        settings: Any = OmegaConf.load(config_dir() / "env" / f"{file}.yaml")
        if settings.get("env", {}).get("name") == name:
            return f"env={file}"
        if "/" in file:
            libraries[file.partition("/")[0]] = file
    given = of_gymnasium(name)
    if given or difflib.get_close_matches(name, [near.rpartition("/")[2]]):
        return given
    for library, file in libraries.items():
        if envs.is_installed(library) and name in envs.registered(library):
            return f"env={file} env.name={name}"
    return None


def _unknown(key: str) -> str:
    """Return the line for a key that Hydra could not override."""
    group, _, slot = key.partition("@")
    layers = _layer_keys()
    if key.startswith("hydra."):
        return f"{key}: no such key; Hydra's own are in --hydra-help"
    if slot in BRANCHES.get(group, ()):
        return f"{key}: this network has none there; add it with a plus sign: +{key}=NAME"
    if key in BRANCHES:
        return f"{key}: name a branch, such as {key}@{key.replace('/', '.actor_')}=NAME"
    if key in layers:
        return f"{key}: the layer there, if any, has no such key; --cfg job shows what there is"
    return unknown_key(key, layers)


def _layer_keys() -> list[str]:
    """Return all settable keys of layers, in every place of a network."""
    keys = set()
    for layer in LAYERS:
        places = BRANCHES.get(f"network/{layer}", [f"network.{layer}"])
        for file in (config_dir() / "network" / layer).glob("*.yaml"):
            keys |= {f"{place}.{key}" for key in map(str, OmegaConf.load(file)) for place in places}
    return sorted(keys)
