"""One number of many: means over independent runs, and how sure one can be of them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

NUM_RESAMPLES = 2_000
CONFIDENCE = 0.95


def iqm(scores: ArrayLike, axis: int = -1) -> NDArray[np.float64]:
    """Interquartile mean: without the lowest and the highest quarter, each rounded down.

    Agarwal et al. 2021 (arXiv 2108.13264), section 4.3. `scores` `[..., N]`.
    """
    ordered = np.sort(np.asarray(scores, np.float64), axis)
    num = ordered.shape[axis]
    return np.mean(np.take(ordered, np.arange(num // 4, num - num // 4), axis), axis)


def interval(strata: Sequence[ArrayLike]) -> tuple[float, float]:
    """95% stratified percentile bootstrap interval of the IQM over all strata (tasks, say).

    Each resample draws from every stratum `[N_i]` as many as it has: Agarwal et al. 2021 (arXiv
    2108.13264), section 4.2. The draws are the same every time. NaN where a score is not finite.
    """
    scores = [np.asarray(stratum, np.float64) for stratum in strata]
    if not all(np.all(np.isfinite(stratum)) for stratum in scores):
        return float("nan"), float("nan")
    generator = np.random.default_rng(0)
    drawn = [generator.choice(stratum, (NUM_RESAMPLES, stratum.size)) for stratum in scores]
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(iqm(np.concatenate(drawn, axis=1)), [tail, 1.0 - tail])
    return float(low), float(high)
