"""PPO's policy losses, value losses and advantage estimators, by the names of the settings.

The functions of a table have one signature. They take their hyperparameters from the agent.
"""

import dataclasses
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxppo.config.fields import ConfigError, check, is_import_path
from jaxppo.config.importing import imported
from jaxppo.config.messages import explained
from jaxppo.ops.actions import log_probs
from jaxppo.ops.advantages import gae, negamax, vtrace
from jaxppo.ops.losses import (
    clip_fraction,
    clipped_error,
    clipped_surrogate,
    discovered_objective,
    huber_error,
    ratio,
    reinforce,
    squared_error,
    surrogate,
)
from jaxppo.types import AgentState, Transition

# (agent, steps of a minibatch (ppo_data.Steps), distribution, its log_prob of the actions [L, M])
# -> the actor's loss [L, M]
Objective = Callable[[AgentState, Any, Any, jax.Array], jax.Array]
Function = TypeVar("Function", bound=Callable[..., Any])


def penalty_objective(
    agent: AgentState, steps: Any, distribution: Any, log_prob: jax.Array
) -> jax.Array:
    """Return the surrogate loss plus a weight times KL(old || new); arXiv 1707.06347, eq. 8."""
    hp = agent.hyperparameters
    kl = steps.distribution.kl_divergence(distribution)
    weight = hp.kl_coef * agent.algorithm_state.kl_factor
    return surrogate(log_prob, steps.log_prob, steps.advantage) + weight * kl


def clipped_dimensions(
    agent: AgentState, steps: Any, distribution: Any, log_prob: jax.Array
) -> jax.Array:
    """Return the sum over the dimensions of an action of their clipped surrogates.

    A dimension that has moved far is clipped alone, and many small moves are not: Han and Sung 2019
    (arXiv 1905.02363), section 4.1. With ratios of 1 the gradient is that of `clip`.
    """
    del log_prob
    hp = agent.hyperparameters
    new, old = (log_probs(each, steps.action) for each in (distribution, steps.distribution))
    advantage = jnp.broadcast_to(steps.advantage[..., None], new.shape)
    return jnp.sum(clipped_surrogate(new, old, advantage, hp.clip_eps, hp.clip_eps_high), axis=-1)


def clipped_share(
    objective: str, agent: AgentState, steps: Any, distribution: Any, log_prob: jax.Array
) -> jax.Array:
    """Return 1 where the ratio is outside of its bounds and else 0, `[L, M]`.

    With `clip_dimensions` it is the share of an action's dimensions whose own ratio is outside.
    """
    hp = agent.hyperparameters
    if objective != "clip_dimensions":
        return clip_fraction(log_prob, steps.log_prob, hp.clip_eps, hp.clip_eps_high)
    new, old = (log_probs(each, steps.action) for each in (distribution, steps.distribution))
    return jnp.mean(clip_fraction(new, old, hp.clip_eps, hp.clip_eps_high), axis=-1)


OBJECTIVES: dict[str, Objective] = {
    "clip": lambda agent, steps, _, log_prob: clipped_surrogate(
        log_prob,
        steps.log_prob,
        steps.advantage,
        agent.hyperparameters.clip_eps,
        agent.hyperparameters.clip_eps_high,
    ),
    "clip_dimensions": clipped_dimensions,
    "penalty": penalty_objective,
    "dpo": lambda agent, steps, _, log_prob: discovered_objective(
        log_prob,
        steps.log_prob,
        steps.advantage,
        agent.hyperparameters.dpo_alpha,
        agent.hyperparameters.dpo_beta,
    ),
    "reinforce": lambda agent, steps, _, log_prob: reinforce(log_prob, steps.advantage),
}


CLIPPED = ("clip", "clip_dimensions")  # read clip_eps and clip_eps_high


def hyperparameters(**fields: Any) -> Callable[[Function], Function]:
    """Decorator that gives an objective of your own hyperparameters, made by `traced`, by name.

    They become settings of `system`; see docs/objectives.md.
    """

    def give(objective: Function) -> Function:
        vars(objective)["hyperparameters"] = fields
        return objective

    return give


def reads_distribution(choice: str) -> bool:
    """Return whether an objective may read `steps.distribution`, which is stored only then."""
    return choice in ("clip_dimensions", "penalty") or is_import_path(choice)


def find_objective(settings: Any) -> Objective:
    """Return the objective of PPO's settings; `ConfigError` if an import path is no function."""
    choice = settings.objective
    if is_import_path(choice):
        found = of_user(imported("system.objective", choice, "function", OBJECTIVES), choice)
    else:
        found = OBJECTIVES[choice]
    if settings.importance_weights:
        found = importance_weighted(found)
    return found if settings.log_ratio_clip is None else with_clipped_ratio(found)


