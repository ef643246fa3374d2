"""A user's own class by import path, with gymnax's interface or that of `episodes.Single`."""

import sys
from functools import partial
from typing import Any

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.envs import check_gymnax, load
from jaxppo.envs.episodes import Episodes, check_spaces
from jaxppo.types import Environment


def make(config: EnvConfig) -> Environment:
    """Build the class that `env.target` names with `env.kwargs`.

    An object that has `default_params`, or that comes in a tuple with parameters, has gymnax's
    interface. Only such objects take `env.params`.
    """
    target = config.target or ""
    made = _attribute(target)(**config.kwargs)
    env, *params = made if isinstance(made, tuple) else (made,)
    if params or hasattr(env, "default_params"):
        check_gymnax()
        from jaxppo.envs import gymnax

        return gymnax.adapt(target, env, params[0] if params else env.default_params, config)
    if config.params:
        raise ConfigError(
            f"env.params={config.params}: {target} has no parameters besides its arguments; use "
            "env.kwargs"
        )
    if _is_gymnasium(env):
        from jaxppo.envs.gymnasium import simulated
        from jaxppo.simulators import making

        env.close()
        wrappers = list(config.wrappers)
        factory = partial(making.from_class, target, dict(config.kwargs), wrappers)
        return simulated(target, factory, config)
    check_spaces(target, env)
    return Episodes(target, env, config)


def _is_gymnasium(env: Any) -> bool:
    """Return whether an object is an environment of Gymnasium, without importing it."""
    gymnasium = sys.modules.get("gymnasium")
    return gymnasium is not None and isinstance(env, gymnasium.Env)


def _attribute(target: str) -> Any:
    module, _, attribute = target.rpartition(".")
    if not module:
        raise ConfigError(f"env.target={target}: an import path such as my_package.MyEnv is needed")
    found = getattr(load("env.target", module), attribute, None)
    if found is None:
        raise ConfigError(f"env.target={target}: module {module} has no {attribute}")
    return found
