"""Means over independent runs and their confidence intervals."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

NUM_RESAMPLES = 2_000
CONFIDENCE = 0.95


def iqm(scores: ArrayLike, axis: int = -1) -> NDArray[np.float64]:
    """Return the interquartile mean: without the lowest and highest quarter, each rounded down.

    Agarwal et al. 2021 (arXiv 2108.13264), section 4.3. `scores` is `[..., N]`.
    """
    ordered = np.sort(np.asarray(scores, np.float64), axis)
    num = ordered.shape[axis]
    return np.mean(np.take(ordered, np.arange(num // 4, num - num // 4), axis), axis)


def interval(strata: Sequence[ArrayLike]) -> tuple[float, float]:
    """Return the 95% stratified percentile bootstrap interval of the IQM over strata (tasks).

    Each resample draws N_i scores from every stratum `[N_i]`: Agarwal et al. 2021 (arXiv
    2108.13264), section 4.2. The draws are the same in every call. NaN if a score is not finite.
    """
    scores = [np.asarray(stratum, np.float64) for stratum in strata]
    if not all(np.all(np.isfinite(stratum)) for stratum in scores):
        return float("nan"), float("nan")
    generator = np.random.default_rng(0)
    drawn = [generator.choice(stratum, (NUM_RESAMPLES, stratum.size)) for stratum in scores]
    low, high = _quantiles(iqm(np.concatenate(drawn, axis=1)))
    return float(low), float(high)


def share_interval(values: ArrayLike) -> tuple[float, float]:
    """Return the 95% interval of a share, from 0s and 1s `[N]`; NaN counts as no episode.

    Wilson 1927 (Probable inference, the law of succession, and statistical inference), which keeps
    its level near 0 and 1. NaN if there is no episode, or a value is no part of a share.
    """
    found = np.asarray(values, np.float64)
    found = found[~np.isnan(found)]
    if not found.size or np.any((found < 0) | (found > 1)):
        return float("nan"), float("nan")
    z, num, share = 1.959964, found.size, found.mean()
    middle = (share + z**2 / (2 * num)) / (1 + z**2 / num)
    width = z / (1 + z**2 / num) * np.sqrt(share * (1 - share) / num + (z / (2 * num)) ** 2)
    return max(float(middle - width), 0.0), min(float(middle + width), 1.0)


def intervals(scores: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return 95% percentile bootstrap intervals of the IQM of `N` curves, two arrays `[S]`.

    `scores` is `[N, S]`. Each resample draws whole curves, the same runs at every point.
    """
    curves = np.asarray(scores, np.float64)
    num = len(curves)
    rows = np.random.default_rng(0).integers(num, size=(NUM_RESAMPLES, num))
    return _quantiles(np.stack([iqm(column[rows]) for column in curves.T], axis=-1))


def profile(strata: Sequence[ArrayLike], thresholds: ArrayLike) -> NDArray[np.float64]:
    """Return the share of runs that score above each threshold, averaged over strata: `[K]`.

    `F(tau) = 1/M sum_m 1/N_m sum_n [x_mn > tau]`, the performance profile (score distribution) of
    Agarwal et al. 2021 (arXiv 2108.13264). `strata` are M arrays `[N_m]`, `thresholds` `[K]`.
    """
    return np.mean([np.mean(part, axis=0) for part in _above(strata, thresholds)], axis=0)


def profile_interval(
    strata: Sequence[ArrayLike], thresholds: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return pointwise 95% stratified bootstrap intervals of `profile`, two arrays `[K]`."""
    generator = np.random.default_rng(0)
    parts = _above(strata, thresholds)
    drawn = [_weights(generator, len(part)) @ part for part in parts]
    return _quantiles(np.mean(drawn, axis=0))


def improvement(pairs: Sequence[tuple[ArrayLike, ArrayLike]]) -> float:
    """Return the probability that a run of X scores higher than one of Y, averaged over strata.

    `P(X > Y) = 1/M sum_m U_m / (N_m K_m)` with the Mann-Whitney statistic `U`, which counts a tie
    as half a win: Agarwal et al. 2021 (arXiv 2108.13264). `pairs` are M pairs of arrays, `[N_m]` of
    X and `[K_m]` of Y.
    """
    return float(np.mean([np.mean(_wins(*pair)) for pair in pairs]))


def improvement_interval(pairs: Sequence[tuple[ArrayLike, ArrayLike]]) -> tuple[float, float]:
    """Return the 95% stratified bootstrap interval of `improvement`; X and Y are drawn apart."""
    generator = np.random.default_rng(0)
    drawn = []
    for pair in pairs:
        wins = _wins(*pair)
        first, second = (_weights(generator, num) for num in wins.shape)
        drawn.append(np.sum((first @ wins) * second, axis=1))
    low, high = _quantiles(np.mean(drawn, axis=0))
    return float(low), float(high)


def tolerance(num: int) -> float:
    """Return the share of all possible runs that lies between the lowest and highest of `num`.

    At least this share, with 95% confidence and for any distribution: the b for which
    num b^(num - 1) - (num - 1) b^num = 0.05 (Wilks 1941, Annals of Mathematical Statistics 12, 91).
    Unlike a confidence interval, a tolerance interval says what one further run may do (Patterson
    et al. 2024, arXiv 2304.01315). 0 for fewer than two runs.
    """
    if num < 2:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        share = (low + high) / 2
        missed = num * share ** (num - 1) - (num - 1) * share**num  # chance that it is less
        low, high = (share, high) if missed < 1 - CONFIDENCE else (low, share)
    return low


def _above(strata: Sequence[ArrayLike], thresholds: ArrayLike) -> list[NDArray[np.float64]]:
    """Return 1 if a score is above a threshold and 0 if not, `[N_m, K]` for each stratum."""
    levels = np.asarray(thresholds, np.float64)
    return [
        (np.asarray(stratum, np.float64)[:, None] > levels).astype(np.float64) for stratum in strata
    ]


def _wins(first: ArrayLike, second: ArrayLike) -> NDArray[np.float64]:
    """Return 1 where X is higher, 1/2 where both are equal and 0 elsewhere, `[N, K]`."""
    x, y = np.asarray(first, np.float64)[:, None], np.asarray(second, np.float64)
    return (x > y) + 0.5 * (x == y)


def _weights(generator: np.random.Generator, num: int) -> NDArray[np.float64]:
    """Return the share of each of `num` runs in each resample, `[NUM_RESAMPLES, num]`."""
    return generator.multinomial(num, np.full(num, 1.0 / num), NUM_RESAMPLES) / num


def _quantiles(resampled: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both ends of the interval of `resampled`, `[NUM_RESAMPLES, ...]`."""
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(resampled, [tail, 1.0 - tail], axis=0)
    return low, high
