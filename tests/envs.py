"""Small environments of gymnax's contract whose optimum or trajectory is known."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces


@struct.dataclass
class State:
    time: jax.Array
    value: jax.Array  # what the observation shows


@struct.dataclass
class Params:
    max_steps_in_episode: int = 5
    terminates: bool = False  # the episode's end is the MDP's, not the clock's


class Clock(environment.Environment[State, Params]):
    """Observation [t, start]; reward t + 1; episodes of `max_steps_in_episode`, whatever one does.

    `start` is drawn anew for each episode, so that a wrong successor shows.
    """

    @property
    def default_params(self) -> Params:
        return Params()

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        state = State(time=jnp.int32(0), value=jax.random.uniform(key))
        return self.observation(state), state

    def step_env(
        self, key: jax.Array, state: State, action: jax.Array, params: Params
    ) -> tuple[jax.Array, State, jax.Array, jax.Array, dict[str, Any]]:
        state = State(time=state.time + 1, value=state.value)
        over = state.time >= params.max_steps_in_episode
        reward = state.time.astype(jnp.float32)
        return self.observation(state), state, reward, over & params.terminates, {}

    def observation(self, state: State) -> jax.Array:
        return jnp.stack([state.time.astype(jnp.float32), state.value])

    def action_space(self, params: Params) -> spaces.Discrete:
        return spaces.Discrete(2)

    def observation_space(self, params: Params) -> spaces.Box:
        return spaces.Box(0.0, 1e6, (2,))


class Copy(environment.Environment[State, Params]):
    """Reward 1 for the action that the one-hot observation shows, else 0; one step an episode."""

    num_values = 3

    @property
    def default_params(self) -> Params:
        return Params(max_steps_in_episode=1, terminates=True)

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        state = State(time=jnp.int32(0), value=jax.random.randint(key, (), 0, self.num_values))
        return jax.nn.one_hot(state.value, self.num_values), state

    def step_env(
        self, key: jax.Array, state: State, action: jax.Array, params: Params
    ) -> tuple[jax.Array, State, jax.Array, jax.Array, dict[str, Any]]:
        reward = (action == state.value).astype(jnp.float32)
        state = State(time=state.time + 1, value=state.value)
        return jax.nn.one_hot(state.value, self.num_values), state, reward, jnp.array(True), {}

    def action_space(self, params: Params) -> spaces.Discrete:
        return spaces.Discrete(self.num_values)

    def observation_space(self, params: Params) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (self.num_values,))


class Coin(environment.Environment[State, Params]):
    """Reward 1 a step; each step ends the episode with probability 1/4, so lengths average 4."""

    @property
    def default_params(self) -> Params:
        return Params(max_steps_in_episode=1000)

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        return jnp.zeros(1), State(time=jnp.int32(0), value=jnp.float32(0))

    def step_env(
        self, key: jax.Array, state: State, action: jax.Array, params: Params
    ) -> tuple[jax.Array, State, jax.Array, jax.Array, dict[str, Any]]:
        over = jax.random.bernoulli(key, 0.25)
        state = State(time=state.time + 1, value=state.value)
        return jnp.zeros(1), state, jnp.float32(1), over, {}

    def action_space(self, params: Params) -> spaces.Discrete:
        return spaces.Discrete(2)

    def observation_space(self, params: Params) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (1,))


class Echo(Copy):
    """`Copy` whose observation is a dict with an integer leaf and a discrete one beside it."""

    def reset_env(self, key: jax.Array, params: Params) -> tuple[Any, State]:
        _, state = super().reset_env(key, params)
        return self.observation(state), state

    def step_env(
        self, key: jax.Array, state: State, action: jax.Array, params: Params
    ) -> tuple[Any, State, jax.Array, jax.Array, dict[str, Any]]:
        _, state, reward, over, info = super().step_env(key, state, action, params)
        return self.observation(state), state, reward, over, info

    def observation(self, state: State) -> dict[str, jax.Array]:
        return {"count": jnp.full((2,), 7, jnp.int32), "shown": state.value}

    def observation_space(self, params: Params) -> spaces.Dict:
        return spaces.Dict(
            {"count": spaces.Box(0, 9, (2,), jnp.int32), "shown": spaces.Discrete(3)}
        )


class Endless(Clock):
    """Reward 1 a step and nothing to see; only the clock ends an episode."""

    def step_env(
        self, key: jax.Array, state: State, action: jax.Array, params: Params
    ) -> tuple[jax.Array, State, jax.Array, jax.Array, dict[str, Any]]:
        obs, state, _, over, info = super().step_env(key, state, action, params)
        return obs, state, jnp.float32(1.0), over, info

    def observation(self, state: State) -> jax.Array:
        return jnp.zeros(2)
