"""Adapter of Jumanji: its registered environments, with their action masks."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jumanji import specs
from jumanji.registration import make as make_jumanji
from jumanji.registration import registered_environments

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.envs.episodes import Episodes
from jaxppo.envs.forms import box_of, integers, line, some_legal
from jaxppo.envs.teams import Only, Teams
from jaxppo.types import Box, Discrete, Environment, MultiDiscrete, PyTree, Space

# Entries of observations that have the agents as their first axis
OF_AGENTS = ("action_mask", "agents_view", "searcher_views", "positions")
FILES = "~/.cache/huggingface"  # where its downloads are


class Jumanji:
    """One environment of Jumanji as an `episodes.Single`.

    Observations are dicts, nested as Jumanji's. If the action mask is joint over several integers
    (`[4, 10]` for integers of 4 and 10 values), the action is one integer for all of them, in
    row-major order, and the mask is flat. If a mask allows nothing (a snake is trapped), any action
    ends the episode; here such a mask allows everything. A discount of 0 terminates.
    """

    def __init__(self, env: Any, time_limit: int | None) -> None:
        self._env = env
        self.time_limit: int | None = time_limit
        _, example = jax.eval_shape(env.reset, jax.random.key(0))
        obs = as_dict(example.observation)
        self.action_space = _action_space(env.action_spec)
        self._joint: tuple[int, ...] | None = None
        mask = obs.get("action_mask") if isinstance(obs, dict) else None
        space = self.action_space
        if isinstance(space, MultiDiscrete) and mask is not None:
            if mask.shape == space.num_values:
                self._joint = space.num_values
                self.action_space = Discrete(int(np.prod(self._joint)))
            elif mask.shape[:-1] == space.shape:  # MultiCVRP's specification has one value more
                size = int(np.prod(space.shape))
                self.action_space = MultiDiscrete(mask.shape[-1:] * size, space.shape)
        self.observation_space = jax.tree.map(box_of, jax.eval_shape(self._observe, example))

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map a key to (state, observation)."""
        state, step = self._env.reset(key)
        return state, self._observe(step)

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array, PyTree]:
        """Take one step; all randomness comes from Jumanji's state."""
        if self._joint is not None:
            action = jnp.stack(jnp.unravel_index(action, self._joint))
        state, step = self._env.step(state, action.astype(self._env.action_spec.dtype))
        terminated = step.last() & (step.discount == 0)
        truncated = step.last() & ~terminated
        return state, self._observe(step), step.reward, terminated, truncated, step.extras

    def _observe(self, step: Any) -> PyTree:
        obs = as_dict(step.observation)
        if isinstance(obs, dict) and "action_mask" in obs:
            mask = obs["action_mask"]
            obs["action_mask"] = some_legal(mask.reshape(-1) if self._joint else mask)
        return obs


class Agents:
    """An environment of Jumanji that rewards each of several agents, as a `teams.World`.

    Each agent sees its own part of the entries `OF_AGENTS` of the observation, and all others
    whole. An agent whose discount is 0 is over. Action masks are as in `Jumanji`.
    """

    def __init__(self, env: Any, time_limit: int | None, example: Any) -> None:
        self._env = env
        self.time_limit: int | None = time_limit
        (self.num_agents,) = example.reward.shape
        spaces = _action_space(env.action_spec)
        if isinstance(spaces, MultiDiscrete) and spaces.shape == (self.num_agents,):
            self.action_space: Space = Discrete(max(spaces.num_values))
        elif isinstance(spaces, Box) and spaces.shape[:1] == (self.num_agents,):
            self.action_space = dataclasses.replace(spaces, shape=spaces.shape[1:])
        else:
            raise ConfigError(
                f"{type(env).__name__}: rewards {self.num_agents} agents, but its actions {spaces} "
                "are not one for each; choose another environment"
            )
        each = jax.eval_shape(self._observe, example)
        self.observation_space = jax.tree.map(
            lambda x: box_of(jax.ShapeDtypeStruct(x.shape[1:], x.dtype)), each
        )

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map a key to (state, observations of the agents)."""
        state, step = self._env.reset(key)
        return state, self._observe(step)

    def step(self, key: jax.Array, state: PyTree, action: jax.Array) -> tuple[PyTree, ...]:
        """Take one step; all randomness comes from Jumanji's state."""
        state, step = self._env.step(state, action.astype(self._env.action_spec.dtype))
        terminated = step.discount == 0
        truncated = step.last() & ~terminated
        return state, self._observe(step), step.reward, terminated, truncated, step.extras

    def _observe(self, step: Any) -> PyTree:
        obs = as_dict(step.observation)
        if "action_mask" in obs:
            obs["action_mask"] = some_legal(obs["action_mask"])
        return {
            name: x if name in OF_AGENTS else jnp.broadcast_to(x, (self.num_agents, *jnp.shape(x)))
            for name, x in obs.items()
        }


def as_dict(x: Any) -> PyTree:
    """Convert named tuples and dataclasses to dicts, at any depth."""
    if dataclasses.is_dataclass(x):
        return {f.name: as_dict(getattr(x, f.name)) for f in dataclasses.fields(x)}
    if hasattr(x, "_asdict"):
        return {name: as_dict(part) for name, part in x._asdict().items()}
    if isinstance(x, dict):
        return {name: as_dict(part) for name, part in x.items()}
    return x


def _action_space(spec: Any) -> Space:
    if isinstance(spec, specs.DiscreteArray):
        return Discrete(int(spec.num_values))
    if not isinstance(spec, specs.BoundedArray):
        raise ConfigError(f"env: the action spec {line(spec)} of Jumanji is not supported")
    low, high = (np.broadcast_to(x, spec.shape) for x in (spec.minimum, spec.maximum))
    if jnp.issubdtype(spec.dtype, jnp.integer):
        return integers(spec, low, high)
    return Box(tuple(spec.shape), "float32", float(low.min()), float(high.max()))


def names() -> list[str]:
    """Return the names of all registered environments."""
    return list(registered_environments())


def downloads(name: str) -> bool:
    """Return whether an environment downloads files when it is made for the first time."""
    return name.startswith("Sokoban")


def make(config: EnvConfig) -> Environment:
    """Build by Jumanji's id; `env.kwargs` go to its constructor.

    At its `time_limit` Jumanji ends an episode as if the MDP had ended. So Jumanji gets a limit of
    one more step, and `Episodes` truncates at the original limit.
    """
    name = str(config.name)
    env = make_jumanji(name, **config.kwargs)
    limit = getattr(env, "time_limit", None)
    if limit is not None:
        env = make_jumanji(name, **{**config.kwargs, "time_limit": limit + 1})
    _, example = jax.eval_shape(env.reset, jax.random.key(0))
    if example.reward.shape:
        agents = Agents(env, limit, example)
        if agents.num_agents == 1:
            return Episodes(name, Only(agents), config)
        return Teams(name, agents, config)
    return Episodes(name, Jumanji(env, limit), config)
