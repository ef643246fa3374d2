"""Guards around the plain gradient step: skipping what is not finite, ending epochs early.

Each wraps a step from outside, so that the plain one can be read whole, and is off by default.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.ops.collectives import any_over
from jaxppo.types import AgentState, PyTree, System

# (agent, indices of a minibatch) -> the agent after a gradient step, and its StepMetrics
Step = Callable[[AgentState, jax.Array], tuple[AgentState, Any]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one minibatch, all bool scalars."""

    counted: jax.Array  # its metrics are finite, and no earlier one ended the epochs
    learnt: jax.Array  # the parameters moved
    skipped: jax.Array  # its loss or gradient was not finite


def guarded(
    system: System,
    step: Step,
    nothing: Any,
    progress: tuple[AgentState, jax.Array],
    indices: jax.Array,
) -> tuple[tuple[AgentState, jax.Array], tuple[Any, Outcome]]:
    """`step`, unless the epochs have ended; `nothing` are the metrics of no step.

    `progress` is the agent and whether its epochs have ended. The minibatch that ends them is
    looked at but not learnt from. While other members go on, what is computed for a member that has
    ended is dropped.
    """
    if not system.stop_early:
        agent, metrics, finite = finite_step(system, step, nothing, progress[0], indices)
        outcome = Outcome(counted=finite, learnt=finite, skipped=~finite)
        return (agent, progress[1]), (metrics, outcome)

    agent, stopped = progress

    def look(agent: AgentState) -> tuple[AgentState, jax.Array, Any, jax.Array]:
        moved, metrics, finite = finite_step(system, step, nothing, agent, indices)
        stop = stopped | system.algorithm.stop(agent, metrics.loss)
        metrics = jax.tree.map(partial(jnp.where, stopped), nothing, metrics)
        return _choose(stop, agent, moved), stop, metrics, finite

    def skip(agent: AgentState) -> tuple[AgentState, jax.Array, Any, jax.Array]:
        return agent, jnp.ones((), bool), nothing, jnp.ones((), bool)

    moved, stop, metrics, finite = jax.lax.cond(all_stopped(system, stopped), skip, look, agent)
    outcome = Outcome(counted=~stopped & finite, learnt=~stop & finite, skipped=~stopped & ~finite)
    return (moved, stop), (metrics, outcome)


def finite_step(
    system: System, step: Step, nothing: Any, agent: AgentState, indices: jax.Array
) -> tuple[AgentState, Any, jax.Array]:
    """A gradient step and whether it was taken.

    Where the system skips such, a step whose loss or gradient is not finite leaves the agent as it
    was and its metrics are `nothing`.
    """
    moved, metrics = step(agent, indices)
    if not system.skip_nonfinite:
        return moved, metrics, jnp.ones((), bool)
    finite = num_nonfinite((metrics.total_loss, metrics.norms)) == 0
    agent = _choose(finite, moved, agent)
    return agent, jax.tree.map(partial(jnp.where, finite), metrics, nothing), finite


def all_stopped(system: System, stopped: jax.Array) -> jax.Array:
    """Whether the epochs of all members have ended."""
    return ~any_over(system.member_axes, ~stopped)


def unless_nonfinite(system: System, new: PyTree, old: PyTree) -> PyTree:
    """`new`, or `old` where a number of `new` is not finite and the system skips such."""
    if not system.skip_nonfinite:
        return new
    return jax.tree.map(partial(jnp.where, num_nonfinite(new) == 0), new, old)


def num_nonfinite(tree: PyTree) -> jax.Array:
    """How many numbers of a tree are NaN or infinite, int32."""
    counts = [
        jnp.sum(~jnp.isfinite(x), dtype=jnp.int32)
        for x in jax.tree.leaves(tree)
        if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    return sum(counts, jnp.zeros((), jnp.int32))


def _choose(condition: jax.Array, one: AgentState, other: AgentState) -> AgentState:
    """`one` with the learnt parts of `other` where the condition does not hold."""
    pick = partial(jax.tree.map, partial(jnp.where, condition))
    params = pick(one.policy.params, other.policy.params)
    return dataclasses.replace(
        one,
        policy=dataclasses.replace(one.policy, params=params),
        opt_state=pick(one.opt_state, other.opt_state),
    )
