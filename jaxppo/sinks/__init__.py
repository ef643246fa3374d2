"""Where a run's events go.

An event is a flat dict with a key `event`: `resume`, `start`, `compile`, `train`, `eval`,
`selection`, `absolute`, `end`.
"""

import json
from pathlib import Path
from typing import Any, Protocol

from jaxppo.config import LoggerConfig

Event = dict[str, Any]


class Sink(Protocol):
    """Takes every event of a run, in order, and is closed however the run ends."""

    def write(self, event: Event) -> None:
        """Take one event."""

    def close(self) -> None:
        """Finish files and displays."""


METRICS, SUMMARY = "metrics.jsonl", "summary.json"


def position(folder: Path) -> int:
    """Bytes of what was written to metrics.jsonl; of no file, 0."""
    file = folder / METRICS
    return file.stat().st_size if file.exists() else 0


def make(config: LoggerConfig, run_dir: Path, position: int | None = None) -> list[Sink]:
    """The sinks that `config` switches on, writing files below `run_dir`.

    A run that is resumed goes on after the first `position` bytes of metrics.jsonl.
    """
    sinks: list[Sink] = []
    past: list[Event] = []
    if position is not None and (run_dir / METRICS).exists():
        lines = (run_dir / METRICS).read_bytes()[:position].splitlines()
        past = [json.loads(line) for line in lines]
    if config.json:
        from jaxppo.sinks.json_lines import JsonLines

        sinks.append(JsonLines(run_dir, position))
    if config.plot:
        from jaxppo.sinks.plot import Plot

        sinks.append(Plot(run_dir / "learning_curve.png", past))
    if config.console:
        from jaxppo.sinks.console import Console

        sinks.append(Console())
    return sinks
