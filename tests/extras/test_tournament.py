"""Round robins between policies of games: who plays, from which seats, and what is written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import NETWORK, close, small_config
from runs import EACH_TIME, MEMORY, QUIET, fresh

from jaxppo.algorithms.evaluation import evaluate
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config
from jaxppo.deploy.policy import TrainedPolicy, load_pool
from jaxppo.extras import tournament
from jaxppo.extras.report import Reporting
from jaxppo.extras.report import report as write_page
from jaxppo.extras.tournament import Tournament
from jaxppo.ops.ratings import elo
from jaxppo.runtime.run.loop import run

TRUST = ["own_games", "envs"]


def nim(**changes: Any) -> Config:
    env = {"target": "own_games.Nim", "opponent": "pool", "num_opponents": 3}
    env |= changes.pop("env", {})
    arch = {"total_num_envs": 32, "num_updates": 1, "num_evaluation": 1, "max_eval_steps": 20}
    arch |= {"num_eval_episodes": 8, "absolute_metric": False} | changes.pop("arch", {})
    settings = {"env": {"name": None, **env}, "arch": arch, "network": NETWORK, **changes}
    return small_config(logger=QUIET, checkpoint=EACH_TIME, **settings)


def train(folder: Path, **changes: Any) -> str:
    folder.mkdir()
    run(nim(**changes), folder)
    return str(folder)


def in_one_game(*changes: dict[str, Any]) -> list[TrainedPolicy]:
    """Untrained policies of their own settings in the game of the first."""
    alone = {"opponent": "random", "num_opponents": 8}
    every = [fresh(nim(**{**each, "env": {**alone, **each.get("env", {})}})) for each in changes]
    return tournament.in_one_game([("run", each) for each in every])


LEARNS = {"rollout_length": 16, "actor_lr": 2e-2, "critic_lr": 2e-2, "gamma": 1.0, "ent_coef": 0.02}


def play(*runs: str, games: int = 40) -> dict[str, Any]:
    tournament.tournament(Tournament(runs=[*runs], games=games, trust=TRUST))
    found: dict[str, Any] = json.loads((Path(runs[0]) / "tournament.json").read_text())
    return found


@pytest.mark.long
def test_policies_of_a_pool_and_of_another_run_are_rated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = []
    traced = lambda *args: (traces.append(args), evaluate(*args))[1]  # noqa: E731
    monkeypatch.setattr(tournament, "evaluate", traced)
    arch = {"num_updates": 24, "num_evaluation": 2}
    first = train(tmp_path / "first", arch=arch, system=LEARNS)
    slower = {**LEARNS, "actor_lr": 1e-3}
    other = train(tmp_path / "other", arch={"seed": 1}, system=slower, env={"opponent": "self"})
    pool = load_pool(first, trust=TRUST)
    assert [each.steps for each in pool] == [0, 12 * 32 * 16, 24 * 32 * 16]
    for each in pool[1:]:  # which checkpoints hold too
        (own,) = tournament.entrants(f"{first}@{each.steps}", TRUST)
        close(each.policy.params, own.policy.params)
    found = play(first, other, f"{first}@{pool[1].steps}")
    assert len(traces) == 1  # one program for all pairs
    rows, results = found["policies"], np.asarray(found["results"])
    own_steps = [(first, each.steps) for each in pool]
    assert [(x["run"], x["steps"]) for x in rows] == [*own_steps, (other, 512), own_steps[1]]
    np.testing.assert_array_equal(results + results.T, 40 * (1 - np.eye(5)))
    np.testing.assert_allclose([x["elo"] for x in rows], elo(results))
    np.testing.assert_allclose([x["points"] for x in rows], results.sum(1) / 160)
    assert all(0 <= x["low"] < x["points"] < x["high"] <= 1 for x in rows)
    assert rows[0]["elo"] == 0
    assert rows[2]["elo"] > 100  # 24 updates are enough for Nim
    write_page(Reporting(runs=[first], out=str(tmp_path / "page")))
    page = (tmp_path / "page" / "index.html").read_text()
    assert f'<td class="number">{rows[2]["elo"]:.0f}</td>' in page
    assert (tmp_path / "page" / "tournament_0.png").is_file()


def test_each_start_is_played_from_both_seats() -> None:
    """Of a game that who moves first wins."""
    forced = {"env": {"target": "own_games.Forced"}}
    found = tournament.round_robin(in_one_game(*3 * [forced]), 14, seed=0)
    np.testing.assert_array_equal(found, 7 * (1 - np.eye(3)))


def test_a_game_that_is_cut_is_a_draw() -> None:
    """Whatever was gained so far."""
    paid = {"env": {"target": "own_games.Paid"}, "arch": {"max_eval_steps": 1}}
    found = tournament.round_robin(in_one_game(paid, paid), 14, seed=0)
    np.testing.assert_array_equal(found, 7 * (1 - np.eye(2)))


@pytest.mark.long
def test_a_policy_plays_with_its_own_mask_and_precision() -> None:
    others = {"env": {"action_mask": None}}, {"arch": {"precision": "bf16"}}
    played = [each.system.algorithm.network for each in in_one_game({}, *others)]
    assert [x.action_mask for x in played] == ["action_mask", None, "action_mask"]
    assert [x.precision for x in played] == [played[0].precision] * 2 + ["bf16"]
    assert played[0].precision != "bf16"


@pytest.mark.long
def test_what_cannot_play_is_refused_in_one_line(tmp_path: Path) -> None:
    nim = train(tmp_path / "nim", env={"opponent": "self"})
    alone = {"opponent": "random", "num_opponents": 8}
    others = {
        "clock": {"env": {**alone, "target": "envs.Clock"}},
        "shown": {"env": {**alone, "extras": ["step"]}},
        "memory": {"env": alone, "network": MEMORY, "system": {"sequence_length": 4}},
        "tictactoe": {"env": {**alone, "target": "own_games.TicTacToe"}},
    }
    folders = {name: train(tmp_path / name, **changes) for name, changes in others.items()}
    for name, line in {
        "clock": r"^runs=\[.*clock\]: envs\.Clock is no game of two players",
        "shown": r"^runs=\[.*shown\]: .*env\.extras change what",
        "memory": r"^runs=\[.*memory\]: its network has a memory",
        "tictactoe": r"^runs=\[.*tictactoe\]: plays own_games\.TicTacToe with",
    }.items():
        with pytest.raises(ConfigError, match=line):
            play(nim, folders[name])
    with pytest.raises(ConfigError, match=r"needs two policies, and there is 1"):
        play(nim)
    with pytest.raises(ConfigError, match=r"^games=3: must be even"):
        play(nim, nim, games=3)
    with pytest.raises(ConfigError, match=r"trust=\[own_games\]"):
        tournament.tournament(Tournament(runs=[nim, nim]))
