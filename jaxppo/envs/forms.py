"""Forms of spaces and of what environments return, and what is wrong with them, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import raised
from jaxppo.envs.told import UntoldError
from jaxppo.ops import actions
from jaxppo.simulators.faults import ReturnedError, values_of
from jaxppo.types import Box, Discrete, MultiDiscrete, PyTree, bounds, is_space, zeros

MOST = 2**16  # values of one integer of an action, each of which is an output of the network


def box_of(example: Any, low: float = float("-inf"), high: float = float("inf")) -> Box:
    """Return the space of arrays like `example`; booleans are 0 and 1."""
    if example.dtype == bool:
        low, high = 0.0, 1.0
    return Box(tuple(example.shape), jnp.dtype(example.dtype).name, low, high)


def bound_of(x: Any) -> Any:
    """Return a bound of a `Box`: a number if all are equal, otherwise nested tuples."""
    values = np.asarray(x, np.float64)
    first = float(values.flat[0]) if values.size else 0.0

    def nested(row: Any) -> Any:
        return tuple(map(nested, row)) if isinstance(row, list) else row

    return first if (values == first).all() else nested(values.tolist())


def integers(space: Any, low: np.ndarray, high: np.ndarray, *, simulated: bool = False) -> Any:
    """Return the `MultiDiscrete` of arrays of integers from `low` to `high`.

    `ConfigError` if they are not bounded, or if those of an environment in JAX do not start at 0.
    """
    low, high = (np.asarray(bound, np.float64) for bound in (low, high))
    bounded = (high >= low) & (high - low < MOST)
    if not np.all(bounded & (simulated | (low == 0))):
        raise ConfigError(
            f"env: the action space {line(space)} must start at 0 and have a finite high, at least "
            f"low, for every integer, and below {MOST:,} values; map its actions in a wrapper"
        )
    sizes = tuple(int(x) + 1 for x in (high - low).ravel())
    return MultiDiscrete(sizes, high.shape, bound_of(low.astype(np.int64)) if low.any() else 0)


def limits(space: PyTree) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the name, the lowest and the highest values of each array of a tree of spaces."""
    for path, one in jax.tree.leaves_with_path(space, is_leaf=is_space):
        low, high = bounds(one)
        if entry_name(path) == "last_action" and isinstance(one, Discrete):
            low = low - 1  # of `env.extras`: an episode starts without a last action
        yield jax.tree_util.keystr(path), low, high


def entry_name(path: Any) -> str:
    """Return the name of the first entry of a path in a tree; "" for the whole tree."""
    return jax.tree_util.keystr(path[:1], simple=True)


def is_integer(x: Any) -> bool:
    """Return whether `x` is an integer of Python or NumPy."""
    return isinstance(x, int | np.integer) and not isinstance(x, bool)


def some_legal(mask: jax.Array) -> jax.Array:
    """Return masks `[..., A]`, in which all is legal where nothing was."""
    return mask | ~mask.any(-1, keepdims=True)


def entry_of(tree: PyTree, name: str | None) -> PyTree:
    """Return an entry of a dict; None if it has none of that name, or is no dict."""
    return tree.get(name) if isinstance(tree, Mapping) else None


def random_action(space: PyTree, key: jax.Array, mask: PyTree) -> PyTree:
    """Draw one action of a space; with a mask, a legal one."""
    if isinstance(space, Box):
        low, high = (jnp.broadcast_to(jnp.asarray(x), space.shape) for x in (space.low, space.high))
        bounded = jnp.isfinite(low) & jnp.isfinite(high)
        inside = jax.random.uniform(key, space.shape) * jnp.where(bounded, high - low, 0.0) + low
        normal = jnp.clip(jax.random.normal(key, space.shape), low, high)
        return jnp.where(bounded, inside, normal).astype(space.dtype)
    if isinstance(space, Discrete | MultiDiscrete):
        sizes = actions.component_sizes(space)
        legal = jnp.ones(sum(sizes), bool)
        if mask is not None:
            flat = actions.flat_mask(space, jax.tree.map(lambda x: x[None, None], mask))
            legal = legal if flat is None else flat[0, 0]
        logits = jnp.split(jnp.where(legal, 0.0, -jnp.inf), np.cumsum(sizes)[:-1])
        keys = jax.random.split(key, len(sizes))
        parts = [jax.random.categorical(k, x) for k, x in zip(keys, logits, strict=True)]
        shape = () if isinstance(space, Discrete) else space.shape
        return jnp.stack(parts).astype(jnp.int32).reshape(shape)
    names = list(space) if isinstance(space, Mapping) else list(range(len(space)))
    keys = jax.random.split(key, len(names))
    masks = mask if isinstance(mask, Mapping) else dict(enumerate(mask or ()))
    drawn = {
        name: random_action(space[name], k, masks.get(name))
        for name, k in zip(names, keys, strict=True)
    }
    return drawn if isinstance(space, Mapping) else tuple(drawn.values())


def line(x: Any) -> str:
    """Return an object or an error on one line; an error as `raised` says it."""
    return raised(x) if isinstance(x, BaseException) else " ".join(repr(x).split())


