"""Small environments of jaxppo's own contract, and such that break it, each in one way."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.types import Box, Discrete

SHOWN: Any = {"x": Box((2,), "float32"), "action_mask": Box((2,), "bool")}
OF_THREE: Any = {"x": Box((2,), "float32"), "action_mask": Box((3,), "bool")}
CALLS = itertools.count()  # that a trace reads: not the key's randomness


class Count:
    """Observation [t, start] as `envs.Clock`'s, reward t + 1; action 1 terminates, 4 steps at most.

    `start` is drawn anew for each episode, so that a wrong successor or opening shows.
    """

    observation_space: Any = Box((2,), "float32", 0.0, 100.0)
    action_space: Any = Discrete(2)
    time_limit: Any = 4

    def reset(self, key: jax.Array) -> Any:
        obs = jnp.stack([0.0, 1.0 + jax.random.uniform(key)])
        return obs, obs

    def step(self, key: jax.Array, state: jax.Array, action: jax.Array) -> Any:
        state = state + jnp.array([1.0, 0.0])
        return state, state, state[0], action == 1, False


@dataclasses.dataclass(frozen=True)
class WindParams:
    wind: float = 0.5
    count: int = 3


class Windy(Count):
    """Observation [t, start], and reward `wind`; a picture's brightness is 100 times it and t."""

    params = WindParams()

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)

    def step(self, *args: Any) -> Any:
        state, obs, _, *flags = super().step(*args)
        return state, obs, jnp.float32(self.params.wind), *flags, {"wind": self.params.wind}

    def frame(self, state: jax.Array) -> Any:
        shown = jnp.stack([100 * jnp.float32(self.params.wind), state[0], 0.0])
        return jnp.broadcast_to(shown, (8, 8, 3)).astype(jnp.uint8)


class Filmed(Count):
    def frame(self, state: jax.Array) -> Any:
        return jnp.full((8, 8, 3), state[0], jnp.uint8)


class Privileged(Count):
    observation_space = dict.fromkeys(("state", "privileged_state"), Box((2,), "float32"))

    def reset(self, key: jax.Array) -> Any:
        state, obs = super().reset(key)
        return state, {"state": obs, "privileged_state": obs}

    def step(self, *args: Any) -> Any:
        state, obs, *rest = super().step(*args)
        return state, {"state": obs, "privileged_state": obs}, *rest


class Drawing(Count):
    """Observation [t, a number drawn from the key in the state], typed or not."""

    def __init__(self, typed: bool = True) -> None:
        self.typed = typed

    def reset(self, key: jax.Array) -> Any:
        return self.see({"time": jnp.float32(0), "rng": self.stored(key)})

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        key = state["rng"] if self.typed else jax.random.wrap_key_data(state["rng"])
        key = self.stored(jax.random.split(key)[0])
        state, obs = self.see({"time": state["time"] + 1, "rng": key})
        return state, obs, obs[0], action == 1, False

    def stored(self, key: jax.Array) -> jax.Array:
        return key if self.typed else jax.random.key_data(key)

    def see(self, state: Any) -> Any:
        key = state["rng"] if self.typed else jax.random.wrap_key_data(state["rng"])
        return state, jnp.stack([state["time"], jax.random.uniform(key)])


class WideState(Count):
    def step(self, *args: Any) -> Any:
        state, *rest = super().step(*args)
        return jnp.concatenate([state, state]), *rest


class Entries(Count):
    def step(self, *args: Any) -> Any:
        state, obs, *rest = super().step(*args)
        return state, {"x": obs}, *rest


class FlagOfOne(Count):
    def step(self, *args: Any) -> Any:
        state, obs, reward, terminated, truncated = super().step(*args)
        return state, obs, reward, terminated[None], truncated


class FourValues(Count):
    def step(self, *args: Any) -> Any:
        return super().step(*args)[:4]


class Branches(Count):
    def step(self, key: jax.Array, state: jax.Array, action: jax.Array) -> Any:
        return super().step(key, state, jnp.int32(1) if action == 1 else jnp.int32(0))


class NotANumber(Count):
    def step(self, *args: Any) -> Any:
        state, obs, reward, *flags = super().step(*args)
        return state, jnp.where(state[0] == 3, jnp.nan, obs), reward / (3 - state[0]), *flags


class Random(Count):
    """Draws from elsewhere than its key."""

    def step(self, *args: Any) -> Any:
        state, obs, reward, *flags = super().step(*args)
        return state, obs, reward + next(CALLS), *flags


class NoSpace(Count):
    action_space = (2, "two")


class Given(Count):
    """With the spaces or the time limit that it is made with."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


class NotAnEnvironment:
    pass


class Masked(Count):
    """Whose mask allows nothing from the third step on."""

    observation_space = SHOWN

    def reset(self, key: jax.Array) -> Any:
        state, obs = super().reset(key)
        return state, self.show(obs)

    def step(self, *args: Any) -> Any:
        state, obs, *rest = super().step(*args)
        return state, self.show(obs), *rest

    def show(self, obs: jax.Array) -> Any:
        return {"x": obs, "action_mask": jnp.array([True, False]) & (obs[0] < 3)}


class MaskOfThree(Masked):
    observation_space = OF_THREE

    def show(self, obs: jax.Array) -> Any:
        return {"x": obs, "action_mask": jnp.ones(3, bool)}


class Arrivals(Count):
    """Draws in a loop of a length that is not known before."""

    def step(self, key: jax.Array, *args: Any) -> Any:
        state, obs, reward, *flags = super().step(key, *args)
        return state, obs, reward + jax.random.poisson(key, 1.0), *flags


class Late(Count):
    """Terminates at its time limit, and only there."""

    def step(self, *args: Any) -> Any:
        state, obs, reward, *_ = super().step(*args)
        return state, obs, reward, state[0] >= self.time_limit, False


class LateLimit(Count):
    """With a limit that few steps do not reach."""

    time_limit = 99
