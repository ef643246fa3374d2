"""rejax's PPO or PQN on one size, timed block by block.

Started by `benchmarks.peers` in rejax's environment.
"""

import sys
import time

import jax
from blocks import SIZES, serve
from flax import linen as nn
from gymnax.environments.classic_control.cartpole import CartPole
from rejax import PPO, PQN
from rejax.networks import DiscreteQNetwork, EpsilonGreedyPolicy

size = SIZES[sys.argv[1]]
is_pqn = sys.argv[2] == "pqn"


class FiveValues(CartPole):
    """gymnax's CartPole as rejax 0.1 steps it: one `done` instead of two flags."""

    def step(self, key, state, action, params=None):
        """(observation, state, reward, done, info)."""
        obs, state, reward, terminated, truncated, info = super().step(key, state, action, params)
        return obs, state, reward, terminated | truncated, info


env = FiveValues()
agent_kwargs = {"hidden_layer_sizes": size.layers, "activation": size.activation}
learner = (PQN if is_pqn else PPO).create(
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
    learner = learner.replace(agent=agent)


def updates(state):
    """A block."""
    step = lambda _, s: learner.train_iteration(s)  # noqa: E731
    return jax.lax.fori_loop(0, size.updates_per_block, step, state)


state = learner.init_state(jax.random.key(0))
start = time.perf_counter()
program = jax.jit(updates, donate_argnums=0).lower(state).compile()
compile_seconds = time.perf_counter() - start


def block():
    """Train on from where the last block ended."""
    global state
    state = jax.block_until_ready(program(state))


block()
serve(block, size.steps_per_block, compile_seconds)
