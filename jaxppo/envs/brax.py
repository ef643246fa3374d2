"""Adapter of Brax: its registered environments, on any of its backends."""

from brax import envs as brax_envs

from jaxppo.config.schema import EnvConfig
from jaxppo.envs import unknown
from jaxppo.envs.episodes import Episodes
from jaxppo.envs.states import States


def make(config: EnvConfig) -> Episodes:
    """Build by Brax's name; `env.kwargs` are its class's, `backend` say, and `episode_length`.

    Without Brax's wrappers, which report `episode_length` as the end of both kinds.
    """
    kwargs = dict(config.kwargs)
    length = kwargs.pop("episode_length", 1000)
    name = str(config.name)
    if name not in brax_envs._envs:
        raise unknown(config, brax_envs._envs)
    return Episodes(name, States(brax_envs.get_environment(name, **kwargs), length), config)
