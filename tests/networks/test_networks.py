"""Layers and their composition."""

import dataclasses
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LAYERS, MLP, NETWORK, close, products_by_type, refused, small_config

from jaxppo import envs
from jaxppo.kernels import convolutions, platforms, products
from jaxppo.kernels.platforms import compiling_for
from jaxppo.networks import actor_critic, heads, inputs, q_network, torsos
from jaxppo.networks.transformer import GTrXL
from jaxppo.ops import actions
from jaxppo.types import Box, Discrete, MultiDiscrete, zeros


def compose(target: str = "envs.Clock", **changes: Any) -> Any:
    settings = small_config(env__target=target, network={**NETWORK, **changes})
    return actor_critic.build(settings, envs.make(settings.env))


def shapes(params: Any) -> Any:
    return jax.tree.map(jnp.shape, params)


def initial(network: Any) -> Any:
    return jax.jit(network.init)(jax.random.key(0))


@pytest.mark.long
def test_separate_networks_share_nothing_and_start_near_uniform() -> None:
    network = compose()
    params = initial(network)
    assert set(params) == {"actor_torso", "actor_head", "critic_torso", "critic_head"}
    kernels = [shapes(params[part])["Dense_0"]["kernel"] for part in sorted(params)]
    assert kernels == [(16, 2), (2, 16), (16, 1), (2, 16)]
    obs = jax.random.normal(jax.random.key(1), (3, 4, 2))
    _, output = network.unroll(params, (), obs, jnp.zeros((3, 4), bool))
    np.testing.assert_allclose(jax.nn.softmax(output.distribution.logits), 0.5, atol=0.01)
    assert is_orthogonal(params["critic_torso"]["Dense_0"]["kernel"], np.sqrt(2))
    # Steps do not depend on how they are laid out in sequences
    _, flat = network.unroll(params, (), obs.reshape(1, 12, 2), jnp.zeros((1, 12), bool))
    value = output.value.mean().reshape(-1)
    np.testing.assert_allclose(value, flat.value.mean()[0], rtol=1e-5, atol=1e-6)


def test_a_shared_torso_feeds_both_heads() -> None:
    network = compose(shared_torso=MLP, actor_torso=None, critic_torso=None)
    params = initial(network)
    assert set(params) == {"shared_torso", "actor_head", "critic_head"}
    obs, reset = jnp.ones((1, 3, 2)), jnp.zeros((1, 3), bool)

    @jax.jit
    def outputs(params: Any) -> Any:
        _, output = network.unroll(params, (), obs, reset)
        return output.distribution.logits, output.value.mean()

    moved = {**params, "shared_torso": jax.tree.map(lambda x: x + 0.1, params["shared_torso"])}
    for one, other in zip(outputs(params), outputs(moved), strict=True):
        assert not np.allclose(one, other)


def test_the_last_layer_may_have_no_activation_and_no_layer_a_bias() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 6, 3)), jnp.float32)
    for layer in (torsos.MLP([4, 2], bias=False), torsos.NoisyMLP([4, 2], bias=False)):
        params = layer.init(jax.random.key(0), x)
        kernels = [params["params"][f"Dense_{i}"] for i in range(2)]
        assert not any("bias" in kernel or "bias_noise" in kernel for kernel in kernels)
        np.testing.assert_array_equal(layer.apply(params, jnp.zeros_like(x)), 0.0)
    plain = torsos.MLP([4, 2], activate_final=False)
    params = plain.init(jax.random.key(0), x)
    hidden = torsos.MLP([4]).apply({"params": {"Dense_0": params["params"]["Dense_0"]}}, x)
    last = params["params"]["Dense_1"]
    np.testing.assert_allclose(plain.apply(params, x), hidden @ last["kernel"], rtol=1e-5)
    images = jnp.ones((1, 1, 5, 5, 1))
    cnn = torsos.CNN([2], [3], [1], layer_sizes=[4], bias=False, layer_norm=True)
    params = cnn.init(jax.random.key(0), images)["params"]
    assert "bias" not in {**params["Conv_0"], **params["MLP_0"]["Dense_0"]}


def test_entries_of_a_dict_concatenate_one_hot_or_are_chosen() -> None:
    select = {"_target_": f"{LAYERS}.inputs.Select", "key": "shown"}
    for changes, num in (({}, 2 + 3), ({"input_layer": select}, 3)):
        params = jax.eval_shape(compose("envs.Echo", **changes).init, jax.random.key(0))
        assert params["actor_torso"]["Dense_0"]["kernel"].shape == (num, 16)


class Torso(nn.Module):
    """Breaks the contract in the way `how`."""

    how: str

    @nn.compact
    def __call__(self, x: Any) -> Any:
        match self.how:
            case "is of float32":
                return jax.lax.scan(lambda _, x: (x, x), jnp.zeros(x.shape[1:]), x)[1]
            case "is flat":
                return nn.Dense(8)(x).mean(-1)
            case "takes the first":
                return nn.Dense(8)(x[:1])
        return x * self.param("number", lambda key: jnp.ones((), jnp.int32))


class Sums(nn.Module):
    """A memory that sums its features, from the last `reset` on where it heeds it."""

    how: str = "heeds"

    def initial_carry(self, num: int) -> Any:
        return jnp.zeros((num, 4))

    @nn.compact
    def __call__(self, carry: Any, x: Any, reset: Any) -> Any:
        def empty(carry: Any, reset: Any) -> Any:
            return jnp.where(reset[:, None], 0.0, carry)

        def step(carry: Any, now: Any) -> Any:
            x, reset = now
            if self.how == "heeds":
                carry = empty(carry, reset)
            if self.how == "heeds by a product":
                carry = carry + reset[:, None] * (0.3 - carry)
            carry = carry + x
            return empty(carry, reset) if self.how == "is late" else carry, carry

        x = nn.Dense(4, kernel_init=nn.initializers.zeros)(x)
        start = empty(carry, reset[0]) if self.how == "looks at the first" else carry
        end, sums = jax.lax.scan(step, start, (x, reset))
        return sums if self.how == "forgets" else (end, sums)


