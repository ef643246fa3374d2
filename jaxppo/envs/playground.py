"""Adapter of MuJoCo Playground: its registered environments, simulated by MJX."""

import dataclasses
from typing import Any

import jax
from mujoco_playground import registry

from jaxppo.config.schema import EnvConfig
from jaxppo.envs import unknown
from jaxppo.envs.episodes import Episodes
from jaxppo.envs.states import States
from jaxppo.types import PyTree


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
    if settings.get("impl") == "warp":
        env = _Warp(env)
    return Episodes(name, States(env, settings.episode_length), config)


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

    def reset(self, key: jax.Array) -> "_State":
        """Map a key to a state."""
        return self._own(self._env.reset(key))

    def step(self, state: "_State", action: jax.Array) -> "_State":
        """Take one control step."""
        own = iter(state.own)
        leaves = [next(own) if shared is None else shared for shared in self._shared]
        whole = jax.tree.unflatten(self._structure, leaves)
        return self._own(self._env.step(whole, action))

    def _own(self, state: Any) -> "_State":
        leaves = zip(jax.tree.leaves(state), self._shared, strict=True)
        own = tuple(x for x, shared in leaves if shared is None)
        return _State(own=own, obs=state.obs, reward=state.reward, done=state.done)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class _State:
    """The arrays of one environment, among which are also its outputs."""

    own: tuple[jax.Array, ...]
    obs: PyTree
    reward: jax.Array
    done: jax.Array
