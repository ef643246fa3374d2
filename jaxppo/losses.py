"""Losses of policy and value, elementwise: the caller averages."""

import chex
import jax
import jax.numpy as jnp


def clipped_surrogate(
    log_prob: jax.Array,
    old_log_prob: jax.Array,
    advantage: jax.Array,
    clip_eps: jax.Array | float,
) -> jax.Array:
    """The clipped objective, as a loss.

    With r = exp(log_prob - old_log_prob), -min(r A, clip(r, 1 - eps, 1 + eps) A).
    Schulman et al. 2017 (arXiv 1707.06347), eq. 7. All arrays and the result of one shape.
    r is held below e^60, so that no sample's loss or gradient overflows float32.
    """
    chex.assert_equal_shape([log_prob, old_log_prob, advantage])
    ratio = jnp.exp(jnp.minimum(log_prob - old_log_prob, 60.0))
    clipped = jnp.clip(ratio, 1.0 - clip_eps, 1.0 + clip_eps)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def squared_error(value: jax.Array, target: jax.Array) -> jax.Array:
    """Half the squared error of a value, (V - target)^2 / 2. Arrays of one shape."""
    chex.assert_equal_shape([value, target])
    return 0.5 * jnp.square(value - target)


def clipped_squared_error(
    value: jax.Array, old_value: jax.Array, target: jax.Array, clip_eps: jax.Array | float
) -> jax.Array:
    """Half the squared error, pessimistic over a clip around the old value.

    max((V - target)^2, (V_old + clip(V - V_old, -eps, eps) - target)^2) / 2: the value loss of
    OpenAI Baselines' ppo2 (Engstrom et al. 2020, arXiv 2005.12729, section 3). Arrays of one shape.
    """
    chex.assert_equal_shape([value, old_value, target])
    near = old_value + jnp.clip(value - old_value, -clip_eps, clip_eps)
    return jnp.maximum(squared_error(value, target), squared_error(near, target))


def approximate_kl(log_prob: jax.Array, old_log_prob: jax.Array) -> jax.Array:
    """A non-negative unbiased estimate of KL(old || new) per sample, (r - 1) - log r.

    Schulman 2020, "Approximating KL divergence" (the estimator k3). Arrays of one shape.
    """
    log_ratio = log_prob - old_log_prob
    return jnp.expm1(log_ratio) - log_ratio


def clip_fraction(
    log_prob: jax.Array, old_log_prob: jax.Array, clip_eps: jax.Array | float
) -> jax.Array:
    """1.0 where the ratio lies outside the clip range, else 0.0. Arrays of one shape."""
    ratio = jnp.exp(log_prob - old_log_prob)
    return (jnp.abs(ratio - 1.0) > clip_eps).astype(log_prob.dtype)


def explained_variance(value: jax.Array, target: jax.Array) -> jax.Array:
    """1 - Var[target - V] / Var[target], a scalar; 0 for a constant target. One shape."""
    chex.assert_equal_shape([value, target])
    total = jnp.var(target)
    return jnp.where(total > 0, 1.0 - jnp.var(target - value) / jnp.where(total > 0, total, 1), 0.0)
