"""Adapter of batch simulators: one object that steps all worlds at once."""

import contextlib
from functools import partial
from typing import Any

import gymnasium

from jaxppo.config.fields import ConfigError
from jaxppo.config.given import is_given
from jaxppo.config.importing import imported
from jaxppo.config.schema import HOW_RUN, TEAM_RETURN, EnvConfig
from jaxppo.envs import refuse, unknown
from jaxppo.envs.gymnasium import names
from jaxppo.envs.simulated import Simulated, check_settings, pools
from jaxppo.simulators import making
from jaxppo.simulators.batch import Batch, spaces_of, worlds_of


def make(config: EnvConfig) -> Simulated:
    """Describe the object that `env.target`, or else `gymnasium.make_vec`, makes by making one.

    A run calls `target(num_envs=N, **env.kwargs)` for as many worlds as it needs.
    """
    check_settings(config)
    kwargs, name = dict(config.kwargs), str(config.target or config.name)
    if config.target is None:
        target: Any = gymnasium.make_vec
        kwargs["id"] = config.name
        if kwargs.get("vectorization_mode") == "async":  # a process with JAX must not be forked
            kwargs["vector_kwargs"] = {"context": "spawn", **(kwargs.get("vector_kwargs") or {})}
    else:
        target = imported("env.target", config.target, "class or function", ("null",))
    if is_given(config.target):
        target = target()
        name = getattr(target, "__name__", type(target).__name__)
        if not callable(target):
            raise ConfigError(
                f"env: {name} is one object, and a run needs several; give its class, or a "
                "function of num_envs, such as env=lambda num_envs: MyWorlds(num_envs)"
            )
    factory = partial(making.from_callable, target, kwargs, list(config.wrappers))
    try:
        one = factory(num_envs=1)
    except gymnasium.error.UnregisteredEnv:
        raise unknown(config, names()) from None
    try:
        worlds = worlds_of(one)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}") from error
    with contextlib.closing(worlds):
        if one.num_envs != 1:
            raise ConfigError(
                f"{name}: has num_envs={one.num_envs}, but was called with num_envs=1; it must "
                "make as many worlds as it is asked for"
            )
        if worlds.num_agents > 1:
            _check_agents(config, name)
        if config.metric_kinds and not worlds.tells:
            raise ConfigError(
                f"env.metrics=[{', '.join(config.metric_kinds)}]: {name} tells them of the next "
                "episode where one ends; take its autoreset_mode=DISABLED, or leave env.metrics out"
            )
        limit = getattr(getattr(one, "spec", None), "max_episode_steps", None)
        limit = limit or getattr(one, "time_limit", None)
        if limit is not None:
            limit += worlds.late
        spaces = spaces_of(one)
    own = [TEAM_RETURN] if worlds.num_agents > 1 else []
    num_agents = worlds.num_agents
    start = pools(config, factory, partial(Batch, num_agents=num_agents), own)
    return Simulated(name, *spaces, limit, start, in_waves=not worlds.each, num_agents=num_agents)


def _check_agents(config: EnvConfig, name: str) -> None:
    """Raise `ConfigError` for settings that worlds of several agents do not have."""
    why = f"is not for simulators with several agents ({name}); leave it out"
    refuse(config, ("metrics", *HOW_RUN), why)
