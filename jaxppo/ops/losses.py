"""Losses of policy and value, elementwise: the caller averages."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp


def surrogate(log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array) -> jax.Array:
    """The unclipped objective, as a loss: -r A with r = exp(log_prob - old_log_prob).

    Schulman et al. 2017 (arXiv 1707.06347), eq. 6. All arrays and the result of one shape. The
    paper's penalty (eq. 8) adds kl_coef times KL(old || new).
    """
    chex.assert_equal_shape([log_prob, old_log_prob, advantage])
    return -ratio(log_prob, old_log_prob) * advantage


def clipped_surrogate(
    log_prob: jax.Array,
    old_log_prob: jax.Array,
    advantage: jax.Array,
    clip_eps: jax.Array | float,
    clip_eps_high: jax.Array | float | None = None,
) -> jax.Array:
    """The clipped objective, as a loss.

    With r = exp(log_prob - old_log_prob), -min(r A, clip(r, 1 - eps, 1 + eps_high) A).
    Schulman et al. 2017 (arXiv 1707.06347), eq. 7, where eps_high is eps, as it is here unless
    given (apart in Yu et al. 2025, arXiv 2503.14476). All arrays and the result of one shape.
    """
    chex.assert_equal_shape([log_prob, old_log_prob, advantage])
    high = clip_eps if clip_eps_high is None else clip_eps_high
    r = ratio(log_prob, old_log_prob)
    clipped = jnp.clip(r, 1.0 - clip_eps, 1.0 + high)
    return -jnp.minimum(r * advantage, clipped * advantage)


def discovered_objective(
    log_prob: jax.Array,
    old_log_prob: jax.Array,
    advantage: jax.Array,
    alpha: jax.Array | float = 2.0,
    beta: jax.Array | float = 0.6,
) -> jax.Array:
    """Discovered policy optimisation, as a loss: -(r A - drift).

    With r = exp(log_prob - old_log_prob) the drift is relu((r - 1) A - alpha tanh((r - 1) A /
    alpha)) where A >= 0 and relu(log(r) A - beta tanh(log(r) A / beta)) elsewhere.
    Lu et al. 2022 (arXiv 2210.05639). All arrays and the result of one shape.
    """
    chex.assert_equal_shape([log_prob, old_log_prob, advantage])
    r = ratio(log_prob, old_log_prob)
    gain, loss = (r - 1.0) * advantage, (log_prob - old_log_prob) * advantage
    drift = jnp.where(
        advantage >= 0,
        jax.nn.relu(gain - alpha * jnp.tanh(gain / alpha)),
        jax.nn.relu(loss - beta * jnp.tanh(loss / beta)),
    )
    return -(r * advantage - drift)


def reinforce(log_prob: jax.Array, advantage: jax.Array) -> jax.Array:
    """-A log pi, whose gradient is the policy gradient with a baseline inside A.

    Williams 1992 (Machine Learning 8, 229-256). Arrays of one shape. Nothing corrects for a policy
    that has moved since it acted.
    """
    chex.assert_equal_shape([log_prob, advantage])
    return -log_prob * advantage


def ratio(log_prob: jax.Array, old_log_prob: jax.Array) -> jax.Array:
    """exp(log_prob - old_log_prob), held below e^60: no loss or gradient overflows float32."""
    return jnp.exp(jnp.minimum(log_prob - old_log_prob, 60.0))


def squared_error(value: jax.Array, target: jax.Array) -> jax.Array:
    """Half the squared error of a value, (V - target)^2 / 2. Arrays of one shape."""
    import rlax  # slow to import

    chex.assert_equal_shape([value, target])
    loss: jax.Array = rlax.l2_loss(value, target)
    return loss


def huber_error(value: jax.Array, target: jax.Array, delta: jax.Array | float = 1.0) -> jax.Array:
    """Half the squared error up to |V - target| = delta, linear beyond: delta (|e| - delta / 2).

    Huber 1964 (Annals of Mathematical Statistics 35, 73-101). Arrays of one shape.
    """
    import rlax

    chex.assert_equal_shape([value, target])
    loss: jax.Array = rlax.huber_loss(value - target, delta)
    return loss


def clipped_error(
    error: Callable[[jax.Array, jax.Array], jax.Array],
    value: jax.Array,
    old_value: jax.Array,
    target: jax.Array,
    clip_eps: jax.Array | float,
) -> jax.Array:
    """An error of the value, pessimistic over a clip around the old value.

    max(error(V, target), error(V_old + clip(V - V_old, -eps, eps), target)): with half the squared
    error, the value loss of OpenAI Baselines' ppo2 (Engstrom et al. 2020, arXiv 2005.12729,
    section 3). Arrays of one shape.
    """
    chex.assert_equal_shape([value, old_value, target])
    near = old_value + jnp.clip(value - old_value, -clip_eps, clip_eps)
    return jnp.maximum(error(value, target), error(near, target))


def approximate_kl(log_prob: jax.Array, old_log_prob: jax.Array) -> jax.Array:
    """A non-negative unbiased estimate of KL(old || new) per sample, (r - 1) - log r.

    Schulman 2020, "Approximating KL divergence" (the estimator k3). Arrays of one shape.
    """
    chex.assert_equal_shape([log_prob, old_log_prob])
    log_ratio = jnp.minimum(log_prob - old_log_prob, 60.0)  # as in a ratio: finite in float32
    return jnp.expm1(log_ratio) - log_ratio


def clip_fraction(
    log_prob: jax.Array,
    old_log_prob: jax.Array,
    clip_eps: jax.Array | float,
    clip_eps_high: jax.Array | float | None = None,
) -> jax.Array:
    """1.0 where the ratio lies outside [1 - eps, 1 + eps_high], else 0.0. Arrays of one shape."""
    chex.assert_equal_shape([log_prob, old_log_prob])
    high = clip_eps if clip_eps_high is None else clip_eps_high
    change = jnp.exp(log_prob - old_log_prob) - 1.0
    return ((change < -clip_eps) | (change > high)).astype(log_prob.dtype)


def explained_variance(value: jax.Array, target: jax.Array) -> jax.Array:
    """1 - Var[target - V] / Var[target], a scalar; 0 for a constant target. One shape."""
    chex.assert_equal_shape([value, target])
    total = jnp.var(target)
    return jnp.where(total > 0, 1.0 - jnp.var(target - value) / jnp.where(total > 0, total, 1), 0.0)
