"""The T-maze: a cue at the start of a corridor says where to turn at its end."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces


@struct.dataclass
class State(environment.EnvState):  # type: ignore[misc]  # gymnax is not typed
    """The state of one episode."""

    position: jax.Array  # int32, 0 at the start, `delay` at the junction
    goal: jax.Array  # int32, 0 left or 1 right


class TMaze(environment.Environment[State, environment.EnvParams]):  # type: ignore[misc]
    """Walk `delay` steps down a corridor, then turn to the side that the cue showed.

    Actions: 0 forward, 1 left, 2 right. The observation is `[cue, junction]`: the cue shows the
    goal (-1 left, 1 right) at the start only, `junction` is 1 at the junction only, and all else is
    0. A turn at the junction ends the episode with a reward of 1 towards the goal, else -1. Any
    other bump into a wall costs 1 / the time limit, which is 2 (delay + 1). The best return is 1;
    without memory the average is 0. After Bakker 2001 (NIPS 14, "Reinforcement learning with long
    short-term memory").
    """

    def __init__(self, delay: int = 10) -> None:
        super().__init__()
        if type(delay) is not int or delay < 1:
            raise ValueError(f"delay={delay} must be an integer, at least 1")
        self.delay = delay

    @property
    def default_params(self) -> environment.EnvParams:
        """The parameters, which hold the time limit."""
        return environment.EnvParams(max_steps_in_episode=2 * (self.delay + 1))

    def reset_env(self, key: jax.Array, params: environment.EnvParams) -> tuple[jax.Array, State]:
        """Start with a goal on a random side."""
        goal = jax.random.bernoulli(key).astype(jnp.int32)
        state = State(time=jnp.int32(0), position=jnp.int32(0), goal=goal)
        return self._observation(state), state

    def step_env(
        self, key: jax.Array, state: State, action: Any, params: environment.EnvParams
    ) -> tuple[jax.Array, State, jax.Array, jax.Array, dict[str, Any]]:
        """Take one step or turn."""
        at_junction = state.position == self.delay
        turned = at_junction & (action > 0)
        moved = ~at_junction & (action == 0)
        found = jnp.where(action - 1 == state.goal, 1.0, -1.0)
        bump = jnp.where(moved, 0.0, -1.0 / params.max_steps_in_episode)
        state = State(
            time=state.time + 1, position=state.position + moved.astype(jnp.int32), goal=state.goal
        )
        return self._observation(state), state, jnp.where(turned, found, bump), turned, {}

    def _observation(self, state: State) -> jax.Array:
        cue = jnp.where(state.position == 0, 2.0 * state.goal - 1.0, 0.0)
        return jnp.stack([cue, (state.position == self.delay).astype(jnp.float32)])

    def action_space(self, params: environment.EnvParams | None = None) -> spaces.Discrete:
        """Return the space of forward, left, right."""
        return spaces.Discrete(3)

    def observation_space(self, params: environment.EnvParams) -> spaces.Box:
        """Return the space of cue and junction."""
        return spaces.Box(-1.0, 1.0, (2,))
