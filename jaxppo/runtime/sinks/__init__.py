"""Sinks receive the events of a run and write or display them.

An event is a flat dict with a key `event`: `resume`, `start`, `compile`, `train`, `eval`,
`selection`, `absolute`, `end`.

An error in metrics.jsonl, summary.json (which resumes and sweeps need) or the console ends the run.
All other sinks are views: if one fails, the run goes on without it.
"""

import contextlib
import dataclasses
import importlib
import inspect
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from jaxppo.config.fields import ConfigError
from jaxppo.config.importing import is_installed
from jaxppo.config.messages import installing, named, where, write_error
from jaxppo.config.schema import LoggerConfig
from jaxppo.config.stored import METRICS

Event = dict[str, Any]


class Sink(Protocol):
    """Receives all events of a run in order; it is closed however the run ends."""

    def write(self, event: Event) -> None:
        """Receive one event."""

    def close(self) -> None:
        """Finish files and displays."""


@typing.runtime_checkable
class Screen(Sink, Protocol):
    """A sink that also shows the progress between two events."""

    def tick(self, steps: int, speed: float) -> None:
        """Receive the environment steps done, and the steps per second, about once a second."""


@dataclasses.dataclass
class Recorder:
    """A sink that keeps all events."""

    events: list[Event]

    def write(self, event: Event) -> None:
        """Keep the event."""
        self.events.append(event)

    def close(self) -> None:
        """Do nothing."""


_LIBRARIES = {
    "tensorboard": "tensorboardX",
    "wandb": "wandb",
}  # setting (also the extra to install) -> library


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scope:
    """The run that events belong to, for views that show it."""

    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    name: str = ""
    group: str | None = None  # name of the sweep or of the run with several members
    is_member: bool = False  # of a run with several members
    failed: set[str] = dataclasses.field(default_factory=set)  # settings of failed views


def position(folder: Path) -> int:
    """Return the size of metrics.jsonl in bytes; 0 if there is none."""
    file = folder / METRICS
    return file.stat().st_size if file.exists() else 0


def missing(run_dir: Path, positions: Mapping[str, int]) -> list[str]:
    """Return one line for each metric log that is shorter than when a checkpoint was written."""
    lines = []
    for name, bytes_written in positions.items():
        file = run_dir / name / METRICS
        found = whole_lines(file, bytes_written)
        if len(found) < bytes_written:
            lines.append(
                f"{file} has {len(found):,} bytes of whole lines, and had {bytes_written:,} when "
                "the checkpoint was written"
            )
    return lines


def whole_lines(file: Path, size: int) -> bytes:
    """Return the first `size` bytes of a metric log, up to the first damaged line."""
    end, content = 0, file.read_bytes()[:size] if file.is_file() else b""
    for line in content.splitlines(keepends=True):
        try:
            is_event = line.endswith(b"\n") and "event" in dict(json.loads(line))
        except (ValueError, TypeError, RecursionError):
            is_event = False
        if not is_event:
            break
        end += len(line)
    return content[:end]


def past_events(run_dir: Path, position: int | None) -> tuple[list[Event], int | None]:
    """Return the events in the first `position` bytes of metrics.jsonl, and their bytes."""
    if position is None:
        return [], None
    lines = whole_lines(run_dir / METRICS, position)
    return [json.loads(line) for line in lines.splitlines()], len(lines)


def of_environment(events: Sequence[Event]) -> list[Event]:
    """Return the events since a resume last changed the environment, and all selections.

    Returns of the environment before do not compare with them.
    """
    changes = [i for i, event in enumerate(events) if event.get("new_environment")]
    last = max(changes, default=-1)
    return [e for i, e in enumerate(events) if i > last or e["event"] == "selection"]


def scalars(event: Event) -> dict[str, float]:
    """Return the numbers of a `train`, `eval` or `absolute` event, named like `train/entropy`."""
    return {
        f"{event['event']}/{name}": value
        for name, value in event.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and name not in ("seed", "steps")
    }


def histograms(event: Event) -> dict[str, list[int]]:
    """Return the counts of a `train` event's histograms, named like `train/advantage`.

    Their bins are those of `ops.histograms.edges`.
    """
    ends = "_histogram"
    found = {name.removesuffix(ends): x for name, x in event.items() if name.endswith(ends)}
    return {f"{event['event']}/{name}": x for name, x in found.items() if x is not None}


