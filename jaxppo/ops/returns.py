"""Multi-step returns, on-policy and off-policy.

Arrays are time-major `[T, B]`; `batch_major` adapts a function to `[B, T]`. Three arguments mean
the same in every function:

- `discount`: gamma_t = gamma (1 - terminated_t).
- `next_value`: V(s'_t) of the true successor, before any auto-reset. It is not read where
  `discount` is zero (a NaN there stays there).
- `truncated`: the episode was cut after step t. At these steps, and at the last step of the array,
  the sum ends and bootstraps from V(s'_t). Below, e_t is 1 at these steps and 0 elsewhere.

Gradients flow through. A caller that regresses on a return stops them.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import chex
import jax
import jax.numpy as jnp

from jaxppo.ops.advantages import decayed_sum

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def lambda_returns(
    reward: jax.Array,
    discount: jax.Array,
    next_value: jax.Array,
    truncated: jax.Array,
    lambda_: jax.Array | float,
) -> jax.Array:
    """Return lambda returns, which weight the n-step return by (1 - lambda) lambda^(n-1).

    G_t = r_t + gamma_t ((1 - w_t) V(s'_t) + w_t G_{t+1}) with w_t = lambda_t (1 - e_t).

    Sutton and Barto 2018, eq. 12.18. Arrays are `[T, B]`, `lambda_` `[T, B]` or a scalar; returns
    `[T, B]`. If V is Q of the taken or of the greedy action, this is Sarsa(lambda) or Q(lambda).
    """
    import rlax  # slow to import

    _check(reward, discount, next_value, truncated)
    weight = jnp.where(truncated.astype(bool), 0.0, _per_step(lambda_, reward))
    bootstrap = _bootstrap(discount, next_value)
    per_env = jax.vmap(rlax.lambda_returns, in_axes=1, out_axes=1)
    return per_env(reward, discount, bootstrap, weight)


def n_step_returns(
    reward: jax.Array,
    discount: jax.Array,
    next_value: jax.Array,
    truncated: jax.Array,
    *,
    n: int,
    lambda_: jax.Array | float | None = None,
) -> jax.Array:
    """Return sums of `n` rewards and a value; of fewer rewards if the episode or the array ends.

    G^1_t = r_t + gamma_t V(s'_t) and
    G^n_t = r_t + gamma_t ((1 - w_t) V(s'_t) + w_t G^{n-1}_{t+1}) with w_t = lambda_t (1 - e_t).

    `lambda_=None`, the same as 1, is the n-step return: Sutton and Barto 2018, eq. 7.1; below 1 it
    is the truncated lambda return, eq. 12.18 with h = t + n. Arrays are `[T, B]`, `lambda_` is
    `[T, B]` or a scalar; returns `[T, B]`. It takes `n` passes over the arrays, or one if `n >= T`.
    """
    _check(reward, discount, next_value, truncated)
    chex.assert_scalar_positive(n)
    if n >= len(reward):
        if lambda_ is None:
            return discounted_returns(reward, discount, next_value, truncated)
        return lambda_returns(reward, discount, next_value, truncated, lambda_)
    bootstrap = _bootstrap(discount, next_value)
    continues = _continues(truncated)

    def one_more(_: jax.Array, returns: jax.Array) -> jax.Array:
        following = _next(returns)
        if lambda_ is not None:
            weight = _per_step(lambda_, reward)
            following = (1.0 - weight) * bootstrap + weight * following
        return reward + discount * jnp.where(continues, following, bootstrap)

    return jax.lax.fori_loop(0, n - 1, one_more, reward + discount * bootstrap)


def discounted_returns(
    reward: jax.Array, discount: jax.Array, next_value: jax.Array | float, truncated: jax.Array
) -> jax.Array:
    """Return discounted sums of all later rewards of the episode, plus a value if it was cut.

    G_t = r_t + gamma_t (e_t V(s'_t) + (1 - e_t) G_{t+1}).

    Sutton and Barto 2018, eq. 3.9. Arrays are `[T, B]`, `next_value` `[T, B]` or a scalar (0:
    rewards only), not read where e_t is 0; returns `[T, B]`.
    """
    _check(reward, discount, truncated)
    next_value = jnp.where(_continues(truncated), 0.0, _per_step(next_value, reward))
    return lambda_returns(reward, discount, next_value, truncated, lambda_=1.0)


def q_lambda(
    reward: jax.Array,
    discount: jax.Array,
    next_q: jax.Array,
    truncated: jax.Array,
    *,
    lambda_: jax.Array | float,
) -> jax.Array:
    """Return Peng's Q(lambda): lambda returns that bootstrap from the greedy action.

    G_t = r_t + gamma_t ((1 - w_t) max_a Q(s'_t, a) + w_t G_{t+1}) with w_t = lambda_t (1 - e_t).

    Peng and Williams 1996 (Incremental multi-step Q-learning). Arrays are `[T, B]`, `lambda_`
    `[T, B]` or a scalar, and `next_q` `[T, B, A]` is Q of the true successor, not read where
    `discount` is zero. If lambda_t is zero where a_{t+1} is not greedy, this is Watkins' Q(lambda).
    Returns the targets of Q(s_t, a_t), `[T, B]`.
    """
    _check(reward, discount, truncated)
    chex.assert_rank(next_q, 3)
    chex.assert_equal_shape_prefix([reward, next_q], 2)
    # The mask comes before the max, because the derivative of a max at a NaN is one.
    greedy = jnp.max(_bootstrap(discount[..., None], next_q), axis=-1)
    return lambda_returns(reward, discount, greedy, truncated, lambda_=lambda_)


def general_off_policy_returns(
    reward: jax.Array,
    discount: jax.Array,
    q: jax.Array,
    next_value: jax.Array,
    c: jax.Array,
    truncated: jax.Array,
) -> jax.Array:
    """Return off-policy returns under pi of steps that mu took, with any trace `c`.

    G_t = r_t + gamma_t (V(s'_t) + (1 - e_t) c_{t+1} (G_{t+1} - Q(s_{t+1}, a_{t+1}))).

    Munos et al. 2016 (arXiv 1606.02647), eq. 3, where c_t is pi/mu (importance sampling), lambda
    (Harutyunyan's Q(lambda)), lambda pi (tree backup) or lambda min(1, pi/mu) (`retrace`), each of
    a_t in s_t. Arrays are `[T, B]`: `q` is Q(s_t, a_t), `next_value` the mean of Q(s'_t, .) under
    pi. `q` and `c` of the first step, and of each step after a cut, are not read. Returns the
    targets of Q(s_t, a_t), `[T, B]`.
    """
    _check(reward, discount, q, next_value, c, truncated)
    decay = discount * jnp.where(_continues(truncated), _next(c), 0.0)
    one_step = reward + discount * _bootstrap(discount, next_value)
    follows = jnp.where(decay == 0.0, 0.0, _next(q))
    return decayed_sum(one_step - decay * follows, decay)


def retrace(
    reward: jax.Array,
    discount: jax.Array,
    q: jax.Array,
    next_value: jax.Array,
    log_ratio: jax.Array,
    truncated: jax.Array,
    *,
    lambda_: jax.Array | float,
) -> jax.Array:
    """Return Retrace(lambda): off-policy returns with traces of at most 1.

    G_t = r_t + gamma_t (V(s'_t) + (1 - e_t) c_{t+1} (G_{t+1} - Q(s_{t+1}, a_{t+1}))) with
    c_t = lambda_t min(1, exp l_t) and l_t = log pi(a_t|s_t) - log mu(a_t|s_t).

    Munos et al. 2016 (arXiv 1606.02647), eq. 3 with the c of Retrace. Arrays are `[T, B]`,
    `lambda_` `[T, B]` or a scalar: `q` is Q(s_t, a_t), `next_value` the mean of Q(s'_t, .) under
    pi, `log_ratio` is l_t. Returns the targets of Q(s_t, a_t), `[T, B]`.
    """
    _check(reward, log_ratio)
    c = _per_step(lambda_, reward) * jnp.minimum(1.0, jnp.exp(log_ratio))
    return general_off_policy_returns(reward, discount, q, next_value, c, truncated)


def importance_corrected_td_errors(
    reward: jax.Array,
    discount: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    log_ratio: jax.Array,
    truncated: jax.Array,
    *,
    lambda_: jax.Array | float,
) -> jax.Array:
    """Return multi-step TD errors under pi of steps that mu took, with one ratio per decision.

    With rho_t = pi(a_t|s_t) / mu(a_t|s_t) and d_t = r_t + gamma_t V(s'_t) - V(s_t),
    E_t = rho_t (d_t + gamma_t lambda_t (1 - e_t) E_{t+1}).

    Sutton and Barto 2018, eq. 12.22, which gives the return E_t + V(s_t); Sutton et al. 2014 (A new
    Q(lambda) with interim forward view and Monte Carlo equivalence). Arrays are `[T, B]`, `lambda_`
    `[T, B]` or a scalar: `log_ratio` is log rho_t, not clipped. Returns `[T, B]`; if pi is mu these
    are the advantages of `gae`.
    """
    _check(reward, discount, value, next_value, log_ratio, truncated)
    ratio = jnp.exp(log_ratio)
    delta = reward + discount * _bootstrap(discount, next_value) - value
    weight = jnp.where(_continues(truncated), _per_step(lambda_, reward), 0.0)
    return decayed_sum(ratio * delta, ratio * discount * weight)


def batch_major(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return `function`, of this module or of `advantages`, for `[B, T, ...]` arrays.

    It swaps the first two axes of every argument and output of rank 2 or more. Scalars and static
    arguments are unchanged.
    """

    def swapped(x: Any) -> Any:
        return jnp.swapaxes(x, 0, 1) if jnp.ndim(x) >= 2 else x

    @functools.wraps(function)
    def of_batch_major(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        args, kwargs = jax.tree.map(swapped, (args, kwargs))
        return jax.tree.map(swapped, function(*args, **kwargs))

    return of_batch_major


def _check(*arrays: jax.Array) -> None:
    chex.assert_rank(arrays, 2)
    chex.assert_equal_shape(arrays)


def _per_step(x: jax.Array | float, like: jax.Array) -> jax.Array:
    """Broadcast a scalar or `[T, B]` to `[T, B]`."""
    chex.assert_rank(x, {0, 2})
    if jnp.ndim(x) == 2:
        chex.assert_equal_shape([x, like])
    return jnp.broadcast_to(jnp.asarray(x, like.dtype), like.shape)


def _bootstrap(discount: jax.Array, next_value: jax.Array) -> jax.Array:
    """Return `next_value`, or zero where `discount` is zero, since zero times NaN is NaN."""
    return jnp.where(discount == 0.0, 0.0, next_value)


def _continues(truncated: jax.Array) -> jax.Array:
    """Return 1 - e_t, bool `[T, B]`: the sum goes on from step t to step t + 1."""
    is_last = jnp.arange(len(truncated)) == len(truncated) - 1
    return ~(truncated.astype(bool) | is_last[:, None])


def _next(x: jax.Array) -> jax.Array:
    """Return x_{t+1} at t, and zero at the last step."""
    return jnp.concatenate([x[1:], jnp.zeros_like(x[:1])])
