"""Running statistics: equal to the statistics of all data, however it is split and wherever."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from conftest import close

from jaxppo.algorithms.acting import unroll
from jaxppo.config.fields import ConfigError
from jaxppo.ops.collectives import any_over, max_over, mean_over, min_over, sum_over
from jaxppo.ops.statistics import (
    denormalize_value,
    init_statistics,
    merge_statistics,
    normalize,
    normalize_value,
    scale,
    standardize,
)
from jaxppo.types import RunningStatistics

merge = jax.jit(merge_statistics, static_argnames="axes")

ACME = {case["name"]: case for case in oracles.vectors("ext_acme_running_statistics")}


def empty(*shape: int) -> RunningStatistics:
    return init_statistics(jax.ShapeDtypeStruct(shape, jnp.float32))


def merged(batches: list[np.ndarray], *shape: int, decay: float = 1.0) -> RunningStatistics:
    """Statistics of observations of `shape` after all `batches` in turn."""
    statistics = empty(*shape)
    for batch in batches:
        statistics = merge(statistics, jnp.asarray(batch, jnp.float32), decay=decay)
    return statistics


def assert_statistics_of(
    statistics: RunningStatistics,
    batches: list[np.ndarray],
    *,
    rtol: float = 1e-5,
    decay: float = 1.0,
) -> None:
    mean, variance = oracles.mean_and_variance(batches, decay)
    weights = decay ** np.arange(len(batches))[::-1]
    np.testing.assert_allclose(statistics.count, weights @ list(map(len, batches)), rtol=1e-6)
    np.testing.assert_allclose(statistics.mean, mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(statistics.variance, variance, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("shape", [(5,), (2, 5)])
def test_normalized_data_has_mean_zero_and_deviation_one(shape: tuple[int, ...]) -> None:
    case = ACME["normalize"]
    data = np.arange(200, dtype=np.float32).reshape(20, 2, 5)
    splits = np.split(data, case["inputs"]["splits"], axis=case["inputs"]["axis"])
    result = normalize(merged(splits, *shape), data)
    expected, atol = case["expected"], case["atol"]
    np.testing.assert_allclose(np.mean(result), expected["mean_of_normalized"], atol=atol)
    np.testing.assert_allclose(np.std(result), expected["std_of_normalized"], atol=atol)
    untouched = normalize(empty(*shape), data, max_abs=math.inf)  # before any data
    near = {"atol": ACME["identity before any data"]["atol"]}
    np.testing.assert_allclose(untouched, data, **near)


def test_clip_of_normalized_data() -> None:
    case = ACME["clip"]
    data = np.asarray(case["inputs"]["data"], np.float32)
    result = normalize(merged([data]), data, max_abs=case["inputs"]["max_abs_value"])
    np.testing.assert_allclose(np.mean(result), case["expected"]["mean"], atol=case["atol"])
    np.testing.assert_allclose(np.std(result), case["expected"]["std"], atol=case["atol"])
    case = ACME["clip tree"]
    data = np.asarray(case["inputs"]["x"], np.float32)
    result = normalize(empty(), data, max_abs=case["inputs"]["max_abs"])
    np.testing.assert_allclose(result, case["expected"], rtol=1e-6)
    result = normalize(empty(), jnp.asarray([-1e9, -11.0, 9.5, jnp.inf]))  # by default at ten
    np.testing.assert_allclose(result, [-10.0, -10.0, 9.5, 10.0])


@pytest.mark.parametrize("far", [0.0, 1e5])
def test_weighted_statistics_are_those_of_repeated_observations(far: float) -> None:
    rng = np.random.default_rng(0)
    batches = [far + rng.normal(size=(6, 5, 2)) for _ in range(3)]
    counts = [rng.integers(0, 4, size=(6, 5)) for _ in range(3)]
    statistics = empty(2)
    for batch, count in zip(batches, counts, strict=True):
        weights = jnp.asarray(count, jnp.float32)
        statistics = merge(statistics, jnp.asarray(batch, jnp.float32), weights=weights)
    repeated = [
        np.repeat(np.float32(batch).reshape(-1, 2), count.ravel(), axis=0)
        for batch, count in zip(batches, counts, strict=True)
    ]
    assert_statistics_of(statistics, repeated, rtol=1e-5 if far == 0.0 else 1e-3)
    same = merge(statistics, jnp.ones((6, 5, 2)), weights=jnp.zeros((6, 5)))
    close(same, statistics, rtol=1e-6)
    close(merge(empty(2), jnp.ones((6, 5, 2)), weights=jnp.zeros((6, 5))), empty(2))


def test_bounds_of_the_standard_deviation() -> None:
    """Features that hardly change are not blown up, and large ones stay large."""
    scales = np.array([1e-3, 1.0, 50.0], np.float32)
    data = scales * np.float32(np.random.default_rng(0).normal(size=(400, 3)))
    statistics = merged([data], 3)
    found = normalize(statistics, data, max_abs=math.inf, min_std=0.1, max_std=5.0)
    wanted = np.clip(np.std(data, axis=0), 0.1, 5.0)
    np.testing.assert_allclose(found, (data - data.mean(0)) / wanted, rtol=1e-3, atol=1e-4)


def test_shapes_that_do_not_fit_are_refused() -> None:
    inputs = ACME["shape mismatch"]["inputs"]
    for shape in inputs["batch_shapes"]:
        with pytest.raises(ValueError, match="shapes"):
            merge_statistics(empty(*inputs["state_shape"]), jnp.zeros((4, 7, *shape)))
    statistics = init_statistics({"a": jnp.zeros(2), "b": jnp.zeros(3)})
    with pytest.raises(ValueError, match="equal leading axes"):
        merge_statistics(statistics, {"a": jnp.zeros((4, 2)), "b": jnp.zeros((5, 3))})
    with pytest.raises(ValueError):
        merge_statistics(statistics, {"a": jnp.zeros((4, 2))})


def test_integer_leaves_are_untouched() -> None:
    case = ACME["int leaves untouched"]
    image = jnp.asarray(case["inputs"]["data"], case["inputs"]["dtype"])
    flags = jnp.asarray([True, False, True, True, False])
    position = jnp.linspace(5.0, 9.0, 5)
    obs = {"image": image, "flags": flags, "position": position}
    statistics = init_statistics(jax.tree.map(lambda x: x[0], obs))
    statistics = merge(statistics, obs)
    result = normalize(statistics, obs)
    for leaf in ("image", "flags"):
        assert (statistics.mean[leaf], statistics.variance[leaf]) == (None, None)
        assert result[leaf].dtype == obs[leaf].dtype
        np.testing.assert_array_equal(result[leaf], obs[leaf])
    np.testing.assert_allclose(statistics.mean["position"], 7.0)
    np.testing.assert_allclose(np.std(result["position"]), 1.0, rtol=1e-5)
    statistics = init_statistics(jnp.zeros(3, jnp.int32))
    after = merge(statistics, jnp.ones((4, 3), jnp.int32))
    assert (after.mean, after.count) == (None, 0.0)


def test_leaves_of_different_shapes_share_the_count() -> None:
    rng = np.random.default_rng(0)
    obs = {"camera": rng.normal(size=(6, 2, 3, 4)), "speed": rng.normal(size=(6, 2))}
    obs = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), obs)
    found = merge(init_statistics({"camera": jnp.zeros((3, 4)), "speed": jnp.zeros(())}), obs)
    assert found.count == 12
    for leaf in obs:
        flat = np.asarray(obs[leaf]).reshape(12, *obs[leaf].shape[2:])
        moments = oracles.mean_and_variance([flat])
        close((found.mean[leaf], found.variance[leaf]), moments, atol=1e-6)


DATA = np.random.default_rng(1).normal([0.0, 3.0, -50.0], [1.0, 0.1, 20.0], size=(240, 3))
DATA = DATA.astype(np.float32)


def test_sizes_order_and_axes_of_the_batches_do_not_matter() -> None:
    for sizes in ([240], [60] * 4, [120, 60, 60], [60, 180]):
        assert_statistics_of(merged(np.split(DATA, np.cumsum(sizes)[:-1]), 3), [DATA])
    ordered = DATA[np.argsort(DATA[:, 0])]  # batches of very different means
    for data in (ordered, ordered[::-1]):
        assert_statistics_of(merged(np.split(data, 4), 3), [DATA])
    for leading in ((80, 3), (10, 4, 6)):
        statistics = merge(merged([DATA[:60]], 3), DATA.reshape(*leading, 3))
        assert_statistics_of(statistics, [DATA[:60], DATA])


def late(count: float) -> RunningStatistics:
    """Statistics after `count` observations, of mean 2 and variance 9."""
    moments = {"mean": 2.0, "mean_low": 0.0, "variance": 9.0, "count": count}
    return RunningStatistics(**{name: jnp.float32(x) for name, x in moments.items()})


@pytest.mark.parametrize("exponent", [24, 40])
def test_large_counts_keep_merging(exponent: int) -> None:
    count, mean, variance = 2.0**exponent, 2.0, 9.0
    old = late(count)
    rng = np.random.default_rng(2)
    batches = [rng.normal(-3.0, 1.0, size=4096).astype(np.float32) for _ in range(16)]
    new = old
    for batch in batches:
        new = merge(new, batch)
    assert new.count >= count
    expected = oracles.merge_moments(count, mean, variance, batches)
    close((new.mean, new.variance), expected, rtol=1e-5)


def test_a_count_that_cannot_grow_does_no_harm() -> None:
    old = late(2**24)
    new = old
    for _ in range(100):
        new = merge(new, jnp.float32([1000.0]))
    assert new.count >= old.count
    np.testing.assert_allclose(new.mean, 2.0, atol=1e-2)
    np.testing.assert_allclose(new.variance, 9.0 + 998.0**2 * 100 / 2**24, rtol=1e-2)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_a_mean_that_moves_slowly_is_followed_over_many_updates(offset: float) -> None:
    """Each change is below the rounding error of the mean."""
    num = 50_000
    rng = np.random.default_rng(4)
    moving = np.minimum(1.0, np.arange(num) / num * 2)[:, None]
    data = (offset + moving + rng.normal(size=(num, 32))).astype(np.float32)
    statistics, _ = jax.lax.scan(lambda s, x: (merge(s, x), None), empty(), jnp.asarray(data))
    np.testing.assert_allclose(statistics.mean, np.mean(data, dtype=np.float64), rtol=2e-7)
    np.testing.assert_allclose(statistics.variance, np.var(data, dtype=np.float64), rtol=1e-3)


def test_small_variance_around_a_large_mean() -> None:
    rng = np.random.default_rng(3)
    batches = list(rng.normal(-1e4, 1.0, size=(4, 4096)).astype(np.float32))
    statistics = merged(batches)
    mean, variance = oracles.mean_and_variance(batches)
    np.testing.assert_allclose(statistics.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(statistics.variance, variance, rtol=1e-3)
    result = normalize(statistics, np.concatenate(batches))
    np.testing.assert_allclose(np.std(result), 1.0, rtol=1e-3)


@pytest.mark.parametrize("std", [1e-3, 1e-12])
def test_a_first_batch_keeps_a_variance_far_below_one(std: float) -> None:
    """No digits are lost to the identity's variance of 1, at first or later."""
    batches = list(np.random.default_rng(6).normal(0.0, std, (4, 4096)).astype(np.float32))
    for count in (1, 4):
        _, variance = oracles.mean_and_variance(batches[:count])
        np.testing.assert_allclose(merged(batches[:count]).variance, variance, rtol=1e-5)


