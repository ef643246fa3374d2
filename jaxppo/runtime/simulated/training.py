"""Programs that train with simulators, in the place of compiled ones."""

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.algorithms import stepwise
from jaxppo.algorithms.report import Metrics
from jaxppo.config.schema import Config
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import compile
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.simulated import remote
from jaxppo.runtime.simulated.actor_programs import compile_actor, part_of, rollout_shapes
from jaxppo.runtime.simulated.actors import Actor, Racing, Threads, Timed, naming
from jaxppo.types import ActingState, LearnerState


class RaceWarning(UserWarning):
    """A run depends on the speed of its actors. The message is one line."""


class Training:
    """Collects and learns, update by update; called as the program of `spine.train_block` is.

    Episodes start anew if the state is not the one that the last call returned, as after a resume.
    """

    def __init__(
        self,
        layout: Layout,
        configs: Sequence[Config],
        learn: Any,
        explore: Any,
        follow: Any,  # None unless an update takes what is ready first
        make: Callable[[int, np.ndarray], Any],
    ) -> None:
        self._layout, self._seeds = layout, [config.arch.seed for config in configs]
        self._learn, self._explore, self._follow, self._make = learn, explore, follow, make
        arch = configs[0].arch
        self._num_actors, self._in_threads = arch.actors or 1, arch.actors > 0
        self._num_taken, self._lag = arch.rollouts_per_update, arch.policy_lag
        self._remote, self._compiler = arch.actors_on == "ray", arch.compiler
        self._actors: list[Any] = []  # each an Actor or a RemoteActor
        self._earlier_restarts = 0  # of actors that were since replaced
        self._threads: Threads | None = None
        self._episodes: list[ActingState] = []  # of each actor, where any may be taken
        self._version = 0
        self._returned: ActingState | None = None
        self._details = configs[0].logger.details
        self._timed = _Times()
        self.while_collecting: Callable[[], AbstractContextManager[Any]] = nullcontext

    def __call__(
        self, state: LearnerState, total: Metrics, count: jax.Array
    ) -> tuple[LearnerState, Metrics]:
        """Run `count` updates.

        `SimulatorError` if an environment fails; the state is then as after the last update.
        """
        for _ in range(int(devices.first(count))):
            state, total = self._update(state, total)
        return state, total

    def warm_up(self, state: LearnerState, count: int) -> LearnerState:
        """Run rollouts that only fill the observation statistics."""
        program = None
        for _ in range(count):
            state, collected = self._collect(state, threaded=False)
            given = state, tuple(each.rollout for each in collected)
            if program is None:
                fill = partial(stepwise.warm_up_members, self._layout.system)
                program = compile.compile_program(fill, *given, compiler=self._compiler).call
            state = program(*given)
            self._advance(state)
        return state

    def _update(self, state: LearnerState, total: Metrics) -> tuple[LearnerState, Metrics]:
        with self.while_collecting():
            state, collected = self._collect(state, threaded=self._in_threads)
        began = time.perf_counter()
        state, total = self._learn(state, tuple(each.rollout for each in collected), total)
        jax.block_until_ready(total)
        self._timed.learning += time.perf_counter() - began
        self._advance(state)
        return state, total

    def _collect(self, state: LearnerState, *, threaded: bool) -> tuple[LearnerState, list[Timed]]:
        """Return the state whose episodes the rollouts of an update continue, and the rollouts."""
        if self._returned is None or self._returned.key is not state.acting.key:
            self._restart(state)
        policy = self._policy(state)
        if not threaded:
            version, key = self._version, state.acting.key
            collected = []
            for number, actor in enumerate(self._actors[: self._num_taken]):
                with naming(number, self._num_actors):
                    collected.append(actor.collect(policy, version, key))
            self._timed.add(collected, version, 0.0)
            return state, collected
        began = time.perf_counter()
        if self._threads is None:
            for actor in self._actors:
                actor.start(policy, state.acting.key)
            self._version = 0
            self._threads = (
                Racing(self._actors, self._lag, self._num_taken)
                if self._follow
                else Threads(self._actors, self._lag)
            )
            self._threads.start()
            self._episodes = [
                _part(state.acting, number % self._num_taken, self._num_taken)
                for number in range(self._num_actors if self._follow else 0)
            ]
        self._threads.publish(self._version, policy)
        if self._follow:
            state, collected = self._take_first(state, self._threads.get())
        else:
            collected = [timed for _, timed in self._threads.get()]
        self._timed.add(collected, self._version, time.perf_counter() - began)
        return state, collected

    def _take_first(
        self, state: LearnerState, ready: Iterable[tuple[int, Timed]]
    ) -> tuple[LearnerState, list[Timed]]:
        """Return the state and the first rollouts that are not too old.

        The state has the episodes that the actors of these rollouts had begun.
        """
        taken, begun = [], []
        for number, timed in ready:
            before = dataclasses.replace(self._episodes[number], key=state.acting.key)
            self._episodes[number] = self._follow(state.agent, before, timed.rollout)
            if self._version - timed.version > self._lag:
                self._timed.discarded += 1
                continue
            taken.append(timed)
            begun.append(before)
            if len(taken) == self._num_taken:
                break
        acting = jax.tree.map(
            lambda x, *parts: x if devices.is_key(x) else jnp.concatenate(parts, axis=3),
            state.acting,
            *begun,
        )
        return dataclasses.replace(state, acting=acting), taken

    def _policy(self, state: LearnerState) -> Any:
        """Return the policy that collects next, as actors take it."""
        policy = self._explore(state.agent)
        return remote.hand_over(policy) if self._remote else policy

    def follow_selection(self) -> None:
        """Restart the actors at the next update, after members were selected.

        Actors in threads may have collected with policies from before the selection. Episodes start
        anew, so that it does not matter how far ahead an actor was.
        """
        if self._in_threads:
            self._returned = None

    def _advance(self, state: LearnerState) -> None:
        self._version += 1
        self._returned = state.acting

    def _restart(self, state: LearnerState) -> None:
        """Make all actors, which start episodes."""
        self._earlier_restarts = self._restarts
        self.close()
        self._timed = _Times()
        each = self._layout.system.num_envs // self._num_taken
        update = int(np.asarray(devices.first(state.agent.update)).max())
        seeds = self._draw_seeds(each * self._num_actors, update)
        if self._remote:
            remote.connect(self._num_actors)
        for number in range(self._num_actors):
            part = seeds[..., number * each : (number + 1) * each]
            with naming(number, self._num_actors):
                self._actors.append(self._make(number, part))

    def _draw_seeds(self, num_envs: int, update: int) -> np.ndarray:
        """Return seeds `[D, P, U, B]` of environments, other ones after each resume."""
        plan = self._layout.plan
        shape = plan.devices_per_member, plan.update_batch_size, num_envs
        rows = [env_seeds(seed, update, math.prod(shape)).reshape(shape) for seed in self._seeds]
        seeds: np.ndarray = self._layout.arrange_split(np.stack(rows))
        return seeds

    @property
    def _restarts(self) -> int:
        """Return how many environments were made anew after a fault."""
        return self._earlier_restarts + sum(actor.restarts for actor in self._actors)

    def report(self) -> dict[str, float]:
        """Return how time was spent since the last report, and the policy lag of the batches."""
        timed, self._timed = self._timed, _Times()
        found = {**timed.report(in_threads=self._in_threads), "env_restarts": self._restarts}
        if self._follow:
            found["discarded_rollouts"] = timed.discarded
        return {**found, **(timed.extremes() if self._details else {})}

    def phases(self) -> dict[str, float]:
        """Return the seconds of each phase since the last report, of all actors and the learner."""
        timed = self._timed
        return {
            **{"act": timed.acting, "environment": timed.stepping, "learn": timed.learning},
            **{"actors wait": sum(timed.actor_waits), "learner waits": sum(timed.learner_waits)},
        }

    def close(self) -> None:
        """End all actors and their simulators."""
        if self._threads is not None:
            self._threads.close()
            self._threads = None
        for actor in self._actors:
            actor.close()
        self._actors = []


