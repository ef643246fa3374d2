"""Hide entries of a vector observation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config.fields import ConfigError
from jaxppo.envs.episodes import Wrapper
from jaxppo.envs.forms import bound_of
from jaxppo.types import Box, Environment, PyTree, TimeStep


class Mask(Wrapper):
    """A `types.Environment` with entries of its observation set to 0.

    Only a memory can infer a hidden entry, such as a velocity, from earlier steps.
    """

    def __init__(self, env: Environment, hidden: tuple[int, ...]) -> None:
        setting = f"env.mask=[{','.join(map(str, hidden))}]"
        space = env.observation_space
        size = space.shape[0] if isinstance(space, Box) and len(space.shape) == 1 else 0
        if not all(0 <= i < size for i in hidden):
            entries = f"entries 0 to {size - 1}" if size else "no vector"
            raise ConfigError(
                f"{setting}: the observation of {env.name} has {entries}; give indices of a "
                "vector, or []"
            )
        self._shown = np.isin(np.arange(size), hidden, invert=True)
        low, high = (
            bound_of(np.where(self._shown, bound, 0.0)) for bound in (space.low, space.high)
        )
        super().__init__(env, dataclasses.replace(space, low=low, high=high))

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
