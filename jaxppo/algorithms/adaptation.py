"""Learning rates and the KL penalty of PPO that adapt to the KL between policies."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.algorithms.acting import unroll
from jaxppo.ops.collectives import mean_over
from jaxppo.ops.statistics import shares, weighted
from jaxppo.types import AgentState, Batch, System


def rate_factor(
    hp: Any, factor: jax.Array, kl: jax.Array, is_too_high: jax.Array | bool
) -> jax.Array:
    """Return the factor of the learning rates of a gradient step with KL(old || new) `kl`.

    The rule of RSL-RL (Schwarke et al. 2025, arXiv 2509.10771), with the estimate k3 of the KL.
    A KL that ends the epochs, `is_too_high`, is too high here too.
    """
    high, low = kl > 2.0 * hp.lr_kl_target, kl < 0.5 * hp.lr_kl_target
    high |= is_too_high
    return bounded(hp, factor * jnp.where(high, 1 / hp.lr_factor, jnp.where(low, hp.lr_factor, 1)))


def bounded(hp: Any, factor: jax.Array) -> jax.Array:
    """Clip the factor of the learning rates so that `actor_lr` times it is within the bounds.

    They are `lr_min` and `lr_max`. A factor may leave them if selection copies it to a member with
    another `actor_lr`, or if a resume has another `actor_lr`.
    """
    return jnp.clip(factor, hp.lr_min / hp.actor_lr, hp.lr_max / hp.actor_lr)


def kl_factor(system: System, agent: AgentState, batch: Batch) -> jax.Array:
    """Return the factor of the KL penalty after an update.

    Double it if KL(old || new) of the update is above 1.5 `kl_coef_target`, halve it if it is below
    kl_coef_target / 1.5: Schulman et al. 2017, section 4.
    """
    hp, steps = agent.hyperparameters, batch.steps
    _, output = unroll(system, agent.policy, batch.carry, steps.obs, steps.reset)
    kl = steps.distribution.kl_divergence(output.distribution)
    kl = weighted(kl, shares(steps.weight, system.axes))
    kl = mean_over(system.axes, jnp.mean(kl))
    high, low = kl > 1.5 * hp.kl_coef_target, kl < hp.kl_coef_target / 1.5
    change = jnp.where(high, 2.0, jnp.where(low, 0.5, 1.0))
    return jnp.clip(agent.algorithm_state.kl_factor * change, 1e-6, 1e6)
