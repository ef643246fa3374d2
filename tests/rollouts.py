"""Steps of environments, for tests of any interface."""

from typing import Any

import jax
import numpy as np


def rollout(env: Any, actions: Any, seed: int = 0) -> tuple[Any, Any]:
    """First observations `[B, O...]`, and the steps `[T, B, ...]` of actions `[T, B, A...]`."""
    num_steps, num_envs = jax.tree.leaves(actions)[0].shape[:2]

    @jax.jit
    def run(keys: jax.Array, actions: Any) -> Any:
        state, obs = env.reset(keys[0])

        def step(state: Any, x: Any) -> Any:
            return env.step(x[0], state, x[1])

        return obs, jax.lax.scan(step, state, (keys[1:], actions))[1]

    keys = jax.random.split(jax.random.key(seed), (1 + num_steps, num_envs))
    return jax.tree.map(np.asarray, run(keys, actions))
