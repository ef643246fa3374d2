"""One device and four forced ones, in a process of their own."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from conftest import on_devices

SCRIPT = """
import json, sys, tempfile
from pathlib import Path
import jax, numpy as np
from functools import partial
from conftest import LAYERS, NETWORK, small_config
from jaxppo.algorithms.evaluation import evaluate_members
from jaxppo.algorithms.spine import train_members
from jaxppo.config.plan import plan
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import build
from jaxppo.runtime.run import loop
from jaxppo.runtime.programs.placement import Layout

num = int(sys.argv[1])
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
plan = plan(settings, num)
built = build.build(settings, plan)
layout = Layout(plan, built, (0,))
state = layout.place(build.begin(built, [settings], plan))
local = jax.local_devices()[:num]
train = devices.parallel(partial(train_members, built), num)
count, total = layout.place_count(3), layout.no_metrics()
talk = "all_reduce" in train.lower(state, total, count).as_text()
state, metrics = train(state, total, count)
raw = lambda x: jax.random.key_data(x) if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else x
agent = [np.asarray(raw(x)) for x in jax.tree.leaves(state.agent)]
keys = jax.random.key_data(state.acting.key).reshape(-1, 2)
policy = devices.first(state.agent.policy)
episode_keys = jax.random.split(jax.random.key(5), 8).reshape(num, 1, -1)
shards = devices.shard(episode_keys, local)
episodes = devices.parallel(partial(evaluate_members, built), num)(
    devices.replicate(policy, local), shards
)
with tempfile.TemporaryDirectory() as run_dir:
    loop.run(settings, Path(run_dir))
    events = [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").open()]
print(json.dumps({
    "played": [event["episodes"] for event in events if event["event"] != "train"],
    "devices": len(local),
    "talk": talk,
    "axis": sorted({x.shape[0] for x in agent}),
    "equal": all(np.array_equal(x[0], row) for x in agent for row in x),
    "metrics_equal": all(
        np.array_equal(np.asarray(x)[0], r) for x in jax.tree.leaves(metrics) for r in np.asarray(x)
    ),
    "updates": state.agent.update[0].item(),
    "steps": plan.steps_per_update,
    "count": policy.obs_statistics.count.item(),
    "streams": len({tuple(k) for k in np.asarray(keys).tolist()}),
    "lengths": np.asarray(episodes.lengths).reshape(-1).tolist(),
    "plan_episodes": plan.eval_episodes_per_device,
}))
"""


@pytest.fixture(scope="module")
def runs() -> dict[int, dict[str, Any]]:
    return {num: json.loads(on_devices(num, SCRIPT, str(num)).splitlines()[-1]) for num in (1, 4)}


@pytest.mark.long
@pytest.mark.parametrize("num", [1, 4])
def test_parameters_statistics_and_metrics_are_equal_on_all_devices(
    runs: dict[int, dict[str, Any]], num: int
) -> None:
    assert runs[num]["devices"] == num
    assert runs[num]["axis"] == [num]  # agents have no axis of update batches
    assert runs[num]["equal"]
    assert runs[num]["metrics_equal"]


@pytest.mark.long
def test_devices_talk_to_each_other_where_there_are_several(
    runs: dict[int, dict[str, Any]],
) -> None:
    assert (runs[1]["talk"], runs[4]["talk"]) == (False, True)


@pytest.mark.long
def test_the_number_of_devices_changes_no_count(runs: dict[int, dict[str, Any]]) -> None:
    for name in ("updates", "steps"):
        assert runs[1][name] == runs[4][name]
    for run in runs.values():
        assert run["count"] == 3 * run["steps"]  # every observation once


@pytest.mark.long
def test_every_device_and_update_batch_has_its_own_random_stream(
    runs: dict[int, dict[str, Any]],
) -> None:
    assert (runs[1]["streams"], runs[4]["streams"]) == (2, 8)


@pytest.mark.long
def test_evaluation_plays_the_same_episodes_on_any_number_of_devices(
    runs: dict[int, dict[str, Any]],
) -> None:
    assert runs[1]["lengths"] == runs[4]["lengths"]  # Coin's lengths do not depend on actions
    assert len(set(runs[1]["lengths"])) > 1
    assert runs[1]["played"] == runs[4]["played"] == [7, 7, 70]
    assert runs[4]["plan_episodes"] == 2  # 7 episodes: 4 x 2, of which one is not read


CORES = """
import os
os.sched_getaffinity = lambda pid: range(4)
from jaxppo.runtime.hosts import devices
devices.prepare()
print(*(devices.count(members) for members in (1, 2, 3, 4, 16)))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "asked, counts",
    [
        ({}, "1 2 3 4 4"),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, "2 2 2 2 2"),
        ({"JAX_NUM_CPU_DEVICES": "1"}, "1 1 1 1 1"),
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
