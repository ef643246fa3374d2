"""vmap over members and over update batches. An axis of size one is not mapped."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from jaxppo.kernels import packing
from jaxppo.ops.collectives import BATCH_AXIS
from jaxppo.types import LearnerState, PyTree, System


def vmap_members(phase: Callable[..., Any], *, shared: int = 0) -> Callable[..., Any]:
    """Vectorise `phase(system, ...)` over members: arguments and results are `[P, ...]`.

    The last `shared` arguments are the same for all members.
    """

    def mapped(system: System, *args: PyTree) -> PyTree:
        own = len(args) - shared
        if (num := jax.tree.leaves(args)[0].shape[0]) > 1:
            axes = (0,) * own + (None,) * shared
            with packing.of_members(num):
                return jax.vmap(partial(phase, system), axes)(*args)
        one = jax.tree.map(lambda x: x[0], args[:own])
        return jax.tree.map(lambda x: x[None], phase(system, *one, *args[own:]))

    return mapped


def vmap_batches(
    phase: Callable[..., Any], system: System
) -> Callable[..., tuple[LearnerState, PyTree]]:
    """Vectorise `phase(system, state, *own)` over update batches.

    Acting states and `own` are `[U, ...]`. The second result must be equal in all update batches.
    """
    layout = LearnerState(agent=None, acting=0)  # type: ignore[arg-type]

    def mapped(state: LearnerState, *own: PyTree) -> tuple[LearnerState, PyTree]:
        axes = layout, *(0 for _ in own)
        over = jax.vmap(partial(phase, system), axes, (layout, 0), axis_name=BATCH_AXIS)
        state, rest = over(state, *own)
        # Of packed scans vmap cannot see that some results are equal: take the first of them
        return state, jax.tree.map(lambda x: x[0], rest)

    def alone(state: LearnerState, *own: PyTree) -> tuple[LearnerState, PyTree]:
        acting, own = jax.tree.map(lambda x: x[0], (state.acting, own))
        state, rest = phase(system, dataclasses.replace(state, acting=acting), *own)
        acting = jax.tree.map(lambda x: x[None], state.acting)
        return dataclasses.replace(state, acting=acting), rest

    return mapped if BATCH_AXIS in system.axes else alone


def over_batches(function: Callable[..., PyTree], system: System, *own: PyTree) -> PyTree:
    """Map `function(*own)`, which needs no agent, over update batches `[U, ...]`."""
    if BATCH_AXIS in system.axes:
        return jax.vmap(function)(*own)
    return jax.tree.map(lambda x: x[None], function(*jax.tree.map(lambda x: x[0], own)))
