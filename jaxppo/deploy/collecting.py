"""Rollouts for a learner of one's own: acting as in training, without this project's learning."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, Self

import jax
import numpy as np

from jaxppo.algorithms.acting import collect, unroll
from jaxppo.algorithms.spine import end_update
from jaxppo.algorithms.stepwise import explore_members, joined
from jaxppo.config.fields import ConfigError
from jaxppo.config.plan import Plan, num_members, plan
from jaxppo.config.schema import Config
from jaxppo.deploy.episodes import check_alone
from jaxppo.deploy.policy import TrainedPolicy
from jaxppo.envs import is_simulated
from jaxppo.kernels import random_bits
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import build, compile
from jaxppo.runtime.simulated.actor_programs import compile_actor
from jaxppo.runtime.simulated.actors import Actor
from jaxppo.runtime.simulated.training import env_seeds
from jaxppo.types import (
    ActingState,
    AgentState,
    LearnerState,
    Policy,
    PyTree,
    Rollout,
    System,
    Transition,
)

Collect = Callable[[AgentState, ActingState], tuple[ActingState, Rollout]]


class Rollouts(Iterator[Any]):
    """The rollouts of one agent, without end; made by `jaxppo.rollouts`.

    `policy` acts in the next rollout. Assign what you have learnt to it:
    `rollouts.policy = dataclasses.replace(rollouts.policy, params=params)`. Its observation
    statistics, if observations are normalised, move between rollouts, as in training.

    `SimulatorError` if a simulator fails.
    """

    def __init__(self, config: Config, policy: Policy | None, *, episodes: bool) -> None:
        self.config = _without_learning(config)
        planned = plan(self.config, 1, 1)
        self.system = dataclasses.replace(build.build(self.config, planned), axes=())
        first = build.begin(self.system, [self.config], planned)
        self._agent: AgentState = jax.tree.map(lambda x: x[0], first.agent)
        self._acting: ActingState = jax.tree.map(lambda x: x[0, 0, 0], first.acting)
        self.policy: Policy = self._agent.policy if policy is None else policy
        self.steps = 0  # environment steps so far
        self._last: Rollout | None = None
        self._open: list[list[Transition]] | None = None
        if episodes:
            check_alone(self.system)
            self._open = [[] for _ in range(planned.num_envs)]
        self._simulators: _Simulators | None = None
        if is_simulated(self.system.env):
            self._simulators = _Simulators(self.system, self.config, planned, first)

    def __repr__(self) -> str:
        system = self.system
        size = f"{system.num_envs:,} x {system.rollout_length}"
        return f"Rollouts({system.env.name}, {size} steps each, {self.steps:,} steps so far)"

    def __next__(self) -> Any:
        """Return the next `Rollout`; with `episodes` a list of those that ended in it."""
        go_on, end = _programs(self.system, self.config.arch.compiler)
        agent = dataclasses.replace(self._agent, policy=self.policy)
        if self._last is not None:
            agent = end(agent, self._last)
        collected = self._simulators or go_on
        self._acting, rollout = collected(agent, self._acting)
        self._agent, self.policy, self._last = agent, agent.policy, rollout
        self.steps += self.system.num_envs * self.system.rollout_length
        return rollout if self._open is None else list(_ended(rollout, self._open))

    def apply(self, policy: Policy, steps: Transition) -> PyTree:
        """Return the network's output for steps `[T, B, ...]` of a rollout, or `[T, ...]`.

        That of PPO has `distribution`, of actions as `steps.action` has them, and `value`, an
        estimate with `mean()`. A pure function: works under `jit`, `grad` and `vmap`.
        """
        alone = steps.reset.ndim == 1
        if alone:
            steps = jax.tree.map(lambda x: x[:, None], steps)
        carry = jax.tree.map(lambda x: x[0], steps.carry)
        output = unroll(self.system, policy, carry, steps.obs, steps.reset)[1]
        return jax.tree.map(lambda x: x[:, 0], output) if alone else output

    def trained(self) -> TrainedPolicy:
        """Return the policy as an object that acts, evaluates and plays, as `jaxppo.load` does."""
        return TrainedPolicy(
            config=self.config,
            system=self.system,
            policy=self.policy,
            steps=self.steps,
            num_devices=1,
        )

    def close(self) -> None:
        """End simulators; environments in JAX need no end."""
        if self._simulators is not None:
            self._simulators.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _without_learning(config: Config) -> Config:
    """Return settings of one learner that takes whole rollouts, so that any size is fine."""
    arch = config.arch
    if num_members(config) > 1:
        raise ConfigError(
            f"arch.num_seeds={arch.num_seeds}, population.size={config.population.size}: rollouts "
            "are of one agent; leave them out"
        )
    if arch.actors:
        raise ConfigError(
            f"arch.actors={arch.actors}: rollouts are collected one after another; leave it out, "
            "or raise env.processes"
        )
    per_update = arch.total_num_envs * config.system.rollout_length
    steps = None if arch.total_timesteps is None else max(arch.total_timesteps, per_update)
    nothing: dict[str, Any] = {"recompute_carries": False, "microbatch_size": None, "burn_in": 0}
    return dataclasses.replace(
        config,
        arch=dataclasses.replace(
            arch, update_batch_size=1, num_evaluation=1, total_timesteps=steps
        ),
        system=dataclasses.replace(
            config.system, num_minibatches=1, sequence_length=None, **nothing
        ),
    )


@lru_cache(8)
def _programs(system: System, compiler: str) -> tuple[Collect, Callable[..., AgentState]]:
    """Return the programs that collect a rollout, and that end an update without learning."""
    jit = partial(jax.jit, compiler_options=compile.options(compiler, devices.platform()))
    return (
        jit(lambda agent, acting: _continued(system, *collect(system, agent, acting))),
        jit(lambda agent, rollout: end_update(system, agent, agent, rollout)),
    )


def _continued(
    system: System, acting: ActingState, rollout: Rollout
) -> tuple[ActingState, Rollout]:
    """Continue the stream of keys as training does, which draws those of epochs from it."""
    key = random_bits.split(acting.key, 1 + system.epochs)[0]
    return dataclasses.replace(acting, key=key), rollout


class _Simulators:
    """Collects in environments that step outside of JAX, called as the program of `_programs`."""

    def __init__(self, system: System, config: Config, plan: Plan, first: LearnerState) -> None:
        state = dataclasses.replace(first, agent=_lifted(first.agent, 1))
        programs, _ = compile_actor(system, config, state, 0)
        seeds = env_seeds(config.arch.seed, 0, plan.num_envs).reshape(1, 1, 1, -1)
        self._actor = Actor(system.env, system.rollout_length, programs, seeds)
        self._explore = devices.parallel(partial(explore_members, system), 1)
        self._join = jax.jit(lambda *given: _continued(system, *joined(system, *given)))

    def __call__(self, agent: AgentState, acting: ActingState) -> tuple[ActingState, Rollout]:
        key = _lifted(acting.key, 3)
        timed = self._actor.collect(self._explore(_lifted(agent, 2)), 0, key)
        rollout = jax.tree.map(lambda x: x[0, 0, 0], timed.rollout)
        return self._join(LearnerState(agent=agent, acting=acting), (rollout,))

    def close(self) -> None:
        self._actor.close()


def _lifted(tree: PyTree, axes: int) -> PyTree:
    """Return leaves with so many leading axes of size 1."""
    return jax.tree.map(lambda x: x[(None,) * axes], tree)


def _ended(rollout: Rollout, begun: list[list[Transition]]) -> Iterator[Transition]:
    """Yield whole episodes `[T, ...]`, in NumPy, that end in a rollout.

    `begun` holds, by environment, what there is of episodes that have not ended, and is changed.
    """
    steps = jax.tree.map(np.asarray, rollout.steps)
    done = steps.terminated | steps.truncated
    for env, parts in enumerate(begun):
        if steps.reset[0, env]:  # a simulator that was made anew has lost its episode
            parts.clear()
        start = 0
        for end in [*(np.flatnonzero(done[:, env]) + 1).tolist(), None]:
            parts.append(jax.tree.map(itemgetter((slice(start, end), env)), steps))
            if end is not None:
                yield jax.tree.map(lambda *x: np.concatenate(x), *parts)
                parts.clear()
                start = end
