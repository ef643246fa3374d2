"""A run begins with the policy of another one."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import small_config
from runs import QUIET, coin

import jaxppo
from jaxppo.config.fields import ConfigError
from jaxppo.config.plan import num_members
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.programs.population import members
from jaxppo.runtime.programs.start import place_start
from jaxppo.runtime.run import loop, transfer
from jaxppo.runtime.run.jobs import prepare


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    loop.run(coin(), folder)
    return folder


def first_policy(config: Any) -> Any:
    """The policy that a run begins with, in NumPy `[P, ...]`."""
    plan, system = prepare(config)
    layout = Layout(plan, system, tuple(range(num_members(config))))
    configs = members(config)
    learner = transfer.begin_from(layout, configs, place_start(layout, configs))
    policy = learner.agent.policy
    return layout.gather_agents((policy.params, policy.obs_statistics)), learner


def equal(one: Any, other: Any) -> bool:
    return jax.tree.all(jax.tree.map(lambda x, y: bool(np.array_equal(x, y)), one, other))


@pytest.mark.long
def test_every_member_begins_with_the_policy_and_a_new_optimizer(source: Path) -> None:
    config = dataclasses.replace(coin(num_seeds=2), init_from=str(source))
    (params, statistics), learner = first_policy(config)
    best = jaxppo.load(source, trust=["envs"]).policy
    for row in range(2):
        assert equal(jax.tree.map(lambda x, row=row: x[row], params), best.params)
        assert equal(jax.tree.map(lambda x, row=row: x[row], statistics), best.obs_statistics)
    assert not any(np.any(x) for x in jax.tree.leaves(learner.agent.opt_state))


@pytest.mark.long
def test_a_run_learns_from_there_on(source: Path, tmp_path: Path) -> None:
    rates = {"actor_lr": 1e-30, "critic_lr": 1e-30}  # too low to change a parameter
    system = dataclasses.replace(coin().system, **rates)
    loop.run(dataclasses.replace(coin(), system=system, init_from=str(source)), tmp_path)
    assert equal(*(jaxppo.load(x, trust=["envs"]).policy.params for x in (source, tmp_path)))


def test_parts_that_are_not_named_begin_anew(source: Path) -> None:
    plain, (own, _) = dataclasses.replace(coin(), init_from=str(source)), first_policy(coin())[0]
    named = dataclasses.replace(plain, init_parts=["actor_torso"], init_which="latest")
    (params, _), _ = first_policy(named)
    latest = jaxppo.load(source, "latest", trust=["envs"]).policy.params
    first = jax.tree.map(lambda x: x[0], params)
    taken = {name: equal(x, latest[name]) for name, x in first.items()}
    kept = {name: equal(x, own[name]) for name, x in params.items()}
    assert taken == {name: name == "actor_torso" for name in params}
    assert kept == {name: name != "actor_torso" for name in params}


@pytest.mark.long
def test_the_pool_of_opponents_begins_with_that_policy_too(tmp_path: Path) -> None:
    config = coin("games")
    loop.run(config, tmp_path)
    _, learner = first_policy(dataclasses.replace(config, init_from=str(tmp_path)))
    policy, pool = learner.agent.policy, learner.agent.opponents.policies
    for name in ("params", "obs_statistics"):
        one, several = getattr(policy, name), getattr(pool, name)
        for slot in range(2):
            assert equal(one, jax.tree.map(lambda x, slot=slot: x[:, :, slot], several))


@pytest.mark.long
def test_statistics_are_those_of_the_entries_that_are_normalised(tmp_path: Path) -> None:
    entries = {"normalize_observations": True, "normalize_entries": ["observation"]}
    config = small_config(system=entries, env__extras=["step"], logger=QUIET)
    loop.run(config, tmp_path)
    (_, statistics), _ = first_policy(dataclasses.replace(config, init_from=str(tmp_path)))
    assert statistics.mean["step"] is None
    assert statistics.count[0] > 0


@pytest.mark.parametrize(
    "changes, key",
    [
        ({"init_from": "nowhere"}, "init_from"),
        ({"init_which": "7"}, "init_which"),
        ({"init_parts": ["torso"]}, "init_parts"),
        ({"init_from": None, "init_parts": ["actor_torso"]}, "init_parts"),
        ({"network": "wide"}, "init_from"),
        ({"system": "raw"}, "system.normalize_observations"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_compiles(
    source: Path, changes: dict[str, Any], key: str
) -> None:
    config = dataclasses.replace(coin(), init_from=str(source))
    if changes.pop("network", None):
        layers = {**config.network.actor_torso, "layer_sizes": [8]}
        config = dataclasses.replace(
            config, network=dataclasses.replace(config.network, actor_torso=layers)
        )
    if changes.pop("system", None):
        system = dataclasses.replace(config.system, normalize_observations=False)
        config = dataclasses.replace(config, system=system)
    with pytest.raises(ConfigError, match=f"^{key}[=:]"):
        prepare(dataclasses.replace(config, **changes))
