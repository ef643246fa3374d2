"""Distributions against published numbers, quadrature in float64 and what must hold of any."""

import dataclasses
import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import scipy.special
from conftest import close

from jaxppo.ops import distributions, losses
from jaxppo.ops.actions import log_probs
from jaxppo.ops.distributions import (
    beta,
    categorical,
    clipped_normal,
    multi_categorical,
    product,
    tanh_normal,
)
from jaxppo.ops.values import categorical_value, scalar_value

BATCH = 3
SIZES = (2, 5, 3, 1)  # of a multi-discrete action of shape (2, 2)
LOW = ((-1.0, 0.0), (-3.0, 2.0), (0.0, -1e-3))  # of a Box of shape (3, 2)
HIGH = ((1.0, 10.0), (5.0, 2.5), (1e4, 1e-3))


def normals(rng: np.random.Generator, *shape: int) -> list[np.ndarray]:
    """Locations and scales."""
    return [rng.normal(size=shape), np.exp(0.5 * rng.normal(size=shape))]


def concentrations(rng: np.random.Generator, *shape: int) -> list[np.ndarray]:
    return [1.0 + np.exp(rng.normal(size=shape)) for _ in "ab"]


def with_mask(rng: np.random.Generator, *shape: int) -> list[np.ndarray]:
    return [rng.normal(size=shape), rng.random(shape) < 0.5]


# name -> (parameters of a batch from an rng and the leading axes, distribution of parameters)
FAMILIES: dict[str, tuple[Callable[..., list[np.ndarray]], Callable[..., Any]]] = {
    "categorical": (lambda rng, *b: with_mask(rng, *b, 7), categorical),
    "multi_categorical": (
        lambda rng, *b: with_mask(rng, *b, sum(SIZES)),
        lambda logits, mask: multi_categorical(logits, SIZES, (2, 2), mask),
    ),
    "multi_categorical_of_one_size": (
        lambda rng, *b: with_mask(rng, *b, 12),
        lambda logits, mask: multi_categorical(logits, (3, 3, 3, 3), (4,), mask),
    ),
    "tanh_normal": (
        lambda rng, *b: normals(rng, *b, 3, 2),
        lambda loc, scale: tanh_normal(loc, scale, LOW, HIGH, event_ndim=2),
    ),
    "tanh_normal_of_a_number": (
        normals,
        lambda loc, scale: tanh_normal(loc, scale, -2.0, 2.0, event_ndim=0),
    ),
    "clipped_normal": (
        lambda rng, *b: normals(rng, *b, 3, 2),
        lambda loc, scale: clipped_normal(loc, scale, LOW, math.inf, event_ndim=2),
    ),
    "beta": (
        lambda rng, *b: concentrations(rng, *b, 3, 2),
        lambda alpha, beta_: beta(alpha, beta_, LOW, HIGH, event_ndim=2),
    ),
    "product": (
        lambda rng, *b: [*with_mask(rng, *b, 7), *normals(rng, *b, 2), *normals(rng, *b)],
        lambda logits, mask, loc, scale, loc2, scale2: product(
            {
                "walk": categorical(logits, mask),
                "arm": (
                    tanh_normal(loc, scale, (-1.0, -2.0), (1.0, 2.0), event_ndim=1),
                    clipped_normal(loc2, scale2, 0.0, 3.0, event_ndim=0),
                ),
            }
        ),
    ),
}
every_family = pytest.mark.parametrize("family", FAMILIES)


def drawn(family: str, *lead: int, seed: int = 0) -> list[np.ndarray]:
    """Parameters, float32 but for the masks."""
    arrays = FAMILIES[family][0](np.random.default_rng(seed), *lead)
    return [x if x.dtype == bool else x.astype(np.float32) for x in arrays]


@functools.partial(jax.jit, static_argnums=0)
def build(family: str, parameters: list[jax.Array]) -> Any:
    return FAMILIES[family][1](*parameters)


def of(family: str, lead: int = BATCH, seed: int = 0) -> Any:
    return build(family, drawn(family, lead, seed=seed))


@jax.jit
def sample(distribution: Any, seed: Any) -> Any:
    return distribution.sample_and_log_prob(seed=seed)


@jax.jit
def describe(distribution: Any, value: Any) -> dict[str, Any]:
    """All that one distribution says of a value, and of itself."""
    greedy = distribution.mode()
    return {
        "log_prob": distribution.log_prob(value),
        "action": distribution.to_action(value),
        "entropy": distribution.entropy(),
        "mode": greedy,
        "greedy_action": distribution.to_action(greedy),
    }


def numbers(distribution: Any, other: Any, value: Any) -> dict[str, jax.Array]:
    """What is one number per batch entry."""
    return {
        "log_prob": distribution.log_prob(value),
        "other_log_prob": other.log_prob(value),
        "entropy": distribution.entropy(),
        "kl": distribution.kl_divergence(other),
    }


