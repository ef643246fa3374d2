"""Hooks of a Python caller: signals, outputs, callbacks and the last state of the run."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxppo.runtime.hosts.signals import Signals
from jaxppo.runtime.programs.placement import Layout, State
from jaxppo.runtime.run.jobs import Job
from jaxppo.runtime.run.members import Members
from jaxppo.runtime.run.selection import Selection
from jaxppo.runtime.sinks import Event, Recorder, Screen, Sink, past_events
from jaxppo.runtime.store.progress import Progress


@dataclasses.dataclass(frozen=True)
class Reached:
    """A run between two blocks, or where it ended.

    The arrays of `state` are only valid until the next block begins.
    """

    jobs: Sequence[Job]
    members: Members
    selection: Selection
    progress: Progress
    layout: Layout
    state: State


@dataclasses.dataclass
class Caller:
    """The caller of a run. The default is a command line, which adds nothing."""

    signals: Signals = dataclasses.field(default_factory=Signals)
    console: bool = True  # False: ignore logger.console
    screens: Sequence[Screen] = ()
    records: dict[str, list[Event]] | None = None  # events by folder of the run; None: not kept
    on_block: Callable[["Reached"], bool] | None = None  # after each block; True stops the run
    reached: Reached | None = None  # after the last block; None before training

    def stops(self, reached: Reached) -> bool:
        """Store `reached`; return whether `on_block` stops the run."""
        self.reached = reached
        return self.on_block is not None and self.on_block(reached)

    def recorder(self, name: str, folder: Path | None, position: int | None) -> list[Sink]:
        """Return the sink that keeps the events of a folder of the run, if they are kept.

        Those from before a resume are in the first `position` bytes of its metrics.jsonl.
        """
        if self.records is None:
            return []
        self.records[name] = [] if folder is None else past_events(folder, position)[0]
        return [Recorder(self.records[name])]
