"""Steady speed, compilation, start-up, memory and phases of the learner: part of `make bench`.

Each setting runs in a process of its own. Its program is compiled once; then blocks of whole
updates are timed, compile apart. Prints tables and writes benchmarks/results/speed.json (ignored by
git).
"""

import argparse
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.blocks import ROOT, SIZES, Size, growth_mib, keep, peak_mib, serve, torsos
from jaxppo.algorithms import acting, gradient_steps, spine
from jaxppo.algorithms.optimizers import optimizer
from jaxppo.config.schema import Config
from jaxppo.kernels.permutations import random_permutation
from jaxppo.launch import composing
from jaxppo.ops import sequences
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import build, compile
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.programs.population import members
from jaxppo.runtime.run.compiling import compile_training
from jaxppo.runtime.run.jobs import prepare
from jaxppo.types import AgentState, Batch, LearnerState, Rollout, System


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is timed: a command line, and about how many environment steps a block has."""

    overrides: list[str]
    steps_per_block: int
    executable: str = "ff_ppo"


TORSOS = {
    "ppo": ("actor_torso", "critic_torso"),
    "pqn": ("critic_torso",),
    "reppo": ("actor_torso", "critic_post_torso"),
}


def of_size(size: Size, algorithm: str = "ppo") -> list[str]:
    """The overrides of a size."""
    return [
        f"arch.total_num_envs={size.num_envs}",
        f"system.rollout_length={size.rollout_length}",
        f"system.num_minibatches={size.num_minibatches}",
        f"system.epochs={size.num_epochs}",
        *("system.normalize_observations=false", "system.normalize_rewards=false"),  # as the peers
        *torsos(size.layers, size.activation, TORSOS[algorithm]),
    ]


def memory(cell: str, length: int) -> Setting:
    """16,384 steps an update, learnt from in sequences of whole rollouts."""
    overrides = [
        *(f"network={cell}_shared", "system.normalize_observations=false"),
        f"arch.total_num_envs={16_384 // length}",
        f"system.rollout_length={length}",
        "system.num_minibatches=4",
        "system.epochs=4",
    ]
    return Setting(overrides, 65_536, "rec_ppo")


SETTINGS = {name: Setting(of_size(size), size.steps_per_block) for name, size in SIZES.items()}
SETTINGS |= {
    f"{name} {algorithm}": Setting(
        of_size(size, algorithm), size.steps_per_block, f"ff_{algorithm}"
    )
    for algorithm in ("pqn", "reppo")
    for name, size in SIZES.items()
}
SETTINGS["M bf16"] = Setting(
    [*of_size(SIZES["M"]), "arch.precision=bf16"], SIZES["M"].steps_per_block
)
SETTINGS |= {
    f"S x {num}": Setting([*of_size(SIZES["S"]), f"arch.num_seeds={num}"], 512_000)
    for num in (16, 32)
}
SETTINGS["S pqn x 16"] = Setting(
    [*of_size(SIZES["S"], "pqn"), "arch.num_seeds=16"], 512_000, "ff_pqn"
)
SETTINGS["cnn"] = Setting(
    ["env=breakout", "network=cnn", "arch.total_num_envs=64", "system.rollout_length=64"], 16_384
)
SETTINGS |= {"lstm": memory("lstm", 128), "lru": memory("lru", 128)}
EXTRA = {f"{c}-1024": memory(c, 1024) for c in ("lstm", "gru", "lru")} | {"gru": memory("gru", 128)}
PHASES_OF = ("S", "M", "L", "cnn")


def compose(setting: Setting, *more: str) -> Config:
    """The configuration that the command line would run."""
    overrides = ["arch.num_evaluation=1", "arch.compile_cache=null", *more]
    return composing.compose(setting.executable, [*setting.overrides, *overrides])


class Timed:
    """A compiled setting whose blocks can be run one after another."""

    def __init__(self, setting: Setting, *more: str) -> None:
        settings = compose(setting, *more)
        self.plan, self.system = prepare(settings)
        configs = members(settings)
        layout = Layout(self.plan, self.system, tuple(range(len(configs))))
        self.state = layout.place(build.begin(self.system, configs, self.plan))
        steps_per_update = self.plan.num_members * self.plan.steps_per_update
        self.updates = max(1, setting.steps_per_block // steps_per_update)
        self.steps = self.updates * steps_per_update
        self.count = layout.place_count(self.updates)
        self.compiler = settings.arch.compiler
        self.total = layout.no_metrics()
        self.program = compile_training(layout, configs)
        flops = (self.program.matmul_flops or 0) * self.plan.num_devices
        self.gflop_per_step = flops / steps_per_update / 1e9

    def block(self) -> None:
        """Train on from where the last block ended."""
        self.state, self.total = self.program.call(self.state, self.total, self.count)
        jax.block_until_ready(self.state)


def measure(name: str, num_blocks: int, *more: str) -> dict[str, Any]:
    """Median and range of steady steps per second of one setting, and what the program costs."""
    timed = Timed({**SETTINGS, **EXTRA}[name], *more)
    grown = growth_mib(timed.block)
    state = sum(x.nbytes for x in jax.tree.leaves(timed.state))
    speeds = [timed.steps / seconds(timed.block) for _ in range(num_blocks)]
    row = {
        "setting": name,
        "devices": timed.plan.num_devices,
        "steps_per_second": statistics.median(speeds),
        "slowest": min(speeds),
        "fastest": max(speeds),
        "blocks": num_blocks,
        "compile_seconds": timed.program.seconds,
        "program_mib": (timed.program.peak_bytes or 0) * timed.plan.num_devices / 2**20,
        "process_mib": peak_mib(),
        "estimated_growth_mib": (timed.program.peak_bytes or 0) * timed.plan.num_devices / 2**20
        - state / 2**20,
        "growth_mib": grown,
        "gflop_per_step": timed.gflop_per_step,
    }
    if name in PHASES_OF and not more:
        row["phases"] = phases(timed)
    return row


def seconds(function: Callable[..., object], *args: object) -> float:
    """That a call takes until its arrays are there."""
    start = time.perf_counter()
    jax.block_until_ready(function(*args))
    return time.perf_counter() - start


def phases(timed: Timed) -> dict[str, float]:
    """Seconds of an update that each phase takes when it runs alone, as a program of its own.

    `update` is all of them together. What does not add up is what the compiler saves, or loses, by
    seeing all at once.
    """
    built = dataclasses.replace(timed.system, axes=())
    state = LearnerState(
        agent=jax.tree.map(lambda x: x[0, 0], timed.state.agent),
        acting=jax.tree.map(lambda x: x[0, 0, 0], timed.state.acting),
    )
    _, rollout = jax.jit(partial(acting.collect, built))(state.agent, state.acting)
    batch = jax.jit(partial(targets, built))(state.agent, rollout)
    programs: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "update": (partial(spine.update, built), (state,)),
        "act": (partial(act, built), (state, rollout)),
        "environment": (partial(step, built), (state, rollout)),
        "advantages": (partial(targets, built), (state.agent, rollout)),
        "shuffle": (partial(shuffle, built), (state, batch)),
        "gradients": (partial(gradients, built), (state, batch)),
    }
    found = {}
    for phase, (function, args) in programs.items():
        repeats = max(1, timed.updates // 4)
        lowered = jax.jit(partial(repeat, function, repeats)).lower(*args)
        options = compile.options(timed.compiler, devices.platform())
        program = lowered.compile(compiler_options=options)
        jax.block_until_ready(program(*args))
        found[phase] = statistics.median(seconds(program, *args) for _ in range(5)) / repeats
    return found


def repeat(function: Callable[..., Any], times: int, *args: Any) -> Any:
    """`function(*args)` so many times, each of which the compiler takes for different."""

    def again(_: int, carry: Any) -> Any:
        args, _ = carry
        args, output = jax.lax.optimization_barrier((args, function(*args)))
        return args, output

    output = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, *args))
    return jax.lax.fori_loop(0, times, again, (args, output))[1]


def act(system: System, state: LearnerState, rollout: Rollout) -> Any:
    """A rollout's actions, on its observations."""
    keys = jax.random.split(state.acting.key, system.rollout_length)

    def one(carry: Any, xs: Any) -> Any:
        key, obs, reset = xs
        return acting.act(system, state.agent.policy, carry, obs, reset, key)[:2]

    steps = rollout.steps
    return jax.lax.scan(one, state.acting.carry, (keys, steps.obs, steps.reset))[1]


