"""Helpers to format messages."""

import contextlib
import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from typing import Any


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
        found = [x.strip() for x, m in needs if marker.search(m)]
        found = found or [x.strip() for x, _ in needs if re.match(rf"{extra}\b", x)]
        if found:  # an older installation may not have the extra
            return " ".join(["pip install", *(f"'{each}'" for each in found)])
    return f"pip install '.[{extra}]' where jaxppo's pyproject.toml is"


def named(error: BaseException) -> str:
    """Return the type and message of an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


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
