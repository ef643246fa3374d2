"""Returns of this system and of another one, row by row: the command line that benchmarks share."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.blocks import RESULTS

Run = Callable[[str, dict[str, Any], int], list[float]]  # of a row: name, work, number of seeds


def last_evaluation(settings: list[str]) -> dict[str, Any]:
    """Train with `jaxppo.ff_ppo`; the event of the evaluation after the last update."""
    with tempfile.TemporaryDirectory() as folder:
        where = [f"hydra.run.dir={folder}", "logger.plot=false", "checkpoint.enabled=false"]
        command = [sys.executable, "-m", "jaxppo.ff_ppo", *settings, *where]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        events = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").open()]
    (last,) = (event for event in events if event["event"] == "eval" and event["steps"])
    return last


def of_peer(python: str, peer: str, work: dict[str, Any], seeds: int) -> list[float]:
    """What a script of benchmarks.peers prints last for each seed, one run after another."""
    found = []
    for seed in range(seeds):
        given = json.dumps({"seed": seed, **work})
        command = [python, "-m", f"benchmarks.peers.{peer}", given]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(float(done.stdout.split()[-1]))
    return found


def compare(
    description: str, file: str, rows: Mapping[str, dict[str, Any]], systems: Mapping[str, Run]
) -> None:
    """Run the rows that the command line names with each system; print and append the returns."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("rows", nargs="*", default=list(rows))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    for name in given.rows:
        for system, run in systems.items():
            start = time.perf_counter()
            found = run(name, rows[name], given.seeds)
            row = {
                "environment": name,
                "system": system,
                "steps": rows[name]["steps"],
                "returns": found,
                "seconds": time.perf_counter() - start,
            }
            with (RESULTS / file).open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(f"{name:16} {system:18} {statistics.mean(found):9.1f}", end="")
            print(
                f"  of {', '.join(f'{x:.1f}' for x in found)}; {row['seconds']:.0f} s", flush=True
            )
