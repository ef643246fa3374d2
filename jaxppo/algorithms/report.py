"""The metrics of an update, assembled from what its phases return."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxppo.algorithms import memory
from jaxppo.algorithms.guards import outcome
from jaxppo.algorithms.metrics import (
    GREATEST,
    LAST,
    MEAN,
    SUM,
    NoMetrics,
    combine,
    identity,
    metric,
    metrics,
    over_axes,
    over_first,
)
from jaxppo.algorithms.optimizers import greatest_second_moment, learning_rate
from jaxppo.ops.statistics import num_nonfinite
from jaxppo.types import AgentState, Batch, LearnerState, PyTree, Rollout, System, pytree


@metrics
class StepMetrics:
    """Metrics of gradient steps."""

    total_loss: jax.Array = metric()
    loss: Any  # the algorithm's loss_metrics
    norms: dict[str, jax.Array]  # of each optimiser group's gradient


@metrics
class Details:
    """What `logger.details` adds to the metrics of an update."""

    second_moment_max: jax.Array = metric(GREATEST)  # of Adam and its kin; 0 if there is none
    own: Any  # the algorithm's detail_metrics


@metrics
class LearnMetrics:
    """Metrics of `learn`."""

    gradient_steps: jax.Array = metric(count=True)  # fewer where the epochs ended early
    skipped_steps: jax.Array = metric(count=True)  # gradient steps that were not finite
    # whose gradient steps all were not finite: steps, targets and finish average over the others
    skipped_updates: jax.Array = metric(SUM, count=True)
    nonfinite_loss: jax.Array = metric(SUM, count=True)
    parameter_norm: jax.Array = metric()  # global, afterwards
    learning_rate: jax.Array = metric()  # of the first optimiser group
    scheduled: dict[str, jax.Array]  # hyperparameters that follow a schedule
    steps: StepMetrics  # averaged over the gradient steps
    targets: Any  # the algorithm's target_metrics
    finish: Any  # the algorithm's finish_metrics
    details: Any  # Details, with logger.details


@metrics
class RolloutMetrics:
    """Metrics of one rollout."""

    num_episodes: jax.Array = metric(SUM, count=True)  # that ended
    episode_return: jax.Array = metric(SUM)  # of those
    episode_length: jax.Array = metric(SUM)
    nonfinite_reward: jax.Array = metric(SUM, count=True)
    nonfinite_observation: jax.Array = metric(SUM, count=True)
    empty_mask: jax.Array = metric(SUM, count=True)  # observations whose mask allowed no action
    reused_starts: dict[str, jax.Array]  # of a pool, in an update
    metrics: dict[str, jax.Array]  # of env.metrics: sums over the ended episodes that told them
    told: dict[str, jax.Array]  # how many these are; a ratio of means is that of the sums


@metrics
class Metrics:
    """Metrics of one update; `train_block` sums them over updates."""

    nonfinite_parameter: jax.Array = metric(LAST, count=True)  # counted at the end of a block
    rollout: RolloutMetrics
    learn: LearnMetrics


@pytree
class Learnt:
    """What the phases of `learn` return."""

    agent: AgentState  # after the epochs, with the hyperparameters of this update
    targets: Any  # the algorithm's target_metrics
    steps: Any  # StepMetrics or guards.Outcome, [epochs, num_minibatches]
    finish: Any  # the algorithm's finish_metrics
    batch: Batch  # that the epochs learnt from


def report(system: System, rollout: Rollout, learnt: Learnt) -> Metrics:
    """Return the metrics of an update, the same for all `system.axes`."""
    return Metrics(
        nonfinite_parameter=jnp.zeros((), jnp.int32),
        rollout=over_axes(system.axes, of_rollout(system, rollout)),
        learn=of_learning(system, learnt),
    )


def of_rollout(system: System, rollout: Rollout) -> RolloutMetrics:
    """Return the metrics of a rollout on this device and update batch."""
    ended, steps = rollout.ended, rollout.steps
    empty = system.algorithm.network.empty_masks(steps.obs)
    if steps.alive is not None:
        empty &= steps.alive
    return RolloutMetrics(
        num_episodes=ended.count,
        episode_return=ended.episode_return,
        episode_length=ended.episode_length.astype(jnp.float32),
        nonfinite_reward=num_nonfinite(steps.reward),
        nonfinite_observation=num_nonfinite(steps.obs),
        empty_mask=jnp.sum(empty, dtype=jnp.int32),
        reused_starts=rollout.reused_starts,
        metrics=ended.metrics,
        told=ended.told,
    )


def of_learning(system: System, learnt: Learnt) -> LearnMetrics:
    """Return the metrics of `learn`."""
    steps = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), outcome(learnt.steps))
    means = over_first(steps.metrics, steps.counted)
    if not reads_metrics(system):
        means = dataclasses.replace(means, loss=over_axes(system.axes, means.loss))
    targets, finish = learnt.targets, learnt.finish
    if system.skip_nonfinite:
        counts = jnp.any(steps.counted)
        targets, finish = (unless_skipped(counts, found) for found in (targets, finish))
    agent, hp = learnt.agent, learnt.agent.hyperparameters
    rate = next(iter(system.algorithm.rates(agent).values()))
    return LearnMetrics(
        gradient_steps=jnp.sum(steps.learnt, dtype=jnp.int32),
        skipped_steps=jnp.sum(steps.skipped, dtype=jnp.int32),
        skipped_updates=jnp.asarray(~jnp.any(steps.counted), jnp.int32),
        nonfinite_loss=num_nonfinite((means.total_loss, means.norms)),
        parameter_norm=jnp.linalg.norm(_floats(agent.policy.params)),
        learning_rate=learning_rate(hp, rate, agent.update),
        scheduled=scheduled_metrics(system, partial(getattr, hp)),
        steps=means,
        targets=targets,
        finish=finish,
        details=details_of(system, agent, learnt.batch),
    )


def unless_skipped(counts: jax.Array, found: Any) -> Any:
    """Return metrics whose means are 0 if the update was skipped: a NaN would spoil their sum."""
    return combine(lambda how, x: jnp.where(counts, x, 0.0) if how == MEAN else x, found)


def details_of(system: System, agent: AgentState, batch: Batch) -> Any:
    """Return the details of an update from the agent after its epochs and their batch `[L, S]`.

    Without `logger.details` nothing of it is computed, and what is learnt does not depend on it.
    """
    if not system.details:
        return NoMetrics()
    # Without this, the compiler could fuse these sums with those of learning, in another order
    params, batch = jax.lax.optimization_barrier((agent.policy.params, batch))
    agent = dataclasses.replace(agent, policy=dataclasses.replace(agent.policy, params=params))
    if system.burn_in:
        batch = memory.burn_in(system, agent, batch)
    own = over_axes(system.axes, system.algorithm.details(system, agent, batch))
    return Details(second_moment_max=greatest_second_moment(agent.opt_state), own=own)


def reads_metrics(system: System) -> bool:
    """Return whether gradient steps depend on their metrics, which are then averaged at each."""
    return system.stop_early or system.algorithm.adapts


def zero_metrics(system: System) -> Metrics:
    """Return the metrics of no update."""
    algorithm = system.algorithm
    learn = identity(
        LearnMetrics,
        scheduled=scheduled_metrics(system, lambda _: jnp.zeros(())),
        steps=no_step(system),
        targets=identity(algorithm.target_metrics),
        finish=identity(algorithm.finish_metrics),
        details=(
            identity(Details, own=identity(algorithm.detail_metrics))
            if system.details
            else NoMetrics()
        ),
    )
    reused = {} if system.env.pool_size == 0 else {"reused_starts": jnp.zeros(())}
    none = dict.fromkeys(system.metrics, jnp.zeros(()))
    rollout = identity(RolloutMetrics, reused_starts=reused, metrics=none, told=none)
    return identity(Metrics, rollout=rollout, learn=learn)


def no_step(system: System) -> StepMetrics:
    """Return the metrics of no gradient step."""
    ends = ("gradient_norm", "gradient_norm_clipped")
    norms = {
        f"{name}_{end}": jnp.zeros(()) for end in ends for name in system.algorithm.group_names
    }
    loss = identity(system.algorithm.loss_metrics)
    return identity(StepMetrics, loss=loss, norms=norms)


def scheduled_metrics(system: System, value: Callable[[str], jax.Array]) -> dict[str, jax.Array]:
    """Return the value of each hyperparameter that follows a schedule, by its name in the log."""
    return {f"scheduled_{name}": value(name) for name, _ in system.schedules}


def count_nonfinite(state: LearnerState, total: Metrics) -> Metrics:
    """Return the metrics with the number of the state's parameters that are not finite."""
    count = num_nonfinite(_floats(state.agent.policy))
    return dataclasses.replace(total, nonfinite_parameter=count)


def _floats(tree: PyTree) -> jax.Array:
    """Return all floats of a tree as one vector `[n]`, which fewer kernels read."""
    leaves = jax.tree.leaves(tree)
    return ravel_pytree([x for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)])[0]
