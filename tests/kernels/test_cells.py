"""The kernels of LSTM and GRU: interpreted here, and compiled for GPUs that are not."""

from functools import partial
from operator import itemgetter
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import close, refused, small_config

from jaxppo import envs
from jaxppo.config.importing import is_installed
from jaxppo.extras.chips import targets
from jaxppo.kernels import cells
from jaxppo.networks import actor_critic
from jaxppo.runtime.hosts import devices

CELLS = {"lstm": nn.OptimizedLSTMCell, "gru": nn.GRUCell}


def drawn(cell: str, length: int, num: int, inputs: int, units: int) -> tuple[Any, ...]:
    """Parameters, first carry, inputs, gradients of results, and resets, some at the first step."""
    random = np.random.default_rng(0)
    flax = CELLS[cell](units)
    start = flax.initialize_carry(jax.random.key(0), (num, 1))
    x = jnp.zeros((length, num, inputs))
    params = flax.init(jax.random.key(0), start, x[0])["params"]
    hidden = jnp.zeros((length, num, units))
    given = jax.tree.map(
        lambda x: jnp.asarray(random.normal(size=x.shape) / np.sqrt(x.shape[0]), jnp.float32),
        (params, start, x, (start, hidden)),
    )
    return (*given, jnp.asarray(random.random((length, num)) < 0.3))


def run(cell: str, params: Any, start: Any, x: Any, of: Any, reset: Any) -> Any:
    """Last carry and hidden states, and the gradients of parameters, first carry and inputs."""

    def unroll(params: Any, start: Any, x: Any) -> Any:
        return cells.unroll(cells.CELLS[cell], params, start, x, reset)

    found, pull = jax.vjp(unroll, params, start, x)
    return found, pull(of)


def in_kernels(cell: str, *given: Any) -> Any:
    with cells.fused():
        return run(cell, *given)


@partial(jax.jit, static_argnums=0)
def by_flax(cell: str, params: Any, start: Any, x: Any, of: Any, reset: Any) -> Any:
    """The same by flax's cell, step by step, and JAX's gradient."""
    flax: Any = CELLS[cell](params["hi" if cell == "lstm" else "hn"]["bias"].size)

    def unroll(params: Any, carry: Any, x: Any) -> Any:
        hidden = []
        for now, over in zip(x, reset, strict=True):
            carry = jax.tree.map(lambda c, over=over: jnp.where(over[:, None], 0, c), carry)
            carry, h = flax.apply({"params": params}, carry, now)
            hidden.append(h)
        return carry, jnp.stack(hidden)

    found, pull = jax.vjp(unroll, params, start, x)
    return found, pull(of)


def compare(one: Any, other: Any) -> None:
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=3e-6 * float(jnp.abs(b).max()))


SIZES = {  # steps, sequences, inputs, units
    "one sequence": (3, 1, 2, 16),
    "odd": (5, 19, 7, 37),
    "weights are kept": (4, 16, 3, 64),
    "widest": (2, 33, 3, 128),
}


@pytest.mark.long_but(2)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.usefixtures("interpreted")
def test_values_and_gradients_are_those_of_flax(cell: str, size: str) -> None:
    given = drawn(cell, *SIZES[size])
    text = str(jax.make_jaxpr(lambda: in_kernels(cell, *given))())
    assert text.count("pallas_call[") == 2
    compare(jax.jit(lambda: in_kernels(cell, *given))(), by_flax(cell, *given))


@pytest.mark.long_but(1)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.usefixtures("interpreted")
def test_members_are_computed_each_by_itself(cell: str) -> None:
    given = drawn(cell, 3, 17, 4, 20)
    stacked = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x if x.dtype != bool else ~x]), given)
    found = jax.jit(lambda: jax.vmap(lambda *each: in_kernels(cell, *each))(*stacked))()
    for i in range(2):
        each = jax.tree.map(itemgetter(i), stacked)
        compare(jax.tree.map(itemgetter(i), found), run(cell, *each))


@pytest.mark.usefixtures("interpreted")
def test_a_fault_before_a_reset_does_not_pass_it() -> None:
    """A carry that is not a number ends with its episode; so do its gradients."""
    params, start, x, of, _ = drawn("lstm", 3, 2, 4, 16)
    reset = jnp.array([[True, True], [False, False], [False, False]])
    start = jax.tree.map(lambda c: c.at[0].set(jnp.nan), start)
    found = jax.jit(lambda: in_kernels("lstm", params, start, x, of, reset))()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


@pytest.mark.usefixtures("interpreted")
def test_a_step_alone_and_wide_cells_have_no_kernel() -> None:
    for sizes in ((1, 4, 3, 16), (3, 4, 3, 129)):
        given = drawn("gru", *sizes)
        text = str(jax.make_jaxpr(lambda given=given: in_kernels("gru", *given))())
        assert "pallas_call[" not in text


def network_of(fused: bool | None, **changes: Any) -> Any:
    """A network with a memory before both branches."""
    config = small_config(arch__fused=fused, network__shared_memory=memory(**changes))
    return actor_critic.build(config, envs.make(config.env))


def memory(**changes: Any) -> dict[str, Any]:
    return {"_target_": "jaxppo.networks.memory.Recurrent", "cell": "lstm", "size": 8, **changes}


@pytest.mark.long_but(1)
@pytest.mark.parametrize("name", ["lstm", "optimized_lstm", "gru"])
@pytest.mark.usefixtures("interpreted")
def test_memories_have_kernels_where_they_are_asked_for(name: str) -> None:
    found = []
    for fused in (True, False, None):
        network = network_of(fused, cell=name)
        params = jax.tree.map(lambda x: x + 0.1, network.init(jax.random.key(0)))
        shape = 3, 2, *network.observation_space.shape
        obs = jnp.cos(jnp.arange(float(np.prod(shape)))).reshape(shape)
        carry, reset = network.initial_carry(2), jnp.zeros((3, 2), bool)

        def apply(params: Any, network: Any = network, given: Any = (carry, obs, reset)) -> Any:
            return jax.tree.leaves(network.unroll(params, *given))

        text = str(jax.make_jaxpr(apply)(params))
        assert text.count("pallas_call[") == (1 if fused else 0)
        found.append(jax.jit(apply)(params))
    close(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", [{"size": 129}, {"cell": "mgu"}])
def test_memories_without_a_kernel_are_refused(changes: dict[str, Any]) -> None:
    with refused(r"^arch\.fused=true: .* leave"):
        network_of(True, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["h200", "a100"])
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("num, units", [(256, 64), (16_384, 64), (256, 128), (16_384, 128)])
def test_the_largest_shapes_fit_in_a_gpu(cell: str, target: str, num: int, units: int) -> None:
    """Their compiler refuses a kernel that asks for too much shared memory."""
    if not is_installed(devices.COMPILERS["gpu"]):
        pytest.skip(f"pip install '.[{targets.EXTRAS['gpu']}]'")
    given = jax.eval_shape(lambda: drawn(cell, 4, num, 16, units))
    given = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), given)
    with targets.compiling(target):
        called = devices.parallel(lambda *given: in_kernels(cell, *given), 1)
        text = called.lower(*given).compile().as_text()
    assert text.count("__gpu$xla.gpu.triton") == 2
