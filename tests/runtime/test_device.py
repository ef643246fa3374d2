"""Numerics, determinism and resuming on whatever device JAX has: `pytest -m device`.

`make bench-accelerator` runs these on an accelerator. On a CPU they compare the forms for GPUs with
those for CPUs.
"""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxppo
from jaxppo.algorithms import spine
from jaxppo.config.plan import plan
from jaxppo.deploy.result import Result
from jaxppo.kernels.platforms import compiling_for
from jaxppo.launch.composing import compose
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import build

pytestmark = [pytest.mark.device, pytest.mark.long]

SMALL = (
    *("env=cartpole", "arch.total_num_envs=32", "arch.num_updates=4", "arch.num_evaluation=2"),
    *("arch.num_eval_episodes=8", "system.rollout_length=16", "system.num_minibatches=2"),
)
PLATFORM = jax.default_backend()
CASES = {
    "mlp": ("ff_ppo", ()),
    # Where there is no GPU, tests/kernels interprets these kernels
    **(
        {
            "fused": ("ff_ppo", ("arch.fused=true",)),
            "fused lstm": ("rec_ppo", ("network=lstm", "arch.fused=true")),
            "fused gru": ("rec_ppo", ("network=gru_shared", "arch.fused=true")),
        }
        if PLATFORM == "gpu"
        else {}
    ),
    "lstm": ("rec_ppo", ("network=lstm",)),
    "lru": ("rec_ppo", ("network=lru",)),
    "pqn": ("ff_pqn", ()),
}
# Largest difference of the first epoch's probability ratios from 1: acting and learning multiply
# batches of other sizes, and TF32 and bfloat16 factors have 11 and 8 bits
RATIO = {"cpu": 1e-5, "gpu": 2e-3, "tpu": 2e-2}


def update(command: str, more: tuple[str, ...], platform: str, forms: str) -> Any:
    """The parameters and metrics of one update on the first device of a platform."""
    config = compose(command, [*SMALL, *more])
    planned = plan(config, 1, 1)
    device = jax.devices(platform)[0]
    with jax.default_device(device), jax.default_matmul_precision("highest"):
        with compiling_for("cpu"):
            system = build.build(config, planned)
            state = jax.tree.map(lambda x: x[0], build.begin(system, [config], planned))
        state = dataclasses.replace(state, acting=jax.tree.map(lambda x: x[0, 0], state.acting))
        with compiling_for(forms):
            after, metrics = jax.jit(partial(spine.update, system))(state)
    return devices.host((after.agent.policy.params, metrics))


def cases(*quick: str) -> list[Any]:
    """All on an accelerator; on CPUs some wait for `make slow`."""
    return [pytest.param(case, marks=() if case in quick else pytest.mark.slow) for case in CASES]


@pytest.mark.long
@pytest.mark.parametrize("case", cases("mlp", "lstm"))
def test_an_update_is_that_of_the_cpu(case: str) -> None:
    here = update(*CASES[case], PLATFORM, "gpu" if PLATFORM == "cpu" else PLATFORM)
    there = update(*CASES[case], "cpu", "cpu")
    for one, other in zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)


def train(**given: Any) -> Result:
    return jaxppo.train([*SMALL, "arch.compile_cache=null"], progress=False, **given)


def params(result: Result) -> list[np.ndarray]:
    return jax.tree.leaves(devices.host(result.policy.policy.params))


@pytest.mark.long
def test_two_runs_are_equal_and_a_third_that_resumes_too(tmp_path: Path) -> None:
    one, other = train(), train()
    stopped = train(run_dir=tmp_path / "run", on_block=lambda block: True)
    assert stopped.status != "finished"
    resumed = jaxppo.train(resume=tmp_path / "run", progress=False)
    for result in (other, resumed):
        for a, b in zip(params(one), params(result), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.long
@pytest.mark.parametrize("case", cases("lstm")[:-1])
def test_ratios_of_the_first_minibatch_are_one(case: str) -> None:
    """At the precision that a run has by default."""
    command, more = CASES[case]
    once = ("system.epochs=1", "system.num_minibatches=1", "logger.every=1")
    settings = [*SMALL, *more, *once, "arch.compile_cache=null"]
    metrics = jaxppo.train(settings, command=command, progress=False).metrics
    found = np.stack([metrics["ratio_min"], metrics["ratio_max"]])
    assert np.abs(found - 1).max() <= RATIO[PLATFORM]