def importance_weighted(objective: Objective) -> Objective:
    """Decorate an objective: weight each step by min(rho_clip, pi / mu), a constant.

    The gradient of `reinforce` is then that of IMPALA: Espeholt et al. 2018 (arXiv 1802.01561),
    section 4.2.
    """

    def weighted(
        agent: AgentState, steps: Any, distribution: Any, log_prob: jax.Array
    ) -> jax.Array:
        weight = jnp.minimum(ratio(log_prob, steps.log_prob), agent.hyperparameters.rho_clip)
        return jax.lax.stop_gradient(weight) * objective(agent, steps, distribution, log_prob)

    return weighted


def with_clipped_ratio(objective: Objective) -> Objective:
    """Decorate an objective: it sees log(pi / mu) clipped to +-log_ratio_clip."""

    def clipped(agent: AgentState, steps: Any, distribution: Any, log_prob: jax.Array) -> jax.Array:
        limit = agent.hyperparameters.log_ratio_clip
        change = jnp.clip(log_prob - steps.log_prob, -limit, limit)
        return objective(agent, steps, distribution, steps.log_prob + change)

    return clipped


def of_user(function: Objective, path: str) -> Objective:
    """Return a user's objective, which raises `ConfigError` unless it gives one loss a step."""

    def objective(
        agent: AgentState, steps: Any, distribution: Any, log_prob: jax.Array
    ) -> jax.Array:
        try:
            loss = function(agent, steps, distribution, log_prob)
        except Exception as error:  # a user's function may raise anything
            raise ConfigError(
                f"system.objective={path}: fails on a minibatch: {explained(error)}; it "
                "is called as objective(agent, steps, distribution, log_prob)"
            ) from error
        shape = getattr(loss, "shape", None)
        kind = getattr(loss, "dtype", type(loss).__name__)
        if shape != log_prob.shape or not jnp.issubdtype(kind, jnp.floating):
            raise ConfigError(
                f"system.objective={path}: gives {kind}{shape or '()'}, where floats "
                f"{log_prob.shape}, one loss a step, are needed; let it not average"
            )
        return loss

    return objective


def own_hyperparameters(path: str, taken: Collection[str]) -> dict[str, Any]:
    """Return the attribute `hyperparameters` of a user's objective, or an empty dict.

    It maps names, none of them `taken`, to fields made by `config.fields.traced`.
    """
    function = imported("system.objective", path, "function", OBJECTIVES)
    found = getattr(function, "hyperparameters", {})
    if not isinstance(found, dict) or not all(
        isinstance(field, dataclasses.Field) and field.metadata.get("traced")
        for field in found.values()
    ):
        raise ConfigError(
            f"system.objective={path}: its hyperparameters must be a dict of names to fields made "
            "by jaxppo.config.fields.traced; see docs/objectives.md"
        )
    for name, field in found.items():
        key = f"system.objective={path}: its hyperparameter {name}"
        if name in taken:
            raise ConfigError(f"{key} is a setting already; call it otherwise")
        check(f"{key}: default", field.default, float, field.metadata)
    return found


# (hyperparameters, rollout with rewards as learnt from, log of pi / mu, value, next_value), arrays
# [T, B] -> (advantages, value targets)
Estimator = Callable[
    [Any, Transition, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]
]


ESTIMATORS: dict[str, Estimator] = {
    "gae": lambda hp, steps, _, value, next_value: gae(
        steps.reward,
        value,
        next_value,
        steps.terminated,
        steps.truncated,
        gamma=negamax(hp.gamma, steps.sign),
        gae_lambda=hp.gae_lambda,
    ),
    "vtrace": lambda hp, steps, log_ratio, value, next_value: vtrace(
        log_ratio,
        steps.reward,
        value,
        next_value,
        steps.terminated,
        steps.truncated,
        gamma=negamax(hp.gamma, steps.sign),
        gae_lambda=hp.gae_lambda,
        rho_clip=hp.rho_clip,
        c_clip=hp.c_clip,
    ),
}

# (hyperparameters, value, target) -> the critic's loss, of one shape
ValueLoss = Callable[[Any, jax.Array, jax.Array], jax.Array]
VALUE_LOSSES: dict[str, ValueLoss] = {
    "squared": lambda _, value, target: squared_error(value, target),
    "huber": lambda hp, value, target: huber_error(value, target, hp.huber_delta),
}


def find_value_loss(settings: Any) -> Callable[..., jax.Array]:
    """Return the critic's loss, of (hyperparameters, old value, value, target), by the settings."""
    error = VALUE_LOSSES[settings.value_loss]
    limit = "clip_eps" if settings.value_clip_eps is None else "value_clip_eps"

    def clipped(hp: Any, old: jax.Array, value: jax.Array, target: jax.Array) -> jax.Array:
        return clipped_error(partial(error, hp), value, old, target, getattr(hp, limit))

    return clipped if settings.clip_value_loss else lambda hp, _, *given: error(hp, *given)
