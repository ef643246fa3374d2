"""Proximal policy optimisation: Schulman et al. 2017 (arXiv 1707.06347), algorithm 1.

In the order of the paper: acting, targets (advantages), loss (surrogate, value, entropy), and what
adapts to the KL. The settings are in `ppo_settings`.
"""

import dataclasses
import math
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp

from jaxppo.algorithms import adaptation, guards, memory
from jaxppo.algorithms.acting import next_values, state_values, unroll
from jaxppo.algorithms.actor_critic import ActorCritic
from jaxppo.algorithms.objectives import (
    ESTIMATORS,
    clipped_share,
    find_objective,
    find_value_loss,
    reads_distribution,
)
from jaxppo.algorithms.ppo_data import (
    DetailMetrics,
    Extras,
    FinishMetrics,
    LossMetrics,
    PPOAgent,
    State,
    Steps,
    TargetMetrics,
    details,
)
from jaxppo.algorithms.ppo_settings import PPOSettings, check_fit, settings_type
from jaxppo.config.schema import Config, SystemConfig
from jaxppo.kernels.reductions import means
from jaxppo.networks.actor_critic import ActorCriticOutput, shares_layers
from jaxppo.ops.losses import approximate_kl, explained_variance, ratio
from jaxppo.ops.statistics import (
    as_weights,
    denormalize_value,
    init_statistics,
    normalize_value,
    shares,
    standardize,
)
from jaxppo.types import (
    ActorOutput,
    Batch,
    Environment,
    Policy,
    PyTree,
    Rollout,
    System,
    ValueEstimate,
)


