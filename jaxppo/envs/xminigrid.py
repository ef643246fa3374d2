"""Adapter of XLand-MiniGrid: its registered worlds, with XLand's rules or MiniGrid's."""

from functools import partial

import xminigrid

from jaxppo.config.schema import EnvConfig
from jaxppo.envs import replace_params
from jaxppo.envs.episodes import Episodes
from jaxppo.envs.states import States
from jaxppo.types import Discrete


def names() -> list[str]:
    """Return the names of all registered environments."""
    return list(xminigrid.registered_environments())


def make(config: EnvConfig) -> Episodes:
    """Build by id; `env.kwargs` go to `xminigrid.make`, and `env.params` change parameters."""
    name = str(config.name)
    env, params = xminigrid.make(name, **config.kwargs)
    params = replace_params(name, params, config.params)
    one = States(
        partial(env.reset, params),
        partial(env.step, params),
        lambda step: (step.observation, step.reward, step.discount == 0),
        Discrete(int(env.num_actions(params))),
        int(params.max_steps),
    )
    return Episodes(name, one, config)
