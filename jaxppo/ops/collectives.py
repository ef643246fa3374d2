"""Reductions over the mapped axes of one agent.

`axes` names the mapped axes (batch, device) over which one agent is averaged; `()` is none.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.types import PyTree

BATCH_AXIS = "batch"  # the update batches U of one member and device


def _together(reduce: Callable[..., Any], axes: tuple[str, ...], tree: PyTree) -> PyTree:
    """Reduce a tree over `axes`; between devices, all leaves of a data type as one vector.

    Devices wait about as long for a number as for thousands, and XLA's CPU collectives exchange
    one array after another.
    """
    leaves, structure = jax.tree.flatten(tree)
    if not axes:
        return tree
    if axes == (BATCH_AXIS,) or len(leaves) < 2:
        return reduce(tree, axes)
    found = list(leaves)
    for dtype in dict.fromkeys(x.dtype for x in leaves):  # in one order in all processes
        own = [i for i, x in enumerate(leaves) if x.dtype == dtype]
        vector = reduce(jnp.concatenate([leaves[i].ravel() for i in own]), axes)
        ends = list(itertools.accumulate(leaves[i].size for i in own))
        for i, part in zip(own, jnp.split(vector, ends[:-1]), strict=True):
            found[i] = part.reshape(leaves[i].shape)
    return jax.tree.unflatten(structure, found)


# (axes, tree) -> the mean, sum, minimum or maximum of every leaf over the mapped `axes`
mean_over = partial(_together, jax.lax.pmean)
sum_over = partial(_together, jax.lax.psum)
min_over = partial(_together, jax.lax.pmin)
max_over = partial(_together, jax.lax.pmax)


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
