"""Aggregate metrics of steps over episodes: last, sum, mean, max or share (a last one)."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.types import Tally


def init(kinds: Mapping[str, str], shape: tuple[int, ...], xp: Any = jnp) -> dict[str, Tally]:
    """Return the tallies of `kinds` (name: last, sum, ...) at the start of episodes."""
    return {
        name: Tally(total=xp.zeros(shape, xp.float32), count=xp.zeros(shape, xp.int32))
        for name in kinds
    }


def add(
    kinds: Mapping[str, str], tallies: Mapping[str, Tally], told: Mapping[str, Any], xp: Any = jnp
) -> dict[str, Tally]:
    """Return tallies `[B]` after a step that told numbers `[B]`; NaN tells nothing.

    `xp` is the library of the arrays: jax.numpy or numpy.
    """

    def one(kind: str, tally: Tally, x: Any) -> Tally:
        total = tally.total + x
        if kind in ("last", "share"):
            total = x
        elif kind == "max":
            total = xp.where(tally.count == 0, x, xp.maximum(tally.total, x))
        tells = ~xp.isnan(x)
        return Tally(total=xp.where(tells, total, tally.total), count=tally.count + tells)

    return {name: one(kind, tallies[name], told[name]) for name, kind in kinds.items()}


def results(
    kinds: Mapping[str, str], tallies: Mapping[str, Tally], xp: Any = jnp
) -> dict[str, jax.Array]:
    """Return what the episodes so far add up to, `[B]` float32; NaN where nothing was told."""

    def one(kind: str, tally: Tally) -> Any:
        total = tally.total
        if kind == "mean":
            total = total / xp.maximum(tally.count, 1).astype(xp.float32)
        return xp.where(tally.count == 0, xp.float32(xp.nan), total)

    return {name: one(kind, tallies[name]) for name, kind in kinds.items()}
