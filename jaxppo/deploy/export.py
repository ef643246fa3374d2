"""Export of programs in StableHLO or ONNX, for use without jaxppo."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from jaxppo.config.fields import ConfigError, setting
from jaxppo.config.importing import is_installed
from jaxppo.config.messages import brief, installing
from jaxppo.config.parse import parse
from jaxppo.config.schema import Config
from jaxppo.config.stored import read_config
from jaxppo.config.trust import check_trust
from jaxppo.deploy.onnx import export_onnx
from jaxppo.deploy.policy import Choice, TrainedPolicy
from jaxppo.envs.forms import limits
from jaxppo.kernels.platforms import compiling_for
from jaxppo.runtime.sinks.console import print_lines
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.directories import check_is_run, check_run_dir
from jaxppo.types import PyTree, zeros

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")  # as JAX names them
OF_ONE = {  # a setting -> the choices of `what` that read it
    **dict.fromkeys(("which", "seed", "env"), ("policy", "onnx")),
    "platforms": ("policy",),
    "target": ("executable",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export(Choice):
    """Write programs that need no jaxppo: python -m jaxppo.export run=DIR platforms=[cpu,cuda,tpu]

    what=policy writes programs in which the trained policy acts, for any batch size. They contain
    its parameters and need only jax and flatbuffers. A README.md beside them says how to call them.

    what=onnx writes the greedy policy as ONNX, for runtimes without Python (with the extra onnx).

    what=executable compiles the programs that train and evaluate the run, from its first step, for
    `target`, and writes them with a loader that needs only jax and what jax brings.
    """

    what: str = setting(
        "policy", "policy, onnx or executable", choices=("policy", "onnx", "executable")
    )
    target: str | None = setting(
        None,
        "what=executable: the accelerator to compile for: h200, h100, a100, v5e, v6e or v5p, or "
        "several as h200:4 or v5e:2x2 (with the compilers of the extras aot-cuda and aot-tpu); "
        "null: this machine's accelerators, or one CPU device (more by JAX_NUM_CPU_DEVICES)",
    )
    platforms: list[str] = setting(["cpu", "cuda", "tpu"], f"some of {', '.join(PLATFORMS)}")
    out: str | None = setting(
        None, "the directory to write to; null: export, or executable, in the run directory"
    )


def write(settings: Export, executables: Callable[[Config, str | None, Path], None]) -> None:
    """Write the programs and print a summary.

    `executables(config, target, out)` writes those of what=executable.
    """
    settings.check()
    default = Export()
    for name, what in OF_ONE.items():
        if settings.what not in what and getattr(settings, name) != getattr(default, name):
            of = " and ".join(f"what={each}" for each in what)
            raise ConfigError(
                f"{name}={getattr(settings, name)}: is a setting of {of}; leave it out"
            )
    if not settings.platforms or not {*settings.platforms} <= {*PLATFORMS}:
        raise ConfigError(
            f"platforms=[{','.join(settings.platforms)}]: must be some of "
            f"{', '.join(PLATFORMS)}, such as platforms=[cpu,tpu]"
        )
    folder = "executable" if settings.what == "executable" else "export"
    out = Path(settings.out or Path(settings.run) / folder)
    check_run_dir("out", out)
    if settings.what == "policy":
        export_policy(settings, out)
    elif settings.what == "onnx":
        policy = settings.load()
        export_onnx(policy, {k: x for k, x in signature(policy).items() if k != "key"}, out)
    else:
        executables(_config_of(settings), settings.target, out)


def export_policy(settings: Export, out: Path) -> None:
    """Write greedy.stablehlo, sampled.stablehlo, policy.json and README.md."""
    if not is_installed("flatbuffers"):
        raise ConfigError(
            f"what=policy: needs flatbuffers, which is not installed; {installing('export')}"
        )
    if (out / "README.md").exists() and not (out / "policy.json").exists():
        raise ConfigError(f"out={out}: has a README.md of something else; choose another folder")
    policy = settings.load()
    platforms = list(dict.fromkeys(settings.platforms))
    inputs = signature(policy)
    without_key = {name: tree for name, tree in inputs.items() if name != "key"}
    functions, contents = {}, {}
    for name, given in (("greedy", without_key), ("sampled", inputs)):
        contents[name], outputs = export_acting(policy, given, platforms)
        functions[name] = {
            "file": f"{name}.stablehlo",
            "inputs": _rows(policy, given),
            "outputs": _rows(policy, outputs),
        }
    facts: dict[str, Any] = {
        "environment": policy.system.env.name,
        "seed": policy.config.arch.seed,
        "steps": policy.steps,
        "platforms": platforms,
        "versions": checkpoint.versions(),
        "initial_carry": "zeros" if "carry" in inputs else None,
        "functions": functions,
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (out / f"{name}.stablehlo").write_bytes(content)
    described = json.dumps(facts, indent=2, allow_nan=False)
    (out / "policy.json").write_text(f"{described}\n", encoding="utf-8")
    with_memory = "carry" in inputs
    readme = README.format(
        **{**facts, "platforms": ", ".join(platforms), "jax": facts["versions"]["jax"]},
        memory=", carry, reset" if with_memory else "",
        result="(action, carry)" if with_memory else "action",
    )
    (out / "README.md").write_text(readme, encoding="utf-8")
    sizes = ", ".join(f"{name}.stablehlo {len(x):,} bytes" for name, x in contents.items())
    print_lines(
        f"{policy.system.env.name}, seed {policy.config.arch.seed}, policy of step "
        f"{policy.steps:,}, for {', '.join(platforms)}",
        f"{sizes}; {out / 'README.md'} says how to call them",
    )


def signature(policy: TrainedPolicy) -> dict[str, PyTree]:
    """Return the shapes of the inputs of sampled acting, in order; `b` is a symbolic batch size.

    observation `[b, O...]` raw and key uint32 `[2]`; with a memory also carry `[b, ...]` and reset
    `[b]` bool.
    """
    (b,) = jax.export.symbolic_shape("b")

    def batch(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((b, *x.shape), x.dtype), tree)

    inputs = {
        "observation": batch(jax.eval_shape(lambda: zeros(policy.system.env.observation_space))),
        "key": jax.ShapeDtypeStruct((2,), jnp.uint32),
    }
    carry = jax.eval_shape(policy.initial_carry)
    if jax.tree.leaves(carry):
        inputs |= {"carry": batch(carry), "reset": jax.ShapeDtypeStruct((b,), jnp.bool_)}
    return inputs


def export_acting(
    policy: TrainedPolicy, inputs: dict[str, PyTree], platforms: Sequence[str]
) -> tuple[bytes, dict[str, PyTree]]:
    """Return `TrainedPolicy.act` as `jax.export` serialises it, and the shapes of its outputs.

    `inputs` are those of `signature`; without a key the program is greedy. The program returns
    action `[b, A...]` and, if it takes a carry, the next carry `[b, ...]`.
    """

    def act(*arguments: PyTree) -> PyTree:
        given = dict(zip(inputs, arguments, strict=True))
        if "key" in given:
            given["key"] = jax.random.wrap_key_data(given["key"], impl="threefry2x32")
        action, carry = policy.act(**given)
        return (action, carry) if "carry" in inputs else action

    only = platforms[0] if len(set(platforms)) == 1 else "several"  # no platform's special forms
    try:
        with compiling_for(only):
            program = jax.export.export(jax.jit(act), platforms=platforms)(*inputs.values())
        content = bytes(program.serialize())
    except Exception as error:  # a user's layer may raise anything if a size is symbolic
        raise ConfigError(
            f"what=policy: acting in {policy.system.env.name} cannot be exported for "
            f"{', '.join(platforms)}: {brief(error)}; try one platform, or other layers"
        ) from error
    found = jax.tree.unflatten(program.out_tree, program.out_avals)
    action, carry = found if "carry" in inputs else (found, {})
    return content, {"action": action, "carry": carry}


def _config_of(settings: Export) -> Config:
    """Return the settings of the run, without sinks, for programs that begin it anew."""
    run_dir = Path(settings.run)
    check_is_run(f"run={run_dir}", run_dir)
    stored = {**read_config(run_dir), "logger": {}}
    check_trust(stored, settings.trust)
    return parse(stored)


def _rows(policy: TrainedPolicy, trees: dict[str, PyTree]) -> list[dict[str, Any]]:
    """Describe each array of named trees of shapes; arrays with a space have bounds."""
    env = policy.system.env
    spaces = {"observation": env.observation_space, "action": env.action_space}
    rows = []
    for name, tree in trees.items():
        leaves = jax.tree.leaves_with_path(tree)
        bounds: list[Any] = [(None, None)] * len(leaves)
        if name in spaces:
            bounds = [tuple(map(_plain, ends)) for _, *ends in limits(spaces[name])]
        for (path, x), (low, high) in zip(leaves, bounds, strict=True):
            shape = [size if isinstance(size, int) else str(size) for size in x.shape]
            entry = name + jax.tree_util.keystr(path)
            rows.append(dict(name=entry, shape=shape, dtype=str(x.dtype), low=low, high=high))
    return rows


def _plain(bound: Any) -> Any:
    """Return a bound as a number, nested lists if they differ; None: no bound."""
    if np.ndim(bound):
        return [_plain(inner) for inner in bound]
    return np.asarray(bound).item() if math.isfinite(bound) else None


README = """# A policy for {environment}

