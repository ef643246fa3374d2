"""Save a run to checkpoints when they are due, and resume from them."""

import contextlib
import dataclasses
import math
import signal
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.algorithms.report import Metrics, zero_metrics
from jaxppo.config.fields import ConfigError, as_argument, as_override
from jaxppo.config.given import is_given
from jaxppo.config.schema import HOW_RUN, Config
from jaxppo.config.stored import SUMMARY, keep_config, plain
from jaxppo.config.trust import remember
from jaxppo.envs import is_simulated
from jaxppo.envs.episodes import begun_at
from jaxppo.runtime import sinks
from jaxppo.runtime.hosts import devices, processes
from jaxppo.runtime.hosts.signals import Interrupted
from jaxppo.runtime.programs import build
from jaxppo.runtime.programs.placement import Layout, State, reshard
from jaxppo.runtime.run.caller import Caller, Reached
from jaxppo.runtime.run.events import Events
from jaxppo.runtime.run.jobs import Job, plan_members
from jaxppo.runtime.run.members import Members
from jaxppo.runtime.run.selection import Selection
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.checkpoint import Checkpoint, CheckpointError
from jaxppo.runtime.store.directories import check_tree, only_run_in
from jaxppo.runtime.store.facts import MemberFacts, RunFacts
from jaxppo.runtime.store.progress import Progress
from jaxppo.types import LearnerState, Policy

SAVE_SECONDS = 60.0  # minimum time between checkpoints within a block


@dataclasses.dataclass(frozen=True)
class Resumed:
    """Checkpoints of one step to resume from, one of each job."""

    found: list[Checkpoint]
    facts: RunFacts  # those of the first job, but with the members of all jobs
    positions: list[dict[str, int]]  # of each job: bytes of its metric logs
    lines: list[str]  # messages to the user

    @property
    def steps(self) -> int:
        """Return the environment steps of each member."""
        return self.found[0].steps


def open_directories(
    jobs: Sequence[Job], members: Members, selection: Selection, stack: contextlib.ExitStack
) -> Resumed | None:
    """Lock the directories of all jobs; return what to resume from, if anything.

    All jobs are checked before anything is written, but for the lock files and the names of
    checkpoints that were complete. Several jobs resume
    together: if one of them has nothing to resume from, all start anew. Of several processes the
    first has the directories and chooses the checkpoints, and all read them.
    """
    found: list[Checkpoint] = []
    lines: list[str] = []
    with processes.agreeing():
        for job in jobs:
            if job.run_dir is not None:
                stack.enter_context(only_run_in(job.run_dir))
                if job.resume:
                    check_tree("resume", job.run_dir)
        run_dirs = [job.run_dir for job in jobs if job.run_dir is not None and job.resume]
        for run_dir in run_dirs:
            checkpoint.recover(run_dir)
            _check_not_lost(jobs[0].config, run_dir)
        if len(run_dirs) == len(jobs):
            found, lines = checkpoint.newest_of_all(run_dirs)
    paths, lines = processes.agree([[str(each.path.absolute()) for each in found], lines])
    with processes.agreeing():
        if not processes.is_first():
            found = [checkpoint.read(Path(path)) for path in paths]
        return check_resume(jobs, found, lines, members, selection) if found else None


def _check_not_lost(config: Config, run_dir: Path) -> None:
    """Raise `ConfigError` if a run that ended has lost its checkpoints, and `resume` names it."""
    lost = not checkpoint.steps_in(run_dir / checkpoint.FOLDER)
    if config.resume is not None and lost and (run_dir / SUMMARY).exists():
        raise ConfigError(
            f"resume={run_dir}: is of a run that ended, and has no checkpoints; to train anew, "
            "choose another directory"
        )


