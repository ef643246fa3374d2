"""Whether a change of the code changes the programs: lower them, and compare with those of before.

    python -m benchmarks.programs --save DIR       # in the old commit
    python -m benchmarks.programs --compare DIR    # in the new one
    ... --run                                      # where the text must change

Lowers the programs of training, evaluation, warm-up and the first state for every setting and
platform, without compiling. Two programs are `equal` if their StableHLO is the same text, and
`reordered` if they compute the same from the same operands but list independent operations in
another order. Otherwise the new text is written beside the old one, for `diff`. Exit status 1 if
any program differs. With `--run`, settings are trained for 20 updates on this CPU instead, and
agents, metrics and random keys are compared bit for bit.
"""

import argparse
import dataclasses
import gzip
import hashlib
import os
import re
import sys
from functools import partial
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest import mock

# As many devices as the largest setting uses; read when JAX is first used
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # environments and an algorithm of a user's kind

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import jaxppo  # noqa: E402
from jaxppo.algorithms.metrics import leaves  # noqa: E402
from jaxppo.config.messages import named  # noqa: E402
from jaxppo.config.plan import num_members  # noqa: E402
from jaxppo.config.plan import plan as make_plan  # noqa: E402
from jaxppo.config.schema import Config  # noqa: E402
from jaxppo.envs import is_simulated  # noqa: E402
from jaxppo.kernels.platforms import compiling_for  # noqa: E402
from jaxppo.launch.composing import compose  # noqa: E402
from jaxppo.runtime.programs import build, compile, start  # noqa: E402
from jaxppo.runtime.programs.placement import Layout  # noqa: E402
from jaxppo.runtime.programs.population import members  # noqa: E402
from jaxppo.runtime.run import compiling  # noqa: E402

PLATFORMS = ("cpu", "cuda", "tpu")
RUN = "run"  # in the place of a platform: train here
SMALL = [
    *("arch.total_num_envs=16", "system.rollout_length=8", "arch.num_updates=4"),
    *("arch.num_evaluation=2", "arch.num_eval_episodes=4", "arch.compile_cache=null"),
]
RAW = "system.normalize_observations=false"
NORMALIZED = [
    *("system.normalize_observations=true", "system.obs_norm_share=1"),
    "system.normalize_values=true",
    *("system.normalize_rewards=true", "system.obs_norm_warmup_steps=128"),
]


@dataclasses.dataclass(frozen=True)
class Setting:
    """A command line, and the number of devices."""

    overrides: list[str]
    command: str = "ff_ppo"
    num_devices: int = 1


def _env(name: str, *more: str, command: str = "ff_ppo", num_devices: int = 1) -> Setting:
    return Setting([f"env={name}", *more], command, num_devices)


def _own(name: str, *more: str, command: str = "ff_ppo") -> Setting:
    overrides = [f"env.target=envs.{name}", "env.name=null", "arch.max_eval_steps=20", RAW, *more]
    return Setting(overrides, command)


def _cartpole(*more: str, **others: Any) -> Setting:
    return _env("cartpole", "system.num_minibatches=4", *more, **others)


_memory = partial(_env, "cartpole_no_velocity", "system.num_minibatches=2", command="rec_ppo")
_pqn = partial(_cartpole, command="ff_pqn")
_simulator = partial(_env, "gymnasium", "system.num_minibatches=4", RAW)


def whole_loss(agent: Any, steps: Any, distribution: Any, log_prob: jax.Array) -> jax.Array:
    """Return an objective of a user's kind, which reads the acting distribution."""
    kl = steps.distribution.kl_divergence(distribution)
    return kl * agent.hyperparameters.clip_eps - log_prob * steps.advantage


