"""Run jobs from start to end: blocks of training and evaluation, then the absolute metric.

Runs that share a program are its members. Each has its own files, best policy and result, as if it
ran alone.
"""

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jaxppo.config.plan import num_members
from jaxppo.config.schema import Config
from jaxppo.runtime.hosts import processes
from jaxppo.runtime.hosts.signals import PATIENCE
from jaxppo.runtime.programs import build, compile
from jaxppo.runtime.programs.placement import Layout, State
from jaxppo.runtime.programs.population import members
from jaxppo.runtime.programs.start import place_start
from jaxppo.runtime.run import resuming
from jaxppo.runtime.run.blocks import Clock, end_block, train_block
from jaxppo.runtime.run.caller import Caller
from jaxppo.runtime.run.compiling import check_group, compile_training, warm_up
from jaxppo.runtime.run.evaluations import conclude, evaluate_untrained
from jaxppo.runtime.run.events import Events, of_start
from jaxppo.runtime.run.jobs import Job, Prepared, TrainingError, check_surroundings, plan_members
from jaxppo.runtime.run.members import Members
from jaxppo.runtime.run.parts import Run
from jaxppo.runtime.run.profiling import profile
from jaxppo.runtime.run.resuming import Resumed
from jaxppo.runtime.run.saving import Saver, keep_configs
from jaxppo.runtime.run.selection import Selection
from jaxppo.runtime.run.transfer import begin_from
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.progress import Progress
from jaxppo.simulators.faults import SimulatorError


def run(
    config: Config, run_dir: Path, *, resume: bool = False, prepared: Prepared | None = None
) -> float:
    """Train as `config` says, write below `run_dir`, and return the absolute metric.

    Without `arch.absolute_metric`, return the best mean return of an evaluation; with several
    seeds, the mean over them; of a population, that of its best member. With `resume`, continue
    from the latest checkpoint in `run_dir`; the result is the same as without the interruption.
    Raises `ConfigError` (before anything compiles, but where the programs need too much memory),
    `TrainingError` if training diverges or a simulator fails, `CheckpointError`, and `Interrupted`
    on a signal, after saving.
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

    A job that diverges does not affect the others; a simulator that fails ends all. With `fit`,
    raise `TooLargeError` if the program takes too much memory.
    """
    try:
        return _run_together(jobs, fit, caller or Caller())
    except SimulatorError as error:
        raise TrainingError(str(error)) from error


def _run_together(jobs: Sequence[Job], fit: bool, caller: Caller) -> list[float | TrainingError]:
    layout, train = _program(jobs, fit=fit)
    with contextlib.ExitStack() as stack:
        run, resumed = _open(jobs, layout, caller, stack)
        start = of_start(run.config, run.layout, run.progress.updates_per_block)
        run.events.write(dict.fromkeys(run.active, start), "start")
        with run.signals.ending(run.saver.wait):  # so far, there is nothing to save
            run.compile(train, begins=resumed is None)
            state = _begin(run) if resumed is None else _go_on(run, *resumed, jobs)
            if found := profile(run.config, run.layout, run.programs, state.learner):
                run.events.write({i: {"phases": found} for i in run.active}, "profile")
            caller.reached = run.saver.reached(state, run.layout)
        clock = Clock()
        while run.active and not run.progress.is_over:
            before = run.progress.steps
            state = train_block(run, state, clock)
            pending = run.saver.pending(state, run.layout)
            with run.signals.ending(pending, PATIENCE):
                try:
                    state, scores = end_block(run, state, clock)
                except SimulatorError:
                    run.saver.save_fault(pending, state, run.layout)
                    raise
            if run.saver.save_block(state, run.layout, scores, before):
                break
        # Without active members nothing is evaluated, and a signal must not hide their failure
        with run.signals.ending(run.saver.wait) if run.active else contextlib.nullcontext():
            conclude(run, state)
        run.saver.wait()
        return run.members.results()


def _program(jobs: Sequence[Job], *, fit: bool) -> tuple[Layout, compile.Program | None]:
    """Return the layout of all members; with `fit`, also the training program, which fits."""
    for job in jobs:
        check_surroundings(job.config)
        plan_members(job.config, num_members(job.config))  # raises its errors
    every = [member for job in jobs for member in members(job.config)]
    plan = plan_members(jobs[0].config, len(every))  # all jobs have the same program
    planned, system = jobs[0].prepared or (None, None)
    if system is None or planned != plan:
        system = build.build(jobs[0].config, plan)
    layout = Layout(plan, system, tuple(range(len(every))))
    if not fit:
        return layout, None
    check_group(layout)
    train = compile_training(layout, every)
    check_group(layout, train)
    return layout, train


def _open(
    jobs: Sequence[Job], layout: Layout, caller: Caller, stack: contextlib.ExitStack
) -> tuple[Run, tuple[Resumed, State] | None]:
    """Open the files of all jobs; return also what a checkpoint holds, if the run goes on."""
    config, members = jobs[0].config, Members(jobs)
    events = Events(jobs, members, caller)
    selection = Selection(config, members.configs(layout.slots), layout)
    progress = Progress(layout.plan.updates_per_block, layout.plan.steps_per_update)
    saver = Saver(jobs, members, events, progress, selection, caller)
    stack.push(events.close)
    threads = stack.enter_context(ThreadPoolExecutor(4, "checkpoints"))
    resumed, restored = resuming.open_directories(jobs, members, selection, stack), None
    if resumed is not None:
        resuming.load_members(resumed, members, selection)
        progress.resume(resumed.facts, resumed.steps, layout.plan)
        layout = layout.narrow(resumed.facts.slots)
        restored = resuming.read_state(resumed, layout, members)
    stack.enter_context(caller.signals.listen())
    run = Run(config, members, layout, progress, selection, events, saver, caller.signals)
    stack.callback(run.close)
    for job in jobs:
        if job.resume and job.run_dir is not None:
            checkpoint.put_aside(job.run_dir, 0 if resumed is None else resumed.steps)
    if resumed is None:
        keep_configs(jobs)
    positions = [{}] * len(jobs) if resumed is None else resumed.positions
    events.open([kept if job.resume else None for job, kept in zip(jobs, positions, strict=True)])
    saver.open(threads)
    if resumed is None or restored is None:
        return run, None
    lines = [*resumed.lines, *resuming.differences(resumed, layout)]
    path = resumed.found[0].path
    changed = {"new_environment": True} if resumed.has_other_env else {}
    events.write_to_all("resume", path=str(path), steps=resumed.steps, lines=lines, **changed)
    return run, (resumed, restored)


def _begin(run: Run) -> State:
    """Return the first state, after any warm-up; its policies stand in for the best ones."""
    configs = run.members.configs(run.layout.slots)
    first = place_start(run.layout, configs, run.programs.start)
    first = begin_from(run.layout, configs, first)
    learner = warm_up(run.layout, configs, first, run.programs.train)
    if run.selection.method != "none":
        run.write_selection(run.layout.slots)
    best = run.layout.copy(learner.agent.policy)
    state = State(learner, best, run.layout.no_metrics(), run.layout.no_earlier(run.config))
    if run.config.arch.evaluate_first:
        evaluate_untrained(run, state)
    return state


def _go_on(run: Run, resumed: Resumed, restored: State, jobs: Sequence[Job]) -> State:
    """Place the state of a checkpoint; the run now has the changed settings that were allowed."""
    state = resuming.place_state(restored, resumed, run.layout, run.members, run.selection)
    keep_configs(jobs)
    return state
