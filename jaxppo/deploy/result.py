"""The result of a run that Python started: numbers, curves and policies, with or without files."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config
from jaxppo.config.stored import keep_config
from jaxppo.deploy.policy import TrainedPolicy
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import build
from jaxppo.runtime.run import saving
from jaxppo.runtime.run.caller import Caller, Reached
from jaxppo.runtime.run.events import Events
from jaxppo.runtime.run.members import Member
from jaxppo.runtime.run.parts import Run
from jaxppo.runtime.sinks import Event, of_environment
from jaxppo.runtime.store.directories import as_path, check_run_dir, only_run_in
from jaxppo.types import Policy

if TYPE_CHECKING:
    from jaxppo.extras.films import Film

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """A run after a block of training and its evaluation: what `on_block` gets.

    Numbers of several members are aggregated as on the console: means, and `member_returns`.
    """

    steps: int  # environment steps so far, of each member
    train: Event  # the last train event
    evaluation: Event
    reached: Reached

    @cached_property
    def policy(self) -> TrainedPolicy:
        """Return the current policy; of several members the one with the best evaluation so far.

        Read it before `on_block` returns: after that its arrays are used for the next block.
        """
        return policy_of(self.reached, _best_seed(self.reached), "latest")


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """What a run gave: its numbers, curves and policies.

    Arrays of `metrics` and `evaluations` are `[events]`; with several members `[P, events]`, with
    NaN where a member has no such event. Their keys are those of metrics.jsonl, `steps` among them.
    After a resume in another environment they have only its events.
    """

    config: Config
    run_dir: Path | None
    status: str  # finished; or why it stopped, or failed
    seeds: list[int]  # [P]
    absolute_metrics: dict[int, float]  # by seed, of members that have one
    metrics: Arrays  # of training
    evaluations: Arrays
    events: dict[str, list[Event]]  # all, by folder: "" is the run, seed_N a member of several
    _reached: Reached

    @property
    def absolute_metric(self) -> float | None:
        """Return the mean absolute metric over seeds; of a population that of its best member.

        None if no member finished, or with `arch.absolute_metric=false`.
        """
        members = self._reached.members
        if self.config.population.size is not None:
            best = members.best_of(range(len(members)))
            return None if best is None else self.absolute_metrics.get(members[best].seed)
        found = list(self.absolute_metrics.values())
        return statistics.fmean(found) if found else None

    @cached_property
    def policy(self) -> TrainedPolicy:
        """Return the best evaluated policy, of several members that of the best one.

        If nothing was evaluated, the current policy.
        """
        return self.policy_of(_best_seed(self._reached))

    def policy_of(self, seed: int, which: str = "best") -> TrainedPolicy:
        """Return the `best` evaluated policy of a seed, or its `latest`.

        `ConfigError` if no member has this seed, or successive halving dropped it.
        """
        return policy_of(self._reached, seed, which)

    def plot(self) -> Any:
        """Return a matplotlib figure of the curves, which a notebook shows."""
        from jaxppo.runtime.sinks.plot import draw, png

        figure = draw(of_environment(self.events[""]))
        figure._repr_png_ = lambda: png(figure)  # a notebook calls it
        return figure

    def film(self, **settings: Any) -> "Film":
        """Film an episode of the policy, see `jaxppo.extras.films.film`; a notebook shows it."""
        from jaxppo.extras.films import film

        return film(self.policy, **settings)

    def save(self, run_dir: str | Path) -> Path:
        """Write a run directory that evaluate, render, export, resume and report accept.

        `ConfigError` if a run is there already, or if every member failed.
        """
        folder = as_path("run_dir", run_dir)
        if not self._reached.members.active(self._reached.layout.slots):
            raise ConfigError(f"save: there is nothing to go on with: {self.status}")
        check_run_dir("run_dir", folder)
        folder.mkdir(parents=True, exist_ok=True)
        reached = self._reached
        logger = dataclasses.replace(self.config.logger, wandb=False, sinks=[])
        enabled = dataclasses.replace(self.config.checkpoint, enabled=True)
        config = dataclasses.replace(self.config, logger=logger, checkpoint=enabled)
        job = dataclasses.replace(reached.jobs[0], config=config, run_dir=folder, resume=False)
        caller = Caller(console=False)
        run = Run(
            jobs=[job],
            members=reached.members,
            layout=reached.layout,
            progress=reached.progress,
            selection=reached.selection,
            events=Events([job], reached.members, caller),
            caller=caller,
        )
        with only_run_in(folder), ThreadPoolExecutor(1, "checkpoint") as threads:
            keep_config(self.config, folder)
            run.events.open([None])
            try:
                run.events.replay(self.events, folder)
                saving.open_writers(run, threads)
                saving.pending(run, reached.state)()
            finally:
                run.events.close(None)
        return folder

    def __repr__(self) -> str:
        metric = self.absolute_metric
        shown = "no absolute metric" if metric is None else f"absolute metric {metric:.2f}"
        seeds = f", {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
        return f"Result({shown}{seeds}, {self._reached.progress.steps:,} steps, {self.status})"


def result(reached: Reached, records: Mapping[str, list[Event]], status: str) -> Result:
    """Return the result of a run that ended, or was stopped, at `reached`."""
    reached.progress.freeze()
    job, members = reached.jobs[0], reached.members.all
    folders = [f"seed_{m.seed}" for m in members] if len(members) > 1 else [""]
    rows = [of_environment(records.get(folder, [])) for folder in folders]
    finished = {m.seed: m.result for m in members if m.result is not None}
    return Result(
        config=job.config,
        run_dir=job.run_dir,
        status=status,
        seeds=[member.seed for member in members],
        absolute_metrics=finished if job.config.arch.absolute_metric else {},
        metrics=arrays("train", rows),
        evaluations=arrays("eval", rows),
        events=dict(records),
        _reached=reached,
    )


def arrays(kind: str, members: Sequence[Sequence[Event]]) -> Arrays:
    """Return the numbers of all events of a kind, `[P, events]`; of one member `[events]`.

    A column has the events of one step, and NaN for members without one.
    """
    rows = [{e["steps"]: e for e in events if e["event"] == kind} for events in members]
    steps = sorted(set().union(*rows))
    every = [event for row in rows for event in row.values()]
    names = [
        name
        for name in dict.fromkeys(key for event in every for key in event)
        if all(isinstance(event.get(name), int | float | None) for event in every)
        and name not in ("seed", "last")
    ]

    def one(name: str) -> np.ndarray:
        found = [[row.get(step, {}).get(name) for step in steps] for row in rows]
        values = [[np.nan if x is None else x for x in row] for row in found]
        return np.asarray(values[0] if len(rows) == 1 else values)

    return {name: one(name) for name in names}


def _best_seed(reached: Reached) -> int:
    members = [reached.members[i] for i in reached.layout.slots]
    alive = [member for member in members if member.facts.failure is None] or members
    return max(alive, key=lambda member: member.best_score).seed


def policy_of(reached: Reached, seed: int, which: str) -> TrainedPolicy:
    """Return a member's `best` evaluated policy, or its `latest`."""
    layout = reached.layout
    seeds = [reached.members[i].seed for i in layout.slots]
    if seed not in seeds:
        raise ConfigError(f"seed={seed!r}: is none of {', '.join(map(str, seeds))}")
    if which not in ("best", "latest"):
        raise ConfigError(f"which={which}: must be best or latest")
    if is_donated(reached):
        raise ConfigError("policy: the run has gone on since; read it before on_block returns")
    row = seeds.index(seed)
    member: Member = reached.members[layout.slots[row]]
    state = reached.state
    is_best = which == "best" and bool(member.facts.best)
    policy = state.best if is_best else state.learner.agent.policy
    device, slot = divmod(row, layout.plan.members_per_device)
    own: Policy = jax.tree.map(lambda x: _alone(x, device, slot), policy)
    return TrainedPolicy(
        config=member.config,
        system=build.build_alone(member.config),
        policy=own,
        steps=member.facts.best["steps"] if is_best else reached.progress.steps,
        num_devices=min(layout.plan.devices_per_member, len(devices.available())),
    )


def is_donated(reached: Reached) -> bool:
    """Return whether the next block has taken the arrays of `reached`."""
    return any(x.is_deleted() for x in jax.tree.leaves(reached.state))


def _alone(x: jax.Array, device: int, slot: int) -> jax.Array:
    """Return a copy of one member of leaves `[D, P, ...]`, on one device."""
    shards = sorted(x.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return jax.device_put(shards[device].data[0, slot], devices.available()[0])
