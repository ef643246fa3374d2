"""The data of PPO: its state, what it keeps of a rollout, its metrics."""

import operator
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.algorithms.acting import unroll
from jaxppo.algorithms.metrics import GREATEST, LEAST, SUM, metric, metrics
from jaxppo.algorithms.ppo_settings import PPONumbers
from jaxppo.ops.actions import largest_logit
from jaxppo.ops.histograms import NUM_BINS, counts
from jaxppo.ops.losses import ratio
from jaxppo.ops.statistics import standardize
from jaxppo.types import Agent, Batch, PyTree, RunningStatistics, System, pytree


@pytree
class State:
    """State of PPO that persists over updates."""

    value_statistics: RunningStatistics  # of value targets, a scalar
    kl_factor: jax.Array  # factor on kl_coef, adapted with adapt_kl_coef; 1 at first
    rate_factor: PyTree  # factor on learning rates with adapt_learning_rates, 1 at first; else ()


@pytree
class Extras:
    """What the loss needs of the network's output when acting, `[T, B]`."""

    log_prob: jax.Array  # of the action
    distribution: PyTree  # where the objective reads it; else ()
    raw_value: jax.Array | None  # of the critic; None: computed for the whole rollout at once


@pytree
class Steps:
    """The data that the loss needs for each step, `[L, S, ...]`."""

    obs: PyTree  # [L, S, O...] raw
    reset: jax.Array  # [L, S] bool
    action: PyTree  # [L, S, A...] raw
    log_prob: jax.Array  # [L, S] under the acting policy
    distribution: PyTree  # [L, S] the acting policy's own, where the objective reads it; else ()
    value: jax.Array  # [L, S] before the epochs, in units of reward
    raw_value: jax.Array  # [L, S] raw critic output, in the value normalisation of the rollout
    advantage: jax.Array  # [L, S] standardised over the batch when the system says so
    target: jax.Array  # [L, S] value target, in units of reward
    # [L, S] how much each step counts, see `statistics.shares`; None: all the same
    weight: jax.Array | None = None


PPOAgent = Agent[PPONumbers, State]


@metrics
class LossMetrics:
    """Of a gradient step."""

    actor_loss: jax.Array = metric()
    entropy: jax.Array = metric(headline="entropy {:.3f}")  # nats
    approximate_kl: jax.Array = metric(headline="kl {:.4f}")  # KL(old || new), estimator k3
    value_loss: jax.Array = metric(headline="value loss {:.3g}")
    clip_fraction: jax.Array = metric()
    ratio_min: jax.Array = metric(LEAST)  # pi / pi_old
    ratio_max: jax.Array = metric(GREATEST)


@metrics
class TargetMetrics:
    """Of a rollout."""

    advantage_std: jax.Array = metric()  # before any standardisation


@metrics
class FinishMetrics:
    """Of an update."""

    explained_variance: jax.Array = metric()  # of value targets by the acting critic
    kl_coef: jax.Array = metric()


@metrics
class DetailMetrics:
    """Of an update, with logger.details; values and targets are in units of reward."""

    value_mean: jax.Array = metric()  # of the acting critic
    value_change: jax.Array = metric()  # mean magnitude of its change in the epochs
    value_change_max: jax.Array = metric(GREATEST)
    target_mean: jax.Array = metric()  # of value targets
    target_std: jax.Array = metric()
    advantage_min: jax.Array = metric(LEAST)  # of the first epoch; standardised only over the batch
    advantage_max: jax.Array = metric(GREATEST)
    ratio_change: jax.Array = metric()  # mean |1 - pi / pi_old| after the epochs
    logit_max: jax.Array = metric(GREATEST)  # magnitude of a legal one; 0 without categories
    advantage_histogram: jax.Array = metric(SUM, count=True, num=NUM_BINS)
    value_histogram: jax.Array = metric(SUM, count=True, num=NUM_BINS)
    target_histogram: jax.Array = metric(SUM, count=True, num=NUM_BINS)


def details(ppo: Any, system: System, agent: PPOAgent, batch: Batch) -> DetailMetrics:
    """Return the details of an update from the agent after its epochs, by one more forward pass."""
    steps = batch.steps
    _, output = unroll(system, agent.policy, batch.carry, steps.obs, steps.reset)
    # Both values in the normalisation of now, which has moved since the rollout
    values = (ppo.denormalize(agent, x) for x in (output.value.mean(), steps.raw_value))
    change = jnp.abs(operator.sub(*values))
    log_prob = output.distribution.log_prob(steps.action)
    return DetailMetrics(
        value_mean=jnp.mean(steps.value),
        value_change=jnp.mean(change),
        value_change_max=jnp.max(change),
        target_mean=jnp.mean(steps.target),
        target_std=standardize(steps.target, system.axes)[1],
        advantage_min=jnp.min(steps.advantage),
        advantage_max=jnp.max(steps.advantage),
        ratio_change=jnp.mean(jnp.abs(1.0 - ratio(log_prob, steps.log_prob))),
        logit_max=largest_logit(output.distribution),
        advantage_histogram=counts(steps.advantage),
        value_histogram=counts(steps.value),
        target_histogram=counts(steps.target),
    )
