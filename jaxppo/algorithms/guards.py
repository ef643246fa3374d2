"""Optional guards: skip gradient steps that are not finite, end an update's epochs early.

The first wraps the gradient step, the others the scan over epochs, so that each can be read on its
own. All are off by default.
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


@pytree
class Settling:
    """The losses of an update's epochs so far."""

    total: jax.Array  # sum over this epoch's minibatches that count
    counted: jax.Array  # how many those are
    seen: jax.Array  # int32, minibatches of this epoch
    before: jax.Array  # mean of the last epoch; NaN: none yet
    settled: jax.Array  # bool, the epochs have ended


def until_settled(
    system: System, scan: Callable[..., Any], nothing: Any, least: jax.Array
) -> Callable[..., Any]:
    """Decorate `scan(step, refresh, carry)`: the epochs end once the loss hardly changes.

    That is when the mean losses of two epochs, one after the other, differ by less than `least`.
    """

    def one(step: Step, batch: Batch, progress: tuple[Any, Settling], indices: jax.Array) -> Any:
        carry, losses = progress
        losses = _turned(losses, losses.seen == system.num_minibatches, least)

        def learn(carry: Any) -> Any:
            moved, found = step(batch, carry, indices)
            return jax.tree.map(partial(jnp.where, losses.settled), carry, moved), outcome(found)

        def skip(carry: Any) -> Any:
            no = jnp.zeros((), bool)
            return carry, Outcome(metrics=nothing, counted=no, learnt=no, skipped=no)

        carry, found = jax.lax.cond(all_stopped(losses.settled), skip, learn, carry)
        counted = found.counted & ~losses.settled
        losses = dataclasses.replace(
            losses,
            total=losses.total + jnp.where(counted, found.metrics.total_loss, 0.0),
            counted=losses.counted + counted,
            seen=losses.seen + 1,
        )
        found = Outcome(
            metrics=jax.tree.map(partial(jnp.where, losses.settled), nothing, found.metrics),
            counted=counted,
            learnt=found.learnt & ~losses.settled,
            skipped=found.skipped & ~losses.settled,
        )
        return (carry, losses), found

    def settling_scan(step: Step, refresh: Callable[..., Batch], carry: Any) -> Any:
        zero, no = jnp.zeros(()), jnp.zeros((), bool)
        begun = Settling(
            total=zero, counted=zero, seen=jnp.int32(0), before=jnp.float32(jnp.nan), settled=no
        )
        if refresh is not keep_batch:
            inner = refresh
            refresh = lambda progress, batch: inner(progress[0], batch)  # noqa: E731
        (carry, _), found = scan(partial(one, step), refresh, (carry, begun))
        return carry, found

    return settling_scan


def _turned(losses: Settling, over: jax.Array, least: jax.Array) -> Settling:
    """Return the losses at the start of a minibatch; `over`: the epoch before it has ended."""
    mean = losses.total / losses.counted  # NaN if none counted
    return Settling(
        total=jnp.where(over, 0.0, losses.total),
        counted=jnp.where(over, 0.0, losses.counted),
        seen=jnp.where(over, 0, losses.seen),
        before=jnp.where(over, mean, losses.before),
        settled=losses.settled | (over & (jnp.abs(mean - losses.before) < least)),
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
