"""Export of a greedy policy as ONNX, which runs without Python, as on robots."""

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.interpreters import partial_eval

from jaxppo.config.fields import ConfigError
from jaxppo.config.importing import is_installed
from jaxppo.config.messages import brief, installing
from jaxppo.deploy.policy import TrainedPolicy
from jaxppo.envs.forms import limits
from jaxppo.kernels.platforms import compiling_for
from jaxppo.runtime.sinks.console import print_lines
from jaxppo.types import PyTree

OPSET = 18  # of 2022, for old runtimes too: the lowest in which reductions take axes as inputs
NUM_CHECKED = 64  # observations
SMALL = 100  # range of integers that have no bounds
TOLERANCE = 1e-3  # of floats, relative to their size
UNEQUAL = 0.05  # share of integers that may differ: rounding decides between equal logits
SAID = {"floats": "floats differ by at most {:.1g}", "integers": "{:.1%} of the integers differ"}


def export_onnx(policy: TrainedPolicy, inputs: dict[str, PyTree], out: Path) -> None:
    """Write greedy.onnx, and check it with onnxruntime; `ConfigError` if that is not possible.

    `inputs` has the shapes of the observation `[b, O...]` and, with a memory, of carry `[b, ...]`
    and reset `[b]`. Inputs of the program are their leaves; its outputs are those of the action
    `[b, A...]` and of the next carry.
    """
    if not is_installed("jax2onnx"):
        raise ConfigError(
            f"what=onnx: needs jax2onnx, which is not installed; {installing('onnx')}"
        )
    name = policy.system.env.name
    try:
        content = _converted(policy, inputs)
        differ = check(policy, inputs, content)
    except ConfigError:
        raise
    except Exception as error:  # a layer that the converter or the runtime does not know
        raise ConfigError(
            f"what=onnx: acting in {name} cannot be converted: {brief(error)}; what=policy exports "
            "it as StableHLO"
        ) from error
    out.mkdir(parents=True, exist_ok=True)
    (out / "greedy.onnx").write_bytes(content)
    print_lines(
        f"{name}, seed {policy.config.arch.seed}, policy of step {policy.steps:,}: "
        f"{out / 'greedy.onnx'}, {len(content):,} bytes, opset {OPSET}",
        f"inputs {', '.join(names(inputs))}; outputs {', '.join(_outputs(policy, inputs))}",
        f"in onnxruntime, over two steps of {NUM_CHECKED} random observations each: "
        + " and ".join(SAID[kind].format(x) for kind, x in differ.items()),
    )


def names(tree: PyTree) -> list[str]:
    """Return the names of leaves, such as observation/board."""
    paths = [path for path, _ in jax.tree.leaves_with_path(tree)]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]


def _act(policy: TrainedPolicy, inputs: dict[str, PyTree], leaves: Any) -> dict[str, PyTree]:
    """Return the greedy action, and with a memory the next carry, of leaves of `inputs`."""
    action, carry = policy.act(**jax.tree.unflatten(jax.tree.structure(inputs), leaves))
    return {"action": action, **({"next_carry": carry} if "carry" in inputs else {})}


def _outputs(policy: TrainedPolicy, inputs: dict[str, PyTree]) -> list[str]:
    """Return the names of the leaves of `_act`."""
    leaves = jax.tree.leaves(inputs)
    return names(jax.eval_shape(lambda *x: _act(policy, inputs, x), *leaves))


