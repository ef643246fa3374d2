"""Input layers: from an observation `[L, S, O...]` to what a torso takes.

A key names an entry of nested dicts and tuples in dots: `agents.0.view`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxppo.networks.checks import check_bool
from jaxppo.types import PyTree


class Flatten(nn.Module):
    """All leaves, flattened per step and concatenated in the tree's order: `[L, S, F]` float32."""

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        """`obs` leaves are `[L, S, O...]`, integers and booleans too."""
        return _flatten(obs)


class Select(nn.Module):
    """One entry of the observation, as it is or flattened: `[L, S, F]` float32."""

    key: str
    flatten: bool = True

    def __post_init__(self) -> None:
        """`ValueError` on a `flatten` that is not a boolean."""
        check_bool("flatten", self.flatten)
        super().__post_init__()

    @nn.compact
    def __call__(self, obs: PyTree) -> PyTree:
        """`ValueError` names the keys of `obs` where `key` is none of them."""
        chosen = _entry(obs, self.key)
        return _flatten(chosen) if self.flatten else chosen


class Concatenate(nn.Module):
    """Entries of the observation, each flattened, in the order given: `[L, S, F]` float32."""

    keys: Sequence[str]

    def __post_init__(self) -> None:
        """`ValueError` unless `keys` is a list that names something."""
        keys: Any = self.keys
        if not isinstance(keys, Sequence) or isinstance(keys, str) or not keys:
            raise ValueError(f"keys={keys} must be a list of at least one key")
        super().__post_init__()

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        """`ValueError` names the keys of `obs` where one of `keys` is none of them."""
        return jnp.concatenate([_flatten(_entry(obs, key)) for key in self.keys], -1)


class Image(nn.Module):
    """One leaf as an image `[L, S, H, W, C]` float32: uint8 divided by 255, others cast."""

    key: str | None = None  # the leaf's name; None: the only one there is
    channel_first: bool = False  # the leaf is [L, S, C, H, W]

    def __post_init__(self) -> None:
        """`ValueError` on a `channel_first` that is not a boolean."""
        check_bool("channel_first", self.channel_first)
        super().__post_init__()

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        """`ValueError` where the leaf has not two or three dimensions, or is not one leaf."""
        given = f"key={'null' if self.key is None else repr(self.key)}"
        leaves = jax.tree.leaves(obs if self.key is None else _entry(obs, self.key))
        if len(leaves) != 1:
            raise ValueError(f"{given} must name one leaf of the observation, {_has(obs)}")
        x = jnp.asarray(leaves[0])
        if x.ndim not in (4, 5):
            raise ValueError(
                f"{given} must name an image of two or three dimensions, not of shape "
                f"{x.shape[2:]}, in the observation, {_has(obs)}"
            )
        if x.ndim == 4:
            x = x[..., None]
        elif self.channel_first:
            x = jnp.moveaxis(x, 2, -1)
        scale = 255.0 if x.dtype == jnp.uint8 else 1.0
        return x.astype(jnp.float32) / scale


class Fuse(nn.Module):
    """Entries of the observation, each through its own layer, concatenated: `[L, S, F]`."""

    parts: Mapping[str, Any]  # key to a layer, which takes the entry as it is: a torso, a chain

    def __post_init__(self) -> None:
        """`ValueError` unless `parts` maps at least one key to a layer."""
        parts: Any = self.parts
        if not isinstance(parts, Mapping) or not parts:
            raise ValueError(f"parts={parts} must map at least one key to a layer")
        for key, layer in parts.items():
            if not callable(layer):
                raise ValueError(f"parts.{key}={layer} must be a layer: give its _target_")
        super().__post_init__()

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        """`ValueError` where a key is missing or a part does not give features `[L, S, F]`."""
        outputs = []
        for key, layer in self.parts.items():
            output = layer(_entry(obs, key))
            if getattr(output, "ndim", None) != 3:
                raise ValueError(
                    f"parts.{key} gives {_shapes(output)} where features [L, S, F] are needed; "
                    "begin its chain with jaxppo.networks.inputs.Flatten or Image"
                )
            outputs.append(output)
        return jnp.concatenate(outputs, -1)


def _flatten(obs: PyTree) -> jax.Array:
    leaves = [x.reshape(*x.shape[:2], -1).astype(jnp.float32) for x in jax.tree.leaves(obs)]
    if not leaves:
        raise ValueError("the observation has no entry to flatten")
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, -1)


def _entry(obs: PyTree, key: str) -> PyTree:
    """The entry that `key` names; `ValueError` with the keys there are."""
    entry = dict(_entries(obs))
    if str(key) not in entry:
        raise ValueError(f"key={key!r} is not in the observation, {_has(obs)}")
    return entry[str(key)]


def _entries(obs: PyTree, prefix: str = "") -> Iterator[tuple[str, PyTree]]:
    """Every entry at every depth with its key in dots."""
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
