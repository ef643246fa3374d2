"""Cut trees of rollouts into sequences that are contiguous in time, and choose between trees."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxppo.types import PyTree


def cut(tree: PyTree, length: int) -> PyTree:
    """Cut `[T, B, ...]` into `[L, S, ...]` with `L = length` and `S = (T / L) B`.

    Sequence s = c B + b holds the steps of environment b from step c L on. `length` divides T.
    """

    def one(x: jax.Array) -> jax.Array:
        num_steps, num_envs, *rest = x.shape
        chunks = x.reshape(num_steps // length, length, num_envs, *rest)
        return chunks.swapaxes(0, 1).reshape(length, num_steps // length * num_envs, *rest)

    return jax.tree.map(one, tree)


def first(tree: PyTree, length: int) -> PyTree:
    """Return the first step of each sequence that `cut` makes: `[S, ...]` of `[T, B, ...]`."""

    def one(x: jax.Array) -> jax.Array:
        chosen = x[::length]
        return chosen.reshape(chosen.shape[0] * chosen.shape[1], *x.shape[2:])

    return jax.tree.map(one, tree)


def where(flags: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    """Return the leaves of `new` where `flags` of their leading axes are set, and else of `old`."""

    def one(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where(flags.reshape(*flags.shape, *(1,) * (x.ndim - flags.ndim)), x, y)

    return jax.tree.map(one, new, old)


def scan_chunks(
    function: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    carry: PyTree,
    tree: PyTree,
    num_chunks: int,
) -> tuple[PyTree, PyTree]:
    """Run `function(carry, part)` on equal parts of the leading axis in turn; join the outputs.

    The result is that of `function` on all at once, in less memory. `num_chunks` divides the axis.
    """
    if num_chunks == 1:
        return function(carry, tree)
    parts = jax.tree.map(lambda x: x.reshape(num_chunks, -1, *x.shape[1:]), tree)
    carry, outputs = jax.lax.scan(function, carry, parts)
    return carry, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), outputs)
