"""The forms of a computation follow the platform that it is compiled for."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MLP, build, close, small_config
from phases import two_members

from jaxppo.algorithms.axes import vmap_members
from jaxppo.algorithms.spine import train_block
from jaxppo.envs import episodes
from jaxppo.kernels import convolutions, packing, products, random_bits, recurrences, reductions
from jaxppo.kernels.costs import is_cheap
from jaxppo.kernels.norms import LayerNorm
from jaxppo.kernels.platforms import FORMS, Forms, compiling_for, forms
from jaxppo.networks.memory import Recurrent
from jaxppo.ops.advantages import decayed_sum
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs.placement import Layout


def gradient(kernel: jax.Array) -> jax.Array:
    x = jnp.linspace(-1.0, 1.0, 4 * kernel.shape[0]).reshape(2, 2, -1)
    return jax.grad(lambda kernel: jnp.sum(jnp.sin(products.float32_product(x, kernel))))(kernel)


def draw(kernel: jax.Array) -> jax.Array:
    return jax.random.normal(random_bits.quick(jax.random.key(3)), kernel.shape)


def convolve(kernel: jax.Array) -> jax.Array:
    images = jnp.linspace(-1.0, 1.0, 2 * 7 * 5 * 6).reshape(2, 7, 5, 6)
    y = convolutions.convolve(images, kernel[:, :2].reshape(2, 2, 6, -1)[..., :3], 2, "SAME")
    return y.transpose(1, 2, 3, 0) if convolutions.channels_first() else y


def recur(kernel: jax.Array) -> jax.Array:
    steps = jnp.broadcast_to(kernel, (64, *kernel.shape))
    reset = jnp.arange(64)[:, None] % 10 == jnp.zeros(kernel.shape[0], int)
    decay = jnp.full(kernel.shape[-1], 0.9)
    return recurrences.linear_recurrence(decay, steps, reset, jnp.zeros_like(kernel))


def scan(kernel: jax.Array) -> jax.Array:
    def step(carry: Any, x: jax.Array) -> Any:
        total, steps, key, positive = carry
        total, key = total + x, jax.random.fold_in(key, steps)
        drawn = jax.random.normal(key, x.shape)
        return (total, steps + 1, key, total > 1.0), (steps, total + drawn, positive)

    start = (kernel[0], jnp.int32(3), jax.random.key(7), kernel[0] > 1.0)
    (total, steps, key, positive), found = packing.scan(step, start, kernel)
    kept = (total, steps, positive, jax.random.key_data(key), found)
    return jnp.concatenate([x.astype(jnp.float32).ravel() for x in jax.tree.leaves(kept)])


def means(kernel: jax.Array) -> jax.Array:
    return jnp.stack(reductions.means(kernel, kernel**2, jnp.sin(kernel)))


def norm(kernel: jax.Array) -> jax.Array:
    return reductions.norm({"a": kernel, "b": (kernel[0], kernel.sum())})


def accumulate(kernel: jax.Array) -> jax.Array:
    return decayed_sum(kernel, jnp.where(kernel > 1.8, 0.0, jnp.float32(0.9)))


def renew(kernel: jax.Array) -> jax.Array:
    over = kernel[:, 0] > 1.0
    keys = jax.random.split(jax.random.key(1), len(kernel))

    def make(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.vmap(lambda key: jax.random.uniform(key, kernel.shape[1:]))(key), over

    obs, state = episodes.renew(over, make, keys, (kernel, ~over))
    return obs + state[:, None]


def remember(cell: str, kernel: jax.Array) -> jax.Array:
    """A memory's gradients, its outputs and its last carry."""
    memory = Recurrent(cell=cell, size=5, num_layers=2)
    x = jnp.stack([kernel, jnp.cos(kernel), -kernel, kernel**2])  # [L, S, F]
    reset = (jnp.arange(4)[:, None] + jnp.arange(kernel.shape[0])) % 3 == 0
    start = jax.tree.map(lambda c: c + 0.3, memory.initial_carry(kernel.shape[0]))
    params = memory.init(jax.random.key(0), start, x, reset)

    def loss(params: Any, start: Any, x: jax.Array) -> Any:
        end, outputs = memory.apply(params, start, x, reset)
        total = sum(jnp.sum(jnp.sin(each)) for each in jax.tree.leaves(end))
        return total + jnp.sum(
            outputs * jnp.linspace(0, 1, outputs.size).reshape(outputs.shape)
        ), outputs

    found = jax.grad(loss, (0, 1, 2), has_aux=True)(params, start, x)
    return jnp.concatenate([x.ravel() for x in jax.tree.leaves(found)])


