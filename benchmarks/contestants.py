"""Processes that compile side by side, and then run a block each in turn; wheels for them.

A contestant prints a line of JSON once it has compiled, and one for each line that it reads (see
`benchmarks.blocks.serve`).
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.blocks import ROOT


class ContestantError(Exception):
    """A contestant ended, or did not answer in time; the message is a line."""


class Contestant:
    """A process that runs a block when it is asked to; it compiles as soon as it is made."""

    def __init__(self, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        self.speeds: list[float] = []  # steps per second of each block
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  until `close`
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Pass on lines of JSON, then None."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._answers.put(json.loads(line))
        self._answers.put(None)

    def answer(self, limit: float | None = None) -> dict[str, Any]:
        """Return the next answer; `ContestantError` if there is none after so many seconds."""
        try:
            answer = self._answers.get(timeout=limit)
        except queue.Empty:
            raise ContestantError(f"no answer after {limit:.0f} s") from None
        if answer is None:
            self._process.wait()
            self._errors.seek(0)
            raise ContestantError((self._errors.read().strip().splitlines() or ["ended"])[-1])
        return answer

    def ask(self, what: str, limit: float | None = None) -> dict[str, Any]:
        """Return what it answers to a line."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{what}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; `answer` says why
        return self.answer(limit)

    def block(self, limit: float | None = None) -> dict[str, Any]:
        """Time a block and return the answer, whose `speed` (steps per second) is kept."""
        answer = self.ask("block", limit)
        self.speeds.append(answer["speed"])
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):  # a question that nobody has read
                stream.close()  # type: ignore[union-attr]


def in_turn(contestants: Iterable[Contestant], rounds: int, deadline: float = float("inf")) -> None:
    """Time a block of each, round by round; none begins after `deadline` (`time.monotonic`)."""
    contestants = list(contestants)
    for _ in range(rounds):
        for contestant in contestants:
            if time.monotonic() >= deadline:
                return
            contestant.block()


def with_wheels(wheels: Path | None) -> str:
    """Install wheels, if any, without a network; a `PYTHONPATH` whose first folder has them."""
    path = os.environ.get("PYTHONPATH", str(ROOT))
    if wheels is None:
        return path
    site = Path(tempfile.gettempdir()) / "bench-accelerator"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    files = map(str, wheels.glob("*.whl"))
    subprocess.run([*command, "--upgrade", "--target", str(site), *files], check=True)
    return os.pathsep.join([str(site), path])