def step(system: System, state: LearnerState, rollout: Rollout) -> Any:
    """A rollout's environment steps, with its actions."""
    shape = (system.rollout_length, system.num_envs)
    keys = jax.random.split(state.acting.key, shape)

    def one(env_state: Any, xs: Any) -> Any:
        return system.env.step(xs[0], env_state, xs[1])

    return jax.lax.scan(one, state.acting.env_state, (keys, rollout.steps.action))[1]


def targets(system: System, agent: AgentState, rollout: Rollout) -> Batch:
    """What gradient steps read of a rollout."""
    agent, rollout = spine.scale_rewards(system, agent, rollout)
    _, steps, _ = system.algorithm.targets(system, agent, rollout)
    carry = sequences.first(rollout.steps.carry, system.sequence_length)
    return Batch(carry=carry, steps=sequences.cut(steps, system.sequence_length))


def shuffle(system: System, state: LearnerState, batch: Batch) -> Any:
    """Every minibatch of all epochs: its order, and its transitions."""
    num = batch.steps.reset.shape[1]

    def epoch(_: None, key: jax.Array) -> Any:
        order = random_permutation(key, num).reshape(system.num_minibatches, -1)
        take = partial(gradient_steps.select, system, state.agent, batch)
        return None, jax.lax.scan(lambda _, i: (None, take(i)), None, order)[1]

    return jax.lax.scan(epoch, None, jax.random.split(state.acting.key, system.epochs))[1]


