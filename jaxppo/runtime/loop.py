"""The story of a run: blocks of training and evaluation, the best policies, the absolute metric.

Runs that one program can train are its members: each keeps its own files, its own best and its own
result, as if it ran alone.
"""

import contextlib
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxppo.config.plan import num_members
from jaxppo.config.schema import Config
from jaxppo.config.stored import keep_config
from jaxppo.runtime import build, checkpoint, saving
from jaxppo.runtime.blocks import Blocks
from jaxppo.runtime.events import Events
from jaxppo.runtime.jobs import (
    Job,
    TrainingError,
    check_surroundings,
    plan_members,
    profile_folder,
)
from jaxppo.runtime.members import Members
from jaxppo.runtime.placement import Layout
from jaxppo.runtime.programs import check_group, compile_training, profile, warm_up
from jaxppo.runtime.progress import Progress
from jaxppo.runtime.saving import Resumed, Saver, State
from jaxppo.runtime.selection import Selection
from jaxppo.runtime.signals import Signals

PATIENCE = 4.0  # seconds that an evaluation may go on after a signal


def run(config: Config, run_dir: Path, *, resume: bool = False) -> float:
    """Train as `config` says, write below `run_dir`, and return the absolute metric.

    Without `arch.absolute_metric` that is the best mean return of an evaluation; of several seeds,
    the mean over them. `resume` goes on from the latest checkpoint there, and ends as if nothing
    had happened. Raises `ConfigError` before anything compiles, `TrainingError` at the end of a
    block, `CheckpointError`, and `Interrupted` on a signal, after it has saved.
    """
    (outcome,) = run_together([Job(config, run_dir, resume)])
    if isinstance(outcome, TrainingError):
        raise outcome
    return outcome


def run_together(jobs: Sequence[Job], *, fit: bool = False) -> list[float | TrainingError]:
    """Train jobs of one `program_key` as one program; each one's result, as `run` returns it.

    A job that fails leaves the others alone. `TooLargeError` if they are to fit and do not.
    """
    for job in jobs:
        check_surroundings(job.config)
        plan_members(job.config, num_members(job.config))  # what it refuses
    members, config = Members(jobs), jobs[0].config  # what shapes the program is the same in all
    plan = plan_members(config, len(members))
    layout = Layout(plan, build.build(config, plan), tuple(range(len(members))))
    train = None
    if fit:
        train = compile_training(layout, members.configs(layout.slots))
        check_group(layout, train)
    signals = Signals()
    events = Events(jobs, members)
    selection = Selection(config, members.configs(layout.slots), layout)
    progress = Progress(plan.updates_per_block, plan.steps_per_update)
    saver = Saver(jobs, members, events, progress, selection, signals)
    with contextlib.ExitStack() as stack:
        stack.push(events.close)
        threads = stack.enter_context(ThreadPoolExecutor(4, "checkpoints"))
        resumed = None
        if not config.arch.plan_only:
            for job in jobs:  # nothing is written before it is known that all of them can go on
                found, lines = saving.open_directory(job, stack)
                if found is not None:
                    resumed = saving.check_resume(job, found, lines, members, selection)
        restored = None
        if resumed is not None:
            saving.load_members(resumed, members, selection)
            layout = layout.narrow(resumed.facts.slots)
            progress.resume(resumed.facts, resumed.found.steps, plan)
            restored = saving.read_state(resumed, layout, members)
        stack.enter_context(signals.listen())
        blocks = Blocks(config, members, layout, progress, selection, events, saver, signals)
        _open(jobs, resumed, events, saver, threads, layout)
        events.write(dict.fromkeys(members.active(layout.slots), blocks.describe()), "start")
        with signals.ending(saver.wait):  # nothing is trained that is not saved
            blocks.compile(train)
            if config.arch.plan_only:
                return [math.nan] * len(jobs)
            if restored is None or resumed is None:
                state = begin(config, members, layout, selection, events)
            else:
                state = saving.place_state(restored, resumed, layout, members, selection)
                for job in jobs:  # from here on, changes that were allowed are the run's
                    keep_config(job.config, job.run_dir)
            if config.arch.profile is not None:
                folder = profile_folder(config.arch.profile)
                profile(layout, blocks.programs, state.learner, folder)
        while members.active(blocks.layout.slots) and not progress.is_over:
            before = progress.steps
            state = blocks.train(state)
            with signals.ending(saver.pending(state, blocks.layout), PATIENCE):
                state, scores = blocks.end(state)
            saver.save_block(state, blocks.layout, scores, before)
        # Where none is left, nothing is evaluated: a signal does not hide why
        some = members.active(blocks.layout.slots)
        with signals.ending(saver.wait) if some else contextlib.nullcontext():
            blocks.conclude(state)
        saver.wait()
        return members.results()


def _open(
    jobs: Sequence[Job],
    resumed: Resumed | None,
    events: Events,
    saver: Saver,
    threads: ThreadPoolExecutor,
    layout: Layout,
) -> None:
    """Begin to write."""
    only_screen = jobs[0].config.arch.plan_only
    positions = None if resumed is None else resumed.facts.positions
    for job in () if only_screen else jobs:
        if resumed is not None:
            checkpoint.put_aside(job.run_dir, resumed.found.steps)
        else:
            keep_config(job.config, job.run_dir)
    known = [(positions or {}) if job.resume else None for job in jobs]
    events.open(known, only_screen=only_screen)
    if not only_screen:
        saver.open(threads)
    if resumed is not None:
        lines = [*resumed.lines, *saving.differences(resumed, layout)]
        found = resumed.found
        events.write_to_all("resume", path=str(found.path), steps=found.steps, lines=lines)


def begin(
    config: Config, members: Members, layout: Layout, selection: Selection, events: Events
) -> State:
    """The first state, after any warm-up, and its policies as the best so far."""
    first = build.begin(layout.system, members.configs(layout.slots), layout.plan)
    learner = warm_up(layout, config, layout.place(first))
    if selection.method != "none":
        selection.write(events, layout.slots, layout.slots, 0)
    best = jax.tree.map(jnp.copy, learner.agent.policy)
    return State(learner, best, layout.no_metrics())
