"""rejax's PPO or PQN on one size, of `benchmarks.peers` and `benchmarks.accelerator`."""

import sys

import jax
from flax import linen as nn
from gymnax.environments.classic_control.cartpole import CartPole
from rejax import PPO, PQN
from rejax.networks import DiscreteQNetwork, EpsilonGreedyPolicy

from benchmarks.blocks import size_of
from benchmarks.peers.updates import serve_updates


class FiveValues(CartPole):
    """gymnax's CartPole as rejax 0.1 steps it: one `done` instead of two flags."""

    def step(self, key, state, action, params=None):
        """(observation, state, reward, done, info)."""
        obs, state, reward, terminated, truncated, info = super().step(key, state, action, params)
        return obs, state, reward, terminated | truncated, info


def learner(size, algorithm="ppo"):
    """Return the state before training, and one update of it."""
    is_pqn = algorithm == "pqn"
    env = FiveValues()
    agent_kwargs = {"hidden_layer_sizes": size.layers, "activation": size.activation}
    found = (PQN if is_pqn else PPO).create(
        env=env,
        env_params=env.default_params,
        agent_kwargs={} if is_pqn else agent_kwargs,
        num_envs=size.num_envs,
        num_steps=size.rollout_length,
        num_epochs=size.num_epochs,
        num_minibatches=size.num_minibatches,
        learning_rate=3e-4,
        max_grad_norm=0.5,
    )
    if is_pqn:  # whose settings do not reach the widths of its network
        activation = getattr(nn, size.activation)
        agent = EpsilonGreedyPolicy(DiscreteQNetwork)(
            hidden_layer_sizes=size.layers,
            action_dim=2,
            activation=lambda x: activation(nn.LayerNorm()(x)),
        )
        found = found.replace(agent=agent)
    return found.init_state(jax.random.key(0)), found.train_iteration


if __name__ == "__main__":
    size = size_of(sys.argv[1])
    serve_updates(size, *learner(size, sys.argv[2]))
