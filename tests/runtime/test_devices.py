"""Runs on one device and on two forced ones, in a process of their own."""

import json
import os
import subprocess
import sys

import pytest
from conftest import on_devices

SCRIPT = """
import json, tempfile
from pathlib import Path
import jax, numpy as np
from conftest import LAYERS, NETWORK, small_config
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.run import loop

settings = small_config(
    arch={"total_num_envs": 16, "update_batch_size": 2, "num_updates": 5, "num_eval_episodes": 7},
    env__target="envs.Coin",
    network={**NETWORK, "actor_memory": {"_target_": f"{LAYERS}.memory.Recurrent", "size": 8}},
    system={
        "sequence_length": 4, "num_minibatches": 2, "burn_in": 1, "recompute_carries": True,
        **dict.fromkeys(("normalize_observations", "normalize_values", "normalize_rewards"), True),
        "standardize_advantages": "minibatch", "target_kl": 10.0,
        "objective": "penalty", "adapt_kl_coef": True,
    },
    logger={"console": False, "plot": False},
)
real, found = loop.end_block, {}

def equal(tree):
    leaves = [np.asarray(devices.data(x)) for x in jax.tree.leaves(tree)]
    return all(np.array_equal(x[0], row) for x in leaves for row in x)

def end(run, state):
    agent, keys = state.learner.agent, jax.random.key_data(state.learner.acting.key)
    found[num] = {
        "axis": sorted({x.shape[0] for x in jax.tree.leaves(agent)}),
        "equal": equal(agent),
        "metrics_equal": equal(state.total),
        "updates": devices.first(agent.update).item(),
        "count": devices.first(agent.policy.obs_statistics).count.item(),
        "streams": len(np.unique(keys.reshape(-1, 2), axis=0)),
    }
    return real(run, state)

loop.end_block = end
for num in (1, 2):
    devices.count = lambda members: num
    with tempfile.TemporaryDirectory() as run_dir:
        loop.run(settings, Path(run_dir))
        events = [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").open()]
    names = ("episodes", "episode_return_std", "episode_length")
    found[num]["played"] = [[e[n] for n in names] for e in events if e["event"] != "train"]
print(json.dumps(found))
"""


@pytest.mark.long
def test_parameters_statistics_and_metrics_are_equal_on_all_devices() -> None:
    """The number of devices changes no count, and not the episodes of evaluations."""
    one, two = json.loads(on_devices(2, SCRIPT).splitlines()[-1]).values()
    for run, num in ((one, 1), (two, 2)):
        assert run["axis"] == [num]  # agents have no axis of update batches
        assert run["equal"]
        assert run["metrics_equal"]
        assert run["updates"] == 5
        assert run["count"] == 5 * 16 * 8  # every observation once
        assert run["streams"] == 2 * num  # of every device and update batch
    assert [episodes for episodes, *_ in one["played"]] == [7, 7, 70]
    assert one["played"] == two["played"]  # Coin's lengths do not depend on actions


CORES = """
import os
os.sched_getaffinity = lambda pid: range(4)
from jaxppo.runtime.hosts import devices
devices.prepare()
print(*(devices.count(members) for members in (1, 2, 3, 4, 16)))
"""


@pytest.mark.parametrize(
    "asked, counts",
    [
        ({}, "1 2 3 4 4"),
        pytest.param({"JAX_NUM_CPU_DEVICES": "1"}, "1 1 1 1 1", marks=pytest.mark.slow),
    ],
)
def test_members_are_sharded_over_a_cpus_cores_and_one_agent_is_not(
    asked: dict[str, str], counts: str
) -> None:
    others = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    done = subprocess.run(
        [sys.executable, "-c", CORES],
        env={**others, "JAX_PLATFORMS": "cpu", **asked},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == counts