def check_resume(
    jobs: Sequence[Job],
    found: list[Checkpoint],
    lines: list[str],
    members: Members,
    selection: Selection,
) -> Resumed:
    """Read the facts of each job's checkpoint.

    If its environment changed, the best evaluation starts anew: returns do not compare.
    `ConfigError` or `CheckpointError` if they do not fit.
    """
    each = [RunFacts.of(one) for one in found]
    gaps: list[str] = []
    planned = plan_members(jobs[0].config, len(members)).updates_per_block
    for job, own, one, facts in zip(jobs, members.jobs, found, each, strict=True):
        gaps += _check_facts(job, len(own), one, facts, selection, planned)
    starts = [own.start for own in members.jobs]
    numbers = each[0].numbers
    together = dataclasses.replace(
        each[0],
        slots=[start + i for start, facts in zip(starts, each, strict=True) for i in facts.slots],
        members=[
            {**member, "best": {}} if has_other_env(facts.config, job.config) else member
            for job, facts in zip(jobs, each, strict=True)
            for member in facts.members
        ],
        numbers={name: [x for facts in each for x in facts.numbers[name]] for name in numbers},
    )
    positions = [facts.positions for facts in each]
    lines = [*lines, *(f"{line}; the log has a gap" for line in gaps)]
    return Resumed(found, together, positions, lines)


def _check_facts(
    job: Job,
    num_members: int,
    found: Checkpoint,
    facts: RunFacts,
    selection: Selection,
    planned: tuple[int, ...],
) -> list[str]:
    """Raise `ConfigError` or `CheckpointError` if a checkpoint does not fit its job.

    `planned` are the block lengths that the settings give. Return a line about each gap of the
    log, if the job allows them.
    """
    if len(facts.members) != num_members:
        raise ConfigError(
            f"{found.path}: holds {len(facts.members)} members, and {num_members} are asked for; "
            "leave arch.num_seeds and population.size as they were"
        )
    if set(facts.numbers) != set(selection.numbers):
        raise CheckpointError(
            f"{found.path}: its members differ in {', '.join(facts.numbers) or 'nothing'}, and "
            f"the settings say {', '.join(selection.numbers) or 'nothing'}"
        )
    seed = facts.config.get("arch", {}).get("seed")
    if seed != job.config.arch.seed and not {"arch", "arch.seed"} & set(job.config.resume_allow):
        raise CheckpointError(
            f"{found.path}: has arch.seed={seed}, but the run has "
            f"arch.seed={job.config.arch.seed}; move this checkpoint away, or allow it: "
            "resume_allow=[arch.seed]"
        )
    gaps = sinks.missing(found.path.parents[1], facts.positions)
    if gaps and not {"log", "logger"} & set(job.config.resume_allow):
        raise ConfigError(
            f"resume={job.run_dir}: {gaps[0]}; restore the whole log, or continue with what is "
            "there: 'resume_allow=[log]'"
        )
    arch, system = (facts.config.get(name, {}) for name in ("arch", "system"))
    was = arch.get("total_num_envs", 0), system.get("rollout_length", 0)
    now = job.config.arch.total_num_envs, job.config.system.rollout_length
    if math.prod(was) != math.prod(now):
        raise ConfigError(
            f"arch.total_num_envs={now[0]} x system.rollout_length={now[1]} are "
            f"{math.prod(now):,} steps per update, and {found.path} counts updates of "
            f"{' x '.join(map(str, was))} = {math.prod(was):,}; keep that product"
        )
    done = tuple(facts.updates_per_block)
    least = sum(done[: facts.block]) + facts.updates + (facts.updates > 0)  # no block is empty
    if sum(planned) < least:
        counted = job.config.arch.num_updates is not None
        name, unit = ("num_updates", 1) if counted else ("total_timesteps", math.prod(now))
        raise ConfigError(
            f"arch.{name}={getattr(job.config.arch, name)}: {found.path} is further, or "
            f"needs one more update to end its block; set at least {least * unit}"
        )
    before, evaluations = arch.get("num_evaluation"), job.config.arch.num_evaluation
    if before not in (None, evaluations) and done != planned[: len(done)]:
        raise ConfigError(
            f"arch.num_evaluation={evaluations}: evaluations of {found.path} are {max(done)} "
            "updates apart, and later ones too, so that a resume finds them again; keep "
            f"arch.num_evaluation={before}"
        )
    _check_metrics(job.config, found, facts)
    return gaps


