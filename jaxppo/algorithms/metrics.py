"""Metrics, each declared once with its reduction.

A class of metrics is a dataclass whose fields are made by `metric`, are such classes again, or are
dicts of means. LEAST and GREATEST hold over microbatches, minibatches, devices and updates. SUM
adds over devices, update batches and updates, and LAST keeps the value of the last update; both
are averaged over microbatches and minibatches.
"""

import dataclasses
import typing
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.ops.collectives import max_over, mean_over, min_over, sum_over
from jaxppo.types import Class, pytree

MEAN, SUM, LEAST, GREATEST, LAST = "mean", "sum", "least", "greatest", "last"
_START: dict[str, float] = {LEAST: float("inf"), GREATEST: float("-inf")}  # others: 0


def metric(
    how: str = MEAN, *, count: bool = False, headline: str | None = None, num: int | None = None
) -> Any:
    """Declare a scalar, float32 or an int32 `count`, that is reduced as `how` says.

    With `num` it is an array `[num]`; name it ..._histogram, as sinks expect. `headline` is a
    format string with which the console shows it, such as "kl {:.4f}".
    """
    return dataclasses.field(
        metadata={"how": how, "count": count, "headline": headline, "num": num}
    )


@typing.dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(metric,))
def metrics(cls: type[Class]) -> type[Class]:
    """Class decorator: a frozen dataclass of metrics that is a pytree."""
    return pytree(cls)


@metrics
class NoMetrics:
    """No metrics."""


def combine(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply `function(how, *values)` to each metric of trees of one structure."""
    first = trees[0]
    if isinstance(first, dict):
        return {name: function(MEAN, *(tree[name] for tree in trees)) for name in first}
    found = {}
    for field in dataclasses.fields(first):
        values = [getattr(tree, field.name) for tree in trees]
        how = field.metadata.get("how")
        found[field.name] = function(how, *values) if how else combine(function, *values)
    return type(first)(**found)


def identity(cls: type, **inner: Any) -> Any:
    """Return the neutral element of a class; `inner` are its fields that are not scalars."""
    scalars = {
        field.name: jnp.full(
            () if field.metadata["num"] is None else (field.metadata["num"],),
            _START.get(field.metadata["how"], 0),
            jnp.int32 if field.metadata["count"] else jnp.float32,
        )
        for field in dataclasses.fields(cls)
        if "how" in field.metadata
    }
    return cls(**scalars, **inner)


def add(total: Any, new: Any) -> Any:
    """Add the metrics of one more update to `total`. Means are kept as sums."""
    choices: dict[str, Callable[..., Any]] = {LEAST: jnp.minimum, GREATEST: jnp.maximum}
    choices[LAST] = lambda _, new: new
    return combine(lambda how, *values: choices.get(how, jnp.add)(*values), total, new)


def over_axes(axes: tuple[str, ...], tree: Any) -> Any:
    """Reduce metrics over the mapped `axes` of one agent, one collective per kind of reduction."""
    reductions = {SUM: sum_over, LEAST: min_over, GREATEST: max_over}
    by_kind: dict[str, list[jax.Array]] = {}
    for _, how, x in leaves(tree):
        by_kind.setdefault(how, []).append(x)
    reduced = {how: iter(reductions.get(how, mean_over)(axes, x)) for how, x in by_kind.items()}
    return combine(lambda how, _: next(reduced[how]), tree)  # in the order of `leaves`


def over_first(tree: Any, seen: jax.Array | None = None) -> Any:
    """Reduce metrics over their first axis `[N]`; `seen` `[N]` says which entries count."""

    def one(how: str, x: jax.Array) -> jax.Array:
        if how in (LEAST, GREATEST):
            return jnp.min(x, axis=0) if how == LEAST else jnp.max(x, axis=0)
        if seen is None:
            return jnp.mean(x, axis=0)
        return jnp.sum(jnp.where(seen, x, 0.0)) / jnp.maximum(jnp.sum(seen), 1)

    return combine(one, tree)


def leaves(tree: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the name, the reduction and the value of each metric."""
    if isinstance(tree, dict):
        yield from ((name, MEAN, value) for name, value in tree.items())
        return
    for field in dataclasses.fields(tree):
        value, how = getattr(tree, field.name), field.metadata.get("how")
        if how:
            yield field.name, how, value
        else:
            yield from leaves(value)


def headlines(cls: type) -> dict[str, str]:
    """Return the format strings of the metrics that the console shows, by name."""
    fields = dataclasses.fields(cls)
    return {f.name: f.metadata["headline"] for f in fields if f.metadata.get("headline")}
