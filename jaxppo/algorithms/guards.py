"""Optional guards: skip gradient steps that are not finite, end an update's epochs early.

The first wraps the gradient step, the second the scan over epochs, so that both can be read on
their own. Both are off by default.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.algorithms.memory import keep_batch
from jaxppo.ops import statistics
from jaxppo.ops.collectives import any_over
from jaxppo.ops.statistics import num_nonfinite
from jaxppo.types import AgentState, Batch, PyTree, RunningStatistics, System, pytree

Step = Callable[..., Any]  # (batch, agent, indices `[M]`) -> the agent, and its metrics


@pytree
class Outcome:
    """The metrics of one minibatch, and what happened to it: bool scalars."""

    metrics: Any  # StepMetrics
    counted: jax.Array  # they enter the averages: not skipped, and the epochs had not ended
    learnt: jax.Array  # the parameters moved
    skipped: jax.Array  # with `skip_nonfinite`: its loss or gradient was not finite


def outcome(found: Any) -> Outcome:
    """Return the outcome of a step, which is a plain one if it returned only its metrics."""
    if isinstance(found, Outcome):
        return found
    yes = jnp.ones(found.total_loss.shape, bool)
    return Outcome(metrics=found, counted=yes, learnt=yes, skipped=~yes)


def unless_nonfinite(step: Step, nothing: Any) -> Step:
    """Decorate a step: if its loss or gradient is not finite, the agent stays as it was.

    The metrics of such a step are `nothing`.
    """

    def guarded(batch: Batch, agent: AgentState, indices: jax.Array) -> tuple[AgentState, Outcome]:
        moved, metrics = step(batch, agent, indices)
        finite = num_nonfinite((metrics.total_loss, metrics.norms)) == 0
        metrics = jax.tree.map(partial(jnp.where, finite), metrics, nothing)
        found = Outcome(metrics=metrics, counted=finite, learnt=finite, skipped=~finite)
        return _replace_learnt(moved, agent, ~finite), found

    return guarded


def until_stopped(system: System, scan: Callable[..., Any], nothing: Any) -> Callable[..., Any]:
    """Decorate `scan(step, refresh, agent)`: the epochs end where the algorithm says so.

    The minibatch that ends them is evaluated but not learnt from. While other members continue,
    results of a member that has ended are discarded; metrics of minibatches after it are `nothing`.
    """

    def stopping_scan(step: Step, refresh: Callable[..., Batch], agent: AgentState) -> Any:
        begun = agent, jnp.zeros((), bool)
        if refresh is not keep_batch:
            refresh = partial(_refresh_or_keep, refresh)
        (agent, _), found = scan(partial(_step_or_skip, system, step, nothing), refresh, begun)
        return agent, found

    return stopping_scan


def _step_or_skip(
    system: System,
    step: Step,
    nothing: Any,
    batch: Batch,
    progress: tuple[AgentState, jax.Array],
    indices: jax.Array,
) -> Any:
    """Take a step, unless the epochs of all members have ended.

    `progress` is the agent and whether its epochs have ended.
    """

    def look(agent: AgentState) -> Any:
        moved, found = step(batch, agent, indices)
        return _stop(system, agent, stopped, moved, outcome(found), nothing)

    def skip(agent: AgentState) -> Any:
        no = jnp.zeros((), bool)
        return (agent, ~no), Outcome(metrics=nothing, counted=no, learnt=no, skipped=no)

    agent, stopped = progress
    return jax.lax.cond(all_stopped(stopped), skip, look, agent)


def _refresh_or_keep(
    refresh: Callable[..., Batch], progress: tuple[AgentState, jax.Array], batch: Batch
) -> Batch:
    """Make the batch of an epoch, unless the epochs of all members have ended."""
    agent, stopped = progress
    return jax.lax.cond(all_stopped(stopped), lambda: batch, partial(refresh, agent, batch))


def _stop(
    system: System,
    agent: AgentState,
    stopped: jax.Array,
    moved: AgentState,
    found: Outcome,
    nothing: Any,
) -> tuple[tuple[AgentState, jax.Array], Outcome]:
    """Return the agent, whether its epochs have ended, and the outcome of a step to `moved`."""
    stop = stopped | system.algorithm.stop(agent, found.metrics.loss)
    chosen = _replace_learnt(agent, moved, ~stop)
    # The minibatch that ends the epochs adapts the learning rates too: its KL is a large one
    adapted = jax.tree.map(
        partial(jnp.where, stopped), agent.algorithm_state, moved.algorithm_state
    )
    return (dataclasses.replace(chosen, algorithm_state=adapted), stop), Outcome(
        metrics=jax.tree.map(partial(jnp.where, stopped), nothing, found.metrics),
        counted=~stopped & found.counted,
        learnt=~stop & found.learnt,
        skipped=~stopped & found.skipped,
    )


def all_stopped(stopped: jax.Array) -> jax.Array:
    """Return whether the epochs of all members have ended."""
    return ~any_over((), ~stopped)


def merge_statistics(
    system: System, before: RunningStatistics, batch: PyTree, decay: jax.Array | float = 1.0
) -> RunningStatistics:
    """Merge a batch into statistics over `system.axes`; with `skip_nonfinite`, if all is finite."""
    merged = statistics.merge_statistics(before, batch, system.axes, decay)
    if not system.skip_nonfinite:
        return merged
    return jax.tree.map(partial(jnp.where, num_nonfinite(merged) == 0), merged, before)


def _replace_learnt(agent: AgentState, other: AgentState, when: jax.Array) -> AgentState:
    """Return `agent`; where `when` holds, with parameters and learning state of `other`."""
    pick = partial(jax.tree.map, partial(jnp.where, when))
    params = pick(other.policy.params, agent.policy.params)
    return dataclasses.replace(
        agent,
        policy=dataclasses.replace(agent.policy, params=params),
        opt_state=pick(other.opt_state, agent.opt_state),
        algorithm_state=pick(other.algorithm_state, agent.algorithm_state),
    )
