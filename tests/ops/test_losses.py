"""Losses against published numbers, an oracle and closed forms."""

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from conftest import close

from jaxppo.algorithms.objectives import OBJECTIVES, with_clipped_ratio
from jaxppo.ops import losses
from jaxppo.ops.distributions import categorical, clipped_normal, multi_categorical, product


def with_slopes(function: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """An elementwise loss, compiled, with its derivative by its first array."""

    def both(x: jax.Array, *rest: Any) -> tuple[jax.Array, jax.Array]:
        def total(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            values = function(x, *rest)
            return jnp.sum(values), values

        slopes, values = jax.grad(total, has_aux=True)(x)
        return values, slopes

    return jax.jit(both)


surrogate = with_slopes(losses.surrogate)
clipped_surrogate = with_slopes(losses.clipped_surrogate)
discovered_objective = with_slopes(losses.discovered_objective)
reinforce = with_slopes(losses.reinforce)
huber_error = with_slopes(losses.huber_error)
compiled_clip_fraction = jax.jit(losses.clip_fraction)
compiled_kl = jax.jit(losses.approximate_kl)
clipped_squared_error = partial(losses.clipped_error, losses.squared_error)
compiled_clipped_squared_error = jax.jit(clipped_squared_error)
compiled_explained_variance = jax.jit(losses.explained_variance)


def float32(values: Any) -> np.ndarray:
    return np.asarray(values, np.float32)


def of(*names: str, source: str = "ref_losses") -> Any:
    """Run a test for each published case of these functions."""
    return pytest.mark.parametrize("case", oracles.vectors(source, *names), ids=oracles.case_name)


def near(case: dict[str, Any], found: Any, *names: str) -> None:
    """Compare numbers with those that a case expects, by their names."""
    for x, name in zip(found, names, strict=True):
        wanted = np.asarray(case["expected"][name])
        np.testing.assert_allclose(x, wanted, rtol=case["rtol"], atol=case["atol"])


@of("ppo_clip")
def test_clipped_surrogate_reference(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    new, old = float32(inputs["log_prob"]), float32(inputs["old_log_prob"])
    advantage, clip_eps = float32(inputs["advantages"]), inputs["epsilon"]
    loss, slope = clipped_surrogate(new, old, advantage, clip_eps)
    near(case, (np.mean(loss), slope / new.size), "loss", "grad_log_prob")
    if "ratio" in case["expected"]:
        fraction = np.mean(compiled_clip_fraction(new, old, clip_eps))
        near(case, (fraction, np.mean(compiled_kl(new, old))), "clip_fraction", "approx_kl_k3")


@of("value_loss")
def test_value_loss_reference(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    value, old, target = map(float32, (inputs["value"], inputs["old_value"], inputs["targets"]))
    clipped = np.mean(compiled_clipped_squared_error(value, old, target, inputs["epsilon"]))
    near(case, (clipped, np.mean(losses.squared_error(value, target))), "clipped", "unclipped")


@of("dpo")
def test_discovered_objective_reference(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    names = ("log_prob", "old_log_prob", "advantages")
    new, old, advantage = (np.asarray(inputs[name]) for name in names)
    settings = inputs["alpha"], inputs["beta"]
    result, _ = discovered_objective(*map(float32, (new, old, advantage)), *settings)
    near(case, (np.mean(result), result + np.exp(new - old) * advantage), "loss", "drift")


@of("ppo_penalty")
def test_penalty_reference(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    old, new = (categorical(float32(inputs[name])) for name in ("old_logits", "logits"))
    actions, advantage = jnp.asarray(inputs["actions"]), float32(inputs["advantages"])
    kl = old.kl_divergence(new)
    loss = losses.surrogate(new.log_prob(actions), old.log_prob(actions), advantage)
    near(case, (np.mean(kl), np.mean(loss + inputs["beta"] * kl)), "kl_old_new", "loss")


@of("entropy")
def test_entropy_reference(case: dict[str, Any]) -> None:
    def mean_entropy(logits: jax.Array) -> jax.Array:
        return jnp.mean(categorical(logits).entropy())

    entropy, gradient = jax.value_and_grad(mean_entropy)(float32(case["inputs"]["logits"]))
    near(case, (entropy,), "mean")
    assert np.all(np.isfinite(gradient))


SIZE = 512
NEW, OLD = float32(np.random.default_rng(0).normal(-1.0, 0.4, size=(2, SIZE)))  # log_probs
ADVANTAGE = float32(np.random.default_rng(1).normal(size=SIZE))


@pytest.mark.parametrize("bounds", [(0.2,), (0.2, 0.28)])
def test_clipped_surrogate_against_the_oracle(bounds: tuple[float, ...]) -> None:
    result = clipped_surrogate(NEW, OLD, ADVANTAGE, *bounds)
    expected = oracles.clipped_surrogate(NEW, OLD, ADVANTAGE, bounds[0], bounds[-1])
    close(result, expected, rtol=1e-5, atol=1e-6)
    for sign in (ADVANTAGE > 0.0, ADVANTAGE < 0.0):  # either bound is met by some
        assert 0 < np.count_nonzero(expected[1][sign] == 0.0) < np.count_nonzero(sign)


def test_surrogate_against_the_oracle() -> None:
    expected = -np.exp(NEW.astype(np.float64) - OLD) * ADVANTAGE  # is its own derivative
    close(surrogate(NEW, OLD, ADVANTAGE), (expected, expected), rtol=1e-5)


@pytest.mark.parametrize("alpha, beta", [(2.0, 0.6), (0.1, 0.05)])
def test_discovered_objective_against_the_oracle(alpha: float, beta: float) -> None:
    result = discovered_objective(NEW, OLD, 3 * ADVANTAGE, alpha, beta)
    expected = oracles.discovered_objective(NEW, OLD, 3 * ADVANTAGE, alpha, beta)
    close(result, expected, rtol=1e-4, atol=1e-5)


def test_reinforce_against_the_oracle() -> None:
    loss, gradient = reinforce(NEW, ADVANTAGE)
    np.testing.assert_allclose(loss, -ADVANTAGE.astype(np.float64) * NEW, rtol=1e-6)
    np.testing.assert_array_equal(gradient, -ADVANTAGE)


every_objective = pytest.mark.parametrize(
    "function, settings",
    [
        (surrogate, ()),
        (clipped_surrogate, (0.2,)),
        (clipped_surrogate, (0.2, 0.3)),
        (discovered_objective, (2.0, 0.6)),
    ],
)


@every_objective
def test_gradient_at_ratio_one_is_the_policy_gradient(
    function: Any, settings: tuple[float, ...]
) -> None:
    close(function(OLD, OLD, ADVANTAGE, *settings), (-ADVANTAGE, -ADVANTAGE), rtol=1e-6)


@every_objective
def test_huge_log_ratios_do_not_overflow(function: Any, settings: tuple[float, ...]) -> None:
    sizes = (61.0, 100.0, 1e3, 1e6)  # exp(89) is more than float32 holds
    ratios, advantages = np.meshgrid([s * x for x in sizes for s in (-1, 1)], [-1e3, 0.0, 1e3])
    new, advantage = float32(ratios.ravel()), float32(advantages.ravel())
    loss, gradient = function(new, np.zeros_like(new), advantage, *settings)
    assert np.all(np.isfinite(loss))
    assert np.all(np.isfinite(gradient))
    np.testing.assert_array_equal(gradient[advantage == 0.0], 0.0)


def test_objectives_take_their_numbers_from_the_agent() -> None:
    agent: Any = SimpleNamespace(
        algorithm_state=SimpleNamespace(kl_factor=0.5),
        hyperparameters=SimpleNamespace(
            clip_eps=0.1, clip_eps_high=0.4, dpo_alpha=0.3, dpo_beta=0.2, kl_coef=1.4
        ),
    )
    kl = np.linspace(0.0, 1.0, SIZE, dtype=np.float32)
    acted: Any = SimpleNamespace(kl_divergence=lambda other: kl * other)
    steps: Any = SimpleNamespace(log_prob=OLD, advantage=ADVANTAGE, distribution=acted)
    ratio = np.exp(NEW.astype(np.float64) - OLD)
    expected = {
        "clip": oracles.clipped_surrogate(NEW, OLD, ADVANTAGE, 0.1, 0.4)[0],
        "penalty": -ratio * ADVANTAGE + 0.7 * kl * 3.0,
        "dpo": oracles.discovered_objective(NEW, OLD, ADVANTAGE, 0.3, 0.2)[0],
        "reinforce": -ADVANTAGE.astype(np.float64) * NEW,
    }
    assert {*expected, "clip_dimensions"} == set(OBJECTIVES)
    for name in expected:
        objective = OBJECTIVES[name]
        policy: Any = 3.0  # stands for a distribution; only the one that acted looks at it
        loss = objective(agent, steps, policy, jnp.asarray(NEW))
        np.testing.assert_allclose(loss, expected[name], rtol=1e-4, atol=1e-5)


def dimensions(seed: int, num: int) -> tuple[Any, Any, tuple[Any, list[np.ndarray]]]:
    """Two policies, draws of the first, and what both say of each dimension (no constants)."""
    rng = np.random.default_rng(seed)
    logits, means = rng.normal(size=(2, num, 5)), rng.normal(size=(2, num, 2))
    scale, low, high = np.full((num, 2), 0.7), (-1.0, -1.0), (1.0, 1.0)

    def policy(i: int) -> Any:
        parts = map(float32, (logits[i], means[i], scale))
        categories = multi_categorical(next(parts), (2, 3), (2,))
        return product((categories, clipped_normal(*parts, low, high, event_ndim=1)))

    each = []
    chosen = rng.integers(0, (2, 3), size=(num, 2))
    moved = rng.normal(means[0], 0.7)
    for i in (0, 1):
        rows = [
            x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in np.split(logits[i], [2], axis=-1)
        ]
        of_categories = [row[np.arange(num), a] for row, a in zip(rows, chosen.T, strict=True)]
        of_numbers = -0.5 * ((moved - means[i]) / 0.7) ** 2
        each.append(np.stack([*of_categories, *of_numbers.T], -1))
    return policy(0), policy(1), ((jnp.asarray(chosen, jnp.int32), float32(moved)), each)


def test_clip_of_dimensions_against_the_oracle() -> None:
    """Each dimension is clipped by its own ratio; the constants of normals cancel."""
    old, new, (actions, (before, after)) = dimensions(0, SIZE)
    steps: Any = SimpleNamespace(action=actions, advantage=ADVANTAGE, distribution=old)
    numbers = SimpleNamespace(clip_eps=0.1, clip_eps_high=0.4)
    agent: Any = SimpleNamespace(hyperparameters=numbers)
    found = OBJECTIVES["clip_dimensions"](agent, steps, new, jnp.zeros(SIZE))
    expected = [
        oracles.clipped_surrogate(after[:, i], before[:, i], ADVANTAGE, 0.1, 0.4)[0]
        for i in range(4)
    ]
    np.testing.assert_allclose(found, np.sum(expected, axis=0), rtol=1e-4, atol=1e-4)


def test_clip_of_dimensions_at_ratio_one_has_the_policy_gradient() -> None:
    old, _, (actions, _) = dimensions(0, SIZE)
    steps: Any = SimpleNamespace(
        action=actions, advantage=ADVANTAGE, distribution=old, log_prob=old.log_prob(actions)
    )
    agent: Any = SimpleNamespace(hyperparameters=SimpleNamespace(clip_eps=0.2, clip_eps_high=0.2))

    def loss(policy: Any, name: str) -> jax.Array:
        return jnp.sum(OBJECTIVES[name](agent, steps, policy, policy.log_prob(actions)))

    found = (jax.grad(loss)(old, name) for name in ("clip_dimensions", "clip"))
    close(*found, rtol=1e-4, atol=1e-4)


def test_a_clipped_log_ratio_has_no_gradient_beyond() -> None:
    agent: Any = SimpleNamespace(
        hyperparameters=SimpleNamespace(dpo_alpha=2.0, dpo_beta=0.6, log_ratio_clip=0.3)
    )
    steps: Any = SimpleNamespace(log_prob=OLD, advantage=ADVANTAGE)

    def both(objective: Any, log_prob: jax.Array) -> tuple[jax.Array, jax.Array]:
        return with_slopes(lambda x: objective(agent, steps, None, x))(log_prob)

    objective = OBJECTIVES["dpo"]
    loss, slope = both(with_clipped_ratio(objective), NEW)
    beyond = np.abs(NEW - OLD) > 0.3
    expected, slopes = both(objective, OLD + np.clip(NEW - OLD, -0.3, 0.3))
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_array_equal(slope, np.where(beyond, 0.0, slopes))
    assert 0 < beyond.sum() < SIZE


@pytest.mark.parametrize("delta", [0.1, 2.5, 1e6])  # a large one: the squared error
def test_huber_error_against_the_oracle(delta: float) -> None:
    value, target = float32(2.0 * np.random.default_rng(2).normal(size=(2, SIZE)))
    expected = oracles.huber_error(value, target, delta)
    close(huber_error(value, target, delta), expected, rtol=1e-5, atol=1e-6)
    if delta > 1e3:
        loss, _ = huber_error(value, target, math.inf)
        np.testing.assert_allclose(loss, losses.squared_error(value, target), rtol=1e-6)


def test_huber_error_of_a_huge_error_does_not_overflow() -> None:
    value = float32([-1e30, 1e30])  # squared, more than float32 holds
    loss, gradient = huber_error(value, np.zeros_like(value), 2.0)
    np.testing.assert_allclose(loss, 2e30, rtol=1e-6)
    np.testing.assert_array_equal(gradient, [-2.0, 2.0])


@pytest.mark.parametrize("clip_eps, delta", [(0.2, 0.5), (0.2, 1e6)])
def test_clipped_huber_error_against_the_oracle(clip_eps: float, delta: float) -> None:
    value, old, target = float32(np.random.default_rng(2).normal(size=(3, SIZE)))

    def huber(value: jax.Array, target: jax.Array) -> jax.Array:
        return losses.huber_error(value, target, delta)

    loss, gradient = with_slopes(partial(losses.clipped_error, huber))(value, old, target, clip_eps)
    expected = oracles.clipped_huber_error(value, old, target, clip_eps, delta)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)
    h = 1e-6
    up, down = (
        oracles.clipped_huber_error(value + np.float64(step), old, target, clip_eps, delta)
        for step in (h, -h)
    )
    slope = (up - down) / (2.0 * h)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-4)
    assert 0 < np.count_nonzero(slope == 0.0) < SIZE
    if delta > 1e3:
        squared = compiled_clipped_squared_error(value, old, target, clip_eps)
        np.testing.assert_allclose(squared, expected, rtol=1e-5, atol=1e-6)


def test_approximate_kl_against_the_oracle() -> None:
    estimates = compiled_kl(NEW, OLD)
    assert np.all(estimates >= 0.0)
    expected = oracles.approximate_kl(NEW, OLD)
    np.testing.assert_allclose(estimates, expected, rtol=1e-4, atol=1e-7)


def test_approximate_kl_keeps_its_digits_near_zero() -> None:
    new = np.full(SIZE, 1e-3, np.float32)
    estimates = compiled_kl(new, np.zeros_like(new))
    np.testing.assert_allclose(estimates, 0.5e-6, rtol=1e-3)  # x^2 / 2, of terms near 1


@pytest.mark.parametrize("bounds", [(0.05,), (0.05, 0.5), (0.5, 0.05)])
def test_clip_fraction_counts_ratios_outside_either_bound(bounds: tuple[float, ...]) -> None:
    ratios = [math.exp(float(n) - float(o)) for n, o in zip(NEW, OLD, strict=True)]
    outside = [r < 1.0 - bounds[0] or r > 1.0 + bounds[-1] for r in ratios]
    fraction = compiled_clip_fraction(NEW, OLD, *bounds)
    np.testing.assert_array_equal(fraction, float32(outside))
    assert 0 < sum(outside) < SIZE


@pytest.mark.parametrize("noise", [0.0, 3.0])
def test_explained_variance_against_the_oracle(noise: float) -> None:
    rng = np.random.default_rng(5)
    target = float32(rng.normal(2.0, 1.5, size=SIZE))
    value = float32(target + noise * rng.normal(1.0, 1.0, size=SIZE))
    result = compiled_explained_variance(value, target)
    np.testing.assert_allclose(result, oracles.explained_variance(value, target), rtol=1e-4)


def test_explained_variance_is_that_of_all_parts() -> None:
    """The means of the parts differ, which is variance too."""
    rng = np.random.default_rng(5)
    target = float32(rng.normal(size=(4, SIZE)) + np.arange(4)[:, None])
    value = float32(target + rng.normal(size=target.shape))
    parts = jax.vmap(partial(losses.explained_variance, axes=("batch",)), axis_name="batch")
    wanted = oracles.explained_variance(value.ravel(), target.ravel())
    np.testing.assert_allclose(parts(value, target), [wanted] * 4, rtol=1e-4)


def test_explained_variance_of_a_constant_target_is_zero() -> None:
    value = float32(np.random.default_rng(6).normal(size=SIZE))
    for target in (3.0, 0.1, 1000.1):  # some means are rounded
        assert compiled_explained_variance(value, np.full(SIZE, target, np.float32)) == 0.0


@pytest.mark.parametrize(
    "function, num_arrays, settings",
    [
        (losses.surrogate, 3, ()),
        (losses.clipped_surrogate, 3, (0.2,)),
        (losses.discovered_objective, 3, ()),
        (losses.reinforce, 2, ()),
        (losses.squared_error, 2, ()),
        (losses.huber_error, 2, ()),
        (clipped_squared_error, 3, (0.2,)),
        (partial(losses.clipped_error, jnp.subtract), 3, (0.2,)),  # which would take them
        (losses.explained_variance, 2, ()),
    ],
)
def test_refuses_shapes_that_would_broadcast(
    function: Any, num_arrays: int, settings: tuple[float, ...]
) -> None:
    with pytest.raises(AssertionError):
        function(jnp.zeros((4, 1)), *[jnp.zeros(4)] * (num_arrays - 1), *settings)