def _check_metrics(config: Config, found: Checkpoint, facts: RunFacts) -> None:
    """Raise `ConfigError` if metrics since the last evaluation, or scores, would not compare."""
    arch, env, logger = (facts.config.get(name, {}) for name in ("arch", "env", "logger"))
    shapes = (  # what shapes the metrics of a block that has begun
        ("logger.every", facts.every, config.logger.every),
        ("logger.details", logger.get("details", False), config.logger.details),
        ("env.metrics", env.get("metrics", []), config.env.metrics),
    )
    for key, before, now in shapes:
        if facts.updates and before != now:
            raise ConfigError(
                f"{as_override(key, now)}: {found.path} was written between two evaluations with "
                f"{as_override(key, before)}; keep that value"
            )
    judge, metric = arch.get("eval_metric"), config.arch.eval_metric
    if judge != metric:
        raise ConfigError(
            f"arch.eval_metric={metric or 'null'}: the evaluations of {found.path} were compared "
            f"by {judge or 'the return'}; keep arch.eval_metric={judge or 'null'}"
        )


def has_other_env(stored: Mapping[str, Any], config: Config) -> bool:
    """Return whether a setting of `env` differs from the `stored` settings of a checkpoint."""
    # An older version may have had other settings
    before = {"metrics": [], **stored.get("env", {})}
    env = {name: x for name, x in plain(config)["env"].items() if name not in HOW_RUN}
    return any(not _is_same(env[name], before[name]) for name in before if name in env)


def _has_same_env(config: Config, manifest: Mapping[str, Any]) -> bool:
    """Return whether the score of a checkpoint is of this environment."""
    return not has_other_env(manifest.get("config", {}), config)


def differences(resumed: Resumed, layout: Layout, config: Config) -> list[str]:
    """Return lines about what changed since the checkpoint was written."""
    facts, lines = resumed.facts, []
    if facts.shards != layout.shards:
        lines.append(
            "the environments are split over devices x update batches as "
            f"{' x '.join(map(str, layout.shards))}, before as "
            f"{' x '.join(map(str, facts.shards))}: episodes continue with new random streams, and "
            "the results differ from those of an uninterrupted run"
        )
    if is_simulated(layout.system.env):
        lines.append("simulators have no state that is stored: their episodes start anew")
    elif has_other_env(facts.config, config):
        lines.append("the environment has other settings: its episodes start anew")
    now, before = layout.plan.members_per_device, facts.members_per_device
    if now != before:
        lines.append(
            f"members on each device: {now}, before {before}: the compiler adds in another order, "
            "and bits may differ"
        )
    here, written = checkpoint.versions(), resumed.found[0].facts.get("versions", {})
    changed = {name: was for name, was in written.items() if here.get(name) != was}
    if changed:
        lines.append(
            f"written with {', '.join(f'{n} {v}' for n, v in changed.items())}, and this is "
            f"{', '.join(f'{n} {here.get(n)}' for n in changed)}: bits may differ"
        )
    return lines