@pytest.mark.parametrize("location, resolved", [(0.0, 1e3), (1.0, 10.0), (-1e3, 10.0)])
def test_small_features_are_normalized_to_one(location: float, resolved: float) -> None:
    """However small a deviation is, as long as float32 can tell it beside the mean."""
    std = resolved * 1e-6 * (abs(location) or 1e-3)
    batch = np.random.default_rng(7).normal(location, std, 4096).astype(np.float32)
    result = normalize(merged([batch]), batch)
    np.testing.assert_allclose(np.std(result), 1.0, rtol=2e-2)
    np.testing.assert_allclose(np.mean(result), 0.0, atol=2e-2)


@pytest.mark.parametrize("value", [0.0, 12345.678, -1e-20])
def test_a_constant_feature_is_zero(value: float) -> None:
    """And what rounding makes of it stays small, since it is nothing to learn from."""
    batches = [np.full((n,), value, np.float32) for n in (1000, 999, 77)]
    np.testing.assert_allclose(normalize(merged(batches), batches[0]), 0.0, atol=0.2)


@pytest.mark.parametrize("value", [0.0, 3.7])
def test_a_feature_that_was_constant_can_keep_its_scale(value: float) -> None:
    """Else all of its later values are at the clip, and look alike."""
    rng = np.random.default_rng(0)
    data = np.stack([np.full(400, value), 1e-3 * rng.normal(size=400)], -1).astype(np.float32)
    later = np.float32([[value + step, 0.0] for step in (1, 2, -3)])
    statistics = merged([data], 2)
    np.testing.assert_array_equal(np.abs(normalize(statistics, later)[:, 0]), 10.0)
    found = normalize(statistics, later, keep_constant=True)
    np.testing.assert_allclose(found[:, 0], [1, 2, -3], rtol=1e-6)
    np.testing.assert_array_equal(found[:, 1], normalize(statistics, later)[:, 1])


