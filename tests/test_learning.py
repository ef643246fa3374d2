"""That agents learn: known optima in seconds, CartPole in 100,000 steps; minutes under `slow`."""

from pathlib import Path
from typing import Any

import hydra
import pytest
from conftest import small_config
from omegaconf import OmegaConf

from jaxppo import config, experiment
from jaxppo.launcher import config_dir

QUIET = ["logger.console=false", "logger.plot=false", "arch.compile_cache=null"]
CARTPOLE_100K = [
    "env=cartpole",
    "arch.total_num_envs=8",
    "arch.total_timesteps=1e5",
    "system.rollout_length=64",
    "system.actor_lr=1e-3",
    "system.critic_lr=1e-3",
    "system.epochs=4",
    "system.num_minibatches=4",
]


def train(overrides: list[str], run_dir: Path) -> tuple[float, list[float]]:
    """The absolute metric and every evaluation's return."""
    with hydra.initialize_config_dir(str(config_dir()), version_base="1.3"):
        settings = hydra.compose("ff_ppo", [*QUIET, *overrides])
    raw: Any = OmegaConf.to_container(settings, resolve=True)
    result = experiment.run(config.parse(raw), run_dir)
    import json

    events = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return result, [event["episode_return"] for event in events if event["event"] == "eval"]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("target", ["envs.Copy", "envs.Echo"])
def test_copy_is_solved(tmp_path: Path, target: str, normalize: bool) -> None:
    """Chance is 1/3, the optimum 1."""
    settings = small_config(
        arch={"total_num_envs": 32, "num_updates": 60},
        system={"actor_lr": 1e-2, "critic_lr": 1e-2, "normalize_observations": normalize},
        env__target=target,
        logger={"console": False, "plot": False},
    )
    assert experiment.run(settings, tmp_path) > 0.99


def test_the_critic_learns_the_value_of_endless_reward(tmp_path: Path) -> None:
    """Reward 1 a step, cut by the clock every 5: V = 1 / (1 - gamma) only if bootstrapped."""
    import jax
    import numpy as np
    from conftest import alone, build

    from jaxppo import learner

    settings = small_config(
        arch={"total_num_envs": 16, "num_updates": 400},
        system={"critic_lr": 1e-2, "gamma": 0.8, "decay_learning_rates": False},
        env={"target": "envs.Endless"},
    )
    built, state, _ = build(settings)
    built, state = alone(built, state)
    step = jax.jit(lambda state: learner.update(built, state)[0])
    for _ in range(400):
        state = step(state)
    reset = np.zeros((1, 16), bool)
    value = learner.unroll(built, state.agent.policy, (), state.acting.obs[None], reset)[2]
    np.testing.assert_allclose(value, 1.0 / (1.0 - 0.8), rtol=0.02)


def test_cartpole_in_100k_steps(tmp_path: Path) -> None:
    result, evaluations = train([*CARTPOLE_100K, "arch.seed=0"], tmp_path)
    assert result >= 475
    assert evaluations[-1] >= 440


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cartpole_in_100k_steps_over_seeds(tmp_path: Path, seed: int) -> None:
    result, evaluations = train([*CARTPOLE_100K, f"arch.seed={seed}"], tmp_path)
    assert result >= 475
    assert evaluations[-1] >= 440


@pytest.mark.slow
@pytest.mark.parametrize(
    "env, at_least",
    [
        ("cartpole", 490),
        ("acrobot", -90),
        ("mountain_car", -120),
        ("catch", 0.95),
        ("deep_sea", 0.9),
        ("four_rooms", 0.9),
    ],
)
def test_an_environments_own_settings_solve_it(tmp_path: Path, env: str, at_least: float) -> None:
    assert train([f"env={env}"], tmp_path)[0] >= at_least
