"""Resume a run from its checkpoints: choose them, check that they fit, read and place the state."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxppo.algorithms.report import Metrics, zero_metrics
from jaxppo.config.fields import ConfigError, as_override
from jaxppo.config.given import is_given
from jaxppo.config.messages import brief
from jaxppo.config.plan import num_members
from jaxppo.config.schema import HOW_RUN, OF_GAMES, Config, EnvConfig
from jaxppo.config.stored import SUMMARY, plain
from jaxppo.envs import is_simulated
from jaxppo.envs.episodes import begun_at
from jaxppo.runtime import sinks
from jaxppo.runtime.hosts import devices, processes
from jaxppo.runtime.programs import build
from jaxppo.runtime.programs.placement import Layout, State, reshard
from jaxppo.runtime.run.parts import Run
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.checkpoint import Checkpoint, CheckpointError
from jaxppo.runtime.store.directories import check_tree, only_run_in
from jaxppo.runtime.store.facts import MemberFacts, RunFacts
from jaxppo.types import LearnerState, Policy


@dataclasses.dataclass(frozen=True)
class Resumed:
    """Checkpoints of one step to resume from, one of each job."""

    found: list[Checkpoint]
    facts: RunFacts  # those of the first job, but with the members of all jobs
    positions: list[dict[str, int]]  # of each job: bytes of its metric logs
    lines: list[str]  # messages to the user
    has_other_env: bool  # whether settings of an environment changed
    has_other_num_envs: bool  # whether the number of environments changed

    @property
    def steps(self) -> int:
        """Return the environment steps of each member."""
        return self.found[0].steps


def open_directories(run: Run, stack: contextlib.ExitStack) -> Resumed | None:
    """Lock the directories of all jobs; return what to resume from, if anything.

    All jobs are checked before anything is written, but for the lock files and the names of
    checkpoints that were complete. Several jobs resume together: if one of them has nothing to
    resume from, all start anew. Of several processes the first has the directories and chooses the
    checkpoints, and all read them. `ConfigError` or `CheckpointError` if they do not fit.
    """
    found: list[Checkpoint] = []
    lines: list[str] = []
    with processes.agreeing():
        for job in run.jobs:
            if job.run_dir is not None:
                stack.enter_context(only_run_in(job.run_dir))
                if job.resume:
                    check_tree("resume", job.run_dir)
        run_dirs = [job.run_dir for job in run.jobs if job.run_dir is not None and job.resume]
        for run_dir in run_dirs:
            checkpoint.recover(run_dir)
            _check_not_lost(run.config, run_dir)
        if len(run_dirs) == len(run.jobs):
            found, lines = checkpoint.newest_of_all(run_dirs)
    paths, lines = processes.agree([[str(each.path.absolute()) for each in found], lines])
    with processes.agreeing():
        if not processes.is_first():
            found = [checkpoint.read(Path(path)) for path in paths]
        return _read_facts(run, found, lines) if found else None


def _check_not_lost(config: Config, run_dir: Path) -> None:
    """Raise `ConfigError` if a run that ended has lost its checkpoints, and `resume` names it."""
    lost = not checkpoint.steps_in(run_dir / checkpoint.FOLDER)
    if config.resume is not None and lost and (run_dir / SUMMARY).exists():
        raise ConfigError(
            f"resume={run_dir}: is of a run that ended, and has no checkpoints; to train anew, "
            "choose another directory"
        )


def _read_facts(run: Run, found: list[Checkpoint], lines: list[str]) -> Resumed:
    """Read the facts of each job's checkpoint; raise `ConfigError` if they do not fit the job.

    If its environment changed, the best evaluation starts anew: returns do not compare.
    """
    each = [RunFacts.of(checkpoint) for checkpoint in found]
    numbers = list(run.selection.numbers)
    for job, stored, facts in zip(run.jobs, found, each, strict=True):
        for line in _misfits(job.config, stored.path, facts, run.layout.plan.updates_per_block):
            raise ConfigError(line)
        if {*facts.numbers} != {*numbers}:
            raise ConfigError(
                f"{stored.path}: its members differ in {', '.join(facts.numbers) or 'nothing'}, "
                f"and the settings say {', '.join(numbers) or 'nothing'}"
            )
        gaps = sinks.missing(stored.path.parents[1], facts.positions)
        if gaps and not {"log", "logger"} & set(job.config.resume_allow):
            raise ConfigError(
                f"resume={job.run_dir}: {gaps[0]}; restore the whole log, or continue with what is "
                "there: 'resume_allow=[log]'"
            )
        lines = [*lines, *(f"{line}; the log has a gap" for line in gaps)]
    other_envs = [
        has_other_env(facts.config, job.config) for job, facts in zip(run.jobs, each, strict=True)
    ]
    starts = [own.start for own in run.members.jobs]
    together = dataclasses.replace(
        each[0],
        slots=[start + i for start, facts in zip(starts, each, strict=True) for i in facts.slots],
        members=[
            {**member, "best": {}} if is_other else member
            for is_other, facts in zip(other_envs, each, strict=True)
            for member in facts.members
        ],
        numbers={name: [x for facts in each for x in facts.numbers[name]] for name in numbers},
    )
    positions = [facts.positions for facts in each]
    nums = {facts.config["arch"]["total_num_envs"] for facts in each}
    other_num = nums != {run.config.arch.total_num_envs}
    return Resumed(found, together, positions, lines, any(other_envs), other_num)


def _misfits(
    config: Config, path: Path, facts: RunFacts, planned: tuple[int, ...]
) -> Iterator[str]:
    """Yield a line for each setting with which a run cannot go on from the checkpoint at `path`.

    `planned` are the block lengths that the settings give.
    """
    arch, env, logger = (facts.config.get(name, {}) for name in ("arch", "env", "logger"))
    if len(facts.members) != num_members(config):
        yield (
            f"{path}: holds {len(facts.members)} members, and {num_members(config)} are asked for; "
            "leave arch.num_seeds and population.size as they were"
        )
    if arch.get("seed") != config.arch.seed and not {"arch", "arch.seed"} & {*config.resume_allow}:
        yield (
            f"{path}: has arch.seed={arch.get('seed')}, but the run has "
            f"arch.seed={config.arch.seed}; move this checkpoint away, or allow it: "
            "resume_allow=[arch.seed]"
        )
    length = facts.config.get("system", {}).get("rollout_length", 0)
    was = arch.get("total_num_envs", 0), length
    now = config.arch.total_num_envs, config.system.rollout_length
    if line := other_updates(was, now, path):
        yield line
    done = tuple(facts.updates_per_block)
    least = sum(done[: facts.block]) + facts.updates
    # A block that was begun needs one more update, unless only its evaluation is missing
    least += 0 < facts.updates < done[-1]
    if sum(planned) < least:
        counted = config.arch.num_updates is not None
        name, unit = ("num_updates", 1) if counted else ("total_timesteps", math.prod(now))
        yield (
            f"arch.{name}={getattr(config.arch, name)}: {path} is further, or needs one more "
            f"update to end its block; set at least {least * unit}"
        )
    before, evaluations = arch.get("num_evaluation"), config.arch.num_evaluation
    if before not in (None, evaluations) and done != planned[: len(done)]:
        yield (
            f"arch.num_evaluation={evaluations}: evaluations of {path} are {max(done)} updates "
            "apart, and later ones too, so that a resume finds them again; keep "
            f"arch.num_evaluation={before}"
        )
    kept: list[tuple[str, Any, Any]] = [
        ("arch.eval_metric", arch.get("eval_metric"), config.arch.eval_metric)
    ]
    if facts.updates:  # what shapes the metrics of a block that has begun
        kept += [
            ("logger.every", facts.every, config.logger.every),
            ("logger.details", logger.get("details", False), config.logger.details),
            ("env.metrics", env.get("metrics", []), config.env.metrics),
        ]
    for key, stored, here in kept:
        if stored != here:
            yield (
                f"{as_override(key, here)}: the evaluations or metrics in {path} are of "
                f"{as_override(key, stored)}; keep that value"
            )


def other_updates(was: tuple[int, int], now: tuple[int, int], where: Path) -> str:
    """Return the line that refuses updates of another number of steps; "": there are as many.

    `was` and `now` are numbers of environments and steps of a rollout.
    """
    if math.prod(was) == math.prod(now):
        return ""
    return (
        f"arch.total_num_envs={now[0]} x system.rollout_length={now[1]}: a resumed run keeps its "
        f"updates; these are {math.prod(now):,} steps per update, and those of {where} are "
        f"{was[0]} x {was[1]} = {math.prod(was):,}; keep that product"
    )


def has_other_env(stored: Mapping[str, Any], config: Config) -> bool:
    """Return whether a setting of `env` differs from the `stored` settings of a checkpoint."""
    # An older version may have had other settings
    defaults = {name: getattr(EnvConfig(), name) for name in ("metrics", *OF_GAMES)}
    before = defaults | stored.get("env", {})
    env = {name: x for name, x in plain(config)["env"].items() if name not in HOW_RUN}
    return any(not _is_same(env[name], before[name]) for name in before if name in env)


def _is_same(value: Any, before: Any) -> bool:
    """Return whether a setting is unchanged; an object given in Python has a new path each time."""
    return bool(value == before) or (is_given(value) and is_given(before))


def differences(resumed: Resumed, layout: Layout) -> list[str]:
    """Return lines about what changed since the checkpoint was written."""
    facts, lines = resumed.facts, []
    if tuple(facts.shards) != layout.shards:
        lines.append(
            "the environments are split over devices x update batches as "
            f"{' x '.join(map(str, layout.shards))}, before as "
            f"{' x '.join(map(str, facts.shards))}: episodes continue with new random streams, and "
            "the results differ from those of an uninterrupted run"
        )
    if is_simulated(layout.system.env):
        lines.append("simulators have no state that is stored: their episodes start anew")
    elif resumed.has_other_env:
        lines.append("the environment has other settings: its episodes start anew")
    elif resumed.has_other_num_envs:
        lines.append("there are more or fewer environments: episodes start anew")
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


def go_on(run: Run, resumed: Resumed) -> State:
    """Restore all that a run knows besides its state, and return that as `read_state` does."""
    facts = resumed.facts
    for i, member in enumerate(facts.members):
        run.members[i].facts = MemberFacts(**member)
    run.selection.numbers = facts.numbers
    run.progress.resume(facts, resumed.steps, run.layout.plan)
    run.layout = run.layout.narrow(facts.slots)
    return read_state(run, resumed)


def read_state(run: Run, resumed: Resumed) -> State:
    """Read the state of all members, `[P, ...]`; `CheckpointError` if arrays do not fit.

    If the environment or the number of environments changed, `acting` is None. The checkpoint lacks
    the hyperparameters of a new schedule, which come from the settings, and its metrics, which are
    zero between two blocks.
    """
    layout, configs = run.layout, run.configs
    shards, update_batches = resumed.facts.shards
    plan = dataclasses.replace(
        layout.plan, devices_per_member=shards, update_batch_size=update_batches
    )
    num_envs = run.config.arch.total_num_envs // (shards * update_batches)
    system = dataclasses.replace(layout.system, num_envs=num_envs)

    def begin() -> tuple[LearnerState, Policy, Metrics, Metrics | None]:
        state = build.begin(system, configs, plan)
        total = devices.repeated(zero_metrics(system), len(configs))
        return state, state.agent.policy, total, total if resumed.facts.every else None

    arrays = checkpoint.concatenate(resumed.found)
    numbers = checkpoint.flatten(build.stacked_hyperparameters(configs, plan))
    absent = {f"[0].agent.hyperparameters{name}": np.asarray(x) for name, x in numbers.items()}
    learner, *others = jax.eval_shape(begin)
    if resumed.has_other_env or resumed.has_other_num_envs:
        learner = dataclasses.replace(learner, acting=None)
    if not resumed.facts.updates:
        zero = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), (None, None, *others[1:]))
        absent |= checkpoint.flatten(zero)
    try:
        return State(*checkpoint.unflatten((learner, *others), {**absent, **arrays}))
    except CheckpointError as error:
        if not run.config.resume_allow:
            raise
        raise ConfigError(
            f"resume={resumed.found[0].path.parents[1]}: changes the shape of what is stored "
            f"({brief(error).partition(';')[0]}); do not change the network or the "
            "environment's spaces, or begin a run with init_from and init_parts"
        ) from error


def place_state(state: State, resumed: Resumed, run: Run) -> State:
    """Place a state that was read on devices, with the current hyperparameters."""
    learner, layout, configs = state.learner, run.layout, run.configs
    numbers = build.stacked_hyperparameters(configs, layout.plan)
    before = learner.agent.hyperparameters
    kept = {name: getattr(before, name) for name in run.selection.selected()}
    agent = dataclasses.replace(learner.agent, hyperparameters=numbers.replace(**kept))
    acting = learner.acting
    if acting is None:  # other environments, or another number of them
        env = begun_at(layout.system.env, resumed.steps / layout.plan.total_steps)
        system = dataclasses.replace(layout.system, env=env)
        acting = build.begin(system, configs, layout.plan, steps=resumed.steps).acting
    elif tuple(resumed.facts.shards) != layout.shards:
        acting = reshard(acting, layout.shards)
    # Of the block before the last train event; none yet if `logger.every` is new
    earlier = layout.no_earlier(run.config)
    if earlier is not None and state.earlier is not None:
        earlier = layout.place_agents(state.earlier)
    return State(
        layout.place(LearnerState(agent=agent, acting=acting)),
        layout.place_agents(state.best),
        layout.place_agents(state.total),
        earlier,
    )