@pytest.mark.parametrize("decay", [1.0, 0.25])
@pytest.mark.parametrize(
    "grid, axes", [((4,), ("batch",)), ((2, 2), ("device", "batch"))], ids=["batch", "both"]
)
def test_split_over_mapped_axes_equals_the_whole(
    grid: tuple[int, ...], axes: tuple[str, ...], decay: float
) -> None:
    def merge_twice(first: jax.Array, second: jax.Array) -> RunningStatistics:
        statistics = merge_statistics(empty(3), first, axes, decay=decay)
        return merge_statistics(statistics, second, axes, decay=decay)

    function: Any = merge_twice
    for axis in reversed(axes):  # one result for all positions: the average is not mapped
        function = jax.vmap(function, axis_name=axis, out_axes=None)
    parts = DATA[:80], DATA[80:]
    statistics = jax.jit(function)(*(part.reshape(*grid, -1, 3) for part in parts))
    assert_statistics_of(statistics, [*parts], decay=decay)


def test_half_precision_is_no_limit() -> None:
    """Squares of values around 500 exceed float16, whose largest number is 65,504."""
    data = (500 * DATA).astype(np.float16)
    found = jax.jit(merge_statistics)(empty(3), jnp.asarray(data))
    assert_statistics_of(found, [data.astype(np.float64)])


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_decay_weighs_a_batch_by_its_age(decay: float) -> None:
    sizes = [20, 160, 5, 55]
    batches = np.split(DATA + np.linspace(-9, 9, 240)[:, None], np.cumsum(sizes)[:-1])
    statistics = merged(batches, 3, decay=decay)
    assert_statistics_of(statistics, list(map(np.float32, batches)), decay=decay)


