"""What an accelerator does, in nine minutes at most: `make bench-accelerator`.

Runs the tests of tests/runtime/test_device.py, and measures speed, compile time and memory of
several settings, each in a process of its own, beside the estimate of `jaxppo.plan`. The same
process also runs the same work in other systems, in turn: a plain PPO
(benchmarks/peers/run_plain.py), and rejax if it is installed. Writes
benchmarks/results/accelerator.json and accelerator.md (ignored by git). What there is no time for
is named in the table. On a CPU `--small` tries the command.
"""

import argparse
import dataclasses
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from benchmarks.blocks import RESULTS, SIZES, Size, keep
from benchmarks.peers import PEERS
from benchmarks.peers.updates import block
from benchmarks.speed import ROOT, SETTINGS, Setting, Timed, of_size, seconds
from jaxppo.extras.chips import targets
from jaxppo.kernels.platforms import forms
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import program_cache

Block = tuple[Callable[[], object], int]  # what to time, and its environment steps


def fused(row: Setting) -> Setting:
    """Return a row with its layers in one kernel."""
    return dataclasses.replace(row, overrides=[*row.overrides, "arch.fused=true"])


BUDGET = 520  # seconds, of which a row takes at most LIMIT
LIMIT = 110
BLOCKS = 5  # of each system, but no more once they have taken half of LIMIT
LARGE = dataclasses.replace(SIZES["L"], num_envs=32_768)
# Rows whose layers one kernel can compute; measured with and without it, they decide whether it is
# on where `arch.fused` is null (`kernels.platforms`)
MLPS = {
    **{name: SETTINGS[name] for name in ("S", "L")},
    "L, 32,768 environments": Setting(of_size(LARGE), 8 * LARGE.steps_per_update),
    "S, 1,024 members": Setting([*of_size(SIZES["S"]), "arch.num_seeds=1024"], 2_097_152),
}
ROWS = {
    **MLPS,
    "M": SETTINGS["M"],
    **{f"{name}, fused": fused(row) for name, row in MLPS.items()},
    "CNN": SETTINGS["cnn"],
    "LSTM": SETTINGS["lstm"],
    "LRU": SETTINGS["lru"],
    "PQN L": SETTINGS["L pqn"],
}
# Rows that others run too: the size of the work, and who; rejax takes the algorithm
OF_PPO: dict[str, tuple[str, ...]] = {"plain": (), "rejax": ("ppo",)}
COMPARED: dict[str, tuple[Size, dict[str, tuple[str, ...]]]] = {
    **{name: (size, OF_PPO) for name, size in SIZES.items()},
    "L, 32,768 environments": (LARGE, OF_PPO),
    "PQN L": (SIZES["L"], {"rejax": ("pqn",)}),
}
TINY: dict[str, Any] = {"num_envs": 8, "rollout_length": 8, "num_minibatches": 2}
TINY_UPDATES = 64  # of a block
TINY_STEPS = TINY_UPDATES * TINY["num_envs"] * TINY["rollout_length"]
TINY_SETTINGS = [
    f"arch.total_num_envs={TINY['num_envs']}",
    f"system.rollout_length={TINY['rollout_length']}",
    f"system.num_minibatches={TINY['num_minibatches']}",
]


def measure(name: str, small: bool) -> dict[str, Any]:
    """Measure a row in this process, and others on the same work."""
    setting, more = ROWS[name], TINY_SETTINGS if small else []
    if small:
        members = ["arch.num_seeds=4"] if "members" in name else []
        setting, more = dataclasses.replace(setting, steps_per_block=TINY_STEPS), [*more, *members]
    timed = Timed(setting, *more)
    others = compiled_peers(name, small)
    blocks: dict[str, Block] = {"ours": (timed.block, timed.steps)}
    blocks |= {peer: found for peer, found in others.items() if isinstance(found, tuple)}
    speeds = measure_in_turn(blocks)
    program = timed.program
    row = {
        "steps_per_second": statistics.median(speeds["ours"]),
        "slowest": min(speeds["ours"]),
        "fastest": max(speeds["ours"]),
        "compile_seconds": program.seconds,
        "peak_mib": (program.peak_bytes or 0) / 2**20,
        "others": {
            peer: statistics.median(speeds[peer]) if peer in speeds else found
            for peer, found in others.items()
        },
    }
    chip = next((key for key, chip in targets.CHIPS.items() if _is_this(chip)), None)
    if chip is not None:
        products = program.matmul_flops, program.matmul_traffic
        steps = timed.steps // timed.updates
        row |= targets.estimate(chip, program.call.as_text(), *products, steps, forms().precision)
    return row


