"""Adapter of Brax: its registered environments, on any of its backends."""

from brax import envs as brax_envs

from jaxppo.config.schema import EnvConfig
from jaxppo.envs.episodes import Episodes
from jaxppo.envs.states import of_brax


def names() -> list[str]:
    """Return the names of all registered environments."""
    return sorted(brax_envs._envs)  # Brax has no public list of its environments


def make(config: EnvConfig) -> Episodes:
    """Build by Brax's name; `env.kwargs` go to its class (`backend`).

    Not so `episode_length` and `action_repeat`. They replace Brax's wrappers, which at
    `episode_length` would report both termination and truncation.
    """
    kwargs = dict(config.kwargs)
    settings = kwargs.pop("episode_length", 1000), kwargs.pop("action_repeat", 1)
    name = str(config.name)
    return Episodes(name, of_brax(brax_envs.get_environment(name, **kwargs), *settings), config)