SCALAR = DATA[:, 2]  # about -50 +- 20


def test_normalized_values_there_and_back_change_nothing() -> None:
    shape = (2, 3, 4)
    statistics = merged([SCALAR])
    x = np.random.default_rng(4).normal(100.0, 1e3, size=shape).astype(np.float32)
    there, back = normalize_value(statistics, x), denormalize_value(statistics, x)
    assert there.shape == back.shape == shape
    np.testing.assert_allclose(denormalize_value(statistics, there), x, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(normalize_value(statistics, back), x, rtol=1e-5, atol=1e-3)


def test_normalized_values_are_in_units_of_the_data() -> None:
    statistics = merged([SCALAR])
    mean, variance = oracles.mean_and_variance([SCALAR])
    np.testing.assert_allclose(scale(statistics), np.sqrt(variance + 1e-4), rtol=1e-5)
    normalized = normalize_value(statistics, SCALAR)
    np.testing.assert_allclose(
        normalized, (SCALAR - mean) / np.sqrt(variance), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose([np.mean(normalized), np.std(normalized)], [0.0, 1.0], atol=1e-5)
    far = normalize_value(statistics, mean + 1e3 * np.sqrt(variance))
    np.testing.assert_allclose(far, 1e3, rtol=1e-4)  # unlike an observation, not clipped
    np.testing.assert_allclose(denormalize_value(statistics, jnp.zeros(2)), mean, rtol=1e-5)


def test_normalized_values_of_a_constant_are_finite() -> None:
    statistics = merged([np.full(8, 3.0)])
    np.testing.assert_array_equal(normalize_value(statistics, np.full(8, 3.0, np.float32)), 0.0)
    np.testing.assert_allclose(denormalize_value(statistics, jnp.zeros(8)), 3.0)
    assert scale(statistics) > 0.0


def test_standardize_against_the_oracle() -> None:
    x = DATA[:, 2].reshape(24, 10)
    mean, variance = oracles.mean_and_variance([x.reshape(-1)])
    expected = (x - mean) / np.sqrt(variance)
    result, deviation = standardize(jnp.asarray(x))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(deviation, np.sqrt(variance)[()], rtol=1e-5)


def test_standardize_of_a_constant_is_zero() -> None:
    result, deviation = standardize(jnp.full((8, 4), 3.0))
    np.testing.assert_array_equal(result, 0.0)
    assert deviation == 0.0
    for value in (0.1, 1000.1):  # whose float32 mean is rounded
        result, _ = jax.jit(standardize)(jnp.full(128, value))
        assert jnp.max(jnp.abs(result)) < 0.2


def test_standardize_over_mapped_axes_equals_the_whole() -> None:
    x = jnp.asarray(DATA[:, 2].reshape(2, 3, 8, 5))  # [D, U, T, B]: shares of different means
    x = x + 10.0 * jnp.arange(6).reshape(2, 3, 1, 1)
    shares = partial(standardize, axes=("device", "batch"))
    result = jax.jit(jax.vmap(jax.vmap(shares, axis_name="batch"), axis_name="device"))(x)
    whole = [np.broadcast_to(y, part.shape) for part, y in zip(result, standardize(x), strict=True)]
    close(result, whole, rtol=1e-5, atol=1e-5)


def test_a_tree_is_one_exchange_for_each_data_type() -> None:
    """Devices wait for each exchange; update batches of one device do not."""
    tree = {
        "a": jnp.arange(24.0).reshape(4, 3, 2),  # [D, 3, 2]
        "b": jnp.arange(4.0),
        "c": jnp.arange(8).reshape(4, 2),
        "d": jnp.arange(4.0).reshape(4, 1, 1) ** 2,
    }
    summed = jax.vmap(partial(sum_over, ("device",)), axis_name="device")
    for name, found in summed(tree).items():
        whole = np.broadcast_to(np.asarray(tree[name]).sum(0), tree[name].shape)
        np.testing.assert_array_equal(found, whole, err_msg=name)
        assert found.dtype == tree[name].dtype
    for axis, expected in (("device", 2), ("batch", 4)):
        one = jax.tree.map(lambda x: x[0], tree)
        made = jax.make_jaxpr(partial(sum_over, (axis,)), axis_env=[(axis, 4)])(one)
        exchanged = [eq for eq in made.eqns if eq.primitive.name.startswith("psum")]
        assert sum(len(eq.invars) for eq in exchanged) == expected


def test_any_over_members_is_one_flag_for_all() -> None:
    flags = jnp.asarray([[False, True, False], [False, False, False]])  # [P, N]
    found = jax.vmap(partial(any_over, ()), out_axes=None)(flags)  # refuses a batched result
    assert bool(found)
    found = jax.vmap(lambda x: any_over((), x[:, None], axis=1), out_axes=None)(flags)
    np.testing.assert_array_equal(found, [False, True, False])
    nested = jax.vmap(jax.vmap(partial(any_over, ()), out_axes=None), out_axes=None)
    assert bool(nested(flags[:, :, None]))
    assert not bool(nested(~jnp.ones((2, 3, 1), bool)))


def test_reductions_over_mapped_axes() -> None:
    x = np.float32([[3.0, -1.0, 2.0], [7.0, 0.0, 5.0]])  # [D, U]

    def reduce(x: jax.Array, axes: tuple[str, ...]) -> Any:
        over = (min_over, max_over, mean_over, sum_over)
        flags = any_over(axes, x > 6), any_over(axes, x > 7)
        return [each(axes, {"x": x, "y": -x}) for each in over], flags

    def mapped(*axes: str) -> Any:
        inner = jax.vmap(partial(reduce, axes=axes), axis_name="batch")
        return jax.jit(jax.vmap(inner, axis_name="device"))(x)

    numpys = (np.min, np.max, np.mean, np.sum)
    for axes, kept in ((("device", "batch"), (0, 1)), (("batch",), (1,)), ((), None)):
        found, (some, none) = mapped(*axes)
        for each, of in zip(found, numpys, strict=True):
            for name, values in (("x", x), ("y", -x)):
                wanted = values if kept is None else of(values, axis=kept, keepdims=True)
                np.testing.assert_allclose(each[name], np.broadcast_to(wanted, x.shape), rtol=1e-6)
        assert np.all(some)  # under vmap one flag for all
        assert not np.any(none)


@pytest.mark.long
def test_only_the_named_entries_are_normalised(small: Any) -> None:
    """Entries `observation` and `step`; the second is left as it is, and clipping is at 0.5."""
    chosen = {"normalize_observations": True, "normalize_entries": ["observation"]}
    layers = {"input_layer": {"_target_": "jaxppo.networks.inputs.Flatten"}}
    system, state = small(system={**chosen, "obs_clip": 0.5}, env__extras=["step"], network=layers)
    seen = []
    network = system.algorithm.network

    class Watch:
        def unroll(self, params: Any, carry: Any, obs: Any, *rest: Any) -> Any:
            seen.append(obs)
            return network.unroll(params, carry, obs, *rest)

        def __getattr__(self, name: str) -> Any:
            return getattr(network, name)

    statistics = state.agent.policy.obs_statistics
    assert statistics.mean["step"] is None
    assert statistics.mean["observation"] is not None
    system.algorithm.network = Watch()
    obs = {"observation": jnp.full((1, 1, 2), -3.0), "step": jnp.full((1, 1, 1), 9.0)}
    unroll(system, state.agent.policy, {}, obs, jnp.ones((1, 1), bool))
    np.testing.assert_array_equal(seen[0]["observation"], jnp.full((1, 1, 2), -0.5))
    np.testing.assert_array_equal(seen[0]["step"], obs["step"])


def test_wrong_entries_are_named(small: Any) -> None:
    entries = {"normalize_observations": True, "normalize_entries": ["obs"]}
    with pytest.raises(ConfigError, match="which has observation, step"):
        small(system=entries, env__extras=["step"])
    with pytest.raises(ConfigError, match=r"needs system\.normalize_observations=true"):
        small(system__normalize_entries=["obs"])
    entries = {"normalize_observations": True, "normalize_entries": ["last_action"]}
    with pytest.raises(ConfigError, match="last_action: it holds no floating-point numbers"):
        small(system=entries, env__extras=["last_action"])


def test_data_types_are_reduced_in_the_order_of_the_leaves() -> None:
    """Processes of several hosts must agree on it; a set of types has another order in each."""
    reduce = jax.vmap(partial(sum_over, ("device",)), axis_name="device")
    for kinds in (["int32", "float32"], ["float32", "int32"]):
        leaves = [jnp.zeros((2, 3), kind) for kind in kinds * 2]
        equations = jax.make_jaxpr(reduce)(leaves).jaxpr.eqns
        sums = [x.outvars[0].aval.dtype for x in equations if x.primitive.name == "psum"]
        assert sums == kinds
