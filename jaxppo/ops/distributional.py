"""Distributions of returns: lambda returns, mixtures and losses.

A distribution is `K` probabilities of fixed atoms (Bellemare et al. 2017, arXiv 1707.06887), or `N`
quantiles of equal weight (Dabney et al. 2018, arXiv 1710.10044). Arrays over time are
`[T, B, ...]`; `discount`, `truncated` and `lambda_` are as in `returns.lambda_returns`.

The lambda return of a distribution is the law of r_t + gamma_t Z_t. With probability 1 - w_t, Z_t
is the return of the true successor; with probability w_t it is the lambda return of step t + 1, and
w_t = lambda (1 - e_t). Every step projects the law to atoms or quantiles again. With `lambda_=0`
this is the target of C51 or of QR-DQN. For every `lambda_` its mean is the lambda return of the
means (for atoms, if no return is outside of their range).
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from jaxppo.ops.losses import huber_error


def categorical_lambda_returns(
    reward: jax.Array,
    discount: jax.Array,
    next_probs: jax.Array,
    truncated: jax.Array,
    atoms: jax.Array,
    *,
    lambda_: jax.Array | float,
) -> jax.Array:
    """Return the lambda returns as probabilities of `atoms` `[K]`, `[T, B, K]`.

    `next_probs` `[T, B, K]` is the distribution of the true successor's value. The probability
    of each shifted atom is split between the two nearest atoms: Bellemare et al. 2017, eq. 7.
    """
    import rlax  # slow to import

    chex.assert_shape(next_probs, (*reward.shape, len(atoms)))
    # Not read where the MDP ended: all atoms are at the reward there.
    uniform = jnp.full_like(next_probs, 1.0 / len(atoms))
    next_probs = jnp.where(discount[..., None] == 0.0, uniform, next_probs)
    project = jax.vmap(rlax.categorical_l2_project, in_axes=(0, 0, None))

    def backup(
        reward: jax.Array, discount: jax.Array, weight: jax.Array, now: jax.Array, later: jax.Array
    ) -> jax.Array:
        mixed = (1.0 - weight)[:, None] * now + weight[:, None] * later
        return project(reward[:, None] + discount[:, None] * atoms, mixed, atoms)

    return _backwards(backup, reward, discount, next_probs, truncated, lambda_)


def quantile_lambda_returns(
    reward: jax.Array,
    discount: jax.Array,
    next_value: jax.Array,
    truncated: jax.Array,
    lambda_: jax.Array | float,
) -> jax.Array:
    """Return the lambda returns as quantiles, ascending, `[T, B, N]`.

    `next_value` `[T, B, N]` are those of the true successor's value, in any order.
    """
    chex.assert_rank(next_value, 3)
    num = next_value.shape[-1]
    next_value = jnp.where(discount[..., None] == 0.0, 0.0, next_value)

    def backup(
        reward: jax.Array, discount: jax.Array, weight: jax.Array, now: jax.Array, later: jax.Array
    ) -> jax.Array:
        values = jnp.concatenate([now, later], -1)
        ones = jnp.ones_like(now) / num
        weights = jnp.concatenate([(1.0 - weight)[:, None] * ones, weight[:, None] * ones], -1)
        mixed = quantile_mixture(values, weights, num)
        return reward[:, None] + discount[:, None] * mixed

    return _backwards(backup, reward, discount, next_value, truncated, lambda_)


def quantile_mixture(values: jax.Array, weights: jax.Array, num: int) -> jax.Array:
    """Return `num` quantiles of the distribution with these values and weights, `[..., num]`.

    Quantile i is the mean of the inverse distribution function between i / num and (i + 1) / num,
    which preserves the mean. Both arrays are `[..., M]`; the weights sum to one.
    """
    chex.assert_equal_shape([values, weights])
    order = jnp.argsort(values, axis=-1)
    values = jnp.take_along_axis(values, order, -1)
    weights = jnp.take_along_axis(weights, order, -1)
    upper = jnp.cumsum(weights, axis=-1)[..., None, :]
    lower = upper - weights[..., None, :]
    start = (jnp.arange(num, dtype=values.dtype) / num)[:, None]
    overlap = jnp.minimum(upper, start + 1.0 / num) - jnp.maximum(lower, start)
    overlap = jnp.maximum(overlap, 0.0)
    share = overlap / jnp.sum(overlap, axis=-1, keepdims=True)  # exact in spite of rounding
    return jnp.sum(share * values[..., None, :], axis=-1)


def quantile_loss(quantiles: jax.Array, target: jax.Array, huber_delta: float) -> jax.Array:
    """Return the quantile Huber loss of quantiles `[..., N]` to target quantiles `[..., M]`.

    With t_i = (2 i + 1) / (2 N) and u_ij = target_j - quantile_i, it is the sum over i of the mean
    over j of |t_i - 1[u_ij < 0]| huber(u_ij), where huber(u) is u^2 / 2 up to |u| = delta, and
    delta (|u| - delta / 2) above; with `huber_delta` 0 it is |u|.
    Dabney et al. 2018 (arXiv 1710.10044), eq. 10. Returns `[...]`.
    """
    num = quantiles.shape[-1]
    levels = (jnp.arange(num, dtype=quantiles.dtype) + 0.5) / num
    target, quantiles = jnp.broadcast_arrays(target[..., None, :], quantiles[..., :, None])
    error = jnp.abs(target - quantiles)
    if huber_delta:  # rlax's loses its gradient for a large delta
        error = huber_error(quantiles, target, huber_delta)
    weight = jnp.abs(levels[:, None] - (target < quantiles))
    return jnp.sum(jnp.mean(weight * error, axis=-1), axis=-1)


def _backwards(
    backup: Callable[..., jax.Array],
    reward: jax.Array,
    discount: jax.Array,
    following: jax.Array,
    truncated: jax.Array,
    lambda_: jax.Array | float,
) -> jax.Array:
    """Apply `backup` from the last step to the first."""
    chex.assert_rank([reward, discount, truncated], 2)
    chex.assert_equal_shape([reward, discount, truncated])
    weight = jnp.where(truncated.astype(bool), 0.0, lambda_)

    def step(later: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        target = backup(*now, later)
        return target, target

    steps = (reward, discount, weight, following)
    return jax.lax.scan(step, following[-1], steps, reverse=True)[1]