SETTINGS = {
    "plain": _cartpole(),
    "continuous": _env("pendulum", "system.num_minibatches=4"),
    "multi-discrete": _own("Parts"),
    "tree of actions": _own("Mixed"),
    "tree of observations": _own("Echo"),
    "masked": _own("Masked"),
    "pictures": _env("breakout", "network=cnn", "system.num_minibatches=4"),
    "shared": _cartpole("network=mlp_shared"),
    "histogram critic": _cartpole("network/critic_head=categorical"),
    "beta": _env("pendulum", "network/actor_head=beta"),
    "noisy": _cartpole("network/torso@network.actor_torso=noisy_mlp"),
    "bf16": _cartpole("arch.precision=bf16"),
    "U": _cartpole("arch.update_batch_size=2"),
    "P": _cartpole("arch.num_seeds=3"),
    "D": _cartpole("arch.num_seeds=3", "arch.update_batch_size=2", num_devices=2),
    "D members": _cartpole("arch.num_seeds=4", num_devices=2),
    "normalized": _env("pendulum", "system.num_minibatches=4", *NORMALIZED, num_devices=2),
    "frozen statistics": _own("Parts", "system.normalize_observations=true"),
    "self-play": Setting(
        [
            "env.target=own_games.Paid",
            "env.name=null",
            "env.opponent=self",
            "arch.max_eval_steps=20",
        ]
    ),
    "clip dimensions": _own("Parts", "system.objective=clip_dimensions"),
    "penalty": _cartpole("system.objective=penalty", "system.adapt_kl_coef=true"),
    "dpo": _cartpole("system.objective=dpo", "system.value_loss=huber"),
    "reinforce objective": _cartpole("system.objective=reinforce", "system.epochs=1"),
    "own objective": _cartpole("system.objective=benchmarks.programs.whole_loss"),
    "own algorithm": _cartpole("system.algorithm=reinforce.Reinforce", "network=mlp"),
    "vtrace": _cartpole("system.advantages=vtrace", "system.recompute_targets=true"),
    "target_kl": _cartpole("system.target_kl=0.02", "arch.num_seeds=2"),
    "skip": _cartpole("arch.on_nonfinite=skip", *NORMALIZED),
    "skip and stop": _cartpole("arch.on_nonfinite=skip", "system.target_kl=0.02"),
    "adaptive rates": _cartpole(
        "system.adapt_learning_rates=true", "system.decay_learning_rates=false"
    ),
    "adaptive rates and stop": _cartpole(
        *("system.adapt_learning_rates=true", "system.decay_learning_rates=false"),
        *("system.target_kl=0.02", "arch.update_batch_size=2"),
        num_devices=2,
    ),
    "schedules": _cartpole("system.schedules.ent_coef.end=0", "system.schedules.gamma.end=0.9"),
    "clipping": _cartpole(
        "system.clip_value_loss=true", "system.clip_together=true", "system.clip_eps_high=0.3"
    ),
    "standardize minibatch": _cartpole("system.standardize_advantages=minibatch"),
    "microbatches": _cartpole("system.microbatch_size=8"),
    "own optimizer": _cartpole("system.optimizer=optax.lion"),
    "sampled evaluation": _cartpole("arch.evaluation_greedy=false"),
    "randomize": _cartpole("env.randomize.length=[0.4,0.6]"),
    "curriculum": _cartpole("env.curriculum.length={start:0.4,end:0.6}"),
    "frames": _cartpole("env.frame_stack=3"),
    "lstm": _memory("network=lstm"),
    "gru shared": _memory("network=gru_shared"),
    "lru": _memory("network=lru", "arch.num_seeds=2"),
    "gtrxl": _memory("network=gtrxl"),
    "burn-in": _memory(
        "network=gru", "system.sequence_length=4", "system.burn_in=2", "system.target_kl=0.02"
    ),
    "recompute carries": _memory(
        "network=gru", "system.sequence_length=4", "system.recompute_carries=true"
    ),
    "recompute targets": _memory("network=gru", "system.recompute_targets=true"),
    "pqn": _pqn(),
    "pqn normalized": _pqn(*NORMALIZED[:1], NORMALIZED[-1]),
    "pqn dueling double": _pqn("network.q_head.dueling=true", "network.q_head.double=true"),
    "pqn histogram": _pqn("network/q_head=categorical"),
    "pqn quantiles": _pqn("network/q_head=quantile"),
    "pqn munchausen": _pqn("system.munchausen=true", "system.recompute_targets=true"),
    "pqn memory": _memory("network=lstm", command="rec_pqn"),
    "reppo": _env("pendulum", "system.num_minibatches=4", command="ff_reppo"),
    "reppo discrete": _cartpole(command="ff_reppo"),
    "reppo memory": _memory("network=gru", command="rec_reppo"),
    "simulator": _simulator(),
    "simulator, own objective": _simulator("system.objective=benchmarks.programs.whole_loss"),
    "simulator and actors": _simulator("arch.actors=2", "arch.num_seeds=2"),
}
WHOLE = ("plain", "normalized", "gru shared", "pqn")  # also as one pure function


