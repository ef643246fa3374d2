"""What goes wrong in simulators."""

import dataclasses
from typing import Any

from jaxppo.config.messages import raised


@dataclasses.dataclass(frozen=True)
class Fault:
    """What an environment did wrong."""

    row: int
    step: int  # steps that the environment had taken since it was made
    what: str  # such as "raises ValueError: ..."
    last: int | None = None  # if it was one of all environments from `row` to this one

    def __str__(self) -> str:
        name = f"environment {self.row} at its"
        if self.last not in (None, self.row):
            name = f"environments {self.row} to {self.last} at their"
        return f"{name} step {self.step:,}: {self.what}"


class SimulatorError(RuntimeError):
    """An environment failed, and cannot or must not be replaced. The message is one line."""


class ReturnedError(TypeError):
    """A function of an environment returned what it must not. The message names the value."""


class RestartWarning(UserWarning):
    """Environments were made anew during an evaluation. The message is one line."""


# What an environment may raise; sys.exit() would end the run with status 0
ANY_ERROR = (Exception, SystemExit)


def values_of(returned: Any, names: str) -> Any:
    """Return the values that a function returned; `ReturnedError` if they are not as many.

    `names` are those that it must return, such as "observation, info".
    """
    many, wanted = isinstance(returned, tuple | list), names.count(",") + 1
    if many and len(returned) == wanted:
        return returned
    given = f"{len(returned)} values" if many else "one value"
    raise ReturnedError(f"returns {given} but must return {wanted}: {names}")


def in_function(function: str, error: BaseException) -> str:
    """Say what a function of an environment has raised, or returned wrongly."""
    if isinstance(error, ReturnedError):
        return f"{function}: {error}"
    return f"{'' if function == 'step' else 'reset '}raises {raised(error)}"


def shown(value: Any) -> str:
    """Return a value in words: its type, and its shape or how it is written."""
    shape = getattr(value, "shape", None)
    more = repr(value)[:40] if shape is None else f"of shape {shape}"
    return " ".join(f"{type(value).__name__} {more}".split())
