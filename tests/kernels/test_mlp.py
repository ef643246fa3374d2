"""The kernels of MLPs with their heads: interpreted here, and compiled for GPUs that are not."""

import dataclasses
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MLP, NETWORK, close, refused, small_config
from phases import two_members

from jaxppo import envs
from jaxppo.config.importing import is_installed
from jaxppo.config.schema import ArchConfig, Config
from jaxppo.extras.chips import targets
from jaxppo.kernels import mlp, packing
from jaxppo.kernels.mlp import Towers
from jaxppo.kernels.platforms import FORMS, compiling_for
from jaxppo.networks import actor_critic
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import compile
from jaxppo.types import Box, Discrete

PARTS = "jaxppo.networks"


def drawn(shape: Towers, num: int) -> tuple[Any, np.ndarray, list[np.ndarray]]:
    """Layers of each tower, rows, and gradients of the outputs."""
    random = np.random.default_rng(0)
    params = []
    for outputs in shape.outputs:
        sizes = (shape.num_inputs, *shape.hidden, outputs)
        params.append(
            [
                (random.normal(size=(a, b)) / np.sqrt(a), random.normal(size=b))
                for a, b in pairwise(sizes)
            ]
        )
    rows = random.normal(size=(num, shape.num_inputs))
    return params, rows, [random.normal(size=(num, outputs)) for outputs in shape.outputs]


# An activation, and its derivative
ACTIVATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2),
    "relu": (lambda z: np.maximum(z, 0), lambda z: (z > 0) * 1.0),
    "silu": (
        lambda z: z / (1 + np.exp(-z)),
        lambda z: (1 + np.exp(-z) + z * np.exp(-z)) / (1 + np.exp(-z)) ** 2,
    ),
}


def by_numpy(
    shape: Towers, params: Any, rows: np.ndarray, gradients: list[np.ndarray]
) -> tuple[list[np.ndarray], Any, np.ndarray]:
    """Outputs and the gradients of parameters and rows, in float64, layer by layer."""
    activate, derivative = ACTIVATIONS[shape.activation]
    outputs, of_params, of_rows = [], [], np.zeros_like(rows)
    for layers, gradient in zip(params, gradients, strict=True):
        inputs, sums = [rows], []
        for i, (kernel, bias) in enumerate(layers):
            sums.append(inputs[-1] @ kernel + bias)
            inputs.append(activate(sums[-1]) if i < len(layers) - 1 else sums[-1])
        outputs.append(inputs[-1])
        found = []
        for i in reversed(range(len(layers))):
            found.append((inputs[i].T @ gradient, gradient.sum(0)))
            gradient = gradient @ layers[i][0].T
            if i:
                gradient = gradient * derivative(sums[i - 1])
        of_params.append(found[::-1])
        of_rows += gradient
    return outputs, of_params, of_rows


def run(shape: Towers, params: Any, rows: Any, gradients: Any) -> Any:
    """What `by_numpy` returns, by the kernels."""
    to_float32 = partial(jax.tree.map, lambda x: jnp.asarray(x, jnp.float32))
    outputs, pull = jax.vjp(partial(mlp.apply, shape), to_float32(params), to_float32(rows))
    return (outputs, *pull(tuple(to_float32(gradients))))


