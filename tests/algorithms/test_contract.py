"""What holds of every algorithm: resumes, members, and policies that are loaded and exported."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import small_config
from killing import Killed
from runs import EACH_TIME, ON, QUIET, assert_equal, jobs_of, logged, pqn, reppo

from jaxppo.config.schema import Config
from jaxppo.deploy.export import Export
from jaxppo.deploy.policy import load
from jaxppo.export import export
from jaxppo.launch.sweeping import groups
from jaxppo.runtime.run.loop import run, run_together

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("share_programs")]

TRUST = ["envs", "reinforce", "worlds"]


def agents(**changes: Any) -> Config:
    """PPO in a world of agents, of which some leave."""
    system = {**ON, **changes.pop("system", {})}
    return small_config(env={"target": "worlds.Leaving"}, system=system, **changes)


def reinforce(**changes: Any) -> Config:
    """A user's own algorithm."""
    system = {"algorithm": "reinforce.Reinforce", **changes.pop("system", {})}
    return small_config(system=system, **changes)


MAKE = {"agents": agents, "pqn": pqn, "reinforce": reinforce, "reppo": reppo}
NUMBERS: dict[str, list[dict[str, float]]] = {  # hyperparameters of three members
    "agents": [{}, {"clip_eps": 0.01, "gamma": 0.5}, {"actor_lr": 1e-2}],
    "pqn": [{}, {"epsilon_end": 0.5, "q_lambda": 0.1}, {"learning_rate": 1e-2}],
    "reinforce": [{}, {"entropy_bonus": 0.5}, {"policy_lr": 1e-2}],
    "reppo": [  # even the first alpha and beta differ
        {},
        {"initial_alpha": 0.3, "initial_beta": 0.5, "kl_bound": 1e-4, "target_entropy": 0.5},
        {"q_lambda": 0.1, "actor_lr": 1e-2, "multiplier_lr": 1e-2, "auxiliary_coef": 0.0},
    ],
}
TOLD = {  # what an algorithm logs, among others
    "agents": {"actor_loss", "value_loss", "entropy", "actor_gradient_norm"},
    "pqn": {"q_loss", "q_value", "epsilon", "network_gradient_norm"},
    "reinforce": {"policy_loss", "baseline_loss", "entropy", "policy_gradient_norm"},
    "reppo": {"alpha", "beta", "kl", "value_loss"},
}
every_algorithm = pytest.mark.parametrize("name", MAKE)


def config_of(name: str, **changes: Any) -> Config:
    """A run of four blocks that saves after each."""
    arch = {"total_num_envs": 12, "num_updates": 4, "num_evaluation": 4, "num_eval_episodes": 5}
    arch |= changes.pop("arch", {})
    if name in ("pqn", "reinforce"):
        changes["env"] = {"target": "envs.TwoStates"}  # whose return depends on the actions
    return MAKE[name](arch=arch, logger=QUIET, checkpoint=EACH_TIME, **changes)


@every_algorithm
def test_a_run_that_was_stopped_ends_as_if_nothing_had_happened(
    name: str, tmp_path: Path, kill: Any
) -> None:
    config = config_of(name, arch={"update_batch_size": 2, "num_seeds": 2})
    for folder in ("whole", "parts"):
        (tmp_path / folder).mkdir()
    result = run(config, tmp_path / "whole")
    kill(1)
    with pytest.raises(Killed):
        run(config, tmp_path / "parts")
    assert run(config, tmp_path / "parts", resume=True) == result
    assert_equal(tmp_path / "whole", tmp_path / "parts")


@every_algorithm
def test_members_with_other_numbers_are_the_runs_that_they_would_be_alone(
    name: str, tmp_path: Path
) -> None:
    """As one program."""
    each = enumerate(NUMBERS[name])
    configs = [config_of(name, system=numbers, arch={"seed": i}) for i, numbers in each]
    assert groups(configs) == [[0, 1, 2]]
    results = run_together(jobs_of(tmp_path, configs))
    for i, config in enumerate(configs):
        (tmp_path / f"alone_{i}").mkdir()
        np.testing.assert_allclose(results[i], run(config, tmp_path / f"alone_{i}"), rtol=1e-3)
        one, other = (logged(tmp_path / x)["metrics.jsonl"] for x in (str(i), f"alone_{i}"))
        assert TOLD[name] <= set().union(*one)
        for left, right in zip(one, other, strict=True):
            for key in {*TOLD[name], "episode_return"} & {*left}:
                np.testing.assert_allclose(left[key], right[key], rtol=2e-3, atol=1e-5)


@every_algorithm
def test_a_policy_is_loaded_evaluated_and_exported(name: str, tmp_path: Path) -> None:
    metric = run(config_of(name), tmp_path)
    returns = load(tmp_path, trust=TRUST).evaluate(50).returns
    assert np.mean(returns) == pytest.approx(metric)
    assert len({*returns.tolist()}) > 1
    export(Export(run=str(tmp_path), platforms=["cpu"], trust=TRUST))
    assert (tmp_path / "export" / "greedy.stablehlo").exists()
