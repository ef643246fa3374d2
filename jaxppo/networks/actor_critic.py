"""The feed-forward actor-critic, composed of input layer, torsos and heads."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxppo.types import Discrete, Distribution, PyTree, Space


def encode(observation_space: PyTree, obs: PyTree) -> PyTree:
    """Discrete leaves one-hot as float32 `[L, S, num_values]`; others unchanged."""

    def one(space: Space, x: jax.Array) -> jax.Array:
        return jax.nn.one_hot(x, space.num_values) if isinstance(space, Discrete) else x

    return jax.tree.map(one, observation_space, obs, is_leaf=lambda s: isinstance(s, Space))


class Network(nn.Module):
    """shared -> (actor, critic); parameters lie under these three names."""

    shared: nn.Module
    actor: nn.Module
    critic: nn.Module

    def __call__(self, obs: PyTree) -> tuple[Distribution, jax.Array]:
        """Encoded observations `[L, S, O...]` to (distribution, value) `[L, S]`."""
        x = self.shared(obs)
        return self.actor(x), self.critic(x)


@dataclasses.dataclass(frozen=True)
class FeedForward:
    """A `types.ActorCritic` without memory."""

    network: Network
    observation_space: PyTree

    def init(self, key: jax.Array) -> PyTree:
        """Parameters: a dict with `actor` and `critic`, and `shared` where that has any."""
        obs = jax.tree.map(
            lambda s: (
                jnp.zeros((1, 1), jnp.int32)
                if isinstance(s, Discrete)
                else jnp.zeros((1, 1, *s.shape), s.dtype)
            ),
            self.observation_space,
            is_leaf=lambda s: isinstance(s, Space),
        )
        return self.network.init(key, encode(self.observation_space, obs))["params"]

    def initial_carry(self, num_envs: int) -> PyTree:
        """No memory."""
        del num_envs
        return ()

    def unroll(
        self, params: PyTree, carry: PyTree, obs: PyTree, reset: jax.Array
    ) -> tuple[PyTree, Distribution, jax.Array]:
        """Normalised `obs` `[L, S, O...]` to (carry, distribution, value), steps independent."""
        del reset
        encoded = encode(self.observation_space, obs)
        outputs: Any = self.network.apply({"params": params}, encoded)
        return carry, *outputs
