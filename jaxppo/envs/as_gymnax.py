"""Environments of other interfaces as those of gymnax 1.0, which `gymnax.adapt` takes."""

import copy
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from gymnax.environments.environment import Environment

from jaxppo.config.fields import ConfigError
from jaxppo.envs.episodes import stepped
from jaxppo.envs.forms import returned
from jaxppo.types import PyTree, pytree


@pytree
class State:
    """The state of one environment."""

    inner: PyTree  # the environment's own
    time: jax.Array  # int32, steps taken in the episode
    truncated: jax.Array  # bool, the last step ended the episode at its time limit


class AsGymnax(Environment):  # type: ignore[misc]
    """An environment whose state knows whether its time limit has ended the episode."""

    def reset(self, key: jax.Array, params: Any) -> tuple[PyTree, State]:
        """Return observation and state; gymnax's own compiles parameters as unknown values."""
        return self.reset_env(key, params)

    def is_truncated(self, state: State, params: Any) -> jax.Array:
        """Return whether the last step ended at the time limit."""
        return state.truncated


class WithParams(AsGymnax):
    """An `episodes.Single` with `params`, a dataclass of which its methods read `self.params`."""

    def __init__(self, one: Any) -> None:
        self._one = one
        if hasattr(one, "frame"):
            self.frame = lambda state, params: self._with(params).frame(state.inner)

    def _with(self, params: Any) -> Any:
        """Return the environment with other parameters, which may be traced."""
        one = copy.copy(self._one)
        one.params = params
        return one

    def reset_env(self, key: jax.Array, params: Any) -> tuple[PyTree, State]:
        """Return observation and state."""
        found = self._with(params).reset(key)
        state, obs = returned("reset", found, "state, observation")
        return obs, State(inner=state, time=jnp.int32(0), truncated=jnp.array(False))

    def step_env(self, key: jax.Array, state: State, action: Any, params: Any) -> Any:
        """Return observation, state, reward, terminated and info."""
        one, time = self._with(params), state.time + 1
        inner, obs, reward, terminated, truncated, told = stepped(one, key, state.inner, action)
        if one.time_limit is not None:
            truncated = jnp.logical_or(truncated, time >= one.time_limit)
        truncated = jnp.asarray(truncated, bool)
        return obs, State(inner=inner, time=time, truncated=truncated), reward, terminated, told

    def action_space(self, params: Any) -> PyTree:
        """Return the environment's own, of `types`."""
        return self._with(params).action_space

    def observation_space(self, params: Any) -> PyTree:
        """Return the environment's own, of `types`."""
        return self._with(params).observation_space

    def time_limit_of(self, params: Any) -> int | None:
        """Return the time limit in steps; None if there is none."""
        limit = self._with(params).time_limit
        return None if limit is None else int(limit)


class Legacy(AsGymnax):
    """An environment of gymnax 0.0.x, whose `done` holds the time limit too.

    `step_env` is called twice: with the parameters, and with a limit that no episode reaches, which
    tells whether the task itself ended. What both compute is compiled once.
    """

    def __init__(self, name: str, env: Any) -> None:
        if not hasattr(type(env), "step_env"):
            raise ConfigError(
                f"env.gymnax_legacy=true: {name} has no step_env of its own, which steps without a "
                "reset; add it, or give the environment itself instead of a wrapper"
            )
        self._name, self._env = name, env
        if getattr(type(env), "is_terminated", None) is Environment.is_terminated:
            # gymnax 1.0 calls this in its `discount`, where older ones call `is_terminal`
            self._env = copy.copy(env)
            vars(self._env)["is_terminated"] = self._env.is_terminal
        for drawn in ("frame", "render"):
            if hasattr(env, drawn):
                draw = getattr(env, drawn)
                setattr(self, drawn, lambda state, params, draw=draw: draw(state.inner, params))

    def reset_env(self, key: jax.Array, params: Any) -> tuple[PyTree, State]:
        """Return observation and state."""
        obs, state = self._env.reset_env(key, params)
        return obs, State(inner=state, time=jnp.int32(0), truncated=jnp.array(False))

    def step_env(self, key: jax.Array, state: State, action: Any, params: Any) -> Any:
        """Return observation, state, reward, terminated and info."""
        found = self._env.step_env(key, state.inner, action, params)
        if not isinstance(found, tuple | list) or len(found) != 5:
            return found  # which the adapter refuses
        obs, inner, reward, done, info = found
        terminated = done = jnp.asarray(done, bool)
        time, late = state.time + 1, False
        if (limit := getattr(params, "max_steps_in_episode", None)) is not None:
            late = time >= limit
            # With a limit that no step of an episode is at
            endless = dataclasses.replace(params, max_steps_in_episode=2 * limit + 2)
            over = self._env.step_env(key, state.inner, action, endless)[3]
            terminated = jnp.asarray(over, bool)
        truncated = done & (~terminated | late)
        return obs, State(inner=inner, time=time, truncated=truncated), reward, terminated, info

    def action_space(self, params: Any) -> Any:
        """Return the environment's own."""
        return self._env.action_space(params)

    def observation_space(self, params: Any) -> Any:
        """Return the environment's own."""
        return self._env.observation_space(params)

    def time_limit_of(self, params: Any) -> int | None:
        """Return the time limit in steps; None for 1, the default of gymnax's parameters."""
        limit = getattr(params, "max_steps_in_episode", None)
        return None if limit in (None, 1) else int(limit)
