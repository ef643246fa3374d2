"""Environments: one adapter per library, each imported only when it is used."""

from jaxppo.config import ConfigError, EnvConfig
from jaxppo.types import Environment


def make(config: EnvConfig) -> Environment:
    """The environment that `config` names; `ConfigError` where there is none."""
    from jaxppo.envs import gymnax

    if (config.name is None) == (config.target is None):
        raise ConfigError(
            f"env.name={config.name} and env.target={config.target}: give one of them, "
            "a registered gymnax id or the import path of a class, and null for the other"
        )
    return gymnax.make(config)
