"""Older policies of a run as opponents in its games."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.algorithms.acting import act
from jaxppo.types import AgentState, Opponents, Policy, PyTree, System


def first(system: System, policy: Policy) -> Opponents | tuple[()]:
    """Return the pool of a new agent, which holds its untrained policy `N` times; (): no pool."""
    num = system.num_opponents
    if not num:
        return ()
    policies = jax.tree.map(lambda x: jnp.broadcast_to(x, (num, *x.shape)), _kept(policy))
    return Opponents(policies=policies, since=jnp.zeros(num, jnp.int32))


def seated(system: System, agent: AgentState) -> System:
    """Return the system whose games are played against the pool of the agent."""
    if not system.num_opponents:
        return system
    pool: Opponents = agent.opponents

    def choose(obs: PyTree, key: jax.Array) -> PyTree:
        """Map games `[R]`, in which each of the `N` policies has as many neighbours, to actions."""
        split = jax.tree.map(lambda x: x.reshape(system.num_opponents, -1, *x.shape[1:]), obs)
        keys = key.reshape(system.num_opponents, -1)
        found = jax.vmap(partial(answer, system))(pool.policies, split, keys)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found)

    env: Any = system.env
    return dataclasses.replace(system, env=env.seated(choose, pool.since))


def answer(system: System, policy: Policy, obs: PyTree, keys: jax.Array) -> PyTree:
    """Return actions `[R, A...]` that a policy without memory samples for `obs` `[R, O...]`."""
    num = keys.shape[0]
    carry = system.algorithm.network.initial_carry(num)
    return act(system, policy, carry, obs, jnp.zeros(num, bool), keys)[1].env_action


def remember(system: System, agent: AgentState) -> AgentState:
    """Return the agent after an update: at its evaluations the policy replaces the oldest one."""
    if not system.num_opponents:
        return agent
    pool: Opponents = agent.opponents
    due = agent.update % system.opponent_every == 0
    slot = (agent.update // system.opponent_every - 1) % system.num_opponents

    def one(stored: jax.Array, new: jax.Array) -> jax.Array:
        return stored.at[slot].set(jnp.where(due, new, stored[slot]))

    pool = Opponents(
        policies=jax.tree.map(one, pool.policies, _kept(agent.policy)),
        since=one(pool.since, agent.update),
    )
    return dataclasses.replace(agent, opponents=pool)


def _kept(policy: Policy) -> Policy:
    return dataclasses.replace(policy, noise_key=None)
