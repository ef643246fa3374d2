"""A user's own class by import path, with gymnax's interface or that of `episodes.Single`."""

import dataclasses
import inspect
import sys
from functools import partial
from typing import Any

from jaxppo.config.fields import ConfigError
from jaxppo.config.given import is_given
from jaxppo.config.importing import imported
from jaxppo.config.schema import EnvConfig
from jaxppo.envs import check_gymnax, refuse, refuse_ranges, teams
from jaxppo.envs.forms import check_spaces, line
from jaxppo.types import Environment


def make(config: EnvConfig) -> Environment:
    """Build the class that `env.target` names with `env.kwargs`.

    An object that has `default_params`, or that comes in a tuple with parameters, has gymnax's
    interface. Only such objects take `env.params`.
    """
    target = config.target or ""
    made = imported("env.target", target, "class", ("null",))(**config.kwargs)
    if isinstance(made, tuple) and len(made) not in (1, 2):
        raise ConfigError(
            f"env={line(made)}: a tuple holds an environment and its parameters; give two"
        )
    env, *given = made if isinstance(made, tuple) else (made,)
    name = type(env).__name__ if is_given(target) else target
    if given or hasattr(env, "default_params"):
        params = given[0] if given else env.default_params
        if inspect.ismethod(params):
            raise ConfigError(
                f"{name}: default_params is a method, but in gymnax a property; put @property "
                "above it"
            )
        if not dataclasses.is_dataclass(params) or isinstance(params, type):
            raise ConfigError(
                f"{name}: its parameters are {line(params)}, but must be a dataclass with values, "
                "such as its default_params"
            )
        check_gymnax()
        from jaxppo.envs import as_gymnax, gymnax

        env = as_gymnax.Legacy(name, env) if config.gymnax_legacy else env
        return gymnax.adapt(name, env, params, config)
    refuse(config, ["gymnax_legacy"], f"{name} has not gymnax's interface; leave it out")
    params = getattr(env, "params", None)
    has_params = dataclasses.is_dataclass(params) and not isinstance(params, type)
    has_params = has_params and not hasattr(env, "num_agents")  # worlds have none so far
    if config.params and not has_params:
        raise ConfigError(
            f"env.params={config.params}: {name} has no parameters besides its arguments; use "
            "env.kwargs, or give it an attribute params, a dataclass"
        )
    gymnasium = sys.modules.get("gymnasium")  # not imported here
    kind: Any = () if gymnasium is None else (gymnasium.Env, gymnasium.vector.VectorEnv)
    is_class = isinstance(env, type) and issubclass(env, kind)
    makes = callable(env) and (not hasattr(env, "step") or is_class)
    if isinstance(env, type) and not makes:
        raise ConfigError(
            f"env={env.__name__}: must be an object, not a class; pass {env.__name__}(...)"
        )
    if makes or isinstance(env, kind):
        return _simulated(target, env, config, makes=makes)
    if has_params:
        check_spaces(name, env)
        check_gymnax()
        from jaxppo.envs import as_gymnax, gymnax

        return gymnax.adapt(name, as_gymnax.WithParams(env), params, config)
    refuse_ranges(config, name)
    return teams.make(name, env, config)


def _simulated(target: str, env: Any, config: EnvConfig, *, makes: bool) -> Environment:
    """Describe the environments of a class of Gymnasium, or those that the function `env` makes."""
    from jaxppo.envs.gymnasium import simulated
    from jaxppo.simulators import making

    wrappers = list(config.wrappers)
    if makes:
        name = None if is_given(target) else target
        return simulated(name, partial(making.from_function, env, wrappers), config)
    if is_given(target):
        raise ConfigError(
            "env: is one environment, and a run needs several; give a function that makes one, "
            'such as env=lambda: gymnasium.make("CartPole-v1")'
        )
    env.close()
    kwargs = dict(config.kwargs)
    return simulated(target, partial(making.from_class, target, kwargs, wrappers), config)
