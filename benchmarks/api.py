"""Speed of `make_train` and of `logger.every=1`, relative to `jaxppo.train`.

    python -m benchmarks.api                 # S M L "S x 16"
    python -m benchmarks.api S --rounds 5

Each way runs in a process of its own, without a compile cache. `S x 16` is 16 seeds, by
`arch.num_seeds` and by `jax.vmap`. The ratio is a way's training speed divided by that of
`jaxppo.train` in the same round. `jaxppo.train` reports its training speed in its events. For
`make_train` it is the extra steps of a run of 3 U updates over one of U, divided by the extra
seconds. `all but training` is the time of a whole call less that of its training: tracing and
compiling, the first state, two evaluations and the absolute metric. `compile` is a part of it:
`jaxppo.train` compiles two programs at once, and reports them without the one that makes the first
state; `make_train` has one program.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxppo
from benchmarks.speed import SETTINGS
from jaxppo.config.schema import Config
from jaxppo.launch.composing import compose
from jaxppo.runtime.hosts import devices

UPDATES = {"S": 400, "M": 2, "L": 8, "S x 16": 40}  # some seconds on two cores
WAYS = ("run", "every=1", "pure", "sharded")  # sharded: the seeds of a vmap, over all devices


def measure(name: str, way: str) -> dict[str, float]:
    """Train a setting by one way; return its steps per second and the seconds of compiling."""
    if way in ("pure", "sharded"):
        short, long = (measure_pure(name, times * UPDATES[name], way) for times in (1, 3))
        steps, seconds = (long[key] - short[key] for key in ("steps", "seconds"))
        speed = steps / seconds
        rest = short["compile"] + short["seconds"] - short["steps"] / speed
        return {"speed": speed, "compile": short["compile"], "rest": rest}
    config = settings(name, 3 * UPDATES[name], every=way == "every=1")
    start = time.perf_counter()
    result = jaxppo.train(config, progress=False)
    seconds, end = time.perf_counter() - start, result.events[""][-1]
    speed = end["steps_per_second"]
    return {
        "speed": speed,
        "compile": end["compile_seconds"],
        "rest": seconds - num_seeds(name) * end["steps"] / speed,
    }


def num_seeds(name: str) -> int:
    """How many seeds a setting trains."""
    return int(name.partition(" x ")[2] or 1)


def settings(name: str, num_updates: int, *, alone: bool = False, every: bool = False) -> Config:
    """The settings of a run; `alone`: of one of its seeds."""
    setting = SETTINGS[name]
    seeds = [each for each in setting.overrides if each.startswith("arch.num_seeds")]
    overrides = [each for each in setting.overrides if not alone or each not in seeds]
    return compose(
        setting.executable,
        [
            *overrides,
            "env=cartpole",
            f"arch.num_updates={num_updates}",
            *("arch.num_evaluation=2", "arch.num_eval_episodes=32", "arch.compile_cache=null"),
            *(["logger.every=1"] if every else []),
        ],
    )


def measure_pure(name: str, num_updates: int, way: str) -> dict[str, float]:
    """Train a setting by `make_train`: its steps, its seconds, and those of compiling."""
    num = num_seeds(name)
    run = jaxppo.make_train(settings(name, num_updates, alone=True))
    keys = jax.vmap(jax.random.key)(42 + jax.numpy.arange(num))
    function, given = (jax.vmap(run), keys) if num > 1 else (run, keys[0])
    if way == "sharded":
        mesh, seeds = Mesh(np.asarray(jax.local_devices()), ("seed",)), P("seed")
        function = jax.shard_map(
            function, mesh=mesh, in_specs=seeds, out_specs=seeds, check_vma=False
        )
    start = time.perf_counter()
    options = run.compiler_options
    program = jax.jit(function, compiler_options=options).lower(given).compile()
    compiled = time.perf_counter()
    jax.block_until_ready(program(given))
    return {
        "steps": num * num_updates * run.steps_per_update,
        "seconds": time.perf_counter() - compiled,
        "compile": compiled - start,
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("settings", nargs="*", default=list(UPDATES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        devices.prepare()
        print(json.dumps(measure(given.settings[0], given.way)))
        return
    print(
        "| setting | way | steps/s | relative to `run` | compile, s | all but training, s |\n"
        "| --- | --- | --- | --- | --- | --- |"
    )
    for name in given.settings:
        ways = WAYS if " x " in name else WAYS[:-1]
        found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for _ in range(given.rounds):
            for way in ways:
                command = [sys.executable, "-m", "benchmarks.api", name, "--way", way]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found[way].append(json.loads(done.stdout.splitlines()[-1]))
        for way, rows in found.items():
            pairs = zip(rows, found["run"], strict=True)
            ratios = sorted(row["speed"] / base["speed"] for row, base in pairs)
            speed, *times = (statistics.median(r[key] for r in rows) for key in rows[0])
            seconds = " | ".join(f"{x:.1f}" for x in times)
            print(
                f"| {name} | {way} | {speed:,.0f} | {statistics.median(ratios):.2f} "
                f"({ratios[0]:.2f} .. {ratios[-1]:.2f}) | {seconds} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