class Random(Sums):
    """Has a key in its carry, which no reset changes."""

    def initial_carry(self, num: int) -> Any:
        return jax.random.key(0), super().initial_carry(num)

    @nn.compact
    def __call__(self, carry: Any, x: Any, reset: Any) -> Any:
        key, noise_key = jax.random.split(carry[0])
        x = nn.Dense(4)(x)
        x = x + jax.random.normal(noise_key, x.shape)
        sums, x = Sums()(carry[1], x, reset)
        return (key, sums), x


class OwnGTrXL(GTrXL):
    """Keeps what it no longer sees."""


def with_layer(layer: str, name: str, precision: str | None = None, **settings: Any) -> Any:
    network = {**NETWORK, layer: {"_target_": f"test_networks.{name}", **settings}}
    config = small_config(network=network, system__sequence_length=None, arch__precision=precision)
    return actor_critic.build(config, envs.make(config.env))


@pytest.mark.long
@pytest.mark.parametrize(
    "name, settings", [("Sums", {"how": "heeds by a product"}), ("Random", {}), ("OwnGTrXL", {})]
)
def test_a_memory_that_heeds_reset_is_taken(name: str, settings: dict[str, Any]) -> None:
    with_layer("actor_memory", name, **settings)


@pytest.mark.parametrize(
    "layer, name, how, words",
    [
        ("actor_memory", "Sums", "does not heed", "ignores reset"),
        ("critic_memory", "Sums", "looks at the first", "ignores reset"),
        ("critic_memory", "Sums", "is late", "ignores reset"),
        ("actor_memory", "Sums", "forgets", "a memory must"),
        ("critic_torso", "Torso", "is flat", "a torso must"),
        ("critic_torso", "Torso", "takes the first", r"not \[1, 3, 8\] of \[2, 3, 2\]"),
        ("critic_torso", "Torso", "is of float32", ""),
        ("critic_torso", "Torso", "counts", "number is int32"),
    ],
)
def test_a_layer_that_breaks_its_contract_is_named(
    layer: str, name: str, how: str, words: str
) -> None:
    of = "" if how == "counts" else rf" \(test_networks\.{name}\)"
    with refused(rf"^network\.{layer}{of}.*{words}"):
        with_layer(layer, name, "bf16" if how == "is of float32" else None, how=how)


@pytest.mark.long
def test_a_mask_reaches_the_head_and_not_the_torso() -> None:
    network = compose("envs.Masked")
    params = initial(network)
    assert params["actor_torso"]["Dense_0"]["kernel"].shape == (5, 16)
    mask = np.zeros((1, 40, 5), bool)
    mask[..., 3] = True
    obs = {"observation": jnp.ones((1, 40, 5)), "action_mask": jnp.asarray(mask)}
    _, output = network.unroll(params, (), obs, jnp.zeros((1, 40), bool))
    np.testing.assert_array_equal(output.distribution.mode(), 3)
    assert not network.empty_masks(obs).any()
    obs["action_mask"] = obs["action_mask"].at[0, 7].set(False)
    np.testing.assert_array_equal(np.flatnonzero(network.empty_masks(obs)), [7])


def test_heads_take_float32_whatever_torsos_compute_in() -> None:
    settings = small_config(env__target="envs.Clock", arch__precision="bf16")
    network = actor_critic.build(settings, envs.make(settings.env))
    params = initial(network)
    assert {x.dtype.name for x in jax.tree.leaves(params)} == {"float32"}
    obs, reset = jnp.ones((1, 3, 2)), jnp.zeros((1, 3), bool)
    assert products_by_type(network.unroll, params, (), obs, reset) == {"bfloat16": 2, "float32": 2}
    bias = jnp.float32(1.001)  # bfloat16 has no such number
    head = jax.tree.map(jnp.zeros_like, params["critic_head"])
    head["Dense_0"]["bias"] = bias[None]
    _, output = network.unroll({**params, "critic_head": head}, (), obs, reset)
    np.testing.assert_array_equal(output.value.mean(), bias)


# Input layers


OBS = {  # [L=2, S=3, ...]
    "view": np.arange(2 * 3 * 4 * 5 * 2, dtype=np.uint8).reshape(2, 3, 4, 5, 2),
    "agents": (
        {"speed": np.arange(6.0, dtype=np.float32).reshape(2, 3)},
        {"grid": np.arange(120).reshape(2, 3, 4, 5) % 2 == 0},
    ),
    "place": np.arange(12, dtype=np.int32).reshape(2, 3, 2),
}


def output(layer: Any, *args: Any) -> Any:
    """What a layer without parameters makes of its arguments."""
    return layer.apply({}, *args)


def start(layer: Any, *args: Any) -> tuple[Any, Any]:
    """What a layer makes of its arguments at first, and its parameters."""
    result, variables = jax.jit(layer.init_with_output)(jax.random.key(0), *args)
    return result, variables.get("params", {})


def test_select_walks_dicts_and_tuples_by_dotted_keys() -> None:
    speed = output(inputs.Select("agents.0.speed"), OBS)
    assert speed.dtype == jnp.float32
    np.testing.assert_array_equal(speed, OBS["agents"][0]["speed"][..., None])
    grid = output(inputs.Select("agents.1"), OBS)
    np.testing.assert_array_equal(grid, OBS["agents"][1]["grid"].reshape(2, 3, 20))
    assert output(inputs.Select("agents.1", flatten=False), OBS) is OBS["agents"][1]
    np.testing.assert_array_equal(output(inputs.Select("a.b"), {"a.b": np.ones((1, 1))}), [[[1]]])
    np.testing.assert_array_equal(output(inputs.Select(1), (0, np.ones((1, 1)))), [[[1]]])


def test_concatenate_follows_the_order_given() -> None:
    x = output(inputs.Concatenate(["place", "agents.0", "agents.1.grid"]), OBS)
    parts = [OBS["place"], OBS["agents"][0]["speed"][..., None]]
    expected = np.concatenate([*parts, OBS["agents"][1]["grid"].reshape(2, 3, 20)], -1)
    assert x.dtype == jnp.float32
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("dtype", ["uint8", "bool"])
def test_image_is_float_and_bytes_are_scaled(dtype: str) -> None:
    leaf = (np.arange(2 * 3 * 4 * 5 * 2).reshape(2, 3, 4, 5, 2) % 7).astype(dtype)
    x = output(inputs.Image(), {"only": {"leaf": leaf}})
    assert x.dtype == jnp.float32
    scale = 255 if dtype == "uint8" else 1
    np.testing.assert_allclose(x, leaf.astype(np.float64) / scale, rtol=1e-6)


