"""Actions as the environment takes them, and masks of legal actions."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.types import Discrete, MultiDiscrete, PyTree, Space

FORBIDDEN = 5e8  # logits of greater magnitude are those of illegal values: see ops.distributions


def to_action(distribution: Any, value: PyTree) -> PyTree:
    """Return the environment's action for a raw action; without a `to_action` they are equal."""
    return distribution.to_action(value) if hasattr(distribution, "to_action") else value


def log_probs(distribution: Any, value: PyTree) -> jax.Array:
    """Return the log-probability of each dimension of a raw action, `[..., C]`.

    They add up to `log_prob`. `distribution` is one of `ops.distributions`: see `has_dimensions`.
    """
    if hasattr(distribution, "distributions"):
        parts = jax.tree.map(log_probs, distribution.distributions, value, is_leaf=is_distribution)
        return jnp.concatenate(jax.tree.leaves(parts), axis=-1)
    each = dataclasses.replace(distribution, event_ndim=0).log_prob(value)
    return each.reshape(*distribution.batch_shape, -1)


def has_dimensions(distribution: Any) -> bool:
    """Return whether `log_probs` takes a distribution."""
    if hasattr(distribution, "distributions"):
        parts = jax.tree.leaves(distribution.distributions, is_leaf=is_distribution)
        return all(map(has_dimensions, parts))
    return hasattr(distribution, "event_ndim")


def largest_logit(distribution: Any) -> jax.Array:
    """Return the greatest magnitude of a legal logit of its categorical parts; 0 without any."""
    found = [jnp.zeros((), jnp.float32)]
    if hasattr(distribution, "distributions"):
        parts = jax.tree.leaves(distribution.distributions, is_leaf=is_distribution)
        found += map(largest_logit, parts)
    elif hasattr(distribution, "event_ndim") and hasattr(distribution, "logits"):
        size = jnp.abs(distribution.logits)
        found.append(jnp.max(jnp.where(size < FORBIDDEN, size, 0.0)))
    return functools.reduce(jnp.maximum, found)


def is_distribution(x: Any) -> bool:
    """Return whether this is a distribution: one of ours or of distrax."""
    return hasattr(x, "log_prob")


def parameters(distribution: Any, lead: tuple[int, ...]) -> dict[str, Any]:
    """Return the arrays `[*lead, ...]` of a distribution by name, such as loc and scale.

    If it has none of its own, such as distrax's Independent, they are those of the distributions
    that it consists of; of a product, dicts by part. Arrays without `lead` are repeated.
    """
    inner: dict[str, Any] = {}
    own: dict[str, Any] = {}

    def of_parts(parts: Any) -> Any:
        if hasattr(parts, "log_prob"):
            return parameters(parts, lead)
        pairs = parts.items() if isinstance(parts, Mapping) else enumerate(parts)
        return {str(key): of_parts(part) for key, part in pairs}

    if isinstance(getattr(distribution, "distributions", None), Mapping | tuple | list):
        return dict(of_parts(distribution.distributions))
    for name, value in vars(distribution).items():
        if hasattr(value, "log_prob"):
            inner |= parameters(value, lead)
        elif isinstance(value, jax.Array):
            first, rest = value.shape[: len(lead)], value.shape[len(lead) :]
            has_lead = len(first) == len(lead) and all(
                n in (1, size) for n, size in zip(first, lead, strict=True)
            )
            shape = (*lead, *rest) if has_lead else (*lead, *value.shape)
            own[name.strip("_")] = jnp.broadcast_to(value, shape)
    return own or inner


def flat_mask(space: Discrete | MultiDiscrete, mask: PyTree) -> jax.Array | None:
    """Return the legal values of all components, concatenated: `[L, S, sum num_values]` bool.

    `mask` may have that shape, be `[L, S, A..., n]` if all components have n values, or be a list
    of one mask `[L, S, num_values[i]]` for each. None gives None. `ValueError` if it does not fit
    the space.
    """
    if mask is None:
        return None
    sizes = component_sizes(space)
    if isinstance(mask, tuple | list):
        shapes = [jnp.shape(m)[2:] for m in mask]
        if shapes != [(n,) for n in sizes]:
            raise ValueError(f"the action mask has shapes {shapes}, which do not fit {space}")
        return jnp.concatenate([jnp.asarray(m, bool) for m in mask], -1)
    flat = (sum(sizes),)
    forms: list[tuple[int, ...]] = [flat]
    if isinstance(space, MultiDiscrete) and len(set(sizes)) == 1:
        forms += [(len(sizes), sizes[0]), (*space.shape, sizes[0])]
    shape = jnp.shape(mask)
    if shape[2:] not in forms:
        raise ValueError(
            f"the action mask has shape {shape[2:]}, which does not fit {space}: "
            f"{' or '.join(map(str, dict.fromkeys(forms)))} is needed"
        )
    return jnp.asarray(mask, bool).reshape(*shape[:2], *flat)


def empty_masks(action_space: PyTree, mask: PyTree) -> jax.Array:
    """Return where a discrete component has no legal value, `[L, S]`; `mask` as heads take it."""
    empty = []
    for space, part in _masks(action_space, mask):
        flat = flat_mask(space, part)
        assert flat is not None
        ends = np.cumsum(component_sizes(space))
        empty += [~jnp.any(legal, -1) for legal in jnp.split(flat, ends[:-1], -1)]
    if not empty:
        raise ValueError("the action mask has no entries")
    return functools.reduce(jnp.logical_or, empty)


def component_sizes(space: Discrete | MultiDiscrete) -> tuple[int, ...]:
    """Return the number of values of each component of a discrete space."""
    return (space.num_values,) if isinstance(space, Discrete) else space.num_values


def _masks(action_space: PyTree, mask: PyTree) -> Iterator[tuple[Any, PyTree]]:
    """Yield every masked discrete space with its mask."""
    if mask is None:
        return
    if isinstance(action_space, Discrete | MultiDiscrete):
        yield action_space, mask
    elif isinstance(action_space, Space):
        check_no_mask(action_space, mask)
    else:
        for key, part in part_masks(action_space, mask).items():
            yield from _masks(action_space[key], part)


def part_masks(parts: PyTree, mask: PyTree) -> dict[Any, PyTree]:
    """Return the mask, or None, of each part of a dict or tuple; `ValueError` on other parts."""
    keys = list(parts) if isinstance(parts, Mapping) else list(range(len(parts)))
    given: dict[Any, PyTree] | None = {} if mask is None else None
    if isinstance(mask, Mapping | tuple | list):
        given = dict(mask if isinstance(mask, Mapping) else enumerate(mask))
    if given is None or not set(given) <= set(keys):
        has = "is one array" if given is None else f"has the parts {list(given)}"
        raise ValueError(f"the action mask {has}, but the action has the parts {keys}")
    return {key: given.get(key) for key in keys}


def check_no_mask(space: PyTree, mask: PyTree) -> None:
    """Raise `ValueError` on a mask of actions that are not discrete."""
    if mask is not None:
        raise ValueError(f"an action mask needs discrete actions, not {space}")
