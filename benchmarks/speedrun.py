"""Seconds from the shell to a policy that reaches a return.

    python -m benchmarks.speedrun cartpole                     # to 475, five seeds in turn
    python -m benchmarks.speedrun breakout --seeds 101         # to 40, one seed
    python -m benchmarks.speedrun ant --keep                   # to 5,000; appends to the history
    python -m benchmarks.speedrun cartpole --cached            # compiled programs are there already
    python -m benchmarks.speedrun --table                      # the history as Markdown

A run is a process of its own. Its time includes Python, imports, compilation, training and
evaluations, up to the first whose mean return over 128 episodes reaches the number. Every run
compiles its programs. With `--cached`, a run that is not timed fills a new cache first.
The history is benchmarks/measured/speedrun.jsonl.
"""

import argparse
import dataclasses
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.blocks import ROOT, say

HISTORY = ROOT / "benchmarks" / "measured" / "speedrun.jsonl"
SEEDS = (101, 102, 103, 104, 105)


@dataclasses.dataclass(frozen=True)
class Goal:
    """A mean return of an evaluation, and the settings that reach it."""

    value: float
    settings: tuple[str, ...]


GOALS = {
    "cartpole": Goal(
        475,
        (
            *("env=cartpole", "arch.total_num_envs=8", "system.rollout_length=32"),
            *("system.num_minibatches=1", "system.epochs=20", "arch.num_updates=384"),
            *("arch.num_evaluation=48", "arch.compiler=quick"),  # after every 2,048 steps
        ),
    ),
    "breakout": Goal(  # evaluated after every 49,152 steps
        40, ("env=breakout", "arch.num_updates=246", "arch.num_evaluation=41")
    ),
    "ant": Goal(5000, ("env=brax/ant", "arch.num_evaluation=50")),  # after 1,000,000 steps
}
COMMON = ("arch.num_eval_episodes=128", "arch.absolute_metric=false", "arch.evaluate_first=false")


def settings_of(goal: Goal, seed: int, more: Sequence[str] = ()) -> list[str]:
    """What a run of a seed is given."""
    return [*goal.settings, *COMMON, f"arch.seed={seed}", *more]


def train(goal: Goal, settings: Sequence[str]) -> None:
    """Train in this process up to the goal, and say so in a line of JSON as soon as it is there."""
    import jaxppo  # here, since its start is part of what is timed

    def reached(block: jaxppo.Block) -> bool:
        value = block.evaluation["episode_return"]
        if value >= goal.value:
            say({"steps": block.steps, "return": value})
        return bool(value >= goal.value)

    jaxppo.train(list(settings), on_block=reached, progress=False)


def race(name: str, settings: Sequence[str], cache: Path | None) -> dict[str, Any] | None:
    """Seconds, steps and return of a new process that trains up to a goal; None if it fails to."""
    settings = [*settings, f"arch.compile_cache={'null' if cache is None else cache}"]
    command = [sys.executable, "-m", "benchmarks.speedrun", name, "--run", *settings]
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        found = next((json.loads(x) for x in process.stdout if x.startswith("{")), None)
        seconds = time.perf_counter() - start
    return found and {"seconds": round(seconds, 2), **found}


def measure(name: str, seeds: Sequence[int], more: Sequence[str], cached: bool) -> dict[str, Any]:
    """Run all seeds in turn; an entry of the history."""
    from benchmarks.results import machine  # imports what a run should not wait for

    found: dict[int, dict[str, Any] | None] = {}
    load = os.getloadavg()[0]  # other work on the machine makes runs slower
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) if cached else None
        given = [settings_of(GOALS[name], seed, more) for seed in seeds]
        if cached:
            race(name, given[0], cache)
        for seed, settings in zip(seeds, given, strict=True):
            found[seed] = race(name, settings, cache)
            print(f"{name}, seed {seed}: {_words(found[seed])}", flush=True)
    asked = [*(["--cached"] if cached else []), *(["--set", *more] if more else [])]
    asked += ["--seeds", *map(str, seeds)] if [*seeds] != [*SEEDS] else []
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "goal": name,
        "return": GOALS[name].value,
        **machine(),
        "command": " ".join(["python -m benchmarks.speedrun", name, *asked]),
        "settings": settings_of(GOALS[name], seeds[0], more),
        "cached": cached,
        "load_before": round(load, 1),
        "runs": {str(seed): run for seed, run in found.items()},
    }


def _words(run: dict[str, Any] | None) -> str:
    if run is None:
        return "not reached"
    return f"{run['seconds']:.1f} s, {run['steps']:,} steps, {run['return']:.1f}"


def table(history: Sequence[dict[str, Any]]) -> str:
    """The Markdown of the page, a line an entry."""
    lines = [
        "| goal | median | slowest seed | seeds | steps, median | date | machine | command |",
        f"|{' --- |' * 8}",
    ]
    for entry in history:
        runs = [run for run in entry["runs"].values() if run]
        reached = f"{len(runs)} of {len(entry['runs'])}"
        if runs:
            seconds = [run["seconds"] for run in runs]
            times = f"{statistics.median(seconds):.1f} s | {max(seconds):.1f} s"
            steps = f"{int(statistics.median(run['steps'] for run in runs)):,}"
        else:
            times, steps = "not reached | ", ""
        where = f"{entry['machine']}, jax {entry['jax']}, load {entry.get('load_before', '?')}"
        lines.append(
            f"| {entry['goal']} to {entry['return']:,} | {times} | {reached} | {steps} "
            f"| {entry['date']} | {where} | `{entry['command']}` |"
        )
    return "\n".join([*lines, ""])


def main() -> int:
    """Run what the command line asks for; the exit status says whether all seeds got there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("goal", nargs="?", choices=sorted(GOALS))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="other settings")
    parser.add_argument("--cached", action="store_true", help="with programs from a cache")
    parser.add_argument("--keep", action="store_true", help="append to the history")
    parser.add_argument("--table", action="store_true", help="print the history")
    parser.add_argument("--run", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.table:
        print(table([json.loads(line) for line in HISTORY.read_text().splitlines()]))
        return 0
    if arguments.goal is None:
        parser.error(f"name a goal: {', '.join(GOALS)}")
    if arguments.run:
        train(GOALS[arguments.goal], arguments.run)
        return 0
    found = measure(arguments.goal, arguments.seeds, arguments.set, arguments.cached)
    print(table([found]))
    if arguments.keep:
        with HISTORY.open("a") as file:
            file.write(json.dumps(found) + "\n")
    return int(None in found["runs"].values())


if __name__ == "__main__":
    sys.exit(main())
