"""Small runs that tests share, what they left behind, and an end as abrupt as can be."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from conftest import LAYERS, NETWORK, alone, build, small_config

from jaxppo.config.schema import Config
from jaxppo.deploy.policy import TrainedPolicy
from jaxppo.runtime.run.jobs import Job
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.checkpoint import Checkpoint

QUIET = {"console": False, "plot": False}
EACH_TIME = {"share": 1.0}
ON = dict.fromkeys(("normalize_observations", "normalize_values", "normalize_rewards"), True)
MEMORY = {**NETWORK, "actor_memory": {"_target_": f"{LAYERS}.memory.Recurrent", "size": 4}}
BOUNDS = {"actor_lr": [1e-4, 1e-2], "clip_eps": [0.1, 0.3]}
RANDOMIZED = {
    "target": "envs.Shown",
    "randomize": {"count": [1, 5]},
    "randomize_per": "environment",
    "curriculum": {"weight": {"start": 1, "end": [2, 3], "share": 0.7}},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "one": {},
    "everything": {  # that has a state of its own
        "system__obs_norm_warmup_steps": 100,
        "system__sequence_length": 4,
        "network": MEMORY,
        "arch": {"on_nonfinite": "skip", "num_seeds": 2},
        "env": {**RANDOMIZED, "metrics": ["shown.weight:sum", "time:mean"]},
    },
    "games": {
        "arch": {"total_num_envs": 16, "num_seeds": 2, "max_eval_steps": 12},
        "env": {
            "target": "own_games.Nim",
            **{"opponent": "pool", "num_opponents": 2, "random_moves": 2},
            "metrics": ["win:share"],
        },
    },
    "memory": {"system__sequence_length": 4, "network": MEMORY},
    "seeds": {"arch": {"num_seeds": 3}},
    "pbt": {"population": {"size": 4, "selection": "pbt", "hyperparameters": BOUNDS}},
    "halving": {"population": {"size": 4, "selection": "halving", "hyperparameters": BOUNDS}},
    "pbt of two": {"population": {"size": 2, "selection": "pbt", "hyperparameters": BOUNDS}},
    "halving of two": {"population": {"size": 2, "selection": "halving"}},
}


def coin(variant: str = "one", **arch: Any) -> Config:
    """Four blocks of everything random, saved after each."""
    changes = dict(VARIANTS[variant])
    sizes = {
        **{"total_num_envs": 8, "num_updates": 8, "num_evaluation": 4, "evaluate_first": False},
        **{"num_eval_episodes": 5, "update_batch_size": 2},
    }
    system = {**ON, "num_minibatches": 2, **changes.pop("system", {})}
    for key in list(changes):
        if key.startswith("system__"):
            system[key.removeprefix("system__")] = changes.pop(key)
    given = {
        "network": NETWORK,
        "env": {"target": "envs.Coin"},
        "logger": QUIET,
        "checkpoint": EACH_TIME,
        **changes,
        "arch": {**sizes, **changes.pop("arch", {}), **arch},
        "system": system,
    }
    return small_config(**given)


def events_of(run_dir: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """What a run logged, all or of a kind."""
    events = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [event for event in events if kind in (None, event["event"])]


def logged(run_dir: Path) -> dict[str, list[dict[str, Any]]]:
    """All metric logs below, without the clock."""
    return {
        str(file.relative_to(run_dir)): [
            {k: v for k, v in json.loads(line).items() if k not in ("seconds", "steps_per_second")}
            for line in file.read_text().splitlines()
        ]
        for file in sorted(run_dir.rglob("metrics.jsonl"))
    }


def newest(run_dir: Path) -> Checkpoint:
    """The latest usable checkpoint of a run, which has one."""
    found, _ = checkpoint.newest(run_dir)
    assert found is not None
    return found


def assert_equal(one: Path, other: Path) -> None:
    """Logs, and all arrays of the last checkpoints."""
    assert logged(one) == logged(other)
    left, right = newest(one), newest(other)
    assert left.steps == right.steps
    assert set(left.arrays) == set(right.arrays)
    for name, array in left.arrays.items():
        np.testing.assert_array_equal(array, right.arrays[name], err_msg=name)


def some(target: str, memory: bool = False, **changes: Any) -> Config:
    given = {
        "arch": {"num_eval_episodes": 5, **changes.pop("arch", {})},
        "system": {"normalize_observations": True, "sequence_length": 4 if memory else 1},
        "env": {"target": target},
        "network": MEMORY if memory else NETWORK,
        "logger": QUIET,
        **changes,
    }
    return small_config(**given)


def fresh(config: Config) -> TrainedPolicy:
    """As a run begins, with statistics that are not the identity."""
    built, state = alone(*build(config)[:2])
    policy = state.agent.policy
    moved = jax.tree.map(lambda x: x + jnp.asarray(0.5, x.dtype), policy.obs_statistics)
    policy = dataclasses.replace(policy, obs_statistics=moved)
    return TrainedPolicy(config=config, system=built, policy=policy, steps=0, num_devices=1)


def pqn(**changes: Any) -> Config:
    """A tiny run of PQN in `envs.Clock`; `changes` as of `small_config`."""
    network: dict[str, Any] = {"actor_torso": None, "critic_head": None}
    given = changes.pop("network", {})
    system = {"algorithm": "pqn", **changes.pop("system", {})}
    return small_config(network={**network, **given}, system=system, **changes)


def reppo(**changes: Any) -> Config:
    """A tiny run of REPPO in `envs.Drift`; `changes` as of `small_config`."""
    head = {"_target_": f"{LAYERS}.heads.CategoricalCriticHead", "num_atoms": 21}
    policy = {"_target_": f"{LAYERS}.heads.follow", "state_dependent_std": True}
    network: dict[str, Any] = {"critic_torso": None, "critic_post_torso": NETWORK["actor_torso"]}
    network |= {"critic_head": head, "actor_head": policy, **changes.pop("network", {})}
    system = {"algorithm": "reppo", "normalize_observations": True, **changes.pop("system", {})}
    env = {"target": "envs.Drift", **changes.pop("env", {})}
    return small_config(network=network, system=system, env=env, **changes)


def jobs_of(folder: Path, configs: list[Config], resume: bool = False) -> list[Job]:
    """Jobs in folders of their own, named by number; with `resume` there may be runs already."""
    jobs = [Job(config, folder / str(i), resume) for i, config in enumerate(configs)]
    for job in jobs:
        job.run_dir.mkdir(parents=True, exist_ok=resume)
    return jobs
