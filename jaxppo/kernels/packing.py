"""Scans whose small arrays travel as one vector."""

import dataclasses
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.kernels.platforms import forms
from jaxppo.types import PyTree

# How many members the scans inside are vmapped over; a scan itself sees the shapes of one
_members = jax.make_user_context(default_value=1)


def of_members(num: int) -> AbstractContextManager[None]:
    """Context in which scans are vmapped over `num` members: the limit is for the bytes of all."""
    return _members(num)


def members() -> int:
    """Return the number of members of `of_members`."""
    return int(_members.value)


_LONG = 8  # steps

Packed = tuple[jax.Array, list[jax.Array]]  # 32-bit words `[..., n]`, and what is not packed


@dataclasses.dataclass(frozen=True)
class Packing:
    """How the small leaves of a tree become one vector of 32-bit words.

    Those are leaves of at most `limit` bytes whose elements are booleans or have 32 bits.
    """

    structure: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    limit: int

    @classmethod
    def of(cls, tree: PyTree, limit: int) -> "Packing":
        """Return the packing of trees like `tree`, whose leaves are arrays or shapes."""
        leaves, structure = jax.tree.flatten(jax.eval_shape(lambda: tree))
        return cls(structure, tuple(leaves), limit)

    def pack(self, tree: PyTree) -> Packed:
        """Return the words of the small leaves, and the other leaves."""
        if jax.tree.structure(tree) != self.structure:
            raise TypeError("scan: the structure of the carry or result is not that of before")
        words, others = [], []
        for leaf, like in zip(jax.tree.leaves(tree), self.leaves, strict=True):
            if (leaf.shape, leaf.dtype) != (like.shape, like.dtype):
                raise TypeError(
                    f"scan: {leaf.dtype}{list(leaf.shape)} after a step, "
                    f"{like.dtype}{list(like.shape)} before"
                )
            if self._is_small(like):
                words.append(_words(leaf).reshape(-1))
            else:
                others.append(leaf)
        return jnp.concatenate(words or [jnp.zeros(0, jnp.uint32)]), others

    def unpack(self, packed: Packed) -> PyTree:
        """Return the tree. All packed arrays may have more axes in front."""
        words, others = packed[0], iter(packed[1])
        leaves, first = [], 0
        for like in self.leaves:
            if self._is_small(like):
                size = math.prod(like.shape)
                part = words[..., first : first + size].reshape(*words.shape[:-1], *like.shape)
                leaves.append(_from_words(part, like.dtype))
                first += size
            else:
                leaves.append(next(others))
        return jax.tree.unflatten(self.structure, leaves)

    def _is_small(self, leaf: jax.ShapeDtypeStruct) -> bool:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):  # random keys
            return False
        bits = 32 if leaf.dtype == bool else 8 * leaf.dtype.itemsize
        return bits == 32 and 4 * math.prod(leaf.shape) <= self.limit


def scan(function: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any) -> tuple[Any, Any]:
    """Return `jax.lax.scan(function, init, xs)`.

    Where starting kernels is what takes time, small parts of the carry and of the results are
    packed: then one kernel stores them all. Copying large parts would cost more than it saves.
    """
    limit = forms().packed_bytes // members()
    if not limit:
        return jax.lax.scan(function, init, xs)
    carries, results = Packing.of(init, limit), []

    def packed(carry: Packed, x: Any) -> tuple[Packed, Packed]:
        after, result = function(carries.unpack(carry), x)
        results.append(Packing.of(result, limit))  # known once this is traced
        return carries.pack(after), results[-1].pack(result)

    # Short loops, such as that over epochs, copy little and may hold others
    unroll = forms().unroll if len(jax.tree.leaves(xs)[0]) >= _LONG else 1
    last, found = jax.lax.scan(packed, carries.pack(init), xs, unroll=unroll)
    return carries.unpack(last), results[-1].unpack(found)


def _words(x: jax.Array) -> jax.Array:
    return x.astype(jnp.uint32) if x.dtype == bool else jax.lax.bitcast_convert_type(x, jnp.uint32)


def _from_words(words: jax.Array, dtype: Any) -> jax.Array:
    if jnp.issubdtype(dtype, jnp.bool_):
        return words != 0
    return jax.lax.bitcast_convert_type(words, dtype)
