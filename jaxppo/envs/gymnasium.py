"""Adapter of Gymnasium: any environment that is registered, or made by a class or function."""

import contextlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.envs import unknown
from jaxppo.envs.simulated import Simulated, check_settings, pools
from jaxppo.envs.told import refuse_untold
from jaxppo.simulators import making, told


def names() -> list[str]:
    """Return the names of all registered environments, of each only the newest version.

    Without those that gymnasium makes from environments of the older gym.
    """
    newest: dict[tuple[str | None, str], Any] = {}
    for spec in gymnasium.registry.values():
        key = spec.namespace, spec.name
        if key not in newest or (spec.version or 0) > (newest[key].version or 0):
            newest[key] = spec
    return [spec.id for spec in newest.values() if not re.fullmatch(r"GymV\d+\w+", spec.name)]


def make(config: EnvConfig) -> Simulated:
    """Make a registered environment; `env.kwargs` go to `gymnasium.make`."""
    name = str(config.name)
    factory = partial(
        making.from_registry, name, config.module, dict(config.kwargs), list(config.wrappers)
    )
    try:
        return simulated(name, factory, config)
    except gymnasium.error.UnregisteredEnv:
        raise unknown(config, names()) from None


def simulated(name: str | None, factory: Callable[..., Any], config: EnvConfig) -> Simulated:
    """Describe the environments that `factory()` makes, by making one; None: with its own name."""
    check_settings(config)
    one = factory()
    spec = getattr(one, "spec", None)
    name = name or getattr(spec, "id", None) or type(getattr(one, "unwrapped", one)).__name__
    for part in ("observation_space", "action_space", "reset", "step", "close"):
        if not hasattr(one, part):
            raise ConfigError(f"{name}: is no Gymnasium environment, since it has no {part}")
    if hasattr(one, "num_envs"):
        raise ConfigError(f"{name}: steps several worlds at once; use env=batch (env.batch=true)")
    with contextlib.closing(one):
        limit = getattr(spec, "max_episode_steps", None) or None
        spaces = one.observation_space, one.action_space
        wanted = config.metric_kinds
        known = told.names_of(one, wanted) if wanted else None
        if known is not None:
            refuse_untold(name, wanted, known)
    start = pools(config, factory)
    return Simulated(name, *spaces, limit, start, partial(_drawn, factory))


def _drawn(factory: Callable[..., Any]) -> Any:
    """Return an environment that renders pictures, if it takes a `render_mode`."""
    try:
        return factory(render_mode="rgb_array")
    except TypeError:
        return factory()
