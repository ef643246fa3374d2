"""Input layers: map an observation `[L, S, O...]` to the input of a torso.

A key names an entry of nested dicts and tuples, with dots: `agents.0.view`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxppo.networks.checks import Checked, check_layers
from jaxppo.types import PyTree


class Flatten(nn.Module):
    """All leaves, flattened per step and concatenated in the tree's order: `[L, S, F]` float32."""

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        """Map `obs` with leaves `[L, S, O...]` of any type, also integers and booleans."""
        return _flatten(obs)


class Select(Checked):
    """One entry of the observation, unchanged or flattened to `[L, S, F]` float32."""

    key: str
    flatten: bool = True

    @nn.compact
    def __call__(self, obs: PyTree) -> PyTree:
        """Return the entry; `ValueError` if `obs` has no such key."""
        chosen = _entry(obs, self.key)
        return _flatten(chosen) if self.flatten else chosen


class Concatenate(nn.Module):
    """Entries of the observation, flattened and joined in the given order: `[L, S, F]` float32."""

    keys: Sequence[str]

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        """Return the concatenated entries; `ValueError` if `obs` lacks a key."""
        return jnp.concatenate([_flatten(_entry(obs, key)) for key in self.keys], -1)


class Image(Checked):
    """One leaf as an image `[L, S, H, W, C]` float32; uint8 is divided by 255."""

    key: str | None = None  # the leaf's name; None: the only leaf
    channel_first: bool = False  # the leaf is [L, S, C, H, W]

    @nn.compact
    def __call__(self, obs: PyTree, *, keep_bytes: bool = False) -> jax.Array:
        """Return the image; `ValueError` unless `key` names one leaf of 2 or 3 dimensions.

        `keep_bytes` leaves uint8 as it is, for a torso that divides by 255.
        """
        given = f"key={'null' if self.key is None else repr(self.key)}"
        leaves = jax.tree.leaves(obs if self.key is None else _entry(obs, self.key))
        if len(leaves) != 1 or jnp.ndim(leaves[0]) not in (4, 5):
            raise ValueError(
                f"{given} must name an image, one leaf of two or three dimensions, and names "
                f"shapes {[jnp.shape(x)[2:] for x in leaves]} in the observation, {_has(obs)}"
            )
        x = jnp.asarray(leaves[0])
        if x.ndim == 4:
            x = x[..., None]
        elif self.channel_first:
            x = jnp.moveaxis(x, 2, -1)
        if x.dtype != jnp.uint8:
            return x.astype(jnp.float32)
        return x if keep_bytes else x.astype(jnp.float32) / 255.0


class Fuse(nn.Module):
    """Entries of the observation, each mapped by its own layer, concatenated: `[L, S, F]`."""

    parts: Mapping[str, Any]  # key to a layer for that entry, such as a torso or a chain

    def __post_init__(self) -> None:
        """Raise `ValueError` unless `parts` maps at least one key to a layer."""
        check_layers("parts", self.parts)
        super().__post_init__()

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        """Return features; `ValueError` if a key is missing or a part gives no `[L, S, F]`."""
        outputs = []
        for key, layer in self.parts.items():
            output = layer(_entry(obs, key))
            if getattr(output, "ndim", None) != 3:
                raise ValueError(
                    f"parts.{key} gives {_shapes(output)}, but must give features [L, S, F]; "
                    "begin its chain with jaxppo.networks.inputs.Flatten or Image"
                )
            outputs.append(output)
        return jnp.concatenate(outputs, -1)


def _flatten(obs: PyTree) -> jax.Array:
    leaves = [x.reshape(*x.shape[:2], -1).astype(jnp.float32) for x in jax.tree.leaves(obs)]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, -1)


def _entry(obs: PyTree, key: str) -> PyTree:
    """Return the entry that `key` names; `ValueError`, with all keys, if there is none."""
    entry = dict(_entries(obs))
    if str(key) not in entry:
        raise ValueError(f"key={key!r} is not in the observation, {_has(obs)}")
    return entry[str(key)]


def _entries(obs: PyTree, prefix: str = "") -> Iterator[tuple[str, PyTree]]:
    """Yield every entry at every depth with its key."""
    if isinstance(obs, Mapping):
        children = [(str(key), child) for key, child in obs.items()]
    elif isinstance(obs, tuple | list):
        children = [(str(i), child) for i, child in enumerate(obs)]
    else:
        return
    for key, child in children:
        yield prefix + key, child
        yield from _entries(child, f"{prefix}{key}.")


def _has(obs: PyTree) -> str:
    keys = [key for key, _ in _entries(obs)]
    return f"which has {sorted(keys)}" if keys else "which is one array"


def _shapes(output: PyTree) -> str:
    return ", ".join(str(jnp.shape(x)) for x in jax.tree.leaves(output)) or "nothing"
