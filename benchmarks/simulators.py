"""Environments that are not JAX: this system and others on the same work, block by block in turn.

    python -m benchmarks.simulators                      # all rows
    python -m benchmarks.simulators CartPole-v1:8 slow:8

A row is an environment and how many of it: `CartPole-v1:8`, `HalfCheetah-v5:8` (gymnasium[mujoco]
in both environments). `images:8` has frames of 84 x 84 that cost nothing, for the network of
Mnih et al. 2015, with float32 and with `arch.precision=bf16`, on one device and on two, each with
half of the environments (JAX_NUM_CPU_DEVICES=2). `slow:8` is CartPole whose step takes
1 ms longer, without actors and with one or two; `slow-wide:8` learns from it with layers of 512 and
more epochs, so that learning takes about as long as stepping. `uneven:8` has eight actors whose
steps take 5 ms, one of them 50 ms. Rows of 1,024 environments and more compare environments that
are stepped one by one with `env.batch=true`. Prints medians of the rounds and their ratios to
stable-baselines3, in these rows to the first, and writes
benchmarks/results/simulators.json (ignored by git).
"""

import argparse
import json
import os
import statistics
import sys
import threading
import time
from typing import Any

from benchmarks.blocks import keep, serve, torsos

ROWS = [
    *("CartPole-v1:8", "CartPole-v1:64", "Acrobot-v1:8", "Acrobot-v1:64"),
    *("images:8", "slow:8", "slow-wide:8", "uneven:8", "CartPole-v1:1024"),
]
OWN = {
    "images": "Images",
    "slow": "Slow",
    "slow-wide": "Slow",
    "uneven": "Uneven",
}  # -> a name in this module
IMAGE_NETWORK = [
    *("network=cnn", "network.shared_torso.channels=[32,64,64]"),
    *("network.shared_torso.kernel_sizes=[8,4,3]", "network.shared_torso.strides=[4,2,1]"),
    "network.shared_torso.layer_sizes=[512]",
]
OURS = {  # a way of ours -> settings
    "gymnasium": [],
    "gymnasium, 2 processes": ["env.processes=2"],
    "gymnasium, bf16": ["arch.precision=bf16"],
    "gymnasium, 2 devices": [],
    "gymnasium, bf16, 2 devices": ["arch.precision=bf16"],
    "batch, sync": ["env.batch=true", "+env.kwargs.vectorization_mode=sync"],
    "batch": ["env.batch=true"],
    "envpool": ["env.library=envpool", "+env.kwargs.num_threads=1"],
    "1 actor": ["arch.actors=1"],
    "2 actors": ["arch.actors=2"],
    "8 actors": ["arch.actors=8", "arch.max_policy_lag=2"],
    "8 actors, first": ["arch.actors=8", "arch.max_policy_lag=2", "arch.actors_wait=first"],
}
PEERS = {"stable-baselines3": "sb3_gymnasium", "torch, envpool": "torch_envpool"}
MANY = 1024  # environments, from which on batch simulators are compared
SECONDS = 2.0  # of a block, about


def shape(row: str) -> dict[str, Any]:
    """The work of a row: 4 epochs of 4 minibatches, or 10 of 32; `width` is that of two layers."""
    name, _, count = row.partition(":")
    num = int(count or 8)
    discrete = name in ("CartPole-v1", "Acrobot-v1", *OWN)
    many = not discrete or name == "slow-wide"
    length = (1024 if num < 64 else 2048) // num if discrete else 256
    if num >= MANY:
        length = 32
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
    own = name in OWN
    env = [f"env.target=benchmarks.simulators.{OWN[name]}"] if own else [f"env.name={name}"]
    normalize = str(work["normalize"]).lower()
    network = IMAGE_NETWORK if name == "images" else torsos([work["width"]] * 2, "tanh")
    return [
        *("env=gymnasium", *env, f"arch.total_num_envs={work['num_envs']}"),
        *(f"system.rollout_length={work['rollout_length']}", f"system.epochs={work['epochs']}"),
        *(f"system.num_minibatches={work['minibatches']}", "system.actor_lr=2.5e-4"),
        *("system.critic_lr=2.5e-4", f"system.normalize_observations={normalize}"),
        *("system.obs_norm_share=1", f"system.normalize_rewards={normalize}"),
        *(*network, "arch.max_eval_steps=1000"),
    ]