def lowered(name: str, platform: str) -> dict[str, tuple[str, str]]:
    """Return the text and the fingerprint of each program of a setting."""
    setting = SETTINGS[name]
    config = compose(setting.command, [*SMALL, *setting.overrides])
    found: dict[str, tuple[str, str]] = {}

    if platform == RUN:
        return {"bits": ("", trained(config, setting.num_devices))}

    def lower(program: Any, *args: Any, options: dict[str, Any]) -> compile.Program:
        module = program.trace(*args).lower(lowering_platforms=(platform,))
        module = module.compiler_ir("stablehlo")
        found[f"{len(found)}"] = without_names(str(module)), fingerprint(module)
        return _not_compiled()

    with compiling_for(platform), mock.patch.object(compile, "compile_jit", lower):
        plan = make_plan(config, setting.num_devices, num_members(config))
        system = build.build(config, plan)
        configs = members(config)
        layout = Layout(plan, system, tuple(range(len(configs))))
        state, *_ = start.training_shapes(layout, configs)
        train = compiling.compile_programs(layout, configs).train
        start.compile_start(layout, configs)
        compiling.warm_up(layout, configs, state, train)
    if name in WHOLE:
        lower(jax.jit(jaxppo.make_train(config)), jax.random.key(0), options={})
    return found


def trained(config: Config, num_devices: int) -> str:
    """Return a hash of agents, metrics and random keys after 20 updates."""
    plan = make_plan(config, num_devices, num_members(config))
    configs = members(config)
    layout = Layout(plan, build.build(config, plan), tuple(range(len(configs))))
    program = compiling.compile_training(layout, configs)
    state = layout.place(build.begin(layout.system, configs, layout.plan))
    state = compiling.warm_up(layout, configs, state, program)
    state, metrics = program.call(state, layout.no_metrics(), layout.place_count(20))
    if is_simulated(layout.system.env):
        program.call.close()
    agent = state.agent
    named_metrics = [(name, x) for name, _, x in sorted(leaves(metrics), key=itemgetter(0))]
    parts = agent.policy, agent.opt_state, agent.algorithm_state, agent.reward_statistics
    found = hashlib.sha256()
    for x in jax.tree.leaves((parts, state.acting.obs, state.acting.key, named_metrics)):
        if isinstance(x, jax.Array):
            is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
            x = jax.device_get(jax.random.key_data(x) if is_key else x).tobytes()
        found.update(x.encode() if isinstance(x, str) else x)
    return found.hexdigest()


def _not_compiled() -> compile.Program:
    nothing: Any = None
    return compile.Program(call=lambda *_: nothing, seconds=0.0, peak_bytes=None, matmul_flops=None)


def without_names(text: str) -> str:
    """Return the text of a module, its functions numbered in the order of their first use."""
    numbers: dict[str, str] = {}

    def number(name: re.Match[str]) -> str:
        return numbers.setdefault(name[0], f"@f{len(numbers)}")

    text = re.sub(r"^module @\S+", "module", text)
    return re.sub(r"(?<=call )@[\w.$-]+|(?<=private )@[\w.$-]+", number, text)


def attribute(operation: Any, name: str) -> Any:
    """Return an attribute; of complex constants, which MLIR's Python cannot read, their text."""
    try:
        return operation.attributes[name]
    except TypeError:
        return str(operation).partition(" = ")[2]


