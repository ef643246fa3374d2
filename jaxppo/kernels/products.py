"""Matrix products of dense layers, and of their gradients, in the forms that are fast.

Each is a `dot_general` of `flax.linen.Dense`: `[..., F]` and `[F, G]` to float32 `[..., G]`,
differentiated in reverse (JAX's forward mode refuses it).
"""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxppo.kernels.platforms import forms


def float32_product(x: jax.Array, kernel: jax.Array, *_: Any, **__: Any) -> jax.Array:
    """`x @ kernel`."""
    return _product(jnp.float32, x, kernel)


def bfloat16_product(x: jax.Array, kernel: jax.Array, *_: Any, **__: Any) -> jax.Array:
    """`x @ kernel` of bfloat16 factors summed in float32, as are the products of its gradient."""
    return _product(jnp.bfloat16, x, kernel)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(dtype: Any, x: jax.Array, kernel: jax.Array) -> jax.Array:
    return _forward(dtype, x, kernel)[0]


def _forward(dtype: Any, x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, Any]:
    factors = x.astype(dtype), kernel.astype(dtype)
    kept = (*factors, jnp.zeros((), x.dtype), jnp.zeros((), kernel.dtype))
    return _contract(*factors, (x.ndim - 1,), (0,)), kept


def _backward(dtype: Any, kept: Any, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel, like_x, like_kernel = kept
    gradient = gradient.astype(dtype)
    of_x = _contract(gradient, kernel, (x.ndim - 1,), (1,))
    of_kernel = _over_rows(x, gradient)
    return of_x.astype(like_x.dtype), of_kernel.astype(like_kernel.dtype)


def _over_rows(x: jax.Array, gradient: jax.Array) -> jax.Array:
    """`x^T gradient` of `[..., F]` and `[..., G]`.

    On CPUs the compiler's fast routines for float32 want a left factor whose rows lie in memory,
    and the gradient is transposed by what computes it. Without the barriers the compiler picks
    forms that take up to twice as long.
    """
    lead = tuple(range(x.ndim - 1))
    if not forms().rows_in_memory or x.dtype != jnp.float32:
        return _contract(x, gradient, lead, lead)
    rows = gradient.reshape(-1, gradient.shape[-1])
    columns = jax.lax.optimization_barrier(rows.T)
    product = _contract(columns, x.reshape(-1, x.shape[-1]), (1,), (0,))
    return jax.lax.optimization_barrier(product).T


def _contract(
    a: jax.Array, b: jax.Array, of_a: tuple[int, ...], of_b: tuple[int, ...]
) -> jax.Array:
    return jax.lax.dot_general(a, b, ((of_a, of_b), ((), ())), preferred_element_type=jnp.float32)


_product.defvjp(_forward, _backward)

Dense = partial(nn.Dense, dot_general=float32_product)  # float32 whatever it is given
