"""Time limits, auto-resets and final observations for the environments of every library."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.envs.forms import differences, returned
from jaxppo.envs.told import chosen
from jaxppo.kernels import random_bits
from jaxppo.kernels.costs import is_cheap
from jaxppo.kernels.divisors import near_divisor
from jaxppo.kernels.platforms import forms
from jaxppo.ops.collectives import any_over
from jaxppo.ops.sequences import where
from jaxppo.types import Environment, Pool, PyTree, TimeStep, pytree

COPY = 2**31 - 2  # folded into a step's key; splits of it give smaller numbers


Stepped = tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array]


class Single(Protocol):
    """One environment without auto-reset: the interface of adapters and of users' classes.

    `Episodes` adds the rest. Spaces are those of `types`, or dicts and tuples of them.
    """

    observation_space: PyTree  # of Space
    action_space: PyTree  # of Space
    time_limit: int | None  # steps after which an episode is truncated; None: no limit
    # `params`, a dataclass that methods read as `self.params`, may be there for `env.params`,
    # `env.randomize` and `env.curriculum`; `frame(state)`, uint8 `[H, W, 3]`, or `svg(state)`,
    # the text of an SVG, for films

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map a key to the (state, observation `[O...]`) that starts an episode."""

    def step(
        self, key: jax.Array, state: PyTree, action: PyTree
    ) -> Stepped | tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array, PyTree]:
        """Return (next state, observation, reward, terminated, truncated), the last two bool.

        `truncated` is for time limits of its own, besides `time_limit`. A sixth value, if there is
        one, is a dict of what the environment tells for `env.metrics`.
        """


@pytree
class EpisodesState:
    """The state of `B` environments."""

    inner: PyTree  # [B, ...]
    time: jax.Array  # [B] int32, steps taken in the episode
    starts: PyTree  # cached: (observation, state) [B, ...] of the first episodes; a Pool; or ()


