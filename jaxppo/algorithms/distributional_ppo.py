"""PPO whose critic learns the distribution of returns, by categorical TD.

    python -m jaxppo.ff_ppo env=cartpole network/critic_head=categorical \\
        system.algorithm=jaxppo.algorithms.distributional_ppo.DistributionalPPO

PPO with that head learns the mean of returns: each target is one number, spread over nearby atoms.
Here the target is the distribution of r + gamma Z, projected to the atoms: Bellemare et al. 2017
(arXiv 1707.06887), eq. 7, mixed over steps by `gae_lambda`. Its mean is PPO's target, unless
returns leave the range of the atoms.
"""

import dataclasses
from typing import Any, Self

import jax

from jaxppo.algorithms.acting import state_values
from jaxppo.algorithms.ppo import PPO
from jaxppo.algorithms.ppo_data import PPOAgent, TargetMetrics
from jaxppo.algorithms.ppo_data import Steps as PPOSteps
from jaxppo.config.fields import ConfigError, as_override
from jaxppo.config.schema import Config
from jaxppo.networks.actor_critic import ActorCriticOutput
from jaxppo.ops.distributional import categorical_lambda_returns
from jaxppo.ops.values import CategoricalValue
from jaxppo.types import Environment, Rollout, System, ValueEstimate, pytree


@pytree
class Steps(PPOSteps):
    """The data that the loss needs for each step, `[L, S, ...]`."""

    target_probs: jax.Array  # [L, S, K] distribution of the value target over the critic's atoms


class DistributionalPPO(PPO):
    """PPO with the distribution of returns as the critic's target."""

    signs = False

    @classmethod
    def build(cls, config: Config, env: Environment) -> Self:
        """Make the algorithm of a run; `ConfigError` if its settings or its critic do not fit."""
        settings: Any = config.system
        algorithm = super().build(config, env)
        key = f"system.algorithm={settings.algorithm}"
        if not isinstance(algorithm.network.example()[1].value, CategoricalValue):
            raise ConfigError(
                f"{key}: needs a critic that predicts a distribution; add "
                "network/critic_head=categorical"
            )
        # Its targets are in units of reward, and have no importance ratios
        for name, only in (("normalize_values", False), ("advantages", "gae")):
            if (value := getattr(settings, name)) != only:
                raise ConfigError(
                    f"{as_override(f'system.{name}', value)}: {key} takes "
                    f"{as_override(f'system.{name}', only)} alone"
                )
        return algorithm

    def targets(
        self, system: System, agent: PPOAgent, rollout: Rollout
    ) -> tuple[PPOAgent, Steps, TargetMetrics]:
        """Compute what PPO does, and the distributions of the value targets."""
        hp, steps = agent.hyperparameters, rollout.steps

        def probs(output: ActorCriticOutput) -> jax.Array:
            value: Any = output.value
            return value.probs()

        output, _, following = state_values(system, agent.policy, rollout, probs)
        target = categorical_lambda_returns(
            steps.reward,
            hp.gamma * (1.0 - steps.terminated),
            following,
            steps.truncated,
            output.value.atoms,
            lambda_=hp.gae_lambda,
        )
        agent, found, metrics = super().targets(system, agent, rollout)
        return agent, Steps(**vars(found), target_probs=target), metrics

    def retarget(self, steps: Any, again: Any) -> Any:
        """Replace advantages and value targets, and their distributions."""
        steps = super().retarget(steps, again)
        return dataclasses.replace(steps, target_probs=again.target_probs)

    def value_loss(self, agent: PPOAgent, steps: Any, value: ValueEstimate) -> jax.Array:
        """Return the cross-entropy of the critic's distributions `[L, M]` to the targets."""
        del agent
        critic: Any = value
        return critic.cross_entropy(steps.target_probs)