def _converted(policy: TrainedPolicy, inputs: dict[str, PyTree]) -> bytes:
    """Return the program that acts, as ONNX.

    The converter gets primitives. If it traced the policy itself, it would replace functions of
    jax.numpy, some of which then lack what the policy calls. What no output needs, such as random
    keys, is left out: ONNX has no keys.
    """
    greedy = dataclasses.replace(policy, policy=dataclasses.replace(policy.policy, noise_key=None))
    leaves = jax.tree.leaves(inputs)
    with compiling_for("several"):  # no platform's special forms
        traced = jax.make_jaxpr(lambda *x: jax.tree.leaves(_act(greedy, inputs, x)))(*leaves)
    needed = [True] * len(traced.jaxpr.outvars)
    jaxpr, _ = partial_eval.dce_jaxpr(traced.jaxpr, needed, instantiate=True)
    function = jaxpr_as_fun(traced.replace(jaxpr=jaxpr))
    with _quiet():
        from jax2onnx import to_onnx

        model = to_onnx(
            lambda *x: tuple(function(*x)),
            leaves,
            model_name="greedy",
            opset=OPSET,
            input_names=names(inputs),
            output_names=_outputs(greedy, inputs),
        )
    return bytes(model.SerializeToString())


def check(policy: TrainedPolicy, inputs: dict[str, PyTree], content: bytes) -> dict[str, float]:
    """Return by how much outputs of the program and of the policy differ, as `compare` does.

    They act for two steps on random observations within their bounds. `ConfigError` if they do not
    agree.
    """
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.log_severity_level = 3  # errors
    session = InferenceSession(content, options)
    generator = np.random.default_rng(0)
    space = policy.system.env.observation_space
    given: dict[str, Any] = {}
    if "carry" in inputs:
        given["carry"] = policy.initial_carry(NUM_CHECKED)
    differ: dict[str, float] = {}
    for step in range(2):
        drawn = []
        bounds = [(low, high) for _, low, high in limits(space)]
        for x, (low, high) in zip(jax.tree.leaves(inputs["observation"]), bounds, strict=True):
            drawn.append(draw(generator, (NUM_CHECKED, *x.shape[1:]), x.dtype, low, high))
        given["observation"] = jax.tree.unflatten(jax.tree.structure(inputs["observation"]), drawn)
        if "carry" in inputs:
            given["reset"] = np.arange(NUM_CHECKED) % 3 == step
        leaves = [np.asarray(x) for x in jax.tree.leaves(given)]
        found = session.run(None, dict(zip(names(inputs), leaves, strict=True)))
        wanted = _act(policy, inputs, leaves)
        for kind, far in map(compare, found, jax.tree.leaves(wanted)):
            differ[kind] = max(differ.get(kind, 0.0), far)
        if "carry" in inputs:
            given["carry"] = wanted["next_carry"]
    return differ


def draw(
    generator: np.random.Generator, shape: tuple[int, ...], dtype: Any, low: Any, high: Any
) -> np.ndarray:
    """Return random numbers within bounds; where those of integers are infinite, small ones."""
    if np.issubdtype(dtype, np.floating):
        return generator.normal(size=shape).clip(low, high).astype(dtype)
    info = None if np.dtype(dtype).kind == "b" else np.iinfo(dtype)
    least, most = (0, 1) if info is None else (info.min, info.max)
    no_low, no_high = np.isinf(low), np.isinf(high)
    first = np.where(no_low, np.where(no_high, 0, high) - SMALL, low)
    last = np.where(no_high, np.where(no_low, 0, low) + SMALL, high)
    ends = np.maximum(first, least).astype(np.int64), np.minimum(last, most).astype(np.int64)
    return generator.integers(*ends, shape, endpoint=True).astype(dtype)


def compare(found: Any, wanted: Any) -> tuple[str, float]:
    """Return a key of `SAID`, and the greatest difference of floats or share of unequal integers.

    `ConfigError` if it is too large.
    """
    found, wanted = np.asarray(found), np.asarray(wanted)
    kind = "floats" if np.issubdtype(wanted.dtype, np.floating) else "integers"
    if kind == "floats":
        far = float(np.max(np.abs(found - wanted), initial=0.0))
        good = far <= TOLERANCE * max(1.0, float(np.max(np.abs(wanted), initial=0.0)))
    else:
        far = float(np.mean(found != wanted))
        good = far <= UNEQUAL
    if not good:
        raise ConfigError(
            "what=onnx: onnxruntime gives other numbers than this policy; what=policy exports it "
            "as StableHLO"
        )
    return kind, far


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the converter, which warns of every library for which it has no rules."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
