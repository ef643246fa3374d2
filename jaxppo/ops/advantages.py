"""Advantage estimators."""

import chex
import jax
import jax.numpy as jnp

from jaxppo.kernels.platforms import forms


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
    """Compute generalised advantage estimates over auto-reset episodes.

    With d_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t) and
    c_t = gamma lambda (1 - terminated_t)(1 - truncated_t),  A_t = d_t + c_t A_{t+1}.

    Schulman et al. 2016 (arXiv 1506.02438), eq. 16. All inputs `[T, B]`; `gamma` is a scalar, or
    `[T, B]` with a discount for each step (see `negamax`); `next_value` is V of the
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
    advantages = decayed_sum(delta, decay)
    return advantages, advantages + value


def vtrace(
    log_ratio: jax.Array,
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    *,
    gamma: jax.Array | float,
    gae_lambda: jax.Array | float,
    rho_clip: jax.Array | float,
    c_clip: jax.Array | float,
) -> tuple[jax.Array, jax.Array]:
    """Compute V-trace advantages and value targets of steps that an older policy mu took.

    With l_t = log pi(a_t|s_t) - log mu(a_t|s_t), rho_t = min(rho_clip, exp l_t),
    c_t = lambda min(c_clip, exp l_t) and d_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t),
    v_t = V(s_t) + rho_t d_t + gamma (1 - terminated_t)(1 - truncated_t) c_t (v_{t+1} - V(s_{t+1})),
    A_t = d_t + gamma lambda (1 - terminated_t)(1 - truncated_t) (v_{t+1} - V(s_{t+1})).

    Espeholt et al. 2018 (arXiv 1802.01561), eq. 1 and remark 2 for the targets, section 4.2 for
    the advantages. There, lambda mixes the next step's target with its value as in
    `rlax.vtrace_td_error_and_advantage`. The paper multiplies A_t by rho_t. This function does not:
    PPO's surrogate multiplies by pi/mu itself and would count the ratio twice. With pi = mu and
    clips of at least 1 both outputs equal those of `gae`. The paper requires rho_clip >= c_clip.

    All inputs `[T, B]`; `gamma` and `next_value` as in `gae`. Returns `(advantages,
    value_targets)`, both `[T, B]`.
    """
    arrays = [log_ratio, reward, value, next_value, terminated, truncated]
    chex.assert_rank(arrays, 2)
    chex.assert_equal_shape(arrays)
    terminated = terminated.astype(bool)
    ends = terminated | truncated.astype(bool)
    bootstrap = jnp.where(terminated, 0.0, next_value)
    delta = reward + gamma * bootstrap - value
    decay = jnp.where(ends, 0.0, gamma * gae_lambda)
    ratio = jnp.exp(log_ratio)
    rho = jnp.minimum(rho_clip, ratio)
    correction = decayed_sum(rho * delta, decay * jnp.minimum(c_clip, ratio))  # v_t - V(s_t)
    next_correction = jnp.concatenate([correction[1:], jnp.zeros_like(correction[:1])])
    return delta + decay * next_correction, value + correction


def negamax(gamma: jax.Array | float, sign: jax.Array | None) -> jax.Array | float:
    """Return the discount of each step `[T, B]`, gamma sign_t, in a game of two players.

    `sign` `[T, B]` is 1 where the same player moves next, and -1 where the other does: in a
    zero-sum game what is worth V to one is worth -V to the other (Knuth and Moore 1975, An analysis
    of alpha-beta pruning, section 2). So targets are those of the player who moves, and advantages
    alternate in sign. None: there is one player, and the discount is gamma.
    """
    return gamma if sign is None else gamma * sign


def decayed_sum(term: jax.Array, decay: jax.Array) -> jax.Array:
    """Return x_t = term_t + decay_t x_{t+1} with x_T = 0; all arrays are `[T, B]`."""
    if forms().associative_sums:
        return jax.lax.associative_scan(_join, (term, decay), reverse=True)[0]

    def accumulate(
        following: jax.Array, step: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        term_t, decay_t = step
        total = term_t + decay_t * following
        return total, total

    _, sums = jax.lax.scan(accumulate, jnp.zeros_like(term[0]), (term, decay), reverse=True)
    return sums


def _join(
    later: tuple[jax.Array, jax.Array], earlier: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Join the sums and the products of decays of two stretches of time."""
    return earlier[0] + earlier[1] * later[0], earlier[1] * later[1]
