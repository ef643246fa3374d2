"""Adapter of MuJoCo Playground: its registered environments, simulated by MJX."""

from typing import Any

import jax
import jax.numpy as jnp
from mujoco_playground import registry

from jaxppo.config import EnvConfig
from jaxppo.envs import unknown
from jaxppo.envs.episodes import Episodes, box_of
from jaxppo.types import Box, PyTree


class Playground:
    """One environment of MuJoCo Playground as an `episodes.Single`.

    `done` terminates; `episode_length` of its configuration truncates. Actions are in [-1, 1].
    """

    def __init__(self, env: Any, episode_length: int) -> None:
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
        """One control step."""
        state = self._env.step(state, action)
        return state, state.obs, state.reward, state.done.astype(bool), jnp.array(False)


def make(config: EnvConfig) -> Episodes:
    """Build by name; `env.kwargs` change its configuration (`impl`, `episode_length`, ...).

    Unless told otherwise the simulator is MJX's own in JAX, which runs on any device.
    """
    name = str(config.name)
    if name not in registry.ALL_ENVS:
        raise unknown(config, registry.ALL_ENVS)
    settings = registry.get_default_config(name)
    changes = {"impl": "jax", **config.kwargs} if "impl" in settings else config.kwargs
    settings.update(changes)
    return Episodes(
        name,
        Playground(registry.load(name, config=settings), settings.episode_length),
        config,
    )
