"""Run jobs from start to end: blocks of training and evaluation, then the absolute metric.

Runs that share a program are its members. Each has its own files, best policy and result, as if it
ran alone.
"""

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from jaxppo.config.plan import num_members
from jaxppo.config.schema import Config
from jaxppo.runtime.hosts import processes
from jaxppo.runtime.hosts.signals import PATIENCE
from jaxppo.runtime.programs import build, compile
from jaxppo.runtime.programs.placement import Layout, State
from jaxppo.runtime.programs.population import members
from jaxppo.runtime.programs.start import place_start
from jaxppo.runtime.run import resuming, saving
from jaxppo.runtime.run.blocks import end_block, train_block
from jaxppo.runtime.run.caller import Caller
from jaxppo.runtime.run.compiling import check_group, compile_training, warm_up
from jaxppo.runtime.run.evaluations import conclude, evaluate_untrained
from jaxppo.runtime.run.events import Events, of_start
from jaxppo.runtime.run.jobs import Job, Prepared, TrainingError, check_surroundings, plan_members
from jaxppo.runtime.run.members import Members
from jaxppo.runtime.run.parts import Run
from jaxppo.runtime.run.profiling import profile
from jaxppo.runtime.run.resuming import Resumed
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
    caller = caller or Caller()
    with _faults_as_training_errors(), contextlib.ExitStack() as stack:
        layout, train = _program(jobs, fit=fit)
        run, resumed = _open(jobs, layout, caller, stack)
        start = of_start(run.config, run.layout, run.progress.updates_per_block)
        run.events.write(dict.fromkeys(run.active, start), "start")
        wait = partial(saving.wait, run)
        with caller.signals.ending(wait):  # so far, there is nothing to save
            run.compile(train, begins=resumed is None)
            stack.callback(lambda: run.programs.close())
            state = _begin(run) if resumed is None else _go_on(run, *resumed)
            if found := profile(run, state.learner):
                run.events.write({i: {"phases": found} for i in run.active}, "profile")
            caller.reached = saving.reached(run, state)
        while run.active and not run.progress.is_over:
            before = run.progress.steps
            state = train_block(run, state)
            pending = saving.pending(run, state)
            with caller.signals.ending(pending, PATIENCE):
                try:
                    state, scores = end_block(run, state)
                except SimulatorError:
                    saving.save_fault(run, state, pending)
                    raise
            if saving.save_block(run, state, scores, before):
                break
        # Without active members nothing is evaluated, and a signal must not hide their failure
        with caller.signals.ending(wait) if run.active else contextlib.nullcontext():
            conclude(run, state)
        saving.wait(run)
        return run.members.results()


@contextlib.contextmanager
def _faults_as_training_errors() -> Iterator[None]:
    """Raise faults of simulators as `TrainingError`."""
    try:
        yield
    except SimulatorError as error:
        raise TrainingError(str(error)) from error


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
    members = Members(jobs)
    run = Run(
        jobs=jobs,
        members=members,
        layout=layout,
        progress=Progress(layout.plan.updates_per_block, layout.plan.steps_per_update),
        selection=Selection(jobs[0].config, [each.config for each in members.all], layout),
        events=Events(jobs, members, caller),
        caller=caller,
    )
    stack.push(run.events.close)
    threads = stack.enter_context(ThreadPoolExecutor(4, "checkpoints"))
    resumed = resuming.open_directories(run, stack)
    restored = None if resumed is None else resuming.go_on(run, resumed)
    stack.enter_context(caller.signals.listen())
    for job in jobs:
        if job.resume and job.run_dir is not None:
            checkpoint.put_aside(job.run_dir, 0 if resumed is None else resumed.steps)
    if resumed is None:
        saving.keep_configs(jobs)
    positions = [{}] * len(jobs) if resumed is None else resumed.positions
    kept = zip(jobs, positions, strict=True)
    run.events.open([position if job.resume else None for job, position in kept])
    saving.open_writers(run, threads)
    if resumed is None or restored is None:
        return run, None
    lines = [*resumed.lines, *resuming.differences(resumed, run.layout)]
    path = resumed.found[0].path
    changed = {"new_environment": True} if resumed.has_other_env else {}
    run.events.write_to_all("resume", path=str(path), steps=resumed.steps, lines=lines, **changed)
    return run, (resumed, restored)


def _begin(run: Run) -> State:
    """Return the first state, after any warm-up; its policies stand in for the best ones."""
    layout, configs = run.layout, run.configs
    first = begin_from(layout, configs, place_start(layout, configs, run.programs.start))
    learner = warm_up(layout, configs, first, run.programs.train)
    if run.selection.method != "none":
        run.write_selection(layout.slots)
    best = layout.copy(learner.agent.policy)
    state = State(learner, best, layout.no_metrics(), layout.no_earlier(run.config))
    if run.config.arch.evaluate_first:
        evaluate_untrained(run, state)
    return state


def _go_on(run: Run, resumed: Resumed, restored: State) -> State:
    """Place the state of a checkpoint; the run now has the changed settings that were allowed."""
    state = resuming.place_state(restored, resumed, run)
    saving.keep_configs(run.jobs)
    return state
