"""A plain PPO on one size: one file, two networks, a scan of updates, as PureJaxRL shows the way.

Nothing in it is ours but the size: flax, distrax and optax as their documentation uses them, and
gymnax's CartPole with its own resets. What a reader writes in an afternoon, so that a comparison
needs nothing to be installed: `benchmarks.peers` and `benchmarks.accelerator` time it.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import distrax
import gymnax
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from benchmarks.blocks import Size, size_of
from benchmarks.peers.updates import serve_updates

GAMMA, LAMBDA, CLIP, ENTROPY, VALUE = 0.99, 0.95, 0.2, 0.01, 0.5


class ActorCritic(nn.Module):
    """Two networks of equal layers: logits, and a value."""

    layers: tuple[int, ...]
    activation: str

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[distrax.Categorical, jax.Array]:
        """Return the policy and the value of observations `[..., 4]`."""
        logits, value = obs, obs
        for width in self.layers:
            logits = getattr(nn, self.activation)(nn.Dense(width)(logits))
            value = getattr(nn, self.activation)(nn.Dense(width)(value))
        policy = distrax.Categorical(nn.Dense(2)(logits))
        return policy, jnp.squeeze(nn.Dense(1)(value), -1)


def learner(size: Size) -> tuple[Any, Callable[[Any], Any]]:
    """Return the state before training, and one update of it."""
    env, env_params = gymnax.make("CartPole-v1")
    reset = jax.vmap(env.reset, (0, None))
    step = jax.vmap(env.step, (0, 0, 0, None))
    network = ActorCritic(size.layers, size.activation)
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4, eps=1e-5))

    def act(carry: Any, _: None) -> tuple[Any, Any]:
        params, env_state, obs, key = carry
        key, act_key, step_key = jax.random.split(key, 3)
        policy, value = network.apply(params, obs)
        action, log_prob = policy.sample_and_log_prob(seed=act_key)
        keys = jax.random.split(step_key, size.num_envs)
        after, env_state, reward, *ended, _ = step(keys, env_state, action, env_params)
        done = functools.reduce(jnp.logical_or, ended)  # gymnax 1.0 says how it ended
        return (params, env_state, after, key), (obs, action, log_prob, value, reward, done)

    def advantage(after: Any, seen: Any) -> tuple[Any, jax.Array]:
        advantages, next_value = after
        value, reward, done = seen
        delta = reward + GAMMA * next_value * (1 - done) - value
        advantages = delta + GAMMA * LAMBDA * (1 - done) * advantages
        return (advantages, value), advantages

    def loss(params: Any, batch: Any) -> jax.Array:
        obs, action, old_log_prob, old_value, advantages, targets = batch
        policy, value = network.apply(params, obs)
        ratio = jnp.exp(policy.log_prob(action) - old_log_prob)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantages
        near = old_value + jnp.clip(value - old_value, -CLIP, CLIP)
        errors = jnp.maximum((value - targets) ** 2, (near - targets) ** 2)
        gain = jnp.minimum(ratio * advantages, clipped).mean() + ENTROPY * policy.entropy().mean()
        return VALUE * 0.5 * errors.mean() - gain

    def minibatch(carry: Any, batch: Any) -> tuple[Any, None]:
        params, moments = carry
        changes, moments = optimizer.update(jax.grad(loss)(params, batch), moments, params)
        return (optax.apply_updates(params, changes), moments), None

    def epoch(carry: Any, key: jax.Array, batch: Any) -> tuple[Any, None]:
        order = jax.random.permutation(key, size.steps_per_update)
        pieces = jax.tree.map(
            lambda x: x[order].reshape(size.num_minibatches, -1, *x.shape[1:]), batch
        )
        return jax.lax.scan(minibatch, carry, pieces)

    def update(state: Any) -> Any:
        params, moments, env_state, obs, key = state
        carry = (params, env_state, obs, key)
        carry, rollout = jax.lax.scan(act, carry, None, size.rollout_length)
        _, env_state, last_obs, key = carry
        obs, action, log_prob, value, reward, done = rollout
        last = jnp.zeros(size.num_envs), network.apply(params, last_obs)[1]
        _, advantages = jax.lax.scan(advantage, last, (value, reward, done), reverse=True)
        batch = obs, action, log_prob, value, advantages, advantages + value
        batch = jax.tree.map(lambda x: x.reshape(size.steps_per_update, *x.shape[2:]), batch)
        key, shuffle_key = jax.random.split(key)
        keys = jax.random.split(shuffle_key, size.num_epochs)
        learn = functools.partial(epoch, batch=batch)
        (params, moments), _ = jax.lax.scan(learn, (params, moments), keys)
        return params, moments, env_state, last_obs, key

    key, init_key, reset_key = jax.random.split(jax.random.key(0), 3)
    params = network.init(init_key, jnp.zeros((1, 4)))
    obs, env_state = reset(jax.random.split(reset_key, size.num_envs), env_params)
    return (params, optimizer.init(params), env_state, obs, key), update


if __name__ == "__main__":
    size = size_of(sys.argv[1])
    serve_updates(size, *learner(size))