def read_state(resumed: Resumed, layout: Layout, members: Members) -> State:
    """Read the state of all members, `[P, ...]`; `CheckpointError` if arrays do not fit.

    If the environment changed, `acting` is None. The checkpoint lacks the hyperparameters of a new
    schedule, which come from the settings, and its metrics, which are zero between two blocks.
    """
    shards, update_batches = resumed.facts.shards
    plan = dataclasses.replace(
        layout.plan, devices_per_member=shards, update_batch_size=update_batches
    )
    total_num_envs = members[0].config.arch.total_num_envs
    system = dataclasses.replace(
        layout.system, num_envs=total_num_envs // (shards * update_batches)
    )
    configs = members.configs(layout.slots)

    def begin() -> tuple[LearnerState, Policy, Metrics, Metrics | None]:
        state = build.begin(system, configs, plan)
        total = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (len(configs), *x.shape)), zero_metrics(system)
        )
        return state, state.agent.policy, total, total if resumed.facts.every else None

    arrays = checkpoint.concatenate(resumed.found)
    numbers = checkpoint.flatten(build.stacked_hyperparameters(configs, plan))
    absent = {f"[0].agent.hyperparameters{name}": np.asarray(x) for name, x in numbers.items()}
    learner, *others = jax.eval_shape(begin)
    if has_other_env(resumed.facts.config, members[0].config):  # both of the first job
        learner = dataclasses.replace(learner, acting=None)
    if not resumed.facts.updates:
        zero = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), (None, None, *others[1:]))
        absent |= checkpoint.flatten(zero)
    return State(*checkpoint.unflatten((learner, *others), {**absent, **arrays}))


def place_state(
    state: State, resumed: Resumed, layout: Layout, members: Members, selection: Selection
) -> State:
    """Place a state that was read on devices, with the current hyperparameters."""
    learner = state.learner
    numbers = build.stacked_hyperparameters(members.configs(layout.slots), layout.plan)
    before = learner.agent.hyperparameters
    kept = {name: getattr(before, name) for name in selection.selected()}
    agent = dataclasses.replace(learner.agent, hyperparameters=numbers.replace(**kept))
    acting = learner.acting
    if acting is None:  # the environment changed
        configs, system = members.configs(layout.slots), layout.system
        env = begun_at(system.env, resumed.steps / layout.plan.total_steps)
        system = dataclasses.replace(system, env=env)
        acting = build.begin(system, configs, layout.plan, steps=resumed.steps).acting
    elif resumed.facts.shards != layout.shards:
        acting = reshard(acting, layout.shards)
    # Of the block before the last train event; none yet if `logger.every` is new
    earlier = layout.no_earlier(members[0].config)
    if earlier is not None and state.earlier is not None:
        earlier = layout.place_agents(state.earlier)
    return State(
        layout.place(LearnerState(agent=agent, acting=acting)),
        layout.place_agents(state.best),
        layout.place_agents(state.total),
        earlier,
    )


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
        self._save(state, layout, {}, before, received, may_save=waited)

    def save_block(
        self, state: State, layout: Layout, scores: Mapping[int, float], before: int
    ) -> bool:
        """Save after a block, if it is due; `scores` are those of its evaluation.

        Return whether the caller stops the run, which is saved then.
        """
        stops = self._caller.stops(self.reached(state, layout))
        received = self._signals.agreed()
        self._save(state, layout, scores, before, received, may_save=True, must_save=stops)
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
        *,
        may_save: bool,
        must_save: bool = False,
    ) -> None:
        """Write checkpoints if they are due; raise `Interrupted` after a signal."""
        if not self._members.active(layout.slots):  # the run ends by itself
            return
        steps = self._progress.steps
        due = must_save or received is not None or self._progress.is_over
        due = due or any(w.is_milestone(steps, before) for w in self._writers.values())
        due = processes.agree(due or (may_save and self._can_afford()))
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


def load_members(resumed: Resumed, members: Members, selection: Selection) -> None:
    """Restore the facts of members and their hyperparameters from a checkpoint."""
    for i, facts in enumerate(resumed.facts.members):
        members[i].facts = MemberFacts(**facts)
    selection.numbers = resumed.facts.numbers


def _is_same(value: Any, before: Any) -> bool:
    """Return whether a setting is unchanged; an object given in Python has a new path each time."""
    return bool(value == before) or (is_given(value) and is_given(before))