def returned(function: str, found: Any, names: str) -> Any:
    """Return the values of a function of an environment; `ConfigError` if they are not as many.

    `names` are theirs, such as "state, observation".
    """
    try:
        return values_of(found, names)
    except ReturnedError as error:
        raise ConfigError(f"{function}: {error}") from error


def problems(env: Any) -> list[str]:
    """Return errors in structures, shapes and data types of `reset` and `step`, in words.

    The environment is traced but not run. An exception counts as an error.
    """
    for name in ("observation_space", "action_space"):
        spaces = jax.tree.leaves(getattr(env, name), is_leaf=is_space)
        acts = name == "action_space"
        if wrong := [problem for space in spaces for problem in space_problems(space, acts)]:
            return [f"{name}: {wrong[0]}"]
    # B: 3 is a number that a shape of a single environment is unlikely to have by mistake
    num = 3 * env.num_agents
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), num))
    space, action = jax.eval_shape(lambda: zeros((env.observation_space, env.action_space), (num,)))
    found: list[str] = []
    try:
        called = "reset: does not run under jax"
        state, obs = jax.eval_shape(env.reset, keys)
        found += differences("reset: observation", obs, space)
        called = f"step: does not run under jax with an action of its space {env.action_space}"
        after, step = jax.eval_shape(env.step, keys, state, action)
    except UntoldError:  # not a fault of the environment
        raise
    except ConfigError as error:
        return [*found, str(error)]
    except Exception as error:  # an environment may raise anything while it is traced
        return [*found, f"{called}: {raised(error)}"]
    found += differences("step: observation", step.obs, space)
    found += differences("step: final_observation", step.final_observation, space)
    found += differences("step: state", after, state, "reset")
    for name in ("reward", "terminated", "truncated"):
        wanted = jax.ShapeDtypeStruct((num,), "float32" if name == "reward" else "bool")
        found += differences(f"step: {name}", getattr(step, name), wanted, "the contract")
    return found


def space_problems(space: Any, acts: bool = False) -> Iterator[str]:
    """Yield errors of one space, in words; `acts` says that it is of actions."""
    many = isinstance(space, MultiDiscrete)
    counts = np.asarray(getattr(space, "num_values", 1))
    if counts.dtype.kind not in "iu" or (many and not counts.ndim):
        wanted = "a tuple of integers, such as (3, 2)" if many else "an integer, such as 3"
        yield f"{line(space)}: num_values must be {wanted}"
        return
    try:
        like = jax.eval_shape(lambda: zeros(space))
        low, high = (np.broadcast_to(bound, like.shape) for bound in bounds(space))
    except Exception as error:  # as NumPy and JAX say it
        yield f"{line(space)}: {raised(error)}"
        return
    if not like.size:
        yield f"{line(space)}: has no entries"
    elif not (low <= high).all():
        yield f"{line(space)}: low must be at most high everywhere, with at least 1 value"
    elif acts and jnp.issubdtype(like.dtype, jnp.floating) and like.dtype != jnp.float32:
        yield f"{line(space)}: actions are float32; convert them in step"
    elif np.any(getattr(space, "start", 0)):
        yield f"{line(space)}: start={space.start} is for simulators; count from 0 in JAX"


def differences(what: str, found: PyTree, wanted: PyTree, source: str = "the space") -> list[str]:
    """Return where arrays `[B, ...]` have another structure, shape or type than `source` says."""
    names, others = (
        [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(tree)]
        for tree in (found, wanted)
    )
    here: Any = jax.tree.structure(found)
    there: Any = jax.tree.structure(wanted)
    if str(here) != str(there) and here != there:  # equal static parts may have other texts
        return [f"{what} has entries {names}, {source} says {others}"]
    lines = []
    for name, *pair in zip(names, *map(jax.tree.leaves, (found, wanted)), strict=True):
        form, other = (f"{x.dtype.name}{list(x.shape[1:])}" for x in pair)
        if form != other:
            lines.append(f"{what}{name} is {form}, {source} says {other}")
    return lines


def check_spaces(name: str, one: Any, *, limit: bool = True) -> None:
    """Raise `ConfigError` unless a user's class has spaces of `types` and a valid time limit.

    Without `limit` it needs no time limit.
    """
    needs = ["observation_space", "action_space", *["time_limit"] * limit, "reset", "step"]
    for part in needs:
        if not hasattr(one, part):
            raise ConfigError(
                f"{name}: cannot be made an environment, since it has no {part}: it needs "
                f"{', '.join(needs[:-1])} and step, or gymnax's contract; see docs/environments.md"
            )
    for part in ("observation_space", "action_space"):
        space = getattr(one, part)
        leaves = jax.tree.leaves(space, is_leaf=lambda x: is_space(x) or isinstance(x, list))
        wrong = [leaf for leaf in leaves if not is_space(leaf)]
        if wrong or not leaves:
            raise ConfigError(
                f"{name}: {part} is {line(wrong[0] if wrong else space)}; it must "
                "be Discrete, MultiDiscrete or Box of jaxppo.types, or a dict or tuple of these"
            )
    length = getattr(one, "time_limit", None)
    if length is not None and not (is_integer(length) and length >= 1):
        raise ConfigError(
            f"{name}: time_limit={line(length)}: must be an integer, at least 1, or None"
        )
