"""Adapter of MuJoCo Playground: its registered environments, simulated by MJX."""

from mujoco_playground import registry

from jaxppo.config.schema import EnvConfig
from jaxppo.envs import unknown
from jaxppo.envs.episodes import Episodes
from jaxppo.envs.states import States


def names() -> list[str]:
    """Return the names of all registered environments."""
    return list(registry.ALL_ENVS)


def downloads(name: str) -> bool:
    """Return whether an environment downloads files when it is made for the first time.

    Models of robots are in MuJoCo Menagerie, a repository of its own.
    """
    return name not in registry.dm_control_suite.ALL_ENVS


def make(config: EnvConfig) -> Episodes:
    """Build by name; `env.kwargs` change its configuration (`impl`, `episode_length`, ...).

    By default the simulator is MJX's JAX implementation, which runs on any device.
    """
    name = str(config.name)
    if name not in names():
        raise unknown(config, names())
    settings = registry.get_default_config(name)
    changes = {"impl": "jax", **config.kwargs} if "impl" in settings else config.kwargs
    settings.update(changes)
    env = registry.load(name, config=settings)
    return Episodes(name, States(env, settings.episode_length), config)
