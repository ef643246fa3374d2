"""Adapter of XLand-MiniGrid: its registered worlds, with XLand's rules or MiniGrid's."""

from typing import Any

import jax
import jax.numpy as jnp
import xminigrid

from jaxppo.config.schema import EnvConfig
from jaxppo.envs import replace_params
from jaxppo.envs.episodes import Episodes, box_of
from jaxppo.types import Discrete, PyTree


class XMiniGrid:
    """One environment of XLand-MiniGrid as an `episodes.Single`, with fixed parameters.

    Its state is the library's time step. Observations are the numbers of tiles and colours, uint8
    `[V, V, 2]`.
    """

    def __init__(self, env: Any, params: Any) -> None:
        self._env = env
        self._params = params
        self.time_limit: int | None = int(params.max_steps)
        example = jax.eval_shape(lambda key: env.reset(params, key), jax.random.key(0))
        self.observation_space = jax.tree.map(box_of, example.observation)
        self.action_space = Discrete(int(env.num_actions(params)))

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map a key to (state, observation)."""
        step = self._env.reset(self._params, key)
        return step, step.observation

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array]:
        """Take one step; a discount of 0 terminates."""
        step = self._env.step(self._params, state, action)
        return step, step.observation, step.reward, step.discount == 0, jnp.array(False)


def names() -> list[str]:
    """Return the names of all registered environments."""
    return list(xminigrid.registered_environments())


def make(config: EnvConfig) -> Episodes:
    """Build by id; `env.kwargs` go to `xminigrid.make`, and `env.params` change parameters."""
    name = str(config.name)
    env, params = xminigrid.make(name, **config.kwargs)
    return Episodes(name, XMiniGrid(env, replace_params(name, params, config.params)), config)
