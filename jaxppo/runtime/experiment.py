"""Runs: blocks of training and evaluations, the best policies, and the absolute metric.

Runs that one program can train are its members: each keeps its own files, its own best and its own
result, as if it ran alone.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import signal
import statistics
import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.algorithms.evaluation import Episodes, episode_keys, evaluate_members
from jaxppo.algorithms.metrics import MEAN, leaves
from jaxppo.algorithms.spine import Metrics, train_members, warm_up_members, zero_metrics
from jaxppo.config.fields import ConfigError, as_argument
from jaxppo.config.plan import Plan, memories, num_members, plan
from jaxppo.config.schema import Config, LoggerConfig
from jaxppo.config.stored import CONFIG, keep_config, plain
from jaxppo.ops.aggregates import interval, iqm
from jaxppo.runtime import build as system
from jaxppo.runtime import checkpoint, compile, devices, sinks
from jaxppo.runtime.checkpoint import Checkpoint, CheckpointError
from jaxppo.runtime.facts import MemberFacts, RunFacts
from jaxppo.runtime.guard import Interrupted, Signals, check_tree, only_run_in
from jaxppo.runtime.population import explore, members, rank, rungs, sources
from jaxppo.types import LearnerState, Policy, PyTree, System

CALL_SECONDS = 1.0  # that one call of the training program takes, about: signals wait for it
PATIENCE = 4.0  # seconds that an evaluation may go on after a signal
SAVE_SECONDS = 60.0  # from a checkpoint to the next, at least, before a block is over
# Members of several jobs are one program where it takes at most this share of the memory
_SHARE_OF_MEMORY = 0.75


class TrainingError(RuntimeError):
    """A run that cannot go on (NaN, infinity, nothing legal to do): one line, where and when."""


class TooLargeError(RuntimeError):
    """A program that needs more memory than there is."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What a user asked for: settings, and the directory of the results."""

    config: Config
    run_dir: Path
    resume: bool = False  # from the latest checkpoint there, if any
    group: str | None = None  # the name of the sweep that it is of


def prepare(config: Config) -> tuple[Plan, System]:
    """Check all of a configuration without compiling anything; `ConfigError` on what cannot be."""
    if config.arch.profile is not None:
        _profile_folder(config.arch.profile)
    _check_surroundings(config)
    members(config)
    planned = plan_members(config, num_members(config))
    return planned, system.build(config, planned)


def _check_surroundings(config: Config) -> None:
    """`ConfigError` where the cache, the compiler or a sink of the settings is not to be had here.

    Programs are cached from then on.
    """
    compile.use_cache(config.arch.compile_cache)
    compile.check(config.arch.compiler)
    sinks.check(config.logger)


def _profile_folder(setting: str) -> Path:
    return compile.make_folder("arch.profile", setting, "null for no trace")


def plan_members(config: Config, count: int) -> Plan:
    """The plan of `count` members. Halving ends with one, wherever it began: it has one device."""
    num_devices = devices.count(1 if config.population.selection == "halving" else count)
    return plan(config, num_devices, count)


