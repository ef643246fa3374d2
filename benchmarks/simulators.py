"""Environments that are not JAX: this system and others on the same work, block by block in turn.

    python -m benchmarks.simulators                      # all rows
    python -m benchmarks.simulators CartPole-v1:8 slow:8

A row is an environment and how many of it: `CartPole-v1:8`, `HalfCheetah-v5:8` (gymnasium[mujoco]
in both environments). `slow:8` is CartPole whose step takes 1 ms longer, without actors and with
one or two; `slow-wide:8` learns from it with layers of 512 and more epochs, so that learning takes
about as long as stepping. Prints medians of the rounds and their ratios to stable-baselines3, and
writes benchmarks/results/simulators.json (ignored by git).
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.blocks import serve

ROWS = ["CartPole-v1:8", "CartPole-v1:64", "Acrobot-v1:8", "Acrobot-v1:64", "slow:8", "slow-wide:8"]
OURS = {  # a way of ours -> settings
    "gymnasium": [],
    "gymnasium, 2 processes": ["env.processes=2"],
    "envpool": ["env.library=envpool", "+env.kwargs.num_threads=1"],
    "1 actor": ["arch.actors=1"],
    "2 actors": ["arch.actors=2"],
}
PEERS = {"stable-baselines3": "sb3_gymnasium", "torch, envpool": "torch_envpool"}
RESULTS = Path(__file__).parent / "results"
SECONDS = 2.0  # of a block, about


def shape(row: str) -> dict[str, Any]:
    """The work of a row: 4 epochs of 4 minibatches, or 10 of 32; two layers of tanh."""
    name, _, count = row.partition(":")
    num = int(count or 8)
    discrete = name in ("CartPole-v1", "Acrobot-v1", "slow", "slow-wide")
    many = not discrete or name == "slow-wide"
    length = (1024 if num < 64 else 2048) // num if discrete else 256
    return {
        "name": name,
        "num_envs": num,
        "rollout_length": length,
        "minibatches": 32 if many else 4,
        "epochs": 10 if many else 4,
        "width": 512 if name == "slow-wide" else 64,
        "normalize": not discrete,
    }


def settings_of(row: str) -> list[str]:
    """Our command line for a row."""
    work = shape(row)
    name = work["name"]
    slow = name.startswith("slow")
    env = ["env.target=benchmarks.simulators.Slow"] if slow else [f"env.name={name}"]
    sizes = f"layer_sizes=[{work['width']},{work['width']}]"
    normalize = str(work["normalize"]).lower()
    return [
        *("env=gymnasium", *env, f"arch.total_num_envs={work['num_envs']}"),
        *(f"system.rollout_length={work['rollout_length']}", f"system.epochs={work['epochs']}"),
        *(f"system.num_minibatches={work['minibatches']}", "system.actor_lr=2.5e-4"),
        *("system.critic_lr=2.5e-4", f"system.normalize_observations={normalize}"),
        *(f"system.normalize_rewards={normalize}", "network.actor_torso.activation=tanh"),
        *("network.critic_torso.activation=tanh", f"network.actor_torso.{sizes}"),
        *(f"network.critic_torso.{sizes}", "arch.max_eval_steps=1000"),
    ]


def __getattr__(name: str) -> Any:
    """`Slow`: CartPole whose step takes 1 ms longer, in which another thread may run."""
    if name != "Slow":
        raise AttributeError(name)
    import gymnasium
    from gymnasium.envs.classic_control import CartPoleEnv

    class Slow(CartPoleEnv):
        def step(self, action: Any) -> Any:
            time.sleep(1e-3)
            found: Any = super().step(action)  # type: ignore[no-untyped-call]
            return found

    assert issubclass(Slow, gymnasium.Env)
    return Slow


def train(row: str, way: str) -> None:
    """Serve blocks of our training, see `blocks.serve`."""
    import jax

    from benchmarks.speed import Setting, Timed

    work = shape(row)
    steps = work["num_envs"] * work["rollout_length"]
    start = time.perf_counter()
    timed = Timed(Setting([*settings_of(row), *OURS[way]], steps))
    timed.block()
    took = time.perf_counter()
    timed.block()
    seconds = 10 * SECONDS if work["name"] == "slow-wide" else SECONDS
    updates = max(2, round(seconds / (time.perf_counter() - took)))

    def block() -> None:
        # Actors have collected one rollout while others were timed: it does not count
        for _ in range(updates + way.endswith(("actor", "actors"))):
            timed.block()
        jax.block_until_ready(timed.state)

    serve(block, updates * steps, took - start)
    timed.program.call.close()


def compare(row: str, rounds: int) -> dict[str, Any]:
    """Median steps/s of each system, and of its ratio to stable-baselines3 in the same round."""
    from benchmarks.peers.__main__ import install, race

    work = shape(row)
    slow = work["name"].startswith("slow")
    others = ["1 actor", "2 actors"] if slow else ["envpool"]
    ways = ["gymnasium", "gymnasium, 2 processes", *others]
    commands = {
        way: [sys.executable, "-m", "benchmarks.simulators", row, "--serve", way] for way in ways
    }
    for name, script in PEERS.items():
        if not slow or name == "stable-baselines3":
            python = os.environ.get("PEERS_PYTHON") or install(script, "")
            commands[name] = [python, "-m", f"benchmarks.peers.run_{script}", json.dumps(work)]
    contestants = race(commands, rounds, warm_ups=1)
    base = contestants["stable-baselines3"].speeds
    found: dict[str, Any] = {}
    for name, contestant in contestants.items():
        ratios = [mine / theirs for mine, theirs in zip(contestant.speeds, base, strict=True)]
        found[name] = {
            "steps_per_second": statistics.median(contestant.speeds),
            "ratio": statistics.median(ratios),
        }
        print(f"{row:18} {name:24} {found[name]['steps_per_second']:8,.0f} steps/s", end="")
        print(f"  {found[name]['ratio']:5.2f} x stable-baselines3", flush=True)
    return found


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", nargs="*", default=ROWS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", choices=OURS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        train(given.rows[0], given.serve)
        return
    found = {row: compare(row, given.rounds) for row in given.rows}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "simulators.json").write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
