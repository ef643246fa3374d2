"""Input layers: from an observation `[L, S, O...]` to what a torso takes."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxppo.types import PyTree


class Flatten(nn.Module):
    """All leaves, flattened per step and concatenated in the tree's order: `[L, S, F]` float32."""

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        """`obs` leaves are `[L, S, O...]`, integers and booleans too."""
        leaves = [x.reshape(*x.shape[:2], -1).astype(jnp.float32) for x in jax.tree.leaves(obs)]
        return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, -1)


class Select(nn.Module):
    """One entry of a dict observation, flattened: `[L, S, F]` float32."""

    key: str

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        """`obs` is a dict that holds `key`; `ValueError` names the keys where it is not."""
        if not isinstance(obs, dict) or self.key not in obs:
            has = f"has {sorted(obs)}" if isinstance(obs, dict) else "is no dict"
            raise ValueError(f"key={self.key!r} is not in the observation, which {has}")
        return Flatten()(obs[self.key])
