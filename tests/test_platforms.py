"""The forms of a computation follow the platform that it is compiled for."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.kernels import convolutions, products, random_bits, recurrences
from jaxppo.kernels.platforms import compiling_for, forms

PACKAGE = Path(__file__).resolve().parents[1] / "jaxppo"


def gradient(kernel: jax.Array) -> jax.Array:
    x = jnp.linspace(-1.0, 1.0, 24).reshape(4, 6)
    return jax.grad(lambda kernel: jnp.sum(jnp.sin(products.float32_product(x, kernel))))(kernel)


def draw(kernel: jax.Array) -> jax.Array:
    return jax.random.normal(random_bits.quick(jax.random.key(3)), kernel.shape)


def convolve(kernel: jax.Array) -> jax.Array:
    images = jnp.linspace(-1.0, 1.0, 2 * 7 * 5 * 6).reshape(2, 7, 5, 6)
    return convolutions.convolve(images, kernel[:, :2].reshape(2, 2, 6, -1)[..., :3], 2, "SAME")


def recur(kernel: jax.Array) -> jax.Array:
    steps = jnp.broadcast_to(kernel, (64, *kernel.shape))
    reset = jnp.arange(64)[:, None] % 10 == jnp.zeros(kernel.shape[0], int)
    decay = jnp.full(kernel.shape[-1], 0.9)
    return recurrences.linear_recurrence(decay, steps, reset, jnp.zeros_like(kernel))


CHOICES = {"product": gradient, "hash": draw, "convolution": convolve, "recurrence": recur}


@pytest.mark.parametrize("name", CHOICES)
def test_a_program_takes_the_forms_of_the_platform_it_is_compiled_for(name: str) -> None:
    """Traced within one process for several platforms, as `export what=learner` does."""
    function: Callable[..., Any] = jax.jit(CHOICES[name])
    kernel = jnp.linspace(0.1, 2.0, 48).reshape(6, 8)
    if name == "convolution":
        kernel = jnp.linspace(0.1, 2.0, 24 * 12).reshape(24, 12)
    texts, results = {}, {}
    for platform in ("cpu", "cuda", "cpu"):
        with compiling_for(platform):
            traced = function.trace(kernel)
            texts.setdefault(platform, set()).add(str(traced.jaxpr))
            results[platform] = np.asarray(traced.lower().compile()(kernel))
    assert len(texts["cpu"]) == len(texts["cuda"]) == 1
    assert texts["cpu"] != texts["cuda"]
    np.testing.assert_allclose(results["cpu"], results["cuda"], rtol=2e-5, atol=1e-6)


def test_platforms_without_measurements_take_plain_forms() -> None:
    with compiling_for("tpu"):
        tpu = forms()
    with compiling_for("a platform of tomorrow"):
        assert forms() == tpu
    assert forms() != tpu  # these tests run on a CPU


def test_the_machine_is_asked_in_one_place() -> None:
    asking = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "default_backend"
    ]
    assert asking == ["kernels/platforms.py"]
