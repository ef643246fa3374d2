"""Adapter of gymnax: its registered environments and any class with its interface."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.envs import replace_params
from jaxppo.envs.episodes import ended, part, renew
from jaxppo.envs.forms import bound_of, integers, line, returned
from jaxppo.envs.later import imported_later
from jaxppo.envs.ranges import Range, ranges
from jaxppo.envs.told import UntoldError, chosen
from jaxppo.kernels import random_bits
from jaxppo.types import Box, Discrete, PyTree, RunProgress, TimeStep, is_space, pytree, zeros

with imported_later(  # gymnax's drawing libraries, which take 1.2 of 1.3 seconds to import
    *("seaborn", "matplotlib", "matplotlib.pyplot", "matplotlib.animation", "matplotlib.colors")
):
    import gymnax
    from gymnax.environments.environment import Environment, EnvParams

    from jaxppo.envs.as_gymnax import AsGymnax


FILES = "/tmp/mnist"  # where its downloads are
DRAW = 2**31 - 1  # folded into a reset's key; splits of it give smaller numbers
# What functions of gymnax 1.0 return; `step` resets, `step_env` and `reset_env` are without it
RESET = "observation, state (gymnax 1.0)"
STEP = "observation, state, reward, terminated, truncated, info (gymnax 1.0)"
STEP_ENV = "observation, state, reward, terminated, info (gymnax 1.0)"


class GymnaxEnvironment:
    """`B` environments with gymnax's interface (six values a step), with fixed parameters.

    Attributes are those of `types.Environment`; `env` and `params` are gymnax's own;
    `misdeclared` are the lines of the function of that name. It gets actions as int32 (`Discrete`,
    `MultiDiscrete`) or as float32 within bounds (`Box`).
    """

    pool_size, num_agents, pads = 0, 1, False

    def __init__(self, name: str, env: Any, params: Any, config: EnvConfig) -> None:
        # A class with its own `step` resets in its own way.
        self._renews = getattr(type(env), "step", None) is Environment.step
        self._ratio = config.reset_ratio if config.resets == "optimistic" else 1
        if config.resets in ("cached", "pool") or (self._ratio > 1 and not self._renews):
            raise ConfigError(
                f"env.resets={config.resets}: {name} resets in gymnax's way or its own; "
                f"give each{' or optimistic' if self._renews else ''}"
            )
        self.name = name
        self._metrics = config.metric_kinds
        self.env = env
        self.params = params
        own = getattr(type(env), "reset", None) is not Environment.reset
        reset = "reset" if own else "reset_env"  # which gymnax's reset calls
        key = jax.eval_shape(jax.random.key, 0)
        start = jax.eval_shape(lambda key: getattr(env, reset)(key, params), key)
        example, _ = returned(f"{name}: {reset}", start, RESET)
        observations, actions = env.observation_space(params), env.action_space(params)
        self.observation_space = space_of(observations, example)
        self.action_space = space_of(actions)
        self.misdeclared = list(misdeclared(observations, example))
        limit = getattr(params, "max_steps_in_episode", None)
        if limit is not None and (limit < 1 or limit != int(limit)):
            raise ConfigError(
                f"env.params.max_steps_in_episode={limit}: must be an integer, at least 1"
            )
        self.time_limit = None if limit is None else int(limit)

    @property
    def inherits_limit(self) -> bool:
        """Return whether the time limit is the default of gymnax's parameters, one step."""
        classes = type(self.params).__mro__
        owner = next((c for c in classes if "max_steps_in_episode" in vars(c)), None)
        return owner is EnvParams and self.time_limit == 1

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map `[B]` keys to (state `[B, ...]`, observation `[B, O...]`)."""
        obs, state = returned("reset", jax.vmap(self.env.reset, (0, None))(key, self.params), RESET)
        return state, obs

    def view(self, state: PyTree) -> tuple["GymnaxEnvironment", PyTree]:
        """Return one environment with the parameters in force, and gymnax's state of it."""
        return self, state

    def advance(self, key: jax.Array, state: PyTree, action: PyTree) -> PyTree:
        """Return the state of one environment after a step, without an auto-reset."""
        return self.env.step_env(jax.random.split(key)[0], state, action, self.params)[1]

    def step(self, key: jax.Array, state: PyTree, action: PyTree) -> tuple[PyTree, TimeStep]:
        """Take one auto-reset step of `B` environments; rewards become float32.

        If the auto-reset is gymnax's own, resets use gymnax's keys but run in a branch, which is
        taken only if some episode has ended.
        """
        if not self._renews:
            found = jax.vmap(self.env.step, (0, 0, 0, None))(key, state, action, self.params)
            obs, state, reward, terminated, truncated, info = returned("step", found, STEP)
            if "final_observation" not in info:
                raise ConfigError(
                    "step: its info has no final_observation, which is the observation before the "
                    "reset (gymnax 1.0)"
                )
            final = info["final_observation"]
            return state, self._step(obs, final, reward, terminated, truncated, info)
        found = jax.vmap(self.env.step_env, (0, 0, 0, None))(
            part(key, 0), state, action, self.params
        )
        final_observation, after, reward, terminated, info = returned("step_env", found, STEP_ENV)
        truncated = jax.vmap(self.env.is_truncated, (0, None))(after, self.params)

        def make(key: jax.Array) -> tuple[PyTree, PyTree]:
            return jax.vmap(self.env.reset_env, (0, None))(key, self.params)

        over = ended(terminated, truncated)
        obs, state = renew(over, make, key, (final_observation, after), self._ratio)
        return state, self._step(obs, final_observation, reward, terminated, truncated, info)

    def _step(
        self,
        obs: PyTree,
        final_observation: PyTree,
        reward: jax.Array,
        terminated: jax.Array,
        truncated: jax.Array,
        info: PyTree,
    ) -> TimeStep:
        return TimeStep(
            obs=obs,
            final_observation=final_observation,
            reward=jnp.asarray(reward, jnp.float32),
            terminated=jnp.asarray(terminated, bool),
            truncated=jnp.asarray(truncated, bool),
            metrics=chosen(self.name, self._metrics, info),
        )


