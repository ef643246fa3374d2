"""Returns of this system and of another one, row by row: the command line that benchmarks share."""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
Run = Callable[[str, dict[str, Any], int], list[float]]  # of a row: name, work, number of seeds


def compare(
    description: str,
    file: str,
    rows: Mapping[str, dict[str, Any]],
    systems: Mapping[str, Run],
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
