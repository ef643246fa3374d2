"""Sums in few kernels."""

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxppo.kernels.platforms import forms
from jaxppo.types import PyTree


def means(*arrays: jax.Array, weights: jax.Array | None = None) -> tuple[jax.Array, ...]:
    """Return the mean of each array, with `weights` of the same shape that of the products."""
    if weights is not None:
        arrays = tuple(x * weights for x in arrays)
    if not forms().stack_sums or len({x.shape for x in arrays}) > 1:
        return tuple(map(jnp.mean, arrays))
    return tuple(jnp.mean(jnp.stack([x.reshape(-1) for x in arrays]), axis=1))


def norm(tree: PyTree) -> jax.Array:
    """Return the global norm of a tree of arrays."""
    if not forms().stack_sums:
        return optax.tree.norm(tree)
    return jnp.linalg.norm(ravel_pytree(tree)[0])
