"""Adapter of NAVIX, which has MiniGrid's worlds in JAX."""

import dataclasses

import navix

from jaxppo.config.schema import EnvConfig
from jaxppo.envs.episodes import Episodes
from jaxppo.envs.states import States
from jaxppo.types import Discrete


def names() -> list[str]:
    """Return the names of all registered environments."""
    return list(navix.registry())


def make(config: EnvConfig) -> Episodes:
    """Build by NAVIX's id; `env.kwargs` go to `navix.make`.

    `observation_fn` names a function of `navix.observations`, such as symbolic_first_person.
    """
    name, kwargs = str(config.name), dict(config.kwargs)
    if "observation_fn" in kwargs:
        kwargs["observation_fn"] = getattr(navix.observations, kwargs["observation_fn"])
    env = navix.make(name, **kwargs)
    one = States(
        env.reset,
        env._step,  # the public `step` also resets; under `vmap` it would reset at every step
        lambda step: (step.observation, step.reward, step.is_termination()),
        Discrete(len(env.action_set)),
        int(env.max_steps),
        lambda step: step.info,
    )
    # The bounds of NAVIX's own space are too small for its symbols
    one.observation_space = dataclasses.replace(one.observation_space, low=0.0, high=255.0)
    return Episodes(name, one, config)