def blocks_after(done: Sequence[int], planned: Plan) -> tuple[int, ...]:
    """Updates of each block where some are done: those planned, or where the budget has grown, as
    long as they were.
    """
    if tuple(done) == planned.updates_per_block[: len(done)]:
        return planned.updates_per_block
    left = planned.num_updates - sum(done)
    count = -(-left // max(done))
    return (*done, *((i + 1) * left // count - i * left // count for i in range(count)))


def algorithm_name(config: Config) -> str:
    """Such as ff_ppo or rec_ppo; of a user's own, its class."""
    name = config.system.algorithm.rpartition(".")[2]
    return f"{'rec' if memories(config.network) else 'ff'}_{name}"


def check_run_dir(key: str, run_dir: Path) -> None:
    """`ConfigError` where a run cannot be written to `run_dir`, which need not exist yet."""
    if any((run_dir / name).exists() for name in (sinks.METRICS, CONFIG)):
        raise ConfigError(f"{key}={run_dir}: holds a run already; choose another directory")
    existing = next(path for path in (run_dir, *run_dir.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(f"{key}={run_dir}: {existing} is not a directory; choose another")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}={run_dir}: {existing} cannot be written to; choose another")


def run(config: Config, run_dir: Path, *, resume: bool = False) -> float:
    """Train as `config` says, write below `run_dir`, and return the absolute metric.

    Without `arch.absolute_metric` that is the best mean return of an evaluation; of several seeds,
    the mean over them. `resume` goes on from the latest checkpoint there, and ends as if nothing
    had happened. Raises `ConfigError` before anything compiles, `TrainingError` at the end of a
    block, `CheckpointError`, and `Interrupted` on SIGINT and SIGTERM, after it has saved.
    """
    (outcome,) = run_together([Job(config, run_dir, resume)])
    if isinstance(outcome, TrainingError):
        raise outcome
    return outcome


def run_together(jobs: Sequence[Job], *, fit: bool = False) -> list[float | TrainingError]:
    """Train jobs of one `program_key` as one program; each one's result, as `run` returns it.

    A job that fails leaves the others alone. `TooLargeError` if they are to fit and do not.
    """
    together = _Run(jobs)
    if fit:
        together.check_memory()
    with contextlib.ExitStack() as stack:
        stack.push(together.close)
        together.open(stack)
        stack.enter_context(together.signals.listen())
        return together.execute()


@dataclasses.dataclass(frozen=True)
class Programs:
    """What a run compiles, before its first step."""

    train: compile.Program
    evaluate: compile.Program


@dataclasses.dataclass(frozen=True)
class Report:
    """Where the events of some members go: as they are of one, summed up of several."""

    outputs: list[sinks.Sink]
    members: range
    folder: Path | None  # None: the screen alone

    def write(self, events: dict[int, sinks.Event], overall: dict[str, Any]) -> None:
        """Take an event each of some members of the program, by their number."""
        own = [events[i] for i in self.members if i in events]
        if own:
            event = own[0] if len(self.members) == 1 else {**sum_up(own), **overall}
            for sink in self.outputs:
                sink.write(event)


def sum_up(events: Sequence[sinks.Event]) -> sinks.Event:
    """One event of several members': their means, total speed and count, and scores in full.

    Of scores (returns of evaluations) also the IQM and its interval, and the spread over members.
    """

    def mean(values: list[Any]) -> Any:
        if all(value == values[0] for value in values):
            return values[0]
        numbers = [value for value in values if isinstance(value, int | float)]
        return statistics.fmean(numbers) if numbers else values[0]

    merged: sinks.Event = {
        name: mean([event[name] for event in events]) for name in events[0] if name != "seed"
    }
    merged |= {"members": len(events), "seeds": [event["seed"] for event in events]}
    merged |= {
        name: sum(event[name] for event in events)
        for name in ("steps_per_second", "episodes", "unfinished")
        if name in merged
    }
    kind = merged["event"]
    if kind in ("eval", "absolute"):
        merged |= _spread("episode_return", [event["episode_return"] for event in events])
    elif kind == "end":
        failures = [event for event in events if event["status"] != "finished"]
        merged["status"] = "; ".join(f"seed {e['seed']}: {e['status']}" for e in failures) or (
            "finished"
        )
        merged |= _spread("absolute_metric", [event["absolute_metric"] for event in events])
    return merged


def _spread(name: str, values: Sequence[float | None]) -> dict[str, Any]:
    """Statistics over members of a score, of those that have it."""
    scores = [value for value in values if value is not None]
    if not scores:
        return {f"{name}s": list(values)}
    low, high = interval([scores])
    with np.errstate(invalid="ignore"):  # of infinite scores
        return {
            f"{name}s": list(values),
            f"{name}_std": float(np.std(scores)),
            f"{name}_min": min(scores),
            f"{name}_max": max(scores),
            f"{name}_iqm": float(iqm(scores)),
            f"{name}_low": low,
            f"{name}_high": high,
        }


class _Member:
    """One agent, as its files tell of it. Steps are Python integers: exact at any size."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.best: dict[str, Any] = {"episode_return": -math.inf}
        self.last: dict[str, Any] = {}  # evaluation
        self.history: list[tuple[int, float]] = []  # steps and return of each evaluation
        self.failure: str | None = None
        self.result: float | None = None
        self.end: dict[str, Any] = {}  # its last event

    def recall(self, facts: MemberFacts) -> None:
        """Take up what `tell` told."""
        self.best = {"episode_return": -math.inf, **facts.best}
        self.last, self.failure, self.end = facts.last, facts.failure, facts.end
        self.history = [(steps, score) for steps, score in facts.history]

    def tell(self) -> MemberFacts:
        """What a checkpoint keeps of it beside its arrays."""
        best = self.best if math.isfinite(self.best["episode_return"]) else {}
        return MemberFacts(
            best=dict(best),
            last=dict(self.last),
            history=list(self.history),
            failure=self.failure,
            end=dict(self.end),
        )

    def diagnose(self, totals: Metrics, steps: int) -> str | None:
        """Why training cannot go on, in one line."""
        found = {
            "reward": totals.rollout.nonfinite_reward,
            "observation": totals.rollout.nonfinite_observation,
            "loss or gradient": totals.learn.nonfinite_loss,
            "parameter": totals.nonfinite_parameter,
        }
        source = "observations" if totals.rollout.nonfinite_observation else "rewards"
        if self.config.arch.on_nonfinite == "skip":
            found = {"parameter": totals.nonfinite_parameter}
            skipped = totals.learn.skipped_steps
            if skipped and not totals.learn.gradient_steps:
                return (
                    f"all {skipped} gradient steps of the block that ended at step {steps} were "
                    "NaN or infinite and skipped; stopped; look at the environment's "
                    f"{source}"
                )
        bad = ", ".join(f"{what} ({count})" for what, count in found.items() if count)
        if bad:
            way_out = "try lower system.actor_lr and critic_lr"
            if totals.rollout.nonfinite_observation or totals.rollout.nonfinite_reward:
                way_out = f"look at the environment's {source}"
            return (
                f"NaN or infinity in {bad} in the block that ended at step {steps}; stopped; "
                f"{way_out}"
            )
        return self.diagnose_masks(int(totals.rollout.empty_mask), steps)

    def diagnose_masks(self, num_empty: int, steps: int) -> str | None:
        """The same of action masks that allow nothing."""
        if not num_empty:
            return None
        return (
            f"no legal action: {num_empty} observations up to step {steps} carry "
            f"an {self.config.env.action_mask} of false alone; stopped; mend the environment's "
            "mask, or env.action_mask=null to do without"
        )


class Pace:
    """How many updates a call trains, so that it takes about `CALL_SECONDS`."""

    def __init__(self) -> None:
        self._count = 1

    def updates(self, left: int) -> int:
        """Of the next call, where so many are left."""
        return min(self._count, left)

    def took(self, count: int, seconds: float) -> None:
        """Learn from a call; the next is at most four times as long."""
        wanted = count * CALL_SECONDS / max(seconds, 1e-6)
        self._count = int(min(max(wanted, 1), 4 * count))


class _Run:
    """The host's loop over the members of one program."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.given = jobs
        self.members = [_Member(config) for job in jobs for config in members(job.config)]
        self.slots = list(range(len(self.members)))  # the members in the program, in its order
        self.config = jobs[0].config  # what shapes the program is the same in all
        for job in jobs:
            _check_surroundings(job.config)
        for job in jobs[1:]:
            plan_members(job.config, num_members(job.config))  # what it refuses
        self.plan = plan_members(self.config, len(self.members))
        self.system = system.build(self.config, self.plan)
        self.started = time.perf_counter()
        self.compile_seconds = 0.0
        self.speeds: list[float] = []  # steps per second of each member in each block
        self.devices = jax.local_devices()[: self.plan.num_devices]
        seeds = [member.config.arch.seed for member in self.members]
        _, _, self.evaluation_keys, self.absolute_keys = system.random_streams(seeds)
        ends = list(itertools.accumulate(num_members(job.config) for job in jobs))
        self.jobs = [range(a, b) for a, b in zip([0, *ends], ends, strict=False)]  # their members
        population = self.config.population
        configs = [member.config for member in self.members]
        numbers = system.stacked_hyperparameters(configs, self.plan)
        self.numbers = {  # of the members of the program, that selection changes
            name: np.asarray(getattr(numbers, name), float).tolist()
            for name in population.hyperparameters
        }
        self.rungs = {}  # after which blocks how many members go on
        if population.selection == "halving":
            blocks = self.plan.updates_per_block
            self.rungs = rungs(len(self.members), population.reduction, blocks)
        self.train: compile.Program | None = None  # compiled already, to see that it fits
        self.reports: list[Report] = []
        self.failed_views: set[str] = set()
        self.writers: dict[int, checkpoint.Writer] = {}  # of jobs, by their number
        self.signals = Signals()
        self.block, self.steps, self.saved = 0, 0, 0  # so far
        self.updates = 0  # done of the block after those
        self.pace = Pace()
        self.saved_at = self.started
        self.resumed: Checkpoint | None = None
        self.facts = RunFacts()  # of the checkpoint that is resumed

    def open(self, stack: contextlib.ExitStack) -> None:
        """Begin to write: of each job and member into its directory, and of all on the screen.

        Nothing there changes before it is known that the run can go on from what there is.
        """
        one = len(self.members) == 1
        only_plan = self.config.arch.plan_only
        threads = stack.enter_context(ThreadPoolExecutor(4, "checkpoints"))
        lines = []
        for job in () if only_plan else self.given:
            stack.enter_context(only_run_in(job.run_dir))
            if job.resume:
                check_tree("resume", job.run_dir)
                lines += self.recall(job)
        for number, (own, job) in enumerate(zip(self.jobs, self.given, strict=True)):
            if only_plan:
                break
            if self.resumed is not None:
                checkpoint.put_aside(job.run_dir, self.resumed.steps)
            else:
                keep_config(job.config, job.run_dir)
            files = dataclasses.replace(
                job.config.logger, console=job.config.logger.console and one
            )
            self.report(files, job.run_dir, job, own)
            if len(own) > 1:
                few = len(own) <= files.wandb_members
                files = dataclasses.replace(
                    files, plot=False, marl_eval=False, wandb=files.wandb and few
                )
                for i in own:
                    folder = job.run_dir / f"seed_{self.members[i].config.arch.seed}"
                    folder.mkdir(exist_ok=job.resume)
                    self.report(files, folder, job, range(i, i + 1))
            settings = job.config.checkpoint
            if settings.enabled:
                self.writers[number] = checkpoint.Writer(
                    job.run_dir, threads, settings.keep, settings.milestones
                )
        if only_plan or not one:
            console = any(job.config.logger.console for job in self.given)
            screen = LoggerConfig(console=console, json=False, plot=False)
            outputs = sinks.make(screen, self.given[0].run_dir)
            self.reports.append(Report(outputs, range(len(self.members)), None))
        self.signals.plan = (
            "saving a checkpoint, then stopping" if self.writers else "stopping, with nothing saved"
        )
        if self.writers and len(self.given) == 1:
            self.signals.way_on = f"; to go on: {as_argument('resume', self.given[0].run_dir)}"
        if self.resumed is not None:
            self.write_resume(lines)

    def report(self, config: LoggerConfig, folder: Path, job: Job, own: range) -> None:
        """Write events of the members `own` to `folder`, after those of the checkpoint."""
        position = 0 if job.resume else None
        if self.resumed is not None:
            position = self.facts.positions.get(str(folder.relative_to(job.run_dir)), 0)
        scope = sinks.Scope(
            settings=plain(self.members[own.start].config if len(own) == 1 else job.config),
            name=str(folder.relative_to(job.run_dir.parent)),
            group=job.group or (job.run_dir.name if num_members(job.config) > 1 else None),
            failed=self.failed_views,
        )
        self.reports.append(Report(sinks.make(config, folder, position, scope), own, folder))

    def close(self, kind: Any, *_: object) -> None:
        """Finish files and displays, however the run ended; what failed first is what is raised."""
        failures = []
        for report in self.reports:
            for sink in report.outputs:
                try:
                    sink.close()
                except OSError as error:
                    failures.append(error)
        if failures and kind is None:
            raise failures[0]

    @property
    def going(self) -> list[int]:
        """The members that train on."""
        return [i for i in self.slots if self.members[i].failure is None]

    def recall(self, job: Job) -> list[str]:
        """Take up the latest checkpoint, if any; what a user should know of it, in lines.

        `ConfigError` and `CheckpointError` where this run cannot go on from it.
        """
        found, lines = checkpoint.newest(job.run_dir)
        if found is None:
            return []
        facts = RunFacts.of(found)
        self.resumed, self.facts = found, facts
        if len(facts.members) != len(self.members):
            raise ConfigError(
                f"{found.path}: holds {len(facts.members)} members, and {len(self.members)} are "
                "asked for; leave arch.num_seeds and population.size as they were"
            )
        if set(facts.numbers) != set(self.numbers):
            raise CheckpointError(
                f"{found.path}: its members differ in {', '.join(facts.numbers) or 'nothing'}, and "
                f"the settings say {', '.join(self.numbers) or 'nothing'}"
            )
        for member, told in zip(self.members, facts.members, strict=True):
            member.recall(MemberFacts(**told))
        self.narrow(facts.slots)
        self.block, self.updates, self.steps = facts.block, facts.updates, found.steps
        self.numbers, self.speeds = facts.numbers, facts.speeds
        self.compile_seconds = facts.compile_seconds
        self.started -= facts.seconds
        self.plan = dataclasses.replace(
            self.plan, updates_per_block=blocks_after(facts.updates_per_block, self.plan)
        )
        self.unflatten(found)
        own = sinks.missing(job.run_dir, facts.positions)
        if own and not {"log", "logger"} & set(job.config.resume_allow):
            raise ConfigError(
                f"resume={job.run_dir}: {own[0]}; put the whole log in its place, or go on with "
                "what is there: 'resume_allow=[log]'"
            )
        lines += [f"{line}; the log has a gap" for line in own]
        if facts.shards != self.shards:
            lines.append(
                "the environments are spread over devices and update batches as "
                f"{' x '.join(map(str, self.shards))}, and were over "
                f"{' x '.join(map(str, facts.shards))}: their episodes go on with new random "
                "streams, and the run is no longer bit for bit what it would have been"
            )
        together, were = self.plan.members_per_device, facts.members_per_device
        if together != were:
            lines.append(
                f"members on each device: {together}, and {were} before: the compiler adds in "
                "another order, and bits may differ"
            )
        now, then = checkpoint.versions(), found.facts.get("versions", {})
        changed = {name: was for name, was in then.items() if now.get(name) != was}
        if changed:
            lines.append(
                f"written with {', '.join(f'{n} {v}' for n, v in changed.items())}, and this is "
                f"{', '.join(f'{n} {now.get(n)}' for n in changed)}: bits may differ"
            )
        return lines

    @property
    def shards(self) -> list[int]:
        """Parts that a member's environments are in: of devices, and on each, update batches."""
        return [self.plan.devices_per_member, self.plan.update_batch_size]

    def execute(self) -> list[float | TrainingError]:
        self.start()
        with self.signals.ending(self.wait_for_writers):
            self.programs = self.compile()
        if self.config.arch.plan_only:
            return [math.nan] * len(self.jobs)
        with self.signals.ending(self.wait_for_writers):  # a warm-up of any length is inside
            if self.resumed is None:
                state, total, best = self.begin()
            else:
                state, total, best = self.restore(self.resumed)
                for job in self.given:  # from here on the changes that were allowed are the run's
                    keep_config(job.config, job.run_dir)
            if self.config.arch.profile is not None:
                self.profile(state, _profile_folder(self.config.arch.profile))
        while self.going and self.block < len(self.plan.updates_per_block):
            before = self.steps
            state, total = self.train_block(state, total, best)
            state, best, scores = self.end_block(state, total, best)
            total = system.no_metrics(self.system, self.plan)
            self.save(state, total, best, scores, before)
        if self.going:
            with self.signals.ending(self.wait_for_writers):
                self.conclude(best, self.steps)
        self.wait_for_writers()
        return self.finish()

    def wait_for_writers(self) -> str:
        """Until all checkpoints are whole; `CheckpointError` where one cannot be."""
        for writer in self.writers.values():
            writer.wait()
        return ""

    def begin(self) -> tuple[LearnerState, Metrics, Policy]:
        """The first state, no metrics, and its policies as the best so far."""
        configs = [member.config for member in self.members]
        state = self.warm_up(system.init(self.system, configs, self.plan))
        if self.config.population.selection != "none":
            self.write_selection(0, self.slots)
        best = jax.tree.map(jnp.copy, state.agent.policy)
        return state, system.no_metrics(self.system, self.plan), best

    def unflatten(self, found: Checkpoint) -> tuple[LearnerState, Policy, Metrics]:
        """What a checkpoint holds, `[P, ...]`; `CheckpointError` where it is another program's."""
        shards, update_batches = self.facts.shards
        learners = shards * update_batches
        then = dataclasses.replace(
            self.plan, devices_per_member=shards, update_batch_size=update_batches
        )
        envs = dataclasses.replace(
            self.system, num_envs=self.config.arch.total_num_envs // learners
        )
        configs = [self.members[i].config for i in self.slots]

        def begin() -> tuple[LearnerState, Policy, Metrics]:
            state = system.begin(envs, configs, then)
            total = jax.tree.map(
                lambda x: jnp.broadcast_to(x, (len(configs),)), zero_metrics(self.system)
            )
            return state, state.agent.policy, total

        restored: tuple[LearnerState, Policy, Metrics] = checkpoint.unflatten(
            jax.eval_shape(begin), found.arrays
        )
        return restored

    def restore(self, found: Checkpoint) -> tuple[LearnerState, Metrics, Policy]:
        """The state, the metrics of the block so far and the best policies of a checkpoint."""
        state, best, total = self.unflatten(found)
        configs = [self.members[i].config for i in self.slots]
        numbers = system.stacked_hyperparameters(configs, self.plan)
        kept = {name: getattr(state.agent.hyperparameters, name) for name in self.selected()}
        agent = dataclasses.replace(state.agent, hyperparameters=numbers.replace(**kept))
        acting = state.acting
        if self.facts.shards != self.shards:
            acting = system.spread_anew(acting, self.plan)
        state = LearnerState(agent=agent, acting=acting)
        total, best = system.place_agents((total, best), self.plan)
        return system.place(state, self.plan), total, best

    def train_block(
        self, state: LearnerState, total: Metrics, best: Policy
    ) -> tuple[LearnerState, Metrics]:
        """The rest of the updates of a block, in calls of about `CALL_SECONDS`.

        The calls are one program, which hands its metrics on: how long they are changes no bit.
        """
        num_updates = self.plan.updates_per_block[self.block]
        done, start = 0, time.perf_counter()
        while self.updates < num_updates:
            before, called = self.steps, time.perf_counter()
            count = self.pace.updates(num_updates - self.updates)
            placed = devices.replicate(np.int32(count), self.devices)
            state, total = self.programs.train.call(state, total, placed)
            jax.block_until_ready(total)
            self.pace.took(count, time.perf_counter() - called)
            done, self.updates = done + count, self.updates + count
            self.steps += count * self.plan.steps_per_update
            over = self.updates == num_updates
            if over:
                seconds = time.perf_counter() - start
                self.speeds.append(done * self.plan.steps_per_update / seconds)
            if not over or self.signals.received is not None:
                self.save(state, total, best, None, before)
        return state, total

    def end_block(
        self, state: LearnerState, total: Metrics, best: Policy
    ) -> tuple[LearnerState, Policy, dict[int, float]]:
        """Evaluate and select; the state after it, the best policies and the scores.

        A signal that comes meanwhile finds the block as it was before, to be ended by a resume.
        """
        save = self.saving(state, total, best, None)
        with self.signals.ending(lambda: save() + self.wait_for_writers(), PATIENCE):
            num_updates, block = self.plan.updates_per_block[self.block], self.block
            ill = self.trained(self.of_members(total), num_updates, self.steps)
            self.block, self.updates = block + 1, 0
            steps = self.steps
            if not self.exploits(block) or len(ill) == len(self.going):
                self.fail(ill, steps)
            if not self.going:
                return state, best, {}
            last = self.block == len(self.plan.updates_per_block)
            scores = self.evaluated(state.agent.policy, block, steps, ill, last)
            best = self.keep(scores, state.agent.policy, best)
            if not self.going:
                return state, best, scores
            if self.exploits(block):
                state = self.exploit(state, scores, block, steps)
            elif block in self.rungs:
                state, best = self.halve(state, best, scores, self.rungs[block], steps)
            return state, best, scores

    def save(
        self,
        state: LearnerState,
        total: Metrics,
        best: Policy,
        scores: dict[int, float] | None,
        before: int,
    ) -> None:
        """Write checkpoints where they are due; `Interrupted` where a signal has come.

        `scores` are those of the block's evaluation, None where the block is not over; `before` is
        the step of the call before this one.
        """
        if not self.going:  # the run ends by itself
            return
        number = self.signals.received
        due = number is not None or self.block == len(self.plan.updates_per_block)
        due = due or any(w.is_milestone(self.steps, before) for w in self.writers.values())
        waited = time.perf_counter() - self.saved_at >= SAVE_SECONDS
        if due or ((scores is not None or waited) and self.can_afford_to_save()):
            self.saving(state, total, best, scores)()
        if number is not None:
            self.wait_for_writers()
            saved = f", saved{self.signals.way_on}" if self.writers else ", not saved"
            raise Interrupted(
                f"{signal.Signals(number).name}: stopped at step {self.steps}{saved}", number
            )

    def saving(
        self,
        state: LearnerState,
        total: Metrics,
        best: Policy,
        scores: dict[int, float] | None,
    ) -> Callable[[], str]:
        """What writes the run as it is now, whenever it is called, perhaps by another thread.

        It returns what it did, in words.
        """
        steps, parts = self.steps, []
        for job, writer in self.writers.items():
            own = self.jobs[job]
            rows = [slot for slot, i in enumerate(self.slots) if i in own]
            if any(self.slots[slot] in self.going for slot in rows):
                found = [x for i, x in (scores or {}).items() if i in own and math.isfinite(x)]
                score = statistics.fmean(found) if found else None
                parts.append((writer, rows, self.tell(job, rows), score))
        # Keys of random streams as their data, made here: a device may be busy when they are asked
        plan, (state, best, total) = self.plan, jax.tree.map(devices.data, (state, best, total))

        def write() -> str:
            if not parts:
                return ", not saved"
            self.saved += 1
            self.saved_at = time.perf_counter()
            gathered = (
                system.gather(state, plan),
                *(system.gather_agents(tree, plan) for tree in (best, total)),
            )
            for writer, rows, facts, score in parts:
                arrays = jax.tree.map(lambda x, rows=rows: x[rows], gathered)
                writer.save(steps, arrays, dataclasses.asdict(facts), score)
            return f", saved at step {steps}"

        return write

    def can_afford_to_save(self) -> bool:
        """Whether the share of time that went into checkpoints would stay what it may be."""
        share = self.config.checkpoint.share
        if any(writer.is_writing for writer in self.writers.values()):
            return share == 1
        spent = sum(writer.seconds for writer in self.writers.values())
        each = spent / self.saved if self.saved else 0.1 * len(self.writers)
        return share == 1 or spent + each <= share * (time.perf_counter() - self.started)

    def tell(self, job: int, rows: Sequence[int]) -> RunFacts:
        """What a checkpoint of a job keeps beside its arrays: what `recall` takes up."""
        own, given = self.jobs[job], self.given[job]
        begun = self.block + (self.updates > 0)
        return RunFacts(
            block=self.block,
            updates=self.updates,
            updates_per_block=list(self.plan.updates_per_block[:begun]),
            seconds=time.perf_counter() - self.started,
            compile_seconds=self.compile_seconds,
            speeds=list(self.speeds),
            slots=[self.slots[row] - own.start for row in rows],
            members=[dataclasses.asdict(self.members[i].tell()) for i in own],
            numbers={name: [row[r] for r in rows] for name, row in self.numbers.items()},
            shards=self.shards,
            members_per_device=self.plan.members_per_device,
            positions={
                str(report.folder.relative_to(given.run_dir)): sinks.position(report.folder)
                for report in self.reports
                if report.folder is not None and report.folder.is_relative_to(given.run_dir)
            },
            config=plain(given.config),
        )

    def write_resume(self, lines: Sequence[str]) -> None:
        """Say from where the run goes on, and what of it is not as it was."""
        found = self.resumed
        assert found is not None
        event = {"event": "resume", "path": str(found.path), "steps": found.steps, "lines": lines}
        for report in self.reports:
            for sink in report.outputs:
                sink.write(event)

    def write(
        self,
        events: dict[int, dict[str, Any]],
        kind: str,
        overall: dict[str, Any] | None = None,
    ) -> None:
        """One event of each member that is a key; `overall` is said of several beside their sum."""
        rows = {
            i: {"event": kind, "seed": self.members[i].config.arch.seed, **values}
            for i, values in events.items()
        }
        for report in self.reports:
            report.write(rows, overall or {})

    def start(self) -> None:
        params = jax.eval_shape(self.system.algorithm.init, jax.random.key(0))
        env = self.config.env
        values = {
            "environment": self.system.env.name,
            "suite": (env.target or env.library).partition(".")[0],
            "algorithm": algorithm_name(self.config),
            "platform": self.devices[0].platform,
            "num_parameters": sum(math.prod(x.shape) for x in jax.tree.leaves(params)),
            "num_eval_episodes": self.config.arch.num_eval_episodes,
            "max_eval_steps": self.system.max_eval_steps,
            "warmup_steps": self.plan.warmup_steps,
            **dataclasses.asdict(self.plan),
        }
        self.write(dict.fromkeys(self.going, values), "start")

    @functools.cached_property
    def shapes(self) -> LearnerState:
        """Those of the state; `narrow` makes others of them."""
        configs = [self.members[i].config for i in self.slots]
        shapes: LearnerState = jax.eval_shape(lambda: system.init(self.system, configs, self.plan))
        return shapes

    def compile_training(self) -> compile.Program:
        total = jax.eval_shape(lambda: system.no_metrics(self.system, self.plan))
        count = jax.ShapeDtypeStruct((self.plan.num_devices,), jnp.int32)
        train = partial(train_members, self.system)
        return self.compile_program(train, self.shapes, total, count, donate=(0, 1))

    def compile_program(
        self, function: Callable[..., Any], *args: PyTree, donate: tuple[int, ...] = ()
    ) -> compile.Program:
        compiler = self.config.arch.compiler
        return compile.compile_program(function, *args, donate=donate, compiler=compiler)

    def check_memory(self) -> None:
        """`TooLargeError` where the members do not fit together."""
        self.train = self.compile_training()
        need, limit = self.train.peak_bytes, self.memory_limit()
        if need is not None and limit is not None and need > _SHARE_OF_MEMORY * limit:
            raise TooLargeError(
                f"{len(self.slots)} members need {need / 2**30:.1f} GiB of {limit / 2**30:.1f} on "
                "each device"
            )

    def memory_limit(self) -> int | None:
        return compile.memory_limit(self.devices[0], self.plan.num_devices)

    def compile(self) -> Programs:
        train = self.train or self.compile_training()
        self.train = None
        policy = self.shapes.agent.policy
        keys = self.episode_keys(self.evaluation_keys, 1)[0]
        evaluation = self.compile_program(partial(evaluate_members, self.system), policy, keys)
        seconds = train.seconds + evaluation.seconds
        self.compile_seconds += seconds
        values = {
            "seconds": seconds,
            "train_seconds": train.seconds,
            "evaluate_seconds": evaluation.seconds,
            "gflop_per_update": None if train.matmul_flops is None else train.matmul_flops / 1e9,
            "peak_bytes": train.peak_bytes,
            "total_steps": self.plan.total_steps,
            "plan_only": self.config.arch.plan_only,
        }
        self.write(dict.fromkeys(self.going, values), "compile")
        need, limit = max(train.peak_bytes or 0, evaluation.peak_bytes or 0), self.memory_limit()
        if limit is not None and need > limit:
            raise ConfigError(
                f"arch.total_num_envs={self.config.arch.total_num_envs}: the program needs "
                f"{need / 2**30:.1f} GiB on each device, of {limit / 2**30:.1f} that there are; "
                "lower it, system.rollout_length, or the number of members"
            )
        return Programs(train=train, evaluate=evaluation)

    def profile(self, state: LearnerState, folder: Path) -> None:
        """Trace two updates, of a copy of the state that is dropped: the run is as without."""
        for traced in (False, True):  # the first call is not like those that follow
            copy = jax.tree.map(jnp.copy, state)
            count = devices.replicate(np.int32(2 if traced else 1), self.devices)
            with jax.profiler.trace(folder) if traced else contextlib.nullcontext():
                total = system.no_metrics(self.system, self.plan)
                jax.block_until_ready(self.programs.train.call(copy, total, count))

    def warm_up(self, state: LearnerState) -> LearnerState:
        if not self.plan.warmup_rollouts:
            return state
        count = devices.replicate(np.int32(self.plan.warmup_rollouts), self.devices)
        warm_up = partial(warm_up_members, self.system)
        return self.compile_program(warm_up, state, count, donate=(0,)).call(state, count)

    def trained(self, totals: Metrics, num_updates: int, steps: int) -> dict[int, str]:
        """Write what a block's training was like; which members cannot go on so, and why."""
        one = {
            i: jax.tree.map(lambda x, slot=slot: x[slot].item(), totals)
            for slot, i in enumerate(self.slots)
            if i in self.going
        }
        self.write({i: self.summarize(one[i], num_updates, steps) for i in one}, "train")
        found = {i: self.members[i].diagnose(one[i], steps) for i in one}
        return {i: reason for i, reason in found.items() if reason is not None}

    def evaluated(
        self, policy: Policy, block: int, steps: int, ill: Container[int], last: bool
    ) -> dict[int, float]:
        """Evaluate, write, and return the scores of all members that are not `ill`."""
        keys = jax.vmap(partial(jax.random.fold_in, data=block))(self.evaluation_keys)
        episodes = self.evaluate(policy, keys, 1)
        self.check_masks(episodes, steps)
        scores = {
            i: {**self.score(episodes, i, steps), "last": last} for i in self.going if i not in ill
        }
        self.write(scores, "eval")
        for i, score in scores.items():
            self.members[i].last = score
            self.members[i].history.append((steps, score["episode_return"]))
        return {i: score["episode_return"] for i, score in scores.items()}

    def keep(self, scores: dict[int, float], policy: Policy, best: Policy) -> Policy:
        """`best` with the `policy` of the members that are better than they ever were."""
        chosen = np.zeros(len(self.slots), bool)
        for i, score in scores.items():
            member = self.members[i]
            if math.isfinite(score) and score > member.best["episode_return"]:
                member.best = member.last
                chosen[self.slots.index(i)] = True
        if not chosen.any():
            return best
        mask = devices.place(chosen, self.devices, spread=self.plan.spreads_members)
        return devices.shard(_choose(mask, policy, best), self.devices)

    def exploits(self, block: int) -> bool:
        """Whether population-based training selects after this block; never after the last."""
        population, blocks = self.config.population, len(self.plan.updates_per_block)
        return (
            population.selection == "pbt"
            and block + 1 < blocks
            and (block + 1) % population.interval == 0
        )

    def exploit(
        self, state: LearnerState, scores: dict[int, float], block: int, steps: int
    ) -> LearnerState:
        """The worst members become copies of the best, with other hyperparameters.

        All that is learnt is copied: parameters, optimiser, statistics. Environments and random
        streams stay a member's own.
        """
        population = self.config.population
        generator = np.random.default_rng([self.config.arch.seed, len(self.members), block])
        found = [scores.get(i, math.nan) for i in self.slots]
        chosen = sources(found, population.threshold, generator)
        copied = [slot for slot, source in enumerate(chosen) if source != slot]
        inherited = {name: [row[c] for c in chosen] for name, row in self.numbers.items()}
        self.numbers = explore(inherited, copied, population, generator)
        self.write_selection(steps, [self.slots[c] for c in chosen])
        old, spread = state.agent, self.plan.spreads_members
        agent = devices.take(old, chosen, self.devices, spread=spread)
        placed = {
            name: devices.place(np.asarray(row, np.float32), self.devices, spread=spread)
            for name, row in self.selected().items()
        }
        agent = dataclasses.replace(
            agent,
            hyperparameters=agent.hyperparameters.replace(**placed),
            policy=dataclasses.replace(agent.policy, noise_key=old.policy.noise_key),
        )
        return dataclasses.replace(state, agent=agent)

    def selected(self) -> dict[str, list[float]]:
        """The numbers that selection changes, with those that follow another."""
        found = dict(self.numbers)
        for field in dataclasses.fields(self.config.system):
            leader = field.metadata.get("follows")
            if leader in found and getattr(self.config.system, field.name) is None:
                found[field.name] = found[leader]
        return found

    def halve(
        self,
        state: LearnerState,
        best: Policy,
        scores: dict[int, float],
        num_kept: int,
        steps: int,
    ) -> tuple[LearnerState, Policy]:
        """The best `num_kept` members go on, in a smaller program; at least one on each device."""
        spread = self.plan.spreads_members
        if spread:
            num_kept = -(-num_kept // self.plan.num_devices) * self.plan.num_devices
        if num_kept >= len(self.slots):
            return state, best
        kept = sorted(rank([scores.get(i, math.nan) for i in self.slots])[:num_kept])
        for slot in set(range(len(self.slots))) - set(kept):
            i, status = self.slots[slot], f"dropped by successive halving at step {steps}"
            if self.members[i].failure is None:
                self.members[i].end = self.describe_end(i, status, steps)
        self.narrow(kept)
        self.write_selection(steps, self.slots)
        state, best = devices.take((state, best), kept, self.devices, spread=spread)
        self.programs = self.compile()
        return state, best

    def narrow(self, kept: Sequence[int]) -> None:
        """The members in the slots `kept` go on, in a program of their number."""
        self.__dict__.pop("shapes", None)
        self.slots = [self.slots[slot] for slot in kept]
        self.numbers = {name: [row[slot] for slot in kept] for name, row in self.numbers.items()}
        self.evaluation_keys, self.absolute_keys = (
            keys[np.asarray(kept)] for keys in (self.evaluation_keys, self.absolute_keys)
        )
        self.plan = dataclasses.replace(self.plan, num_members=len(kept))
        axes = self.system.member_axes if self.plan.members_per_device > 1 else ()
        self.system = dataclasses.replace(self.system, member_axes=axes)

    def write_selection(self, steps: int, sources: Sequence[int]) -> None:
        """Whom each member goes on from, and with which numbers, to where many are reported."""
        event = {
            "event": "selection",
            "method": self.config.population.selection,
            "steps": steps,
            "members": list(self.slots),
            "sources": list(sources),
            "hyperparameters": self.numbers,
        }
        for report in self.reports:
            if len(report.members) > 1:
                for sink in report.outputs:
                    sink.write(event)

    def conclude(self, best: Policy, steps: int) -> None:
        """Evaluate the best policies anew."""
        reason = "no evaluation returned a finite number; look at the environment's rewards"
        scores = {i: self.members[i].best for i in self.going}
        hopeless = [i for i, score in scores.items() if not math.isfinite(score["episode_return"])]
        self.fail(dict.fromkeys(hopeless, reason), steps)
        if self.config.arch.absolute_metric and self.going:
            episodes = self.evaluate(best, self.absolute_keys, 10)
            self.check_masks(episodes, steps)
            scores = {i: self.score(episodes, i, self.members[i].best["steps"]) for i in self.going}
            self.write(scores, "absolute")
        for i in self.going:
            self.members[i].result = scores[i]["episode_return"]
            self.members[i].end = self.describe_end(i, "finished", steps)

    def finish(self) -> list[float | TrainingError]:
        """Write the last event of each member and job; the jobs' results."""
        ends = {i: member.end for i, member in enumerate(self.members)}
        if self.config.population.size is None:
            self.write(ends, "end")
        else:
            best = self.best_of(range(len(self.members)))
            member = self.members[0 if best is None else best]
            overall = {**member.end, "seed": member.config.arch.seed}
            self.write(ends, "end", overall)
        return [self.outcome(own) for own in self.jobs]

    def best_of(self, own: Sequence[int]) -> int | None:
        """Of the members with a result, the one that evaluated best."""
        finished = [i for i in own if self.members[i].result is not None]
        return max(finished, key=lambda i: self.members[i].best["episode_return"], default=None)

    def outcome(self, own: Sequence[int]) -> float | TrainingError:
        """A job's result: the mean over its seeds, or what went wrong with one of them.

        Of a population, the result of the member that evaluated best.
        """
        group = [self.members[i] for i in own]
        best = self.best_of(own)
        if self.config.population.size is not None and best is not None:
            group = [self.members[best]]
        failures = [member for member in group if member.failure is not None]
        if failures:
            seed = f"seed {failures[0].config.arch.seed}: " if len(group) > 1 else ""
            more = f" ({len(failures)} of {len(group)} seeds failed)" if len(group) > 1 else ""
            return TrainingError(f"{seed}{failures[0].failure}{more}")
        return statistics.fmean(m.result for m in group if m.result is not None)

    def of_members(self, tree: PyTree) -> PyTree:
        return devices.members(tree, spread=self.plan.spreads_members)

    def episode_keys(self, keys: jax.Array, times: int) -> list[jax.Array]:
        """For each of `times` calls, keys `[D, P, E]` of the members' episodes, by their number."""
        shards, each = self.plan.devices_per_member, self.plan.eval_episodes_per_device
        rows = []
        for call in range(times):
            numbers = call * self.config.arch.num_eval_episodes + np.arange(shards * each)
            found = jax.vmap(episode_keys, (0, None))(keys, numbers)
            if self.plan.spreads_members:
                rows.append(devices.place(found, self.devices, spread=True))
            else:
                found = found.reshape(-1, shards, each).swapaxes(0, 1)
                rows.append(devices.shard(found, self.devices))
        return rows

    def evaluate(self, policy: Policy, keys: jax.Array, times: int) -> Episodes:
        """Exactly `times * num_eval_episodes` episodes a member, leaves NumPy `[P, episodes]`."""
        wanted = self.config.arch.num_eval_episodes

        def rows(x: jax.Array) -> Any:
            """`[D, P, E]` to `[P, wanted]`."""
            each = np.asarray(x)
            if not self.plan.spreads_members:
                each = each.swapaxes(0, 1)
            return each.reshape(len(self.slots), -1)[:, :wanted]

        parts = [
            jax.tree.map(rows, self.programs.evaluate.call(policy, part))
            for part in self.episode_keys(keys, times)
        ]
        return jax.tree.map(lambda *x: np.concatenate(x, axis=1), *parts)

    def score(self, episodes: Episodes, i: int, steps: int) -> dict[str, Any]:
        """Member `i`'s evaluation."""
        episodes = jax.tree.map(lambda x: x[self.slots.index(i)], episodes)
        returns = np.asarray(episodes.returns, np.float64)
        with np.errstate(invalid="ignore"):  # an infinite return has no spread
            spread = float(returns.std())
        return {
            "steps": steps,
            "seconds": time.perf_counter() - self.started,
            "episodes": returns.size,
            "episode_return": float(returns.mean()),
            "episode_return_std": spread,
            "episode_return_min": float(returns.min()),
            "episode_return_max": float(returns.max()),
            "episode_length": float(np.mean(episodes.lengths)),
            "unfinished": int(np.sum(~np.asarray(episodes.finished))),
            "max_eval_steps": self.system.max_eval_steps,
        }

    def summarize(self, totals: Metrics, num_updates: int, steps: int) -> dict[str, Any]:
        """A block's `train` event: means over its updates, and over the episodes that ended."""
        episodes = totals.rollout.num_episodes
        return {
            "steps": steps,
            "updates": steps // self.plan.steps_per_update,
            "seconds": time.perf_counter() - self.started,
            "steps_per_second": self.speeds[-1],
            "episodes": episodes,
            "episode_return": totals.rollout.episode_return / episodes if episodes else None,
            "episode_length": totals.rollout.episode_length / episodes if episodes else None,
            **{
                name: value / num_updates if how == MEAN else value
                for name, how, value in leaves(totals.learn)
                if not name.startswith("nonfinite")
            },
        }

    def fail(self, reasons: dict[int, str], steps: int) -> None:
        """Let members go; what is computed of them from now on is not looked at."""
        for i, reason in reasons.items():
            self.members[i].failure = reason
            self.members[i].end = self.describe_end(i, reason, steps)
        for job, writer in self.writers.items():
            if any(i in self.jobs[job] for i in reasons):
                writer.pin()  # the last in which they were well

    def check_masks(self, episodes: Episodes, steps: int) -> None:
        """Let members go whose evaluation met a mask that allows nothing."""
        counts = np.sum(episodes.empty_masks, axis=1)
        found = {
            i: self.members[i].diagnose_masks(int(counts[self.slots.index(i)]), steps)
            for i in self.going
        }
        self.fail({i: reason for i, reason in found.items() if reason is not None}, steps)

    def describe_end(self, i: int, status: str, steps: int) -> dict[str, Any]:
        member = self.members[i]
        return {
            "status": status,
            "environment": self.system.env.name,
            "absolute_metric": member.result if self.config.arch.absolute_metric else None,
            "best_episode_return": member.best["episode_return"],
            "best_steps": member.best.get("steps"),
            "steps": steps,
            "seconds": time.perf_counter() - self.started,
            "compile_seconds": self.compile_seconds,
            "steps_per_second": statistics.median(self.speeds),
            "machine": devices.machine(),
            "versions": checkpoint.versions(),
        }


@jax.jit
def _choose(chosen: jax.Array, one: PyTree, other: PyTree) -> PyTree:
    """Leaves `[D, P, ...]` of `one` where `chosen` `[D, P]`, else of `other`."""

    def pick(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where(chosen.reshape(*chosen.shape, *(1,) * (x.ndim - 2)), x, y)

    return jax.tree.map(pick, one, other)
