"""Evaluate every member on a fixed number of episodes, on all devices."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.algorithms.evaluation import Episodes, episode_keys, evaluation_streams
from jaxppo.config.schema import key_of
from jaxppo.ops.aggregates import share_interval
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import build, compile
from jaxppo.runtime.programs.placement import Layout
from jaxppo.types import Policy


def place_keys(
    layout: Layout, seeds: Sequence[int], number: int | None, first: int = 0
) -> jax.Array:
    """Return keys `[D, P, E]` of episodes of members with these seeds, from episode `first` on.

    `number` is that of the evaluation; None: that of the absolute metric.
    """
    numbers = np.uint32(number or 0), np.int32(first)
    keys = _keys_program(layout, number is None)(np.asarray(seeds, np.uint32), *numbers)
    return devices.shard(keys, layout.devices)


@lru_cache(8)
def _keys_program(layout: Layout, is_absolute: bool) -> Any:
    """Return the program of `place_keys`, a `jax.jit`, which compiles quickly."""
    options = compile.options("quick", devices.platform())
    return jax.jit(partial(arranged_keys, layout, is_absolute), compiler_options=options)


def arranged_keys(
    layout: Layout, is_absolute: bool, seeds: Any, number: Any, first: Any = 0
) -> jax.Array:
    """Return the keys of `place_keys` before they are placed; `seeds` are uint32 `[P]`."""
    form = layout.plan.devices_per_member, layout.plan.eval_episodes_per_device
    _, _, of_evaluations, absolute = build.streams(seeds)
    streams = absolute if is_absolute else evaluation_streams(of_evaluations, number)
    found = jax.vmap(episode_keys, (0, None))(streams, first + jnp.arange(math.prod(form)))
    return layout.arrange_split(found.reshape(-1, *form))


def evaluate(
    layout: Layout,
    program: compile.Program,
    policy: Policy,
    seeds: Sequence[int],
    number: int | None,
    num_episodes: int,
) -> Episodes:
    """Play an evaluation's episodes, as many per member; leaves are NumPy `[P, episodes]`.

    `number` is as in `place_keys`; the absolute metric has ten times as many.
    """
    parts = []
    for call in range(10 if number is None else 1):
        keys = place_keys(layout, seeds, number, call * num_episodes)
        played = program.call(policy, keys)
        found = layout.gather_split(played)  # [P, D, E]
        parts.append(jax.tree.map(lambda x: x.reshape(len(x), -1)[:, :num_episodes], found))
    return jax.tree.map(lambda *x: np.concatenate(x, axis=1), *parts)


def score(
    episodes: Episodes,
    row: int,
    eval_metric: str | None = None,
    kinds: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the statistics of the episodes in one row, for an event; see `judged_by`.

    `kinds` are those of `env.metrics`. A share gets the bounds of its 95% interval too.
    """
    episodes = jax.tree.map(lambda x: x[row], episodes)
    returns = np.asarray(episodes.returns, np.float64)
    with np.errstate(invalid="ignore"):  # with infinite returns the deviation is NaN
        std = float(returns.std())
    return {
        "episodes": returns.size,
        "episode_return": float(returns.mean()),
        "episode_return_std": std,
        "episode_return_min": float(returns.min()),
        "episode_return_max": float(returns.max()),
        "episode_length": float(np.mean(episodes.lengths)),
        "unfinished": int(np.sum(~np.asarray(episodes.finished))),
        **{key_of(name): mean_told(x) for name, x in episodes.metrics.items()},
        **{
            f"{key_of(name)}_{end}": bound
            for name, kind in (kinds or {}).items()
            if kind == "share"
            for end, bound in zip(
                ("low", "high"), share_interval(episodes.metrics[name]), strict=True
            )
        },
        **({} if eval_metric is None else {"eval_metric": eval_metric}),
    }


def mean_told(values: Any) -> float:
    """Return the mean of a metric over episodes `[N]` that told it; NaN if none did."""
    found = np.asarray(values, np.float64)
    found = found[~np.isnan(found)]
    return float(found.mean()) if found.size else math.nan
