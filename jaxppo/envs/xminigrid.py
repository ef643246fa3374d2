"""Adapter of XLand-MiniGrid: its registered worlds, with XLand's rules or MiniGrid's."""

from functools import cache, partial
from typing import Any

import jax
import xminigrid
from xminigrid import benchmarks

from jaxppo.config.fields import ConfigError, check
from jaxppo.config.schema import EnvConfig
from jaxppo.envs import replace_params
from jaxppo.envs.episodes import Episodes
from jaxppo.envs.states import States
from jaxppo.types import Discrete

FILES = benchmarks.DATA_PATH  # where its downloads are


def names() -> list[str]:
    """Return the names of all registered environments."""
    return list(xminigrid.registered_environments())


def make(config: EnvConfig) -> Episodes:
    """Build by id; `env.kwargs` go to `xminigrid.make`, and `env.params` change parameters.

    Not so `benchmark`: each episode draws a goal and rules from it, or all use its `ruleset_id`.
    `ConfigError` if there is no goal.
    """
    name, kwargs = str(config.name), dict(config.kwargs)
    benchmark, number = kwargs.pop("benchmark", None), kwargs.pop("ruleset_id", None)
    env, params = xminigrid.make(name, **kwargs)
    params = replace_params(name, params, config.params)
    rules = None if benchmark is None else _benchmark(benchmark)
    if number is not None:
        if rules is None:
            raise ConfigError(f"env.kwargs.ruleset_id={number}: needs env.kwargs.benchmark")
        most = rules.num_rulesets() - 1
        check("env.kwargs.ruleset_id", number, int, {"low": 0, "high": most})
        params, rules = params.replace(ruleset=rules.get_ruleset(number)), None

    def reset(key: jax.Array) -> Any:
        if rules is None:
            return env.reset(params, key)
        rules_key, key = jax.random.split(key)
        return env.reset(params.replace(ruleset=rules.sample_ruleset(rules_key)), key)

    _check_goal(name, params, reset)
    one = States(
        reset,
        partial(env.step, params),
        lambda step: (step.observation, step.reward, step.discount == 0),
        Discrete(int(env.num_actions(params))),
        int(params.max_steps),
    )
    return Episodes(name, one, config)


@cache  # it is decompressed, and a run makes several environments
def _benchmark(name: str) -> Any:
    return xminigrid.load_benchmark(name)


def _check_goal(name: str, params: Any, reset: Any) -> None:
    """Raise `ConfigError` if the goal is constant and empty."""
    found: list[Any] = []
    jax.eval_shape(lambda key: found.append(reset(key).state.goal_encoding), jax.random.key(0))
    if isinstance(found[0], jax.core.Tracer) or found[0].any():
        return
    way_out = "choose another environment"
    if hasattr(params, "ruleset"):
        known = ", ".join(xminigrid.registered_benchmarks())
        way_out = f"give env.kwargs.benchmark, whose rules are downloaded (of {known})"
    raise ConfigError(f"env.name={name}: has no goal, so every return is 0; {way_out}")
