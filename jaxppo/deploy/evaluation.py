"""The command that evaluates a trained policy, and records the episodes that it plays."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from jaxppo.config.fields import setting
from jaxppo.deploy.episodes import check_file, totals, write
from jaxppo.deploy.policy import Playing, TrainedPolicy
from jaxppo.ops.aggregates import share_interval
from jaxppo.runtime.programs.evaluating import mean_told
from jaxppo.runtime.sinks.console import print_lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation(Playing):
    """Play episodes with a trained policy: python -m jaxppo.evaluate run=DIR episodes=1000

    The first 10 x arch.num_eval_episodes episodes are those of the run's absolute metric, bit for
    bit on the machine that trained it.
    """

    episodes: int | None = setting(
        None, "number of episodes; null: as many as for the absolute metric", low=1
    )
    record: str | None = setting(
        None,
        "a file such as episodes.npz, which gets every step of the episodes: observations, "
        "actions, rewards, values, log-probabilities, distributions",
    )


def evaluate(settings: Evaluation) -> None:
    """Play the episodes and print their returns and lengths."""
    file = None if settings.record is None else Path(settings.record)
    if file is not None:
        check_file("record", file)
    policy = settings.load()
    wanted = settings.episodes or 10 * policy.config.arch.num_eval_episodes
    if file is None:
        episodes = policy.evaluate(wanted)
        found = {**vars(episodes), **{f"metrics/{k}": x for k, x in episodes.metrics.items()}}
    else:
        recorded = policy.play(episodes=wanted)
        write(file, recorded)
        found = totals(recorded)
    returns = np.asarray(found["returns"], np.float64)
    unfinished = int(np.sum(~found["finished"]))
    late = f", {unfinished} cut at {policy.system.max_eval_steps:,} steps" if unfinished else ""
    print_lines(
        f"{policy.system.env.name}, seed {policy.config.arch.seed}, policy of step "
        f"{policy.steps:,}, {'greedy' if policy.system.evaluation_greedy else 'sampled'}",
        f"return {returns.mean():.2f} (std {returns.std():.2f}, from {returns.min():.2f} to "
        f"{returns.max():.2f}) over {returns.size:,} episodes of mean length "
        f"{found['lengths'].mean():.1f}{late}",
        *(
            f"{name.partition('/')[2]} {mean_told(values):.4g}{_bounds(policy, name, values)}"
            for name, values in found.items()
            if name.startswith("metrics/")
        ),
        *([] if file is None else [f"{file}: {int(found['lengths'].sum()):,} steps"]),
    )


def _bounds(policy: TrainedPolicy, name: str, values: Any) -> str:
    """Return the 95% interval of a share, in words; "" for another metric."""
    if policy.system.metrics[name.partition("/")[2]] != "share":
        return ""
    low, high = share_interval(values)
    return f" (95% interval {low:.4f} to {high:.4f})"