@pytree
class RandomizedState:
    """The state of `B` environments whose parameters vary."""

    inner: PyTree  # [B, ...] gymnax's own
    values: dict[str, jax.Array]  # [B] parameters of the running episode
    draws: PyTree  # [B, N] uniform in [0, 1), of all episodes; () if each episode has its own
    progress: PyTree  # RunProgress, which decides on the next episode; () if no range moves


class Randomized(GymnaxEnvironment):
    """`B` environments with gymnax's interface, some of whose parameters vary within `ranges`.

    An episode keeps its parameters from start to end. Spaces are those of the fixed parameters.
    """

    begins = 0.0  # share of the run's updates at which `reset` starts episodes

    def __init__(
        self, name: str, env: Any, params: Any, config: EnvConfig, ranges: dict[str, Range]
    ) -> None:
        super().__init__(name, env, params, config)
        if not self._renews:
            raise ConfigError(
                f"env.randomize, env.curriculum: {name} has a step of its own, which resets with "
                "the parameters of the last episode; let it define step_env and reset_env only"
            )
        self._per_episode = config.randomize_per == "episode"
        if self._ratio > 1 and not self._per_episode:
            raise ConfigError(
                f"env.randomize_per={config.randomize_per}: with env.resets={config.resets} "
                "environments share the starts of episodes; set env.resets=each"
            )
        self._moves = any(each.moves for each in ranges.values())
        for varying, bounds in ranges.items():
            self._ranges = {varying: bounds}
            self._try(varying)
        self._ranges = ranges

    def _try(self, name: str) -> None:
        """Raise `ConfigError` if the program needs to know this parameter, which alone varies."""
        keys = jax.random.split(jax.random.key(0))
        try:
            state, _ = jax.eval_shape(self.reset, keys)
            jax.eval_shape(self.step, keys, state, zeros(self.action_space, keys.shape))
        except UntoldError:
            raise
        except Exception as error:  # an environment may raise anything while it is traced
            raise ConfigError(
                f"env.randomize.{name}: {self.name} does not run with a {name} that varies "
                f"({line(error)}); set env.params.{name} to a number"
            ) from error

    def reset(self, key: jax.Array) -> tuple[RandomizedState, PyTree]:
        """Map `[B]` keys to (state `[B, ...]`, observation `[B, O...]`), `begins` in the run."""
        share = jnp.full(key.shape, self.begins, jnp.float32)
        progress = RunProgress(share=share) if self._moves else ()
        draws = () if self._per_episode else self._draw(key)
        obs, (inner, values) = self._start(self.env.reset, key, draws, progress)
        return RandomizedState(inner=inner, values=values, draws=draws, progress=progress), obs

    def step(
        self, key: jax.Array, state: RandomizedState, action: PyTree
    ) -> tuple[RandomizedState, TimeStep]:
        """Take one auto-reset step of `B` environments; rewards become float32."""

        def one(key: jax.Array, inner: PyTree, values: PyTree, action: PyTree) -> Any:
            params = dataclasses.replace(self.params, **values)
            found = self.env.step_env(key, inner, action, params)
            obs, after, reward, terminated, info = returned("step_env", found, STEP_ENV)
            truncated = self.env.is_truncated(after, params)
            return obs, after, reward, terminated, truncated, info if self._metrics else {}

        final_observation, after, reward, terminated, truncated, info = jax.vmap(one)(
            part(key, 0), state.inner, state.values, action
        )

        def make(key: jax.Array) -> tuple[PyTree, PyTree]:
            num = key.shape[0]
            draws, progress = jax.tree.map(lambda x: x[:num], (state.draws, state.progress))
            return self._start(self.env.reset_env, key, draws, progress)

        over = ended(terminated, truncated)
        last = final_observation, (after, state.values)
        obs, (inner, values) = renew(over, make, key, last, self._ratio)
        state = dataclasses.replace(state, inner=inner, values=values)
        return state, self._step(obs, final_observation, reward, terminated, truncated, info)

    def view(self, state: RandomizedState) -> tuple[GymnaxEnvironment, PyTree]:
        """Return one environment with the parameters in force, and gymnax's state of it."""
        env = copy.copy(self)
        env.params = dataclasses.replace(self.params, **state.values)
        return env, state.inner

    def advance(self, key: jax.Array, state: RandomizedState, action: PyTree) -> RandomizedState:
        """Return the state of one environment after a step, without an auto-reset."""
        env, inner = self.view(state)
        return dataclasses.replace(state, inner=GymnaxEnvironment.advance(env, key, inner, action))

    def _draw(self, key: jax.Array) -> jax.Array:
        """Return uniform numbers `[B, N]`, which do not depend on those of resets with the keys."""

        def one(key: jax.Array) -> jax.Array:
            own = random_bits.quick(random_bits.fold_in(key, DRAW))
            return jax.random.uniform(own, (len(self._ranges),))

        return jax.vmap(one)(key)

    def _start(
        self, reset: Callable[..., Any], key: jax.Array, draws: PyTree, progress: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Start episodes with gymnax's `reset`; return observation and (state, parameters)."""
        drawn = self._draw(key) if self._per_episode else draws
        share = progress.share if self._moves else jnp.float32(0)
        values = {
            name: one.value(drawn[:, i], share)
            for i, (name, one) in enumerate(self._ranges.items())
        }

        def start(key: jax.Array, values: PyTree) -> tuple[PyTree, PyTree]:
            return reset(key, dataclasses.replace(self.params, **values))

        obs, inner = jax.vmap(start)(key, values)
        return obs, (inner, values)


def names() -> list[str]:
    """Return the names of all registered environments."""
    return list(gymnax.registered_envs)


def downloads(name: str) -> bool:
    """Return whether an environment downloads files when it is made for the first time."""
    return name == "MNISTBandit-bsuite"


def make(config: EnvConfig) -> GymnaxEnvironment:
    """Build by gymnax id, with `env.kwargs` and `env.params`."""
    name = str(config.name)
    env, params = gymnax.make(name, **config.kwargs)
    return adapt(name, env, params, config)


def adapt(name: str, env: Any, params: Any, config: EnvConfig) -> GymnaxEnvironment:
    """Wrap an environment with gymnax's interface, with the settings for its parameters."""
    params = replace_params(name, params, config.params)
    found = ranges(name, params, config)
    ends = {key: one.end[0] for key, one in found.items() if one.end[0] == one.end[1]}
    params = dataclasses.replace(params, **ends)
    vary = {key: one for key, one in found.items() if not one.constant}
    given = name, env, params, config
    made = Randomized(*given, vary) if vary else GymnaxEnvironment(*given)
    if isinstance(env, AsGymnax):
        made.time_limit = env.time_limit_of(params)
    return made


def _kind(space: Any) -> str:
    """Return the class of a space of gymnax, or of a copy of it; "" for other classes."""
    names = [kind.__name__ for kind in type(space).__mro__]
    return next((name for name in names if name in ("Discrete", "Box", "Dict", "Tuple")), "")


def space_of(space: Any, example: Any = None) -> PyTree:
    """Convert a space of gymnax or JaxMARL.

    That of an observation has the shapes and data types of `example`. Without one it is of an
    action, where floats are float32, and integers in a box and counts become `MultiDiscrete`.
    """
    if _is_ours(space):
        return space
    kind = _kind(space)
    if kind in ("Dict", "Tuple"):
        parts = _parts(space)
        if isinstance(example, Mapping) and (
            missing := [key for key in parts if key not in example]
        ):
            raise ConfigError(
                f"env: the observation space has an entry {missing[0]!r}, which observations lack "
                f"(they have {', '.join(map(str, example))}); leave it out of the space, or return "
                "it"
            )
        found = {
            key: space_of(part, None if example is None else example[key])
            for key, part in parts.items()
        }
        return found if kind == "Dict" else tuple(found.values())
    if kind == "Discrete":
        return Discrete(int(space.n), int(getattr(space, "start", 0)))
    if kind == "Box" and example is not None:
        dtype, bounds = jnp.dtype(example.dtype).name, (space.low, space.high)
        try:
            low, high = (np.broadcast_to(bound, example.shape) for bound in bounds)
        except ValueError as error:
            said = "; ".join(misdeclared(space, example)) or f"bounds of {line(space)}: {error}"
            raise ConfigError(f"env: {said}") from error
        return Box(tuple(example.shape), dtype, bound_of(low), bound_of(high))
    if kind == "Box":
        low, high = (np.broadcast_to(bound, space.shape) for bound in (space.low, space.high))
        if jnp.issubdtype(space.dtype, jnp.floating):
            return Box(tuple(space.shape), "float32", bound_of(low), bound_of(high))
        return integers(space, low, high)
    sizes = getattr(space, "nvec", getattr(space, "num_categories", None))
    if sizes is not None and example is None:
        low = np.broadcast_to(getattr(space, "start", 0), np.shape(sizes))
        return integers(space, low, low + np.asarray(sizes) - 1)
    what, more = ("observation", "") if example is not None else ("action", "MultiDiscrete, ")
    raise ConfigError(
        f"env: the {what} space {line(space)} is not one of Discrete, {more}Box, Dict, Tuple; wrap "
        "the environment so that it offers one of these"
    )


def misdeclared(space: Any, example: Any, entry: str = "") -> Iterator[str]:
    """Yield where a space of gymnax says another shape or dtype than observations have.

    Training takes those of `example`, since some of gymnax's own environments differ in the dtype.
    64 bits count as JAX's 32.
    """
    kind = "" if _is_ours(space) else _kind(space)
    if kind in ("Dict", "Tuple"):
        for key, part in _parts(space).items():
            yield from misdeclared(part, example[key], f"{entry}[{key!r}]")
    elif kind == "Box":
        shapes = tuple(np.atleast_1d(space.shape).astype(int).tolist()), example.shape
        says, has = (
            f"{jax.dtypes.canonicalize_dtype(x.dtype).name}{list(shape)}"
            for x, shape in zip((space, example), shapes, strict=True)
        )
        if says != has:
            yield (
                f"observation_space{entry} declares {says}, and observations are {has}; training "
                "uses the latter, so make them equal"
            )


def _parts(space: Any) -> dict[Any, Any]:
    """Return the spaces of a Dict or Tuple by key."""
    return dict(space.spaces if _kind(space) == "Dict" else enumerate(space.spaces))


def _is_ours(space: Any) -> bool:
    """Return whether a space is one of `types`, or a dict or tuple of these."""
    leaves = jax.tree.leaves(space, is_leaf=is_space)
    return bool(leaves) and all(map(is_space, leaves))
