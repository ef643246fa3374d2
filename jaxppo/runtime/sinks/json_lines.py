"""Write metrics.jsonl and summary.json."""

import contextlib
import errno
import json
import math
import os
from pathlib import Path
from typing import Any

from jaxppo.config.stored import METRICS, SUMMARY, write_atomically
from jaxppo.runtime.sinks import Event

LOGGED = ("train", "eval", "selection", "absolute", "alarm")


class JsonLines:
    """Writes events of blocks as lines of metrics.jsonl, and the `end` event as summary.json.

    A `resume` event is a line only if it changes the environment.

    NaN and infinities, which JSON does not have, become null. The file is open only while a line is
    written, since one program may have a thousand runs.
    """

    def __init__(self, run_dir: Path, position: int | None = None) -> None:
        self._summary = run_dir / SUMMARY
        self._path = run_dir / METRICS
        with self._path.open("xb" if position is None else "ab") as file:
            file.truncate(position or 0)

    def write(self, event: Event) -> None:
        """Append a line, complete on disk before the next event."""
        event = _finite(event)
        if event.get("new_environment"):  # without the console's lines and this machine's paths
            event = {name: event[name] for name in ("event", "steps", "new_environment")}
        if event["event"] in LOGGED or event.get("new_environment"):
            self._append((json.dumps(event, allow_nan=False) + "\n").encode())
        elif event["event"] == "end":
            text = json.dumps(event, indent=2, allow_nan=False) + "\n"
            write_atomically(self._summary, text)

    def _append(self, line: bytes) -> None:
        # Unbuffered: a line is one system call, which signals cannot split.
        with self._path.open("ab", buffering=0) as file:
            whole = file.tell()
            try:
                if file.write(line) < len(line):  # the disk is full
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                with contextlib.suppress(OSError):
                    file.truncate(whole)
                raise OSError(error.errno, error.strerror, str(self._path)) from error

    def close(self) -> None:
        """Do nothing, since no file is open."""


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
