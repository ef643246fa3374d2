"""REINFORCE with a baseline: Williams 1992, eq. 11; Sutton and Barto 2018, section 13.4."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.algorithms.acting import state_values, unroll
from jaxppo.algorithms.actor_critic import ActorCritic
from jaxppo.algorithms.metrics import NoMetrics, metric, metrics
from jaxppo.config.fields import traced
from jaxppo.config.schema import SystemConfig
from jaxppo.ops.returns import discounted_returns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(SystemConfig):
    """REINFORCE."""

    policy_lr: float = traced(3e-3, "Adam step size of the policy", low=0)
    baseline_lr: float = traced(1e-2, "Adam step size of the baseline", low=0)
    entropy_bonus: float = traced(0.01, "weight of the policy's entropy", low=0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Steps:
    """The data that the loss needs for each step, `[L, S, ...]`."""

    obs: Any
    reset: jax.Array
    action: Any
    expected: jax.Array  # the baseline when the step was taken
    actual: jax.Array  # the return that followed


@metrics
class LossMetrics:
    """Of a gradient step."""

    policy_loss: jax.Array = metric()
    baseline_loss: jax.Array = metric(headline="baseline loss {:.3g}")
    entropy: jax.Array = metric(headline="entropy {:.3f}")


class Reinforce(ActorCritic):
    """Gradient ascent on log pi(a|s) (G - b(s)), using each transition once."""

    Settings = Settings
    loss_metrics = LossMetrics
    group_names = ("policy", "baseline")

    def groups(self, params: Any) -> dict[str, str]:
        return {part: "baseline" if part.startswith("critic") else "policy" for part in params}

    def rates(self, agent: Any) -> dict[str, jax.Array]:
        hp = agent.hyperparameters
        return {"policy": hp.policy_lr, "baseline": hp.baseline_lr}

    def targets(self, system: Any, agent: Any, rollout: Any) -> Any:
        """Discounted returns, bootstrapped from the baseline where something cuts an episode."""
        steps, policy = rollout.steps, agent.policy
        _, value, after = state_values(system, policy, rollout, lambda output: output.value.mean())
        discount = agent.hyperparameters.gamma * (1.0 - steps.terminated)
        actual = discounted_returns(steps.reward, discount, after, steps.truncated)
        return agent, Steps(steps.obs, steps.reset, steps.action, value, actual), NoMetrics()

    def loss(self, system: Any, agent: Any, params: Any, minibatch: Any) -> Any:
        """Policy, baseline and entropy, averaged over a minibatch `[L, M]`."""
        steps, policy = minibatch.steps, dataclasses.replace(agent.policy, params=params)
        _, output = unroll(system, policy, minibatch.carry, steps.obs, steps.reset)
        log_prob = output.distribution.log_prob(steps.action)
        policy_loss = -jnp.mean(log_prob * (steps.actual - steps.expected))
        baseline_loss = 0.5 * jnp.mean((output.value.mean() - steps.actual) ** 2)
        entropy = jnp.mean(output.distribution.entropy())
        bonus = agent.hyperparameters.entropy_bonus
        found = dict(policy_loss=policy_loss, baseline_loss=baseline_loss, entropy=entropy)
        return policy_loss + baseline_loss - bonus * entropy, LossMetrics(**found)
