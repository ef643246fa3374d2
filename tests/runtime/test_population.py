"""Selection on the host: who copies whom, and what they change."""

import dataclasses

import numpy as np
import pytest
from conftest import small_config

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import PopulationConfig
from jaxppo.ops import aggregates
from jaxppo.runtime.programs.population import explore, members, near_one_of, rank, rungs, sources

NAN, INF = float("nan"), float("inf")
BOUNDS = {"actor_lr": [1e-4, 1e-2], "gae_lambda": [0.0, 1.0]}


def test_members_without_a_finite_score_come_last() -> None:
    assert rank([1.0, NAN, 3.0, INF, -2.0, 3.0]) == [2, 5, 0, 4, 1, 3]


def test_the_worst_copy_the_best_and_nobody_else_anyone() -> None:
    scores = [5.0, 1.0, 9.0, 3.0, 8.0, 2.0, 7.0, 4.0, 6.0, 0.0]
    seen = set()
    for seed in range(50):
        chosen = sources(scores, 0.2, np.random.default_rng(seed))
        assert [i for i, source in enumerate(chosen) if i != source] == [1, 9]
        seen |= {chosen[1], chosen[9]}
    assert seen == {2, 4}


def test_nobody_copies_one_that_is_no_better() -> None:
    generator = np.random.default_rng(0)
    assert sources([1.0, 1.0, 1.0], 0.5, generator) == [0, 1, 2]
    assert sources([NAN, NAN], 0.5, generator) == [0, 1]
    assert sources([NAN, 1.0], 0.5, generator) == [1, 1]
    assert sources([NAN, NAN, 0.0, 1.0, NAN], 0.2, generator) == [3, 3, 2, 3, 3]
    assert sources([NAN, NAN, NAN, 1.0], 0.5, generator) == [3, 3, 3, 3]


def test_a_failed_member_takes_nobodys_place() -> None:
    generator = np.random.default_rng(0)
    assert sources([NAN, 1.0, 2.0, 3.0], 0.34, generator, failed=[0]) == [0, 3, 2, 3]


def test_exploration_multiplies_divides_or_draws_within_bounds() -> None:
    found = []
    settings = PopulationConfig(size=3, hyperparameters=BOUNDS, perturbation=2.0, resample=0.3)
    values = {"actor_lr": [1e-3, 8e-3, 1.5e-4], "gae_lambda": [0.5, 0.9, 0.1]}
    for seed in range(2000):
        changed = explore(values, [0, 1], settings, np.random.default_rng(seed))
        assert changed["actor_lr"][2] == 1.5e-4
        found.append(changed["actor_lr"][:2])
        assert all(1e-4 <= x <= 1e-2 for x in changed["actor_lr"])
        assert all(0.0 <= x <= 1.0 for x in changed["gae_lambda"])
    first, second = np.transpose(found)
    shares = [np.mean(np.isclose(first, x)) for x in (2e-3, 5e-4)]
    np.testing.assert_allclose(shares, 0.35, atol=0.04)
    assert np.mean(np.isclose(second, 1e-2)) > 0.3  # clipped at the bound
    fresh = np.log10(first[~np.isclose(first, 2e-3) & ~np.isclose(first, 5e-4)])
    np.testing.assert_allclose([fresh.mean(), fresh.std()], [-3, 2 / np.sqrt(12)], atol=0.06)


def test_exploration_of_a_discount_changes_its_distance_to_one() -> None:
    def explored(name: str, bounds: list[float], value: float) -> list[float]:
        settings = PopulationConfig(size=1, hyperparameters={name: bounds}, resample=0.0)
        near_one = near_one_of(dataclasses.replace(small_config(), population=settings))
        found = {
            explore({name: [value]}, [0], settings, np.random.default_rng(seed), near_one)[name][0]
            for seed in range(20)
        }
        return sorted(found)

    bounds = [0.9, 0.999]
    np.testing.assert_allclose(explored("gamma", bounds, 0.99), [0.9875, 0.992], rtol=1e-12)
    np.testing.assert_allclose(explored("gamma", bounds, 0.9), [0.9, 0.92], rtol=1e-12)
    np.testing.assert_allclose(explored("gamma", bounds, 0.999), [0.99875, 0.999], rtol=1e-12)
    found = explored("gae_lambda", [0.9, 1.0], 1.0)  # it can be left
    np.testing.assert_allclose(found, [0.99875, 0.9992], rtol=1e-12)
    np.testing.assert_allclose(explored("vf_coef", [0.5, 1.0], 0.7), [0.56, 0.875], rtol=1e-12)


def test_first_values_are_drawn_between_the_bounds_and_stay_a_members_own() -> None:
    config = small_config(population={"size": 40, "hyperparameters": BOUNDS})
    found = members(config)
    assert [member.arch.seed for member in found] == list(range(42, 82))
    rates = np.array([member.system.actor_lr for member in found])
    assert np.all((rates > 1e-4) & (rates < 1e-2))
    assert np.mean(rates < 1e-3) == pytest.approx(0.5, abs=0.2)  # uniform in the logarithm
    smaller = members(small_config(population={"size": 5, "hyperparameters": BOUNDS}))
    assert smaller == found[:5]
    config = small_config(population={"size": 3, "hyperparameters": BOUNDS, "initialize": "config"})
    assert {member.system.actor_lr for member in members(config)} == {config.system.actor_lr}


