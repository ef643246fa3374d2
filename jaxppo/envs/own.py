"""A user's own class by import path, with gymnax's interface or that of `episodes.Single`."""

import dataclasses
import sys
from functools import partial
from typing import Any

from jaxppo.config.fields import ConfigError
from jaxppo.config.given import is_given, shown
from jaxppo.config.importing import imported
from jaxppo.config.schema import EnvConfig
from jaxppo.envs import refuse, refuse_ranges, teams
from jaxppo.envs.forms import check_spaces, line
from jaxppo.types import Environment


def make(config: EnvConfig) -> Environment:
    """Build the class that `env.target` names with `env.kwargs`.

    An object that has `default_params`, or that comes in a tuple with parameters, has gymnax's
    interface. Only such objects take `env.params`.
    """
    target = config.target or ""
    made_by = imported("env.target", target, "class", ("null",))
    made = made_by(**config.kwargs)
    if isinstance(made, tuple) and len(made) not in (1, 2):
        raise ConfigError(
            f"env={line(made)}: a tuple holds an environment and its parameters; give two"
        )
    env, *given = made if isinstance(made, tuple) else (made,)
    name = shown(target)
    if given or hasattr(env, "default_params"):
        params = given[0] if given else env.default_params
        if not dataclasses.is_dataclass(params) or isinstance(params, type):
            raise ConfigError(
                f"{name}: its parameters are {line(params)}, but must be a dataclass with values, "
                "such as its default_params, which is a property"
            )
        from jaxppo.envs import as_gymnax, gymnax

        env = as_gymnax.Legacy(name, env) if config.gymnax_legacy else env
        return gymnax.adapt(name, env, params, config)
    refuse(config, ["gymnax_legacy"], f"{name} has not gymnax's interface; leave it out")
    params = getattr(env, "params", None)
    has_params = dataclasses.is_dataclass(params) and not isinstance(params, type)
    has_params = has_params and not hasattr(env, "num_agents")  # worlds have none so far
    if not has_params:
        why = f"{name} has no parameters besides its arguments; use env.kwargs, or give it an "
        refuse(config, ["params"], f"{why}attribute params, a dataclass")
    gymnasium = sys.modules.get("gymnasium")  # not imported here
    kind: Any = () if gymnasium is None else (gymnasium.Env, gymnasium.vector.VectorEnv)
    is_class = isinstance(env, type) and issubclass(env, kind)
    makes = callable(env) and (not hasattr(env, "step") or is_class)
    if isinstance(env, type) and not makes:
        raise ConfigError(
            f"env={env.__name__}: must be an object, not a class; pass {env.__name__}(...)"
        )
    if makes or isinstance(env, kind):
        from jaxppo.envs.gymnasium import simulated
        from jaxppo.simulators.making import from_callable

        wrappers = list(config.wrappers)
        if makes:
            path = None if is_given(target) else target
            return simulated(path, partial(from_callable, env, {}, wrappers), config)
        if is_given(target):
            raise ConfigError(
                "env: is one environment, and a run needs several; give a function that makes one, "
                'such as env=lambda: gymnasium.make("CartPole-v1")'
            )
        env.close()
        factory = partial(from_callable, made_by, dict(config.kwargs), wrappers)
        return simulated(target, factory, config)
    if has_params:
        check_spaces(name, env)
        from jaxppo.envs import as_gymnax, gymnax

        return gymnax.adapt(name, as_gymnax.WithParams(env), params, config)
    refuse_ranges(config, name)
    return teams.make(name, env, config)
