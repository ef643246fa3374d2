"""Parameters of an environment (`env.params`) that differ between the members of a program."""

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.envs import build
from jaxppo.envs.episodes import changed, inner
from jaxppo.envs.ranges import kind_of
from jaxppo.types import Environment, PyTree, zeros


def with_params(env: Environment, values: dict[str, jax.Array]) -> Environment:
    """Return an environment with other values of these parameters, scalars that may be traced."""
    if not values:
        return env
    return changed(env, params=dataclasses.replace(inner(env).params, **values))


def typed(env: Environment, name: str, values: Any) -> np.ndarray:
    """Return values of a parameter as an array of NumPy."""
    kind = kind_of(inner(env).params, name)
    return np.asarray(values, np.float32 if kind is float else np.int32)


def can_vary(one: EnvConfig, other: EnvConfig) -> bool:
    """Return whether a program can train members with either of these settings.

    They differ in `env.params` alone, in numbers that may be traced and leave the spaces and the
    time limit as they are.
    """
    if (
        one.library != "gymnax"  # no other has parameters as data
        or one.params.keys() != other.params.keys()
        or dataclasses.replace(other, params=one.params) != one
    ):
        return False
    differ = [name for name in one.params if one.params[name] != other.params[name]]
    if {*differ} & {*one.randomize, *one.curriculum}:
        return False
    try:
        envs = [build(config) for config in (one, other)]
    except ConfigError:  # which the run itself raises
        return False
    from jaxppo.envs.gymnax import GymnaxEnvironment

    bare = inner(envs[0])
    if not isinstance(bare, GymnaxEnvironment) or _form(envs[0]) != _form(envs[1]):
        return False
    if not all(kind_of(bare.params, name) for name in differ):
        return False

    def play(key: jax.Array, values: dict[str, jax.Array]) -> PyTree:
        env = with_params(envs[0], values)
        state, _ = env.reset(key)
        return env.step(key, state, zeros(env.action_space, key.shape))

    values = {name: typed(envs[0], name, one.params[name]) for name in differ}
    try:
        jax.eval_shape(play, jax.random.split(jax.random.key(0)), values)
    except Exception:  # an environment may raise anything while it is traced
        return False
    return True


def _form(env: Environment) -> str:
    return repr((env.observation_space, env.action_space, env.time_limit))
