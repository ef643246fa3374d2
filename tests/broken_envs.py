"""Environments that break the contract, each in one way."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from envs import Clock
from gymnax.environments import spaces


class Shape(Clock):
    """An observation of another shape after a step."""

    def step(self, *args: Any) -> Any:
        obs, *rest = super().step(*args)
        return (jnp.concatenate([obs, obs]), *rest)


class FiveValues(Clock):
    """Gym's old step."""

    def step(self, *args: Any) -> Any:
        obs, state, reward, terminated, _, info = super().step(*args)
        return obs, state, reward, terminated, info


class Space(Clock):
    """An action space of no known kind."""

    def action_space(self, params: Any) -> Any:
        return jax.random.key


class Forgets(Clock):
    """Loses the true successor: what it reports is the next episode's first observation."""

    def step(self, *args: Any) -> Any:
        obs, state, reward, terminated, truncated, info = super().step(*args)
        return obs, state, reward, terminated, truncated, {**info, "final_observation": obs}


class Confuses(Clock):
    """Reports the clock's end as the MDP's."""

    def step(self, *args: Any) -> Any:
        obs, state, reward, terminated, truncated, info = super().step(*args)
        return obs, state, reward, terminated | truncated, False & truncated, info


class Endless(Clock):
    """Goes on past the limit that it tells."""

    def is_truncated(self, state: Any, params: Any) -> jax.Array:
        return state.time >= 2 * params.max_steps_in_episode


class Counts(Clock):
    """Counts its steps in an attribute, which a compiled program does once."""

    steps = 0

    def step_env(self, *args: Any) -> Any:
        self.steps += 1
        return super().step_env(*args)


class Draws(Clock):
    """Draws with NumPy, once for all steps of a compiled program."""

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        obs, *rest = super().step_env(key, state, action, params)
        return (obs + 0.001 * np.random.default_rng().normal(), *rest)


class Outside(Clock):
    """Shows what its space does not hold."""

    def step_env(self, *args: Any) -> Any:
        obs, *rest = super().step_env(*args)
        return (obs + 2e6, *rest)


class Beyond(Clock):
    """Reads a table beyond its end."""

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        obs, state, reward, *rest = super().step_env(key, state, action, params)
        return (obs, state, reward + jnp.arange(3.0)[state.time], *rest)


class NoActions(Clock):
    """A space without values."""

    def action_space(self, params: Any) -> Any:
        return spaces.Discrete(0)


class UpsideDown(Clock):
    """Bounds that no number lies between."""

    def observation_space(self, params: Any) -> Any:
        return spaces.Box(1.0, 0.0, (2,))
