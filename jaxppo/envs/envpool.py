"""Adapter of EnvPool: its registered tasks, many at once in one pool of threads."""

import contextlib
import warnings
from functools import partial
from typing import Any

import envpool
import jax
import numpy as np

from jaxppo.config.fields import MAX_INT, ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.envs import OF_SIMULATORS, refuse
from jaxppo.envs.simulated import Simulated, check_settings
from jaxppo.envs.told import refuse_untold
from jaxppo.simulators import told
from jaxppo.simulators.envpool import EnvPool
from jaxppo.simulators.spaces import tree


def names() -> list[str]:
    """Return the names of all registered environments."""
    return list(envpool.list_all_envs())


def make(config: EnvConfig) -> Simulated:
    """Make a task; `env.kwargs` go to `envpool.make_gymnasium` (`num_threads`, `frame_skip`).

    Its `xla()` is not used: for a simulator that takes longer than CartPole it is no faster, and
    it can neither be mapped over members nor take the seeds of episodes.
    """
    refuse(
        config,
        OF_SIMULATORS,
        "is for env.library=gymnasium; EnvPool has threads of its own, and env.kwargs.num_threads "
        "sets their number",
    )
    check_settings(config)
    name, kwargs = str(config.name), dict(config.kwargs)

    def pool(seeds: list[int]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that float64 bounds are rounded
            return envpool.make_gymnasium(name, num_envs=len(seeds), seed=seeds, **kwargs)

    with warnings.catch_warnings(), contextlib.closing(pool([0])) as one:
        warnings.simplefilter("ignore")
        spaces = one.observation_space, one.action_space
        settings = one.spec.config
        if wanted := config.metric_kinds:
            refuse_untold(name, wanted, [*told.names(one.reset()[1])])
    if settings.max_num_players > 1:
        raise ConfigError(
            f"env.name={name}: is for {settings.max_num_players} players, but only one can be "
            "trained; choose a task for one, or a game of env.library=pgx against a random opponent"
        )
    limit = int(settings.max_episode_steps)  # 0 and the largest integer: none
    for leaf in jax.tree.leaves([tree(space) for space in spaces]):
        if leaf.kind == "Box" and leaf.space.dtype.kind == "f":
            # EnvPool writes the smallest positive number where it means no lower bound
            low = leaf.space.low
            low[low == np.finfo(low.dtype).tiny] = -np.inf

    start = partial(EnvPool, pool, metrics=[*config.metric_kinds])
    return Simulated(name, *spaces, limit if 0 < limit < MAX_INT else None, start)
