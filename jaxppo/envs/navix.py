"""Adapter of NAVIX, which has MiniGrid's worlds in JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import navix

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.envs.episodes import Episodes, box_of
from jaxppo.types import Discrete, PyTree


class Navix:
    """One environment of NAVIX as an `episodes.Single`; its state is NAVIX's time step."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.time_limit: int | None = int(env.max_steps)
        example = jax.eval_shape(env.reset, jax.random.key(0))
        # The bounds of NAVIX's own space are too small for its symbols.
        self.observation_space = box_of(example.observation, 0.0, 255.0)
        self.action_space = Discrete(len(env.action_set))

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map a key to (state, observation)."""
        step = self._env.reset(key)
        return step, step.observation

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array]:
        """Take one step; NAVIX draws from a key in its state."""
        # The public `step` also resets ended episodes; under `vmap` it would reset at every step.
        step = self._env._step(state, action)
        return step, step.observation, step.reward, step.is_termination(), jnp.array(False)


def names() -> list[str]:
    """Return the names of all registered environments."""
    return list(navix.registry())


def make(config: EnvConfig) -> Episodes:
    """Build by NAVIX's id; `env.kwargs` go to `navix.make`.

    `observation_fn` names a function of `navix.observations`, such as symbolic_first_person.
    """
    name, kwargs = str(config.name), dict(config.kwargs)
    if "observation_fn" in kwargs:
        chosen = str(kwargs["observation_fn"])
        kinds = ("categorical", "symbolic", "rgb")
        known = [kind + view for kind in kinds for view in ("", "_first_person")]
        if chosen not in known:
            raise ConfigError(
                f"env.kwargs.observation_fn={chosen}: must be one of {', '.join(known)}"
            )
        kwargs["observation_fn"] = getattr(navix.observations, chosen)
    return Episodes(name, Navix(navix.make(name, **kwargs)), config)
