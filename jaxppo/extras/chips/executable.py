"""Write the compiled programs of a run, for this machine or an accelerator that is not here."""

import dataclasses
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable

from jaxppo.algorithms.axes import vmap_members
from jaxppo.algorithms.spine import warm_up
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config
from jaxppo.envs import is_simulated
from jaxppo.extras.chips import targets
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import compile
from jaxppo.runtime.programs.evaluating import arranged_keys
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.programs.population import members
from jaxppo.runtime.programs.start import place_start
from jaxppo.runtime.run.compiling import check_memory, compile_programs
from jaxppo.runtime.run.jobs import prepare
from jaxppo.runtime.sinks.console import print_lines
from jaxppo.runtime.store import checkpoint
from jaxppo.types import PyTree

FACTS = "programs.json"


def write_executables(config: Config, target: str | None, out: Path) -> None:
    """Write start.bin, train.bin, evaluate.bin, programs.json, load.py and README.md.

    `target` is a chip such as h200, or several (h200:4); None: this process's devices.
    `ConfigError` as for a plan, or if the folder's README.md is of something else.
    """
    if (out / "README.md").exists() and not (out / FACTS).exists():
        raise ConfigError(f"out={out}: has a README.md of something else; choose another folder")
    arch = dataclasses.replace(config.arch, compiler="thorough", compile_cache=None, profile=None)
    config = dataclasses.replace(config, arch=arch)
    with targets.compiling(target), compile.cache_disabled():
        if config.population.selection != "none":
            raise ConfigError(
                f"population.selection={config.population.selection}: selects members between "
                "blocks, which what=executable cannot; export a run without it"
            )
        if config.init_from is not None:
            raise ConfigError(
                f"init_from={config.init_from}: the run began with another one's policy, and these "
                "programs begin with new parameters; export a run without it"
            )
        plan, system = prepare(config)
        if is_simulated(system.env):
            raise ConfigError(
                f"what=executable: {system.env.name} is not written in JAX, so no program can step "
                "it; export its policy: what=policy"
            )
        every = members(config)
        layout = Layout(plan, system, tuple(range(len(every))))
        programs = compile_programs(layout, every)
        check_memory(layout, config, programs.train, programs.evaluate)
        start = _compile_start(layout, every)
        where = target or devices.machine()
    calls = {"start": start, "train": programs.train.call, "evaluate": programs.evaluate.call}
    names = {name: _names(call) for name, call in calls.items()}
    facts = {
        "environment": system.env.name,
        "devices": where,
        "num_devices": plan.num_devices,
        "versions": checkpoint.versions(),
        "updates_per_block": list(plan.updates_per_block),
        "steps_per_update": plan.steps_per_update,
        "num_eval_episodes": config.arch.num_eval_episodes,
        "devices_per_member": plan.devices_per_member,
        "seeds": [member.arch.seed for member in every],
        "programs": names,
        # Which outputs of train are inputs of evaluate, and which output of evaluate are returns
        "policy": [
            names["train"]["outputs"].index(f"[0].agent.policy{name.removeprefix('[0]')}")
            for name in names["evaluate"]["inputs"][:-1]
        ],
        "returns": names["evaluate"]["outputs"].index(".returns"),
    }
    out.mkdir(parents=True, exist_ok=True)
    sizes = []
    for name, call in calls.items():
        content, _, _ = serialize_executable.serialize(call)
        (out / f"{name}.bin").write_bytes(content)
        sizes.append(f"{name}.bin {len(content):,} bytes")
    (out / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    (out / "load.py").write_text(_LOADER, encoding="utf-8")
    (out / "README.md").write_text(_readme(facts), encoding="utf-8")
    print_lines(f"for {where}: {', '.join(sizes)}; {out / 'README.md'} says how to run them")


def _compile_start(layout: Layout, configs: Sequence[Config]) -> Any:
    """Compile what returns (state after warm-up, metrics), and (updates, keys) of each block."""

    def start() -> PyTree:
        seeds = np.asarray([config.arch.seed for config in configs], np.uint32)
        blocks = []
        for block, count in enumerate(layout.plan.updates_per_block):
            keys = devices.shard(arranged_keys(layout, False, seeds, block), layout.devices)
            blocks.append((layout.place_count(count), keys))
        state = place_start(layout, configs)
        if layout.plan.warmup_rollouts:
            num = layout.plan.num_devices
            fill = devices.parallel(partial(vmap_members(warm_up, shared=1), layout.system), num)
            state = fill(state, layout.place_count(layout.plan.warmup_rollouts))
        return (state, layout.no_metrics()), blocks

    program = jax.jit(start, out_shardings=devices.sharding(layout.devices))
    return compile.compile_jit(program, options={}).call


def _names(program: Any) -> dict[str, list[str]]:
    """Return the names of a compiled program's inputs and outputs, in order."""
    found = {"inputs": program.args_info[0], "outputs": program.out_info}
    return {
        way: [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(tree)]
        for way, tree in found.items()
    }


_LOADER = '''"""Train with programs that were compiled elsewhere: python load.py

Loading a program can run any code: load only files that you trust.
"""

import json
from pathlib import Path

import jax
from jax.experimental.serialize_executable import deserialize_and_load

HERE = Path(__file__).parent
FACTS = json.loads((HERE / "programs.json").read_text())
VERSION = FACTS["versions"]["jax"]
if jax.__version__ != VERSION or jax.local_device_count() < FACTS["num_devices"]:
    raise SystemExit(
        f"needs jax {VERSION} and {FACTS['num_devices']} device(s) of {FACTS['devices']}; here are "
        f"jax {jax.__version__} and {jax.local_device_count()}"
    )


def load(name):
    """Return a program that maps arrays to a tuple of arrays, as programs.json names them."""
    num_inputs, num_outputs = (len(FACTS["programs"][name][way]) for way in ("inputs", "outputs"))
    return deserialize_and_load(
        (HERE / f"{name}.bin").read_bytes(),
        jax.tree.structure(((0,) * num_inputs, {})),
        jax.tree.structure((0,) * num_outputs),
        execution_devices=jax.local_devices()[: FACTS["num_devices"]],
    )


jax.numpy.linalg.qr(jax.numpy.eye(2))  # loads the library that start.bin calls
start, train, evaluate = map(load, ("start", "train", "evaluate"))
arrays, steps = start(), 0
state = arrays[: len(FACTS["programs"]["train"]["inputs"]) - 1]
blocks = arrays[len(state) :]
for updates, count, keys in zip(FACTS["updates_per_block"], blocks[::2], blocks[1::2]):
    state = train(*state, count)
    steps += updates * FACTS["steps_per_update"]
    returns = evaluate(*(state[i] for i in FACTS["policy"]), keys)[FACTS["returns"]]  # [D, P, E]
    if FACTS["devices_per_member"] > 1:  # which play at least as many episodes as asked for
        rows = returns.swapaxes(0, 1).reshape(returns.shape[1], -1)
        returns = rows[:, : FACTS["num_eval_episodes"]]
    print(f"{steps:,} steps: mean return {returns.mean():.2f}")
'''


def _readme(facts: dict[str, Any]) -> str:
    """Return the README.md, which says how to run the programs."""
    versions = facts["versions"]
    return f"""# Training in {facts["environment"]}, compiled for {facts["devices"]}

Three programs of jaxppo, as the compiler's machine code. They run on {facts["num_devices"]}
device(s) of that kind, with jax {versions["jax"]} and jaxlib {versions["jaxlib"]}, and need no
jaxppo and no compilation. `python load.py` trains and prints the mean return after each block.

| program | inputs | outputs |
|---|---|---|
| `start.bin` | none | the first state; the updates and random keys of each block |
| `train.bin` | the state, a number of updates | the state after so many updates |
| `evaluate.bin` | the policy, random keys | returns, lengths and ends of episodes |

`programs.json` names every array in order; all have the leading axes [devices, members]. The seeds
are {", ".join(map(str, facts["seeds"]))}. After the loop of `load.py`, the arrays `state[i]` for
`i in FACTS["policy"]` are the trained policy: save them, as with `numpy.savez`. Checkpoints, logs
and the choice of the best policy are jaxppo's and not in the programs.

Loading a program can run any code: load only files that you trust.
"""
