"""Save a run to checkpoints when they are due, in other threads during training, and on signals."""

import dataclasses
import math
import signal
import statistics
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
from jaxppo.runtime.programs.placement import State
from jaxppo.runtime.run.caller import Reached
from jaxppo.runtime.run.jobs import Job
from jaxppo.runtime.run.parts import Run
from jaxppo.runtime.run.resuming import has_other_env
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.facts import RunFacts

SAVE_SECONDS = 60.0  # minimum time between checkpoints within a block


def open_writers(run: Run, threads: ThreadPoolExecutor) -> None:
    """Make the checkpoint writers, and set the messages that are printed on a signal."""
    # With one checkpoint each, a kill during writing could leave jobs without a common step
    least = 1 if len(run.jobs) == 1 else 2
    for number, job in enumerate(run.jobs):
        settings = job.config.checkpoint
        if settings.enabled and job.run_dir is not None:
            run.writers[number] = checkpoint.Writer(
                *(job.run_dir, threads, max(settings.keep, least), settings.milestones),
                compares=partial(_has_same_env, job.config),
            )
    signals = run.caller.signals
    saves = "saving a checkpoint, then stopping"
    signals.plan = saves if run.writers else "stopping without a checkpoint"
    if run.writers and len(run.jobs) == 1:
        argument = as_argument("resume", run.jobs[0].run_dir)
        signals.resume_hint = f"; to go on: {argument}"
    processes.set_resume_hint(processes.agree(signals.resume_hint))


def _has_same_env(config: Config, manifest: Mapping[str, Any]) -> bool:
    """Return whether the score of a checkpoint is of this environment."""
    return not has_other_env(manifest.get("config", {}), config)


def wait(run: Run) -> str:
    """Wait until all checkpoints are written; `CheckpointError` if one failed."""
    for writer in run.writers.values():
        writer.wait()
    return ""


def save_within(run: Run, state: State, before: int, received: int | None) -> None:
    """Save within a block, after a signal or if the last save was long enough ago.

    `before` is the step before the last call, `received` the number of the signal.
    """
    least = run.config.checkpoint.every_seconds or SAVE_SECONDS
    _save(run, state, {}, before, received, _can_afford(run) and _age(run) >= least)


def save_block(run: Run, state: State, scores: Mapping[int, float], before: int) -> bool:
    """Save after a block, if it is due; `scores` are those of its evaluation.

    Return whether the caller stops the run, which is saved then.
    """
    stops = run.caller.stops(reached(run, state))
    received = run.caller.signals.agreed()
    _save(run, state, scores, before, received, stops or _can_afford(run))
    return stops


def save_fault(run: Run, state: State, pending: Callable[[], str]) -> None:
    """After a simulator's fault, save the last state by `pending`; the caller gets it."""
    pending()
    run.caller.reached = reached(run, state)


def _save(
    run: Run,
    state: State,
    scores: Mapping[int, float],
    before: int,
    received: int | None,
    asked: bool,
) -> None:
    """Write checkpoints if they are due or asked for; raise `Interrupted` after a signal."""
    if not run.active:  # the run ends by itself
        return
    steps = run.progress.steps
    due = asked or received is not None or run.progress.is_over
    due = due or any(w.is_milestone(steps, before) for w in run.writers.values())
    due = processes.agree(due)
    is_sound = due and _is_sound(run, state)
    if is_sound:
        snapshot(run, state, scores)()
    if received is not None:
        wait(run)
        hint = run.caller.signals.resume_hint
        saved = f", saved{hint}" if run.writers else ", not saved"
        if not is_sound:
            saved = f", not saved: it has met a NaN or infinity since its last checkpoint{hint}"
        name = signal.Signals(received).name
        run.caller.reached = reached(run, state)
        raise Interrupted(f"{name}: stopped at step {steps}{saved}", received)


def _is_sound(run: Run, state: State) -> bool:
    """Return whether no active member has met a NaN or the like, which ends it after the block.

    Its checkpoint could not be resumed, and would replace an earlier one that can.
    """
    parts = [state.total]
    if state.earlier is not None:  # a window counts only its last parameters, so check both
        parts = [state.earlier, run.layout.next_window(state.earlier, state.total)[0]]
    return all(
        run.members[i].diagnose(one, run.progress.steps) is None
        for part in parts
        for i, one in run.layout.gather_numbers(part, run.active).items()
    )


def _age(run: Run) -> float:
    """Return the seconds since the last checkpoints were begun."""
    return min(writer.age for writer in run.writers.values())


def _can_afford(run: Run) -> bool:
    """Return whether a checkpoint is asked for by now, or keeps its share of time in bounds."""
    settings, writers = run.config.checkpoint, run.writers.values()
    if not writers:
        return False
    if settings.every_seconds is not None and _age(run) >= settings.every_seconds:
        return True
    if settings.share == 1 or any(writer.is_writing for writer in writers):
        return settings.share == 1
    seconds = sum(writer.seconds + writer.seconds_each for writer in writers)
    return seconds <= settings.share * run.progress.seconds


def reached(run: Run, state: State) -> Reached:
    """Return how far the run is."""
    parts = run.jobs, run.members, run.selection, run.progress
    return Reached(*parts, run.layout, state)


def pending(run: Run, state: State) -> Callable[[], str]:
    """Return a function that saves the run as it is now, and waits for it."""
    save = snapshot(run, state, {})
    return lambda: save() + wait(run)


def snapshot(run: Run, state: State, scores: Mapping[int, float]) -> Callable[[], str]:
    """Return a function that saves the present state of the run. Another thread may call it.

    It starts the write and returns a short message about it.
    """
    layout, steps, parts = run.layout, run.progress.steps, []
    for number, writer in run.writers.items():  # of failed jobs too: all resume together
        own = run.members.jobs[number]
        rows = [slot for slot, i in enumerate(layout.slots) if i in own]
        found = [x for i, x in scores.items() if i in own and math.isfinite(x)]
        score = statistics.fmean(found) if found else None
        facts = _facts(run, number, rows)
        own_facts = [run.members[i].facts for i in own]  # made a dict later
        parts.append((writer, rows, facts, own_facts, run.jobs[number].config, score))
    # Convert typed keys to data now: a device may be busy when `write` is called
    data = jax.tree.map(devices.data, state)

    def write() -> str:
        if not parts and processes.count() == 1:
            return ", not saved"
        wait(run)  # so that runs of one program are never several checkpoints apart
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


def _facts(run: Run, number: int, rows: Sequence[int]) -> RunFacts:
    """Return the facts of a job's checkpoint, without its members and settings."""
    job, own, progress = run.jobs[number], run.members.jobs[number], run.progress
    begun = progress.block + (progress.updates > 0)
    return RunFacts(
        block=progress.block,
        updates=progress.updates,
        updates_per_block=list(progress.updates_per_block[:begun]),
        seconds=progress.seconds,
        compile_seconds=progress.compile_seconds,
        speeds=list(progress.speeds),
        slots=[run.layout.slots[row] - own.start for row in rows],
        numbers={name: [row[r] for r in rows] for name, row in run.selection.numbers.items()},
        shards=list(run.layout.shards),
        members_per_device=run.layout.plan.members_per_device,
        positions=run.events.positions(job),
    )


def keep_configs(jobs: Sequence[Job]) -> None:
    """Write config.yaml of all jobs; this user may load and resume them."""
    for job in jobs:
        if job.run_dir is not None:
            keep_config(job.config, job.run_dir)
            remember(plain(job.config))
