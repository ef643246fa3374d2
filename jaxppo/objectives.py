"""What the learner minimises and which targets it learns, by the names of the settings.

Each table holds functions of one signature, which pick their numbers from the agent's own.
"""

import importlib
import typing
from collections.abc import Callable

import jax

from jaxppo.advantages import gae, vtrace
from jaxppo.config import ConfigError, is_import_path
from jaxppo.losses import (
    clipped_surrogate,
    discovered_objective,
    huber_error,
    reinforce,
    squared_error,
    surrogate,
)
from jaxppo.types import AgentState, Batch, Distribution, Hyperparameters, Transition

# (agent, minibatch, distribution, its log_prob of the actions [L, M]) -> the actor's loss [L, M]
Objective = Callable[[AgentState, Batch, Distribution, jax.Array], jax.Array]


def clip_objective(
    agent: AgentState, batch: Batch, distribution: Distribution, log_prob: jax.Array
) -> jax.Array:
    """The clipped surrogate."""
    del distribution
    hp = agent.hyperparameters
    return clipped_surrogate(
        log_prob, batch.log_prob, batch.advantage, hp.clip_eps, hp.clip_eps_high
    )


def penalty_objective(
    agent: AgentState, batch: Batch, distribution: Distribution, log_prob: jax.Array
) -> jax.Array:
    """The unclipped surrogate and a weight times KL(old || new); arXiv 1707.06347, eq. 8."""
    hp = agent.hyperparameters
    kl = batch.distribution.kl_divergence(distribution)
    return surrogate(log_prob, batch.log_prob, batch.advantage) + hp.kl_coef * agent.kl_factor * kl


def dpo_objective(
    agent: AgentState, batch: Batch, distribution: Distribution, log_prob: jax.Array
) -> jax.Array:
    """Discovered policy optimisation."""
    del distribution
    hp = agent.hyperparameters
    return discovered_objective(
        log_prob, batch.log_prob, batch.advantage, hp.dpo_alpha, hp.dpo_beta
    )


def reinforce_objective(
    agent: AgentState, batch: Batch, distribution: Distribution, log_prob: jax.Array
) -> jax.Array:
    """REINFORCE with the value as its baseline."""
    del agent, distribution
    return reinforce(log_prob, batch.advantage)


OBJECTIVES: dict[str, Objective] = {
    "clip": clip_objective,
    "penalty": penalty_objective,
    "dpo": dpo_objective,
    "reinforce": reinforce_objective,
}


def reads_distribution(objective: Objective) -> bool:
    """Whether an objective may read `batch.distribution`, which is kept only then."""
    blind = (clip_objective, dpo_objective, reinforce_objective)
    return not any(objective is each for each in blind)  # a user's may have no hash


def find_objective(choice: str) -> Objective:
    """The objective of a name or an import path; `ConfigError` where that leads to no function."""
    if not is_import_path(choice):
        return OBJECTIVES[choice]
    module, _, name = choice.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(
            f"system.objective={choice}: {module} cannot be imported ({type(error).__name__}: "
            f"{error}); is it on PYTHONPATH, and does it run?"
        ) from error
    if not callable(found):
        raise ConfigError(
            f"system.objective={choice}: module {module} has no function {name}; give the path of "
            f"one, or {', '.join(OBJECTIVES)}"
        )
    return typing.cast(Objective, found)


# (hyperparameters, rollout with rewards as learnt from, log of pi / mu, value, next_value), arrays
# [T, B] -> (advantages, value targets)
Estimator = Callable[
    [Hyperparameters, Transition, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]
]


def gae_estimator(
    hp: Hyperparameters,
    rollout: Transition,
    log_ratio: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimation."""
    del log_ratio
    return gae(
        rollout.reward,
        value,
        next_value,
        rollout.terminated,
        rollout.truncated,
        gamma=hp.gamma,
        gae_lambda=hp.gae_lambda,
    )


def vtrace_estimator(
    hp: Hyperparameters,
    rollout: Transition,
    log_ratio: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """V-trace, from the acting policy to that of the moment."""
    return vtrace(
        log_ratio,
        rollout.reward,
        value,
        next_value,
        rollout.terminated,
        rollout.truncated,
        gamma=hp.gamma,
        gae_lambda=hp.gae_lambda,
        rho_clip=hp.rho_clip,
        c_clip=hp.c_clip,
    )


ESTIMATORS: dict[str, Estimator] = {"gae": gae_estimator, "vtrace": vtrace_estimator}


def squared_loss(hp: Hyperparameters, value: jax.Array, target: jax.Array) -> jax.Array:
    """Half the squared error."""
    del hp
    return squared_error(value, target)


def huber_loss(hp: Hyperparameters, value: jax.Array, target: jax.Array) -> jax.Array:
    """Half the squared error, linear beyond `huber_delta`."""
    return huber_error(value, target, hp.huber_delta)


# (hyperparameters, value, target) -> the critic's loss, of one shape
ValueLoss = Callable[[Hyperparameters, jax.Array, jax.Array], jax.Array]
VALUE_LOSSES: dict[str, ValueLoss] = {"squared": squared_loss, "huber": huber_loss}
