"""Settings of PPO."""

import dataclasses
import math
from functools import lru_cache
from typing import Any

from jaxppo.algorithms.objectives import (
    CLIPPED,
    ESTIMATORS,
    OBJECTIVES,
    VALUE_LOSSES,
    own_hyperparameters,
    reads_distribution,
)
from jaxppo.config.fields import (
    IMPORTED,
    ConfigError,
    is_import_path,
    other_default,
    setting,
    traced,
)
from jaxppo.config.schema import Config, SystemConfig, SystemNumbers
from jaxppo.networks.building import LEAD, check_stored
from jaxppo.ops.actions import has_dimensions
from jaxppo.ops.values import ScalarValue
from jaxppo.types import Network


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPONumbers(SystemNumbers):
    """The traced settings of PPO: floats in its settings, arrays in its agent."""

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
    rho_clip: float = traced(
        1.0,
        "vtrace and importance_weights: truncation level rho-bar of the importance ratios that "
        "weight TD errors and steps",
        above=0,
    )
    c_clip: float = traced(
        1.0,
        "vtrace: truncation level c-bar of the importance ratios that pass corrections on to "
        "earlier steps",
        above=0,
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
        needs={"objective": (*CLIPPED, IMPORTED)},
    )
    value_clip_eps: float | None = traced(
        None,
        "clip_value_loss: clip the change of the value to this; null: clip_eps",
        above=0,
        switch=True,
        coupled=True,
        needs={"clip_value_loss": (True,)},
    )
    log_ratio_clip: float | None = traced(
        None,
        "clip the logarithm of the probability ratio to this magnitude, beyond which an action has "
        "no gradient; null: no clipping",
        above=0,
        switch=True,
        coupled=True,
        needs={"objective": ("clip", "penalty", "dpo", IMPORTED)},  # which read a whole ratio
    )
    kl_coef: float = traced(1.0, "penalty: weight of KL(old || new)", low=0, coupled=True)
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
    lr_kl_target: float = traced(
        0.01, "KL of a minibatch, in nats, that adapt_learning_rates aims at", above=0
    )
    lr_factor: float = traced(1.5, "adapt_learning_rates: factor of one change", low=1)
    lr_min: float = traced(1e-5, "adapt_learning_rates: least actor_lr", above=0, coupled=True)
    lr_max: float = traced(1e-2, "adapt_learning_rates: greatest actor_lr", above=0, coupled=True)
    ent_coef: float = traced(0.01, "weight of the entropy bonus", low=0, tune=(1e-4, 0.1))
    vf_coef: float = traced(0.5, "weight of the value loss", low=0)
    huber_delta: float = traced(1.0, "huber: error above which the loss is linear", above=0)
    value_norm_decay: float = traced(
        0.99, "decay per update of the running averages of normalize_values", low=0, high=1
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOSettings(PPONumbers, SystemConfig):
    """Settings of PPO."""

    normalize_rewards: bool = other_default(SystemConfig, "normalize_rewards", True)
    normalize_observations: bool = other_default(SystemConfig, "normalize_observations", True)
    obs_norm_share: float = other_default(SystemConfig, "obs_norm_share", 0.1)

    advantages: str = setting(
        "gae",
        "estimator of advantages and value targets: gae or vtrace",
        choices=tuple(ESTIMATORS),
        needs={"recompute_targets": (True,)},  # the policy has changed only then
    )
    standardize_advantages: str = setting(
        "batch",
        "standardise advantages (mean 0, standard deviation 1) over the batch, over each "
        "minibatch, or none",
        choices=("batch", "minibatch", "none"),
    )
    objective: str = setting(
        "clip",
        "policy objective: clip, clip_dimensions (a ratio of each dimension of the action), "
        "penalty (KL), dpo (Lu et al. 2022), reinforce (with epochs=1 or importance_weights), or "
        "an import path",
        choices=tuple(OBJECTIVES),
        importable=True,
    )
    importance_weights: bool = setting(
        False,
        "reinforce: weight each step by min(rho_clip, pi / mu), for a policy mu that acted and has "
        "changed since; with vtrace this is IMPALA's gradient",
        needs={"objective": ("reinforce",)},
    )
    adapt_kl_coef: bool = setting(
        False,
        "penalty: double kl_coef if an update's KL is above 1.5 x kl_coef_target, halve it if "
        "below kl_coef_target / 1.5",
        needs={"objective": ("penalty",)},
    )
    adapt_learning_rates: bool = setting(
        False,
        "before each gradient step, divide the learning rates by lr_factor if its minibatch's KL "
        "is above 2 x lr_kl_target or target_kl, multiply them by it if below lr_kl_target / 2",
        needs={"decay_learning_rates": (False,)},
    )
    value_loss: str = setting(
        "squared", "value loss: squared or huber", choices=tuple(VALUE_LOSSES)
    )
    clip_value_loss: bool = setting(
        False,
        "PPO2 value clipping: take the larger of two value losses, one of them with the change of "
        "the value clipped to value_clip_eps",
    )
    normalize_values: bool = setting(
        False,
        "normalise value targets to running mean 0 and standard deviation 1 for the critic",
        needs={"recompute_targets": (False,)},  # the critic has not learnt a newer normalisation
    )

    def searched(self) -> dict[str, tuple[float, float]]:
        """Return the settings that `jaxppo.tune` searches, with their bounds."""
        found = super().searched()
        takes_clipping = self.objective in CLIPPED or is_import_path(self.objective)
        if not (takes_clipping or self.clip_value_loss):
            found.pop("clip_eps", None)
        if self.adapt_learning_rates:  # starts with it
            found["actor_lr"] = self.lr_min, self.lr_max
        return {name: (low, high) for name, (low, high) in found.items() if low < high}

    def check(self) -> None:
        """Raise `ConfigError` if settings contradict each other."""
        super().check()
        if self.epochs > 1:
            _check_weights(self, f"system.epochs={self.epochs}")
        if self.adapt_kl_coef and not self.kl_coef:
            raise ConfigError(
                "system.adapt_kl_coef=true needs a system.kl_coef above 0, not 0.0, which no "
                "factor changes; or set it to false"
            )
        if not self.adapt_learning_rates:
            return
        if scheduled := {"actor_lr", "critic_lr"} & {*self.schedules}:
            raise ConfigError(
                f"system.schedules.{min(scheduled)}: system.adapt_learning_rates=true sets the "
                "rates; leave one of them out"
            )
        if self.epochs * self.num_minibatches == 1:
            raise ConfigError(
                "system.adapt_learning_rates=true: with one gradient step an update "
                "(system.epochs=1, system.num_minibatches=1) the KL is always measured before "
                "any change; raise one of them, or set it to false"
            )
        if not self.lr_min <= self.actor_lr <= self.lr_max:
            raise ConfigError(
                f"system.actor_lr={self.actor_lr}: adapt_learning_rates starts with it, so it must "
                f"be between system.lr_min={self.lr_min} and system.lr_max={self.lr_max}"
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


def check_fit(config: Config, network: Network) -> None:
    """Raise `ConfigError` if the settings do not fit the network or the actors."""
    settings: Any = config.system
    output = network.example(LEAD)[1]
    if config.arch.policy_lag:
        _check_weights(settings, f"arch.max_policy_lag={config.arch.policy_lag}")
    for name, neutral in (("clip_value_loss", False), ("value_loss", "squared")):
        value = getattr(settings, name)
        if value != neutral and not isinstance(output.value, ScalarValue):
            raise ConfigError(
                f"system.{name}={str(value).lower()}: is for scalar values, but the critic head "
                "predicts a distribution, which has its own loss; take network/critic_head=scalar"
            )
    if settings.objective == "clip_dimensions" and not has_dimensions(output.distribution):
        raise ConfigError(
            "system.objective=clip_dimensions: the distribution of network.actor_head has no "
            "log-probability of each dimension; take objective=clip, or network/actor_head=auto"
        )
    if reads_distribution(settings.objective):
        key = f"system.objective={settings.objective}"
        check_stored(key, output.distribution, ", or take objective=clip")


def _check_weights(settings: PPOSettings, key: str) -> None:
    """Raise `ConfigError` if `key` lets an older policy act, and the objective has no ratios."""
    if settings.objective == "reinforce" and not settings.importance_weights:
        raise ConfigError(
            f"system.objective=reinforce: with {key}, the data come from an older policy, and its "
            "gradient is biased; add system.importance_weights=true"
        )


def settings_type(raw: dict[str, Any]) -> type[SystemConfig]:
    """Return `PPOSettings`, extended by the hyperparameters of a user's objective."""
    path = raw.get("objective")
    return _extended(path) if isinstance(path, str) and is_import_path(path) else PPOSettings


@lru_cache
def _extended(path: str) -> type[SystemConfig]:
    """Return `PPOSettings` with the hyperparameters of the objective at an import path."""
    taken = {"num_updates", *(field.name for field in dataclasses.fields(PPOSettings))}
    extra = own_hyperparameters(path, taken)
    fields = [(name, float, field) for name, field in extra.items()]
    return dataclasses.make_dataclass(
        "PPOSettings", fields, bases=(PPOSettings,), frozen=True, kw_only=True
    )
