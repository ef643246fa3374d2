"""Elementwise losses of policy and value; the caller averages them."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import optax

from jaxppo.ops.collectives import mean_over
from jaxppo.ops.statistics import BATCH_RESOLUTION, shares, weighted


def surrogate(log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array) -> jax.Array:
    """Return the unclipped loss -r A with r = exp(log_prob - old_log_prob).

    Schulman et al. 2017 (arXiv 1707.06347), eq. 6. All arrays and the result have one shape. The
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
    """Return the clipped loss -min(r A, clip(r, 1 - eps, 1 + eps_high) A).

    Here r = exp(log_prob - old_log_prob), and eps_high defaults to eps. Schulman et al. 2017 (arXiv
    1707.06347), eq. 7; a separate eps_high: Yu et al. 2025 (arXiv 2503.14476). All arrays and the
    result have one shape.
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
    """Return the loss -(r A - drift) of discovered policy optimisation.

    With r = exp(log_prob - old_log_prob) the drift is relu((r - 1) A - alpha tanh((r - 1) A /
    alpha)) if A >= 0 and relu(log(r) A - beta tanh(log(r) A / beta)) otherwise.
    Lu et al. 2022 (arXiv 2210.05639). All arrays and the result have one shape.
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
    """Return -A log pi; its gradient is the policy gradient, with any baseline inside A.

    Williams 1992 (Machine Learning 8, 229-256). Both arrays have one shape. The loss does not
    correct for a policy that has changed since it acted.
    """
    chex.assert_equal_shape([log_prob, advantage])
    return -log_prob * advantage


def ratio(log_prob: jax.Array, old_log_prob: jax.Array) -> jax.Array:
    """Return exp(log_prob - old_log_prob), at most e^60, so that float32 does not overflow."""
    return jnp.exp(jnp.minimum(log_prob - old_log_prob, 60.0))


def squared_error(value: jax.Array, target: jax.Array) -> jax.Array:
    """Return (V - target)^2 / 2 of arrays of one shape."""
    chex.assert_equal_shape([value, target])
    return optax.l2_loss(value, target)


def huber_error(value: jax.Array, target: jax.Array, delta: jax.Array | float = 1.0) -> jax.Array:
    """Return e^2 / 2 if |e| <= delta, else delta (|e| - delta / 2), with e = V - target.

    Huber 1964 (Annals of Mathematical Statistics 35, 73-101). Both arrays have one shape.
    """
    chex.assert_equal_shape([value, target])
    error = jnp.abs(value - target)
    near = jnp.minimum(error, delta)
    return near * (error - 0.5 * near)  # rlax.huber_loss loses its gradient for a large delta


def clipped_error(
    error: Callable[[jax.Array, jax.Array], jax.Array],
    value: jax.Array,
    old_value: jax.Array,
    target: jax.Array,
    clip_eps: jax.Array | float,
) -> jax.Array:
    """Return max(error(V, target), error(V_old + clip(V - V_old, -eps, eps), target)).

    With half the squared error this is the value loss of OpenAI Baselines' ppo2 (Engstrom et al.
    2020, arXiv 2005.12729, section 3). All arrays have one shape.
    """
    chex.assert_equal_shape([value, old_value, target])
    near = old_value + jnp.clip(value - old_value, -clip_eps, clip_eps)
    return jnp.maximum(error(value, target), error(near, target))


def approximate_kl(log_prob: jax.Array, old_log_prob: jax.Array) -> jax.Array:
    """Return (r - 1) - log r, an unbiased estimate of KL(old || new) per sample, at least 0.

    Schulman 2020, "Approximating KL divergence" (the estimator k3). Both arrays have one shape.
    """
    chex.assert_equal_shape([log_prob, old_log_prob])
    log_ratio = jnp.minimum(log_prob - old_log_prob, 60.0)  # as in `ratio`: finite in float32
    return jnp.expm1(log_ratio) - log_ratio


def clip_fraction(
    log_prob: jax.Array,
    old_log_prob: jax.Array,
    clip_eps: jax.Array | float,
    clip_eps_high: jax.Array | float | None = None,
) -> jax.Array:
    """Return 1.0 if the ratio is outside [1 - eps, 1 + eps_high], else 0.0; arrays of one shape."""
    chex.assert_equal_shape([log_prob, old_log_prob])
    high = clip_eps if clip_eps_high is None else clip_eps_high
    change = jnp.exp(log_prob - old_log_prob) - 1.0
    return ((change < -clip_eps) | (change > high)).astype(log_prob.dtype)


def explained_variance(
    value: jax.Array,
    target: jax.Array,
    axes: tuple[str, ...] = (),
    weights: jax.Array | None = None,
) -> jax.Array:
    """Return 1 - Var[target - V] / Var[target] over all elements and the mapped `axes`, a scalar.

    0 if the target is constant. `weights`, of the same shape, say how often each counts.
    """
    chex.assert_equal_shape([value, target])
    each = shares(None if weights is None else weights.reshape(-1), axes)
    both = jnp.stack([target, target - value]).reshape(2, -1)
    means = mean_over(axes, jnp.mean(weighted(both, each), 1))
    squares = jnp.square(both - means[:, None])
    total, error = mean_over(axes, jnp.mean(weighted(squares, each), 1))
    varies = total > jnp.square(BATCH_RESOLUTION * means[0])  # more than by rounding
    return jnp.where(varies, 1.0 - error / jnp.where(varies, total, 1), 0.0)
