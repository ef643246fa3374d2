"""The phases of an update, each compiled once for a system, and rollouts to run them on."""

import dataclasses
import functools
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from conftest import alone, build, small_config

from jaxppo.algorithms import acting, memory, ppo_data, report, spine
from jaxppo.algorithms.gradient_steps import gradient_step, make_step
from jaxppo.algorithms.metrics import over_axes
from jaxppo.config.schema import Config
from jaxppo.kernels import random_bits
from jaxppo.ops import sequences
from jaxppo.ops.collectives import BATCH_AXIS
from jaxppo.types import AgentState, Batch, LearnerState, Rollout, System


def compiled(system: System) -> Any:
    """The phases of one system by their names, without their first argument.

    Each is compiled at its first call.
    """
    algorithm = system.algorithm
    phases = [acting.collect, acting.unroll, memory.burn_in, memory.refresh_batch]
    phases += [spine.update, spine.learn, spine.scale_rewards, spine.update_obs_statistics]
    phases += [spine.run_epochs, report.report]
    phases += [algorithm.targets, algorithm.loss, algorithm.finish]
    recompute_carries = jax.jit(partial(memory.recompute_carries, system), static_argnums=2)
    return SimpleNamespace(
        **{phase.__name__: jax.jit(partial(phase, system)) for phase in phases},
        gradient_step=jax.jit(make_step(system)),
        recompute_carries=recompute_carries,
        system=system,
    )


def split_step(system: System, batch: Batch, agent: AgentState) -> tuple[AgentState, Any]:
    """A gradient step on a batch `[1, 32]`, of which each of 4 update batches has a quarter."""
    split = jax.tree.map(lambda x: x.reshape(1, 4, -1, *x.shape[2:]).swapaxes(0, 1), batch)
    mapped = dataclasses.replace(system, axes=(BATCH_AXIS,))

    def step(*args: Any) -> Any:
        agent, found = gradient_step(mapped, *args)
        return agent, dataclasses.replace(found, loss=over_axes(mapped.axes, found.loss))

    in_parts = jax.vmap(step, in_axes=(0, None, None), out_axes=None, axis_name=BATCH_AXIS)
    found: tuple[AgentState, Any] = jax.jit(in_parts)(split, agent, jnp.arange(8))
    return found


def collect(phases: Any, state: LearnerState) -> tuple[LearnerState, Rollout]:
    """The state after a rollout, and the rollout."""
    return collect_with_keys(phases, state)[:2]


def collect_with_keys(phases: Any, state: LearnerState) -> tuple[LearnerState, Rollout, jax.Array]:
    """The same, and the keys of the epochs that `update` would give to `learn`."""
    after, rollout = phases.collect(state.agent, state.acting)
    keys = random_bits.split(after.key, 1 + phases.system.epochs)
    after = dataclasses.replace(after, key=keys[0])
    return LearnerState(agent=state.agent, acting=after), rollout, keys[1:]


def add_targets(phases: Any, agent: AgentState, rollout: Rollout) -> tuple[AgentState, Batch]:
    """The batch of a rollout, and the agent whose statistics of targets have moved."""
    agent, steps, _ = phases.targets(agent, rollout)
    length = phases.system.sequence_length
    carry = sequences.first(rollout.steps.carry, length)
    return agent, Batch(carry=carry, steps=sequences.cut(steps, length))


def rollout_after(
    phases: Any, state: LearnerState, num_updates: int
) -> tuple[LearnerState, Rollout, Batch]:
    """A fresh rollout and its batch, of an agent that has learnt for some updates."""
    for _ in range(num_updates):
        state, _ = phases.update(state)
    state, rollout = collect(phases, state)
    agent, scaled = phases.scale_rewards(state.agent, rollout)
    return dataclasses.replace(state, agent=agent), rollout, add_targets(phases, agent, scaled)[1]


def random_batch(num: int, seed: int = 0) -> Batch:
    """A batch of PPO `[1, num]` of noise."""
    draw = np.random.default_rng(seed).normal
    rows = lambda *shape: jnp.asarray(draw(size=(1, num, *shape)), jnp.float32)  # noqa: E731
    steps = ppo_data.Steps(
        obs=rows(2),
        reset=jnp.zeros((1, num), bool),
        action=jnp.asarray(np.arange(num)[None] % 2, jnp.int32),
        log_prob=-0.7 + 0.3 * rows(),
        distribution=(),
        value=rows(),
        raw_value=rows(),
        advantage=rows(),
        target=rows(),
    )
    return Batch(carry=(), steps=steps)


def with_steps(batch: Batch, **changes: Any) -> Batch:
    """The batch with other fields of its steps."""
    return dataclasses.replace(batch, steps=dataclasses.replace(batch.steps, **changes))


def with_hyperparameters(agent: AgentState, **changes: Any) -> AgentState:
    """The agent with other hyperparameters."""
    return dataclasses.replace(agent, hyperparameters=agent.hyperparameters.replace(**changes))


def given(state: LearnerState, **changes: float) -> LearnerState:
    """The state with other hyperparameters."""
    numbers = {name: jnp.float32(value) for name, value in changes.items()}
    return dataclasses.replace(state, agent=with_hyperparameters(state.agent, **numbers))


def noise_like(tree: Any, rng: Any = 0) -> Any:
    """Normal numbers in the form of a tree, by a generator or of a seed."""
    draw = np.random.default_rng(rng).normal
    return jax.tree.map(lambda x: jnp.asarray(draw(size=x.shape), x.dtype), tree)


def moved(agent: AgentState) -> AgentState:
    """The agent with other parameters, so that everything it sees matters."""
    params = agent.policy.params
    params = jax.tree.map(lambda x, noise: x + 0.2 * noise, params, noise_like(params))
    return dataclasses.replace(agent, policy=dataclasses.replace(agent.policy, params=params))


def acted(phases: Any, state: LearnerState) -> tuple[LearnerState, LearnerState, Rollout]:
    """States before and after a rollout, and the rollout.

    It begins within an episode, after statistics and parameters have moved.
    """
    state, rollout = collect(phases, state)
    agent = phases.update_obs_statistics(moved(state.agent), rollout)
    before = dataclasses.replace(state, agent=agent)
    return before, *collect(phases, before)


def two_members(config: Config) -> Any:
    """Parameters and metrics after two updates of two members."""
    system, state = alone(*build(config)[:2])
    update = jax.jit(jax.vmap(partial(spine.update, system)))

    def of_key(key: jax.Array) -> LearnerState:
        return dataclasses.replace(state, acting=dataclasses.replace(state.acting, key=key))

    states, _ = update(jax.vmap(of_key)(jax.random.split(state.acting.key)))
    states, metrics = update(states)
    return states.agent.policy.params, metrics


@functools.cache
def of_system(**changes: Any) -> tuple[Any, LearnerState]:
    """The phases of a small system with settings of `system`, and its first state; made once."""
    system, state = alone(*build(small_config(system=changes))[:2])
    return compiled(system), state


def flat(tree: Any) -> np.ndarray:
    """All numbers of a tree as one vector."""
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
