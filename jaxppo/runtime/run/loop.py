"""Run jobs from start to end: blocks of training and evaluation, then the absolute metric.

Runs that share a program are its members. Each has its own files, best policy and result, as if it
ran alone.
"""

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jaxppo.config.plan import Plan, num_members
from jaxppo.config.schema import Config
from jaxppo.runtime.hosts import processes
from jaxppo.runtime.hosts.signals import PATIENCE
from jaxppo.runtime.programs import build
from jaxppo.runtime.programs.placement import Layout, State
from jaxppo.runtime.programs.start import place_start
from jaxppo.runtime.run import saving
from jaxppo.runtime.run.blocks import Blocks
from jaxppo.runtime.run.caller import Caller
from jaxppo.runtime.run.compiling import Programs, check_group, compile_training, profile, warm_up
from jaxppo.runtime.run.events import Events, of_start
from jaxppo.runtime.run.jobs import Job, TrainingError, check_surroundings, plan_members
from jaxppo.runtime.run.members import Members
from jaxppo.runtime.run.saving import Resumed, Saver, keep_configs
from jaxppo.runtime.run.selection import Selection
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.progress import Progress
from jaxppo.simulators.faults import SimulatorError
from jaxppo.types import System


def run(
    config: Config,
    run_dir: Path,
    *,
    resume: bool = False,
    prepared: tuple[Plan, System] | None = None,
) -> float:
    """Train as `config` says, write below `run_dir`, and return the absolute metric.

    Without `arch.absolute_metric`, return the best mean return of an evaluation; with several
    seeds, the mean over them. With `resume`, continue from the latest checkpoint in `run_dir`; the
    result is the same as without the interruption. Raises `ConfigError` before anything compiles,
    `TrainingError` at the end of a block, `CheckpointError`, and `Interrupted` on a signal, after
    saving.
    """
    here = processes.is_first()  # of several processes only the first writes and speaks
    job = Job(config, run_dir if here else None, resume, prepared=prepared)
    (outcome,) = run_together([job], caller=Caller(console=here))
    if isinstance(outcome, TrainingError):
        raise outcome
    return outcome


def run_together(
    jobs: Sequence[Job], *, fit: bool = False, caller: Caller | None = None
) -> list[float | TrainingError]:
    """Train jobs of one `program_key` as one program; return their results, as `run` does.

    A failed job does not affect the others. With `fit`, raise `TooLargeError` if the program takes
    too much memory.
    """
    try:
        return _run_together(jobs, fit, caller or Caller())
    except SimulatorError as error:
        raise TrainingError(str(error)) from error


def _run_together(jobs: Sequence[Job], fit: bool, caller: Caller) -> list[float | TrainingError]:
    signals = caller.signals
    for job in jobs:
        check_surroundings(job.config)
        plan_members(job.config, num_members(job.config))  # raises its errors
    members, config = Members(jobs), jobs[0].config  # all jobs have the same program
    plan = plan_members(config, len(members))
    planned, system = jobs[0].prepared or (None, None)
    if system is None or planned != plan:
        system = build.build(config, plan)
    layout = Layout(plan, system, tuple(range(len(members))))
    train = None
    if fit:
        train = compile_training(layout, members.configs(layout.slots))
        check_group(layout, train)
    events = Events(jobs, members, caller)
    selection = Selection(config, members.configs(layout.slots), layout)
    progress = Progress(plan.updates_per_block, plan.steps_per_update)
    saver = Saver(jobs, members, events, progress, selection, caller)
    with contextlib.ExitStack() as stack:
        stack.push(events.close)
        threads = stack.enter_context(ThreadPoolExecutor(4, "checkpoints"))
        resumed = saving.open_directories(jobs, members, selection, stack)
        restored = None
        if resumed is not None:
            saving.load_members(resumed, members, selection)
            layout = layout.narrow(resumed.facts.slots)
            progress.resume(resumed.facts, resumed.steps, plan)
            restored = saving.read_state(resumed, layout, members)
        stack.enter_context(signals.listen())
        blocks = Blocks(config, members, layout, progress, selection, events, saver, signals)
        stack.callback(lambda: blocks.close())
        _open(jobs, resumed, events, saver, threads, layout)
        start = of_start(config, layout, progress.updates_per_block)
        events.write(dict.fromkeys(members.active(layout.slots), start), "start")
        with signals.ending(saver.wait):  # so far, there is nothing to save
            blocks.compile(train)
            if restored is None or resumed is None:
                state = begin(config, members, layout, selection, events, blocks.programs)
                if config.arch.evaluate_first:
                    blocks.evaluate_untrained(state)
            else:
                state = saving.place_state(restored, resumed, layout, members, selection)
                keep_configs(jobs)  # the run now has the changes that were allowed
            profile(config, layout, blocks.programs, state.learner)
            caller.reached = saver.reached(state, layout)
        while members.active(blocks.layout.slots) and not progress.is_over:
            before = progress.steps
            state = blocks.train(state)
            pending = saver.pending(state, blocks.layout)
            with signals.ending(pending, PATIENCE):
                try:
                    state, scores = blocks.end(state)
                except SimulatorError:
                    saver.save_fault(pending, state, blocks.layout)
                    raise
            if saver.save_block(state, blocks.layout, scores, before):
                break
        # Without active members nothing is evaluated, and a signal must not hide their failure
        active = members.active(blocks.layout.slots)
        with signals.ending(saver.wait) if active else contextlib.nullcontext():
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
    """Open the files of all jobs, and write the `resume` event."""
    for job in jobs:
        if job.resume and job.run_dir is not None:
            checkpoint.put_aside(job.run_dir, 0 if resumed is None else resumed.steps)
    if resumed is None:
        keep_configs(jobs)
    positions = [{}] * len(jobs) if resumed is None else resumed.positions
    events.open([kept if job.resume else None for job, kept in zip(jobs, positions, strict=True)])
    saver.open(threads)
    if resumed is not None:
        lines = [*resumed.lines, *saving.differences(resumed, layout, jobs[0].config)]
        path = resumed.found[0].path
        other = saving.has_other_env(resumed.facts.config, jobs[0].config)
        changed = {"new_environment": True} if other else {}
        events.write_to_all("resume", path=str(path), steps=resumed.steps, lines=lines, **changed)


def begin(
    config: Config,
    members: Members,
    layout: Layout,
    selection: Selection,
    events: Events,
    programs: Programs,
) -> State:
    """Return the first state, after any warm-up; its policies are the best so far."""
    first = place_start(layout, members.configs(layout.slots))
    learner = warm_up(layout, config, first, programs.train)
    if selection.method != "none":
        events.write_selection(selection.describe(layout.slots, layout.slots, 0))
    return State(
        learner, layout.copy(learner.agent.policy), layout.no_metrics(), layout.no_earlier(config)
    )
