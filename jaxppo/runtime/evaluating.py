"""Evaluate every member on a fixed number of episodes, on all devices."""

from typing import Any

import jax
import numpy as np

from jaxppo.algorithms.evaluation import Episodes, episode_keys
from jaxppo.runtime import compile, devices
from jaxppo.runtime.placement import Layout
from jaxppo.types import Policy


def place_keys(layout: Layout, keys: jax.Array, num_episodes: int, times: int) -> list[jax.Array]:
    """Return keys `[D, P, E]` of the members' episodes, for each of `times` calls.

    `keys` `[P]` are the members' streams. Each call plays `num_episodes` per member.
    """
    shards, each = layout.plan.devices_per_member, layout.plan.eval_episodes_per_device
    rows = []
    for call in range(times):
        numbers = call * num_episodes + np.arange(shards * each)
        found = jax.vmap(episode_keys, (0, None))(keys, numbers)
        if layout.plan.shards_members:
            rows.append(layout.place_agents(found))
        else:
            found = found.reshape(-1, shards, each).swapaxes(0, 1)
            rows.append(devices.shard(found, layout.devices))
    return rows


def evaluate(
    layout: Layout,
    program: compile.Program,
    policy: Policy,
    keys: jax.Array,
    num_episodes: int,
    times: int = 1,
) -> Episodes:
    """Play `times * num_episodes` episodes per member; leaves are NumPy `[P, episodes]`."""

    def rows(each: np.ndarray) -> np.ndarray:
        """Map `[D, P, E]` to `[P, num_episodes]`."""
        if not layout.plan.shards_members:
            each = each.swapaxes(0, 1)
        return each.reshape(len(layout.slots), -1)[:, :num_episodes]

    parts = [
        jax.tree.map(rows, devices.host(program.call(policy, part)))
        for part in place_keys(layout, keys, num_episodes, times)
    ]
    joined: Episodes = jax.tree.map(lambda *x: np.concatenate(x, axis=1), *parts)
    return joined


def score(episodes: Episodes, row: int) -> dict[str, Any]:
    """Return the statistics of the episodes in one row, for an event."""
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
    }