def check(config: LoggerConfig) -> None:
    """Raise `ConfigError` if a sink that `config` switches on cannot be made."""
    for switch, library in _LIBRARIES.items():
        if getattr(config, switch) and not is_installed(library):
            raise ConfigError(
                f"logger.{switch}=true: needs {library}; {installing(switch)}, or set it to false"
            )
    for switch in ("marl_eval", "tensorboard"):
        if getattr(config, switch) and not config.json:
            raise ConfigError(
                f"logger.{switch}=true: a resumed run reads its past from {METRICS}; set "
                "logger.json=true, or it to false"
            )
    for settings in config.sinks:
        _import_sink(settings)


def _import_sink(settings: dict[str, Any]) -> Callable[[Path], Sink]:
    """Return a function that makes a user's sink; `ConfigError` if there is no such class."""
    arguments = dict(settings)
    try:
        module, _, name = str(arguments.pop("_target_")).rpartition(".")
        cls = getattr(importlib.import_module(module), name)
        inspect.signature(cls).bind(Path(), **arguments)
        for method in ("write", "close"):
            getattr(cls, method)
    except Exception as error:  # an import may raise anything
        raise ConfigError(
            f"logger.sinks={settings}: {named(error)}{where(error)}; _target_ is the import path "
            "of a class with write(event) and close(), which is called with the run directory and "
            "the other arguments; see docs/sinks.md"
        ) from error
    return lambda run_dir: typing.cast(Sink, cls(run_dir, **arguments))


class View:
    """A sink that may fail: then it is dropped, with one line on standard error.

    Members share `failed`, the settings of failed views. Only the first failure of a setting is
    reported, and later members do not try to make that sink.
    """

    def __init__(self, name: str, make: Callable[[], Sink], failed: set[str]) -> None:
        self.name, self._failed = name, failed
        self.sink: Sink | None = None
        if name not in failed:
            try:
                self.sink = make()
            except Exception as error:  # a library or a user's class may raise anything
                self._drop(error)

    def write(self, event: Event) -> None:
        """Pass on a copy of the event."""
        self._try("write", dict(event))

    def tick(self, steps: int, speed: float) -> None:
        """Pass on the progress to a sink that takes it."""
        self._try("tick", steps, speed)

    def close(self) -> None:
        """Close the sink, if it was not dropped."""
        self._try("close")

    def _try(self, name: str, *args: Any) -> None:
        """Call a method of the sink, if it has it; drop the sink if that fails."""
        method = getattr(self.sink, name, None)
        if method is not None:
            try:
                method(*args)
            except Exception as error:
                self._drop(error)

    def _drop(self, error: Exception) -> None:
        sink, self.sink = self.sink, None
        if sink is not None:
            with contextlib.suppress(Exception):
                sink.close()
        if self.name not in self._failed:
            self._failed.add(self.name)
            write_error(f"{self.name}: {named(error)}{where(error)}; the run goes on without it")


def make(
    config: LoggerConfig, run_dir: Path, position: int | None = None, scope: Scope | None = None
) -> list[Sink]:
    """Make the sinks that `config` switches on; they write files below `run_dir`.

    A resumed run keeps the first `position` bytes of metrics.jsonl, or the whole lines among them.
    """
    scope = scope or Scope()
    sinks: list[Sink] = []
    past, position = past_events(run_dir, position)

    def view(name: str, make: Callable[[], Sink]) -> None:
        sinks.append(View(f"logger.{name}", make, scope.failed))

    if config.json:
        from jaxppo.runtime.sinks.json_lines import JsonLines

        sinks.append(JsonLines(run_dir, position))
    if config.plot:
        from jaxppo.runtime.sinks.plot import Plot

        view("plot", lambda: Plot(run_dir / "learning_curve.png", past))
    if config.marl_eval:
        from jaxppo.runtime.sinks.marl_eval import MarlEval

        view("marl_eval", lambda: MarlEval(run_dir, past))
    if config.tensorboard:
        from jaxppo.runtime.sinks.tensorboard import TensorBoard

        view("tensorboard", lambda: TensorBoard(run_dir, scope, past, position is not None))
    if config.wandb:
        from jaxppo.runtime.sinks.wandb import WandB

        view("wandb", lambda: WandB(config, run_dir, scope))
    for number, settings in enumerate(config.sinks):
        name = f"sinks[{number}] ({settings['_target_']})"
        view(name, partial(_import_sink(settings), run_dir))
    if config.console:
        from jaxppo.runtime.sinks.console import Console

        sinks.append(Console([run_dir]))
    return sinks
