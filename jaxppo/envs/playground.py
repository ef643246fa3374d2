"""Adapter of MuJoCo Playground: its registered environments, simulated by MJX."""

from typing import Any

import jax
from mujoco_playground import registry

from jaxppo.config.schema import EnvConfig
from jaxppo.envs.episodes import Episodes
from jaxppo.envs.states import of_brax

FILES = "external_deps in the folder of mujoco_playground"  # where its downloads are


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
    settings = registry.get_default_config(name)
    changes = {"impl": "jax", **config.kwargs} if "impl" in settings else config.kwargs
    settings.update(changes)
    env = registry.load(name, config=settings)
    if settings.get("impl") == "warp":
        env = _Warp(env)
    times = settings.episode_length, settings.action_repeat
    return Episodes(name, of_brax(env, *times), config)


class _Warp:
    """An environment simulated by MuJoCo Warp, whose states hold only what is their own.

    Warp's states also hold arrays that all environments share under `vmap`, such as the list of
    contacts. They are constant, or each step computes them anew, so they are taken from a template.
    """

    def __init__(self, env: Any) -> None:
        self._env, self.action_size = env, env.action_size
        keys = jax.random.split(jax.random.key(0), 3)
        template = jax.jit(env.reset)(keys[0])
        two, three = (jax.eval_shape(jax.vmap(env.reset), keys[:num]) for num in (2, 3))
        leaves = zip(*map(jax.tree.leaves, (template, two, three)), strict=True)
        self._shared = [x if a.shape == b.shape else None for x, a, b in leaves]
        self._structure = jax.tree.structure(template)

    def reset(self, key: jax.Array) -> Any:
        """Map a key to a state."""
        return self._own(self._env.reset(key))

    def step(self, state: Any, action: jax.Array) -> Any:
        """Take one control step."""
        own = iter(jax.tree.leaves(state))
        leaves = [next(own) if shared is None else shared for shared in self._shared]
        whole = jax.tree.unflatten(self._structure, leaves)
        return self._own(self._env.step(whole, action))

    def _own(self, state: Any) -> Any:
        """Return the state with None in place of what is shared."""
        leaves, structure = jax.tree.flatten(state)
        own = (x if y is None else None for x, y in zip(leaves, self._shared, strict=True))
        return jax.tree.unflatten(structure, own)
