"""Optional entries of the observation: the last action, the last reward, the step."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxppo.config.fields import ConfigError
from jaxppo.envs.episodes import Wrapper
from jaxppo.ops.sequences import where
from jaxppo.types import (
    Box,
    Discrete,
    Environment,
    MultiDiscrete,
    PyTree,
    Space,
    TimeStep,
    is_space,
    pytree,
    zeros,
)

NAMES = ("last_action", "last_reward", "step", "agent")


@pytree
class ExtrasState:
    """The environment's state and the steps of the running episode."""

    inner: PyTree  # [B, ...]
    time: jax.Array  # [B] int32, steps taken in the episode


class Extras(Wrapper):
    """A `types.Environment` with further entries in its observation.

    The observation is a dict. It has the environment's own entries, or its observation as
    `observation`, and those of the following entries that are in `names`.

        last_action   the previous action. `Discrete`: int32, -1 at the start of an episode;
                      `MultiDiscrete`: concatenated one-hot vectors; `Box`: float32; both are zero
                      at the start; dicts and tuples: trees of these
        last_reward   float32 `[1]`, unscaled; 0 at the start
        step          float32 `[1]`, steps taken in the episode, divided by the time limit if any
        agent         float32 `[N]`, one-hot: which of its world's `N` agents sees this

    At the end of an episode, `obs` has the entries of the next start, and `final_observation` those
    of the last step.
    """

    def __init__(self, env: Environment, names: tuple[str, ...]) -> None:
        space = env.observation_space
        own = space if isinstance(space, dict) else {"observation": space}
        free = [name for name in NAMES if name not in own]
        if wrong := [name for name in names if name not in free]:
            raise ConfigError(
                f"env.extras=[{', '.join(names)}]: the observation of {env.name} can have "
                f"{', '.join(free)}, and not {wrong[0]}"
            )
        added = {
            "last_action": jax.tree.map(_input_space, env.action_space, is_leaf=is_space),
            "last_reward": Box((1,), "float32"),
            "step": Box((1,), "float32", 0.0, float("inf") if env.time_limit is None else 1.0),
            "agent": Box((env.num_agents,), "float32", 0.0, 1.0),
        }
        super().__init__(env, {**own, **{name: added[name] for name in names}})
        self._names = names

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map `[B]` keys to (state `[B, ...]`, observation `[B, O...]`)."""
        inner, obs = self._env.reset(key)
        time = jnp.zeros(key.shape[0], jnp.int32)
        return ExtrasState(inner=inner, time=time), self._join(obs, self._at_start(time.shape[0]))

    def step(
        self, key: jax.Array, state: ExtrasState, action: PyTree
    ) -> tuple[ExtrasState, TimeStep]:
        """Take one auto-reset step of `B` environments."""
        inner, step = self._env.step(key, state.inner, action)
        time = state.time + 1
        over = step.terminated | step.truncated
        after = {
            "last_action": jax.tree.map(_input, self.action_space, action, is_leaf=is_space),
            "last_reward": step.reward[:, None],
            "step": time[:, None] / jnp.float32(self.time_limit or 1),
            "agent": self._agents(time.shape[0]),
        }
        now = where(over, self._at_start(time.shape[0]), after)
        return ExtrasState(inner=inner, time=jnp.where(over, 0, time)), dataclasses.replace(
            step,
            obs=self._join(step.obs, now),
            final_observation=self._join(step.final_observation, after),
        )

    def _at_start(self, num_envs: int) -> dict[str, PyTree]:
        """Return the entries before the first step of an episode."""

        def nothing(space: Space) -> jax.Array:
            zero: jax.Array = zeros(_input_space(space), (num_envs,))
            return zero - 1 if isinstance(space, Discrete) else zero

        zero = jnp.zeros((num_envs, 1), jnp.float32)
        return {
            "last_action": jax.tree.map(nothing, self.action_space, is_leaf=is_space),
            "last_reward": zero,
            "step": zero,
            "agent": self._agents(num_envs),
        }

    def _agents(self, num_envs: int) -> jax.Array:
        """Return which agent of its world each row is, one-hot `[B, N]`."""
        num = self.num_agents
        return jnp.tile(jnp.eye(num, dtype=jnp.float32), (num_envs // num, 1))

    def _join(self, obs: PyTree, extras: dict[str, PyTree]) -> dict[str, PyTree]:
        own = obs if isinstance(obs, dict) else {"observation": obs}
        return {**own, **{name: extras[name] for name in self._names}}


def _input_space(space: Space) -> Discrete | Box:
    if isinstance(space, Discrete):
        return space
    if isinstance(space, MultiDiscrete):
        return Box((sum(space.num_values),), "float32", 0.0, 1.0)
    # No bounds, since zeros at the start of an episode may be outside those of the action.
    return Box(space.shape, "float32")


def _input(space: Space, action: jax.Array) -> jax.Array:
    """Return an action `[B, A...]` as the observation of the next step holds it."""
    if isinstance(space, Discrete):
        return action.astype(jnp.int32)
    if isinstance(space, Box):
        return action.astype(jnp.float32)
    parts = action.reshape(action.shape[0], -1)
    return jnp.concatenate(
        [jax.nn.one_hot(parts[:, i], num) for i, num in enumerate(space.num_values)], axis=-1
    )
