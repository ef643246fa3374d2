"""What goes wrong in simulators."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Fault:
    """What an environment did wrong."""

    row: int
    step: int  # steps that the environment had taken since it was made
    what: str  # such as "raises ValueError: ..."

    def __str__(self) -> str:
        return f"environment {self.row} at its step {self.step:,}: {self.what}"


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


def in_words(error: BaseException) -> str:
    """Return the type of an error and its first line."""
    name, first = type(error).__name__, str(error).partition("\n")[0]
    return f"{name}: {first}" if first else name