numbers_of = jax.jit(numbers)
kl_divergence = jax.jit(lambda distribution, other: distribution.kl_divergence(other))


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def assert_finite(tree: Any) -> None:
    assert all(np.all(np.isfinite(leaf)) for leaf in leaves(tree))


# ---- what holds of every family ----

NUM = 4000


@functools.cache
def facts(family: str) -> dict[str, Any]:
    """All of NUM pairs of distributions that share their masks, by one program: compiling is slow.

    `gradient` is that of the sum of all numbers, by the parameters of both.
    """
    parameters, others = drawn(family, NUM), drawn(family, NUM, seed=1)
    others = [a if a.dtype == bool else b for a, b in zip(parameters, others, strict=True)]

    @jax.jit
    def all_facts(parameters: Any, others: Any, seed: jax.Array) -> dict[str, Any]:
        pair = FAMILIES[family][1](*parameters), FAMILIES[family][1](*others)
        value, log_prob = pair[0].sample_and_log_prob(seed=seed)

        def total(pair: Any) -> Any:
            found = numbers(*pair, value)
            return sum(jnp.sum(x) for x in found.values()), found

        gradient, found = jax.grad(total, has_aux=True)(pair)
        return {
            **found,
            "value": value,
            "sampled_log_prob": log_prob,
            "gradient": gradient,
            "self_kl": pair[0].kl_divergence(pair[0]),
        }

    return jax.tree.map(np.asarray, all_facts(parameters, others, jax.random.key(0)))


@pytest.mark.long
@every_family
def test_numbers_of_draws_are_those_of_their_distribution(family: str) -> None:
    """So that the learner's first ratio is 1; entropy and KL are means of log-probabilities."""
    found = facts(family)
    assert np.ptp(found["log_prob"]) > 0.0
    np.testing.assert_allclose(found["sampled_log_prob"], found["log_prob"], rtol=1e-6, atol=1e-5)
    for exact, draws in (
        (found["entropy"], -found["log_prob"]),
        (found["kl"], found["log_prob"] - found["other_log_prob"]),
    ):
        errors = draws.astype(np.float64) - exact
        assert np.std(errors) > 0.0
        assert abs(np.mean(errors)) < 4.0 * np.std(errors) / math.sqrt(NUM)
    np.testing.assert_allclose(found["self_kl"], 0.0, atol=1e-6)
    assert np.all(found["kl"] >= -1e-6)
    assert np.mean(found["kl"]) > 0.1
    assert_finite(found["gradient"])
    assert all(np.any(leaf != 0.0) for leaf in leaves(found["gradient"]))


@every_family
def test_log_probs_of_dimensions_add_up(family: str) -> None:
    distribution = of(family)
    value, log_prob = sample(distribution, jax.random.key(0))
    each = jax.jit(log_probs)(distribution, value)
    assert each.shape == (*log_prob.shape, {"product": 4}.get(family, each.shape[-1]))
    assert each.shape[-1] == sum(math.prod(x.shape[log_prob.ndim :]) for x in leaves(value))
    np.testing.assert_allclose(each.sum(-1), log_prob, rtol=1e-5, atol=1e-5)


def test_log_prob_of_a_draw_is_that_of_its_rounded_value() -> None:
    """The log-density of the noise is another: here a draw has six bits of it left."""
    ones = np.ones(1000, np.float32)
    distribution = tanh_normal(50.0 * ones, 1e-4 * ones, -1.0, 1.0, event_ndim=0)
    value, log_prob = sample(distribution, jax.random.key(0))
    np.testing.assert_allclose(log_prob, describe(distribution, value)["log_prob"], rtol=1e-6)


@pytest.mark.parametrize(
    "family, low, high",
    [
        ("tanh_normal", LOW, HIGH),
        ("tanh_normal_of_a_number", -2.0, 2.0),
        ("clipped_normal", LOW, np.inf),
        ("beta", LOW, HIGH),
    ],
)
def test_actions_stay_within_bounds(family: str, low: Any, high: Any) -> None:
    low, high = np.float32(low), np.float32(high)
    edges = (0.0, 1.0) if family == "beta" else (-1e30, -300.0, -9.0, 9.0, 300.0, 1e30)
    distribution = of(family, NUM)
    drawn = [sample(distribution, jax.random.key(0))[0], distribution.mode()]
    raw = drawn + [np.full(drawn[0].shape, x, np.float32) for x in edges]
    actions = [np.asarray(distribution.to_action(x)) for x in raw]
    at_edges = actions[2:]
    for action in actions:
        assert action.dtype == np.float32
        assert np.all((action >= low) & (action <= high))
    assert np.all(at_edges[0] == low)
    assert np.all(at_edges[-1] == (1e30 if family == "clipped_normal" else high))


