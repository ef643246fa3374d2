"""Hide entries of a vector observation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config.fields import ConfigError
from jaxppo.types import Box, Environment, PyTree, TimeStep


class Mask:
    """A `types.Environment` with entries of its observation set to 0.

    Only a memory can infer a hidden entry, such as a velocity, from earlier steps.
    """

    def __init__(self, env: Environment, hidden: tuple[int, ...]) -> None:
        setting = f"env.mask=[{','.join(map(str, hidden))}]"
        space = env.observation_space
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise ConfigError(
                f"{setting}: the observation of {env.name} is no vector; give [], and hide entries "
                "in the environment or with network/input_layer=concatenate"
            )
        (size,) = space.shape
        outside = [i for i in hidden if not 0 <= i < size]
        if outside:
            raise ConfigError(
                f"{setting}: the observation of {env.name} has entries 0 to {size - 1}, and no "
                f"{outside[0]}"
            )
        self._shown = np.isin(np.arange(size), hidden, invert=True)
        self.name = env.name
        self.observation_space: PyTree = dataclasses.replace(
            space, low=self._bound(space.low), high=self._bound(space.high)
        )
        self.action_space = env.action_space
        self.time_limit = env.time_limit
        self._env = env

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map `[B]` keys to (state `[B, ...]`, observation `[B, O]`)."""
        state, obs = self._env.reset(key)
        return state, self._hide(obs)

    def step(self, key: jax.Array, state: PyTree, action: PyTree) -> tuple[PyTree, TimeStep]:
        """Take one auto-reset step of `B` environments."""
        state, step = self._env.step(key, state, action)
        return state, dataclasses.replace(
            step, obs=self._hide(step.obs), final_observation=self._hide(step.final_observation)
        )

    def _hide(self, obs: jax.Array) -> jax.Array:
        return jnp.where(self._shown, obs, jnp.zeros_like(obs))

    def _bound(self, bound: object) -> tuple[float, ...]:
        full = np.broadcast_to(np.asarray(bound, float), self._shown.shape)
        return tuple(float(x) for x in np.where(self._shown, full, 0.0))
