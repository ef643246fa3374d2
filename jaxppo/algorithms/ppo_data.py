"""The data of PPO: its state, what it keeps of a rollout, its metrics."""

from typing import TYPE_CHECKING

import jax

from jaxppo.algorithms.hyperparameters import SystemHyperparameters
from jaxppo.algorithms.metrics import GREATEST, LEAST, metric, metrics
from jaxppo.types import Agent, PyTree, RunningStatistics, pytree

if TYPE_CHECKING:  # names and types alone, as in `hyperparameters`
    from jaxppo.algorithms.ppo_settings import PPONumbers
else:
    PPONumbers = object


class PPOHyperparameters(SystemHyperparameters, PPONumbers):
    """The traced settings of PPO in an agent: arrays."""


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


PPOAgent = Agent[PPOHyperparameters, State]