class PPO(ActorCritic):
    """PPO with a clipped, KL-penalised or discovered (DPO) objective."""

    Settings = PPOSettings
    loss_metrics, target_metrics, finish_metrics = LossMetrics, TargetMetrics, FinishMetrics
    detail_metrics, details = DetailMetrics, details
    group_names = ("actor", "critic")
    weighs, signs = True, True

    @classmethod
    def settings_type(cls, raw: dict[str, Any]) -> type[SystemConfig]:
        """Return `PPOSettings`, extended by the hyperparameters of a user's objective."""
        return settings_type(raw)

    @classmethod
    def build(cls, config: Config, env: Environment) -> Self:
        """Make the algorithm of a run; `ConfigError` if its settings do not fit the network."""
        algorithm = super().build(config, env)
        check_fit(config, algorithm.network)
        if config.arch.policy_lag:
            # An older policy than the one that learns has acted, so its values are not kept
            algorithm.keeps_values = False
        return algorithm

    def __init__(self, settings: PPOSettings, network: Any) -> None:
        super().__init__(settings, network)
        self.objective = find_objective(settings)
        self.value_error = find_value_loss(settings)
        self.stores_distribution = reads_distribution(settings.objective)
        self.adapts = settings.adapt_learning_rates
        self.stops_early = math.isfinite(settings.target_kl)
        # Where all layers but the heads are shared, values cost almost nothing when acting
        self.keeps_values = shares_layers(network) and not settings.recompute_targets

    def init_state(self) -> State:
        """Return statistics of no targets, and factors of one."""
        one = jnp.ones((), jnp.float32)
        return State(
            value_statistics=init_statistics(jnp.zeros(())),
            kl_factor=one,
            rate_factor=one if self.adapts else (),
        )

    def groups(self, params: PyTree) -> dict[str, str]:
        """Put the critic's own parts in `critic`, and all others, also shared ones, in `actor`."""
        return {part: "critic" if part.startswith("critic") else "actor" for part in params}

    def rates(self, agent: PPOAgent) -> dict[str, jax.Array]:
        """Return `actor_lr` and `critic_lr`, both times the factor of `adapt_learning_rates`."""
        hp = agent.hyperparameters
        rates = {"actor": jnp.asarray(hp.actor_lr), "critic": jnp.asarray(hp.critic_lr)}
        if not self.adapts:
            return rates
        factor = adaptation.bounded(hp, agent.algorithm_state.rate_factor)
        return {name: rate * factor for name, rate in rates.items()}

    def act(self, policy: Policy, output: ActorCriticOutput, key: jax.Array) -> ActorOutput:
        """Sample from the distribution; return `Extras` with the actions."""
        acted = super().act(policy, output, key)
        extras = Extras(
            log_prob=acted.extras,
            distribution=output.distribution if self.stores_distribution else (),
            raw_value=output.value.mean() if self.keeps_values else None,
        )
        return dataclasses.replace(acted, extras=extras)

    def targets(
        self, system: System, agent: PPOAgent, rollout: Rollout
    ) -> tuple[PPOAgent, Steps, TargetMetrics]:
        """Compute the advantages and value targets of a rollout."""
        hp, steps, extras = agent.hyperparameters, rollout.steps, rollout.steps.extras

        def value_of(output: ActorCriticOutput) -> jax.Array:
            return self.denormalize(agent, output.value.mean())

        if extras.raw_value is None:
            output, value, next_value = state_values(system, agent.policy, rollout, value_of)
            raw_value = output.value.mean()
            log_ratio = output.distribution.log_prob(steps.action) - extras.log_prob
        else:
            raw_value, value = extras.raw_value, self.denormalize(agent, extras.raw_value)
            next_value = next_values(system, agent.policy, rollout, value, value_of)
            log_ratio = jnp.zeros_like(extras.log_prob)
        with jax.named_scope("advantages"):
            advantage, target = ESTIMATORS[self.settings.advantages](
                hp, steps, log_ratio, value, next_value
            )
            weight = as_weights(steps.alive)
            standardized, deviation = standardize(advantage, system.axes, weights=weight)
            if self.settings.standardize_advantages == "batch":
                advantage = standardized
        found = Steps(
            obs=steps.obs,
            reset=steps.reset,
            action=steps.action,
            log_prob=extras.log_prob,
            distribution=extras.distribution,
            value=value,
            raw_value=raw_value,
            advantage=advantage,
            target=target,
            weight=weight,
        )
        agent = self.update_value_statistics(system, agent, target, steps.alive)
        return agent, found, TargetMetrics(advantage_std=deviation)

    def retarget(self, steps: Steps, again: Steps) -> Steps:
        """Replace advantages and value targets; the old policy's log-probabilities stay."""
        return dataclasses.replace(steps, advantage=again.advantage, target=again.target)

    def denormalize(self, agent: PPOAgent, raw_value: jax.Array) -> jax.Array:
        """Return the critic's raw output in units of reward."""
        if not self.settings.normalize_values:
            return raw_value
        return denormalize_value(agent.algorithm_state.value_statistics, raw_value)

    def update_value_statistics(
        self, system: System, agent: PPOAgent, target: jax.Array, alive: jax.Array | None
    ) -> PPOAgent:
        """Merge the rollout's value targets into the value statistics, before the epochs.

        So the critic is trained with the same statistics that later denormalise its output.
        """
        if not self.settings.normalize_values:
            return agent
        state, decay = agent.algorithm_state, agent.hyperparameters.value_norm_decay
        statistics = guards.merge_statistics(system, state.value_statistics, target, decay, alive)
        state = dataclasses.replace(state, value_statistics=statistics)
        return dataclasses.replace(agent, algorithm_state=state)

    def prepare(self, system: System, minibatch: Batch) -> Batch:
        """Standardise the advantages, with standardize_advantages=minibatch; share out weights."""
        steps = minibatch.steps
        steps = dataclasses.replace(steps, weight=shares(steps.weight, system.axes))
        if self.settings.standardize_advantages == "minibatch":
            advantage, _ = standardize(steps.advantage, system.axes, weights=steps.weight)
            steps = dataclasses.replace(steps, advantage=advantage)
        return dataclasses.replace(minibatch, steps=steps)

    def loss(
        self, system: System, agent: PPOAgent, params: PyTree, minibatch: Batch
    ) -> tuple[jax.Array, LossMetrics]:
        """Return actor + vf_coef * value - ent_coef * entropy, a (weighted) mean over `[L, M]`."""
        hp, steps = agent.hyperparameters, minibatch.steps
        policy = dataclasses.replace(agent.policy, params=params)
        _, output = unroll(system, policy, minibatch.carry, steps.obs, steps.reset)
        distribution = output.distribution
        log_prob = distribution.log_prob(steps.action)
        actor_loss, value_loss, entropy, kl, clipped = means(
            self.objective(agent, steps, distribution, log_prob),
            self.value_loss(agent, steps, output.value),
            distribution.entropy(),
            approximate_kl(log_prob, steps.log_prob),
            clipped_share(self.settings.objective, agent, steps, distribution, log_prob),
            weights=steps.weight,
        )
        total = actor_loss + hp.vf_coef * value_loss - hp.ent_coef * entropy
        ratios = ratio(log_prob, steps.log_prob)
        if steps.weight is not None:
            ratios = jnp.where(steps.weight > 0, ratios, 1.0)
        return total, LossMetrics(
            actor_loss=actor_loss,
            value_loss=value_loss,
            entropy=entropy,
            approximate_kl=kl,
            clip_fraction=clipped,
            ratio_min=jnp.min(ratios),
            ratio_max=jnp.max(ratios),
        )

    def value_loss(self, agent: PPOAgent, steps: Steps, value: ValueEstimate) -> jax.Array:
        """Return the loss of value estimates `[L, M]`, in the value normalisation."""
        hp, target = agent.hyperparameters, steps.target
        if self.settings.normalize_values:
            target = normalize_value(agent.algorithm_state.value_statistics, target)
        return value.loss(target, partial(self.value_error, hp, steps.raw_value))

    def stop(self, agent: PPOAgent, metrics: LossMetrics) -> jax.Array:
        """Return whether the KL of a minibatch is above `target_kl`."""
        return metrics.approximate_kl > agent.hyperparameters.target_kl

    def adapt(self, agent: PPOAgent, metrics: LossMetrics) -> PPOAgent:
        """Adapt the learning rates to the KL of a minibatch, see `adaptation.rate_factor`."""
        hp, state = agent.hyperparameters, agent.algorithm_state
        ends = self.stop(agent, metrics) if self.stops_early else False
        factor = adaptation.rate_factor(hp, state.rate_factor, metrics.approximate_kl, ends)
        return dataclasses.replace(
            agent, algorithm_state=dataclasses.replace(state, rate_factor=factor)
        )

    def finish(
        self, system: System, agent: PPOAgent, batch: Batch
    ) -> tuple[PPOAgent, FinishMetrics]:
        """Adapt the weight of the KL penalty, with `adapt_kl_coef`."""
        steps, state = batch.steps, agent.algorithm_state
        explained = explained_variance(steps.value, steps.target, system.axes, steps.weight)
        if self.settings.adapt_kl_coef:
            if system.burn_in:
                batch = memory.burn_in(system, agent, batch)
            factor = adaptation.kl_factor(system, agent, batch)
            state = dataclasses.replace(state, kl_factor=factor)
            agent = dataclasses.replace(agent, algorithm_state=state)
        kl_coef = agent.hyperparameters.kl_coef * state.kl_factor
        return agent, FinishMetrics(explained_variance=explained, kl_coef=kl_coef)
