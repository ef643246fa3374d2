"""Linear recurrences over time, with resets."""

from functools import partial

import chex
import jax
import jax.numpy as jnp

from jaxppo.kernels.platforms import forms


def linear_recurrence(
    decay: jax.Array,
    inputs: jax.Array,
    reset: jax.Array,
    start: jax.Array,
    *,
    block: int | None = None,
) -> jax.Array:
    """Return h_t = decay h_{t-1} + x_t with h_{-1} = start; at a reset h_{t-1} counts as 0.

    `decay` `[N]`, `inputs` `[L, S, N]` and `start` `[S, N]` are all real or all complex, `reset`
    is `[L, S]` bool. Returns h, `[L, S, N]`; `h[-1]` is the start of the next call.

    Time is cut into equal blocks, the longest that have at most `block` steps (None: the platform's
    number). An associative scan computes the state at the end of each block (Blelloch 1990, section
    1.4; a reset is a decay of 0, as in Lu et al. 2023, arXiv 2303.03982). Then the steps inside the
    blocks are computed one after another, in all blocks at once.
    """
    chex.assert_rank([decay, inputs, reset, start], [1, 3, 2, 2])
    chex.assert_equal_shape_prefix([inputs, reset], 2)
    length = inputs.shape[0]
    block = block or forms().recurrence_block
    size = next(n for n in range(min(block, length), 0, -1) if length % n == 0)
    return _recurrence(decay, inputs, ~reset, start, size)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _recurrence(
    decay: jax.Array, inputs: jax.Array, keep: jax.Array, start: jax.Array, size: int
) -> jax.Array:
    return _unroll(decay, inputs, keep, start, size)


def _forward(
    decay: jax.Array, inputs: jax.Array, keep: jax.Array, start: jax.Array, size: int
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    states = _unroll(decay, inputs, keep, start, size)
    return states, (decay, keep, start, states)


def _backward(
    size: int, residuals: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, None, jax.Array]:
    """Run the recurrence backwards in time: g_t = dL/dh_t + decay keep_{t+1} g_{t+1}."""
    decay, keep, start, states = residuals
    keep_next = jnp.concatenate([keep[1:], jnp.zeros_like(keep[:1])])
    total = _unroll(decay, gradient, keep_next, jnp.zeros_like(start), size, reverse=True)
    before = jnp.concatenate([start[None], states[:-1]])
    decay_gradient = jnp.sum(jnp.where(keep[..., None], before * total, 0), (0, 1))
    start_gradient = jnp.where(keep[0, :, None], decay * total[0], 0)
    return decay_gradient, total, None, start_gradient


_recurrence.defvjp(_forward, _backward)


def _unroll(
    decay: jax.Array,
    inputs: jax.Array,
    keep: jax.Array,
    start: jax.Array,
    size: int,
    reverse: bool = False,
) -> jax.Array:
    """Return h_t = decay keep_t h_{t-1} + x_t, in blocks of `size`; `reverse`: with h_{t+1}."""

    def cut(x: jax.Array) -> jax.Array:  # [L, S, ...] to [size, blocks, S, ...]
        return x.reshape(-1, size, *x.shape[1:]).swapaxes(0, 1)

    def step(state: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, keep = now
        state = decay * jnp.where(keep, state, 0) + x
        return state, state

    x, kept = cut(inputs), cut(keep[..., None])
    starts = _starts(decay, x, kept, start, reverse)
    _, states = jax.lax.scan(step, starts, (x, kept), reverse=reverse)
    return states.swapaxes(0, 1).reshape(inputs.shape)


def _starts(
    decay: jax.Array, x: jax.Array, keep: jax.Array, start: jax.Array, reverse: bool
) -> jax.Array:
    """Return the state before each block, `[blocks, S, N]`; `x` is `[size, blocks, S, N]`."""
    size, num_blocks = x.shape[:2]
    if num_blocks == 1:
        return start[None]
    if reverse:
        x, keep = x[::-1], keep[::-1]
    # The weight of step i at the block's end: decay^(size - 1 - i), or 0 if a reset follows.
    kept_from = jnp.cumprod(keep[::-1], 0, dtype=decay.dtype)[::-1]
    kept_after = jnp.concatenate([kept_from[1:], jnp.ones_like(kept_from[:1])])
    power = jnp.cumprod(jnp.broadcast_to(decay, (size, *decay.shape)), 0)
    weight = jnp.concatenate([power[-2::-1], jnp.ones_like(power[:1])])[:, None, None] * kept_after
    ends = jnp.sum(_times(weight, x), 0)
    decays = power[-1] * kept_from[0]
    first = num_blocks - 1 if reverse else 0
    ends = ends.at[first].add(_times(decays[first], start))

    def join(
        one: tuple[jax.Array, jax.Array], two: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        return one[0] * two[0], _times(two[0], one[1]) + two[1]

    _, ends = jax.lax.associative_scan(join, (decays, ends), reverse=reverse)
    parts = [ends[1:], start[None]] if reverse else [start[None], ends[:-1]]
    return jnp.concatenate(parts)


def _times(weight: jax.Array, x: jax.Array) -> jax.Array:
    """Return the product, which is 0 where the weight is 0, also of NaN: resets end it."""
    return jnp.where(weight == 0, 0, weight * x)