def test_image_has_its_channels_last() -> None:
    leaf = jax.random.uniform(jax.random.key(0), (2, 3, 4, 5, 6))
    first = output(inputs.Image(channel_first=True), jnp.moveaxis(leaf, -1, 2))
    np.testing.assert_array_equal(first, output(inputs.Image("a.0"), {"a": (leaf,)}))
    flat = output(inputs.Image("agents.1.grid", channel_first=True), OBS)
    np.testing.assert_array_equal(flat, OBS["agents"][1]["grid"][..., None])


def test_fuse_gives_each_entry_its_own_layer() -> None:
    layer = inputs.Fuse(
        {
            "view": torsos.Chain([inputs.Image(), torsos.CNN([2], layer_sizes=[5])]),
            "place": torsos.MLP([3]),
            "agents.0": inputs.Flatten(),
        }
    )
    x, params = start(layer, OBS)
    assert x.shape == (2, 3, 5 + 3 + 1)
    np.testing.assert_array_equal(x[..., -1], OBS["agents"][0]["speed"])
    place = OBS["place"].astype(np.float32)  # integers, which must not become the layer's type
    alone = torsos.MLP([3]).apply({"params": params["parts_place"]}, place)
    assert np.unique(alone % 1).size > 2
    np.testing.assert_allclose(x[..., 5:8], alone, rtol=1e-6)
    assert shapes(params["parts_view"])["layers_1"]["Conv_0"]["kernel"] == (3, 3, 2, 2)


# Torsos


def is_orthogonal(kernel: Any, gain: float) -> bool:
    matrix = np.asarray(kernel, np.float64).reshape(-1, kernel.shape[-1])
    gram = matrix.T @ matrix if matrix.shape[0] > matrix.shape[1] else matrix @ matrix.T
    return bool(np.allclose(gram, gain**2 * np.eye(len(gram)), atol=1e-5 * gain**2))


@pytest.mark.long
def test_noisy_layer_is_its_definition() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 3, 4))
    layer = torsos.NoisyMLP([5], activation="relu")
    _, params = start(layer, x)
    dense = params["Dense_0"]
    np.testing.assert_allclose(dense["kernel_noise"], np.full((4, 5), 0.25))  # 0.5 / sqrt(4)
    np.testing.assert_allclose(dense["bias_noise"], np.full(5, 0.25))

    @jax.jit
    def apply(params: Any, seed: int) -> Any:
        return layer.apply({"params": params}, x, rngs={"noise": jax.random.key(seed)})

    # the noise itself, from the identity's response: W + W_noise * (e_out e_in), with 1 as W_noise
    unit = {
        "kernel": jnp.full((4, 5), 10.0),  # relu does nothing
        "bias": jnp.full(5, 10.0),
        "kernel_noise": jnp.ones((4, 5)),
        "bias_noise": jnp.ones(5),
    }
    probes = jnp.concatenate([jnp.zeros((1, 4)), jnp.eye(4)])[None]
    rngs = {"noise": jax.random.key(7)}
    seen = np.asarray(layer.apply({"params": {"Dense_0": unit}}, probes, rngs=rngs)[0], np.float64)
    bias_noise = seen[0] - 10.0
    kernel_noise = seen[1:] - seen[0] - 10.0
    into = kernel_noise[:, 0] / bias_noise[0]
    assert len(np.unique(np.round(into, 3))) == 4
    assert len(np.unique(np.round(bias_noise, 3))) == 5
    np.testing.assert_allclose(kernel_noise, np.outer(into, bias_noise), rtol=1e-4, atol=1e-5)
    kernel = dense["kernel"] + dense["kernel_noise"] * kernel_noise
    bias = dense["bias"] + dense["bias_noise"] * bias_noise
    expected = np.maximum(np.asarray(x) @ np.asarray(kernel) + np.asarray(bias), 0.0)
    np.testing.assert_allclose(apply(params, 7), expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(apply(params, 7), apply(params, 8))


def test_noise_is_the_signed_root_of_a_gaussian() -> None:
    """f(x) = sgn(x) sqrt|x| of N(0, 1): E f = 0, E f^2 = E|x| = sqrt(2 / pi), E f^4 = 1."""
    size = 4096
    layer = torsos.NoisyMLP([size], initial_noise=1.0)
    zero = {"kernel": jnp.zeros((1, size)), "kernel_noise": jnp.zeros((1, size))}
    zero |= {"bias": jnp.zeros(size), "bias_noise": jnp.full(size, 0.01)}
    x = layer.apply(
        {"params": {"Dense_0": zero}}, jnp.ones((1, 1)), rngs={"noise": jax.random.key(0)}
    )
    noise = np.arctanh(np.asarray(x, np.float64)) * 100.0
    assert abs(noise.mean()) < 0.05
    assert abs((noise**2).mean() - np.sqrt(2 / np.pi)) < 0.05
    assert abs((noise**4).mean() - 1.0) < 0.1


def test_without_noise_a_noisy_mlp_is_the_mlp_of_its_mean_weights() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 3, 4))
    noisy = torsos.NoisyMLP([5, 3], layer_norm=True)
    x_noisy, params = start(noisy, x)
    mean = {
        name: {key: value for key, value in layer.items() if not key.endswith("_noise")}
        for name, layer in params.items()
    }
    plain = torsos.MLP([5, 3], layer_norm=True)
    assert shapes(mean) == shapes(start(plain, x)[1])
    x_plain = jax.jit(plain.apply)({"params": mean}, x)
    np.testing.assert_allclose(x_noisy, x_plain, rtol=1e-5, atol=1e-6)
    assert is_orthogonal(params["Dense_0"]["kernel"], np.sqrt(2))
    assert not np.any(params["Dense_0"]["bias"])


