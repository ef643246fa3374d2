"""The time to a return."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import jaxppo
from benchmarks import speedrun
from benchmarks.speedrun import Goal

ENTRY = {
    **{"date": "2026-01-02", "goal": "cartpole", "return": 475, "machine": "2 cores", "jax": "0"},
    **{"command": "python -m benchmarks.speedrun cartpole", "cached": False},
}


@pytest.mark.parametrize("value, steps, trained", [(0.5, [20], 2), (0.95, [], 3)])
def test_a_run_stops_at_the_first_evaluation_that_reaches_the_goal(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    value: float,
    steps: list[int],
    trained: int,
) -> None:
    """And prints a line then, and none if there is no such evaluation."""
    blocks = []

    def train(settings: list[str], on_block: Callable[[Any], bool], progress: bool) -> None:
        for i, found in enumerate((0.2, 0.5, 0.9)):
            blocks.append(found)
            if on_block(SimpleNamespace(steps=10 * (i + 1), evaluation={"episode_return": found})):
                return

    monkeypatch.setattr(jaxppo, "train", train)
    speedrun.train(Goal(value, ()), ["env=catch"])
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["steps"] for line in lines] == steps
    assert len(blocks) == trained


def test_the_table_has_the_median_and_the_slowest_and_counts_failures() -> None:
    """Of three runs of which one did not get there."""
    runs = {
        "1": {"seconds": 8.0, "steps": 100, "return": 480.0},
        "2": {"seconds": 10.0, "steps": 200, "return": 490.0},
        "3": None,
    }
    line = speedrun.table([{**ENTRY, "runs": runs}]).splitlines()[-1]
    assert "| cartpole to 475 | 9.0 s | 10.0 s | 2 of 3 | 150 |" in line
    line = speedrun.table([{**ENTRY, "runs": {"1": None}}]).splitlines()[-1]
    assert "not reached" in line


def test_the_history_is_a_table() -> None:
    """Every line that the repository keeps."""
    history = [json.loads(line) for line in speedrun.HISTORY.read_text().splitlines()]
    assert history
    assert len(speedrun.table(history).splitlines()) == 2 + len(history)
    assert all(entry["goal"] in speedrun.GOALS for entry in history)
