"""Reductions over the mapped axes of one agent.

`axes` names the mapped axes (batch, device) over which one agent is averaged; `()` is none.
"""

import jax
import jax.numpy as jnp

from jaxppo.types import PyTree


def mean_over(axes: tuple[str, ...], tree: PyTree) -> PyTree:
    """Average every leaf over the mapped `axes`."""
    return jax.lax.pmean(tree, axes) if axes else tree


def sum_over(axes: tuple[str, ...], tree: PyTree) -> PyTree:
    """Sum every leaf over the mapped `axes`."""
    return jax.lax.psum(tree, axes) if axes else tree


def min_over(axes: tuple[str, ...], tree: PyTree) -> PyTree:
    """Return the minimum of every leaf over the mapped `axes`."""
    return jax.lax.pmin(tree, axes) if axes else tree


def max_over(axes: tuple[str, ...], tree: PyTree) -> PyTree:
    """Return the maximum of every leaf over the mapped `axes`."""
    return jax.lax.pmax(tree, axes) if axes else tree


def any_over(axes: tuple[str, ...], flags: jax.Array, axis: int | None = None) -> jax.Array:
    """Return whether any flag is set along `axis` (None: all) and along the mapped `axes`.

    The result is not batched over `axes`, so a `cond` on it stays a branch under `vmap`.
    """
    flag = jnp.any(flags, axis)
    return jax.lax.pmax(flag.astype(jnp.int32), axes) > 0 if axes else flag
