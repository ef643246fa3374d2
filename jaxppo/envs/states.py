"""Environments with the interface of Brax and MuJoCo Playground: a state has all outputs."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.envs.episodes import box_of
from jaxppo.types import Box, PyTree


class States:
    """One unwrapped environment with Brax's interface as an `episodes.Single`.

    Actions are in [-1, 1]. `reset` and `step` return a state with `obs`, `reward` and `done`, which
    means terminated. All randomness comes from the state. Episodes are truncated after `time_limit`
    steps.
    """

    def __init__(self, env: Any, time_limit: int | None) -> None:
        self._env = env
        self.time_limit = time_limit
        example = jax.eval_shape(env.reset, jax.random.key(0))
        self.observation_space = jax.tree.map(box_of, example.obs)
        self.action_space = Box((env.action_size,), "float32", -1.0, 1.0)

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map a key to (state, observation)."""
        state = self._env.reset(key)
        return state, state.obs

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array]:
        """Take one control step."""
        state = self._env.step(state, action)
        return state, state.obs, state.reward, state.done.astype(bool), jnp.array(False)
