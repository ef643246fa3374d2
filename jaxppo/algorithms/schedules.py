"""What changes from update to update: hyperparameters (`system.schedules`) and exploration."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxppo.config.schedules import NUMBERS, hyperparameter
from jaxppo.types import AgentState, Hyperparameters, System


def _linear(start: jax.Array, end: jax.Array, progress: jax.Array) -> jax.Array:
    return start + (end - start) * progress


def _cosine(start: jax.Array, end: jax.Array, progress: jax.Array) -> jax.Array:
    """Half a cosine: Loshchilov and Hutter 2017 (arXiv 1608.03983), equation 5."""
    return end + (start - end) * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))


def _exponential(start: jax.Array, end: jax.Array, progress: jax.Array) -> jax.Array:
    return start * (end / start) ** progress


# kind -> value at a progress between 0 and 1
KINDS: dict[str, Callable[[jax.Array, jax.Array, jax.Array], jax.Array]] = {
    "constant": lambda start, end, progress: start,
    "linear": _linear,
    "cosine": _cosine,
    "exponential": _exponential,
    "warmup_linear": _linear,
}


def begin_update(system: System, agent: AgentState) -> AgentState:
    """Return the agent with the hyperparameters and the exploration of its update (0-based)."""
    agent = scheduled(system, agent)
    exploration = system.algorithm.exploration(agent.hyperparameters, agent.update)
    policy = dataclasses.replace(agent.policy, exploration=exploration)
    return dataclasses.replace(agent, policy=policy)


def scheduled(system: System, agent: AgentState) -> AgentState:
    """Return the agent with the hyperparameters of its update (0-based).

    A schedule reaches its end at `share` of the updates; the values of the first update are those
    of the settings, or zero with warmup_linear.
    """
    hp = agent.hyperparameters
    values = {name: _value(kind, name, hp, agent.update) for name, kind in system.schedules}
    if not values:
        return agent
    return dataclasses.replace(agent, hyperparameters=hp.replace(**values))


def _value(kind: str, name: str, hp: Hyperparameters, update: jax.Array) -> jax.Array:
    start = getattr(hp, name)
    end, share, warmup = (getattr(hp, hyperparameter(name, number)) for number in NUMBERS)
    done = update.astype(jnp.float32) / hp.num_updates.astype(jnp.float32)
    if kind != "warmup_linear":
        return KINDS[kind](start, end, jnp.minimum(done / share, 1.0))
    progress = jnp.clip((done - warmup) / (share - warmup), 0.0, 1.0)
    return jnp.minimum(done / warmup, 1.0) * KINDS[kind](start, end, progress)
