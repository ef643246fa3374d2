"""Play trained policies against perfect and searching players.

    python -m benchmarks.games tic_tac_toe RUN           # every game that the policy can get into
    python -m benchmarks.games connect_four RUN          # against a search of depth 4
    python -m benchmarks.games connect_four RUN --depth 2 --games 100

RUN is the directory of a run of `env=pgx/tic_tac_toe` or `env=pgx/connect_four`. Policies are
greedy.
"""

import argparse
import functools
import math
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

import jaxppo
from jaxppo.ops.aggregates import share_interval

Board = tuple[int, ...]  # 9 fields: 1 of the player to move, -1 of the other, 0 free
LINES = (
    *((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8)),
    *((0, 4, 8), (2, 4, 6)),
)
WIDTH, HEIGHT = 7, 6
COLUMN = HEIGHT + 1  # bits of a column, of which the highest stays empty


def lost(board: Board) -> bool:
    """Whether the player who moved last has won."""
    return any(all(board[i] == -1 for i in line) for line in LINES)


def after(board: Board, move: int) -> Board:
    """The board in the eyes of the other player."""
    return tuple(-1 if i == move else -x for i, x in enumerate(board))


@functools.cache
def value(board: Board) -> int:
    """What perfect play is worth to the player to move: 1, 0 or -1."""
    if lost(board):
        return -1
    return max((-value(after(board, i)) for i in range(9) if not board[i]), default=0)


def boards() -> list[Board]:
    """Every board of a running game."""
    found: set[Board] = set()
    open_: list[Board] = [(0,) * 9]
    while open_:
        board = open_.pop()
        if board not in found and not lost(board) and 0 in board:
            found.add(board)
            open_ += [after(board, i) for i in range(9) if not board[i]]
    return sorted(found)


def outcomes(
    chosen: dict[Board, int], own: bool, perfect: bool = False, board: Board = (0,) * 9
) -> Iterator[int]:
    """The results of a policy that has `chosen` a move for each board, over all replies.

    `own`: it moves next. A `perfect` player takes all of its best moves, and any as an opening.
    """
    if lost(board):
        yield -1 if own else 1
    elif 0 not in board:
        yield 0
    elif own:
        yield from outcomes(chosen, False, perfect, after(board, chosen[board]))
    else:
        for i in range(9):
            opens = not any(board)
            if not board[i] and (not perfect or opens or -value(after(board, i)) == value(board)):
                yield from outcomes(chosen, True, perfect, after(board, i))


def tic_tac_toe(policy: Any) -> str:
    """Results of the policy against every sequence of replies, from both seats and all openings."""
    every = boards()
    array = np.asarray(every).reshape(-1, 3, 3)
    obs = {
        "observation": np.stack([array == 1, array == -1], axis=-1),
        "action_mask": array.reshape(-1, 9) == 0,
    }
    chosen = dict(zip(every, np.asarray(policy.act(obs)[0]).tolist(), strict=True))
    lines = []
    for name, own in (("first", True), ("second", False)):
        for replies, perfect in (("all replies", False), ("perfect replies", True)):
            counts = Counter(outcomes(chosen, own, perfect))
            lines.append(
                f"moves {name}, {replies}: {counts[1]} won, {counts[0]} drawn, {counts[-1]} lost"
            )
    worse = sum(-value(after(board, i)) < value(board) for board, i in chosen.items())
    lines.append(f"{worse} of all {len(every):,} positions answered with a worse move")
    return "\n".join(lines)


def four(stones: int) -> bool:
    """Whether stones, bits of columns from the bottom, have four in a row."""
    for step in (1, COLUMN, COLUMN - 1, COLUMN + 1):
        pairs = stones & stones >> step
        if pairs & pairs >> 2 * step:
            return True
    return False


def columns(both: int) -> list[int]:
    """The columns with a free field, from the middle."""
    return [c for c in (3, 2, 4, 1, 5, 0, 6) if not both >> (c * COLUMN + HEIGHT - 1) & 1]