def gradients(system: System, state: LearnerState, batch: Batch) -> Any:
    """As many gradient steps, all on one minibatch."""
    num = batch.steps.reset.shape[1] // system.num_minibatches
    minibatch = Batch(
        carry=jax.tree.map(lambda x: x[:num], batch.carry),
        steps=jax.tree.map(lambda x: x[:, :num], batch.steps),
    )
    params, opt_state = state.agent.policy.params, state.agent.opt_state
    update = optimizer(system, state.agent).update

    def one(carry: Any, _: None) -> Any:
        params, opt_state = carry
        policy = dataclasses.replace(state.agent.policy, params=params)
        agent = dataclasses.replace(state.agent, policy=policy)
        grads = gradient_steps.gradient(system, agent, minibatch)[0]
        updates, opt_state = update(grads, opt_state, params)
        return (jax.tree.map(jnp.add, params, updates), opt_state), None

    steps = system.epochs * system.num_minibatches
    return jax.lax.scan(one, (params, opt_state), None, steps)[0]


def matmul_rate() -> float:
    """The machine's float32 GFLOP/s, in its best product of square matrices."""
    rates = []
    for size in (256, 512, 1024, 2048):
        a = jax.random.normal(jax.random.key(0), (size, size))
        num = max(1, 2048**3 // size**3)
        chain = jax.jit(lambda a, n=num: jax.lax.fori_loop(0, n, lambda _, b: a @ b * 1e-3, a))
        jax.block_until_ready(chain(a))
        best = min(seconds(chain, a) for _ in range(5))
        rates.append(2 * size**3 * num / best / 1e9)
    return max(rates)


def start_up(cache: str) -> float:
    """Seconds from the shell to the first finished update of README's command."""
    command = [
        *(sys.executable, "-m", "jaxppo.ff_ppo", "env=cartpole", "arch.total_num_envs=4096"),
        *("arch.num_updates=10", f"arch.compile_cache={cache}"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert process.stdout is not None
        for line in process.stdout:
            if " steps/s" in line:
                break
        taken = time.perf_counter() - start
        process.stdout.read()
        process.wait()
    return taken


def in_a_process(
    name: str, num_blocks: int, more: list[str], environment: dict[str, str] | None = None
) -> dict[str, Any]:
    """`measure`, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.speed", "--one", name, "--blocks", str(num_blocks)]
    done = subprocess.run(
        [*command, *(["--set", *more] if more else [])],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure every setting in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "settings", nargs="*", default=list(SETTINGS), help=f"of these, or {list(EXTRA)}"
    )
    parser.add_argument("--blocks", type=int, default=7, help="timed blocks of each setting")
    parser.add_argument("--set", nargs="*", default=[], help="further settings, key=value")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    devices.prepare()
    if arguments.serve:
        timed = Timed(SETTINGS[arguments.serve], *arguments.set)
        timed.block()
        serve(timed.block, timed.steps, timed.program.seconds)
        return
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.blocks, *arguments.set)))
        return
    rate, kind = matmul_rate(), jax.local_devices()[0].device_kind
    cores = os.cpu_count()
    print(f"jax {jax.__version__}, {kind}, {cores} cores, float32 products: {rate:.0f} GFLOP/s")
    print("setting      steps/s (slowest .. fastest)   of products'   compile  program  process")
    rows = []
    for name in arguments.settings:
        row = in_a_process(name, arguments.blocks, arguments.set)
        row["of_limit"] = row["steps_per_second"] * row["gflop_per_step"] / rate
        rows.append(row)
        print(
            f"{name:<9} {row['steps_per_second']:>10,.0f} "
            f"({row['slowest']:,.0f} .. {row['fastest']:,.0f})   {row['of_limit']:>5.0%}   "
            f"{row['compile_seconds']:>6.1f} s {row['program_mib']:>5.0f} MiB "
            f"{row['process_mib']:>5.0f} MiB",
            flush=True,
        )
    print("\nmilliseconds of an update, each phase as a program of its own")
    for row in rows:
        if found := row.get("phases"):
            whole = found["update"]
            each = (f"{k} {v * 1e3:.2f} ({v / whole:.0%})" for k, v in found.items())
            print(f"{row['setting']:<4} {'  '.join(each)}")
    with tempfile.TemporaryDirectory() as cache:
        cold, *again = (start_up(cache) for _ in range(4))
    warm = statistics.median(again)
    print(f"\nfrom the shell to the first update: {cold:.1f} s; compiled before: {warm:.1f} s")
    results = {
        "jax": jax.__version__,
        "python": platform.python_version(),
        "device": kind,
        "cores": cores,
        "matmul_gflop_per_second": rate,
        "cold_start_seconds": cold,
        "warm_start_seconds": warm,
        "rows": rows,
    }
    keep("speed.json", results)


if __name__ == "__main__":
    main()
