"""Environments whose state holds observation, reward and done, as of Brax and NAVIX."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.config.fields import check
from jaxppo.envs.forms import box_of
from jaxppo.types import Box, PyTree, Space


class States:
    """One environment as an `episodes.Single`; later random numbers come from its state.

    `reset` maps a key to a state, `step` a state and an action to the next state, and `read` a
    state to (observation, reward, terminated), `tells` a state to what it tells besides. Episodes
    are truncated after `time_limit` steps.
    """

    def __init__(
        self,
        reset: Callable[[jax.Array], Any],
        step: Callable[[Any, Any], Any],
        read: Callable[[Any], tuple[PyTree, jax.Array, jax.Array]],
        action_space: Space,
        time_limit: int | None,
        tells: Callable[[Any], PyTree] = lambda state: {},
    ) -> None:
        self._reset, self._step, self._read, self._tells = reset, step, read, tells
        self.action_space, self.time_limit = action_space, time_limit
        example = jax.eval_shape(lambda key: read(reset(key))[0], jax.random.key(0))
        self.observation_space = jax.tree.map(box_of, example)

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map a key to (state, observation)."""
        state = self._reset(key)
        return state, self._read(state)[0]

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array, PyTree]:
        """Take one step."""
        state = self._step(state, action)
        return state, *self._read(state), jnp.array(False), self._tells(state)


def of_brax(env: Any, time_limit: int | None, repeat: int = 1) -> States:
    """Return an unwrapped environment with Brax's interface; actions are in [-1, 1].

    An action is taken `repeat` times, as by Brax's `EpisodeWrapper`: rewards are summed, and of
    the ends, and of `metrics`, only those of the last of these steps count. `time_limit` counts
    them all.
    """
    repeat = check("env.kwargs.action_repeat", repeat, int, {"low": 1})

    def step(state: Any, action: jax.Array) -> Any:
        def one(state: Any, _: None) -> tuple[Any, jax.Array]:
            state = env.step(state, action)
            return state, state.reward

        state, rewards = jax.lax.scan(one, state, None, repeat)
        return state.replace(reward=rewards.sum())

    return States(
        env.reset,
        env.step if repeat == 1 else step,
        lambda s: (s.obs, s.reward, s.done.astype(bool)),
        Box((env.action_size,), "float32", -1.0, 1.0),
        None if time_limit is None else math.ceil(time_limit / repeat),
        lambda s: s.metrics,
    )
