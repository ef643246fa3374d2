"""Layer normalisation, in the form that is fast."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxppo.kernels.platforms import forms

EPSILON = 1e-6  # as flax


class LayerNorm(nn.Module):
    """Scale each vector to mean 0 and standard deviation 1, then by learnt scales, plus biases.

    As flax's over the last axis, computed in float32. Ba et al. 2016 (arXiv 1607.06450), eq. 3 and
    4. For whole images flax's is faster.
    """

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[..., F]` to `[..., F]`, float32 if the parameters are."""
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        given, rows = jnp.result_type(x, scale, bias), x.reshape(-1, x.shape[-1])
        rows, scale, bias = (each.astype(jnp.float32) for each in (rows, scale, bias))
        return _norm(rows, scale, bias).reshape(x.shape).astype(given)


@jax.custom_vjp
def _norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """Return layer normalisation of the rows of `[N, F]`."""
    return _forward(x, scale, bias)[0]


def _forward(
    x: jax.Array, scale: jax.Array, bias: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    equal = jnp.full_like(scale, 1.0 / scale.size)
    centred = x - _weighted_sums(x, equal)
    rate = jax.lax.rsqrt(_weighted_sums(_apart(centred * centred), equal) + EPSILON)
    unit = centred * rate
    return unit * scale + bias, (unit, rate, scale)


def _backward(
    kept: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    unit, rate, scale = kept
    product, weights = _apart(gradient * unit), scale / scale.size
    mean, along = _weighted_sums(gradient, weights), _weighted_sums(product, weights)
    change = rate * (gradient * scale - mean - unit * along)
    return change, jnp.sum(product, axis=0), jnp.sum(gradient, axis=0)


def _weighted_sums(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the weighted sum of each row of `[N, F]`, `[N, 1]`."""
    if forms().row_sums_by_products:
        return jax.lax.dot(x, weights[:, None], precision="highest")
    return jnp.sum(x * weights, axis=-1, keepdims=True)


def _apart(x: jax.Array) -> jax.Array:
    """Keep the compiler from computing `x` inside of a sum of it."""
    return jax.lax.optimization_barrier(x) if forms().row_sums_by_products else x


_norm.defvjp(_forward, _backward)
