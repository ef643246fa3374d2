"""Adapter of Craftax and Craftax-Classic, with symbols or pixels as observations."""

import dataclasses
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
from craftax.craftax_env import make_craftax_env_from_name

from jaxppo.config.schema import EnvConfig
from jaxppo.envs import replace_params
from jaxppo.envs.episodes import Episodes
from jaxppo.envs.forms import box_of
from jaxppo.types import Discrete, PyTree


class Craftax:
    """One environment of Craftax as an `episodes.Single`, with fixed parameters.

    At `max_timesteps` Craftax ends an episode as if the player had died. So Craftax gets a limit of
    one more step, and `Episodes` truncates at the original limit. It tells achievements at its own
    ends only; here they are told at every step.
    """

    def __init__(self, env: Any, params: Any, *, tells: bool) -> None:
        self._env = env
        self._achievements: list[Any] = []
        if tells:
            package = type(env).__module__.partition(".envs.")[0]
            self._achievements = list(import_module(f"{package}.constants").Achievement)
        self.time_limit: int | None = int(params.max_timesteps)
        self._params = dataclasses.replace(params, max_timesteps=params.max_timesteps + 1)
        obs, _ = jax.eval_shape(env.reset_env, jax.random.key(0), self._params)
        self.observation_space = box_of(obs)
        self.action_space = Discrete(env.num_actions)

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map a key to (state, observation); a new world costs as much as hundreds of steps."""
        obs, state = self._env.reset_env(key, self._params)
        return state, obs

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array, PyTree]:
        """Take one step."""
        obs, state, reward, over, info = self._env.step_env(key, state, action, self._params)
        for each in self._achievements:
            info[f"Achievements/{each.name.lower()}"] = 100.0 * state.achievements[each.value]
        return state, obs, reward, over, jnp.array(False), info


def names() -> list[str]:
    """Return the names of all environments; Craftax has no list of them."""
    games, kinds = ("Craftax", "Craftax-Classic"), ("Symbolic", "Pixels")
    return [f"{game}-{kind}-v1" for game in games for kind in kinds]


def make(config: EnvConfig) -> Episodes:
    """Build by Craftax's name, with the changes of `env.params`."""
    name = str(config.name)
    env = make_craftax_env_from_name(name, auto_reset=False, **config.kwargs)
    params = replace_params(name, env.default_params, config.params)
    return Episodes(name, Craftax(env, params, tells=bool(config.metrics)), config)
