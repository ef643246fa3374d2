"""Acting by a stochastic policy, as actor-critic algorithms do."""

import jax

from jaxppo.algorithms.algorithm import Algorithm
from jaxppo.config.schema import Config
from jaxppo.networks import actor_critic
from jaxppo.networks.actor_critic import ActorCriticOutput
from jaxppo.ops.actions import to_action
from jaxppo.types import Acted, Environment, Policy, PyTree


class ActorCritic(Algorithm):
    """Samples actions from the network's distribution and keeps their log-probabilities."""

    layers = actor_critic.LAYERS

    @classmethod
    def build(cls, config: Config, env: Environment) -> "ActorCritic":
        """Make the algorithm with the network that `config.network` composes for `env`."""
        return cls(config.system, actor_critic.build(config, env))

    def act(self, policy: Policy, output: ActorCriticOutput, key: jax.Array) -> Acted:
        """Sample from the distribution."""
        del policy
        action, log_prob = output.distribution.sample_and_log_prob(seed=key)
        env_action = to_action(output.distribution, action)
        return Acted(action=action, env_action=env_action, kept=log_prob)

    def greedy(self, policy: Policy, output: ActorCriticOutput) -> PyTree:
        """Return the mode of the distribution."""
        del policy
        return to_action(output.distribution, output.distribution.mode())