class Episodes:
    """A `types.Environment` of `B` independent environments like `one`."""

    num_agents, pads = 1, False

    def __init__(self, name: str, one: Single, config: EnvConfig) -> None:
        self.name = name
        self.one = one
        self.observation_space = one.observation_space
        self.action_space = one.action_space
        self.time_limit = None if one.time_limit is None else int(one.time_limit)
        self._resets = config.resets
        self._ratio = config.reset_ratio
        self.pool_size = config.pool_size if config.resets == "pool" else 0
        self._metrics = config.metric_kinds

    def starts(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map `[N]` keys to first (observations, states) of episodes, `[N, ...]`.

        On CPUs, as many at a time as stay in the cache (`platforms.starts_bytes`).
        """

        def make(key: jax.Array) -> tuple[PyTree, PyTree]:
            inner, obs = returned("reset", jax.vmap(self.one.reset)(key), "state, observation")
            return obs, inner

        num, limit = len(key), forms().starts_bytes
        if limit is not None:
            leaves = jax.tree.leaves(jax.eval_shape(make, key))
            each = sum(x.size * x.dtype.itemsize for x in leaves) / num
            num = near_divisor(num, max(4, limit / each))
        if num == len(key):
            return make(key)
        parts = jax.lax.map(make, key.reshape(-1, num))
        return jax.tree.map(lambda x: x.reshape(len(key), *x.shape[2:]), parts)

    def reset(self, key: jax.Array) -> tuple[EpisodesState, PyTree]:
        """Map `[B]` keys to (state `[B, ...]`, observation `[B, O...]`)."""
        obs, inner = self.starts(key)
        kept = {"cached": (obs, inner), "pool": Pool(starts=(), taken=())}
        time = jnp.zeros(key.shape[0], jnp.int32)
        return EpisodesState(inner=inner, time=time, starts=kept.get(self._resets, ())), obs

    def step(
        self, key: jax.Array, state: EpisodesState, action: PyTree
    ) -> tuple[EpisodesState, TimeStep]:
        """Take one auto-reset step of `B` environments; rewards become float32."""
        advance = jax.vmap(self._advance)
        inner, after, reward, terminated, truncated, told = advance(
            part(key, 0), state.inner, action
        )
        time = state.time + 1
        if self.time_limit is not None:
            truncated = jnp.logical_or(truncated, time >= self.time_limit)
        over = ended(terminated, truncated)

        # A pool is filled in rollouts only; elsewhere, as in evaluations, resets are optimistic
        filled = isinstance(state.starts, Pool) and state.starts.starts != ()
        copied = filled or self._resets == "cached"

        def make(key: jax.Array) -> tuple[PyTree, PyTree]:
            if not copied:
                return self.starts(key)
            chosen, starts = jax.random.randint(key[0], over.shape, 0, over.size), state.starts
            if filled:
                chosen = (starts.taken + jnp.cumsum(over) - 1) % starts.size
                starts = starts.starts
            return jax.tree.map(lambda x: x[chosen], starts)

        ratio = self._ratio if self._resets in ("optimistic", "pool") and not copied else 1
        obs, new = renew(over, make, key, (after, inner), ratio, copied=copied)
        starts = state.starts
        if filled:
            starts = Pool(starts=starts.starts, taken=starts.taken + jnp.sum(over))
        return EpisodesState(inner=new, time=jnp.where(over, 0, time), starts=starts), TimeStep(
            obs=obs,
            final_observation=after,
            reward=reward.astype(jnp.float32),
            terminated=terminated,
            truncated=truncated,
            metrics=chosen(self.name, self._metrics, told),
        )

    def view(self, state: EpisodesState) -> tuple[Episodes, PyTree]:
        """Return this, and the environment's own state of one of them."""
        return self, state.inner

    def advance(self, key: jax.Array, state: EpisodesState, action: PyTree) -> EpisodesState:
        """Return the state of one environment after a step, without an auto-reset."""
        inner = stepped(self.one, jax.random.split(key)[0], state.inner, action)[0]
        return dataclasses.replace(state, inner=inner)

    def _advance(self, key: jax.Array, state: PyTree, action: PyTree) -> tuple[Any, ...]:
        """Return what `one.step` does, and what it tells; nothing unless that is asked for."""
        *found, told = stepped(self.one, key, state, action)
        return *found, told if self._metrics else {}


def stepped(one: Single, key: jax.Array, state: PyTree, action: PyTree) -> tuple[Any, ...]:
    """Return the five values of a step, and what it tells; `ConfigError` for another number."""
    found: Any = one.step(key, state, action)
    told: PyTree = {}
    if isinstance(found, tuple | list) and len(found) == 6:
        *found, told = found
    return *returned("step", found, "state, observation, reward, terminated, truncated"), told


class Wrapper:
    """A `types.Environment` that shows another one, `env`, in another way."""

    def __init__(self, env: Environment, observation_space: PyTree) -> None:
        self.name = env.name
        self.observation_space = observation_space
        self.action_space = env.action_space
        self.time_limit = env.time_limit
        self.pool_size = env.pool_size
        self.num_agents, self.pads = env.num_agents, env.pads
        self._env = env

    def starts(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Return what `env` starts episodes with."""
        env: Any = self._env  # with a `pool_size`
        found: tuple[PyTree, PyTree] = env.starts(key)
        return found


def inner(env: Environment) -> Any:
    """Return the environment in any wrappers."""
    while isinstance(env, Wrapper):
        env = env._env
    return env


def changed(env: Environment, **attributes: Any) -> Environment:
    """Return a copy of an environment in which the one in any wrappers has other attributes."""
    if isinstance(env, Wrapper):
        attributes = {"_env": changed(env._env, **attributes)}
    env = copy.copy(env)
    vars(env).update(attributes)
    return env


def begun_at(env: Environment, share: float) -> Environment:
    """Return an environment whose first episodes begin at this share of the run's updates.

    Only those whose parameters move with the run (`env.curriculum`) differ by it.
    """
    return changed(env, begins=share) if hasattr(inner(env), "begins") else env


def ended(terminated: jax.Array, truncated: jax.Array) -> jax.Array:
    """Return which of `B` episodes have ended, for flags of any shape; see `forms.problems`."""
    flags = [jnp.asarray(flag, bool) for flag in (terminated, truncated)]
    one, other = (flag.reshape(flag.shape[0], -1).any(-1) for flag in flags)
    return one | other


def renew(
    over: jax.Array,
    make: Callable[[jax.Array], tuple[PyTree, PyTree]],
    key: jax.Array,
    after: tuple[PyTree, PyTree],
    ratio: int = 1,
    *,
    copied: bool = False,
) -> tuple[PyTree, PyTree]:
    """Return (observation, state) `after` `[B, ...]`, replaced by new starts where `over` `[B]`.

    `make([B] keys)` makes the starts, in a branch that runs only if some episode is over; on
    accelerators cheap ones (`kernels.costs`) are made in every step without a branch. Its keys
    are the second parts of the step's `key` `[B]`. With a `ratio` above 1 it makes only one start
    for that many environments. Environments that are over take these in turn, and share them if
    there are too few. Shared starts, and those that `make` has `copied`, get random keys of their
    own. `ConfigError` if starts differ from `after` in structure, shape or data type.
    """

    def restarted() -> tuple[PyTree, PyTree]:
        num = -(-over.size // ratio)
        starts = make(part(key[:num], 1))
        for what, start, then in zip(("observation", "state"), starts, after, strict=True):
            if wrong := differences(f"step: {what}", then, start, "reset"):
                raise ConfigError(wrong[0])
        if ratio > 1:
            turn = (jnp.cumsum(over) - 1) % num
            starts = jax.tree.map(lambda x: x[turn], starts)
        if ratio > 1 or copied:
            starts = starts[0], with_own_keys(starts[1], key)
        return where(over, starts, after)

    if forms().resets_without_branch and is_cheap(make, key):
        return restarted()
    return jax.lax.cond(any_over((), over), restarted, lambda: after)


def part(key: jax.Array, number: int) -> jax.Array:
    """Split keys `[B]`; return those of the step (0) or of the resets after it (1)."""
    return jax.vmap(random_bits.split)(key)[:, number]


def with_own_keys(state: PyTree, key: jax.Array) -> PyTree:
    """Return states `[B, ...]` whose random keys depend on the step's `key` `[B]` too.

    Without, copies of one start would have one future. Keys are typed, or uint32 with `key` or
    `rng` in their name.
    """
    own = jax.vmap(random_bits.fold_in, (0, None))(key, COPY)
    number = jax.vmap(lambda key: jax.random.bits(random_bits.quick(key)))(own)
    size = jax.random.key_data(key).shape[-1:]

    def renewed(path: Any, x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            named = re.search("key|rng", jax.tree_util.keystr(path[-1:]), re.I)
            if not named or x.dtype != jnp.uint32 or x.shape[-1:] != size:
                return x
            keys = jax.random.wrap_key_data(x, impl=jax.random.key_impl(key))
            return jax.random.key_data(renewed(path, keys))
        fold = random_bits.fold_in
        for _ in x.shape[1:]:
            fold = jax.vmap(fold, (0, None))
        return jax.vmap(fold)(x, number)

    return jax.tree.map_with_path(renewed, state)
