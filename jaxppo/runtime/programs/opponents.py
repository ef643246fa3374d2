"""Policies of other runs as the opponents in games."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from jaxppo.algorithms.acting import sample_actions
from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import brief
from jaxppo.config.parse import parse
from jaxppo.config.plan import memories
from jaxppo.config.schema import OPPONENTS, Config, is_player
from jaxppo.config.trust import check_trust
from jaxppo.envs.games import policy_of
from jaxppo.envs.ranges import evaluation_config
from jaxppo.runtime.programs.population import members
from jaxppo.runtime.store import policies
from jaxppo.runtime.store.checkpoint import CheckpointError
from jaxppo.runtime.store.directories import check_tree
from jaxppo.runtime.store.facts import RunFacts
from jaxppo.types import Environment, Policy, System

Build = Callable[[Config], tuple[System, Policy]]  # of one agent; the second are shapes


def seated(
    config: Config, env: Environment, evaluation_env: Environment, alone: Build
) -> tuple[Environment, Environment]:
    """Return the games of training and evaluation, against policies of the runs that they name.

    `ConfigError` if there is no such policy, or it does not fit.
    """
    names = config.env.opponent, evaluation_config(config.env).opponent
    folders = [name for name in {*names} - {*OPPONENTS} if not is_player(name)]
    runs = {name: read(name, config, alone) for name in folders}

    def one(games: Any, name: str) -> Environment:
        seated: Environment = games
        if name in runs:
            seated = games.seated(partial(sample_actions, *runs[name]))
        return seated

    of_training = one(env, names[0])
    return of_training, of_training if evaluation_env is env else one(evaluation_env, names[1])


def read(opponent: str, config: Config, alone: Build) -> tuple[System, Policy]:
    """Return the policy that `opponent` names, and the system with its network."""
    key = "opponent" if opponent == config.env.opponent else "evaluation_opponent"
    key, (folder, which) = f"env.{key}", policy_of(opponent)
    check_tree(key, folder)
    found = policies.find(folder, which, key, key)
    facts = RunFacts.of(found)
    settings = {**facts.config, "logger": {}}
    check_trust(settings, config.trust)
    every, row = members(parse(settings)), policies.row_of(facts)
    own = every[facts.slots[row]]
    if memories(own.network):
        raise ConfigError(
            f"{key}={folder}: its network has a memory, which an opponent cannot have; give "
            "another run"
        )
    if policies.steps_of(found, facts, row, which) is None:
        raise ConfigError(
            f"{key}={folder}: no evaluation up to step {found.steps:,} was finite, so no policy is "
            f"the best; {key}={folder}@{found.steps} takes that of the last step"
        )
    env = dataclasses.replace(
        config.env, opponent="random", evaluation_opponent=None, random_moves=0
    )
    arch = dataclasses.replace(own.arch, eval_metric=None)  # of its own env.metrics
    system, shapes = alone(dataclasses.replace(own, env=env, arch=arch))
    try:
        several = policies.read(found, shapes, len(facts.slots), which)
    except CheckpointError as error:
        raise ConfigError(
            f"{key}={folder}: its policy is not one of this game ({brief(error)}); give a run that "
            f"was trained on {system.env.name}"
        ) from error
    policy: Policy = jax.tree.map(lambda x: x[row], several)
    return system, dataclasses.replace(policy, noise_key=None)
