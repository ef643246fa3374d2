"""Matrix products of dense layers and of their gradients, in the form that is fast.

Each can be the `dot_general` of `flax.linen.Dense`: it maps `[..., F]` and `[F, G]` to float32
`[..., G]`. Only reverse-mode differentiation is supported. A gradient has the precision that its
product had.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxppo.kernels.platforms import forms
from jaxppo.kernels.precisions import at, current


def float32_product(x: jax.Array, kernel: jax.Array, *_: Any, **__: Any) -> jax.Array:
    """Return `x @ kernel`."""
    return _product(jnp.float32, current(), x, kernel)


def bfloat16_product(x: jax.Array, kernel: jax.Array, *_: Any, **__: Any) -> jax.Array:
    """Return `x @ kernel` of bfloat16 factors, summed in float32; its gradient likewise."""
    return _product(jnp.bfloat16, current(), x, kernel)


def product_of(dtype: Any) -> Callable[..., jax.Array]:
    """Return the product for inputs of `dtype`."""
    return bfloat16_product if dtype == jnp.bfloat16 else float32_product


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _product(dtype: Any, asked: str | None, x: jax.Array, kernel: jax.Array) -> jax.Array:
    return _forward(dtype, asked, x, kernel)[0]


def _forward(
    dtype: Any, asked: str | None, x: jax.Array, kernel: jax.Array
) -> tuple[jax.Array, Any]:
    del asked  # `current` here, but no longer where the gradient is traced
    factors = x.astype(dtype), kernel.astype(dtype)
    kept = (*factors, jnp.zeros((), x.dtype), jnp.zeros((), kernel.dtype))
    rows, kernel = _rows(factors[0], kernel), factors[1]
    product = contract(rows, kernel, (rows.ndim - 1,), (0,))
    return product.reshape(*x.shape[:-1], kernel.shape[1]), kept


def _backward(
    dtype: Any, asked: str | None, kept: Any, gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel, like_x, like_kernel = kept
    shape, x, gradient = x.shape, _rows(x, kernel), _rows(gradient.astype(dtype), kernel)
    with at(asked):
        x_gradient = contract(gradient, kernel, (x.ndim - 1,), (1,)).reshape(shape)
        kernel_gradient = _kernel_gradient(x, gradient)
    return x_gradient.astype(like_x.dtype), kernel_gradient.astype(like_kernel.dtype)


def _rows(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return `[..., F]` as `[N, F]` where products of matrices are the faster ones."""
    least = forms().matrices_from
    return x if least is None or min(kernel.shape) < least else x.reshape(-1, x.shape[-1])


def _kernel_gradient(x: jax.Array, gradient: jax.Array) -> jax.Array:
    """Return `x^T gradient`, `[F, G]`, of `[..., F]` and `[..., G]`.

    On CPUs the compiler's fast float32 routines need a left factor that is stored row by row, and
    are faster with a wide right factor, so the narrower one is transposed. The operation that
    computes it can also transpose it. Without the barriers the compiler picks forms that take up to
    twice as long.
    """
    lead = tuple(range(x.ndim - 1))
    if not forms().rows_in_memory or x.dtype != jnp.float32:
        return contract(x, gradient, lead, lead)
    x, gradient = (rows.reshape(-1, rows.shape[-1]) for rows in (x, gradient))
    if x.shape[1] < gradient.shape[1]:
        columns = jax.lax.optimization_barrier(x.T)
        product = contract(columns, gradient, (1,), (0,))
        return jax.lax.optimization_barrier(product)
    columns = jax.lax.optimization_barrier(gradient.T)
    product = contract(columns, x, (1,), (0,))
    return jax.lax.optimization_barrier(product).T


def contract(
    a: jax.Array, b: jax.Array, a_axes: tuple[int, ...], b_axes: tuple[int, ...]
) -> jax.Array:
    """Return the sum over axes of `a` and of `b`, in float32."""
    axes = ((a_axes, b_axes), ((), ()))
    return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


_product.defvjp(_forward, _backward)

Dense = partial(nn.Dense, dot_general=float32_product)  # float32 for inputs of any float type
