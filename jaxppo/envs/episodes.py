"""Many episodes of one environment: the clock, resets and the true successor, for every library."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.kernels import random_bits
from jaxppo.types import Box, Discrete, MultiDiscrete, PyTree, TimeStep, is_space, zeros


class Single(Protocol):
    """One environment without auto-reset: what an adapter translates, and a user's class may be.

    `Episodes` does the rest. Spaces are those of `types`, with trees of dicts and tuples.
    """

    observation_space: PyTree  # of Space
    action_space: PyTree  # of Space
    time_limit: int | None  # steps after which the clock ends an episode; None: it never does

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """A key to (state, observation `[O...]`) of an opening."""

    def step(
        self, key: jax.Array, state: PyTree, action: PyTree
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array]:
        """To (next state, observation, reward, terminated, truncated), the last two bool.

        `truncated` is for ends by a clock of its own, beside that of `time_limit`.
        """


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodesState:
    """Environments in mid-episode."""

    inner: PyTree  # [B, ...]
    time: jax.Array  # [B] int32, steps taken in the episode
    openings: PyTree  # (observation, state) [B, ...] of the first episodes; () unless cached


class Episodes:
    """`B` environments like `one`, each in episodes of its own: a `types.Environment`."""

    def __init__(self, name: str, one: Single, config: EnvConfig) -> None:
        self.name = name
        self.one = one
        self.observation_space = one.observation_space
        self.action_space = one.action_space
        self.time_limit = one.time_limit
        self._resets = config.resets
        self._ratio = config.reset_ratio

    def reset(self, key: jax.Array) -> tuple[EpisodesState, PyTree]:
        """`[B]` keys to (state `[B, ...]`, observation `[B, O...]`)."""
        inner, obs = jax.vmap(self.one.reset)(key)
        openings = (obs, inner) if self._resets == "cached" else ()
        time = jnp.zeros(key.shape[0], jnp.int32)
        return EpisodesState(inner=inner, time=time, openings=openings), obs

    def step(
        self, key: jax.Array, state: EpisodesState, action: PyTree
    ) -> tuple[EpisodesState, TimeStep]:
        """One auto-reset step of `B` environments; rewards become float32."""
        inner, after, reward, terminated, truncated = jax.vmap(self.one.step)(
            part(key, 0), state.inner, action
        )
        time = state.time + 1
        if self.time_limit is not None:
            truncated = jnp.logical_or(truncated, time >= self.time_limit)
        over = ended(terminated, truncated)

        def make(key: jax.Array) -> tuple[PyTree, PyTree]:
            if self._resets == "cached":
                chosen = jax.random.randint(key[0], over.shape, 0, over.size)
                return jax.tree.map(lambda x: x[chosen], state.openings)
            opened, obs = jax.vmap(self.one.reset)(key)
            return obs, opened

        ratio = self._ratio if self._resets == "optimistic" else 1
        obs, new = renew(over, make, key, (after, inner), ratio)
        return EpisodesState(
            inner=new, time=jnp.where(over, 0, time), openings=state.openings
        ), TimeStep(
            obs=obs,
            final_observation=after,
            reward=reward.astype(jnp.float32),
            terminated=terminated,
            truncated=truncated,
        )


def ended(terminated: jax.Array, truncated: jax.Array) -> jax.Array:
    """Which of `B` episodes are over, whatever form the two flags have; see `problems`."""
    flags = [jnp.asarray(flag, bool) for flag in (terminated, truncated)]
    one, other = (flag.reshape(flag.shape[0], -1).any(-1) for flag in flags)
    return one | other


def renew(
    over: jax.Array,
    make: Callable[[jax.Array], tuple[PyTree, PyTree]],
    key: jax.Array,
    after: tuple[PyTree, PyTree],
    ratio: int = 1,
) -> tuple[PyTree, PyTree]:
    """Observation and state `after` `[B, ...]`, with openings where `over` `[B]`.

    They are of `make([B] keys)`, in a branch that runs only when some episode is over; its keys
    are the second parts of a step's `key` `[B]`. With a `ratio` above 1 only one opening is made
    for that many environments: those that are over take them in turn, and some share one if more
    are over than there are. `ConfigError` where openings have another form.
    """

    def opened() -> tuple[PyTree, PyTree]:
        num = -(-over.size // ratio)
        openings = make(part(key[:num], 1))
        for what, opening, then in zip(("observation", "state"), openings, after, strict=True):
            if _form(opening) != _form(then):
                raise ConfigError(
                    f"step: {what} after a step is {_form_text(then)}, after reset "
                    f"{_form_text(opening)}; both have to have one structure, shape and data type"
                )
        if ratio > 1:
            turn = (jnp.cumsum(over) - 1) % num
            openings = jax.tree.map(lambda x: x[turn], openings)
        merged: tuple[PyTree, PyTree] = jax.tree.map(
            lambda new, old: jnp.where(over.reshape(-1, *[1] * (old.ndim - 1)), new, old),
            openings,
            after,
        )
        return merged

    chosen: tuple[PyTree, PyTree] = jax.lax.cond(_anywhere(over), opened, lambda: after)
    return chosen


def part(key: jax.Array, number: int) -> jax.Array:
    """The keys of a step (0) or of what opens after it (1), of keys `[B]` of both."""
    return jax.vmap(random_bits.split)(key)[:, number]


@jax.custom_batching.custom_vmap
def _anywhere(flags: jax.Array) -> jax.Array:
    """Whether any flag is set, of all that are mapped too: a `cond` on it stays a branch."""
    return jnp.any(flags)


@_anywhere.def_vmap
def _(_size: int, _batched: list[bool], flags: jax.Array) -> tuple[jax.Array, bool]:
    return _anywhere(flags), False


def box_of(example: Any, low: float = float("-inf"), high: float = float("inf")) -> Box:
    """The space of arrays like `example`; booleans are 0 and 1."""
    if example.dtype == bool:
        low, high = 0.0, 1.0
    return Box(tuple(example.shape), jnp.dtype(example.dtype).name, low, high)


def line(x: Any) -> str:
    """An object or an error on one line; an error's first line, with its kind."""
    if isinstance(x, BaseException):
        return f"{type(x).__name__}: {str(x).partition(chr(10))[0]}"
    return " ".join(repr(x).split())


