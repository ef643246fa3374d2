"""Environments: one adapter per library, each imported only when it is used."""

from jaxppo.config import ConfigError, EnvConfig
from jaxppo.types import Environment


def make(config: EnvConfig) -> Environment:
    """The environment that `config` names; `ConfigError` where there is none."""
    from jaxppo.envs import gymnax
    from jaxppo.envs.extras import Extras
    from jaxppo.envs.mask import Mask

    if (config.name is None) == (config.target is None):
        raise ConfigError(
            f"env.name={config.name} and env.target={config.target}: give one of them, "
            "a registered gymnax id or the import path of a class, and null for the other"
        )
    env: Environment = gymnax.make(config)
    if config.mask:
        env = Mask(env, tuple(config.mask))
    _check_action_mask(config.action_mask, env)
    return Extras(env, tuple(config.extras)) if config.extras else env


def _check_action_mask(entry: str | None, env: Environment) -> None:
    """That a mask asked for by name is there; the default name is only looked for."""
    if entry in (None, "action_mask"):
        return
    space = env.observation_space
    if not isinstance(space, dict):
        raise ConfigError(
            f"env.action_mask={entry}: the observation of {env.name} is not a dict with entries; "
            "give null"
        )
    if entry not in space:
        raise ConfigError(
            f"env.action_mask={entry}: the observation of {env.name} has no such entry; it has "
            f"{', '.join(map(str, space))}; give one of these or null"
        )