def drop(own: int, both: int, column: int) -> int:
    """The stones `own` after one more."""
    return own | (both + (1 << column * COLUMN)) & ((1 << HEIGHT) - 1) << column * COLUMN


def search(own: int, both: int, depth: int, low: float, high: float) -> float:
    """Negamax with alpha-beta: 1 + the depth left for a win, less that for a loss, else 0."""
    free = columns(both)
    if not free or depth == 0:
        return 0.0
    for column in free:
        mine = drop(own, both, column)
        score: float = 1.0 + depth
        if not four(mine):
            score = -search(both ^ own, both | mine, depth - 1, -high, -low)
        low = max(low, score)
        if low >= high:
            break
    return low


def searched(own: int, both: int, depth: int, rng: random.Random) -> int:
    """A best column by `search`, drawn from all that are."""
    scores = {}
    for column in columns(both):
        mine = drop(own, both, column)
        if four(mine):
            return column
        scores[column] = -search(both ^ own, both | mine, depth - 1, -math.inf, math.inf)
    best = max(scores.values())
    return rng.choice([column for column, score in scores.items() if score == best])


def seen(own: int, both: int) -> tuple[np.ndarray, np.ndarray]:
    """Pgx's observation `[6, 7, 2]`, own stones first and the top row first, and the mask `[7]`."""

    def grid(stones: int) -> np.ndarray:
        rows = range(HEIGHT - 1, -1, -1)
        bits = [[stones >> (c * COLUMN + r) & 1 for c in range(WIDTH)] for r in rows]
        return np.asarray(bits, bool)

    legal = np.zeros(WIDTH, bool)
    legal[columns(both)] = True
    return np.stack([grid(own), grid(both ^ own)], axis=-1), legal


def connect_four(policy: Any, games: int, depth: int) -> str:
    """Results against a search, as many games from each seat, after two random moves."""
    rng = random.Random(0)
    boards: list[list[int]] = []  # stones of the player to move, and of both
    for _ in range(games):
        own = both = 0
        for _ in range(2):
            mine = drop(own, both, rng.choice(columns(both)))
            own, both = both ^ own, both | mine
        boards.append([own, both])
    own_turn = [i % 2 == 0 for i in range(games)]
    results: dict[int, int] = {}
    while len(results) < games:
        running = [i for i in range(games) if i not in results]
        views = [seen(*boards[i]) for i in range(games)]  # all, so that one program serves
        obs = {
            "observation": np.stack([view for view, _ in views]),
            "action_mask": np.stack([legal | ~legal.any() for _, legal in views]),
        }
        chosen = np.asarray(policy.act(obs)[0]).tolist()
        for i in running:
            own, both = boards[i]
            column = chosen[i] if own_turn[i] else searched(own, both, depth, rng)
            mine = drop(own, both, column)
            boards[i] = [both ^ own, both | mine]
            if four(mine):
                results[i] = 1 if own_turn[i] else -1
            elif not columns(both | mine):
                results[i] = 0
            own_turn[i] = not own_turn[i]
    counts = Counter(results.values())
    low, high = share_interval([float(x == 1) for x in results.values()])
    return (
        f"against depth {depth}: {counts[1]} won, {counts[0]} drawn, {counts[-1]} lost; won "
        f"{counts[1] / games:.3f} (95% interval {low:.3f} to {high:.3f})"
    )


def main() -> None:
    """Read the command line, play and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("game", choices=["tic_tac_toe", "connect_four"])
    parser.add_argument("run")
    parser.add_argument("--which", default="latest")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--games", type=int, default=200)
    given = parser.parse_args()
    policy = jaxppo.load(given.run, given.which)
    if given.game == "tic_tac_toe":
        print(tic_tac_toe(policy))
    else:
        print(connect_four(policy, given.games, given.depth))


if __name__ == "__main__":
    main()
