"""Show the last observations of an episode instead of one: Mnih et al. 2015, "frame stacking"."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config.fields import ConfigError
from jaxppo.envs.episodes import Wrapper
from jaxppo.envs.forms import bound_of, entry_name
from jaxppo.ops.sequences import where
from jaxppo.types import Box, Environment, PyTree, Space, TimeStep, is_space, pytree


@pytree
class FramesState:
    """The environment's state and the stacked observation that the policy sees."""

    inner: PyTree  # [B, ...]
    shown: tuple[jax.Array, ...]  # [B, O...] of each stacked leaf


class Frames(Wrapper):
    """A `types.Environment` whose arrays are those of the last `num` steps, oldest first.

    They are concatenated along the last axis: `[F]` to `[num F]`, `[H, W, C]` to `[H, W, num C]`.
    At the start of an episode the first observation is repeated. Integers and the mask of legal
    actions, the entry `mask`, are not stacked.
    """

    def __init__(self, env: Environment, num: int, mask: str | None) -> None:
        paths, self._form = jax.tree_util.tree_flatten_with_path(
            env.observation_space, is_leaf=is_space
        )
        self._stacked = [
            isinstance(space, Box) and bool(space.shape) and entry_name(path) != mask
            for path, space in paths
        ]
        if not any(self._stacked):
            raise ConfigError(
                f"env.frame_stack={num}: {env.name} has no array in its observation to stack; set "
                "it to 1"
            )
        spaces = [
            _stack_space(space, num) if stacked else space
            for (_, space), stacked in zip(paths, self._stacked, strict=True)
        ]
        super().__init__(env, jax.tree.unflatten(self._form, spaces))
        self._num = num

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map `[B]` keys to (state `[B, ...]`, observation `[B, O...]`)."""
        inner, obs = self._env.reset(key)
        shown = self._repeat(obs)
        return FramesState(inner=inner, shown=shown), self._join(obs, shown)

    def step(
        self, key: jax.Array, state: FramesState, action: PyTree
    ) -> tuple[FramesState, TimeStep]:
        """Take one auto-reset step of `B` environments."""
        inner, step = self._env.step(key, state.inner, action)
        over = step.terminated | step.truncated
        after = tuple(map(self._push, state.shown, self._arrays(step.final_observation)))
        now = where(over, self._repeat(step.obs), after)
        return FramesState(inner=inner, shown=now), dataclasses.replace(
            step,
            obs=self._join(step.obs, now),
            final_observation=self._join(step.final_observation, after),
        )

    def _arrays(self, obs: PyTree) -> list[jax.Array]:
        """Return the leaves that are stacked."""
        return [x for x, yes in zip(jax.tree.leaves(obs), self._stacked, strict=True) if yes]

    def _repeat(self, obs: PyTree) -> tuple[jax.Array, ...]:
        return tuple(jnp.concatenate([x] * self._num, axis=-1) for x in self._arrays(obs))

    def _push(self, shown: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.concatenate([shown[..., x.shape[-1] :], x], axis=-1)

    def _join(self, obs: PyTree, shown: tuple[jax.Array, ...]) -> PyTree:
        """Return the observation with the stacked leaves in their places."""
        left = iter(shown)
        leaves = zip(jax.tree.leaves(obs), self._stacked, strict=True)
        return jax.tree.unflatten(self._form, [next(left) if yes else x for x, yes in leaves])


def _stack_space(space: Box, num: int) -> Space:
    shape = (*space.shape[:-1], num * space.shape[-1])
    low, high = (
        bound_of(np.tile(np.broadcast_to(bound, space.shape), num))
        for bound in (space.low, space.high)
    )
    return dataclasses.replace(space, shape=shape, low=low, high=high)
