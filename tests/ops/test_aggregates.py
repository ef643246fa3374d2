"""Profiles, probabilities of improvement and their intervals, against scipy and by hand."""

import numpy as np
import pytest
from scipy import stats

from jaxppo.ops import aggregates

X = [np.array([1.0, 4.0, 2.0, 2.0, 9.0]), np.array([0.5, 0.25, 0.125])]
Y = [np.array([2.0, 3.0, 0.0]), np.array([0.25, 1.0, 0.0, 0.3])]


def test_profile_is_the_share_of_runs_above_each_threshold_mean_over_tasks() -> None:
    """At 2: 2 of 5 and 0 of 3; at 0.2: 5 of 5 and 2 of 3. A score on a threshold is not above."""
    found = aggregates.profile(X, [0.2, 2.0, 9.0])
    np.testing.assert_allclose(found, [(1 + 2 / 3) / 2, 0.2, 0.0])


@pytest.mark.parametrize("num, above", [(5, 2), (10, 7), (20, 3)])
def test_interval_of_a_profile_is_that_of_a_binomial_share(num: int, above: int) -> None:
    """What is resampled of `num` runs, `above` of them above: Binomial(num, above / num) / num."""
    scores = np.arange(num, dtype=np.float64)
    low, high = aggregates.profile_interval([scores], [num - above - 0.5])
    spread = stats.binom(num, above / num)
    slack = 0.012  # of probability: 2,000 resamples are a sample
    assert spread.ppf(0.025 - slack) <= num * low[0] <= spread.ppf(0.025 + slack)
    assert spread.ppf(0.975 - slack) <= num * high[0] <= spread.ppf(0.975 + slack)


def test_tasks_of_a_profile_are_resampled_apart() -> None:
    """One task always above and one never: nothing to draw, however many runs each has."""
    low, high = aggregates.profile_interval([np.ones(3), np.zeros(8)], [0.5])
    assert (low[0], high[0]) == (0.5, 0.5)


def test_probability_of_improvement_is_the_mann_whitney_statistic() -> None:
    pairs = list(zip(X, Y, strict=True))
    each = [stats.mannwhitneyu(x, y).statistic / (x.size * y.size) for x, y in pairs]
    assert aggregates.improvement(pairs) == pytest.approx(np.mean(each))
    assert aggregates.improvement([(y, x) for x, y in pairs]) == pytest.approx(1 - np.mean(each))
    assert aggregates.improvement([([1.0, 2.0], [1.0])]) == 0.75  # a tie and a win


def test_interval_of_an_improvement_is_that_of_resampled_runs() -> None:
    """Against a loop over resamples of its own."""
    pairs = list(zip(X, Y, strict=True))
    generator = np.random.default_rng(7)
    drawn = [
        aggregates.improvement(
            [(generator.choice(x, x.size), generator.choice(y, y.size)) for x, y in pairs]
        )
        for _ in range(4000)
    ]
    found = aggregates.improvement_interval(pairs)
    np.testing.assert_allclose(found, np.quantile(drawn, [0.025, 0.975]), atol=0.03)
    assert aggregates.improvement_interval([([3.0, 4.0], [1.0, 2.0])]) == (1.0, 1.0)
    assert aggregates.improvement_interval(pairs) == found  # the same draws


def test_interval_of_a_curve_draws_the_same_runs_at_every_point() -> None:
    generator = np.random.default_rng(3)
    first = generator.normal(size=8)
    low, high = aggregates.intervals(np.stack([first, 2 * first + 3, np.ones(8)], axis=1))
    np.testing.assert_allclose([low[1], high[1]], [2 * low[0] + 3, 2 * high[0] + 3])
    assert (low[2], high[2]) == (1.0, 1.0)

    def trimmed(x: np.ndarray, axis: int) -> np.ndarray:
        return stats.trim_mean(x, 0.25, axis=axis)

    known = stats.bootstrap(
        (first,), trimmed, method="percentile", n_resamples=9999, rng=np.random.default_rng(1)
    ).confidence_interval
    np.testing.assert_allclose([low[0], high[0]], known, atol=0.08)


@pytest.mark.parametrize(
    "num, share", [(93, 0.95), (46, 0.9), (473, 0.99), (5, 0.342), (10, 0.606)]
)
def test_tolerance_is_that_of_published_sample_sizes(num: int, share: float) -> None:
    """93, 46 and 473 runs are the known sizes for 95%, 90% and 99% of a distribution."""
    assert aggregates.tolerance(num) == pytest.approx(share, abs=1e-3)
    if share >= 0.9:
        assert aggregates.tolerance(num) >= share > aggregates.tolerance(num - 1)


def test_one_run_covers_nothing() -> None:
    assert aggregates.tolerance(1) == aggregates.tolerance(0) == 0
