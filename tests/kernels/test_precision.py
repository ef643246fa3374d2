"""`arch.precision`: what each matrix product asks for, and how far ratios go from 1."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import refused, small_config
from phases import compiled, rollout_after

from jaxppo.algorithms import spine
from jaxppo.kernels import products
from jaxppo.kernels.platforms import FORMS, compiling_for
from jaxppo.runtime.programs import compile

LSTM = {"_target_": "jaxppo.networks.memory.Recurrent", "cell": "lstm", "size": 8}
NOISY = {"_target_": "jaxppo.networks.torsos.NoisyMLP", "layer_sizes": [8]}
WIDE = {"_target_": "jaxppo.networks.torsos.MLP", "layer_sizes": [256, 256]}
# The actor has noise, the critic a memory
ALL: dict[str, Any] = {
    "network__actor_torso": NOISY,
    "network__critic_memory": LSTM,
    "system__sequence_length": None,
}


def asked(small: Any, platform: str, **settings: Any) -> set[str]:
    """The precisions of all matrix products of an update, each of both factors."""
    found = set()

    def note(product: Any) -> int:
        found.add(product.params["precision"])
        return 1

    with compiling_for(platform):
        system, state = small(**settings)
        jaxpr = jax.make_jaxpr(partial(spine.update, system))(state)
    compile.count_products(jaxpr.jaxpr, note)
    return {"JAX's" if one is None else "/".join({x.name for x in one}) for one in found}


@pytest.mark.long
@pytest.mark.parametrize(
    "platform, precision, wanted",
    [("cpu", None, "JAX's"), ("cuda", None, "HIGH"), ("tpu", "highest", "HIGHEST")],
)
def test_products_and_their_gradients_ask_for_the_precision(
    small: Any, platform: str, precision: str | None, wanted: str
) -> None:
    assert asked(small, platform, arch__precision=precision, **ALL) == {wanted}
    assert FORMS["tpu"].precision == FORMS["gpu"].precision


def test_environments_compute_in_float32(small: Any) -> None:
    """Physics at TF32 is another physics."""
    assert asked(small, "cuda", env={"target": "envs.Turned"}) == {"HIGH", "HIGHEST"}


def test_the_choice_of_a_user_of_jax_stays(small: Any) -> None:
    with jax.default_matmul_precision("highest"):
        assert asked(small, "cuda", arch__precision="float32") == {"HIGHEST"}


@pytest.mark.long
@pytest.mark.parametrize("bits, bound", [(10, 1e-4), pytest.param(7, 1e-3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("memory", [None, pytest.param(LSTM, marks=pytest.mark.slow)])
def test_ratios_stay_near_one_at_reduced_precision(
    small: Any, bits: int, bound: float, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first minibatch's ratios, where factors of products have the bits of TF32 or bfloat16.

    Learning adds in the opposite order to acting: on accelerators, the order depends on the size of
    the batch. docs/performance.md states the bounds.
    """
    exact, learns = products.contract, False

    def rounded(a: jax.Array, b: jax.Array, *axes: tuple[int, ...]) -> jax.Array:
        factors = (jax.lax.reduce_precision(x, 8, bits) for x in (a, b))
        if learns:
            factors = (jnp.flip(x, over) for x, over in zip(factors, axes, strict=True))
        return exact(*factors, *axes)

    monkeypatch.setattr(products, "contract", rounded)
    torsos = {f"network__{who}_torso": WIDE for who in ("actor", "critic")}
    settings = {**torsos, "network__shared_memory": memory, "system__sequence_length": None}
    with compiling_for("cuda"):
        system, state = small(**settings, arch__total_num_envs=64)
        phases = compiled(system)
        state, _, batch = rollout_after(phases, state, 2)
        agent, learns = state.agent, True
        _, metrics = compiled(system).loss(agent, agent.policy.params, batch)
    ratios = np.asarray([metrics.ratio_min, metrics.ratio_max])
    assert 0 < np.abs(ratios - 1).max() <= bound


def test_rounding_of_products_is_seen() -> None:
    """The rounding of the test above changes products by as much as TF32 would."""
    x = jnp.linspace(0.1, 1.0, 64).reshape(8, 8)
    with_bits = [jax.lax.reduce_precision(x, 8, bits) for bits in (23, 10)]
    exact, rounded = (np.asarray(y @ y) for y in with_bits)
    assert 1e-5 < np.abs(exact / rounded - 1).max() < 1e-3


def test_an_unknown_precision_is_refused() -> None:
    with refused(r"arch\.precision=fp8"):
        small_config(arch__precision="fp8")
