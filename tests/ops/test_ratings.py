"""Elo ratings against closed forms and the ratings that made the results."""

from typing import Any

import numpy as np
import pytest

from jaxppo.ops.ratings import elo


@pytest.mark.parametrize("won, lost", [(30.0, 10.0), (7.5, 7.5), (0.0, 50.0)])
def test_two_players_differ_by_the_odds_of_their_points(won: float, lost: float) -> None:
    """Of all games and one more draw; so no rating is infinite."""
    found = elo([[0.0, won], [lost, 0.0]])
    np.testing.assert_allclose(found, [0.0, 400 * np.log10((lost + 0.5) / (won + 0.5))], atol=1e-6)


def test_the_ratings_that_made_the_results_are_found() -> None:
    true = np.array([0.0, 120.0, -300.0, 700.0, 650.0])
    chance = 1 / (1 + 10 ** ((true - true[:, None]) / 400))
    games = 1e7 * np.array([1, 2, 3, 1, 5])
    points = chance * (games + games[:, None])
    np.fill_diagonal(points, 0.0)
    np.testing.assert_allclose(elo(points), true, atol=1e-2)


def test_ratings_belong_to_players_and_not_to_their_order() -> None:
    """Whatever they are, points and expected points are equal: the likelihood's gradient is 0."""
    rng = np.random.default_rng(0)
    points = rng.integers(0, 100, (6, 6)) * (1 - np.eye(6))
    points[5], points[:5, 5] = 0.0, 100.0  # it loses all
    ratings, order = elo(points), rng.permutation(6)
    again = elo(points[np.ix_(order, order)])
    np.testing.assert_allclose(again, ratings[order] - ratings[order[0]], atol=1e-5)
    np.testing.assert_allclose(surplus(points, ratings), 0.0, atol=1e-6)
    assert ratings[5] == ratings.min()


def test_results_with_one_winner_are_rated_too() -> None:
    points = np.triu(np.full((9, 9), 2e4), 1)
    ratings = elo(points)
    np.testing.assert_allclose(surplus(points, ratings), 0.0, atol=1e-6)
    assert (np.diff(ratings) < 0).all()


def surplus(points: Any, ratings: Any) -> Any:
    """Points beyond the expected ones, with a draw more of each pair."""
    won = (points + 0.5) * (1 - np.eye(len(points)))
    expected = (won + won.T) / (1 + 10 ** ((ratings - ratings[:, None]) / 400))
    return (won - expected).sum(1)
