"""Advantage estimation: arrays in, arrays out."""

import chex
import jax
import jax.numpy as jnp


def gae(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    *,
    gamma: jax.Array | float,
    gae_lambda: jax.Array | float,
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimation over auto-reset episodes.

    With d_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t) and
    c_t = gamma lambda (1 - terminated_t)(1 - truncated_t),  A_t = d_t + c_t A_{t+1}.

    Schulman et al. 2016 (arXiv 1506.02438), eq. 16. All inputs `[T, B]`; `next_value` is V of the
    true successor s'_t, before any auto-reset, and is not read where `terminated` (a NaN there
    stays there). Returns `(advantages, value_targets)`, both `[T, B]`, with targets A_t + V(s_t).
    """
    chex.assert_rank([reward, value, next_value, terminated, truncated], 2)
    chex.assert_equal_shape([reward, value, next_value, terminated, truncated])
    terminated = terminated.astype(bool)
    truncated = truncated.astype(bool)
    bootstrap = jnp.where(terminated, 0.0, next_value)
    delta = reward + gamma * bootstrap - value
    decay = jnp.where(terminated | truncated, 0.0, gamma * gae_lambda)

    def accumulate(
        advantage: jax.Array, step: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        delta_t, decay_t = step
        advantage = delta_t + decay_t * advantage
        return advantage, advantage

    _, advantages = jax.lax.scan(accumulate, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)
    return advantages, advantages + value
