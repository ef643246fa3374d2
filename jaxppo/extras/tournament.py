"""Round robins between policies of a game, and their Elo ratings."""

import dataclasses
import itertools
import json
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxppo.algorithms.acting import sample_actions
from jaxppo.algorithms.evaluation import episode_keys, evaluate
from jaxppo.config.fields import ConfigError, setting
from jaxppo.config.plan import memories
from jaxppo.config.stored import TOURNAMENT, write_atomically
from jaxppo.deploy.policy import TrainedPolicy, load, load_pool
from jaxppo.envs.games import policy_of
from jaxppo.ops.aggregates import share_interval
from jaxppo.ops.ratings import elo
from jaxppo.runtime.programs.build import program_key
from jaxppo.runtime.sinks.console import print_lines
from jaxppo.runtime.store.directories import check_tree
from jaxppo.types import Policy, System, describe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tournament:
    """Rate policies of a game by a round robin: python -m jaxppo.tournament RUN... games=200

    RUN is a run directory: its latest policy, and the older ones in its pool, if it has one.
    RUN@STEPS is the policy of one of its checkpoints, RUN@best its best policy. Policies
    sample their moves. Prints the ratings, and writes them to tournament.json in the first run.
    """

    runs: list[str] = setting([], "RUN, RUN@STEPS or RUN@best")
    games: int = setting(
        200, "games of each pair, an even number: each start is played from both seats", low=2
    )
    seed: int = setting(0, "seed of the games", low=0)
    trust: list[str] = setting(
        [], "import paths, such as my_package, that the settings of the runs may name"
    )


def tournament(settings: Tournament) -> None:
    """Play, print the ratings and write them."""
    if settings.games % 2:
        raise ConfigError(f"games={settings.games}: must be even; take {settings.games + 1}")
    found = [(name, one) for name in settings.runs for one in entrants(name, settings.trust)]
    if len(found) < 2:
        raise ConfigError(
            "runs=: a tournament needs two policies, and there is "
            f"{len(found)}; name RUN@STEPS or another run as well"
        )
    policies = in_one_game(found)
    points = round_robin(policies, settings.games, settings.seed)
    ratings, num, rows = elo(points), settings.games * (len(policies) - 1), []
    for i, (name, one) in enumerate(found):
        share = points[i].sum() / num
        # Too wide if there are draws: it uses only the mean and the number of games
        low, high = share_interval(np.full(num, share))
        row = {"run": str(policy_of(name)[0]), "steps": one.steps, "elo": float(ratings[i])}
        rows.append({**row, "points": float(share), "low": low, "high": high})
    game, file = policies[0].system.env.name, policy_of(settings.runs[0])[0] / TOURNAMENT
    result = {"game": game, "games": settings.games, "policies": rows, "results": points.tolist()}
    write_atomically(file, json.dumps(result, indent=1))
    print_lines(
        f"{game}: {len(rows)} policies, {settings.games:,} games of each pair; the first given has "
        "Elo 0",
        f"{'Elo':>7}  {'points':>6}  {'95% interval':<14}  {'steps':>13}  policy of",
        *(
            f"{x['elo']:>7.0f}  {x['points']:>6.3f}  {x['low']:.3f} to {x['high']:.3f}  "
            f"{x['steps']:>13,}  {x['run']}"
            for x in sorted(rows, key=itemgetter("elo"), reverse=True)
        ),
        f"{file}: the same, and the points of each pair",
    )


def entrants(name: str, trust: list[str]) -> list[TrainedPolicy]:
    """Return the policies that RUN or RUN@STEPS names; `ConfigError` if they cannot play."""
    folder, which = policy_of(name)
    check_tree("runs", folder)
    # Their own opponents are not needed
    env = {"opponent": "random", "evaluation_opponent": None}
    try:
        if folder == Path(name):
            policies = load_pool(folder, env=env, trust=trust)
        else:
            policies = [load(folder, which, env=env, trust=trust)]
    except ConfigError as error:
        raise ConfigError(f"runs=[{name}]: {error}") from error
    one = policies[-1]
    if not hasattr(one.system.evaluation_env, "seated"):
        raise ConfigError(
            f"runs=[{name}]: {one.system.env.name} is no game of two players, or env.mask, "
            "env.frame_stack or env.extras change what this policy sees of it; leave this run out"
        )
    if memories(one.config.network):
        raise ConfigError(
            f"runs=[{name}]: its network has a memory, which an opponent cannot have; leave this "
            "run out"
        )
    return policies


def in_one_game(found: list[tuple[str, TrainedPolicy]]) -> list[TrainedPolicy]:
    """Return policies in the game of the first; equal networks share a program."""
    first, systems, policies = found[0][1].system, dict[str, System](), []
    for name, one in found:
        for space in ("observation_space", "action_space"):
            own, wanted = (describe(getattr(x.env, space)) for x in (one.system, first))
            if own != wanted:
                raise ConfigError(
                    f"runs=[{name}]: plays {one.system.env.name} with the {space} {own}, and "
                    f"{first.env.name} has {wanted}; name runs of one game"
                )
        shared = program_key(one.config)
        system = dataclasses.replace(
            one.system,
            evaluation_env=first.evaluation_env,
            metrics=first.metrics,
            max_eval_steps=first.max_eval_steps,
            evaluation_greedy=False,
        )
        played_as = shared.network, shared.system, shared.env.action_mask, shared.arch.precision
        system = systems.setdefault(repr(played_as), system)
        policy = dataclasses.replace(one.policy, noise_key=None)
        policies.append(dataclasses.replace(one, system=system, policy=policy))
    return policies


def round_robin(policies: list[TrainedPolicy], num_games: int, seed: int) -> NDArray[np.float64]:
    """Return the points of each of `N` policies against each other, `[N, N]`; a draw is 1/2.

    A pair plays each start twice, with the seats swapped. A game that is cut at
    arch.max_eval_steps is a draw.
    """
    num, starts = len(policies), num_games // 2
    points: Any = np.zeros((num, num))
    for i, j in itertools.permutations(range(num), 2):
        key = jax.random.fold_in(jax.random.key(seed), num * min(i, j) + max(i, j))
        first, second = policies[i], policies[j]
        pair = first.policy, second.policy
        won = float(
            _points(first.system, second.system, *pair, episode_keys(key, np.arange(starts)))
        )
        points[i, j] += won
        points[j, i] += starts - won
    return points


@partial(jax.jit, static_argnums=(0, 1))
def _points(
    system: System, other: System, policy: Policy, opponent: Policy, keys: jax.Array
) -> jax.Array:
    """Return the points of a policy against an opponent, in a game for each of the keys."""
    games: Any = system.evaluation_env
    env = games.seated(partial(sample_actions, other, opponent))
    played = evaluate(dataclasses.replace(system, evaluation_env=env), policy, keys)
    return jnp.sum(jnp.where(played.finished, jnp.sign(played.returns), 0.0) + 1) / 2
