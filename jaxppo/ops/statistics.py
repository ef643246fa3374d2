"""Running statistics of one agent over all its environments.

`axes` names the mapped axes (batch, device) over which one agent is averaged; `()` is none.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.ops.collectives import mean_over, sum_over
from jaxppo.types import PyTree, RunningStatistics

# A standard deviation below this share of the mean is rounding error (float32 resolves 1.2e-7).
RESOLUTION = 1e-6
# The same for the mean of a batch, itself a rounded sum of many numbers.
BATCH_RESOLUTION = 1e-5


def as_weights(alive: jax.Array | None) -> jax.Array | None:
    """Return the weights of steps, float32: 1 where `alive`, else 0; None (all alive) is None."""
    return None if alive is None else alive.astype(jnp.float32)


def shares(weights: jax.Array | None, axes: tuple[str, ...] = ()) -> jax.Array | None:
    """Return weights whose mean over all elements and `axes` is 1, or 0 if all are 0; None is None.

    So the mean of their product with `x` is sum(w x) / sum(w), also where a mean is taken in parts.
    """
    if weights is None:
        return None
    return weights / jnp.maximum(mean_over(axes, jnp.mean(weights)), 1e-30)


def weighted(x: jax.Array, shares: jax.Array | None) -> jax.Array:
    """Return `x` times its `shares`, which broadcast to it; None: `x`."""
    return x if shares is None else shares * x


def standardize(
    x: jax.Array,
    axes: tuple[str, ...] = (),
    *,
    weights: jax.Array | None = None,
    epsilon: float = 1e-8,
) -> tuple[jax.Array, jax.Array]:
    """Shift and scale `x` to mean 0 and standard deviation 1 over all its elements and `axes`.

    Return also the original standard deviation of `x`, a scalar. `weights`, of the shape of `x`
    and not negative, say how often each element counts; None: once.
    """
    each = shares(weights, axes)
    mean = mean_over(axes, jnp.mean(weighted(x, each)))
    deviation = jnp.sqrt(mean_over(axes, jnp.mean(weighted(jnp.square(x - mean), each))))
    least = BATCH_RESOLUTION * jnp.abs(mean)
    return (x - mean) / (jnp.maximum(deviation, least) + epsilon), deviation


def init_statistics(example: PyTree) -> RunningStatistics:
    """Return empty statistics for observations like `example` (arrays or shapes `O...`)."""

    def filled(value: float) -> PyTree:
        return jax.tree.map(
            lambda x: (
                jnp.full(x.shape, value, jnp.float32)
                if jnp.issubdtype(x.dtype, jnp.floating)
                else None
            ),
            example,
        )

    return RunningStatistics(
        count=jnp.zeros((), jnp.float32),
        mean=filled(0.0),
        mean_low=filled(0.0),
        variance=filled(1.0),
    )


def normalized_entries(example: PyTree, entries: tuple[str, ...]) -> PyTree:
    """Return an example in which only `entries`, names with dots, are floats; (): unchanged."""

    def one(path: Any, x: Any) -> Any:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        chosen = any(f"{name}.".startswith(f"{entry}.") for entry in entries)
        return x if chosen else jax.ShapeDtypeStruct(x.shape, jnp.int32)

    return jax.tree_util.tree_map_with_path(one, example) if entries else example


def merge_statistics(
    statistics: RunningStatistics,
    batch: PyTree,
    axes: tuple[str, ...] = (),
    decay: jax.Array | float = 1.0,
    weights: jax.Array | None = None,
) -> RunningStatistics:
    """Return `statistics` merged with a batch from every position of the mapped `axes`.

    With n new and N old observations, w = n / (decay N + n) and d = mean_new - mean:
    mean' = mean + w d,  var' = var + w (var_new - var) + w (1 - w) d^2,  N' = decay N + n.

    Chan et al. 1979, eq. 2.1 (pairwise merge), divided by the counts so that nothing grows. The
    first batch (N = 0) replaces the initial statistics, so their variance of 1 costs no digits.
    `mean + mean_low` is the mean, as w d may be below the rounding error of `mean` (Kahan 1965).
    With `decay` below 1 these are the moments of an exponential moving average over batches, with
    bias correction (Kingma & Ba 2015, arXiv 1412.6980, section 3). Leaves of `batch` are
    `[..., O...]` with the same leading axes; `ValueError` if one does not fit its statistics.
    `weights` `[...]`, not negative, say how often each observation counts; None: once. Where all
    are 0, the statistics stay.
    """
    lead = _leading_shape(statistics, batch)
    if lead is None:
        return statistics
    batch = jax.tree.map(lambda x: x.astype(jnp.float32), batch)  # float16 ends at 65,504
    total = jnp.float32(math.prod(lead)) if weights is None else jnp.sum(weights)
    num = sum_over(axes, total)
    count = decay * statistics.count + num
    fraction = num / count if weights is None else num / jnp.maximum(count, 1e-30)
    batch_mean, batch_variance = _moments(statistics.mean, batch, axes, weights, total, num)
    is_first = statistics.count == 0
    if weights is not None:
        is_first &= num > 0
    unless_first = partial(jax.tree.map, partial(jnp.where, is_first))
    old_mean = unless_first(batch_mean, statistics.mean)
    old_variance = unless_first(batch_variance, statistics.variance)
    difference = jax.tree.map(
        lambda new, old, low: (new - old) - low, batch_mean, old_mean, statistics.mean_low
    )
    change = jax.tree.map(lambda d, low: low + fraction * d, difference, statistics.mean_low)
    new_mean = jax.tree.map(jnp.add, old_mean, change)
    return RunningStatistics(
        count=count,
        mean=new_mean,
        mean_low=jax.tree.map(lambda new, old, t: t - (new - old), new_mean, old_mean, change),
        variance=jax.tree.map(
            lambda old, new, d: (
                old + fraction * (new - old) + fraction * (1.0 - fraction) * jnp.square(d)
            ),
            old_variance,
            batch_variance,
            difference,
        ),
    )


def _moments(
    like: PyTree,
    batch: PyTree,
    axes: tuple[str, ...],
    weights: jax.Array | None,
    total: jax.Array,
    num: jax.Array,
) -> tuple[PyTree, PyTree]:
    """Return the means and variances of a batch; `total` is the sum of weights, `num` over axes."""

    def weighted_sum(x: jax.Array) -> jax.Array:
        assert weights is not None
        each = weights.reshape(*weights.shape, *(1,) * (x.ndim - weights.ndim))
        return jnp.sum(each * x, tuple(range(weights.ndim)))

    def mean(x: jax.Array, old: jax.Array | None) -> jax.Array | None:
        if old is None:
            return None
        over = tuple(range(x.ndim - old.ndim))
        first = x[(0,) * len(over)]  # float32 sums of values far from zero would lose digits
        if weights is None:
            return mean_over(axes, first + jnp.mean(x - first, over))
        # Not by `shares`, whose mean is 1 only up to rounding: that times `first` is much
        here = first + weighted_sum(x - first) / jnp.maximum(total, 1e-30)
        return sum_over(axes, total * here) / jnp.maximum(num, 1e-30)

    def variance(x: jax.Array, mean: jax.Array | None) -> jax.Array | None:
        if mean is None:
            return None
        square = jnp.square(x - mean)
        if weights is None:
            return mean_over(axes, jnp.mean(square, tuple(range(x.ndim - mean.ndim))))
        return sum_over(axes, weighted_sum(square)) / jnp.maximum(num, 1e-30)

    means = jax.tree.map(mean, batch, like)
    return means, jax.tree.map(variance, batch, means)


def _leading_shape(statistics: RunningStatistics, batch: PyTree) -> tuple[int, ...] | None:
    """Return the leading axes that all float leaves of `batch` share; None without such leaves."""
    fits: list[tuple[int, ...] | None] = []

    def check(x: jax.Array, mean: jax.Array | None) -> None:
        if mean is not None:
            split = x.ndim - mean.ndim
            fits.append(x.shape[:split] if split >= 0 and x.shape[split:] == mean.shape else None)

    jax.tree.map(check, batch, statistics.mean)
    if None in fits or len(set(fits)) > 1:
        raise ValueError(
            f"observations {jax.tree.map(jnp.shape, batch)} do not end in the shapes of their "
            f"statistics {jax.tree.map(jnp.shape, statistics.mean)} under equal leading axes"
        )
    return fits[0] if fits else None


def num_nonfinite(tree: PyTree) -> jax.Array:
    """Count the numbers of a tree that are NaN or infinite, int32."""
    counts = [
        jnp.sum(~jnp.isfinite(x), dtype=jnp.int32)
        for x in jax.tree.leaves(tree)
        if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    return sum(counts, jnp.zeros((), jnp.int32))


def deviation(mean: jax.Array, variance: jax.Array) -> jax.Array:
    """Return the standard deviation, at least `RESOLUTION` times |mean|, and above zero.

    So rounding errors of a constant feature are not scaled up. Any other feature is normalised,
    however small its values are.
    """
    return jnp.maximum(jnp.sqrt(variance), jnp.maximum(RESOLUTION * jnp.abs(mean), 1e-15))


def return_scale(mean: jax.Array, variance: jax.Array) -> jax.Array:
    """Return what rewards are divided by, above zero, from the moments of returns.

    It is their standard deviation, or |mean| if all are equal up to `RESOLUTION`.
    """
    size, spread = jnp.abs(mean), jnp.sqrt(variance)
    return jnp.maximum(jnp.where(is_constant(size, spread), size, spread), 1e-15)


def is_constant(size: jax.Array, spread: jax.Array) -> jax.Array:
    """Return whether a deviation is rounding error beside the magnitude of its mean."""
    return spread <= RESOLUTION * size


def normalize(
    statistics: RunningStatistics,
    obs: PyTree,
    *,
    max_abs: float = 10.0,
    min_std: float = 0.0,
    max_std: float = math.inf,
    keep_constant: bool = False,
) -> PyTree:
    """Return (x - mean) / deviation, clipped to +-max_abs; non-float leaves are unchanged.

    Leaves of `obs` are `[..., O...]`. The deviation is clipped to `min_std` and `max_std`. With
    `keep_constant` a feature that has been constant is not divided, since its scale is not known.
    """
    bounded = min_std > 0.0 or max_std < math.inf

    def apply(x: jax.Array, mean: jax.Array | None, variance: jax.Array | None) -> jax.Array:
        if mean is None or variance is None:
            return x
        difference, std = x - mean, deviation(mean, variance)
        if keep_constant:
            std = jnp.where(is_constant(jnp.abs(mean), jnp.sqrt(variance)), 1.0, std)
        if bounded:
            std = jnp.clip(std, min_std, max_std)
        return jnp.clip(difference * (1.0 / std), -max_abs, max_abs)

    return jax.tree.map(apply, obs, statistics.mean, statistics.variance)


def scale(statistics: RunningStatistics, *, epsilon: float = 1e-4) -> jax.Array:
    """Return the scale of normalised values, sqrt(variance + epsilon).

    It stays above 1e-2. If all rewards so far are zero, value targets come from the critic alone,
    and without this floor each update would shrink the scale further.
    """
    return jnp.sqrt(statistics.variance + epsilon)


def normalize_value(statistics: RunningStatistics, x: jax.Array) -> jax.Array:
    """Return (x - mean) / scale of `x` of any shape, not clipped; `statistics` are scalar."""
    return (x - statistics.mean) / scale(statistics)


def denormalize_value(statistics: RunningStatistics, x: jax.Array) -> jax.Array:
    """Invert `normalize_value`."""
    return x * scale(statistics) + statistics.mean
