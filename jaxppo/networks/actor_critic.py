"""The actor-critic, composed of input layer, torsos, memories and heads."""

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


SHARED = ("shared_torso", "shared_memory")
ACTOR = ("actor_torso", "actor_memory", "actor_post_torso")
CRITIC = ("critic_torso", "critic_memory", "critic_post_torso")
MEMORIES = tuple(name for name in (*SHARED, *ACTOR, *CRITIC) if name.endswith("_memory"))


class Network(nn.Module):
    """input_layer -> SHARED -> (ACTOR -> actor_head, CRITIC -> critic_head); None: left out.

    Parameters lie under these names. `dtype` is what torsos take; the input layer, memories
    and heads compute in float32.
    """

    input_layer: nn.Module
    shared_torso: nn.Module | None
    shared_memory: nn.Module | None
    actor_torso: nn.Module | None
    actor_memory: nn.Module | None
    actor_post_torso: nn.Module | None
    critic_torso: nn.Module | None
    critic_memory: nn.Module | None
    critic_post_torso: nn.Module | None
    actor_head: nn.Module
    critic_head: nn.Module
    dtype: Any = jnp.float32

    def __call__(
        self, carry: PyTree, obs: PyTree, mask: PyTree, reset: jax.Array
    ) -> tuple[PyTree, Distribution, ValueEstimate]:
        """Carry `[S, ...]`, encoded observations `[L, S, O...]`, a mask or None, reset `[L, S]`.

        Gives the next carry and what is said of `[L, S]`.
        """
        after = {}

        def through(names: tuple[str, ...], x: Any) -> Any:
            for name in names:
                layer: Any = getattr(self, name)
                if name in MEMORIES and layer is not None:
                    after[name], x = layer(carry[name], _cast(x, jnp.float32), reset)
                elif layer is not None:
                    x = layer(_cast(x, self.dtype))
            return x

        features = through(SHARED, self.input_layer(obs))
        actor, critic = through(ACTOR, features), through(CRITIC, features)
        actor, critic = actor.astype(jnp.float32), critic.astype(jnp.float32)
        masks = () if mask is None else (mask,)
        return after, self.actor_head(actor, *masks), self.critic_head(critic)


@dataclasses.dataclass(frozen=True)
class Composed:
    """The `types.ActorCritic` of a `Network`; `action_mask` is an entry of the observation.

    The carry is a dict of the memories that there are, by name; without any it is empty.
    """

    network: Network
    observation_space: PyTree
    action_space: PyTree
    action_mask: str | None = None

    def init(self, key: jax.Array) -> PyTree:
        """Parameters, float32, under the names of the network's layers that have any."""
        obs, mask = self.split(zeros(self.observation_space, (1, 1)))
        reset = jnp.ones((1, 1), bool)
        return self.network.init(key, self.initial_carry(1), obs, mask, reset)["params"]

    def initial_carry(self, num_envs: int) -> PyTree:
        """The memories that open an episode, `[num_envs, ...]`."""
        memories = {name: getattr(self.network, name) for name in MEMORIES}
        return {name: m.initial_carry(num_envs) for name, m in memories.items() if m is not None}

    def unroll(
        self,
        params: PyTree,
        carry: PyTree,
        obs: PyTree,
        reset: jax.Array,
        noise_key: jax.Array | None = None,
    ) -> tuple[PyTree, Distribution, ValueEstimate]:
        """Normalised `obs` `[L, S, O...]` to (carry, distribution, value)."""
        if self.network.dtype != jnp.float32:
            params = {
                name: _cast(part, self.network.dtype) if name.endswith("_torso") else part
                for name, part in params.items()
            }
        noise = None if noise_key is None else {"noise": noise_key}
        obs, mask = self.split(obs)
        outputs: Any = self.network.apply({"params": params}, carry, obs, mask, reset, rngs=noise)
        return outputs

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