def test_actions_stay_within_bounds_that_round_apart() -> None:
    """The middle and half of these, in float32, reach beyond both."""
    low, high = -2.8, -0.4
    far = np.float32([-30.0, 30.0])
    action = tanh_normal(far, np.ones_like(far), low, high, event_ndim=0).to_action(far)
    np.testing.assert_array_equal(action, np.float32([low, high]))


@every_family
def test_shapes_and_types(family: str) -> None:
    """Of bfloat16 parameters too."""
    dtype = jnp.bfloat16 if "normal" in family else jnp.float32
    parameters = [x if x.dtype == bool else x.astype(dtype) for x in drawn(family, BATCH)]

    def trace(parameters: Any) -> Any:
        distribution = FAMILIES[family][1](*parameters)
        value, log_prob = distribution.sample_and_log_prob(seed=jax.random.key(0))
        greedy = distribution.mode()
        trees = (value, greedy, distribution.to_action(value), distribution.to_action(greedy))
        return distribution, log_prob, numbers(distribution, distribution, value), trees

    distribution, log_prob, found, trees = jax.eval_shape(trace, parameters)
    for x in (log_prob, *found.values()):
        assert (x.shape, x.dtype) == ((BATCH,), jnp.float32)
    for x in jax.tree.leaves(distribution):
        assert (x.shape[0], x.dtype) == (BATCH, jnp.float32)
    value, *others = (jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in trees)
    assert all(other == value for other in others)
    assert all(x.dtype in (jnp.int32, jnp.float32) for x in jax.tree.leaves(trees[0]))


@pytest.mark.long
def test_one_entry_of_a_batch_and_vmap() -> None:
    """Evaluation indexes the leaves, and maps over them."""
    one, other = of("product"), of("product", seed=1)
    value, _ = sample(one, jax.random.key(0))
    mapped = jax.jit(jax.vmap(numbers))(one, other, value)
    close(mapped, numbers_of(one, other, value), rtol=1e-5, atol=1e-5)
    first = jax.tree.map(lambda x: x[0], one)
    shapes = jax.eval_shape(sample, first, jax.random.key(0))
    assert jax.tree.map(lambda x: x.shape, shapes) == jax.tree.map(
        lambda x: x.shape[1:], sample(one, jax.random.key(0))
    )


def test_families_are_of_different_structure() -> None:
    """Or `jit` may run one for another: of dataclasses, jaxlib 0.10.2 compares no classes."""
    x = np.ones((BATCH, 2), np.float32)
    trees = [
        clipped_normal(x, x, -1.0, 1.0, event_ndim=0),
        tanh_normal(x, x, -1.0, 1.0, event_ndim=0),
        beta(x, x, -1.0, 1.0, event_ndim=0),
        categorical(x),
        scalar_value(x),
        categorical_value(x, 0.0, 1.0, 0.75),
        product({"x": categorical(x)}),
        product((categorical(x),)),
    ]
    structures = [jax.tree.structure(tree) for tree in trees]
    assert all((one == other) == (one is other) for one in structures for other in structures)


def test_structure_does_not_change_with_the_numbers() -> None:
    """Or every batch would compile anew."""
    one, other = (jax.tree.structure(of("product", seed=seed)) for seed in (0, 1))
    assert one == other
    assert hash(one) == hash(other)


# ---- categoricals ----


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    return weights / np.sum(weights)


def components(flat: np.ndarray) -> list[np.ndarray]:
    return np.split(flat, np.cumsum(SIZES)[:-1], axis=-1)


