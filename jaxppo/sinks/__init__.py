"""Where a run's events go.

An event is a flat dict with a key `event`: `start`, `compile`, `train`, `eval`, `absolute`, `end`.
"""

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


def make(config: LoggerConfig, run_dir: Path) -> list[Sink]:
    """The sinks that `config` switches on, writing files below `run_dir`."""
    sinks: list[Sink] = []
    if config.json:
        from jaxppo.sinks.json_lines import JsonLines

        sinks.append(JsonLines(run_dir))
    if config.plot:
        from jaxppo.sinks.plot import Plot

        sinks.append(Plot(run_dir / "learning_curve.png"))
    if config.console:
        from jaxppo.sinks.console import Console

        sinks.append(Console())
    return sinks
