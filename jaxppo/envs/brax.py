"""Adapter of Brax: its registered environments, on any of its backends."""

from typing import Any

import jax
import jax.numpy as jnp
from brax import envs as brax_envs

from jaxppo.config import EnvConfig
from jaxppo.envs import unknown
from jaxppo.envs.episodes import Episodes, box_of
from jaxppo.types import Box, PyTree


class Brax:
    """One environment of Brax as an `episodes.Single`: bare, without its wrappers.

    A fall terminates; `episode_length` steps truncate, which Brax's own wrapper reports as the end
    of both kinds. Actions are in [-1, 1].
    """

    def __init__(self, env: Any, episode_length: int | None) -> None:
        self._env = env
        self.time_limit: int | None = episode_length
        example = jax.eval_shape(env.reset, jax.random.key(0))
        self.observation_space = jax.tree.map(box_of, example.obs)
        self.action_space = Box((env.action_size,), "float32", -1.0, 1.0)

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """A key to (state, observation)."""
        state = self._env.reset(key)
        return state, state.obs

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array]:
        """One step; what chance it needs Brax draws from its state."""
        state = self._env.step(state, action)
        return state, state.obs, state.reward, state.done.astype(bool), jnp.array(False)


def make(config: EnvConfig) -> Episodes:
    """Build by Brax's name; `env.kwargs` are its class's, `backend` say, and `episode_length`."""
    kwargs = dict(config.kwargs)
    length = kwargs.pop("episode_length", 1000)
    name = str(config.name)
    if name not in brax_envs._envs:
        raise unknown(config, brax_envs._envs)
    env = brax_envs.get_environment(name, **kwargs)
    return Episodes(name, Brax(env, length), config)