def _part(acting: ActingState, number: int, num_parts: int) -> ActingState:
    """Return a copy of one part of the environments, `[D, P, U, B, ...]`."""

    def one(x: jax.Array) -> jax.Array:
        each = x.shape[3] // num_parts
        return jnp.array(x[:, :, :, number * each : (number + 1) * each])

    return jax.tree.map(lambda x: x if devices.is_key(x) else one(x), acting)


def env_seeds(seed: int, update: int, num: int) -> np.ndarray:
    """Return the seeds of `num` environments of an agent that start after `update` updates."""
    words = np.random.SeedSequence([seed, update]).generate_state(num)
    return (words & 0x7FFFFFFF).astype(np.int64)


@dataclasses.dataclass
class _Times:
    """Seconds of actors and learner since the last report, and lags in updates."""

    began: float = dataclasses.field(default_factory=time.perf_counter)
    acting: float = 0.0
    stepping: float = 0.0
    learning: float = 0.0
    discarded: int = 0  # rollouts that were too old
    lags: list[int] = dataclasses.field(default_factory=list)
    actor_waits: list[float] = dataclasses.field(default_factory=list)  # of each rollout
    learner_waits: list[float] = dataclasses.field(default_factory=list)  # of each update

    def add(self, collected: Sequence[Timed], version: int, waited: float) -> None:
        self.acting += sum(c.acting_seconds for c in collected)
        self.stepping += sum(c.stepping_seconds for c in collected)
        self.lags += [version - c.version for c in collected]
        self.actor_waits += [c.waiting_seconds for c in collected]
        self.learner_waits.append(waited)

    def extremes(self) -> dict[str, float]:
        """Return the least lag, and the shortest and the longest waits, in seconds."""
        found = {"policy_lag_min": float(min(self.lags, default=0))}
        for who, waits in (("actor", self.actor_waits), ("learner", self.learner_waits)):
            found[f"{who}_wait_min"] = min(waits, default=0.0)
            found[f"{who}_wait_max"] = max(waits, default=0.0)
        return found

    def report(self, *, in_threads: bool) -> dict[str, float]:
        """Return shares of the time, each of all actors or of the learner."""
        total = max(time.perf_counter() - self.began, 1e-9)
        waiting = sum(self.actor_waits)
        own = self.acting + self.stepping + waiting
        of_actors = max(own, 1e-9) if in_threads else total  # threads run ahead
        return {
            "policy_lag": float(np.mean(self.lags)) if self.lags else 0.0,
            "policy_lag_max": float(max(self.lags, default=0)),
            "acting_share": self.acting / of_actors,
            "stepping_share": self.stepping / of_actors,
            "actor_idle_share": waiting / of_actors,
            "learning_share": self.learning / total,
            "learner_idle_share": sum(self.learner_waits) / total,
        }