def test_a_discount_is_drawn_by_its_distance_to_one() -> None:
    """Log-uniformly, at first and when it is drawn anew; the others as if it were not there."""
    bounds = {"gamma": [0.9, 0.999], **BOUNDS}
    found = [each.system for each in members(small_config(
        population={"size": 400, "hyperparameters": bounds}
    ))]  # fmt: skip
    anew = PopulationConfig(size=1, hyperparameters={"gamma": bounds["gamma"]}, resample=1.0)
    drawn = [
        explore({"gamma": [0.95]}, [0], anew, np.random.default_rng(i), {"gamma"})["gamma"][0]
        for i in range(400)
    ]
    for values in ([each.gamma for each in found], drawn):
        distance = np.log10(1 - np.array(values))
        assert -3 - 1e-9 <= distance.min() < -2.9 < -1.1 < distance.max() <= -1
        np.testing.assert_allclose([distance.mean(), distance.std()], [-2, 2 / 12**0.5], atol=0.08)


@pytest.mark.parametrize("initialize", ["sample", "config"])
def test_the_first_members_start_with_the_values_that_are_given(initialize: str) -> None:
    of = {"size": 4, "hyperparameters": BOUNDS, "initialize": initialize}
    plain = [member.system for member in members(small_config(population=of))]
    start = [{"actor_lr": 2e-3, "gae_lambda": 0.5}, {"actor_lr": 1e-4}]
    found = [member.system for member in members(small_config(population={**of, "start": start}))]
    assert found[0] == dataclasses.replace(plain[0], actor_lr=2e-3, gae_lambda=0.5)
    assert found[1] == dataclasses.replace(plain[1], actor_lr=1e-4)  # the other value as before
    assert found[2:] == plain[2:]


@pytest.mark.parametrize(
    "size, reduction, blocks, expected",
    [
        (8, 2, [1] * 8, {0: 4, 1: 2, 3: 1}),
        (9, 3, [1] * 9, {0: 3, 2: 1}),
        (5, 2, [1] * 4, {0: 2, 1: 1}),
        (2, 2, [1, 1], {0: 1}),
        (16, 2, [5, 5], {0: 1}),
        (4, 2, [10], {}),
    ],
)
def test_rungs_take_reduction_times_the_updates_of_the_one_before(
    size: int, reduction: int, blocks: list[int], expected: dict[int, int]
) -> None:
    assert rungs(size, reduction, blocks) == expected


@pytest.mark.parametrize(
    "settings, key",
    [
        ({"size": 1}, "population.size=1"),
        ({"selection": "pbt"}, "population.selection=pbt needs a population.size"),
        ({"size": 4, "selection": "pbt"}, "population.hyperparameters="),
        ({"size": 4, "hyperparameters": {"actor_lr": [1e-2, 1e-4]}}, "actor_lr=.*that ascend"),
        ({"size": 4, "hyperparameters": {"actor_lr": ["a", "b"]}}, "actor_lr=.*two finite"),
        ({"size": 4, "hyperparameters": {"epochs": [1, 4]}}, "epochs: not a number"),
        ({"size": 4, "hyperparameters": {"gamma": [0.9, 1.5]}}, "gamma=1.5"),
        ({"size": 4, "hyperparameters": {"clip_eps_high": [0.1, 0.3]}}, "clip_eps_high=.*not dpo"),
        ({"size": 4, "hyperparameters": {"target_kl": [0.1, 1]}}, "a finite system.target_kl"),
        ({"size": 4, "threshold": 0.7}, "population.threshold=0.7"),
        ({"size": 2, "hyperparameters": BOUNDS, "start": [{}, {}, {}]}, "population.start: "),
        ({"size": 2, "hyperparameters": BOUNDS, "start": [{"gamma": 0.9}]}, r"start\[0\].gamma"),
        ({"size": 2, "hyperparameters": BOUNDS, "start": [{"actor_lr": 1.0}]}, "actor_lr=1.0"),
        ({"size": 2, "start": [{"gamma": float("inf")}]}, r"start\[0\].gamma"),
        ({"size": 4, "num_seeds": 2}, "arch.num_seeds=2"),
        ({"num_seeds": 2, "seed": 2**32 - 1}, "arch.num_seeds=2.*lower arch.seed"),
        ({"size": 2, "seed": 2**32 - 1}, "population.size=2.*lower arch.seed"),
    ],
)
def test_a_wrong_population_is_refused(settings: dict[str, object], key: str) -> None:
    arch = {name: settings.pop(name) for name in ("num_seeds", "seed") if name in settings}
    objective = "dpo" if "dpo" in key else "clip"
    with pytest.raises(ConfigError, match=key) as error:
        members(small_config(population=settings, arch=arch, system={"objective": objective}))
    assert "\n" not in str(error.value)


def test_the_interquartile_mean_is_that_of_scipy() -> None:
    from scipy.stats import trim_mean

    generator = np.random.default_rng(3)
    for num in range(1, 20):
        scores = generator.normal(size=(3, num))
        np.testing.assert_allclose(aggregates.iqm(scores), trim_mean(scores, 0.25, axis=1))
    assert aggregates.iqm([0.0, 1.0, 2.0, 1000.0]) == 1.5


def test_intervals_are_those_of_scipys_bootstrap_and_keep_strata() -> None:
    from scipy.stats import bootstrap, trim_mean

    generator = np.random.default_rng(4)
    strata = [generator.normal(size=12), 10 + generator.normal(size=20)]
    found = aggregates.interval(strata)
    expected = bootstrap(
        strata,
        lambda *drawn, axis=-1: trim_mean(np.concatenate(drawn, axis), 0.25, axis),
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    np.testing.assert_allclose(found, expected, atol=0.1)
    together = aggregates.interval([np.concatenate(strata)])
    assert together[1] - together[0] > 2 * (found[1] - found[0])
    assert aggregates.interval([[3.0], [3.0]]) == (3.0, 3.0)
    assert np.all(np.isnan(aggregates.interval([[1.0, NAN]])))