@pytest.mark.long
@pytest.mark.parametrize("width", [distributions.FEW, distributions.FEW + 1])
def test_categorical_against_distrax(width: int) -> None:
    """Numbers and gradients, however the sums over categories are taken."""
    rng = np.random.default_rng(width)
    here, there = jnp.asarray(3.0 * rng.normal(size=(2, 5, width)), jnp.float32)
    value = jnp.asarray(rng.integers(width, size=5), jnp.int32)

    def of(make: Any, logits: jax.Array) -> list[jax.Array]:
        one, other = make(logits), make(there)
        return [one.log_prob(value), one.entropy(), one.kl_divergence(other)]

    for change in (lambda f: f, jax.jacrev):
        both = (jax.jit(change(partial(of, x)))(here) for x in (categorical, distrax.Categorical))
        close(*both, rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(categorical(here).mode(), distrax.Categorical(here).mode())


def test_multi_categorical_against_its_components() -> None:
    logits = np.random.default_rng(0).normal(size=(2, BATCH, sum(SIZES))).astype(np.float32)
    one, other = (build("multi_categorical", [x, np.ones(x.shape, bool)]) for x in logits)
    value, _ = sample(one, jax.random.key(0))
    assert value.shape == (BATCH, 2, 2)
    got, greedy = numbers_of(one, other, value), np.asarray(one.mode())
    for b in range(BATCH):
        p, q = ([softmax(part) for part in components(x[b])] for x in logits)
        flat = np.ravel(value[b])
        expected = {
            "log_prob": sum(math.log(part[k]) for part, k in zip(p, flat, strict=True)),
            "entropy": -sum(np.sum(part * np.log(part)) for part in p),
            "kl": sum(np.sum(x * np.log(x / y)) for x, y in zip(p, q, strict=True)),
        }
        for name, number in expected.items():
            np.testing.assert_allclose(got[name][b], number, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(np.ravel(greedy[b]), [np.argmax(part) for part in p])


# A masked family, its sizes and its distribution over `[..., sum(SIZES)]` logits.
MASKED: dict[str, tuple[tuple[int, ...], Callable[..., Any]]] = {
    "categorical": ((sum(SIZES),), categorical),
    "multi_categorical": (SIZES, FAMILIES["multi_categorical"][1]),
}
every_masked = pytest.mark.parametrize("family", MASKED)
NUM_DRAWS = 10_000


@functools.cache
def masked_draws(family: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Logits, masks, draws and modes, the last two `[NUM_DRAWS, components]`."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(NUM_DRAWS, sum(SIZES))).astype(np.float32)
    mask = rng.random(logits.shape) < 0.4

    @jax.jit
    def draw(logits: jax.Array, mask: jax.Array, seed: jax.Array) -> Any:
        distribution = MASKED[family][1](logits, mask)
        return distribution.sample_and_log_prob(seed=seed)[0], distribution.mode()

    values = draw(logits, mask, jax.random.key(0))
    return (logits, mask, *(np.asarray(x).reshape(NUM_DRAWS, -1) for x in values))


@every_masked
def test_legal_actions_alone_are_drawn_and_as_often_as_they_should(family: str) -> None:
    logits, mask, drawn, greedy = masked_draws(family)
    num_free, end = 0, 0
    for i, n in enumerate(MASKED[family][0]):
        legal = mask[:, end : end + n]
        free = ~np.any(legal, axis=1, keepdims=True)  # nothing is legal: as if there were no mask
        legal, num_free = legal | free, num_free + np.sum(free)
        for value in (drawn[:, i], greedy[:, i]):
            assert np.all((value >= 0) & (value < n))
            assert np.all(legal[np.arange(NUM_DRAWS), value])
        weights = np.exp(logits[:, end : end + n].astype(np.float64)) * legal
        end += n
        expected = np.mean(weights / np.sum(weights, axis=1, keepdims=True), axis=0)
        counts = np.bincount(drawn[:, i], minlength=n)
        np.testing.assert_allclose(counts / NUM_DRAWS, expected, atol=0.02)
    assert num_free > 0


@functools.partial(jax.jit, static_argnums=0)
def masked_numbers(family: str, logits: jax.Array, mask: jax.Array, seed: jax.Array) -> Any:
    """Gradient of the sum by `[2, ...]` logits of two distributions; the numbers."""
    make = MASKED[family][1]
    value, _ = make(logits[0], mask).sample_and_log_prob(seed=seed)

    def total(logits: jax.Array) -> tuple[jax.Array, Any]:
        found = numbers(make(logits[0], mask), make(logits[1], mask), value)
        return sum(jnp.sum(x) for x in found.values()), found

    return jax.grad(total, has_aux=True)(logits)


@pytest.mark.long
@every_masked
@pytest.mark.parametrize("legal", ["random", "one", "none"])
def test_numbers_under_masks_are_finite_and_right(family: str, legal: str) -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(2, BATCH, sum(SIZES))).astype(np.float32)
    mask = np.zeros(logits.shape[1:], bool)
    ends = np.cumsum(MASKED[family][0])
    if legal == "random":
        mask = rng.random(mask.shape) < 0.5
    if legal == "one":
        mask[:, ends - 1] = True
    gradient, found = masked_numbers(family, logits, mask, jax.random.key(0))
    assert_finite((gradient, found))
    for b in range(BATCH):
        p, q = [], []
        for m, *both in zip(
            *(np.split(x, ends[:-1]) for x in (mask[b], *logits[:, b])), strict=True
        ):
            for probs, x in zip((p, q), both, strict=True):
                probs.append(softmax(x[m] if np.any(m) else x))
        expected = -sum(np.sum(x * np.log(x)) for x in p)
        np.testing.assert_allclose(found["entropy"][b], expected, rtol=1e-5, atol=1e-6)
        expected = sum(np.sum(x * np.log(x / y)) for x, y in zip(p, q, strict=True))
        np.testing.assert_allclose(found["kl"][b], expected, rtol=1e-5, atol=1e-6)
    if legal == "one":
        np.testing.assert_array_equal(found["log_prob"], 0.0)
        np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.long
@pytest.mark.parametrize("legal", [-2e9, -1e30])
def test_legal_actions_win_however_low_their_logits(legal: float) -> None:
    logits = np.float32([[legal, legal * 2, 5.0]])
    one = categorical(logits, np.asarray([[True, True, False]]))
    sizes = multi_categorical(logits[:, [0, 1, 0]], (2, 1), (2,))  # the second has padding
    assert int(one.mode()[0]) == 0
    np.testing.assert_allclose(one.log_prob(np.asarray([0])), 0.0)
    np.testing.assert_array_equal(one.sample(seed=jax.random.key(0), sample_shape=99), 0)
    np.testing.assert_array_equal(sizes.mode(), [[0, 0]])
    np.testing.assert_array_equal(sizes.entropy(), 0.0)
    highest = np.tile(np.float32([500.0, -50.0, 0.0]), (3, 1))  # an illegal one
    log_prob = categorical(highest, np.array([[False, True, True]] * 3)).log_prob(np.arange(3))
    assert_finite(log_prob)
    np.testing.assert_allclose(np.exp(log_prob), [0.0, math.exp(-50.0), 1.0], rtol=1e-5)


# ---- normals ----


@pytest.mark.parametrize("case", oracles.vectors("ref_tanh_normal"), ids=oracles.case_name)
def test_tanh_normal_reference(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    u = np.float32(inputs["pre_tanh"])
    loc, scale = (np.full_like(u, inputs[name]) for name in ("loc", "scale"))
    got = describe(tanh_normal(loc, scale, inputs["minimum"], inputs["maximum"], event_ndim=0), u)
    close = dict(rtol=case["rtol"], atol=case["atol"])
    np.testing.assert_allclose(got["log_prob"], expected["log_prob"], **close)
    np.testing.assert_allclose(got["action"], inputs["action"], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(got["greedy_action"], expected["deterministic_action"], rtol=1e-6)
    np.testing.assert_allclose(got["entropy"], expected["entropy"], rtol=1e-6, atol=4e-6)


@jax.jit
def entropy_and_gradient(loc: jax.Array, scale: jax.Array) -> Any:
    def total(loc: jax.Array, scale: jax.Array) -> Any:
        entropy = tanh_normal(loc, scale, -1.0, 3.0, event_ndim=0).entropy()
        return jnp.sum(entropy), entropy

    gradient, entropy = jax.grad(total, (0, 1), has_aux=True)(loc, scale)
    return entropy, *gradient


def test_tanh_normal_entropy_against_quadrature() -> None:
    """By loc, its gradient is E[-2 tanh u]; by scale, 1 / scale + E[-2 z tanh u]."""
    grid = np.meshgrid([0.0, 0.3, -2.0, 6.0], [1e-3, 0.1, 0.5, 1.0, 3.0, 10.0, 25.0])
    loc, scale = (np.float32(x.ravel()) for x in grid)
    entropy, by_loc, by_scale = entropy_and_gradient(loc, scale)
    for i, (m, s) in enumerate(zip(loc.tolist(), scale.tolist(), strict=True)):
        expected = oracles.tanh_normal_entropy(m, s, -1.0, 3.0)
        np.testing.assert_allclose(entropy[i], expected, rtol=1e-6, atol=4e-6)
        z = np.linspace(-10.0, 10.0, 4001)
        weight = np.exp(-(z**2) / 2.0) / np.sum(np.exp(-(z**2) / 2.0))
        slope = -2.0 * weight * np.tanh(m + s * z)
        np.testing.assert_allclose(by_loc[i], np.sum(slope), atol=1e-5)
        np.testing.assert_allclose(by_scale[i], 1.0 / s + np.sum(z * slope), rtol=1e-6, atol=1e-5)


@jax.jit
def far_out(u: jax.Array, loc: jax.Array, scale: jax.Array) -> Any:
    def total(u: jax.Array, loc: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_prob = tanh_normal(loc, scale, -2.0, 5.0, event_ndim=0).log_prob(u)
        return jnp.sum(log_prob), log_prob

    return jax.grad(total, (0, 1, 2), has_aux=True)(u, loc, scale)


@pytest.mark.parametrize("loc, scale", [(250.0, 0.25), (0.0, 30.0)])
def test_tanh_normal_far_out(loc: float, scale: float) -> None:
    far = [0.0, 0.5, 3.0, 9.0, 20.0, 90.0, 300.0]
    u, scale = np.float32([*far, *(-x for x in far)]), float(np.float32(scale))
    gradient, log_prob = far_out(u, np.full_like(u, loc), np.full_like(u, scale))
    expected = [oracles.tanh_normal_log_prob(x, loc, scale, -2.0, 5.0) for x in u.tolist()]
    np.testing.assert_allclose(log_prob, expected, rtol=1e-5, atol=1e-4)
    by_u = (loc - np.float64(u)) / scale**2 + 2.0 * np.tanh(u)
    np.testing.assert_allclose(gradient[0], by_u, rtol=1e-5, atol=1e-5)
    assert_finite(gradient)


@pytest.mark.parametrize(
    "case", oracles.vectors("ref_losses", "kl_gaussian"), ids=oracles.case_name
)
@pytest.mark.parametrize("make", [clipped_normal, tanh_normal])
def test_kl_of_normals_reference(case: dict[str, Any], make: Callable[..., Any]) -> None:
    """Squashing is one to one, which leaves the KL as it is."""
    inputs = {name: np.float32(x) for name, x in case["inputs"].items()}
    new = make(inputs["loc"], inputs["scale"], -1.0, 1.0, event_ndim=1)
    old = make(inputs["old_loc"], inputs["old_scale"], -1.0, 1.0, event_ndim=1)
    close = dict(rtol=case["rtol"], atol=case["atol"])
    mean = np.mean(kl_divergence(old, new))
    np.testing.assert_allclose(mean, case["expected"]["kl_old_new"], **close)


def test_kl_of_normals_keeps_its_digits_for_small_scales() -> None:
    loc = np.float32([[5.0], [5.00001]])
    one, other = (clipped_normal(x, np.float32([1e-3]), -1.0, 1.0, event_ndim=0) for x in loc)
    distance = float(loc[1, 0]) - float(loc[0, 0])
    np.testing.assert_allclose(kl_divergence(one, other), (distance / 1e-3) ** 2 / 2, rtol=1e-5)


def test_clipped_normal_is_of_the_value_before_the_clip() -> None:
    loc, scale = np.random.default_rng(0).normal(size=(2, BATCH, 2)).astype(np.float32)
    scale = np.exp(scale)
    low, high = (-1.0, -math.inf), (0.5, math.inf)
    u = np.float32([[-3.0, -3.0], [0.2, 3e5], [4.0, 4.0]])
    got = describe(clipped_normal(loc, scale, low, high, event_ndim=1), u)
    for b in range(BATCH):
        triples = zip(u[b].tolist(), loc[b].tolist(), scale[b].tolist(), strict=True)
        expected = sum(oracles.normal_log_prob(*triple) for triple in triples)
        np.testing.assert_allclose(got["log_prob"][b], expected, rtol=1e-5)
    expected = np.sum(np.log(scale) + 0.5 * math.log(2.0 * math.pi * math.e), axis=1)
    np.testing.assert_allclose(got["entropy"], expected, rtol=1e-5)
    np.testing.assert_array_equal(got["action"], np.float32([[-1, -3], [0.2, 3e5], [0.5, 4]]))


# ---- beta ----

CONCENTRATIONS = [(1.0, 1.0), (1.0, 3.5), (2.0, 1.0), (1.7, 1.2), (5.0, 40.0), (300.0, 200.0)]
ALPHA, BETA = (np.float32(x) for x in zip(*CONCENTRATIONS, strict=True))


def betas() -> Any:
    return beta(ALPHA, BETA, -1.0, 4.0, event_ndim=0)


def test_beta_is_finite_at_the_edges() -> None:
    def total(distribution: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_prob = distribution.log_prob(x)
        return jnp.sum(log_prob), log_prob

    gradient = jax.jit(jax.grad(total, (0, 1), has_aux=True))
    for edge in (0.0, 1e-30, 1.0):
        assert_finite(gradient(betas(), np.full_like(ALPHA, edge)))


@pytest.mark.parametrize("size", [1.0, 1e3, 1e7])
def test_beta_numbers_against_scipy(size: float) -> None:
    """Also where parameters are large, and with them the terms of the definition."""
    rng = np.random.default_rng(0)
    one = np.float32(1.0 + rng.exponential(size, (2, 400)))
    one[0, 0] = 1.0
    change = np.exp(rng.normal(0.0, 0.1 if size > 1 else 1.0, (2, 400)))
    two = np.float32(1.0 + (one - 1.0) * change)
    x = np.float32(np.clip(rng.beta(*one.astype(np.float64)), 1e-6, 1.0 - 1e-6))
    (a, b), (a2, b2), y = one.astype(np.float64), two.astype(np.float64), x.astype(np.float64)
    psi, betaln, width = scipy.special.psi, scipy.special.betaln, math.log(4.0 - -1.0)
    log_prob = (a - 1.0) * np.log(y) + (b - 1.0) * np.log1p(-y) - betaln(a, b)
    entropy = betaln(a, b) - (a - 1.0) * psi(a) - (b - 1.0) * psi(b) + (a + b - 2.0) * psi(a + b)
    kl = betaln(a2, b2) - betaln(a, b) + (a - a2) * psi(a) + (b - b2) * psi(b)
    kl += (a2 - a + b2 - b) * psi(a + b)
    old, new = (beta(*pair, -1.0, 4.0, event_ndim=0) for pair in (one, two))
    # A value is rounded by 6e-8 of itself, on which its density depends as on a normal's
    atol = 1e-6 * math.sqrt(size) + 1e-5
    np.testing.assert_allclose(old.log_prob(x), log_prob - width, atol=atol)
    np.testing.assert_allclose(old.entropy(), entropy + width, atol=3e-6)
    np.testing.assert_allclose(old.kl_divergence(new), kl, rtol=1e-3, atol=2e-5)
    assert np.all(np.asarray(old.kl_divergence(new)) > 0.0)
    np.testing.assert_array_equal(old.kl_divergence(old), 0.0)


def test_beta_mode_is_between_the_bounds() -> None:
    """Also where alpha + beta rounds to 2."""
    rng = np.random.default_rng(0)
    alpha, beta_ = np.float32(1.0 + rng.uniform(0.0, 1e-6, (2, 1_000)))
    mode = beta(alpha, beta_, 0.0, 1.0, event_ndim=0).mode()
    assert np.all((mode >= 0.0) & (mode <= 1.0))


def test_beta_mode() -> None:
    got = describe(betas(), np.full_like(ALPHA, 0.5))
    expected = np.asarray([0.5, 0.0, 1.0, 0.7 / 0.9, 4.0 / 43.0, 299.0 / 498.0])
    np.testing.assert_allclose(got["mode"], expected, rtol=1e-6)
    np.testing.assert_allclose(got["greedy_action"], -1.0 + 5.0 * expected, rtol=1e-6)


# ---- densities in the space of actions ----

LEFT, RIGHT = -2.0, 5.0


def once_tanh_normal(n: int) -> Any:
    loc, scale = (np.full(n, x, np.float32) for x in (0.3, 0.6))
    return tanh_normal(loc, scale, LEFT, RIGHT, event_ndim=0)


def once_beta(n: int) -> Any:
    alpha, beta_ = (np.full(n, x, np.float32) for x in (2.5, 1.5))
    return beta(alpha, beta_, LEFT, RIGHT, event_ndim=0)


@pytest.mark.parametrize(
    "repeat, raw",
    [
        (once_tanh_normal, lambda a: np.arctanh(2.0 * (a - LEFT) / (RIGHT - LEFT) - 1.0)),
        (once_beta, lambda a: (a - LEFT) / (RIGHT - LEFT)),
    ],
    ids=["tanh_normal", "beta"],
)
def test_density_is_that_of_the_actions(repeat: Any, raw: Any) -> None:
    """It integrates to one over actions, and draws fall where it says."""
    num = 21_000
    width = (RIGHT - LEFT) / num
    action = LEFT + width * (np.arange(num) + 0.5)
    at_grid = describe(repeat(num), np.float32(raw(action)))
    np.testing.assert_allclose(at_grid["action"], action, atol=1e-5)
    mass = width * np.exp(np.asarray(at_grid["log_prob"], np.float64))
    np.testing.assert_allclose(np.sum(mass), 1.0, atol=1e-3)

    value, _ = sample(repeat(num), jax.random.key(0))
    draws = np.asarray(describe(repeat(num), value)["action"], np.float64)
    mean = np.sum(mass * action)
    variance = np.sum(mass * (action - mean) ** 2)
    np.testing.assert_allclose(np.mean(draws), mean, atol=4.0 * math.sqrt(variance / num))
    np.testing.assert_allclose(np.var(draws), variance, rtol=0.05)
    counts, _ = np.histogram(draws, bins=7, range=(LEFT, RIGHT))
    np.testing.assert_allclose(counts / num, mass.reshape(7, -1).sum(axis=1), atol=0.015)


def test_beta_draws_keep_off_the_edges() -> None:
    """Of a unit mass within 1e-6 of 1, where float32 has 16 numbers left, many round to 1."""
    steep = jax.tree.map(lambda x: np.full_like(x, 1.0), once_beta(21_000))
    steep = dataclasses.replace(steep, alpha=np.full_like(steep.alpha, 1e6))
    value, log_prob = sample(steep, jax.random.key(0))
    assert np.all((value > 0.0) & (value < 1.0))
    assert_finite(log_prob)


# ---- products ----


def test_product_sums_over_its_parts() -> None:
    one, other = of("product"), of("product", seed=1)
    value, _ = sample(one, jax.random.key(0))
    assert set(value) == {"walk", "arm"}
    assert isinstance(value["arm"], tuple)

    def flat(tree: Any) -> list[Any]:
        return [tree["walk"], *tree["arm"]]

    laws, others, values = map(flat, (one.distributions, other.distributions, value))
    parts = [numbers_of(*each) for each in zip(laws, others, values, strict=True)]
    for name, got in numbers_of(one, other, value).items():
        np.testing.assert_allclose(got, sum(part[name] for part in parts), rtol=1e-5)
    close(flat(one.mode()), [law.mode() for law in laws])
    actions = [law.to_action(x) for law, x in zip(laws, values, strict=True)]
    close(flat(one.to_action(value)), actions)


def test_product_draws_parts_independently() -> None:
    zeros = np.zeros(2000, np.float32)
    part = clipped_normal(zeros, zeros + 1.0, -1.0, 1.0, event_ndim=0)
    (a, b), _ = sample(product((part, part)), jax.random.key(0))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.1


# ---- values ----


def test_scalar_value_takes_the_loss_it_is_given() -> None:
    value, target = jnp.asarray([1.0, -2.0], jnp.bfloat16), jnp.asarray([3.0, 0.5])
    estimate = scalar_value(value)
    assert estimate.mean().dtype == jnp.float32
    np.testing.assert_array_equal(estimate.mean(), [1.0, -2.0])
    loss = estimate.loss(target, losses.squared_error)
    np.testing.assert_allclose(loss, losses.squared_error(estimate.mean(), target))
    assert np.all(loss != 0.0)


def unused(value: jax.Array, target: jax.Array) -> jax.Array:
    raise AssertionError("a histogram has a loss of its own")


@pytest.mark.parametrize("sigma", [0.0, 0.75])
def test_categorical_value_loss_against_the_oracle(sigma: float) -> None:
    low, high, num = -3.0, 9.0, 13
    target = np.asarray([-3.0, -2.9, 0.0, 0.3, 4.5, 8.999, 9.0, -50.0, 1e6], np.float32)
    logits = np.random.default_rng(0).normal(size=(len(target), num)).astype(np.float32)

    @jax.jit
    def total(logits: jax.Array) -> tuple[jax.Array, Any]:
        estimate = categorical_value(logits, low, high, sigma)
        loss = estimate.loss(jnp.asarray(target), unused)
        return jnp.sum(loss), (loss, estimate.mean())

    gradient, (loss, mean) = jax.grad(total, has_aux=True)(jnp.asarray(logits))
    for i, row in enumerate(logits):
        p, q = softmax(row), oracles.histogram(float(target[i]), low, high, num, sigma)
        np.testing.assert_allclose(loss[i], -np.sum(q * np.log(p)), rtol=1e-5)
        np.testing.assert_allclose(gradient[i], p - q, atol=1e-5)
        np.testing.assert_allclose(mean[i], np.sum(p * np.linspace(low, high, num)), rtol=1e-5)


@pytest.mark.parametrize("sigma", [0.0, 0.75])
def test_projection_keeps_the_mean(sigma: float) -> None:
    """Of two atoms everywhere; of a normal to a share of a bin, away from the ends."""
    target = jnp.linspace(-6.0, 6.0, 101)
    estimate = categorical_value(jnp.zeros((101, 21)), -10.0, 10.0, sigma)
    histogram = jax.jit(lambda estimate: estimate.project(target))(estimate)
    assert np.all(histogram >= 0.0)
    np.testing.assert_allclose(np.sum(histogram, axis=1), 1.0, rtol=1e-5)
    mean = histogram @ np.linspace(-10.0, 10.0, 21)
    np.testing.assert_allclose(mean, target, atol=1e-5 if sigma == 0.0 else 1e-3)
    estimate = categorical_value(jnp.zeros((BATCH, 2, 5), jnp.bfloat16), -1.0, 3.0, sigma)
    means = jax.vmap(lambda estimate: estimate.mean())(estimate)
    assert means.dtype == jnp.float32
    np.testing.assert_allclose(means, np.ones((BATCH, 2)), rtol=1e-6)


# ---- refusals ----


@pytest.mark.parametrize(
    "build",
    [
        lambda: tanh_normal(jnp.zeros(2), jnp.ones(2), -math.inf, 1.0, event_ndim=0),
        lambda: tanh_normal(jnp.zeros(2), jnp.ones(2), 1.0, 1.0, event_ndim=0),
        lambda: tanh_normal(jnp.zeros((5, 2)), jnp.ones((5, 2)), (0.0,) * 3, 1.0, event_ndim=1),
        lambda: multi_categorical(jnp.zeros((5, 4)), (2, 3), (2,)),
        lambda: product({}),
        lambda: categorical_value(jnp.zeros((5, 1)), 0.0, 1.0, 0.75),
    ],
)
def test_refuses_parameters_without_meaning(build: Callable[[], Any]) -> None:
    with pytest.raises(ValueError):
        build()


@pytest.mark.parametrize(
    "build",
    [
        lambda: categorical(jnp.zeros((5, 2)), jnp.ones((2,), bool)),
        lambda: multi_categorical(jnp.zeros((5, 5)), (2, 3), (2,), jnp.ones((1, 5), bool)),
        lambda: tanh_normal(jnp.zeros((5, 2)), jnp.ones(2), -1.0, 1.0, event_ndim=1),
        lambda: categorical(jnp.zeros((5, 2))).log_prob(jnp.zeros((1,), int)),
        lambda: of("tanh_normal").log_prob(jnp.zeros((1, 3, 2))),
        lambda: of("beta").kl_divergence(of("beta", lead=1)),
        lambda: categorical_value(jnp.zeros((5, 3)), 0.0, 1.0, 0.75).loss(jnp.zeros(1), unused),
    ],
)
def test_refuses_shapes_that_would_broadcast(build: Callable[[], Any]) -> None:
    with pytest.raises(AssertionError):
        build()
