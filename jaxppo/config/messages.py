"""Words that messages share."""

from typing import Any


def brief(error: BaseException, lines: int = 1) -> str:
    """An error in one line: its first lines, or its kind where it says nothing."""
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(said[:lines])[:300] or type(error).__name__


def named(error: BaseException) -> str:
    """An error in one line, with its kind."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def count(things: Any, noun: str, plural: str = "s") -> str:
    """A number, or that of a collection, with its noun: 1 run, 1,024 runs."""
    number = things if isinstance(things, int) else len(things)
    return f"{number:,} {noun}{'' if number == 1 else plural}"
