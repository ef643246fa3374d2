"""Ends of runs: as abrupt as an exception can be, and processes that are killed."""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jaxppo.runtime.store.progress import Progress


class Killed(BaseException):
    """As abrupt as an exception can be."""


def asked(act: Callable[[int], None]) -> property:
    """`Progress.left` that calls `act(block)` first: a run asks for it before it trains a block."""
    real = Progress.left

    def left(progress: Progress) -> int:
        act(progress.block)
        return int(real.__get__(progress))

    return property(left)


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`kill(n)`: runs die when they begin their block `n`, in whichever process they began.

    What they were writing is written still.
    """
    real = Progress.left

    def at(number: int) -> None:
        def act(block: int) -> None:
            if block == number:
                monkeypatch.setattr(Progress, "left", real)
                raise Killed

        monkeypatch.setattr(Progress, "left", asked(act))

    return at


@contextlib.contextmanager
def processes() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`start(*arguments, env=, ...)` starts Python; at the end all that still run are killed."""
    begun: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **given: Any) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        begun.append(subprocess.Popen([sys.executable, *arguments], text=True, **pipes, **given))
        return begun[-1]

    yield start
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()