def __getattr__(name: str) -> Any:
    """The classes of `OWN`, which need gymnasium."""
    if name not in OWN.values():
        raise AttributeError(name)
    import gymnasium
    import numpy as np
    from gymnasium.envs.classic_control import CartPoleEnv

    class Images(gymnasium.Env[Any, Any]):
        """One image, and a reward for odd actions, for 200 steps."""

        observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
        action_space = gymnasium.spaces.Discrete(18)
        image = np.random.default_rng(0).integers(0, 255, (84, 84, 4), np.uint8)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.time = 0
            return self.image, {}

        def step(self, action: Any) -> Any:
            self.time += 1
            return self.image, float(action % 2), self.time == 200, False, {}

    class Slow(CartPoleEnv):
        """CartPole whose step takes 1 ms longer, in which another thread may run."""

        def step(self, action: Any) -> Any:
            time.sleep(1e-3)
            return super().step(action)  # type: ignore[no-untyped-call]

    class Uneven(CartPoleEnv):
        """CartPole whose step takes 5 ms longer; in the first that an actor steps, 50 ms."""

        slow: Any = None

        def step(self, action: Any) -> Any:
            if Uneven.slow is None and threading.current_thread().name == "actor":
                Uneven.slow = self
            time.sleep(5e-2 if Uneven.slow is self else 5e-3)
            return super().step(action)  # type: ignore[no-untyped-call]

    return globals().setdefault(name, {"Images": Images, "Slow": Slow, "Uneven": Uneven}[name])


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
        for _ in range(updates + ("actor" in way)):
            timed.block()
        jax.block_until_ready(timed.state)

    serve(block, updates * steps, took - start)
    timed.program.call.close()


def compare(row: str, rounds: int) -> dict[str, Any]:
    """Median steps/s of each system, and of its ratio to stable-baselines3 in the same round."""
    from benchmarks.peers.__main__ import install, race

    work = shape(row)
    own = work["name"] in OWN  # EnvPool does not have them
    many = work["num_envs"] >= MANY
    ways = ["gymnasium", "gymnasium, 2 processes"]
    if work["name"] == "images":
        ways = [way for way in OURS if "bf16" in way or "devices" in way or way == "gymnasium"]
    elif work["name"] == "uneven":
        ways = ["8 actors", "8 actors, first"]
    elif many:
        ways += ["batch, sync", "batch"]
    elif own:
        ways += ["1 actor", "2 actors"]
    else:
        ways += ["envpool"]
    commands = {}
    for way in ways:
        command = [sys.executable, "-m", "benchmarks.simulators", row, "--serve", way]
        on_two = ["env", "JAX_NUM_CPU_DEVICES=2"] if "2 devices" in way else []
        commands[way] = [*on_two, *command]
    for name, script in () if many or work["name"] == "uneven" else PEERS.items():
        if not own or name == "stable-baselines3":
            python = os.environ.get("PEERS_PYTHON") or install(script, "")
            commands[name] = [python, "-m", f"benchmarks.peers.run_{script}", json.dumps(work)]
    contestants = race(commands, rounds, warm_ups=1)
    basis = "stable-baselines3" if "stable-baselines3" in contestants else ways[0]
    base = contestants[basis].speeds
    found: dict[str, Any] = {}
    for name, contestant in contestants.items():
        ratios = [mine / theirs for mine, theirs in zip(contestant.speeds, base, strict=True)]
        found[name] = {
            "steps_per_second": statistics.median(contestant.speeds),
            "ratio": statistics.median(ratios),
        }
        print(f"{row:18} {name:26} {found[name]['steps_per_second']:8,.0f} steps/s", end="")
        print(f"  {found[name]['ratio']:5.2f} x {basis}", flush=True)
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
    keep("simulators.json", found)


if __name__ == "__main__":
    main()