def compile_training(
    layout: Layout, configs: Sequence[Config], state: LearnerState, total: Metrics
) -> compile.Program:
    """Compile the programs of training with simulators; `state` and `total` may be shapes."""
    system, config, plan = layout.system, configs[0], layout.plan
    num_taken, here = config.arch.rollouts_per_update, config.arch.actors_on == "threads"
    build = partial(compile.compile_program, compiler=config.arch.compiler)
    explore = build(partial(stepwise.explore_members, system), state.agent)
    found = [
        compile_actor(system, config, state, number)
        for number in range((config.arch.actors or 1) if here else 0)
    ]
    rollout = rollout_shapes(part_of(system, config), state)
    given = state, (rollout,) * num_taken, total
    learn = build(partial(stepwise.learn_members, system), *given, donate=(0, 2))
    seconds = learn.seconds + explore.seconds + sum(seconds for _, seconds in found)
    follow = None
    if config.arch.actors_wait == "first":
        part = jax.eval_shape(partial(_part, number=0, num_parts=num_taken), state.acting)
        following = build(partial(stepwise.follow_members, system), state.agent, part, rollout)
        follow, seconds = following.call, seconds + following.seconds
        warnings.warn(
            "arch.actors_wait=first: updates take the rollouts that are ready, so this run does "
            "not repeat bit for bit; arch.actors_wait=all does",
            RaceWarning,
            stacklevel=2,
        )

    def make(number: int, seeds: np.ndarray) -> Any:
        if here:
            return Actor(system.env, system.rollout_length, found[number][0], seeds)
        return remote.RemoteActor(config, plan, number, seeds)

    return dataclasses.replace(
        learn,
        call=Training(layout, configs, learn.call, explore.call, follow, make),
        seconds=seconds,
    )
