"""Older policies of a run as opponents in its games."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxppo.types import AgentState, Opponents, Policy, System


def init_pool(system: System, policy: Policy) -> Opponents | tuple[()]:
    """Return the pool of a new agent, which holds its untrained policy `N` times; (): no pool."""
    num = system.num_opponents
    if not num:
        return ()
    policies = jax.tree.map(lambda x: jnp.broadcast_to(x, (num, *x.shape)), _kept(policy))
    return Opponents(policies=policies, since=jnp.zeros(num, jnp.int32))


def update_pool(system: System, agent: AgentState) -> AgentState:
    """Return an agent whose policy has replaced the pool's oldest, if that is due.

    It is every `opponent_every` updates.
    """
    if not system.num_opponents:
        return agent
    pool: Opponents = agent.opponents
    due = agent.update % system.opponent_every == 0
    slot = jnp.argmin(pool.since)

    def one(stored: jax.Array, new: jax.Array) -> jax.Array:
        return stored.at[slot].set(jnp.where(due, new, stored[slot]))

    pool = Opponents(
        policies=jax.tree.map(one, pool.policies, _kept(agent.policy)),
        since=one(pool.since, agent.update),
    )
    return dataclasses.replace(agent, opponents=pool)


def _kept(policy: Policy) -> Policy:
    return dataclasses.replace(policy, noise_key=None)
