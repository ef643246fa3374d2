"""Steady steps per second on CartPole, feed-forward at three sizes and with memories: `make bench`.

Each setting is compiled once; then blocks of whole updates are timed, compile apart. Prints a table
and writes benchmarks/results/speed.json (ignored by git).
"""

import argparse
import json
import platform
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import hydra
import jax
import numpy as np
from omegaconf import OmegaConf

from jaxppo import compile, config, devices, experiment, population, system
from jaxppo.launcher import config_dir
from jaxppo.learner import train_members

SETTINGS: dict[str, list[str]] = {
    "S": [
        "arch.total_num_envs=4",
        "system.rollout_length=128",
        "system.num_minibatches=4",
    ],
    "M": [
        "arch.total_num_envs=1024",
        "system.rollout_length=128",
        "system.num_minibatches=16",
        *(
            f"network.{part}.{key}"
            for part in ("actor_torso", "critic_torso")
            for key in ("layer_sizes=[256,256]", "activation=relu")
        ),
    ],
    "L": [
        "arch.total_num_envs=4096",
        "system.rollout_length=32",
        "system.num_minibatches=16",
    ],
}
MEMBERS = {  # of size S, all in one program
    f"S x {num}": [*SETTINGS["S"], f"arch.num_seeds={num}"] for num in (4, 16, 64)
}
STEPS_PER_BLOCK = {"S": 300_000, "M": 262_144, "L": 786_432}
MEMORIES = {  # 16,384 steps an update, learnt from in sequences of whole rollouts
    f"{memory}-{length}": [
        f"network={memory}_shared",
        f"arch.total_num_envs={16_384 // length}",
        f"system.rollout_length={length}",
        "system.num_minibatches=4",
    ]
    for memory in ("lstm", "gru", "lru")
    for length in (128, 1024)
}


def compose(name: str) -> config.Config:
    """The configuration that the command line would run."""
    executable = "rec_ppo" if name in MEMORIES else "ff_ppo"
    overrides = ["system.epochs=4", "arch.num_evaluation=1", "arch.compile_cache=null"]
    with hydra.initialize_config_dir(str(config_dir()), version_base="1.3"):
        settings = hydra.compose(
            executable, [*{**SETTINGS, **MEMBERS, **MEMORIES}[name], *overrides]
        )
    return config.parse(dict(OmegaConf.to_container(settings, resolve=True)))  # type: ignore[arg-type]


def measure(name: str, num_blocks: int) -> dict[str, Any]:
    """Median and range of steady steps per second at one setting."""
    settings = compose(name)
    plan, built = experiment.prepare(settings)
    state = system.init(built, population.members(settings), plan)
    steps_per_update = plan.num_members * plan.steps_per_update
    wanted = STEPS_PER_BLOCK["S" if name in MEMBERS else name] if name not in MEMORIES else 65_536
    updates = max(1, wanted // steps_per_update)
    count = devices.replicate(np.int32(updates), jax.local_devices())
    train = partial(train_members, built)
    program = compile.compile_program(train, state, count, donate=(0,))
    gflop = compile.matmul_flops(train, state, count) / 1e9
    speeds = []
    for block in range(num_blocks + 1):  # the first warms up
        start = time.perf_counter()
        state, _ = program.call(state, count)
        jax.block_until_ready(state)
        if block:
            speeds.append(updates * steps_per_update / (time.perf_counter() - start))
    median = statistics.median(speeds)
    return {
        "setting": name,
        "steps_per_second": median,
        "slowest": min(speeds),
        "fastest": max(speeds),
        "blocks": num_blocks,
        "compile_seconds": program.seconds,
        "peak_mib": program.peak_bytes / 2**20,
        "matmul_gflop_per_second": gflop / steps_per_update * median,
    }


def main() -> None:
    """Measure every setting in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "settings",
        nargs="*",
        default=[*SETTINGS, *MEMBERS, *MEMORIES],
        help="of all that it prints",
    )
    parser.add_argument("--blocks", type=int, default=7, help="timed blocks of each setting")
    arguments = parser.parse_args()
    results = []
    print(
        f"jax {jax.__version__}, {jax.local_device_count()} x {jax.local_devices()[0].device_kind}"
    )
    print("setting     steps/s (slowest .. fastest)     compile   peak MiB  matmul GFLOP/s")
    for name in arguments.settings:
        row = measure(name, arguments.blocks)
        results.append(row)
        print(
            f"{name:<9} {row['steps_per_second']:>9,.0f} "
            f"({row['slowest']:,.0f} .. {row['fastest']:,.0f})   {row['compile_seconds']:>6.1f} s "
            f"{row['peak_mib']:>9.0f} {row['matmul_gflop_per_second']:>10.1f}",
            flush=True,
        )
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    machine = {"jax": jax.__version__, "python": platform.python_version(), "rows": results}
    (folder / "speed.json").write_text(json.dumps(machine, indent=2) + "\n")


if __name__ == "__main__":
    main()
