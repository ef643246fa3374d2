"""Environments as they were written for gymnax before 1.0: `done` holds the time limit too."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from envs import Params, State
from flax import struct
from gymnax.environments import environment, spaces
from gymnax.environments.classic_control import cartpole


class CartPole(cartpole.CartPole):
    """With `is_terminal` of 0.0.x, from which its `step_env` and `discount` take the end."""

    is_terminated = environment.Environment.is_terminated

    def is_terminal(self, state: Any, params: Any) -> jax.Array:
        fallen = cartpole.CartPole.is_terminated(self, state, params)
        return fallen | (state.time >= params.max_steps_in_episode)


class Base:
    """What a copy of gymnax's own base class was."""

    @partial(jax.jit, static_argnums=(0,))
    def step(self: Any, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        key, key_reset = jax.random.split(key)
        obs_st, state_st, reward, done, info = self.step_env(key, state, action, params)
        obs_re, state_re = self.reset_env(key_reset, params)
        state = jax.tree.map(lambda x, y: jax.lax.select(done, x, y), state_re, state_st)
        return jax.lax.select(done, obs_re, obs_st), state, reward, done, info

    def reset(self: Any, key: jax.Array, params: Any) -> Any:
        return self.reset_env(key, params)


class Chain(Base):
    """Observation [t, position]; action 1 goes on, the end of 3 places terminates, 5 steps do not.

    `envs.Clock`'s state; a picture's brightness is the position.
    """

    @property
    def default_params(self) -> Params:
        return Params()

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        state = State(time=jnp.int32(0), value=jnp.float32(0))
        return self.get_obs(state), state

    def step_env(self, key: jax.Array, state: State, action: jax.Array, params: Any) -> Any:
        state = State(time=state.time + 1, value=state.value + action)
        return self.get_obs(state), state, state.value, self.is_terminal(state, params), {}

    def is_terminal(self, state: State, params: Any) -> jax.Array:
        return (state.value >= 3) | (state.time >= params.max_steps_in_episode)

    def get_obs(self, state: State) -> jax.Array:
        return jnp.stack([state.time.astype(jnp.float32), state.value])

    def frame(self, state: State, params: Any) -> Any:
        return jnp.full((8, 8, 3), state.value, jnp.uint8)

    def action_space(self, params: Any) -> spaces.Discrete:
        return spaces.Discrete(2)

    def observation_space(self, params: Any) -> spaces.Box:
        return spaces.Box(0.0, 10.0, (2,))


@struct.dataclass
class Unlimited(environment.EnvParams):
    pass


class Endless(Chain):
    """Without a time limit, with the one step of gymnax's own parameters."""

    @property
    def default_params(self) -> Any:
        return Unlimited()

    def is_terminal(self, state: State, params: Any) -> jax.Array:
        return state.value >= 3


class Wrapper:
    """What wrappers for gymnax 0.0.x are: they pass everything else on."""

    def __init__(self) -> None:
        self._env = Chain()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, *args: Any) -> Any:
        return self._env.step(*args)


class Fixed(Chain):
    """Its limit of 5 steps is a number in the code; that of its parameters is gymnax's 1 step."""

    @property
    def default_params(self) -> Any:
        return Unlimited()

    def is_terminal(self, state: State, params: Any) -> jax.Array:
        return (state.value >= 3) | (state.time >= 5)


class Longer(Fixed):
    """And its parameters name another limit, which nothing reads."""

    @property
    def default_params(self) -> Any:
        return Params(max_steps_in_episode=50)


class Branches(Chain):
    """Fails while it is traced, whatever its version is."""

    def is_terminal(self, state: State, params: Any) -> jax.Array:
        return super().is_terminal(state, params) if state.value else jnp.array(False)


class FiveValues:
    """A class whose step returns five values, and which has no `step_env`."""

    default_params = Params()
    action_space, observation_space = Chain.action_space, Chain.observation_space

    def reset(self, key: jax.Array, params: Any) -> Any:
        return Chain().reset(key, params)

    def step(self, *args: Any) -> Any:
        return Chain().step(*args)
