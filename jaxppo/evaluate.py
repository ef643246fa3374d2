"""Evaluate a trained policy: `python -m jaxppo.evaluate run=DIR episodes=1000`."""

import dataclasses

import numpy as np

from jaxppo.config.fields import setting
from jaxppo.deploy.policy import Playing
from jaxppo.launch.command_line import command
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


def main() -> None:
    """Run the command line."""
    command(Evaluation, evaluate)


def evaluate(settings: Evaluation) -> None:
    """Play the episodes and print their returns and lengths."""
    policy = settings.load()
    wanted = settings.episodes or 10 * policy.config.arch.num_eval_episodes
    episodes = policy.evaluate(wanted)
    returns = np.asarray(episodes.returns, np.float64)
    unfinished = int(np.sum(~episodes.finished))
    late = f", {unfinished} cut at {policy.system.max_eval_steps:,} steps" if unfinished else ""
    print_lines(
        f"{policy.system.env.name}, seed {policy.config.arch.seed}, policy of step "
        f"{policy.steps:,}, {'greedy' if policy.system.evaluation_greedy else 'sampled'}",
        f"return {returns.mean():.2f} (std {returns.std():.2f}, from {returns.min():.2f} to "
        f"{returns.max():.2f}) over {returns.size:,} episodes of mean length "
        f"{episodes.lengths.mean():.1f}{late}",
    )


if __name__ == "__main__":
    main()
