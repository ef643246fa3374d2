"""Environments that break the contract, each in one way."""

from typing import Any

import jax
import jax.numpy as jnp
from envs import Clock


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