def compiled_peers(name: str, small: bool) -> dict[str, Block | str]:
    """Return a block of each other system that runs this row, or why there is none."""
    if name not in COMPARED:
        return {}
    size, peers = COMPARED[name]
    if small:
        size = dataclasses.replace(size, **TINY, updates_per_block=TINY_UPDATES)

    def compiled(peer: str) -> Block | str:
        try:
            module = importlib.import_module(f"benchmarks.peers.run_{peer}")
        except ModuleNotFoundError:
            return f"pip install {' '.join(PEERS[peer])}"
        try:
            train_on, _ = block(size, *module.learner(size, *peers[peer]))
        except Exception as error:  # a peer that fails does not end the row
            return f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
        return train_on, size.steps_per_block

    with ThreadPoolExecutor() as pool:
        return dict(zip(peers, pool.map(compiled, peers), strict=True))


def measure_in_turn(blocks: dict[str, Block]) -> dict[str, list[float]]:
    """Return steps per second of every block, after one that warms up."""
    for train_on, _ in blocks.values():
        train_on()
    speeds: dict[str, list[float]] = {name: [] for name in blocks}
    start = time.monotonic()
    while len(speeds["ours"]) < BLOCKS and time.monotonic() - start < LIMIT / 2:
        for name, (train_on, steps) in blocks.items():
            speeds[name].append(steps / seconds(train_on))
    return speeds


def _is_this(chip: targets.Chip) -> bool:
    """Return whether the first device is such a chip."""
    kind = jax.local_devices()[0].device_kind.lower()
    return chip.name.split()[-1].lower() in kind.replace(" lite", "e")


def in_a_process(command: list[str], limit: float) -> tuple[str, str]:
    """Run a command; return its output, and why it has none worth reading."""
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
            env={**os.environ, "JAX_PLATFORMS": _platforms()},
        )
    except subprocess.TimeoutExpired:
        return "", f"took more than {limit:.0f} s"
    lines = (done.stderr or done.stdout).strip().splitlines()
    return done.stdout, lines[-1] if done.returncode and lines else ""


def _platforms() -> str:
    """Return JAX_PLATFORMS for this machine's accelerator, with the CPU beside it."""
    names = {"gpu": "cuda,cpu", "tpu": "tpu,cpu"}
    return os.environ.get("JAX_PLATFORMS") or names.get(devices.platform(), "cpu")


def table(found: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        f"{found['device']}, jax {found['jax']}, {found['seconds']:.0f} s",
        "",
        f"Device tests: {found['tests']}",
        "",
        "| setting | steps/s (slowest to fastest) | plain PPO | rejax | estimate | "
        "kernels an update | compile | memory |",
        f"|{' --- |' * 8}",
    ]
    for name, row in found["rows"].items():
        if "steps_per_second" not in row:
            lines.append(f"| {name} | {row['missing']} |{' |' * 6}")
            continue
        others = [row["others"].get(peer, "") for peer in ("plain", "rejax")]
        cells = " | ".join(x if isinstance(x, str) else f"{x:,.0f}" for x in others)
        speed = f"{row['steps_per_second']:,.0f} ({row['slowest']:,.0f} to {row['fastest']:,.0f})"
        estimate, kernels = "", ""
        if "estimated_steps_per_second" in row:
            estimate = f"{row['estimated_steps_per_second']:,.0f}"
            kernels = f"{row['kernels_per_update']:,}"
        lines.append(
            f"| {name} | {speed} | {cells} | {estimate} | {kernels} | "
            f"{row['compile_seconds']:.1f} s | {row['peak_mib']:,.0f} MiB |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="small sizes, to try the command")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    given = parser.parse_args()
    devices.prepare()
    if given.row:
        program_cache.use(None)
        print(json.dumps(measure(given.row, given.small)))
        return
    start = time.monotonic()
    found: dict[str, Any] = {"device": devices.machine(), "jax": jax.__version__, "rows": {}}
    for name in ROWS:
        left = BUDGET - (time.monotonic() - start)
        command = ["-m", "benchmarks.accelerator", "--row", name]
        command += ["--small"] if given.small else []
        output, missing = in_a_process(command, min(left, LIMIT)) if left > 0 else ("", "no time")
        row = {"missing": missing} if missing else json.loads(output.splitlines()[-1])
        found["rows"][name] = row
        print(name, row.get("missing") or f"{row['steps_per_second']:,.0f} steps/s", flush=True)
    left = BUDGET - (time.monotonic() - start)
    output, missing = in_a_process(
        ["-m", "pytest", "-q", "-m", "device", "tests/runtime/test_device.py"], max(left, 1)
    )
    lines = output.strip().splitlines()
    found["tests"] = lines[-1] if lines else missing
    found["failed"] = [line for line in lines if line.startswith("FAILED")]
    found["seconds"] = time.monotonic() - start
    keep("accelerator.json", found)
    (RESULTS / "accelerator.md").write_text(table(found))
    print(f"\n{table(found)}")


if __name__ == "__main__":
    main()
