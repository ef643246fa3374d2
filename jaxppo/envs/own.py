"""A user's own class by import path: of gymnax's contract, or of `episodes.Single`."""

from typing import Any

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.envs import check_gymnax, load
from jaxppo.envs.episodes import Episodes, check_spaces
from jaxppo.types import Environment


def make(config: EnvConfig) -> Environment:
    """Build what `env.target` names with `env.kwargs`; only gymnax's contract has `env.params`.

    What has `default_params`, or comes with parameters, is of gymnax's contract.
    """
    target = config.target or ""
    made = _attribute(target)(**config.kwargs)
    env, *params = made if isinstance(made, tuple) else (made,)
    if params or hasattr(env, "default_params"):
        check_gymnax()
        from jaxppo.envs import gymnax

        return gymnax.adapt(target, env, env.default_params, config)
    if config.params:
        raise ConfigError(
            f"env.params={config.params}: {target} has no parameters beside its arguments; give "
            "env.kwargs"
        )
    check_spaces(target, env)
    return Episodes(target, env, config)


def _attribute(target: str) -> Any:
    module, _, attribute = target.rpartition(".")
    if not module:
        raise ConfigError(f"env.target={target}: an import path such as my_package.MyEnv is needed")
    found = getattr(load("env.target", module), attribute, None)
    if found is None:
        raise ConfigError(f"env.target={target}: module {module} has no {attribute}")
    return found