CHOICES = {
    "product": gradient,
    "hash": draw,
    "convolution": convolve,
    "recurrence": recur,
    "scan": scan,
    "means": means,
    "norm": norm,
    "sums over time": accumulate,
    "resets": renew,
    "lstm": partial(remember, "lstm"),
    "gru": partial(remember, "gru"),
}
EXACT = {"hash", "scan", "resets"}
FEW_KERNELS = (  # what the table has for GPUs
    *("packed_bytes", "stack_sums", "associative_sums", "joined_gates", "resets_without_branch"),
)


@pytest.mark.long
@pytest.mark.parametrize("name", CHOICES)
def test_a_program_takes_the_forms_of_the_platform_it_is_compiled_for(name: str) -> None:
    """Traced within one process for several platforms, as `benchmarks.programs` does."""
    function: Callable[..., Any] = jax.jit(CHOICES[name])
    kernel = jnp.linspace(0.1, 2.0, 48).reshape(6, 8)
    if name == "convolution":
        kernel = jnp.linspace(0.1, 2.0, 24 * 12).reshape(24, 12)
    if name == "product":  # of the width that takes other forms with each version of JAX
        kernel = jnp.sin(jnp.arange(128.0 * 128)).reshape(128, 128)
    texts: dict[str, set[str]] = {"cpu": set(), "cuda": set()}
    results = {}
    for platform in ("cpu", "cuda", "cpu"):
        with compiling_for(platform):
            traced = function.trace(kernel)
            texts[platform].add(str(traced.jaxpr))
            if platform not in results:
                results[platform] = np.asarray(traced.lower().compile()(kernel))
    assert len(texts["cpu"]) == len(texts["cuda"]) == 1
    assert texts["cpu"] != texts["cuda"]
    if name in EXACT:
        np.testing.assert_array_equal(results["cpu"], results["cuda"])
    np.testing.assert_allclose(results["cpu"], results["cuda"], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("matrices_from", [None, 5, 6])
@pytest.mark.parametrize("rows_in_memory", [False, True])
def test_products_and_their_gradients_are_those_of_numpy(
    rows_in_memory: bool, matrices_from: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = {"rows_in_memory": rows_in_memory, "matrices_from": matrices_from}
    monkeypatch.setitem(FORMS, "cpu", dataclasses.replace(FORMS["cpu"], **changed))
    x = np.sin(np.arange(2.0 * 3 * 7)).reshape(2, 3, 7)
    kernel = np.cos(np.arange(7.0 * 5)).reshape(7, 5)
    gradient = np.sin(1.0 + np.arange(2.0 * 3 * 5)).reshape(2, 3, 5)
    arrays = (jnp.asarray(array, jnp.float32) for array in (x, kernel))
    found, pull = jax.vjp(products.float32_product, *arrays)
    of_x, of_kernel = pull(jnp.asarray(gradient, jnp.float32))
    np.testing.assert_allclose(found, x @ kernel, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_x, gradient @ kernel.T, rtol=1e-5, atol=1e-6)
    expected = np.einsum("abf,abg->fg", x, gradient)
    np.testing.assert_allclose(of_kernel, expected, rtol=1e-5, atol=1e-6)


def test_platforms_have_several_names_or_take_plain_forms() -> None:
    with compiling_for("a platform of tomorrow"):
        assert forms() == Forms()
    assert forms() == FORMS["cpu"]  # these tests run on a CPU
    for name in ("gpu", "cuda", "rocm"):
        with compiling_for(name):
            assert forms() == FORMS["gpu"]


def test_only_small_arrays_of_32_bits_or_booleans_are_packed() -> None:
    tree = {
        "big": jnp.arange(300.0),
        "bytes": jnp.arange(4, dtype=jnp.uint8),
        "flag": jnp.array([True, False]),
        "key": jax.random.key(0),
        "nan": jnp.array([[jnp.nan, -0.0]]),
        "none": jnp.zeros((0, 3)),
        "number": jnp.int32(-5),
    }
    packing_of = packing.Packing.of(tree, 1024)
    words, others = packing_of.pack(tree)
    assert words.dtype == jnp.uint32
    assert words.size == 2 + 2 + 0 + 1
    assert [x.size for x in others] == [300, 4, 1]
    again = packing_of.unpack((words, others))
    close(tree, again)
    assert [x.dtype for x in jax.tree.leaves(tree)] == [x.dtype for x in jax.tree.leaves(again)]
    assert np.signbit(again["nan"][0, 1])


def test_a_carry_that_changes_is_refused() -> None:
    with compiling_for("gpu"), pytest.raises(TypeError, match=r"float32.* after a step, int32"):
        packing.scan(lambda carry, _: (carry + 0.5, None), jnp.int32(0), jnp.zeros(3))


@pytest.mark.parametrize(
    "function, cheap",
    [
        (lambda key: jax.random.uniform(key, (4,)), True),
        (lambda key: jax.lax.fori_loop(0, 3, lambda _, x: x + 1, 0), False),
        (lambda key: jax.jit(lambda x: x @ x)(jnp.eye(3)), False),
        (lambda key: jax.random.permutation(key, 5), False),
        (lambda key: jax.random.uniform(key, (2000,)), False),
        (lambda key: jax.debug.callback(print, key), False),
        (lambda key: sum(jnp.float32(i) for i in range(400)) + jax.random.uniform(key), False),
    ],
)
def test_resets_are_cheap_without_loops_products_and_sorts(
    function: Callable[..., Any], cheap: bool
) -> None:
    assert is_cheap(function, jax.random.key(0)) is cheap


LSTM = {"_target_": "jaxppo.networks.memory.Recurrent", "cell": "lstm", "size": 8}
PQN = {"actor_torso": None, "critic_head": None, "critic_torso": {**MLP, "layer_norm": True}}


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"network__shared_memory": LSTM, "system__sequence_length": None},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"system__algorithm": "pqn", "network": PQN}, marks=pytest.mark.slow),
    ],
    ids=["lstm", "mlp", "pqn"],
)
def test_training_with_the_forms_of_a_gpu_is_the_same(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With episodes that end."""
    config = small_config(env={"name": "CartPole-v1", "target": None}, **changes)
    found = []
    for forms_of_gpu in ({}, {name: getattr(FORMS["gpu"], name) for name in FEW_KERNELS}):
        monkeypatch.setitem(FORMS, "cpu", dataclasses.replace(FORMS["cpu"], **forms_of_gpu))
        found.append(two_members(config))
    close(*found, rtol=2e-3, atol=2e-5)


@pytest.mark.long
def test_update_batches_are_traced_with_the_forms_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed results of a scan mix what is averaged over them with what is not."""
    assert FORMS["gpu"].packed_bytes
    monkeypatch.setitem(FORMS, "cpu", FORMS["gpu"])
    config = small_config(arch__update_batch_size=2, system__num_minibatches=2)
    built, state, planned = build(config)
    total = Layout(planned, built, (0,)).no_metrics()
    train = devices.parallel(partial(vmap_members(train_block, shared=1), built), 1)
    jax.eval_shape(train, state, total, jnp.ones(1, jnp.int32))


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_layer_norm_and_its_gradients_are_flaxs(platform: str) -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    x = 3.0 + 2.0 * jax.random.normal(keys[0], (5, 2, 7, 24))
    scale, bias, weights = (jax.random.normal(key, (5, 24)) for key in keys[1:])

    def of(layer: nn.Module) -> Any:
        def total(params: Any, x: jax.Array, weights: jax.Array) -> jax.Array:
            found = layer.apply({"params": params}, x)
            return jnp.sum(jnp.sin(found) * weights), found

        with compiling_for(platform):  # each of five members
            run = jax.vmap(jax.grad(total, (0, 1), has_aux=True))
            return jax.jit(run)({"scale": scale, "bias": bias}, x, weights)

    compare = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(compare, of(LayerNorm()), of(nn.LayerNorm()))
    names = (jax.eval_shape(layer.init, keys[0], x) for layer in (LayerNorm(), nn.LayerNorm()))
    assert len({str(each) for each in names}) == 1


def test_a_long_scan_may_take_two_unroll(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {"packed_bytes": 2**20, "unroll": 2}
    monkeypatch.setitem(FORMS, "cpu", dataclasses.replace(FORMS["cpu"], **changed))

    def step(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return carry * 3 + x, carry

    for length, steps in ((7, 1), (9, 2)):
        given = jnp.int32(1), jnp.arange(length)
        jaxpr = jax.make_jaxpr(partial(packing.scan, step))(*given)
        (scan,) = (x for x in jaxpr.jaxpr.eqns if x.primitive.name == "scan")
        assert scan.params["unroll"] == steps
        found, expected = packing.scan(step, *given), jax.lax.scan(step, *given)
        close(found, expected)


def test_the_bound_of_packing_counts_the_arrays_of_all_members() -> None:
    """What is small of one member is large of many, and moving it costs more than it wins."""
    start = {"small": jnp.zeros(3), "large": jnp.zeros((200, 200))}  # 160 kB

    def run(x: jax.Array) -> Any:
        return packing.scan(lambda carry, y: (carry, y), start | {"small": x}, jnp.arange(3.0))

    sizes = {}
    with compiling_for("gpu"):
        for num in (1, 64):
            with packing.of_members(num):
                jaxpr = jax.make_jaxpr(jax.vmap(run))(jnp.zeros((num, 3)))
            (scan,) = (x for x in jaxpr.jaxpr.eqns if x.primitive.name == "scan")
            sizes[num] = [x.aval.size for x in scan.outvars if x.aval.dtype == jnp.uint32]
    assert sizes[1][0] == 40_003
    assert sizes[64][0] == 64 * 3
