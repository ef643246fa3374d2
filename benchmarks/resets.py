"""Speed of training with each way of resetting, in environments whose resets are expensive.

    python -m benchmarks.resets                      # all rows
    python -m benchmarks.resets navix/empty          # one

Needs the libraries of the rows (`make adapters` installs them in .venv-adapters). All ways of a row
are timed in turn, a block each. Prints steps per second and ratios to the first way. Writes
benchmarks/results/resets.json (ignored by git).
"""

import argparse
import statistics
import sys

from benchmarks.blocks import keep, serve
from benchmarks.peers.__main__ import race
from benchmarks.speed import Setting, Timed

# env: sizes
ROWS: dict[str, list[str]] = {
    "craftax/classic": ["arch.total_num_envs=1024", "system.rollout_length=64"],
    "craftax/symbolic": ["arch.total_num_envs=64", "system.rollout_length=32"],
    "xminigrid/empty": [],
    "navix/empty": [],
    "navix/door_key": [],
    "jumanji/maze": [],
}
WAYS = {
    "each": ["env.resets=each"],
    "optimistic": ["env.resets=optimistic", "env.reset_ratio=16"],
    "cached": ["env.resets=cached"],
    "pool": ["env.resets=pool"],
}


def serve_way(row: str, way: str) -> None:
    """Compile the training program of a row and run blocks of it."""
    setting = Setting([f"env={row}", *ROWS[row], *WAYS[way]], 16_384)
    timed = Timed(setting, "arch.total_timesteps=1e9")
    serve(timed.block, timed.steps, timed.program.seconds)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", nargs="*", default=ROWS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve_way(arguments.rows[0], arguments.serve)
        return
    found = {}
    for row in arguments.rows:
        command = [sys.executable, "-m", "benchmarks.resets", row, "--serve"]
        commands = {way: [*command, way] for way in arguments.ways}
        raced = race(commands, arguments.rounds, warm_ups=2)
        base = raced[arguments.ways[0]].speeds
        found[row] = {
            way: statistics.median(contestant.speeds) for way, contestant in raced.items()
        }
        for way, contestant in raced.items():
            ratios = [mine / other for mine, other in zip(contestant.speeds, base, strict=True)]
            ratio, seconds = statistics.median(ratios), contestant.compile_seconds
            print(
                f"{row:17} {way:11} {found[row][way]:9,.0f} steps/s, {ratio:5.2f} of "
                f"{arguments.ways[0]}, compiled in {seconds:.0f} s",
                flush=True,
            )
    keep("resets.json", found)


if __name__ == "__main__":
    main()
