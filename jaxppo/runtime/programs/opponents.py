"""Policies of other runs as the opponents in games."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from jaxppo.algorithms import opponents
from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import brief
from jaxppo.config.parse import parse
from jaxppo.config.plan import memories
from jaxppo.config.schema import OPPONENTS, Config, EnvConfig
from jaxppo.config.trust import check_trust
from jaxppo.envs.games import policy_of
from jaxppo.runtime.programs.population import members
from jaxppo.runtime.store import policies
from jaxppo.runtime.store.checkpoint import CheckpointError
from jaxppo.runtime.store.directories import check_tree
from jaxppo.runtime.store.facts import RunFacts
from jaxppo.types import Environment, Policy, System

Build = Callable[[Config], tuple[System, Policy]]  # of one agent; the second are shapes


def seated(opponent: str, config: Config, env: Environment, alone: Build) -> Environment:
    """Return games against a policy of the run that `opponent` names, if it names one.

    `ConfigError` if there is no such policy, or it does not fit.
    """
    if opponent in OPPONENTS:
        return env
    system, policy = read(opponent, config, alone)
    games: Any = env
    found: Environment = games.seated(partial(opponents.answer, system, policy))
    return found


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
        raise ConfigError(f"{key}={folder}: its network has a memory, and an opponent has none")
    env = EnvConfig(**{**vars(config.env), "opponent": "random", "evaluation_opponent": None})
    system, shapes = alone(dataclasses.replace(own, env=env))
    try:
        several = policies.read(found, shapes, len(facts.slots), which)
    except CheckpointError as error:
        raise ConfigError(
            f"{key}={folder}: its policy is not one of this game ({brief(error)}); give a run that "
            f"was trained on {system.env.name}"
        ) from error
    policy: Policy = jax.tree.map(lambda x: x[row], several)
    return system, dataclasses.replace(policy, noise_key=None)
