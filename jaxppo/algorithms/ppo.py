"""Proximal policy optimisation: Schulman et al. 2017 (arXiv 1707.06347), algorithm 1.

In the order of the paper: settings, targets (advantages), loss (surrogate, value, entropy), and the
adaptation of the KL penalty after the epochs.
"""

import dataclasses
import math
from functools import lru_cache, partial
from typing import Any, Self

import jax
import jax.numpy as jnp

from jaxppo.algorithms import memory
from jaxppo.algorithms.acting import next_values, state_values, unroll
from jaxppo.algorithms.actor_critic import ActorCritic
from jaxppo.algorithms.guards import unless_nonfinite
from jaxppo.algorithms.metrics import GREATEST, LEAST, metric, metrics
from jaxppo.algorithms.objectives import (
    ESTIMATORS,
    OBJECTIVES,
    VALUE_LOSSES,
    find_objective,
    own_hyperparameters,
    reads_distribution,
    try_objective,
)
from jaxppo.config.fields import (
    ConfigError,
    is_import_path,
    numbers,
    other_default,
    setting,
    traced,
)
from jaxppo.config.schema import Config, SystemConfig
from jaxppo.kernels.reductions import means
from jaxppo.networks.actor_critic import ActorCriticOutput, shares_layers
from jaxppo.networks.building import LEAD
from jaxppo.ops.collectives import mean_over
from jaxppo.ops.losses import (
    approximate_kl,
    clip_fraction,
    clipped_error,
    explained_variance,
    ratio,
)
from jaxppo.ops.statistics import (
    denormalize_value,
    init_statistics,
    merge_statistics,
    normalize_value,
    standardize,
)
from jaxppo.ops.values import ScalarValue
from jaxppo.types import (
    Acted,
    AgentState,
    Batch,
    Environment,
    Hyperparameters,
    Policy,
    PyTree,
    Rollout,
    RunningStatistics,
    System,
    ValueEstimate,
    pytree,
    zeros,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOSettings(SystemConfig):
    """Settings of PPO."""

    normalize_rewards: bool = other_default(SystemConfig, "normalize_rewards", True)

    actor_lr: float = traced(
        1e-3,
        "learning rate of the actor's and the shared parameters",
        low=0,
        rate=True,
        tune=(1e-5, 1e-2),
    )
    critic_lr: float = traced(
        1e-3, "learning rate of the critic's parameters", low=0, rate=True, tune=(1e-5, 1e-2)
    )
    gae_lambda: float = traced(
        0.95,
        "lambda of GAE and V-trace: decay of the sum of TD errors",
        low=0,
        high=1,
        tune=(0.8, 0.99),
    )
    advantages: str = setting(
        "gae", "estimator of advantages and value targets: gae or vtrace", choices=("gae", "vtrace")
    )
    rho_clip: float = traced(
        1.0,
        "vtrace: truncation level rho-bar of the importance ratios that weight TD errors",
        above=0,
    )
    c_clip: float = traced(
        1.0,
        "vtrace: truncation level c-bar of the importance ratios that pass corrections on to "
        "earlier steps",
        above=0,
    )
    standardize_advantages: str = setting(
        "batch",
        "standardise advantages (mean 0, standard deviation 1) over the batch, over each "
        "minibatch, or none",
        choices=("batch", "minibatch", "none"),
    )
    objective: str = setting(
        "clip",
        "policy objective: clip, penalty (KL), dpo (Lu et al. 2022), reinforce (with epochs=1), or "
        "an import path",
        choices=tuple(OBJECTIVES),
        importable=True,
    )
    clip_eps: float = traced(
        0.2, "clip the probability ratio below 1 - clip_eps", above=0, tune=(0.05, 0.5)
    )
    clip_eps_high: float | None = traced(
        None,
        "clip the probability ratio above 1 + clip_eps_high; null: clip_eps",
        above=0,
        follows="clip_eps",
        coupled=True,
    )
    kl_coef: float = traced(1.0, "penalty: weight of KL(old || new)", low=0, coupled=True)
    adapt_kl_coef: bool = setting(
        False,
        "penalty: double kl_coef if an update's KL is above 1.5 x kl_coef_target, halve it if "
        "below kl_coef_target / 1.5",
    )
    kl_coef_target: float = traced(
        0.01, "KL per update, in nats, that adapt_kl_coef aims at", above=0
    )
    dpo_alpha: float = traced(2.0, "dpo: scale of the drift for positive advantages", above=0)
    dpo_beta: float = traced(0.6, "dpo: scale of the drift for negative advantages", above=0)
    target_kl: float = traced(
        math.inf,
        "stop an update's epochs if the KL of a minibatch exceeds this, in nats; .inf: never",
        above=0,
        infinite=True,
        switch=True,
        coupled=True,
    )
    adapt_learning_rates: bool = setting(
        False,
        "before each gradient step, divide the learning rates by lr_factor if its minibatch's KL "
        "is above 2 x lr_kl_target or target_kl, multiply them by it if below lr_kl_target / 2",
    )
    lr_kl_target: float = traced(
        0.01, "KL of a minibatch, in nats, that adapt_learning_rates aims at", above=0
    )
    lr_factor: float = traced(1.5, "adapt_learning_rates: factor of one change", low=1)
    lr_min: float = traced(1e-5, "adapt_learning_rates: least actor_lr", above=0, coupled=True)
    lr_max: float = traced(1e-2, "adapt_learning_rates: greatest actor_lr", above=0, coupled=True)
    ent_coef: float = traced(0.01, "weight of the entropy bonus", low=0, tune=(1e-4, 0.1))
    vf_coef: float = traced(0.5, "weight of the value loss", low=0)
    value_loss: str = setting(
        "squared", "value loss: squared or huber", choices=tuple(VALUE_LOSSES)
    )
    huber_delta: float = traced(1.0, "huber: error above which the loss is linear", above=0)
    clip_value_loss: bool = setting(
        False,
        "PPO2 value clipping: take the larger of two value losses, one of them with the change of "
        "the value clipped to clip_eps",
    )
    normalize_values: bool = setting(
        False, "normalise value targets to running mean 0 and standard deviation 1 for the critic"
    )
    value_norm_decay: float = traced(
        0.99, "decay per update of the running averages of normalize_values", low=0, high=1
    )

    def searched(self) -> dict[str, tuple[float, float]]:
        """Return the settings that `jaxppo.tune` searches, with their bounds."""
        found = super().searched()
        if not (self._takes_clipping or self.clip_value_loss):
            found.pop("clip_eps", None)
        if self.adapt_learning_rates:  # starts with it
            found["actor_lr"] = self.lr_min, self.lr_max
        return {name: (low, high) for name, (low, high) in found.items() if low < high}

    @property
    def _takes_clipping(self) -> bool:
        """Whether the objective may read clip_eps and clip_eps_high."""
        return self.objective == "clip" or is_import_path(self.objective)

    def check(self) -> None:
        """Raise `ConfigError` if settings contradict each other."""
        super().check()
        if self.adapt_kl_coef and self.objective != "penalty":
            raise ConfigError(
                f"system.adapt_kl_coef=true needs system.objective=penalty, not {self.objective}; "
                "or set it to false"
            )
        if self.adapt_kl_coef and not self.kl_coef:
            raise ConfigError(
                "system.adapt_kl_coef=true needs a system.kl_coef above 0, not 0.0, which no "
                "factor changes; or set it to false"
            )
        if self.advantages == "vtrace" and not self.recompute_targets:
            raise ConfigError(
                "system.advantages=vtrace corrects for changes of the policy since the rollout, "
                "but targets are computed before the policy changes; add "
                "system.recompute_targets=true, or use gae"
            )
        if self.recompute_targets and self.normalize_values:
            raise ConfigError(
                "system.recompute_targets=true does not work with system.normalize_values=true, "
                "since the critic has not learnt the new normalisation; set one of them to false"
            )
        if self.adapt_learning_rates and self.decay_learning_rates:
            raise ConfigError(
                "system.adapt_learning_rates=true needs system.decay_learning_rates=false, since "
                "both set the learning rates"
            )
        if self.adapt_learning_rates and (given := {"actor_lr", "critic_lr"} & {*self.schedules}):
            raise ConfigError(
                f"system.schedules.{min(given)}: system.adapt_learning_rates=true sets the rates; "
                "leave one of them out"
            )
        if self.adapt_learning_rates and self.epochs * self.num_minibatches == 1:
            raise ConfigError(
                "system.adapt_learning_rates=true: with one gradient step an update "
                "(system.epochs=1, system.num_minibatches=1) the KL is always measured before "
                "any change; raise one of them, or set it to false"
            )
        if self.adapt_learning_rates and not self.lr_min <= self.actor_lr <= self.lr_max:
            raise ConfigError(
                f"system.actor_lr={self.actor_lr}: adapt_learning_rates starts with it, so it must "
                f"be between system.lr_min={self.lr_min} and system.lr_max={self.lr_max}"
            )
        has_high = self.clip_eps_high is not None or "clip_eps_high" in self.schedules
        if has_high and not self._takes_clipping:
            high = "null with a schedule" if self.clip_eps_high is None else self.clip_eps_high
            raise ConfigError(
                f"system.clip_eps_high={high} needs system.objective=clip, not {self.objective}; "
                "or set it to null, without a schedule"
            )

    def check_sizes(self, minibatch_size: int) -> None:
        """Raise `ConfigError` if advantages are standardised over one transition: they are 0."""
        over, num = self.standardize_advantages, self.num_minibatches
        is_whole = num == 1 and not self.burn_in  # the minibatch is the batch
        if minibatch_size > 1 or over == "none" or (over == "batch" and not is_whole):
            return
        way_out = f"lower system.num_minibatches={num}, or take batch" if num > 1 else "take batch"
        if is_whole:
            way_out = "raise arch.total_num_envs or system.rollout_length to 2, or take none"
        what = "batch" if is_whole else "minibatch"
        raise ConfigError(
            f"system.standardize_advantages={over}: a {what} of one transition has no standard "
            f"deviation; {way_out}"
        )


@pytree
class State:
    """State of PPO that persists over updates."""

    value_statistics: RunningStatistics  # of value targets, a scalar
    kl_factor: jax.Array  # factor on kl_coef, adapted with adapt_kl_coef; 1 at first
    rate_factor: PyTree  # factor on learning rates with adapt_learning_rates, 1 at first; else ()


@pytree
class Kept:
    """What is kept of the network's output when acting, `[T, B]`."""

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


class PPO(ActorCritic):
    """PPO with a clipped, KL-penalised or discovered (DPO) objective."""

    Settings = PPOSettings
    loss_metrics, target_metrics, finish_metrics = LossMetrics, TargetMetrics, FinishMetrics
    group_names = ("actor", "critic")

    @classmethod
    def settings_type(cls, raw: dict[str, Any]) -> type[SystemConfig]:
        """Return `PPOSettings`, extended by the hyperparameters of a user's objective."""
        path = raw.get("objective")
        if isinstance(path, str) and is_import_path(path):
            return _extended(path)
        return PPOSettings

    @classmethod
    def build(cls, config: Config, env: Environment) -> Self:
        """Make the algorithm of a run; `ConfigError` if its settings do not fit the network."""
        algorithm = super().build(config, env)
        if config.arch.policy_lag:
            # An older policy than the one that learns has acted, so its values are not kept
            algorithm.keeps_values = False
        algorithm.check(config, env)
        return algorithm

    def __init__(self, settings: PPOSettings, network: Any) -> None:
        super().__init__(settings, network)
        self.objective = find_objective(settings.objective)
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

    def rates(self, agent: AgentState) -> dict[str, jax.Array]:
        """Return `actor_lr` and `critic_lr`, both times the factor of `adapt_learning_rates`."""
        hp = agent.hyperparameters
        rates = {"actor": hp.actor_lr, "critic": hp.critic_lr}
        if not self.adapts:
            return rates
        factor = _bounded(hp, agent.algorithm.rate_factor)
        return {name: rate * factor for name, rate in rates.items()}

    def act(self, policy: Policy, output: ActorCriticOutput, key: jax.Array) -> Acted:
        """Sample from the distribution; keep what `Kept` says."""
        acted = super().act(policy, output, key)
        kept = Kept(
            log_prob=acted.kept,
            distribution=output.distribution if reads_distribution(self.objective) else (),
            raw_value=output.value.mean() if self.keeps_values else None,
        )
        return dataclasses.replace(acted, kept=kept)

    def targets(
        self, system: System, agent: AgentState, rollout: Rollout
    ) -> tuple[AgentState, Steps, TargetMetrics]:
        """Compute the advantages and value targets of a rollout."""
        hp, steps, kept = agent.hyperparameters, rollout.steps, rollout.steps.kept

        def value_of(output: ActorCriticOutput) -> jax.Array:
            return self.denormalize(agent, output.value.mean())

        if kept.raw_value is None:
            output, value, next_value = state_values(system, agent.policy, rollout, value_of)
            raw_value = output.value.mean()
            log_ratio = output.distribution.log_prob(steps.action) - kept.log_prob
        else:
            raw_value, value = kept.raw_value, self.denormalize(agent, kept.raw_value)
            next_value = next_values(system, agent.policy, rollout, value, value_of)
            log_ratio = jnp.zeros_like(kept.log_prob)
        with jax.named_scope("advantages"):
            advantage, target = ESTIMATORS[self.settings.advantages](
                hp, steps, log_ratio, value, next_value
            )
            standardized, deviation = standardize(advantage, system.axes)
            if self.settings.standardize_advantages == "batch":
                advantage = standardized
        found = Steps(
            obs=steps.obs,
            reset=steps.reset,
            action=steps.action,
            log_prob=kept.log_prob,
            distribution=kept.distribution,
            value=value,
            raw_value=raw_value,
            advantage=advantage,
            target=target,
        )
        agent = self.update_value_statistics(system, agent, target)
        return agent, found, TargetMetrics(advantage_std=deviation)

    def retarget(self, steps: Steps, again: Steps) -> Steps:
        """Replace advantages and value targets; the old policy's log-probabilities stay."""
        return dataclasses.replace(steps, advantage=again.advantage, target=again.target)

    def denormalize(self, agent: AgentState, raw_value: jax.Array) -> jax.Array:
        """Return the critic's raw output in units of reward."""
        if not self.settings.normalize_values:
            return raw_value
        return denormalize_value(agent.algorithm.value_statistics, raw_value)

    def update_value_statistics(
        self, system: System, agent: AgentState, target: jax.Array
    ) -> AgentState:
        """Merge the rollout's value targets into the value statistics, before the epochs.

        So the critic is trained with the same statistics that later denormalise its output.
        """
        if not self.settings.normalize_values:
            return agent
        before = agent.algorithm.value_statistics
        decay = agent.hyperparameters.value_norm_decay
        statistics = merge_statistics(before, target, system.axes, decay)
        statistics = unless_nonfinite(system, statistics, before)
        state = dataclasses.replace(agent.algorithm, value_statistics=statistics)
        return dataclasses.replace(agent, algorithm=state)

    def prepare(self, system: System, minibatch: Batch) -> Batch:
        """Standardise the advantages, with standardize_advantages=minibatch."""
        if self.settings.standardize_advantages != "minibatch":
            return minibatch
        advantage, _ = standardize(minibatch.steps.advantage, system.axes)
        steps = dataclasses.replace(minibatch.steps, advantage=advantage)
        return dataclasses.replace(minibatch, steps=steps)

    def loss(
        self, system: System, agent: AgentState, params: PyTree, minibatch: Batch
    ) -> tuple[jax.Array, LossMetrics]:
        """Return actor + vf_coef * value - ent_coef * entropy, a mean over `[L, M]`."""
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
            clip_fraction(log_prob, steps.log_prob, hp.clip_eps, hp.clip_eps_high),
        )
        total = actor_loss + hp.vf_coef * value_loss - hp.ent_coef * entropy
        ratios = ratio(log_prob, steps.log_prob)
        return total, LossMetrics(
            actor_loss=actor_loss,
            value_loss=value_loss,
            entropy=entropy,
            approximate_kl=kl,
            clip_fraction=clipped,
            ratio_min=jnp.min(ratios),
            ratio_max=jnp.max(ratios),
        )

    def value_loss(self, agent: AgentState, steps: Steps, value: ValueEstimate) -> jax.Array:
        """Return the loss of value estimates `[L, M]`, in the value normalisation."""
        hp, target = agent.hyperparameters, steps.target
        if self.settings.normalize_values:
            target = normalize_value(agent.algorithm.value_statistics, target)
        error = partial(VALUE_LOSSES[self.settings.value_loss], hp)
        if not self.settings.clip_value_loss:
            return value.loss(target, error)
        return value.loss(
            target,
            lambda value, target: clipped_error(error, value, steps.raw_value, target, hp.clip_eps),
        )

    def stop(self, agent: AgentState, metrics: LossMetrics) -> jax.Array:
        """Return whether the KL of a minibatch is above `target_kl`."""
        return metrics.approximate_kl > agent.hyperparameters.target_kl

    def adapt(self, agent: AgentState, metrics: LossMetrics) -> AgentState:
        """Adapt the learning rates of a gradient step to the KL(old || new) of its minibatch.

        The rule of RSL-RL (Schwarke et al. 2025, arXiv 2509.10771), with the estimate k3 of the KL.
        A KL above `target_kl`, which ends the epochs, is also too high.
        """
        hp, kl, factor = agent.hyperparameters, metrics.approximate_kl, agent.algorithm.rate_factor
        high, low = kl > 2.0 * hp.lr_kl_target, kl < 0.5 * hp.lr_kl_target
        if self.stops_early:
            high |= self.stop(agent, metrics)
        factor = factor * jnp.where(high, 1 / hp.lr_factor, jnp.where(low, hp.lr_factor, 1.0))
        state = dataclasses.replace(agent.algorithm, rate_factor=_bounded(hp, factor))
        return dataclasses.replace(agent, algorithm=state)

    def finish(
        self, system: System, agent: AgentState, batch: Batch
    ) -> tuple[AgentState, FinishMetrics]:
        """Adapt the weight of the KL penalty, with `adapt_kl_coef`.

        Double `kl_factor` if KL(old || new) of the update is above 1.5 `kl_coef_target`, halve
        it if it is below kl_coef_target / 1.5: Schulman et al. 2017, section 4.
        """
        hp = agent.hyperparameters
        explained = explained_variance(batch.steps.value, batch.steps.target, system.axes)
        if self.settings.adapt_kl_coef:
            batch = memory.burn_in(system, agent, batch)
            steps = batch.steps
            _, output = unroll(system, agent.policy, batch.carry, steps.obs, steps.reset)
            kl = jnp.mean(steps.distribution.kl_divergence(output.distribution))
            kl = mean_over(system.axes, kl)
            high, low = kl > 1.5 * hp.kl_coef_target, kl < hp.kl_coef_target / 1.5
            factor = jnp.where(high, 2.0, jnp.where(low, 0.5, 1.0))
            factor = jnp.clip(agent.algorithm.kl_factor * factor, 1e-6, 1e6)
            state = dataclasses.replace(agent.algorithm, kl_factor=factor)
            agent = dataclasses.replace(agent, algorithm=state)
        return agent, FinishMetrics(
            explained_variance=explained, kl_coef=hp.kl_coef * agent.algorithm.kl_factor
        )

    def check(self, config: Config, env: Environment) -> None:
        """Raise `ConfigError` if the settings do not fit the network."""
        settings: Any = config.system
        for key in ("clip_value_loss", "value_loss"):
            given = getattr(settings, key)
            if given in (False, "squared"):
                continue
            if not isinstance(self.network.example()[1].value, ScalarValue):
                raise ConfigError(
                    f"system.{key}={str(given).lower()}: is for scalar values, but the critic "
                    "head predicts a distribution, which has its own loss; take "
                    "network/critic_head=scalar"
                )
        if reads_distribution(self.objective):
            distribution = self.network.example(LEAD)[1].distribution
            shapes = [x.shape for x in jax.tree.leaves(distribution)]
            if any(shape[:2] != LEAD for shape in shapes):
                raise ConfigError(
                    f"system.objective={settings.objective}: stores the distribution of each step, "
                    f"but network.actor_head gives arrays {shapes} for {LEAD} steps; let the head "
                    "broadcast them to [L, S, ...], or take objective=clip"
                )
        if is_import_path(settings.objective):
            agent, steps = partial(self._agent, settings), partial(self._steps, env)
            try_objective(self.objective, settings.objective, agent, steps)

    def _agent(self, settings: PPOSettings, key: jax.Array) -> AgentState:
        """Return an agent to trace an objective with."""
        update = jnp.zeros((), jnp.int32)
        hp = {name: jnp.float32(number) for name, number in numbers(settings).items()}
        policy = Policy(
            params=self.init(key), obs_statistics=init_statistics(jnp.zeros(())), noise_key=None
        )
        return AgentState(
            policy=policy,
            opt_state=(),
            hyperparameters=Hyperparameters(**hp, num_updates=update),
            algorithm=self.init_state(),
            reward_statistics=init_statistics(jnp.zeros(())),
            update=update,
        )

    def _steps(self, env: Environment, key: jax.Array) -> tuple[Steps, Any, jax.Array]:
        """Return steps `LEAD`, a distribution and log-probabilities, for tracing an objective."""
        obs, reset = zeros(env.observation_space, LEAD), jnp.ones(LEAD, bool)
        carry = self.network.initial_carry(LEAD[1])
        _, output = self.network.unroll(self.init(key), carry, obs, reset)
        numbers = jnp.zeros(LEAD)
        action, log_prob = output.distribution.sample_and_log_prob(seed=key)
        steps = Steps(
            obs=obs,
            reset=reset,
            action=action,
            log_prob=log_prob,
            distribution=output.distribution,
            value=numbers,
            raw_value=numbers,
            advantage=numbers,
            target=numbers,
        )
        return steps, output.distribution, log_prob


def _bounded(hp: Hyperparameters, factor: jax.Array) -> jax.Array:
    """Clip the factor of the learning rates so that `actor_lr` times it is within the bounds.

    They are `lr_min` and `lr_max`. A factor may leave them if selection copies it to a member with
    another `actor_lr`, or if a resume has another `actor_lr`.
    """
    return jnp.clip(factor, hp.lr_min / hp.actor_lr, hp.lr_max / hp.actor_lr)


@lru_cache
def _extended(path: str) -> type[SystemConfig]:
    """Return `PPOSettings` with the hyperparameters of the objective at an import path."""
    taken = {"num_updates", *(field.name for field in dataclasses.fields(PPOSettings))}
    extra = own_hyperparameters(find_objective(path), path, taken)
    fields = [(name, float, field) for name, field in extra.items()]
    return dataclasses.make_dataclass(
        "PPOSettings", fields, bases=(PPOSettings,), frozen=True, kw_only=True
    )
