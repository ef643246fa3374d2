"""Environments written for gymnax before 1.0, whose `done` holds the time limit too."""

import copy
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from gymnax.environments.environment import Environment

from jaxppo.config.fields import ConfigError
from jaxppo.types import PyTree, pytree, zeros

LIMIT = "max_steps_in_episode"


@pytree
class LegacyState:
    """The state of one environment."""

    inner: PyTree  # the environment's own
    time: jax.Array  # int32, steps taken in the episode
    truncated: jax.Array  # bool, the last step ended the episode at its time limit


class Legacy(Environment):  # type: ignore[misc]
    """An environment of gymnax 0.0.x with the interface of gymnax 1.0.

    `step_env` is called twice: with the parameters, and with a limit that no episode reaches, which
    tells whether the task itself ended. What both compute is compiled once.
    """

    def __init__(self, name: str, env: Any) -> None:
        if not hasattr(type(env), "step_env"):
            raise ConfigError(
                f"env.gymnax_legacy=true: {name} has no step_env of its own, which steps without a "
                "reset; give the environment itself instead of a wrapper"
            )
        self._env = env
        if getattr(type(env), "is_terminated", None) is Environment.is_terminated:
            # gymnax 1.0 calls this in its `discount`, where older ones call `is_terminal`
            self._env = copy.copy(env)
            vars(self._env)["is_terminated"] = self._env.is_terminal
        for drawn in ("frame", "render"):
            if hasattr(env, drawn):
                draw = getattr(env, drawn)
                setattr(self, drawn, lambda state, params, draw=draw: draw(state.inner, params))

    def reset_env(self, key: jax.Array, params: Any) -> tuple[PyTree, LegacyState]:
        """Return observation and state."""
        obs, state = self._env.reset_env(key, params)
        return obs, LegacyState(inner=state, time=jnp.int32(0), truncated=jnp.array(False))

    def step_env(self, key: jax.Array, state: LegacyState, action: Any, params: Any) -> Any:
        """Return observation, state, reward, terminated and info."""
        found = self._env.step_env(key, state.inner, action, params)
        if not isinstance(found, tuple | list) or len(found) != 5:
            return found  # which the adapter refuses
        obs, inner, reward, done, info = found
        terminated = done = jnp.asarray(done, bool)
        time, late = state.time + 1, False
        if hasattr(params, LIMIT):
            late = time >= getattr(params, LIMIT)
            endless = self._env.step_env(key, state.inner, action, _with_later_limit(params))[3]
            terminated = jnp.asarray(endless, bool)
        truncated = done & (~terminated | late)
        after = LegacyState(inner=inner, time=time, truncated=truncated)
        return obs, after, reward, terminated, info

    def is_truncated(self, state: LegacyState, params: Any) -> jax.Array:
        """Return whether the last step ended at the time limit."""
        return state.truncated

    def action_space(self, params: Any) -> Any:
        """Return the environment's own."""
        return self._env.action_space(params)

    def observation_space(self, params: Any) -> Any:
        """Return the environment's own."""
        return self._env.observation_space(params)


def limit_of(name: str, env: Legacy, params: Any, action_space: PyTree) -> int | None:
    """Return the time limit in steps; None if `done` does not depend on the parameter.

    `ConfigError` if a limit was set that `done` does not hold, as in classes for gymnax 1.0.
    """

    def step(params: Any) -> str:
        _, state = jax.eval_shape(env._env.reset_env, key, params)
        taken = jax.make_jaxpr(lambda *x: env._env.step_env(*x, params))(key, state, action)
        return str(taken)

    key = jax.random.key(0)
    action = jax.eval_shape(lambda: zeros(action_space))
    limit = getattr(params, LIMIT, None)
    try:
        is_read = limit is not None and step(params) != step(_with_later_limit(params))
    except Exception:  # which the adapter's checks explain
        return limit
    if is_read or limit in (None, 1):  # 1: the default of gymnax's parameters
        return limit if is_read else None
    raise ConfigError(
        f"env.gymnax_legacy=true: step_env of {name} does not read {LIMIT}={limit}, so its done "
        "holds no time limit; leave gymnax_legacy out: gymnax 1.0 truncates there by itself"
    )


def _with_later_limit(params: Any) -> Any:
    """Return parameters with a limit that no step of an episode is at."""
    return dataclasses.replace(params, **{LIMIT: 2 * getattr(params, LIMIT) + 2})
