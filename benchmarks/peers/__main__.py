"""This system and its peers on the same work, block by block in turn: `make bench-peers`.

    python -m benchmarks.peers S M L --peers rejax brax          # PPO
    python -m benchmarks.peers S M L --algorithm pqn             # our PQN, rejax's PQN and our PPO

Each runs in a process of its own, and what must be installed in an environment of its own. All are
timed in the same minutes: a round is one block of each. Prints medians of the rounds, of their
ratios to the fastest peer too, and writes benchmarks/results/peers.json (ignored by git).
"""

import argparse
import dataclasses
import importlib.metadata
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.blocks import SIZES, keep
from benchmarks.contestants import Contestant, ContestantError
from benchmarks.peers import OF_SIMULATORS, PEERS

FOLDER = Path(__file__).parent
ENVIRONMENTS = FOLDER / ".venvs"
WITH = {"ppo": list(PEERS), "pqn": ["rejax"]}  # algorithm: the peers that implement it
TOO_SLOW = {("sb3", "L")}  # a step of 4,096 environments in turn takes it seconds
OURS = "jaxppo"


def install(peer: str, jax: str) -> str:
    """A peer's Python, in an environment made on first use."""
    packages = {**PEERS, **OF_SIMULATORS}[peer]
    if not packages:
        return sys.executable
    python = ENVIRONMENTS / peer / "bin" / "python"
    done = ENVIRONMENTS / peer / ".installed"
    wanted = " ".join([*packages, *([jax] if jax and peer != "sb3" else [])])
    if not done.exists() or done.read_text() != wanted:
        print(f"installing {wanted}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENTS / peer], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *wanted.split()], check=True)
        done.write_text(wanted)
    return str(python)


@dataclasses.dataclass(frozen=True)
class Raced:
    """What a contestant did."""

    speeds: list[float]  # steps per second of each block
    compile_seconds: float
    peak_mib: float


def race(commands: dict[str, list[str]], rounds: int, *, warm_ups: int) -> dict[str, Raced]:
    """Start all commands one after another, and time a block of each in turn in every round."""
    contestants: dict[str, Contestant] = {}
    seconds: dict[str, float] = {}
    peaks: dict[str, float] = {}
    name = ""
    try:
        for name, command in commands.items():
            contestants[name] = Contestant(command)
            seconds[name] = contestants[name].answer()["compile_seconds"]
            for _ in range(warm_ups):
                contestants[name].ask("block")
        for _ in range(rounds):
            for name, contestant in contestants.items():
                peaks[name] = contestant.block()["peak_mib"]
    except ContestantError as error:
        raise SystemExit(f"{name}: {error}") from None
    finally:
        for contestant in contestants.values():
            contestant.close()
    return {
        name: Raced(contestant.speeds, seconds[name], peaks[name])
        for name, contestant in contestants.items()
    }


def compare(
    algorithm: str, size: str, peers: list[str], jax: str, rounds: int, more: list[str]
) -> dict[str, Any]:
    """A row of each system at one size."""
    serve = [sys.executable, "-m", "benchmarks.speed", "--serve"]
    ours = [*serve, size if algorithm == "ppo" else f"{size} {algorithm}"]
    commands = {OURS: [*ours, *(["--set", *more] if more else [])]}
    for peer in peers:
        if (peer, size) not in TOO_SLOW:
            script = f"benchmarks.peers.run_{peer}"
            commands[peer] = [install(peer, jax), "-m", script, size, algorithm]
    if algorithm != "ppo":
        commands["ff_ppo"] = [*serve, size]
    contestants = race(commands, rounds, warm_ups=2)
    fastest = max(
        (name for name in contestants if name in peers),
        key=lambda name: statistics.median(contestants[name].speeds),
    )
    ratios = [
        mine / theirs
        for mine, theirs in zip(contestants[OURS].speeds, contestants[fastest].speeds, strict=True)
    ]
    return {
        "size": size,
        "fastest_peer": fastest,
        "ratio": statistics.median(ratios),
        "ratio_least": min(ratios),
        "ratio_most": max(ratios),
        "systems": {
            name: {
                "steps_per_second": statistics.median(contestant.speeds),
                "slowest": min(contestant.speeds),
                "fastest": max(contestant.speeds),
                "compile_seconds": contestant.compile_seconds,
                "process_mib": contestant.peak_mib,
            }
            for name, contestant in contestants.items()
        },
    }


def main() -> None:
    """Compare at every size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", default=list(SIZES), help=f"of {', '.join(SIZES)}")
    parser.add_argument("--algorithm", default="ppo", choices=tuple(WITH))
    parser.add_argument("--peers", nargs="*", help=f"of {', '.join(PEERS)}; for pqn rejax alone")
    parser.add_argument("--rounds", type=int, default=7, help="timed blocks of each system")
    jax = f"jax=={importlib.metadata.version('jax')}"
    parser.add_argument(
        "--jax", default=jax, help="what pip installs for the peers; by default %(default)s"
    )
    parser.add_argument("--least", type=float, default=0.0, help="fail if a ratio is below this")
    parser.add_argument("--set", nargs="*", default=[], help="our further settings, key=value")
    arguments = parser.parse_args()
    algorithm, peers = arguments.algorithm, arguments.peers or WITH[arguments.algorithm]
    if lacking := set(peers) - set(WITH[algorithm]):
        parser.error(f"--peers {min(lacking)}: of {', '.join(WITH[algorithm])} for {algorithm}")
    rows = []
    for size in arguments.sizes:
        row = compare(algorithm, size, peers, arguments.jax, arguments.rounds, arguments.set)
        rows.append(row)
        for name, found in row["systems"].items():
            print(
                f"{size} {name:<7} {found['steps_per_second']:>9,.0f} steps/s "
                f"({found['slowest']:,.0f} .. {found['fastest']:,.0f})   compile "
                f"{found['compile_seconds']:>4.1f} s   process {found['process_mib']:>5,.0f} MiB"
            )
        print(
            f"{size}: {row['ratio']:.2f} times {row['fastest_peer']} "
            f"({row['ratio_least']:.2f} .. {row['ratio_most']:.2f})",
            flush=True,
        )
    keep("peers.json", {"rows": rows})
    if slow := [row["size"] for row in rows if row["ratio"] < arguments.least]:
        sys.exit(f"less than {arguments.least:g} times the fastest peer: {', '.join(slow)}")


if __name__ == "__main__":
    main()
