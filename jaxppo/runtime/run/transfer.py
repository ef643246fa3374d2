"""Begin a run with the policy of another one (`init_from`)."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import brief
from jaxppo.config.schema import Config
from jaxppo.runtime.programs import build
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.store import policies
from jaxppo.runtime.store.checkpoint import CheckpointError
from jaxppo.runtime.store.directories import check_tree
from jaxppo.runtime.store.facts import RunFacts
from jaxppo.types import LearnerState, Policy, PyTree, System

STATISTICS = "obs_statistics"  # a part beside those of the parameters


def check(config: Config, system: System) -> None:
    """Raise `ConfigError` if the policy that `init_from` names does not fit, or is not there."""
    if config.init_from is None and (config.init_parts or config.init_which != "best"):
        name = "init_parts" if config.init_parts else "init_which"
        raise ConfigError(f"{name}: is read with init_from=DIR; add it, or leave this out")
    if config.init_from is not None and config.resume is None:
        policy = build.policy_shapes(config, system)
        read_parts(config, policy.params, policy.obs_statistics)


def read_parts(config: Config, params: dict[str, PyTree], statistics: PyTree) -> dict[str, PyTree]:
    """Return parts of the policy of `init_from`, in NumPy, by name.

    `params` and `statistics` are the shapes of this run's. `ConfigError` if a part is not in both,
    or has another shape.
    """
    key, run_dir = f"init_from={config.init_from}", Path(str(config.init_from))
    check_tree("init_from", run_dir)
    found = policies.find(run_dir, config.init_which, "init_from", "init_which")
    facts = RunFacts.of(found)
    normalizes = facts.config.get("system", {}).get("normalize_observations")
    if normalizes != config.system.normalize_observations:
        raise ConfigError(
            f"system.normalize_observations={str(not normalizes).lower()}: the policy of {key} was "
            f"trained with {str(normalizes).lower()}; set it to that"
        )
    own: dict[str, PyTree] = {**params, STATISTICS: statistics}
    if unknown := [name for name in config.init_parts if name not in own]:
        raise ConfigError(
            f"init_parts=[{','.join(config.init_parts)}]: this run's policy has no {unknown[0]}; "
            f"its parts: {', '.join(own)}"
        )
    row, parts = policies.row_of(facts), {}
    if policies.steps_of(found, facts, row, config.init_which) is None:
        raise ConfigError(
            f"init_which=best: no evaluation of {run_dir} up to step {found.steps:,} was finite, "
            "so no policy is the best; init_which=latest takes that of the last step"
        )
    for name in config.init_parts or own:
        where = f".{STATISTICS}" if name == STATISTICS else f".params['{name}']"
        try:
            several = policies.read(found, own[name], len(facts.slots), config.init_which, where)
        except CheckpointError as error:
            raise ConfigError(
                f"{key}: its {name} does not fit this run ({brief(error).partition(';')[0]}); take "
                "the same layers and spaces, or only parts that fit: init_parts=[NAME,...]"
            ) from error
        parts[name] = jax.tree.map(lambda x: np.asarray(x[row]), several)
    return parts


def begin_from(layout: Layout, configs: Sequence[Config], learner: LearnerState) -> LearnerState:
    """Return the first state of members, with the parts of policies that `init_from` gives."""
    if all(config.init_from is None for config in configs):
        return learner
    policy = learner.agent.policy
    params, statistics = map(layout.gather_agents, (policy.params, policy.obs_statistics))
    found: dict[str, dict[str, PyTree]] = {}  # members that begin alike read a checkpoint once
    for row, config in enumerate(configs):
        if config.init_from is None:
            continue
        key = repr((config.init_from, config.init_which, config.init_parts))
        if key not in found:
            one = jax.tree.map(lambda x, row=row: x[row], (params, statistics))
            found[key] = read_parts(config, *one)
        for name, part in found[key].items():
            mine: Any = statistics if name == STATISTICS else params[name]
            for x, new in zip(jax.tree.leaves(mine), jax.tree.leaves(part), strict=True):
                x[row] = new

    def place(parts: PyTree, policy: Policy) -> Policy:
        new_params, new_statistics = map(layout.place_agents, parts)
        return dataclasses.replace(policy, params=new_params, obs_statistics=new_statistics)

    parts = (params, statistics)
    agent = dataclasses.replace(learner.agent, policy=place(parts, policy))
    if num := layout.system.num_opponents:  # at first all are the policy of the start
        pool = agent.opponents
        parts = jax.tree.map(lambda x: np.repeat(x[:, None], num, 1), parts)
        pool = dataclasses.replace(pool, policies=place(parts, pool.policies))
        agent = dataclasses.replace(agent, opponents=pool)
    return dataclasses.replace(learner, agent=agent)
