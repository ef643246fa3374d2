"""Ratings of players from the results of their games."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

SCALE = 400.0  # rating points that make the odds of a win ten times as high


def elo(points: ArrayLike) -> NDArray[np.float64]:
    """Return the Elo ratings of `N` players, `[N]`; the first one has 0.

    `points` `[N, N]` are those of player i against player j: 1 for a win and 1/2 for a draw. The
    ratings R maximise the likelihood of the results and of one extra draw for each pair, which
    keeps ratings finite, with

        P(i beats j) = 1 / (1 + 10^((R_j - R_i) / 400)).

    Elo 1978 (The Rating of Chessplayers); the model is that of Bradley and Terry 1952 (Biometrika
    39, 324). Newton's method, as MM algorithms are slow where most pairs are one-sided.
    """
    won = np.asarray(points, np.float64) + 0.5
    np.fill_diagonal(won, 0.0)
    games, ratings, change = won + won.T, np.zeros(len(won)), np.inf
    while change > 1e-6:
        chance = (1 + np.tanh((ratings[:, None] - ratings) / 2)) / 2
        weights = games * chance * chance.T
        curvature = np.diag(weights.sum(1)) - weights
        step = np.linalg.solve(curvature[1:, 1:], (won - games * chance).sum(1)[1:])
        change = np.abs(step).max()
        ratings[1:] += step / max(2 * change, 1.0)  # longer steps may diverge
    return SCALE / np.log(10) * ratings
