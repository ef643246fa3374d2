"""Optional guards around a gradient step: skip non-finite steps, end epochs early.

They wrap the step, so that the plain step can be read on its own. Both are off by default.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.ops.collectives import any_over
from jaxppo.types import AgentState, PyTree, System, pytree

# (agent, indices of a minibatch) -> the agent after a gradient step, and its StepMetrics
Step = Callable[[AgentState, jax.Array], tuple[AgentState, Any]]


@pytree
class Outcome:
    """What happened to one minibatch; all are bool scalars."""

    counted: jax.Array  # its metrics enter the averages: not skipped, and the epochs had not ended
    learnt: jax.Array  # the parameters moved
    skipped: jax.Array  # with `skip_nonfinite`: its loss or gradient was not finite


def guarded(
    system: System,
    step: Step,
    nothing: Any,
    progress: tuple[AgentState, jax.Array],
    indices: jax.Array,
) -> tuple[tuple[AgentState, jax.Array], tuple[Any, Outcome]]:
    """Run `step` unless the epochs have ended; `nothing` are the metrics of a skipped step.

    `progress` is the agent and whether its epochs have ended. The minibatch that ends them is
    evaluated but not learnt from. While other members continue, results of a member that has ended
    are discarded.
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
        chosen = _replace_learnt(agent, moved, ~stop)
        # The minibatch that ends the epochs adapts the learning rates too: its KL is a large one
        adapted = jax.tree.map(partial(jnp.where, stopped), agent.algorithm, moved.algorithm)
        return dataclasses.replace(chosen, algorithm=adapted), stop, metrics, finite

    def skip(agent: AgentState) -> tuple[AgentState, jax.Array, Any, jax.Array]:
        return agent, jnp.ones((), bool), nothing, jnp.ones((), bool)

    moved, stop, metrics, finite = jax.lax.cond(all_stopped(stopped), skip, look, agent)
    outcome = Outcome(counted=~stopped & finite, learnt=~stop & finite, skipped=~stopped & ~finite)
    return (moved, stop), (metrics, outcome)


def finite_step(
    system: System, step: Step, nothing: Any, agent: AgentState, indices: jax.Array
) -> tuple[AgentState, Any, jax.Array]:
    """Run a gradient step; return also whether it was taken.

    With `skip_nonfinite`, a step whose loss or gradient is not finite leaves the agent unchanged
    and returns the metrics `nothing`.
    """
    moved, metrics = step(agent, indices)
    if not system.skip_nonfinite:
        return moved, metrics, jnp.ones((), bool)
    finite = num_nonfinite((metrics.total_loss, metrics.norms)) == 0
    agent = _replace_learnt(moved, agent, ~finite)
    return agent, jax.tree.map(partial(jnp.where, finite), metrics, nothing), finite


def all_stopped(stopped: jax.Array) -> jax.Array:
    """Return whether the epochs of all members have ended."""
    return ~any_over((), ~stopped)


def unless_nonfinite(system: System, new: PyTree, old: PyTree) -> PyTree:
    """Return `new`, or `old` if `skip_nonfinite` is set and `new` is not all finite."""
    if not system.skip_nonfinite:
        return new
    return jax.tree.map(partial(jnp.where, num_nonfinite(new) == 0), new, old)


def num_nonfinite(tree: PyTree) -> jax.Array:
    """Count the numbers of a tree that are NaN or infinite, int32."""
    counts = [
        jnp.sum(~jnp.isfinite(x), dtype=jnp.int32)
        for x in jax.tree.leaves(tree)
        if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    return sum(counts, jnp.zeros((), jnp.int32))


def _replace_learnt(agent: AgentState, other: AgentState, when: jax.Array) -> AgentState:
    """Return `agent`; where `when` holds, with parameters and learning state of `other`."""
    pick = partial(jax.tree.map, partial(jnp.where, when))
    params = pick(other.policy.params, agent.policy.params)
    return dataclasses.replace(
        agent,
        policy=dataclasses.replace(agent.policy, params=params),
        opt_state=pick(other.opt_state, agent.opt_state),
        algorithm=pick(other.algorithm, agent.algorithm),
    )
