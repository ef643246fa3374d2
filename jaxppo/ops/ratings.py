"""Ratings of players from the results of their games."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

SCALE = 400.0  # rating points that make the odds of a win ten times as high


def elo(points: ArrayLike) -> NDArray[np.float64]:
    """Return the Elo ratings of `N` players, `[N]`; the first one has 0.

    `points` `[N, N]` are those of player i against player j: 1 for a win and 1/2 for a draw. The
    ratings R maximise the likelihood of the results, and of one more draw of each pair, without
    which a player who won all games would have an infinite rating, where

        P(i beats j) = 1 / (1 + 10^((R_j - R_i) / 400)).

    Elo 1978 (The Rating of Chessplayers); the model is that of Bradley and Terry 1952 (Biometrika
    39, 324), fitted by the MM algorithm of Hunter 2004 (Annals of Statistics 32, 384), eq. (3).
    """
    won = np.asarray(points, np.float64) + 0.5
    np.fill_diagonal(won, 0.0)
    games, total, strength = won + won.T, won.sum(1), np.ones(len(won))
    change = np.inf
    while change > 1e-10:
        new = total / (games / (strength[:, None] + strength)).sum(1)
        new /= np.exp(np.log(new).mean())
        change, strength = np.abs(np.log(new / strength)).max(), new
    return SCALE * np.log10(strength / strength[0])
