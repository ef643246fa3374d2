"""Save a run to checkpoints when they are due."""

import dataclasses
import math
import signal
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax

from jaxppo.config.fields import as_argument
from jaxppo.config.schema import Config
from jaxppo.config.stored import keep_config, plain
from jaxppo.config.trust import remember
from jaxppo.runtime.hosts import devices, processes
from jaxppo.runtime.hosts.signals import Interrupted
from jaxppo.runtime.programs.placement import Layout, State
from jaxppo.runtime.run.caller import Caller, Reached
from jaxppo.runtime.run.events import Events
from jaxppo.runtime.run.jobs import Job
from jaxppo.runtime.run.members import Members
from jaxppo.runtime.run.resuming import has_other_env
from jaxppo.runtime.run.selection import Selection
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.facts import RunFacts
from jaxppo.runtime.store.progress import Progress

SAVE_SECONDS = 60.0  # minimum time between checkpoints within a block


class Saver:
    """Writes checkpoints of all jobs in other threads during training, and on signals."""

    def __init__(
        self,
        jobs: Sequence[Job],
        members: Members,
        events: Events,
        progress: Progress,
        selection: Selection,
        caller: Caller,
    ) -> None:
        self._jobs, self._members, self._events = jobs, members, events
        self._progress, self._selection = progress, selection
        self._caller, self._signals = caller, caller.signals
        self._writers: dict[int, checkpoint.Writer] = {}  # of jobs, by their number
        self._share = jobs[0].config.checkpoint.share
        self._every = jobs[0].config.checkpoint.every_seconds
        self._num_saved = 0
        self._saved_at = time.perf_counter()

    def open(self, threads: ThreadPoolExecutor) -> None:
        """Make the checkpoint writers, and set the messages that are printed on a signal."""
        # With one checkpoint each, a kill during writing could leave jobs without a common step
        least = 1 if len(self._jobs) == 1 else 2
        for number, job in enumerate(self._jobs):
            settings = job.config.checkpoint
            if settings.enabled and job.run_dir is not None:
                self._writers[number] = checkpoint.Writer(
                    *(job.run_dir, threads, max(settings.keep, least), settings.milestones),
                    compares=partial(_has_same_env, job.config),
                )
        self._signals.plan = (
            "saving a checkpoint, then stopping"
            if self._writers
            else "stopping without a checkpoint"
        )
        if self._writers and len(self._jobs) == 1:
            argument = as_argument("resume", self._jobs[0].run_dir)
            self._signals.resume_hint = f"; to go on: {argument}"
        processes.set_resume_hint(processes.agree(self._signals.resume_hint))

    def wait(self) -> str:
        """Wait until all checkpoints are written; `CheckpointError` if one failed."""
        for writer in self._writers.values():
            writer.wait()
        return ""

    def pin(self, failed: Sequence[int]) -> None:
        """Never delete the last checkpoints from before these members failed."""
        for number, writer in self._writers.items():
            if any(i in self._members.jobs[number] for i in failed):
                writer.pin()

    def save_within(self, state: State, layout: Layout, before: int, received: int | None) -> None:
        """Save within a block, after a signal or if the last save was long enough ago.

        `before` is the step before the last call, `received` the number of the signal.
        """
        waited = time.perf_counter() - self._saved_at >= (self._every or SAVE_SECONDS)
        self._save(state, layout, {}, before, received, waited and self._can_afford())

    def save_block(
        self, state: State, layout: Layout, scores: Mapping[int, float], before: int
    ) -> bool:
        """Save after a block, if it is due; `scores` are those of its evaluation.

        Return whether the caller stops the run, which is saved then.
        """
        stops = self._caller.stops(self.reached(state, layout))
        received = self._signals.agreed()
        self._save(state, layout, scores, before, received, stops or self._can_afford())
        return stops

    def save_fault(self, pending: Callable[[], str], state: State, layout: Layout) -> None:
        """After a simulator's fault, save the last state by `pending`; the caller gets it."""
        pending()
        self._caller.reached = self.reached(state, layout)

    def _save(
        self,
        state: State,
        layout: Layout,
        scores: Mapping[int, float],
        before: int,
        received: int | None,
        asked: bool,
    ) -> None:
        """Write checkpoints if they are due or asked for; raise `Interrupted` after a signal."""
        if not self._members.active(layout.slots):  # the run ends by itself
            return
        steps = self._progress.steps
        due = asked or received is not None or self._progress.is_over
        due = due or any(w.is_milestone(steps, before) for w in self._writers.values())
        due = processes.agree(due)
        is_sound = due and self._is_sound(state, layout)
        if is_sound:
            self.snapshot(state, layout, scores)()
        if received is not None:
            self.wait()
            saved = f", saved{self._signals.resume_hint}" if self._writers else ", not saved"
            if not is_sound:
                why = "it has met a NaN or infinity since its last checkpoint"
                saved = f", not saved: {why}{self._signals.resume_hint}"
            name = signal.Signals(received).name
            self._caller.reached = self.reached(state, layout)
            raise Interrupted(f"{name}: stopped at step {steps}{saved}", received)

    def _is_sound(self, state: State, layout: Layout) -> bool:
        """Return whether no active member has met a NaN or the like, which ends it after the block.

        Its checkpoint could not be resumed, and would replace an earlier one that can.
        """
        parts = [state.total]
        if state.earlier is not None:  # a window counts only its last parameters, so check both
            parts = [state.earlier, layout.next_window(state.earlier, state.total)[0]]
        active, steps = self._members.active(layout.slots), self._progress.steps
        return all(
            self._members[i].diagnose(one, steps) is None
            for part in parts
            for i, one in layout.gather_numbers(part, active).items()
        )

    def _can_afford(self) -> bool:
        """Return whether a checkpoint is asked for by now, or keeps its share of time in bounds."""
        if self._every is not None and time.perf_counter() - self._saved_at >= self._every:
            return True
        if any(writer.is_writing for writer in self._writers.values()):
            return self._share == 1
        spent = sum(writer.seconds for writer in self._writers.values())
        each = spent / self._num_saved if self._num_saved else 0.1 * len(self._writers)
        return self._share == 1 or spent + each <= self._share * self._progress.seconds

    def reached(self, state: State, layout: Layout) -> Reached:
        """Return how far the run is."""
        parts = self._jobs, self._members, self._selection, self._progress
        return Reached(*parts, layout, state)

    def pending(self, state: State, layout: Layout) -> Callable[[], str]:
        """Return a function that saves the run as it is now, and waits for it."""
        save = self.snapshot(state, layout, {})
        return lambda: save() + self.wait()

    def snapshot(
        self, state: State, layout: Layout, scores: Mapping[int, float]
    ) -> Callable[[], str]:
        """Return a function that saves the present state of the run. Another thread may call it.

        It starts the write and returns a short message about it.
        """
        steps, parts = self._progress.steps, []
        for number, writer in self._writers.items():  # of failed jobs too: all resume together
            own = self._members.jobs[number]
            rows = [slot for slot, i in enumerate(layout.slots) if i in own]
            found = [x for i, x in scores.items() if i in own and math.isfinite(x)]
            score = statistics.fmean(found) if found else None
            facts = self._facts(number, rows, layout)
            own_facts = [self._members[i].facts for i in own]  # made a dict later
            parts.append((writer, rows, facts, own_facts, self._jobs[number].config, score))
        # Convert typed keys to data now: a device may be busy when `write` is called
        data = jax.tree.map(devices.data, state)

        def write() -> str:
            if not parts and processes.count() == 1:
                return ", not saved"
            self.wait()  # so that runs of one program are never several checkpoints apart
            self._num_saved += 1
            self._saved_at = time.perf_counter()
            gathered = (
                layout.gather(data.learner),
                layout.gather_agents(data.best),
                layout.gather_agents(data.total),
                layout.gather_agents(data.earlier),
            )
            for writer, rows, facts, own_facts, config, score in parts:
                arrays = jax.tree.map(lambda x, rows=rows: x[rows], gathered)
                each = [dataclasses.asdict(member) for member in own_facts]
                facts = dataclasses.replace(facts, members=each, config=plain(config))
                writer.save(steps, arrays, dataclasses.asdict(facts), score)
            return f", saved at step {steps}"

        return write

    def _facts(self, number: int, rows: Sequence[int], layout: Layout) -> RunFacts:
        """Return the facts of a job's checkpoint, without its members and settings."""
        job, own, progress = self._jobs[number], self._members.jobs[number], self._progress
        begun = progress.block + (progress.updates > 0)
        numbers = self._selection.numbers
        return RunFacts(
            block=progress.block,
            updates=progress.updates,
            updates_per_block=list(progress.updates_per_block[:begun]),
            seconds=progress.seconds,
            compile_seconds=progress.compile_seconds,
            speeds=list(progress.speeds),
            slots=[layout.slots[row] - own.start for row in rows],
            numbers={name: [row[r] for r in rows] for name, row in numbers.items()},
            shards=layout.shards,
            members_per_device=layout.plan.members_per_device,
            positions=self._events.positions(job),
        )


def keep_configs(jobs: Sequence[Job]) -> None:
    """Write config.yaml of all jobs; this user may load and resume them."""
    for job in jobs:
        if job.run_dir is not None:
            keep_config(job.config, job.run_dir)
            remember(plain(job.config))


def _has_same_env(config: Config, manifest: Mapping[str, Any]) -> bool:
    """Return whether the score of a checkpoint is of this environment."""
    return not has_other_env(manifest.get("config", {}), config)
