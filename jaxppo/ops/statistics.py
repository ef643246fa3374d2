"""Running statistics of one agent, over all its environments.

`axes` names the mapped axes (batch, device) over which one agent is averaged; `()` is none.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp

from jaxppo.ops.collectives import mean_over, sum_over
from jaxppo.types import PyTree, RunningStatistics


def standardize(
    x: jax.Array, axes: tuple[str, ...] = (), *, epsilon: float = 1e-8
) -> tuple[jax.Array, jax.Array]:
    """Shift and scale to mean 0 and standard deviation 1 over all of `x` and over `axes`.

    Also returns the standard deviation that `x` had, a scalar.
    """
    mean = mean_over(axes, jnp.mean(x))
    deviation = jnp.sqrt(mean_over(axes, jnp.mean(jnp.square(x - mean))))
    return (x - mean) / (deviation + epsilon), deviation


def init_statistics(example: PyTree) -> RunningStatistics:
    """The identity for observations like `example` (arrays or shapes `O...`, no batch axes)."""

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
        count=jnp.zeros((), jnp.float32), mean=filled(0.0), variance=filled(1.0)
    )


def merge_statistics(
    statistics: RunningStatistics,
    batch: PyTree,
    axes: tuple[str, ...] = (),
    decay: jax.Array | float = 1.0,
) -> RunningStatistics:
    """Merge a batch of observations, each once, from every position of the mapped `axes`.

    With n new and N old observations, w = n / (decay N + n) and d = mean_new - mean:
    mean' = mean + w d,  var' = var + w (var_new - var) + w (1 - w) d^2,  N' = decay N + n.

    Chan et al. 1979, eq. 2.1 (pairwise merge), divided by the counts so that nothing grows. The
    first batch (N = 0) replaces the identity: its variance loses no digits to the identity's 1.
    With `decay` below 1 these are the moments of an exponential moving average over batches, its
    bias towards the start corrected (Kingma & Ba 2015, arXiv 1412.6980, section 3).
    Leaves of `batch` are `[..., O...]` under the same leading axes; raises `ValueError`
    where one does not fit its statistics.
    """
    lead = _leading_shape(statistics, batch)
    if lead is None:
        return statistics
    over = tuple(range(len(lead)))
    num = sum_over(axes, jnp.float32(math.prod(lead)))
    count = decay * statistics.count + num
    fraction = num / count

    def mean(x: jax.Array, old: jax.Array | None) -> jax.Array | None:
        if old is None:
            return None
        first = x[(0,) * len(lead)]  # float32 sums of what lies far from zero would lose digits
        return mean_over(axes, first + jnp.mean(x - first, over))

    batch_mean = jax.tree.map(mean, batch, statistics.mean)
    batch_variance = jax.tree.map(
        lambda x, new: (
            None if new is None else mean_over(axes, jnp.mean(jnp.square(x - new), over))
        ),
        batch,
        batch_mean,
    )
    unless_first = partial(jax.tree.map, partial(jnp.where, statistics.count == 0))
    old_mean = unless_first(batch_mean, statistics.mean)
    old_variance = unless_first(batch_variance, statistics.variance)
    return RunningStatistics(
        count=count,
        mean=jax.tree.map(lambda old, new: old + fraction * (new - old), old_mean, batch_mean),
        variance=jax.tree.map(
            lambda old, new, mean, new_mean: (
                old
                + fraction * (new - old)
                + fraction * (1.0 - fraction) * jnp.square(new_mean - mean)
            ),
            old_variance,
            batch_variance,
            old_mean,
            batch_mean,
        ),
    )


def _leading_shape(statistics: RunningStatistics, batch: PyTree) -> tuple[int, ...] | None:
    """The leading axes that all float leaves of `batch` share; None where there are none."""
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


# Below this share of its mean a standard deviation is rounding (float32 resolves 1.2e-7).
RESOLUTION = 1e-6


def deviation(mean: jax.Array, variance: jax.Array) -> jax.Array:
    """The standard deviation, at least `RESOLUTION` of |mean|, and above zero.

    A feature that is constant but for rounding stays constant; any other is normalised, however
    small its numbers are.
    """
    return jnp.maximum(jnp.sqrt(variance), jnp.maximum(RESOLUTION * jnp.abs(mean), 1e-15))


def normalize(statistics: RunningStatistics, obs: PyTree, *, max_abs: float = 10.0) -> PyTree:
    """(x - mean) / deviation, clipped to +-max_abs; non-float leaves unchanged.

    Leaves of `obs` are `[..., O...]`.
    """

    def apply(x: jax.Array, mean: jax.Array | None, variance: jax.Array | None) -> jax.Array:
        if mean is None or variance is None:
            return x
        return jnp.clip((x - mean) * (1.0 / deviation(mean, variance)), -max_abs, max_abs)

    return jax.tree.map(apply, obs, statistics.mean, statistics.variance)


def scale(statistics: RunningStatistics, *, epsilon: float = 1e-4) -> jax.Array:
    """The unit in which a critic learns, sqrt(variance + epsilon).

    It stays above 1e-2: where all rewards so far were zero, value targets come from the critic
    alone, and without a floor each update would shrink the unit that the critic is read in.
    """
    return jnp.sqrt(statistics.variance + epsilon)


def normalize_value(statistics: RunningStatistics, x: jax.Array) -> jax.Array:
    """A scalar in units of its statistics, (x - mean) / scale, not clipped; any shape."""
    return (x - statistics.mean) / scale(statistics)


def denormalize_value(statistics: RunningStatistics, x: jax.Array) -> jax.Array:
    """The inverse of `normalize_value`."""
    return x * scale(statistics) + statistics.mean
