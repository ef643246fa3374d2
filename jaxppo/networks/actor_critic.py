"""The feed-forward actor-critic, composed of input layer, torsos and heads."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxppo.networks import heads
from jaxppo.types import (
    Discrete,
    Distribution,
    PyTree,
    Space,
    ValueEstimate,
    is_space,
    zeros,
)


def encode(observation_space: PyTree, obs: PyTree) -> PyTree:
    """Discrete leaves one-hot as float32 `[L, S, num_values]`; others unchanged."""

    def one(space: Space, x: jax.Array) -> jax.Array:
        return jax.nn.one_hot(x, space.num_values) if isinstance(space, Discrete) else x

    return jax.tree.map(one, observation_space, obs, is_leaf=is_space)


class Network(nn.Module):
    """input_layer -> shared_torso -> (actor, critic), each a torso and a head.

    Parameters lie under these names. `dtype` is what torsos compute in; the input layer and heads
    compute in float32.
    """

    input_layer: nn.Module
    shared_torso: nn.Module | None
    actor_torso: nn.Module | None
    critic_torso: nn.Module | None
    actor_head: nn.Module
    critic_head: nn.Module
    dtype: Any = jnp.float32

    def __call__(self, obs: PyTree, mask: PyTree) -> tuple[Distribution, ValueEstimate]:
        """Encoded observations `[L, S, O...]`, and a mask or None, to what is said of `[L, S]`."""
        features = _cast(self.input_layer(obs), self.dtype)
        if self.shared_torso is not None:
            features = self.shared_torso(features)
        actor = features if self.actor_torso is None else self.actor_torso(features)
        critic = features if self.critic_torso is None else self.critic_torso(features)
        actor, critic = actor.astype(jnp.float32), critic.astype(jnp.float32)
        masks = () if mask is None else (mask,)
        return self.actor_head(actor, *masks), self.critic_head(critic)


@dataclasses.dataclass(frozen=True)
class FeedForward:
    """A `types.ActorCritic` without memory; `action_mask` is an entry of the observation."""

    network: Network
    observation_space: PyTree
    action_space: PyTree
    action_mask: str | None = None

    def init(self, key: jax.Array) -> PyTree:
        """Parameters, float32, under the names of the network's layers that have any."""
        obs, mask = self.split(zeros(self.observation_space, (1, 1)))
        return self.network.init(key, obs, mask)["params"]

    def initial_carry(self, num_envs: int) -> PyTree:
        """No memory."""
        del num_envs
        return ()

    def unroll(
        self,
        params: PyTree,
        carry: PyTree,
        obs: PyTree,
        reset: jax.Array,
        noise_key: jax.Array | None = None,
    ) -> tuple[PyTree, Distribution, ValueEstimate]:
        """Normalised `obs` `[L, S, O...]` to (carry, distribution, value), steps independent."""
        del reset
        if self.network.dtype != jnp.float32:
            params = {
                name: _cast(part, self.network.dtype) if name.endswith("_torso") else part
                for name, part in params.items()
            }
        noise = None if noise_key is None else {"noise": noise_key}
        outputs: Any = self.network.apply({"params": params}, *self.split(obs), rngs=noise)
        return carry, *outputs

    def empty_masks(self, obs: PyTree) -> jax.Array:
        """Where raw `obs` `[L, S, O...]` carries an action mask that allows nothing, `[L, S]`."""
        if self.action_mask is None:
            return jnp.zeros(jax.tree.leaves(obs)[0].shape[:2], bool)
        return heads.empty_masks(self.action_space, obs[self.action_mask])

    def split(self, obs: PyTree) -> tuple[PyTree, PyTree]:
        """What the input layer sees, and the mask or None."""
        encoded = encode(self.observation_space, obs)
        if self.action_mask is None:
            return encoded, None
        rest = {key: x for key, x in encoded.items() if key != self.action_mask}
        return rest, encoded[self.action_mask]


def _cast(tree: PyTree, dtype: Any) -> PyTree:
    return jax.tree.map(lambda x: x.astype(dtype), tree)
