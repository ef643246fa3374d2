"""Acting by a stochastic policy, as actor-critic algorithms do."""

from typing import Self

import jax

from jaxppo.algorithms.algorithm import Algorithm
from jaxppo.config.schema import Config
from jaxppo.networks import actor_critic
from jaxppo.networks.actor_critic import ActorCriticOutput
from jaxppo.ops.actions import parameters, to_action
from jaxppo.types import ActorOutput, Environment, Policy, PolicyInfo, PyTree


class ActorCritic(Algorithm):
    """Samples actions from the network's distribution and keeps their log-probabilities."""

    layers = actor_critic.LAYERS

    @classmethod
    def build(cls, config: Config, env: Environment) -> Self:
        """Make the algorithm with the network that `config.network` composes for `env`."""
        return cls(config.system, actor_critic.build(config, env))

    def act(self, policy: Policy, output: ActorCriticOutput, key: jax.Array) -> ActorOutput:
        """Sample from the distribution."""
        del policy
        action, log_prob = output.distribution.sample_and_log_prob(seed=key)
        env_action = to_action(output.distribution, action)
        return ActorOutput(action=action, env_action=env_action, extras=log_prob)

    def greedy(self, policy: Policy, output: ActorCriticOutput) -> PyTree:
        """Return the mode of the distribution."""
        del policy
        return to_action(output.distribution, output.distribution.mode())

    def describe(self, policy: Policy, output: ActorCriticOutput, action: PyTree) -> PolicyInfo:
        """Return the critic's output, and the distribution with its entropy."""
        del policy
        distribution = output.distribution
        raw = distribution.mode() if action is None else action
        leaves = zip(*map(jax.tree.leaves, (raw, to_action(distribution, raw))), strict=True)
        log_prob = distribution.log_prob(raw)
        return PolicyInfo(
            values=output.value.mean(),
            log_probs=log_prob,
            entropies=distribution.entropy(),
            distribution=parameters(distribution, log_prob.shape),
            raw_actions=None if all(one is other for one, other in leaves) else raw,
        )