def fingerprint(module: Any) -> str:
    """Return a hash of what a module computes, whatever the order of independent operations."""
    functions = {operation.sym_name.value: operation for operation in module.body.operations}
    known: dict[str, str] = {}

    def of_function(name: str) -> str:
        if name not in known:
            known[name] = of_region(functions[name].regions[0], {})
        return known[name]

    def of_region(region: Any, outer: dict[Any, str]) -> str:
        (block,) = region.blocks
        labels = {**outer, **{x: f"{len(outer)} {x.type}" for x in block.arguments}}
        labels |= {x: f"{labels[x]} {i}" for i, x in enumerate(block.arguments)}
        last = ""
        for operation in block.operations:
            given = {name: attribute(operation, name) for name in operation.attributes}
            if "callee" in given:
                given["callee"] = of_function(given["callee"].value)
            attributes = sorted(f"{name} {value}" for name, value in given.items())
            parts = [
                operation.name,
                *attributes,
                *(labels[x] for x in operation.operands),
                *(of_region(inner, labels) for inner in operation.regions),
            ]
            last = hashlib.sha256("\n".join(parts).encode()).hexdigest()
            labels |= {x: f"{last} {i} {x.type}" for i, x in enumerate(operation.results)}
        return last  # of the terminator, which has all that is returned

    return of_function("main")


def _file(folder: Path, name: str, platform: str, program: str) -> Path:
    return folder / f"{name.replace(' ', '-')}.{platform}.{program}.gz"


def save(folder: Path, job: tuple[str, str]) -> str:
    """Write the programs of a setting and platform."""
    try:
        found = lowered(*job)
    except Exception as error:  # the tool goes on with the others
        return f"{job[0]:<24} {job[1]:<5} FAILED {named(error)[:200]}"
    for program, parts in found.items():
        _file(folder, *job, program).write_bytes(gzip.compress("\n".join(parts[::-1]).encode()))
    return f"{job[0]:<24} {job[1]:<5} saved"


def compare(folder: Path, job: tuple[str, str]) -> str:
    """Return a line that says how the programs of a setting and platform have changed."""
    try:
        verdicts, news = [], lowered(*job)
    except Exception as error:  # the tool goes on with the others
        return f"{job[0]:<24} {job[1]:<5} FAILED {named(error)[:200]}"
    olds = [*folder.glob(_file(folder, *job, "*").name)]
    for program, (text, mark) in news.items():
        file = _file(folder, *job, program)
        if not file.exists():
            verdicts.append("new")
            continue
        old_mark, _, old = gzip.decompress(file.read_bytes()).decode().partition("\n")
        equal, reordered = (text, mark) == (old, old_mark), mark == old_mark
        verdicts.append("equal" if equal else "reordered" if reordered else "DIFFERS")
        if verdicts[-1] == "DIFFERS":
            for suffix, each in ((".old", old), (".new", text)):
                file.with_suffix(suffix).write_text(each)
    verdicts += ["GONE"] * (len(olds) - len(news))
    return f"{job[0]:<24} {job[1]:<5} {' '.join(verdicts)}"


def main() -> None:
    """Save or compare the programs of all settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--save", type=Path, metavar="DIR")
    what.add_argument("--compare", type=Path, metavar="DIR")
    parser.add_argument("--settings", nargs="*", default=[*SETTINGS], metavar="NAME")
    parser.add_argument("--run", action="store_true", help="compare bits after 20 updates")
    parser.add_argument("--platforms", nargs="*", default=PLATFORMS, metavar="PLATFORM")
    arguments = parser.parse_args()
    folder: Path = arguments.save or arguments.compare
    folder.mkdir(parents=True, exist_ok=True)
    platforms = [RUN] if arguments.run else arguments.platforms
    jobs = [(name, platform) for name in arguments.settings for platform in platforms]
    work = partial(save if arguments.save else compare, folder)
    lines = []
    with get_context("spawn").Pool(os.cpu_count(), maxtasksperchild=30) as pool:
        for line in pool.imap(work, jobs):
            print(line, flush=True)
            lines.append(line)
    differ = sum(any(word in line for word in ("DIFFERS", "GONE", "FAILED")) for line in lines)
    print(f"{len(lines) - differ} of {len(lines)} as before")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
