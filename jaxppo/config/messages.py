"""Helpers to format messages, and to write one that needs no console."""

import contextlib
import importlib.metadata
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Packages whose lines are not a user's; lines of other ones are, such as of a laboratory's
_LIBRARIES = {
    *("brax", "chex", "cloudpickle", "distrax", "envpool", "flax", "gymnasium", "gymnax", "hydra"),
    *("hydra_plugins", "jax", "jaxlib", "jaxmarl", "joblib", "jumanji", "matplotlib", "mujoco"),
    *("numpy", "omegaconf", "optax", "optuna", "orbax", "pettingzoo", "ray", "rlax", "scipy"),
    *("submitit", "tensorflow_probability", "wandb"),
}
# JAX's errors about values that a compiled program does not know yet -> what to write
_INSTEAD = {
    "TracerBoolConversionError": "an `if`, `and` or `while` on an array: write jnp.where, &, "
    "jax.lax.cond or jax.lax.while_loop",
    "TracerIntegerConversionError": "an array as an integer of Python: index arrays of jax.numpy, "
    "not lists",
    "TracerArrayConversionError": "NumPy computes with an array: write jax.numpy",
    "NonConcreteBooleanIndexError": "a shape that depends on values: write jnp.where(mask, x, 0)",
    "ConcretizationTypeError": "int(), float(), or a shape that depends on values: write "
    "x.astype, or jnp.where and a constant shape",
    "UnexpectedTracerError": "an array was kept beyond its step, such as in self: return it in the "
    "state",
}


class OneLineError(Exception):
    """An error whose message says all: notebooks show it without a traceback."""

    def _render_traceback_(self) -> list[str]:  # the name is IPython's
        return [f"{type(self).__name__}: {self}"]


class BoundsWarning(UserWarning):
    """A policy acts between other bounds than those with which it was trained."""


def brief(error: BaseException, lines: int = 1) -> str:
    """Return the first lines of an error as one line, or its type if it has no message."""
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(said[:lines])[:300] or type(error).__name__


def raised(error: BaseException) -> str:
    """Return the type of an error, its first line, and the line of a user that raised it."""
    name, first = type(error).__name__, str(error).partition("\n")[0]
    return (f"{name}: {first.rstrip('.')}" if first else name) + where(error)


def explained(error: BaseException) -> str:
    """Return what `raised` does; of an error that no user's line raised, its first two lines."""
    return raised(error) if where(error) else brief(error, 2)


def where(error: BaseException) -> str:
    """Return, after a comma, the last line of a user's code that led to an error; "" without one.

    After a semicolon follows what to write instead, if JAX asked for a value while it traced.
    """
    for each in (error, error.__cause__):
        frames = traceback.extract_tb(each.__traceback__) if each else ()
        theirs = [frame for frame in frames if _is_users(frame.filename)]
        if theirs:
            last, kinds = theirs[-1], [kind.__name__ for kind in type(each).__mro__]
            found = next((f"; {_INSTEAD[kind]}" for kind in kinds if kind in _INSTEAD), "")
            code = f": {last.line[:80]}" if last.line else ""
            return f", in {last.name} ({Path(last.filename).name}, line {last.lineno}{code}){found}"
    return ""


def _is_users(file: str) -> bool:
    """Return whether a file is neither of jaxppo, nor of Python or the libraries of jaxppo."""
    if file == "<dynamic-code>":  # how cloudpickle names the file of what another process sent
        return True
    path = Path(file)
    for folder in ("site-packages", "dist-packages"):
        if folder in path.parts[:-1]:
            return path.parts[path.parts.index(folder) + 1] not in _LIBRARIES
    here = Path(__file__).parents[1]
    ours = here, here.parent / "hydra_plugins", Path(sysconfig.get_path("stdlib"))
    return not file.startswith("<") and not any(path.is_relative_to(each) for each in ours)


def of_gymnasium(name: str) -> str | None:
    """Return the settings that choose an id of Gymnasium, such as Hopper-v5; None if it is none."""
    return f"env=gymnasium env.name={name}" if re.search(r"-v\d+$", name) else None


def installing(extra: str) -> str:
    """Return the command that installs what an extra of this package needs.

    It names the packages themselves: no index has a jaxppo of ours yet.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        needs = [each.partition(";")[::2] for each in importlib.metadata.requires("jaxppo") or ()]
        marker = re.compile(rf"extra == ['\"]{extra}['\"]")
        found = [package.strip() for package, marks in needs if marker.search(marks)]
        if found:  # an older installation may not have the extra
            return " ".join(["pip install", *(f"'{each}'" for each in found)])
    return f"pip install '.[{extra}]' where jaxppo's pyproject.toml is"


def named(error: BaseException) -> str:
    """Return the type and message of an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def write_error(line: str) -> None:
    """Write a line to standard error, if that is open."""
    with if_open():
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def if_open() -> contextlib.AbstractContextManager[None]:
    """Let the use of a standard stream fail in silence; Python has None for a closed one."""
    return contextlib.suppress(OSError, ValueError, AttributeError)


def count(things: Any, noun: str, plural: str = "s") -> str:
    """Return a number, or the size of a collection, with its noun: 1 run, 1,024 runs."""
    number = things if isinstance(things, int) else len(things)
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def flattened(settings: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the key, with dots, and the value of nested settings; an empty dict is a value."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
