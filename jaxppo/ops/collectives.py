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

    Under `vmap`, as over members, the result is whether any of them has one set. It is not batched,
    so a `cond` on it stays a branch and a `while_loop` needs no selection. A branch that is taken
    because of another member must therefore change nothing for members without a flag.
    """
    flag = jnp.any(flags, axis)
    return _any_member(jax.lax.pmax(flag.astype(jnp.int32), axes) > 0 if axes else flag)


@jax.custom_batching.custom_vmap
def _any_member(flag: jax.Array) -> jax.Array:
    return flag


@_any_member.def_vmap
def _(axis_size: int, in_batched: list[bool], flag: jax.Array) -> tuple[jax.Array, bool]:
    del axis_size, in_batched
    return _any_member(jnp.any(flag, axis=0)), False