def convolution(x: Any, kernel: Any, stride: int, padding: str) -> Any:
    """sum_ijc x[s p + i, s q + j, c] K[i, j, c, f], float64; SAME pads the end by the odd one."""
    x, kernel = np.asarray(x, np.float64), np.asarray(kernel, np.float64)
    size = kernel.shape[0]
    if padding == "SAME":
        totals = [max((-(-n // stride) - 1) * stride + size - n, 0) for n in x.shape[1:3]]
        x = np.pad(x, ((0, 0), *((t // 2, t - t // 2) for t in totals), (0, 0)))
    height, width = ((n - size) // stride + 1 for n in x.shape[1:3])
    y = np.zeros((x.shape[0], height, width, kernel.shape[-1]))
    for p in range(height):
        for q in range(width):
            window = x[:, p * stride : p * stride + size, q * stride : q * stride + size]
            y[:, p, q] = np.einsum("nijc,ijcf->nf", window, kernel)
    return y


def of_products(*args: Any, **given: Any) -> jax.Array:
    return convolutions.of_products(*args, **given).transpose(1, 2, 3, 0)


def of_later_products(x: Any, *args: Any) -> jax.Array:
    """As after another convolution."""
    return of_products(jnp.asarray(x).transpose(3, 0, 1, 2), *args, first=False)


CONVOLUTIONS = (convolutions.plain, of_products, of_later_products)


@pytest.mark.parametrize(
    "size, stride, image, features, padding",
    [
        *((3, 1, (5, 4), 2, "SAME"), (3, 2, (6, 5), 4, "SAME"), (2, 3, (7, 5), 2, "VALID")),
        *((4, 2, (9, 8), 4, "VALID"), (4, 2, (9, 8), 2, "SAME")),
    ],
)
def test_forms_of_convolution_are_the_sum(
    size: int, stride: int, image: tuple[int, int], features: int, padding: str
) -> None:
    rng = np.random.default_rng(size)
    x = rng.normal(size=(2, *image, 3)).astype(np.float32)
    kernel = rng.normal(size=(size, size, 3, features)).astype(np.float32)
    expected = convolution(x, kernel, stride, padding)
    for actual in jax.jit(lambda *a: [f(*a, stride, padding) for f in CONVOLUTIONS])(x, kernel):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size, features", [(3, 4), (4, 4), (4, 16)])
def test_forms_of_convolution_have_the_same_gradients(size: int, features: int) -> None:
    x = jax.random.normal(jax.random.key(0), (6, 6, 5, 3))
    kernel = jax.random.normal(jax.random.key(1), (size, size, 3, features))

    def loss(x: Any, kernel: Any, form: Any) -> Any:
        return jnp.sum(form(x, kernel, 2, "SAME") ** 2)

    grad = jax.jit(jax.grad(loss, (0, 1)), static_argnums=2)
    expected, *others = (grad(x, kernel, form) for form in CONVOLUTIONS)
    for actual in others:
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("platform, size, features", [("cpu", 4, 4), ("cuda", 4, 16)])
def test_a_convolution_in_bfloat16_is_of_rounded_factors(
    platform: str, size: int, features: int
) -> None:
    """XLA's own, on GPUs, also rounds the sums."""
    x = jax.random.normal(jax.random.key(0), (6, 6, 5, 3))
    kernel = jax.random.normal(jax.random.key(1), (size, size, 3, features))
    cotangent = jax.random.normal(jax.random.key(2), (6, 3, 3, features))

    def results(dtype: Any, *given: jax.Array) -> list[np.ndarray]:
        def form(x: Any, kernel: Any) -> Any:
            y = convolutions.convolve(x, kernel, 2, "SAME", dtype)
            return y.transpose(1, 2, 3, 0) if convolutions.channels_first() else y

        def all_of(x: Any, kernel: Any, cotangent: Any) -> Any:
            y, back = jax.vjp(form, x, kernel)
            return y, *back(cotangent)

        with compiling_for(platform):
            return [np.asarray(each) for each in jax.jit(all_of)(*given)]

    given = x, kernel, cotangent
    rounded = [each.astype(jnp.bfloat16).astype(jnp.float32) for each in given]
    found, expected = results(jnp.bfloat16, *given), results(jnp.float32, *rounded)
    exact = results(jnp.float32, *given)
    for actual, wanted, other in zip(found, expected, exact, strict=True):
        assert actual.dtype == np.float32
        tolerance = 1e-5 if platform == "cpu" else 2.0**-6
        np.testing.assert_allclose(actual, wanted, rtol=tolerance, atol=10 * tolerance)
        assert not np.allclose(actual, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "platform, channels, stride, padding",
    [*(("cpu", 4, 2, "VALID"), ("cpu", 3, 2, "SAME"), ("cuda", 3, 2, "SAME"))],
)
def test_bytes_are_convolved_as_their_share_of_255(
    platform: str, channels: int, stride: int, padding: str
) -> None:
    rng = np.random.default_rng(stride)
    x = rng.integers(0, 256, (3, 9, 8, channels), np.uint8)
    kernel = rng.normal(size=(4, 4, channels, 5)).astype(np.float32)

    def form(kernel: jax.Array, x: Any) -> Any:
        y = convolutions.convolve(x, kernel, stride, padding)
        return y.transpose(1, 2, 3, 0) if convolutions.channels_first() else y

    expected = convolution(x / 255, kernel, stride, padding)
    cotangent = rng.normal(size=expected.shape).astype(np.float32)

    @jax.jit
    def results(kernel: jax.Array, cotangent: jax.Array) -> Any:
        found, back = jax.vjp(partial(form, x=x), kernel)
        floats = jax.vjp(partial(form, x=jnp.float32(x / 255)), kernel)[1]
        return found, *back(cotangent), *floats(cotangent)

    with compiling_for(platform):
        found, of_bytes, of_floats = results(kernel, cotangent)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_bytes, of_floats, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num, parts", [(128, 8), (22, 1)])
def test_images_are_convolved_in_parts_of_equal_size(num: int, parts: int) -> None:
    """Of about 23 images: of each, 21 x 21 blocks give 128 numbers of 4 bytes."""
    layer = torsos.CNN([32], [8], [4], layer_sizes=[])
    x = jnp.zeros((1, num, 84, 84, 4))
    params = jax.eval_shape(layer.init, jax.random.key(0), x)
    jaxpr = str(jax.make_jaxpr(layer.apply)(params, x))
    assert f"f32[128,{num // parts},21,21]" in jaxpr
    assert ("scan" in jaxpr) == (parts > 1)


@pytest.mark.long
@pytest.mark.parametrize(
    "layer",
    [torsos.CNN([3], [2], [1], layer_sizes=[4]), torsos.ResidualCNN([2], 1, layer_sizes=[4])],
)
def test_images_in_parts_give_the_same_features_and_gradients(
    layer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = jax.random.normal(jax.random.key(0), (2, 3, 6, 5, 2))
    _, params = start(layer, x)

    def features_and_gradient() -> Any:
        def total(p: Any) -> jax.Array:
            return jnp.sum(layer.apply({"params": p}, x) ** 2)

        return jax.jit(jax.value_and_grad(total))(params)

    expected = features_and_gradient()
    small = dataclasses.replace(platforms.FORMS["cpu"], convolution_bytes=1)
    monkeypatch.setitem(platforms.FORMS, "cpu", small)
    assert "length=6" in str(jax.make_jaxpr(layer.apply)({"params": params}, x))
    close(features_and_gradient(), expected, rtol=1e-4, atol=1e-4)
    assert shapes(start(layer, x)[1]) == shapes(params)


@pytest.mark.parametrize("size, stride, dtype", [(3, 1, "float32"), (4, 2, "uint8")])
def test_a_convolution_is_exported_for_any_number_of_images(
    size: int, stride: int, dtype: str
) -> None:
    (b,) = jax.export.symbolic_shape("b")
    kernel = jax.random.normal(jax.random.key(1), (size, size, 4, 3))
    images = jax.ShapeDtypeStruct((b, 6, 5, 4), dtype)
    form = jax.jit(lambda x: of_products(x, kernel, stride, "SAME"))
    exported = jax.export.export(form)(images)
    x = np.random.default_rng(0).integers(0, 256, (5, 6, 5, 4)).astype(dtype)
    expected = convolution(x / 255 if dtype == "uint8" else x, kernel, stride, "SAME")
    np.testing.assert_allclose(exported.call(x), expected, rtol=1e-5, atol=1e-3)


def test_cnn_is_convolutions_then_dense_layers() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 7, 6, 3)).astype(np.float32)
    layer = torsos.CNN([4, 5], [3, 2], [2, 1], layer_sizes=[6])
    _, params = start(layer, x)
    y = x.reshape(6, 7, 6, 3)
    for name, stride in (("Conv_0", 2), ("Conv_1", 1)):
        assert is_orthogonal(params[name]["kernel"], np.sqrt(2))
        assert not np.any(params[name]["bias"])
        params[name]["bias"] = rng.normal(size=params[name]["bias"].shape).astype(np.float32)
        y = convolution(y, params[name]["kernel"], stride, "VALID") + params[name]["bias"]
        y = np.maximum(y, 0.0)
    y = np.maximum(y.reshape(2, 3, -1) @ np.asarray(params["MLP_0"]["Dense_0"]["kernel"]), 0.0)
    actual = jax.jit(layer.apply)({"params": params}, x)
    np.testing.assert_allclose(actual, y, rtol=1e-4, atol=1e-5)


def test_cnn_normalises_whole_images() -> None:
    x = jax.random.normal(jax.random.key(0), (1, 2, 10, 10, 4))
    norm = torsos.CNN([2], layer_norm=True, padding="SAME", layer_sizes=[])
    y, params = start(norm, x)
    assert shapes(params["LayerNorm_0"]) == {"scale": (2,), "bias": (2,)}
    z = convolution(x[0], params["Conv_0"]["kernel"], 1, "SAME")
    mean, std = z.mean((1, 2, 3), keepdims=True), z.std((1, 2, 3), keepdims=True)
    expected = np.maximum((z - mean) / std, 0).reshape(1, 2, -1)
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("name, precision", [("ResidualCNN", "float32"), ("CNN", "bf16")])
def test_bytes_reach_convolutions_and_are_their_share_of_255(name: str, precision: str) -> None:
    image = {"_target_": f"{LAYERS}.inputs.Image"}
    torso = {"_target_": f"{LAYERS}.torsos.{name}", "channels": [4], "layer_sizes": [8]}
    layers = {**NETWORK, "input_layer": image, "shared_torso": torso}
    settings = small_config(
        env={"target": "envs.Picture", "kwargs": {"dtype": "uint8"}},
        network={**layers, "actor_torso": None, "critic_torso": None},
        arch__precision=precision,
    )
    network = actor_critic.build(settings, envs.make(settings.env))
    x = jax.random.bits(jax.random.key(1), (2, 3, 6, 6, 2), jnp.uint8)
    params, reset = initial(network), jnp.zeros((2, 3), bool)

    @jax.jit
    def apply(params: Any) -> Any:
        return network.network.apply(
            {"params": network.prepare(params)},
            *({}, x, None, reset),
            capture_intermediates=lambda module, _: module.name in ("input_layer", "shared_torso"),
        )

    (_, found), seen = apply(params)
    seen = {name: each["__call__"][0] for name, each in seen["intermediates"].items()}
    assert seen["input_layer"].dtype == jnp.uint8
    assert seen["shared_torso"].dtype == jnp.float32
    apart = jax.jit(network.network.shared_torso.apply)({"params": params["shared_torso"]}, x / 255)
    tolerance = 0.05 if precision == "bf16" else 1e-5
    np.testing.assert_allclose(seen["shared_torso"], apart, rtol=tolerance, atol=tolerance)
    _, unrolled = jax.jit(network.unroll)(params, {}, x, reset)
    np.testing.assert_array_equal(found.value.mean(), unrolled.value.mean())


def test_residual_cnn_is_impalas() -> None:
    x = jax.random.normal(jax.random.key(0), (1, 2, 5, 4, 3))
    layer = torsos.ResidualCNN([2], num_blocks=1, layer_sizes=[3])
    actual, params = start(layer, x)
    kernels = [params[f"Conv_{i}"]["kernel"] for i in range(3)]
    y = convolution(x[0], kernels[0], 1, "SAME")
    # 3x3 windows at every other place; of four rows or columns, SAME pads the end alone
    padded = np.pad(y, ((0, 0), (1, 1), (0, 1), (0, 0)), constant_values=-np.inf)
    pooled = np.stack(
        [
            [padded[:, p : p + 3, q : q + 3].max((1, 2)) for q in range(0, 4, 2)]
            for p in range(0, 5, 2)
        ]
    ).transpose(2, 0, 1, 3)
    z = np.maximum(convolution(np.maximum(pooled, 0), kernels[1], 1, "SAME"), 0)
    y = np.maximum(pooled + convolution(z, kernels[2], 1, "SAME"), 0).reshape(1, 2, -1)
    y = np.maximum(y @ np.asarray(params["MLP_0"]["Dense_0"]["kernel"]), 0)
    np.testing.assert_allclose(actual, y, rtol=1e-4, atol=1e-5)


def test_chain_passes_on_what_each_layer_gives() -> None:
    x = jax.random.normal(jax.random.key(0), (1, 2, 3))
    chain = torsos.Chain([torsos.MLP([4]), jnp.negative, torsos.MLP([2], "relu")])
    actual, params = start(chain, x)
    assert sorted(params) == ["layers_0", "layers_2"]
    y = -torsos.MLP([4]).apply({"params": params["layers_0"]}, x)
    y = torsos.MLP([2], "relu").apply({"params": params["layers_2"]}, y)
    np.testing.assert_allclose(actual, y, rtol=1e-5)


@pytest.mark.long
def test_torsos_in_bfloat16_do_not_round_their_result() -> None:
    """States whose features are rounded alike would have the same value."""
    key = jax.random.key(0)
    image = jax.random.normal(key, (1, 9, 4, 4, 1), jnp.bfloat16)
    vector = jax.random.normal(key, (1, 9, 3), jnp.bfloat16)
    for layer, x, num in (
        (torsos.MLP([8, 8]), vector, 2),
        (torsos.NoisyMLP([8, 8]), vector, 2),
        (torsos.CNN([2], layer_sizes=[8]), image, 2),
        (torsos.ResidualCNN([2], layer_sizes=[8]), image, 6),
        (torsos.Chain([torsos.MLP([8]), torsos.MLP([8])]), vector, 2),
    ):
        params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), jax.jit(layer.init)(key, x))
        found = jax.jit(lambda p, x, layer=layer: layer.apply(p, x, rngs={"noise": key}))(params, x)
        assert found.dtype == jnp.float32
        assert (found != found.astype(jnp.bfloat16)).any()
        assert products_by_type(layer.apply, params, x) == {"bfloat16": num}


# Heads


BOX = Box((2, 3), "float32", ((-1.0, -1.0, -1.0), (-2.0, -2.0, -2.0)), 3.0)
FREE = Box((2,), "float32")
SIZES = MultiDiscrete((2, 3), (2,))
EQUAL = MultiDiscrete((3, 3, 3, 3), (2, 2))


def features(*lead: int, scale: float = 1.0) -> Any:
    rng = np.random.default_rng(0)
    return (scale * rng.normal(size=(*(lead or (2, 4)), 5))).astype(np.float32)


def play(policy: Any) -> tuple[Any, Any, Any]:
    """An action, its log-probability and the entropy."""
    raw, log_prob = policy.sample_and_log_prob(seed=jax.random.key(1))
    return policy.to_action(raw), log_prob, policy.entropy()


@pytest.mark.parametrize(
    "head, shape",
    [
        (heads.CategoricalHead(Discrete(3)), ()),
        (heads.MultiCategoricalHead(EQUAL), (2, 2)),
        (heads.TanhNormalHead(BOX, state_dependent_std=True), (2, 3)),
        (heads.NormalHead(Box((), "float32", -1.0, 1.0)), ()),
        (heads.BetaHead(BOX), (2, 3)),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, tuple) else "",
)
def test_actor_head_fits_its_space_and_first_hardly_sees_the_state(head: Any, shape: Any) -> None:
    policy, params = start(head, features())
    action, log_prob, entropy = jax.jit(play)(policy)
    assert log_prob.shape == entropy.shape == (2, 4)
    assert action.shape == (2, 4, *shape)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if path[-1].key == "kernel":
            assert is_orthogonal(leaf, 0.01)
    np.testing.assert_allclose(entropy, entropy[0, 0], atol=0.1)


@pytest.mark.long
def test_bounds_are_of_each_element() -> None:
    low, high = np.broadcast_to(np.array([[-1.0], [-2.0]]), (2, 3)), 3.0
    for kind in (heads.TanhNormalHead, heads.BetaHead):
        policy, _ = start(kind(BOX), features(1, 200))
        action = np.asarray(jax.jit(play)(policy)[0])[0]
        assert np.all((action >= low) & (action <= high))
        # at first about symmetric around the middle, and spread over the range
        np.testing.assert_allclose(action.mean(0), (low + high) / 2, atol=0.5)
        assert np.all(np.ptp(action, 0) > 0.7 * (high - low))


@pytest.mark.parametrize(
    "kind, state_dependent_std", [(heads.NormalHead, False), (heads.TanhNormalHead, True)]
)
def test_standard_deviation_begins_where_it_is_told(kind: Any, state_dependent_std: bool) -> None:
    head = kind(BOX, state_dependent_std, initial_std=0.5, min_std=0.1)
    policy, params = start(head, jnp.zeros((2, 4, 5)))
    assert policy.scale.shape == policy.loc.shape == (2, 4, 2, 3)
    np.testing.assert_allclose(policy.scale, 0.5, rtol=1e-5)
    stds = {jnp.shape(head.apply({"params": params}, x).scale) for x in (features(), features(3))}
    assert stds == {(2, 4, 2, 3), (3, 2, 3)}
    scale = head.apply({"params": params}, features(scale=100.0)).scale
    assert state_dependent_std == (float(jnp.ptp(scale)) > 0.1)
    assert np.all(scale > 0.1)
    if not state_dependent_std:
        assert shapes(params["normal"])["log_std"] == (2, 3)
        low = jax.tree.map(jnp.copy, params)
        low["normal"]["log_std"] = jnp.full((2, 3), -100.0)
        np.testing.assert_allclose(head.apply({"params": low}, features()).scale, 0.1, rtol=1e-6)


def test_beta_head_has_one_mode() -> None:
    policy, _ = start(heads.BetaHead(BOX), features(scale=1e4))
    assert np.all(np.minimum(policy.alpha, policy.beta) >= 1.0)


MASKS = {  # [L=1, S=2, ...]; the first entry allows one value a component, the second all
    "flat": np.array([[[0, 1, 0, 0, 1], [1, 1, 1, 1, 1]]], np.int32),
    "list": [
        np.array([[[False, True], [True, True]]]),
        np.array([[[False, False, True], [True, True, True]]]),
    ],
}


@pytest.mark.parametrize("form", MASKS)
def test_mask_forbids_by_component(form: str) -> None:
    mask = MASKS[form]
    expected = np.array([[[0, 1, 0, 0, 1], [1] * 5]], bool)
    np.testing.assert_array_equal(heads.flat_mask(SIZES, mask), expected)
    head = heads.MultiCategoricalHead(SIZES)
    policy, params = start(head, features(1, 2), mask)
    np.testing.assert_allclose(policy.entropy()[0], [0.0, np.log(2) + np.log(3)], atol=1e-2)
    np.testing.assert_array_equal(policy.mode()[0, 0], [1, 2])
    without = head.apply({"params": params}, features(1, 2))
    assert np.all(without.entropy() > 1.0)


def test_mask_of_equal_components_takes_their_shape() -> None:
    flat = np.random.default_rng(0).integers(0, 2, (2, 3, 12))
    for shape in ((12,), (4, 3), (2, 2, 3)):
        found = heads.flat_mask(EQUAL, flat.reshape(2, 3, *shape))
        np.testing.assert_array_equal(found, flat.astype(bool))


def test_empty_masks_are_found_in_any_component() -> None:
    mask = np.ones((2, 3, 5), bool)
    mask[0, 1, :2] = False  # the first component
    mask[1, 2, 2:] = False  # the second
    mask[0, 0, [0, 3]] = False  # neither
    expected = np.zeros((2, 3), bool)
    expected[0, 1] = expected[1, 2] = True
    np.testing.assert_array_equal(actions.empty_masks(SIZES, mask), expected)
    np.testing.assert_array_equal(
        actions.empty_masks(SIZES, [mask[..., :2], mask[..., 2:]]), expected
    )
    space = {"a": SIZES, "b": (Discrete(2), FREE), "c": Discrete(4)}
    more = np.ones((2, 3, 2), bool)
    more[0, 0] = False
    expected[0, 0] = True
    tree = {"a": mask, "b": (more, None)}
    np.testing.assert_array_equal(actions.empty_masks(space, tree), expected)


@pytest.mark.parametrize(
    "space, continuous, kind",
    [
        (Discrete(3), "beta", heads.CategoricalHead),
        (BOX, "tanh_normal", heads.TanhNormalHead),
        (BOX, "normal", heads.NormalHead),
        (BOX, "beta", heads.BetaHead),
        (FREE, "beta", heads.NormalHead),
        (Box((2,), "float32", (-1.0, -np.inf), 1.0), "beta", heads.NormalHead),
        (Box((1,), "float32", -3.4e38, 3.4e38), "tanh_normal", heads.NormalHead),
    ],
)
def test_automatic_head_follows_the_space(space: Any, continuous: str, kind: Any) -> None:
    assert type(heads.follow(space, continuous)) is kind
    of_state = heads.follow(space, continuous, state_dependent_std=True)
    assert type(of_state) is kind
    assert getattr(of_state, "state_dependent_std", True)


@pytest.mark.long
def test_product_head_is_its_parts() -> None:
    space = {"turn": Discrete(3), "move": (BOX, {"size": SIZES, "free": FREE})}
    head = heads.follow(space, continuous="normal")
    mask = {"turn": np.array([[[0, 1, 0], [1, 1, 1]]]), "move": (None, {"size": MASKS["list"]})}
    x = features(1, 2)
    policy, params = start(head, x, mask)
    turn, move = params["parts_turn"], params["parts_move"]

    @jax.jit
    def both_ways(policy: Any) -> Any:
        raw, log_prob = policy.sample_and_log_prob(seed=jax.random.key(1))
        parts = (
            (heads.CategoricalHead(Discrete(3)), turn, raw["turn"], mask["turn"]),
            (heads.NormalHead(BOX), move["parts_0"], raw["move"][0], None),
            (
                heads.MultiCategoricalHead(SIZES),
                move["parts_1"]["parts_size"],
                raw["move"][1]["size"],
                MASKS["list"],
            ),
            (heads.NormalHead(FREE), move["parts_1"]["parts_free"], raw["move"][1]["free"], None),
        )
        total = sum(
            head.apply({"params": params}, x, mask).log_prob(value)
            for head, params, value, mask in parts
        )
        free = head.apply({"params": params}, x).entropy()
        return policy.to_action(raw), log_prob, total, policy.entropy(), free

    action, log_prob, total, entropy, free = both_ways(policy)
    assert shapes(action) == shapes(zeros(space, (1, 2)))
    assert (action["turn"][0, 0], *action["move"][1]["size"][0, 0]) == (1, 1, 2)
    np.testing.assert_allclose(log_prob, total, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose((free - entropy)[0], [np.log(3 * 2 * 3), 0.0], atol=1e-2)


def test_critic_heads_give_estimates() -> None:
    scalar, params = start(heads.ScalarHead(), features())
    assert scalar.mean().shape == (2, 4)
    assert is_orthogonal(params["Dense_0"]["kernel"], 1.0)
    head = heads.CategoricalCriticHead(num_atoms=7, low=-1.0, high=3.0)
    histogram, params = start(head, features())
    assert shapes(params) == {"Dense_0": {"kernel": (5, 7), "bias": (7,)}}
    np.testing.assert_allclose(histogram.mean(), 1.0, atol=0.05)  # the middle
    params["Dense_0"]["bias"] = jnp.zeros(7).at[-1].set(100.0)
    np.testing.assert_allclose(head.apply({"params": params}, features()).mean(), 3.0, atol=1e-4)


@pytest.mark.parametrize(
    "make", [heads.ScalarHead, partial(heads.CategoricalCriticHead, num_atoms=7)]
)
def test_critic_heads_of_discrete_actions_value_each(make: Any) -> None:
    """Each as a head of its own would with these weights."""
    head, x = make(action_space=Discrete(3)), features()
    estimate, params = start(head, x)
    assert estimate.mean().shape == (2, 4, 3)
    kernel, bias = (params["Dense_0"][name] for name in ("kernel", "bias"))
    for number, part in enumerate(np.split(np.arange(kernel.shape[1]), 3)):
        one = {"Dense_0": {"kernel": kernel[:, part], "bias": bias[part]}}
        alone = make().apply({"params": one}, x).mean()
        np.testing.assert_allclose(estimate.mean()[..., number], alone, atol=1e-6)


@pytest.mark.parametrize("inputs, outputs, dtype", [(40, 30, "bfloat16"), (30, 40, "float32")])
def test_products_of_members_and_transposed_results(inputs: int, outputs: int, dtype: str) -> None:
    """They are summed in float32, and so are their gradients.

    XLA compiles some bfloat16 products with transposed results, which it then cannot run.
    """
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (2, 3, 100, inputs), (2, inputs, outputs), (2, 3, 100, outputs)
    given = [jax.random.normal(*each) for each in zip(keys, shapes, strict=True)]

    @jax.jit
    @jax.vmap
    def results(x: jax.Array, kernel: jax.Array, cotangent: jax.Array) -> Any:
        y, back = jax.vjp(products.product_of(jnp.dtype(dtype)), x, kernel)
        of_x, of_kernel = back(cotangent)
        return y, y.T, of_x, of_x.T, of_kernel, of_kernel.T

    x, kernel, cotangent = (np.asarray(each.astype(dtype), np.float64) for each in given)
    expected = (
        np.einsum("mabf,mfg->mabg", x, kernel),
        np.einsum("mabg,mfg->mabf", cotangent, kernel),
        np.einsum("mabf,mabg->mfg", x, cotangent),
    )
    found = results(*given)
    for actual, transposed, wanted in zip(found[::2], found[1::2], expected, strict=True):
        assert actual.dtype == jnp.float32
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-4)
        np.testing.assert_array_equal(jax.vmap(jnp.transpose)(transposed), actual)


# Initial weights by rules, and the critic's own input

RULES: dict[str, Any] = {
    "actor_torso": {"kind": "glorot_uniform", "gain": 2.0},
    "critic_torso.Dense_0": {"gain": 0.5},
    "actor_head": {"kind": "zeros"},
}


@pytest.mark.long
def test_initial_weights_follow_the_rules() -> None:
    network = compose(initialization=RULES)
    params, before = initial(network), initial(compose())
    actor = np.asarray(params["actor_torso"]["Dense_0"]["kernel"])
    bound = 2.0 * np.sqrt(6.0 / sum(actor.shape))
    assert 0.8 * bound < np.abs(actor).max() <= bound
    critic = np.asarray(params["critic_torso"]["Dense_0"]["kernel"], np.float64)
    assert is_orthogonal(critic, 0.5)
    assert not np.any(jax.tree.leaves(params["actor_head"])[1])
    np.testing.assert_array_equal(  # no rule: as before
        params["critic_head"]["Dense_0"]["kernel"], before["critic_head"]["Dense_0"]["kernel"]
    )
    again = jax.jit(network.init)(jax.random.key(1))["actor_torso"]["Dense_0"]["kernel"]
    assert np.any(again != actor)


ONE = {"_target_": "jaxppo.networks.inputs.Concatenate", "keys": ["observation"]}
BOTH = {"_target_": "jaxppo.networks.inputs.Concatenate", "keys": ["observation", "step"]}
SHARED = {"shared_torso": MLP, "actor_torso": None, "critic_torso": None}
PRIVILEGED: dict[str, Any] = {"env__target": "own_envs.Privileged"}


@pytest.mark.parametrize(
    "settings, entry, by_critic, by_actor",
    [
        (
            {"env__extras": ["step"], "network": {"input_layer": ONE, "critic_input": BOTH}},
            *("step", True, False),
        ),
        (PRIVILEGED, "privileged_state", True, False),
        ({**PRIVILEGED, "network": SHARED}, "privileged_state", False, False),
        (
            {**PRIVILEGED, "network__input_layer": {**BOTH, "keys": ["state", "privileged_state"]}},
            *("privileged_state", True, True),
        ),
    ],
)
def test_only_the_critic_sees_its_own_input(
    settings: Any, entry: str, by_critic: bool, by_actor: bool
) -> None:
    """The gradient of an output by an entry that is not read is zero."""
    config = small_config(**settings)
    env = envs.make(config.env)
    network = actor_critic.build(config, env)
    params, reset = initial(network), jnp.ones((1, 2), bool)
    obs = jax.tree.map(lambda x: jnp.float32(x) + 0.5, zeros(env.observation_space, (1, 2)))

    @jax.jit
    def gradients(obs: Any) -> Any:
        def outputs(obs: Any) -> tuple[jax.Array, jax.Array]:
            _, output = network.unroll(params, {}, obs, reset)
            return jnp.sum(output.distribution.logits**2), jnp.sum(output.value.mean())

        return [jax.grad(lambda o, i=i: outputs(o)[i])(obs) for i in (0, 1)]

    of_actor, of_critic = gradients(obs)
    assert np.any(of_actor.pop(entry)) == by_actor
    assert np.any(of_critic.pop(entry)) == by_critic
    assert all(np.any(x) for x in (*of_actor.values(), *of_critic.values()))


@pytest.mark.long
def test_a_q_network_does_not_see_what_only_a_critic_may() -> None:
    network = {"actor_torso": None, "critic_head": None}
    settings = small_config(env__target="own_envs.Privileged", network=network)
    env = envs.make(settings.env)
    built = q_network.build(settings, env)
    params, obs = initial(built), zeros(env.observation_space, (1, 2))

    def total(obs: Any) -> jax.Array:
        return jnp.sum(built.unroll(params, {}, obs, jnp.ones((1, 2), bool))[1].estimate.mean())

    by_entry = jax.jit(jax.grad(total))(obs)
    assert np.any(by_entry["state"])
    assert not np.any(by_entry["privileged_state"])


@pytest.mark.parametrize(
    "torso, dtype", [(torsos.MLP([3]), "int32"), (torsos.NoisyMLP([3]), "bool")]
)
def test_a_torso_of_integers_computes_in_floats(torso: Any, dtype: str) -> None:
    given = np.arange(12).reshape(3, 2, 2).astype(dtype)
    found, _ = start(torso, given)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, start(torso, given.astype(np.float32))[0])
