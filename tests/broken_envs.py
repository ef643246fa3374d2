"""Environments that break the contract, each in one way."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from envs import Clock, Params
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import EnvParams


class Shape(Clock):
    """An observation of another shape after a step."""

    def step(self, *args: Any) -> Any:
        obs, *rest = super().step(*args)
        return (jnp.concatenate([obs, obs]), *rest)


class Forgets(Clock):
    """Loses the true successor: what it reports is the next episode's first observation."""

    def step(self, *args: Any) -> Any:
        obs, state, reward, terminated, truncated, info = super().step(*args)
        return obs, state, reward, terminated, truncated, {**info, "final_observation": obs}


class Confuses(Clock):
    """Reports the clock's end as the MDP's."""

    def step(self, *args: Any) -> Any:
        obs, state, reward, terminated, truncated, info = super().step(*args)
        return obs, state, reward, terminated | truncated, False & truncated, info


class Endless(Clock):
    """Goes on past the limit that it tells."""

    def is_truncated(self, state: Any, params: Any) -> jax.Array:
        return state.time >= 2 * params.max_steps_in_episode


class Counts(Clock):
    """Counts its steps in an attribute, which a compiled program does once."""

    steps = 0

    def step_env(self, *args: Any) -> Any:
        self.steps += 1
        return super().step_env(*args)


class Draws(Clock):
    """Draws with NumPy, once for all steps of a compiled program."""

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        obs, *rest = super().step_env(key, state, action, params)
        return (obs + 0.001 * np.random.default_rng().normal(), *rest)


class Outside(Clock):
    """Shows what its space does not hold."""

    def step_env(self, *args: Any) -> Any:
        obs, *rest = super().step_env(*args)
        return (obs + 2e6, *rest)


class Beyond(Clock):
    """Reads a table beyond its end."""

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        obs, state, reward, *rest = super().step_env(key, state, action, params)
        return (obs, state, reward + jnp.arange(3.0)[state.time], *rest)


class LimitInDone(Clock):
    """Returns the time limit in `done`, as environments did before gymnax 1.0."""

    @property
    def default_params(self) -> Params:
        return Params(terminates=True)


@struct.dataclass
class NoLimit(EnvParams):
    terminates: bool = False


class InheritedLimit(Clock):
    """Its episodes have the one step of gymnax's own parameters."""

    @property
    def default_params(self) -> Any:
        return NoLimit()


class Bandit(InheritedLimit):
    """Its episodes have one step, and end there."""

    @property
    def default_params(self) -> Any:
        return NoLimit(terminates=True)


class Discount(Clock):
    """Returns a discount, as gymnax's own environments before 1.0."""

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        obs, state, *rest, _ = super().step_env(key, state, action, params)
        return obs, state, *rest, {"discount": self.discount(state, params)}


class Unpacks(Clock):
    """Takes five values of gymnax's step, as wrappers before gymnax 1.0."""

    def step(self, *args: Any) -> Any:
        obs, state, reward, done, info = super().step(*args)
        return obs, state, reward, done, info


class SixValues(Clock):
    """Its step without a reset has the values of the step with one."""

    def step_env(self, *args: Any) -> Any:
        *rest, terminated, info = super().step_env(*args)
        return *rest, terminated, terminated, info


class ObsOnly(Clock):
    """Its reset returns no state."""

    def reset_env(self, *args: Any) -> Any:
        return super().reset_env(*args)[0]


class Declares(Clock):
    """Its space says other shapes and types than its observation has."""

    def __init__(self, entries: Any, *, named: bool = False) -> None:
        super().__init__()
        self.entries, self.named = entries, named

    def observation(self, state: Any) -> Any:
        obs = super().observation(state)
        return {"x": obs} if self.named else obs

    def observation_space(self, params: Any) -> Any:
        boxes = {name: spaces.Box(0.0, high, *form) for name, (high, *form) in self.entries.items()}
        return spaces.Dict(boxes) if self.named else boxes["x"]


class NoSuccessor(Clock):
    """Its own step loses the last observation."""

    def step(self, *args: Any) -> Any:
        return *super().step(*args)[:-1], {}


@struct.dataclass
class Timeless:
    value: jax.Array


class NoTime(Clock):
    """Its state has no time, and it does not say when it truncates."""

    def reset_env(self, *args: Any) -> Any:
        obs, state = super().reset_env(*args)
        return obs, Timeless(value=state.value)

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        return jnp.zeros(2), state, 0.0, False, {}
