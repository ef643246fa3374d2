"""A user's code that fails in a marked line, in each place that takes code of a user."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from broken_envs import Clock
from own_envs import Count
from simulators import Known

from jaxppo.algorithms.ppo import PPO


class Env(Count):
    def step(self, key: jax.Array, state: jax.Array, action: jax.Array) -> Any:
        if action > 0:  # Env
            state = state + 1
        return super().step(key, state, action)


class OfGymnax(Clock):
    def reset_env(self, key: jax.Array, params: Any) -> Any:
        obs, state = super().reset_env(key, params)
        return np.sin(obs), state  # OfGymnax


class OfGymnasium(Known):
    def step(self, action: Any) -> Any:
        raise RuntimeError("two\nlines")  # OfGymnasium


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.Dense(3)(x)
        return y @ x  # Layer


def objective(agent: Any, steps: Any, distribution: Any, log_prob: jax.Array) -> jax.Array:
    return log_prob[log_prob > 0]  # objective


def player(observation: Any, key: jax.Array) -> Any:
    return jnp.int32(0) if observation["heap"][0] else jnp.int32(1)  # player


def optimizer(learning_rate: Any) -> Any:
    return optax.adam(float(learning_rate))  # optimizer


class Algorithm(PPO):
    def loss(self, *args: Any) -> Any:
        loss, metrics = super().loss(*args)
        return jnp.stack([loss, [0.0, 1.0][loss.astype(int)]]), metrics  # Algorithm