def problems(env: Any) -> list[str]:
    """What is wrong with the forms that `reset` and `step` of an environment give, in words.

    Traced and not run. What it raises is a problem too.
    """
    for name in ("observation_space", "action_space"):
        spaces = jax.tree.leaves(getattr(env, name), is_leaf=is_space)
        if wrong := [problem for space in spaces for problem in space_problems(space)]:
            return [f"{name}: {wrong[0]}"]
    num = 3  # B, which no shape of a single environment is likely to be by mistake
    keys = jax.random.split(jax.random.key(0), num)
    found: list[str] = []
    try:
        state, obs = jax.eval_shape(env.reset, keys)
    except Exception as error:  # an environment may raise anything while it is traced
        return [f"reset: does not run under jax: {line(error)}"]
    found += _differences("reset: observation", obs, env.observation_space)
    try:
        action = zeros(env.action_space, (num,))
        after, step = jax.eval_shape(env.step, keys, state, action)
    except ConfigError as error:
        return [*found, str(error)]
    except Exception as error:
        return [
            *found,
            f"step: does not run under jax with an action of its space {env.action_space}: "
            f"{line(error)}; it has to follow the contract that docs/environments.md tells",
        ]
    for name in ("obs", "final_observation"):
        what = f"step: {'observation' if name == 'obs' else name}"
        found += _differences(what, getattr(step, name), env.observation_space)
    if _form(state) != _form(after):
        found.append(
            f"step: state after a step is {_form_text(after)}, after reset {_form_text(state)}; "
            "both have to have one structure, shape and data type"
        )
    for name in ("reward", "terminated", "truncated"):
        value = getattr(step, name)
        wanted = "float32" if name == "reward" else "bool"
        if value.shape != (num,):
            found.append(f"step: {name} has shape {value.shape[1:]}, want ()")
        elif value.dtype.name != wanted:
            found.append(f"step: {name} is {value.dtype.name}, want {wanted}")
    return found


def space_problems(space: Any) -> Iterator[str]:
    """What is wrong with one space by itself, in words."""
    if isinstance(space, Box):
        try:
            bounds = (np.asarray(bound, float) for bound in (space.low, space.high))
            low, high = (np.broadcast_to(bound, space.shape) for bound in bounds)
        except (TypeError, ValueError):
            yield f"{line(space)}: low and high must be numbers, or as many as its shape says"
            return
        if not (low <= high).all():
            yield f"{line(space)}: low must be at most high everywhere"
    elif is_space(space):
        counts = (space.num_values,) if isinstance(space, Discrete) else tuple(space.num_values)
        if not all(isinstance(n, int | np.integer) and n >= 1 for n in counts):
            yield f"{line(space)}: must have at least 1 value"
        elif isinstance(space, MultiDiscrete) and math.prod(space.shape) != len(counts):
            yield f"{line(space)}: must have a number of values for each entry of its shape"


def _differences(what: str, found: PyTree, space: PyTree) -> list[str]:
    """Where arrays `[B, ...]` have not the form that a space says."""
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


def _form(tree: PyTree) -> tuple[Any, list[Any]]:
    """Structure, and of each leaf its shape without B and its data type."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(x.shape[1:], x.dtype.name) for x in leaves]


def _form_text(tree: PyTree) -> str:
    """Shapes and data types of single environments, in short."""
    forms = [
        f"{jax.tree_util.keystr(path)}{' ' if path else ''}{x.dtype.name}{list(x.shape[1:])}"
        for path, x in jax.tree.leaves_with_path(tree)
    ]
    return ", ".join(forms[:8]) + (f" and {len(forms) - 8} more" if len(forms) > 8 else "")


def check_spaces(name: str, one: Any) -> None:
    """`ConfigError` unless a user's class has spaces of `types`, and a time limit or None."""
    for part in ("observation_space", "action_space", "time_limit", "reset", "step"):
        if not hasattr(one, part):
            raise ConfigError(
                f"{name}: cannot be made an environment, since it has no {part}: it needs "
                "observation_space, action_space, time_limit, reset and step, or gymnax's "
                "contract; see docs/environments.md"
            )
    for part in ("observation_space", "action_space"):
        space = getattr(one, part)
        leaves = jax.tree.leaves(space, is_leaf=is_space)
        wrong = [leaf for leaf in leaves if not is_space(leaf)]
        if wrong or not leaves:
            raise ConfigError(
                f"{name}: {part} is {line(wrong[0] if wrong else space)}; it must "
                "be Discrete, MultiDiscrete or Box of jaxppo.types, or a dict or tuple of these"
            )
    limit = one.time_limit
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ConfigError(f"{name}: time_limit={limit}: must be an integer, at least 1, or None")
