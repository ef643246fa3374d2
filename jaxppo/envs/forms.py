"""Forms of spaces and of what environments return, and what is wrong with them, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import raised
from jaxppo.envs.told import UntoldError
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
    if np.any(low != 0) and not simulated:
        raise ConfigError(
            f"env: the action space {line(space)} does not start at 0; let it start there in a "
            "wrapper, and add its low to the action in step"
        )
    if not np.all((high >= low) & (high - low < MOST)):
        raise ConfigError(
            f"env: the action space {line(space)} needs a finite high of at least its low for "
            f"every integer, and below {MOST:,} values; give the last choice there"
        )
    sizes = tuple(int(x) + 1 for x in (high - low).ravel())
    return MultiDiscrete(sizes, high.shape, bound_of(low.astype(np.int64)) if low.any() else 0)


def limits(space: PyTree) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the name, the lowest and the highest values of each array of a tree of spaces."""
    for path, one in jax.tree.leaves_with_path(space, is_leaf=is_space):
        low, high = bounds(one)
        if jax.tree_util.keystr(path[:1], simple=True) == "last_action" and isinstance(
            one, Discrete
        ):
            low = low - 1  # of `env.extras`: an episode starts without a last action
        yield jax.tree_util.keystr(path), low, high


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
    found: list[str] = []
    try:
        state, obs = jax.eval_shape(env.reset, keys)
    except ConfigError as error:
        return [str(error)]
    except Exception as error:  # an environment may raise anything while it is traced
        return [f"reset: does not run under jax: {raised(error)}"]
    found += _differences("reset: observation", obs, env.observation_space)
    try:
        action = jax.eval_shape(lambda: zeros(env.action_space, (num,)))
        after, step = jax.eval_shape(env.step, keys, state, action)
    except UntoldError:  # not a fault of the environment
        raise
    except ConfigError as error:
        return [*found, str(error)]
    except Exception as error:
        return [
            *found,
            f"step: does not run under jax with an action of its space {env.action_space}: "
            f"{raised(error)}",
        ]
    for name in ("obs", "final_observation"):
        what = f"step: {'observation' if name == 'obs' else name}"
        found += _differences(what, getattr(step, name), env.observation_space)
    if other := mismatch("state", state, after):
        found.append(other)
    for name in ("reward", "terminated", "truncated"):
        value = getattr(step, name)
        wanted = "float32" if name == "reward" else "bool"
        if value.shape != (num,):
            found.append(f"step: {name} has shape {value.shape[1:]}, want ()")
        elif value.dtype.name != wanted:
            found.append(f"step: {name} is {value.dtype.name}, want {wanted}")
    return found


def space_problems(space: Any, acts: bool = False) -> Iterator[str]:
    """Yield errors of one space, in words; `acts` says that it is of actions."""
    shape = getattr(space, "shape", ())
    if not isinstance(shape, tuple | list) or not all(_is_integer(n) and n >= 0 for n in shape):
        yield f"{line(space)}: its shape must be a tuple of integers, such as (2,)"
    elif 0 in shape:
        yield f"{line(space)}: has no entries"
    elif isinstance(space, Box):
        try:
            dtype = jnp.dtype(space.dtype)
        except TypeError:
            yield f"{line(space)}: no such data type; float32 is one, and int32, uint8 and bool"
            return
        try:
            bounds = (np.asarray(bound, float) for bound in (space.low, space.high))
            low, high = (np.broadcast_to(bound, space.shape) for bound in bounds)
        except (TypeError, ValueError):
            yield f"{line(space)}: low and high must be numbers, or arrays that fit its shape"
            return
        if not (low <= high).all():
            yield f"{line(space)}: low must be at most high everywhere"
        elif acts and jnp.issubdtype(dtype, jnp.floating) and dtype != jnp.float32:
            yield f"{line(space)}: actions are float32; convert them in step"
    elif is_space(space):
        many = isinstance(space, MultiDiscrete)
        counts = space.num_values if many else (space.num_values,)
        if not isinstance(counts, tuple | list | np.ndarray) or not all(map(_is_integer, counts)):
            wanted = "a tuple of integers, such as (3, 2)" if many else "an integer, such as 3"
            yield f"{line(space)}: num_values must be {wanted}"
        elif not all(n >= 1 for n in counts):
            yield f"{line(space)}: must have at least 1 value"
        elif many and math.prod(shape) != len(counts):
            yield f"{line(space)}: must have a number of values for each entry of its shape"
        elif np.any(space.start):
            yield f"{line(space)}: start={space.start} is for simulators; count from 0 in JAX"


def _is_integer(x: Any) -> bool:
    return isinstance(x, int | np.integer)


def _differences(what: str, found: PyTree, space: PyTree) -> list[str]:
    """Return where arrays `[B, ...]` differ from their space in structure, shape or data type."""
    wanted = jax.eval_shape(lambda: zeros(space))
    if str(jax.tree.structure(found)) != str(jax.tree.structure(wanted)):
        names = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(found)]
        there = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(wanted)]
        return [f"{what} has entries {names}, the space says {there}"]
    lines = []
    pairs = zip(jax.tree.leaves_with_path(found), jax.tree.leaves(wanted), strict=True)
    for (path, x), like in pairs:
        name = what + jax.tree_util.keystr(path)
        if x.shape[1:] != like.shape:
            lines.append(f"{name} has shape {x.shape[1:]}, the space says {like.shape}")
        elif x.dtype != like.dtype:
            lines.append(f"{name} is {x.dtype.name}, the space says {like.dtype.name}")
    return lines


def mismatch(what: str, start: PyTree, after: PyTree) -> str | None:
    """Return an error if arrays `[B, ...]` have another form after a step than after reset."""

    def form(tree: PyTree) -> tuple[Any, list[Any]]:
        leaves, structure = jax.tree.flatten(tree)
        return structure, [(x.shape[1:], x.dtype.name) for x in leaves]

    if form(start) == form(after):
        return None
    return (
        f"step: {what} after a step is {_describe_arrays(after)}, after reset "
        f"{_describe_arrays(start)}; both must have the same structure, shape and data type"
    )


def _describe_arrays(tree: PyTree) -> str:
    """Describe arrays `[B, ...]`: shapes without B and data types of up to 8 leaves."""
    forms = [
        f"{jax.tree_util.keystr(path)}{' ' if path else ''}{x.dtype.name}{list(x.shape[1:])}"
        for path, x in jax.tree.leaves_with_path(tree)
    ]
    return ", ".join(forms[:8]) + (f" and {len(forms) - 8} more" if len(forms) > 8 else "")


def check_spaces(name: str, one: Any) -> None:
    """Raise `ConfigError` unless a user's class has spaces of `types` and a valid time limit."""
    for part in ("observation_space", "action_space", "time_limit", "reset", "step"):
        if not hasattr(one, part):
            raise ConfigError(
                f"{name}: cannot be made an environment, since it has no {part}: it needs "
                "observation_space, action_space, time_limit, reset and step, or gymnax's "
                "contract; see docs/environments.md"
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
    limit = one.time_limit
    is_integer = _is_integer(limit) and not isinstance(limit, bool)
    if limit is not None and not (is_integer and limit >= 1):
        raise ConfigError(
            f"{name}: time_limit={line(limit)}: must be an integer, at least 1, or None"
        )
