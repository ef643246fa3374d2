"""What a sweep found, from the directories of its jobs."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from jaxppo.analysis import sweep


def job(
    folder: Path, overrides: list[str], summary: dict[str, Any] | None, scores: list[Any]
) -> None:
    (folder / ".hydra").mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(overrides), folder / ".hydra" / "overrides.yaml")
    events = [
        {"event": "eval", "steps": 100 * (i + 1), **(s if isinstance(s, dict) else {})}
        | ({} if isinstance(s, dict) else {"episode_return": s})
        for i, s in enumerate(scores)
    ]
    lines = [{"event": "train", "steps": 100}, *events]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def swept(tmp_path: Path) -> Path:
    """Jobs of which one failed, one was killed and one has two seeds."""

    def done(score: float | None, best: float) -> dict[str, Any]:
        return {"status": "finished", "absolute_metric": score, "best_episode_return": best}

    same = "env=cartpole"
    # The command line writes ++ before keys of system; the table shows what was typed
    job(tmp_path / "0", [same, "++system.gamma=0.9", "arch.seed=1"], done(5.0, 6.0), [1.0, 6.0])
    job(tmp_path / "2", [same, "system.gamma=0.99", "arch.seed=1"], done(9.0, 9.0), [3.0, 9.0])
    job(
        tmp_path / "10",
        [same, "system.gamma=0.99", "arch.seed=2"],
        {"status": "NaN or infinity", "absolute_metric": None, "best_episode_return": 99.0},
        [2.0, None],
    )
    job(tmp_path / "11", [same, "system.gamma=0.9", "arch.seed=2"], None, [])
    two = {"episode_return": 7.0, "member_returns": [6.0, 8.0]}
    job(tmp_path / "12", [same, "system.gamma=0.9", "arch.seed=3"], done(None, 7.0), [two])
    (tmp_path / "not_a_job").mkdir()
    return tmp_path


def test_table_is_sorted_by_the_absolute_metric_and_failures_come_last(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep.report(swept, console=True)
    with (swept / "sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["job"] for row in rows] == ["2", "12", "0", "10", "11"]
    assert list(rows[0])[:4] == ["job", "system.gamma", "arch.seed", "absolute_metric"]
    assert (rows[0]["system.gamma"], rows[0]["absolute_metric"]) == ("0.99", "9.0")
    assert rows[3]["status"] == "NaN or infinity"
    assert rows[4]["status"] == "ended early"
    printed = [line for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [line.split("│")[1].strip() for line in printed] == [row["job"] for row in rows]
    assert (swept / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_console_nothing_is_printed_and_without_jobs_nothing_written(
    swept: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep.report(swept, console=False)
    empty = tmp_path_factory.mktemp("empty")
    sweep.report(empty, console=True)
    assert capsys.readouterr().out == ""
    assert list(empty.iterdir()) == []


def test_curves_gather_the_scores_of_every_job_and_seed_with_a_value(swept: Path) -> None:
    curves = sweep._curves(sweep.read(swept), "system.gamma")
    assert curves == {
        "0.9": {100: [1.0, 6.0, 8.0], 200: [6.0]},
        "0.99": {100: [3.0, 2.0], 200: [9.0]},
    }


def test_damaged_files_of_a_killed_job_are_left_out(swept: Path) -> None:
    with (swept / "2" / "metrics.jsonl").open("a") as file:
        file.write('{"event": "ev')
    (swept / "0" / "summary.json").write_text('{"status": "fini')
    jobs = {found["job"]: found for found in sweep.read(swept)}
    assert [event["episode_return"] for event in jobs["2"]["evaluations"]] == [3.0, 9.0]
    assert jobs["0"]["summary"] == {"status": "ended early"}


def test_seeds_have_a_panel_only_where_nothing_else_was_swept(
    swept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(sweep, "draw_sweep", lambda path, panels: seen.append(panels))
    sweep.report(swept, console=False)
    for name in ("2", "10"):
        overrides = swept / name / ".hydra" / "overrides.yaml"
        overrides.write_text(overrides.read_text().replace("0.99", "0.9"))
    sweep.report(swept, console=False)
    assert [list(panels) for panels in seen] == [["system.gamma"], ["arch.seed"]]


def test_jobs_are_summed_up_over_seeds_of_equal_settings_only() -> None:
    rows = [
        {"gamma": gamma, "arch.seed": str(seed), "absolute_metric": score}
        for gamma, seed, score in [
            *(("0.9", i, float(x)) for i, x in enumerate((0, 1, 2, 1000))),
            *(("0.99", i, 5.0) for i in range(2)),
            ("0.99", 2, None),
        ]
    ]
    best, other = sweep.over_seeds(rows, ["gamma"])
    assert best == {"gamma": "0.99", "seeds": 2, "IQM": 5.0, "95%": "[5, 5]"}
    assert (other["gamma"], other["seeds"], other["IQM"]) == ("0.9", 4, 1.5)
    assert sweep.over_seeds(rows, ["gamma", "arch.seed"]) == []
