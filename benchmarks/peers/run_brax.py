"""Brax's PPO on one size, timed block by block: started by `benchmarks.peers` in its environment.

The third argument names an environment of Brax; without it, it is gymnax's CartPole.

Its training is one function, so that it is timed at its callback after each of its epochs.
"""

import sys
import time

import gymnax
import jax
import jax.numpy as jnp
from brax import envs
from brax.envs.base import Env, State
from brax.training.agents.ppo import networks, train
from flax import linen

import benchmarks.peers.brax_on_jax  # noqa: F401
from benchmarks.blocks import peak_mib, say, size_of

size = size_of(sys.argv[1])
name = sys.argv[3] if len(sys.argv) > 3 else None


class CartPole(Env):
    """gymnax's, in Brax's contract; its wrappers end and reset episodes."""

    def __init__(self):
        self.env, self.params = gymnax.make("CartPole-v1")

    observation_size = 4
    action_size = 2
    backend = "gymnax"

    def reset(self, key):
        """A fresh episode."""
        obs, state = self.env.reset_env(key, self.params)
        zero = jnp.zeros(())
        return State((state, key), obs, zero, zero)

    def step(self, state, action):
        """One step; the action is the larger of the policy's two numbers."""
        inner, key = state.pipeline_state
        key, step_key = jax.random.split(key)
        obs, inner, reward, done, _ = self.env.step_env(
            step_key, inner, jnp.argmax(action).astype(jnp.int32), self.params
        )
        return state.replace(
            pipeline_state=(inner, key), obs=obs, reward=reward, done=done.astype(jnp.float32)
        )


def network_factory(obs_size, action_size, preprocess_observations_fn):
    """Two logits through a Gaussian of two numbers, whose larger one is the action."""
    return networks.make_ppo_networks(
        obs_size,
        action_size,
        preprocess_observations_fn,
        policy_hidden_layer_sizes=size.layers,
        value_hidden_layer_sizes=size.layers,
        activation=getattr(linen, size.activation),
    )


timed = None


def callback(_steps, _make_policy, _params):
    """After every epoch, the first of which compiles; also once before them all."""
    global timed
    now = time.perf_counter()
    callback.calls += 1
    if callback.calls == 2:
        say({"compile_seconds": now - timed})
    elif callback.calls > 2:
        say({"speed": size.steps_per_block / (now - timed), "peak_mib": peak_mib()})
    if callback.calls >= 2 and not sys.stdin.readline():
        sys.exit(0)
    timed = time.perf_counter()


callback.calls = 0
train.train(
    envs.get_environment(name, backend="positional") if name else CartPole(),
    num_timesteps=10_000 * size.steps_per_block,
    num_evals=10_001,
    episode_length=1000 if name else 500,
    num_envs=size.num_envs,
    unroll_length=size.rollout_length,
    batch_size=size.num_envs // size.num_minibatches,
    num_minibatches=size.num_minibatches,
    num_updates_per_batch=size.num_epochs,
    learning_rate=3e-4,
    max_grad_norm=0.5,
    network_factory=network_factory,
    policy_params_fn=callback,
    run_evals=False,
)