CASES = {
    "one row": (Towers(4, (64, 64), (2, 1), "tanh"), 1),
    "odd rows": (Towers(3, (16,), (5, 1), "relu"), 131),
    "odd sizes": (Towers(17, (100, 37), (6, 51), "silu"), 77),
    "three layers": (Towers(5, (32, 64, 16), (1, 4), "silu"), 33),
    "widest": (Towers(128, (128, 128), (128, 1), "tanh"), 70),
    "three towers": (Towers(6, (16, 32), (3, 2, 7), "tanh"), 300),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("interpreted")
def test_values_and_gradients_are_those_of_the_layers(case: str) -> None:
    shape, num = CASES[case]
    assert shape.fits()
    given = drawn(shape, num)
    expected, found = by_numpy(shape, *given), jax.jit(partial(run, shape))(*given)
    for one, other in zip(*map(jax.tree.leaves, (expected, found)), strict=True):
        close(other, one, rtol=2e-4, atol=3e-6 * num**0.5 * np.abs(one).max())


@pytest.mark.usefixtures("interpreted")
def test_members_are_computed_each_by_itself() -> None:
    """Many members take fewer programs each, so that no sums of blocks are left to add up."""
    shape, num = CASES["three towers"]
    given = [drawn(shape, num) for _ in range(3)]
    stacked = jax.tree.map(lambda *x: np.stack([(i + 1) * y for i, y in enumerate(x)]), *given)
    with packing.of_members(100):
        found = jax.jit(jax.vmap(partial(run, shape)))(*stacked)
    one = jax.jit(partial(run, shape))
    for i in range(3):
        alone = one(*jax.tree.map(itemgetter(i), stacked))
        close(alone, jax.tree.map(itemgetter(i), found), rtol=1e-4, atol=1e-4)


NORMAL = {"_target_": f"{PARTS}.heads.TanhNormalHead", "state_dependent_std": True}
BOX = Box((3,), jnp.float32, -1.0, 1.0)
NETWORKS: dict[str, tuple[dict[str, Any], Any, int]] = {  # changes, actions, kernels forward
    "categorical": ({}, Discrete(5), 2),
    "normal": ({}, BOX, 2),
    "two layers in a head": ({"actor_head": NORMAL}, BOX, 2),
    "parts": ({}, {"a": Discrete(3), "b": BOX}, 2),
    "histogram": (
        {"critic_head": {"_target_": f"{PARTS}.heads.CategoricalCriticHead"}},
        *(Discrete(2), 2),
    ),
    "shared": ({"actor_torso": None, "critic_torso": None, "shared_torso": MLP}, BOX, 1),
    "unequal": ({"critic_torso": {**MLP, "layer_sizes": [32, 16]}}, BOX, 2),
    "own input": ({"critic_input": NETWORK["input_layer"]}, BOX, 2),
}


def network_of(config: Config, actions: Any = None) -> Any:
    """The network of a configuration, for other actions."""
    env: Any = envs.make(config.env)
    space = env.observation_space
    given = SimpleNamespace(
        name="own",
        reset=env.reset,
        observation_space=space,
        action_space=actions or env.action_space,
        num_agents=1,
        pads=False,
    )
    return actor_critic.build(config, given)


def given_to(network: Any) -> tuple[jax.Array, jax.Array]:
    """Observations of `[L, S]` steps, and where episodes start."""
    shape = 2, 3, *network.observation_space.shape
    return jnp.cos(jnp.arange(float(np.prod(shape)))).reshape(shape), jnp.ones((2, 3), bool)


@pytest.mark.long_but(3)
@pytest.mark.parametrize(
    "name, precision", [*((name, None) for name in NETWORKS), ("normal", "bf16")]
)
@pytest.mark.usefixtures("interpreted")
def test_networks_are_the_same_with_kernels(name: str, precision: str | None) -> None:
    changes, actions, kernels = NETWORKS[name]
    found = []
    for fused in (True, False):
        config = small_config(
            network={**NETWORK, **changes}, arch__fused=fused, arch__precision=precision
        )
        network = network_of(config, actions)
        params = jax.tree.map(lambda x: x + 0.1, network.init(jax.random.key(0)))
        obs, start = given_to(network)

        def read(params: Any, network: Any = network, obs: Any = obs, start: Any = start) -> Any:
            _, output = network.unroll(params, {}, obs, start)
            arrays = jax.tree.leaves(output)
            total = sum(
                jnp.sum(jnp.sin(x) * jnp.arange(1, x.size + 1).reshape(x.shape)) for x in arrays
            )
            return total, arrays

        text = str(jax.make_jaxpr(lambda params: read(params)[1])(params))
        assert text.count("pallas_call[") == (kernels if fused else 0)
        found.append(jax.jit(jax.grad(read, has_aux=True))(params))
    tolerance = 2e-5 if precision is None else 2e-2
    assert jax.tree.structure(found[0]) == jax.tree.structure(found[1])
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        close(one, other, rtol=tolerance, atol=tolerance * float(jnp.abs(other).max()))


@pytest.mark.long
def test_training_with_kernels_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the packed scans of a GPU."""
    found = []
    for fused in (True, False):
        changed = {"kernels": "interpreted", "packed_bytes": 2**20}
        monkeypatch.setitem(FORMS, "cpu", dataclasses.replace(FORMS["cpu"], **changed))
        config = small_config(env={"name": "CartPole-v1", "target": None}, arch__fused=fused)
        found.append(two_members(config))
    close(*found, rtol=2e-3, atol=2e-5)


def test_a_cpu_takes_the_layers() -> None:
    """As a policy does that was trained on a GPU."""
    network = network_of(small_config(arch__fused=True))
    params = network.init(jax.random.key(0))
    jaxpr = jax.make_jaxpr(network.unroll)(params, {}, *given_to(network))
    assert "pallas_call" not in str(jaxpr)


def test_a_policy_is_exported_for_gpus_by_layers() -> None:
    """For any number of rows; JAX does not export kernels."""
    shape, num = CASES["odd rows"]
    params, rows, gradients = drawn(shape, num)
    expected, *_ = by_numpy(shape, params, rows, gradients)
    given = jax.tree.map(partial(jnp.asarray, dtype=jnp.float32), params)
    many = jax.export.symbolic_shape("n, 3")
    for platform in ("cuda", "cpu"):
        with compiling_for(platform):
            program = jax.export.export(
                jax.jit(partial(mlp.apply, shape, given)), platforms=[platform]
            )(jax.ShapeDtypeStruct(many, jnp.float32))
        assert program.serialize()
    close(program.call(jnp.float32(rows)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"network__actor_torso": {**MLP, "layer_sizes": [128, 128, 128]}},
        {"network__critic_torso": {**MLP, "layer_norm": True}},
        {"network__critic_torso": {**MLP, "activation": "gelu"}},
        {"network__shared_torso": MLP},
        {"network__actor_head": {"_target_": f"{__name__}.own_head"}},
        {"arch__precision": "highest"},
    ],
)
def test_networks_without_a_kernel_are_refused(changes: dict[str, Any]) -> None:
    with refused(r"^arch\.fused=true: .* leave"):
        network_of(small_config(arch__fused=True, **changes))
    assert network_of(small_config(arch__fused=None, **changes)).fused is None


def own_head(action_space: Any) -> Any:
    """A head that reads the sum of the features besides its dense layer."""
    from jaxppo.networks.heads import CategoricalHead

    class Own(CategoricalHead):
        def __call__(self, x: Any, mask: Any = None) -> Any:
            return super().__call__(x + x.sum(-1, keepdims=True), mask)

    return Own(action_space)


def test_platforms_without_kernels_are_refused() -> None:
    compile.check(ArchConfig(fused=False))
    with refused(r"^arch\.fused=true: is for GPUs"):
        compile.check(ArchConfig(fused=True))


COMPILED = {
    "as at L": CASES["one row"][0],
    "smallest": Towers(1, (16,), (1,), "relu"),
    "two layers": Towers(64, (64, 64), (64, 64), "silu"),
    "deepest": Towers(64, (64, 64, 64), (64, 64), "silu"),
    "widest": Towers(128, (128, 128), (128, 128), "silu"),
}


@pytest.mark.slow
@pytest.mark.parametrize("in_bfloat16", [False, True])
@pytest.mark.parametrize("target", ["h200", "a100"])
@pytest.mark.parametrize("name", COMPILED)
def test_the_largest_shapes_fit_in_a_gpu(name: str, target: str, in_bfloat16: bool) -> None:
    """Their compiler refuses a kernel that asks for too much shared memory."""
    if not is_installed(devices.COMPILERS["gpu"]):
        pytest.skip(f"pip install '.[{targets.EXTRAS['gpu']}]'")
    shape = dataclasses.replace(COMPILED[name], bfloat16=in_bfloat16)
    params, rows, gradients = drawn(shape, 16_384)
    given = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((1, *x.shape), jnp.float32), (params, rows, gradients)
    )
    with targets.compiling(target):
        kernels = devices.parallel(partial(run, shape), 1).lower(*given).compile().as_text()
    assert kernels.count("__gpu$xla.gpu.triton") == 2