An agent of jaxppo after {steps:,} environment steps of training (seed {seed}), as
two programs that contain its parameters and run on {platforms}:

- `greedy.stablehlo`: `greedy(observation{memory}) -> {result}`, the mode of the policy
- `sampled.stablehlo`: `sampled(observation, key{memory}) -> {result}`, a sample of the policy

They need jax and flatbuffers, but not jaxppo: `pip install jax flatbuffers`. They were written by
jax {jax}; JAX promises to read them with versions up to six months newer.
`policy.json` has the shape, dtype and bounds of every input and output.

`b` is the batch size; the programs compile once for each size. `observation` is as the environment
of training returned it, after `env.mask`, `env.frame_stack` and `env.extras` if it had them; the
programs normalise it as training did. They do not check it: an action that follows from NaN or
from an integer outside of its bounds has no meaning. `key` is the data of a `jax.random` key; use a
new one for each call.

Only a policy with a memory has `carry`, zeros at first, then what the last call returned, and
`reset`, true where an observation starts an episode: the memory is then emptied before it acts.

## Example

Run it in this folder.

```python
from pathlib import Path

import jax
import jax.export
import numpy as np

program = jax.export.deserialize(bytearray(Path("sampled.stablehlo").read_bytes()))
sampled = jax.jit(program.call)
b = 3


def zeros(tree):  # of your own observations
    return jax.tree.map(lambda x: np.zeros((b, *x.shape[1:]), x.dtype), tree)


shapes, _ = jax.tree.unflatten(program.in_tree, program.in_avals)
observation, memory = zeros(shapes[0]), [zeros(x) for x in shapes[2:]]
key = jax.random.key(0)
for step in range(5):
    key, step_key = jax.random.split(key)
    if memory:
        memory[1][:] = step == 0  # reset
    result = sampled(observation, jax.random.key_data(step_key), *memory)
    if memory:
        result, memory[0] = result
    print(result)
```
"""
