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


def no_outcome(nothing: Any) -> Outcome:
    """Return the outcome of a minibatch that was not evaluated; its metrics are `nothing`."""
    no = jnp.zeros((), bool)
    return Outcome(metrics=nothing, counted=no, learnt=no, skipped=no)


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
        refresh = _unless_over(refresh, lambda stopped: stopped)
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
        found = no_outcome(nothing)
        return (agent, ~found.counted), found

    agent, stopped = progress
    return jax.lax.cond(all_stopped(stopped), skip, look, agent)


def _unless_over(
    refresh: Callable[..., Batch], over: Callable[[Any], jax.Array]
) -> Callable[..., Batch]:
    """Decorate `refresh(agent, batch)`: keep the batch once the epochs of all members are over.

    The result takes the agent together with what tells `over` whether its epochs are.
    """

    def refresh_or_keep(progress: tuple[AgentState, Any], batch: Batch) -> Batch:
        agent, rest = progress
        return jax.lax.cond(all_stopped(over(rest)), lambda: batch, partial(refresh, agent, batch))

    return keep_batch if refresh is keep_batch else refresh_or_keep


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
    agent = dataclasses.replace(chosen, algorithm_state=adapted)
    return (agent, stop), _masked(found, nothing, stopped, stop)


def _masked(found: Outcome, nothing: Any, over: jax.Array, stays: jax.Array) -> Outcome:
    """Return the outcome of a step whose epochs may be `over`; where it `stays`, nothing moved."""
    return Outcome(
        metrics=jax.tree.map(partial(jnp.where, over), nothing, found.metrics),
        counted=~over & found.counted,
        learnt=~stays & found.learnt,
        skipped=~over & found.skipped,
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

    That is when the mean losses of two consecutive epochs differ by less than `least`.
    """

    def settling_scan(step: Step, refresh: Callable[..., Batch], carry: Any) -> Any:
        zero, none = jnp.zeros(()), jnp.float32(jnp.nan)
        losses = Settling(
            total=zero, counted=zero, seen=jnp.int32(0), before=none, settled=jnp.zeros((), bool)
        )
        refresh = _unless_over(refresh, lambda losses: losses.settled)
        count = partial(_count_loss, system, least)
        learn = partial(_step_unless_settled, count, step, nothing)
        (carry, _), found = scan(learn, refresh, (carry, losses))
        return carry, found

    return settling_scan


def _step_unless_settled(
    count: Callable[[Settling, Outcome], Settling],
    step: Step,
    nothing: Any,
    batch: Batch,
    progress: tuple[Any, Settling],
    indices: jax.Array,
) -> Any:
    """Take a step, unless the epochs of all members have ended, and count its loss."""
    carry, losses = progress
    settled = losses.settled

    def learn(carry: Any) -> Any:
        moved, found = step(batch, carry, indices)
        return jax.tree.map(partial(jnp.where, settled), carry, moved), outcome(found)

    carry, found = jax.lax.cond(
        all_stopped(settled), lambda carry: (carry, no_outcome(nothing)), learn, carry
    )
    found = _masked(found, nothing, settled, settled)
    return (carry, count(losses, found)), found


def _count_loss(system: System, least: jax.Array, losses: Settling, found: Outcome) -> Settling:
    """Return the losses after a minibatch, the last of which may end the epochs."""
    total = losses.total + jnp.where(found.counted, found.metrics.total_loss, 0.0)
    counted, seen = losses.counted + found.counted, losses.seen + 1
    mean, over = total / counted, seen == system.num_minibatches  # the mean is NaN if none counted
    return Settling(
        total=jnp.where(over, 0.0, total),
        counted=jnp.where(over, 0.0, counted),
        seen=jnp.where(over, 0, seen),
        before=jnp.where(over, mean, losses.before),
        settled=losses.settled | (over & (jnp.abs(mean - losses.before) < least)),
    )


def all_stopped(stopped: jax.Array) -> jax.Array:
    """Return whether the epochs of all members have ended."""
    return ~any_over((), ~stopped)


def merge_statistics(
    system: System,
    before: RunningStatistics,
    batch: PyTree,
    decay: jax.Array | float = 1.0,
    alive: jax.Array | None = None,
) -> RunningStatistics:
    """Merge a batch into statistics over `system.axes`; with `skip_nonfinite`, if all is finite.

    Where not `alive`, which has the batch's leading axes, nothing counts; None: all counts.
    """
    weights = statistics.as_weights(alive)
    merged = statistics.merge_statistics(before, batch, system.axes, decay, weights)
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
