"""Losses against published numbers, an oracle and closed forms."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxppo import losses
from jaxppo.distributions import categorical


@jax.jit
def mean_clipped_surrogate(
    log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, clip_eps: float
) -> tuple[jax.Array, jax.Array]:
    """The mean loss and its gradient by `log_prob`."""

    def mean(log_prob: jax.Array) -> jax.Array:
        return jnp.mean(losses.clipped_surrogate(log_prob, old_log_prob, advantage, clip_eps))

    return jax.value_and_grad(mean)(log_prob)


compiled_clip_fraction = jax.jit(losses.clip_fraction)
compiled_kl = jax.jit(losses.approximate_kl)
compiled_clipped_squared_error = jax.jit(losses.clipped_squared_error)
compiled_explained_variance = jax.jit(losses.explained_variance)


def float32(values: Any) -> np.ndarray:
    return np.asarray(values, np.float32)


@pytest.mark.parametrize("case", oracles.vectors("ref_losses", "ppo_clip"), ids=oracles.case_name)
def test_clipped_surrogate_reference(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    new, old, advantage = map(
        float32, (inputs["log_prob"], inputs["old_log_prob"], inputs["advantages"])
    )
    loss, gradient = mean_clipped_surrogate(new, old, advantage, inputs["epsilon"])
    close = dict(rtol=case["rtol"], atol=case["atol"])
    np.testing.assert_allclose(loss, expected["loss"], **close)
    np.testing.assert_allclose(gradient, np.asarray(expected["grad_log_prob"]), **close)


@pytest.mark.parametrize(
    "case",
    [case for case in oracles.vectors("ref_losses", "ppo_clip") if "ratio" in case["expected"]],
    ids=oracles.case_name,
)
def test_ratio_statistics_reference(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    new, old = float32(inputs["log_prob"]), float32(inputs["old_log_prob"])
    close = dict(rtol=case["rtol"], atol=case["atol"])
    fraction = np.mean(compiled_clip_fraction(new, old, inputs["epsilon"]))
    np.testing.assert_allclose(fraction, expected["clip_fraction"], **close)
    np.testing.assert_allclose(np.mean(compiled_kl(new, old)), expected["approx_kl_k3"], **close)


@pytest.mark.parametrize("case", oracles.vectors("ref_losses", "value_loss"), ids=oracles.case_name)
def test_value_loss_reference(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    value, old, target = map(float32, (inputs["value"], inputs["old_value"], inputs["targets"]))
    clipped = np.mean(compiled_clipped_squared_error(value, old, target, inputs["epsilon"]))
    close = dict(rtol=case["rtol"], atol=case["atol"])
    np.testing.assert_allclose(clipped, expected["clipped"], **close)
    unclipped = np.mean(losses.squared_error(value, target))
    np.testing.assert_allclose(unclipped, expected["unclipped"], **close)


@pytest.mark.parametrize("case", oracles.vectors("ref_losses", "entropy"), ids=oracles.case_name)
def test_entropy_reference(case: dict[str, Any]) -> None:
    def mean_entropy(logits: jax.Array) -> jax.Array:
        return jnp.mean(categorical(logits).entropy())

    entropy, gradient = jax.value_and_grad(mean_entropy)(float32(case["inputs"]["logits"]))
    np.testing.assert_allclose(
        entropy, case["expected"]["mean"], rtol=case["rtol"], atol=case["atol"]
    )
    assert np.all(np.isfinite(gradient))


def test_clipped_surrogate_from_logits() -> None:
    [case] = oracles.vectors("ext_rlax_policy_losses", "ppo_clip_from_logits")
    inputs, actions = case["inputs"], jnp.asarray(case["inputs"]["actions"])
    new = categorical(jnp.asarray(inputs["logits"])).log_prob(actions)
    old = categorical(jnp.asarray(inputs["old_logits"])).log_prob(actions)
    for advantage, expected in zip(inputs["advantages_rows"], case["expected"], strict=True):
        loss, _ = mean_clipped_surrogate(new, old, float32(advantage), inputs["epsilon"])
        np.testing.assert_allclose(loss, expected, atol=case["atol"])


def test_weighted_entropy() -> None:
    [case] = oracles.vectors("ext_rlax_policy_losses", "weighted_entropy_loss")
    entropy = categorical(jnp.asarray(case["inputs"]["logits"])).entropy()
    for weights, expected in zip(case["inputs"]["weights_rows"], case["expected"], strict=True):
        np.testing.assert_allclose(
            -np.mean(float32(weights) * entropy), expected, atol=case["atol"]
        )


def test_categorical_entropy_against_the_closed_form() -> None:
    logits = float32(np.random.default_rng(0).normal(scale=3.0, size=(64, 5)))
    expected = [oracles.categorical_entropy(row) for row in logits]
    np.testing.assert_allclose(categorical(logits).entropy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_actions", [1, 2, 18])
def test_entropy_of_equal_logits_is_the_log_of_their_number(num_actions: int) -> None:
    entropy = categorical(jnp.full((3, num_actions), 4.0)).entropy()
    np.testing.assert_allclose(entropy, math.log(num_actions), atol=1e-6)


SIZE = 512


def random_log_probs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    new, old = float32(rng.normal(-1.0, 0.4, size=(2, SIZE)))
    return new, old


@pytest.mark.parametrize("clip_eps", [0.05, 0.2, 0.9])
def test_clipped_surrogate_against_the_oracle(clip_eps: float) -> None:
    new, old = random_log_probs(0)
    advantage = float32(np.random.default_rng(1).normal(size=SIZE))
    expected, expected_gradient = oracles.clipped_surrogate(new, old, advantage, clip_eps)
    loss, gradient = mean_clipped_surrogate(new, old, advantage, clip_eps)
    np.testing.assert_allclose(loss, expected.mean(), rtol=1e-5)
    np.testing.assert_allclose(gradient * SIZE, expected_gradient, rtol=1e-5, atol=1e-6)
    assert 0 < np.count_nonzero(expected_gradient == 0.0) < SIZE


def test_gradient_at_ratio_one_is_the_policy_gradient() -> None:
    old, _ = random_log_probs(0)
    advantage = float32(np.random.default_rng(1).normal(size=SIZE))
    _, gradient = mean_clipped_surrogate(old, old, advantage, 0.2)
    np.testing.assert_allclose(gradient * SIZE, -advantage, rtol=1e-6)


@pytest.mark.parametrize("clip_eps", [0.2, 1.0])
def test_clipped_value_loss_against_the_oracle(clip_eps: float) -> None:
    value, old, target = float32(np.random.default_rng(2).normal(size=(3, SIZE)))
    loss = compiled_clipped_squared_error(value, old, target, clip_eps)
    expected = oracles.clipped_squared_error(value, old, target, clip_eps)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)

    def total(value: jax.Array) -> jax.Array:
        return jnp.sum(losses.clipped_squared_error(value, old, target, clip_eps))

    h = 1e-6
    up, down = (
        oracles.clipped_squared_error(value + np.float64(step), old, target, clip_eps)
        for step in (h, -h)
    )
    slope = (up - down) / (2.0 * h)
    np.testing.assert_allclose(jax.jit(jax.grad(total))(value), slope, rtol=1e-4, atol=1e-4)
    assert 0 < np.count_nonzero(slope == 0.0) < SIZE


def test_approximate_kl_against_the_oracle() -> None:
    new, old = random_log_probs(0)
    estimates = compiled_kl(new, old)
    assert np.all(estimates >= 0.0)
    expected = oracles.approximate_kl(new, old)
    np.testing.assert_allclose(estimates, expected, rtol=1e-4, atol=1e-7)


def test_approximate_kl_keeps_its_digits_near_zero() -> None:
    new = np.full(SIZE, 1e-3, np.float32)
    estimates = compiled_kl(new, np.zeros_like(new))
    np.testing.assert_allclose(estimates, 0.5e-6, rtol=1e-3)  # x^2 / 2, of terms near 1


def test_approximate_kl_is_the_kl_in_expectation() -> None:
    new, old = np.random.default_rng(3).normal(size=(2, 6)).astype(np.float32)
    log_new, log_old = (np.asarray(jax.nn.log_softmax(logits), np.float64) for logits in (new, old))
    estimates = losses.approximate_kl(float32(log_new), float32(log_old))
    exact = np.sum(np.exp(log_old) * (log_old - log_new))  # KL(old || new), actions from the old
    np.testing.assert_allclose(np.sum(np.exp(log_old) * estimates), exact, rtol=1e-5)


@pytest.mark.parametrize("clip_eps", [0.05, 0.2, 0.9])
def test_clip_fraction_counts_ratios_outside(clip_eps: float) -> None:
    new, old = random_log_probs(4)
    outside = [
        abs(math.exp(float(n) - float(o)) - 1.0) > clip_eps for n, o in zip(new, old, strict=True)
    ]
    np.testing.assert_array_equal(compiled_clip_fraction(new, old, clip_eps), float32(outside))


@pytest.mark.parametrize("noise", [0.0, 0.3, 3.0])
def test_explained_variance_against_the_oracle(noise: float) -> None:
    rng = np.random.default_rng(5)
    target = float32(rng.normal(2.0, 1.5, size=SIZE))
    value = float32(target + noise * rng.normal(1.0, 1.0, size=SIZE))
    result = compiled_explained_variance(value, target)
    np.testing.assert_allclose(result, oracles.explained_variance(value, target), rtol=1e-4)


def test_explained_variance_of_a_constant_target_is_zero() -> None:
    value = float32(np.random.default_rng(6).normal(size=SIZE))
    assert compiled_explained_variance(value, np.full(SIZE, 3.0, np.float32)) == 0.0


@pytest.mark.parametrize(
    "function, num_arrays, settings",
    [
        (losses.clipped_surrogate, 3, (0.2,)),
        (losses.squared_error, 2, ()),
        (losses.clipped_squared_error, 3, (0.2,)),
        (losses.explained_variance, 2, ()),
    ],
)
def test_refuses_shapes_that_would_broadcast(
    function: Any, num_arrays: int, settings: tuple[float, ...]
) -> None:
    for wrong in range(num_arrays):
        arrays = [jnp.zeros((4, 1) if i == wrong else (4,)) for i in range(num_arrays)]
        with pytest.raises(AssertionError):
            function(*arrays, *settings)
