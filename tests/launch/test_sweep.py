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
    config = OmegaConf.create({"arch": {"num_seeds": 1}, "system": {}, "env": {"name": "Pole"}})
    typed = [line.lstrip("+") for line in overrides if not line.startswith("env=")]
    config.merge_with(OmegaConf.from_dotlist(typed))
    OmegaConf.save(config, folder / "config.yaml")
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
    assert "system.gamma" in capsys.readouterr().out
    assert (swept / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_a_job_whose_summary_is_damaged_old_or_missing_did_not_finish(swept: Path) -> None:
    (swept / "0" / "summary.json").write_text('{"status": "fini')
    file = swept / "2" / "summary.json"  # of a job that was resumed, and killed then
    file.write_text(json.dumps({**json.loads(file.read_text()), "steps": 100}))
    (swept / "12" / "summary.json").unlink()
    typed = swept / "12" / ".hydra" / "overrides.yaml"
    typed.write_text(typed.read_text() + "- logger.json=False\n")
    found = {found["job"]: found["summary"]["status"] for found in sweep.read(swept)}
    assert (found["0"], found["2"]) == ("ended early", "ended early")
    assert "logger.json=false" in found["12"]
    file.write_text(json.dumps({**json.loads(file.read_text()), "steps": 200}))
    assert {f["job"]: f["summary"]["status"] for f in sweep.read(swept)}["2"] == "finished"


def test_an_interrupted_job_has_its_best_evaluation_so_far(tmp_path: Path) -> None:
    """By what its policies are compared by, and not that of the untrained policy."""
    typed = ["env=cartpole", "arch.seed=1"]
    untrained = {"steps": 0, "episode_return": 9.0}
    job(tmp_path / "0", typed, None, [untrained, -3.0, 0.0, None])
    told = [{"eval_metric": "far", "env/far": x, "episode_return": -x} for x in (1.0, 4.0, 2.0)]
    job(tmp_path / "1", typed, None, told)
    plain, judged = (found["summary"] for found in sweep.read(tmp_path))
    assert (plain["best_episode_return"], plain["best_steps"], plain["steps"]) == (0.0, 300, 400)
    assert (judged["eval_metric"], judged["best_score"], judged["best_steps"]) == ("far", 4.0, 200)
    assert judged["best_episode_return"] == -4.0
    assert (judged["final_return"], judged["final_score"]) == (-2.0, 2.0)
    assert plain["final_return"] is None  # it was not finite


def ended(gamma: str, first: int, **summary: Any) -> dict[str, Any]:
    """A job, as `sweep.read` returns it."""
    return {"settings": {"gamma": gamma, "arch.seed": str(first)}, "summary": summary}


def test_jobs_are_summed_up_over_seeds_of_equal_settings_only() -> None:
    jobs = [
        *(ended("0.9", i, absolute_metric=float(x)) for i, x in enumerate((0, 1, 2, 1000))),
        *(ended("0.99", i, absolute_metric=5.0) for i in range(2)),
        ended("0.99", 2, absolute_metric=None),
        ended("0.99", 3, status="ended early"),
    ]
    best, other = sweep.over_seeds(jobs, ["gamma"])
    assert best == {"gamma": "0.99", "seeds": 2, "IQM": 5.0, "95%": "[5, 5]"}
    assert (other["gamma"], other["seeds"], other["IQM"]) == ("0.9", 4, 1.5)
    assert sweep.over_seeds(jobs, ["gamma", "arch.seed"]) == []
    single = ended("0.5", 0, absolute_metric=3.0)
    (_, alone, _) = sweep.over_seeds([*jobs, single], ["gamma"])
    assert alone == {"gamma": "0.5", "seeds": 1, "IQM": 3.0, "95%": "-"}


def test_an_agent_that_several_jobs_trained_counts_once() -> None:
    """Jobs of agents {1, 2} and {2, 3}: three agents, whose IQM is their mean."""
    twice = [ended("0.9", 1, absolute_metric=5.0)] * 2
    assert sweep.over_seeds(twice, ["gamma"]) == []
    jobs = [
        ended("0.9", 1, absolute_metric=1.5, seeds=[1, 2], absolute_metrics=[1.0, 2.0]),
        ended("0.9", 2, absolute_metric=4.0, seeds=[2, 3], absolute_metrics=[2.0, 6.0]),
    ]
    (row,) = sweep.over_seeds(jobs, ["gamma"])
    assert row == {"gamma": "0.9", "seeds": 3, "IQM": 3.0, "95%": "[1, 6]"}
    failed = ended("0.9", 4, absolute_metric=9.0, seeds=[4, 5], absolute_metrics=[9.0, None])
    (row,) = sweep.over_seeds([*jobs, failed], ["gamma"])
    assert row["seeds"] == 4


def test_a_population_is_one_agent_with_the_jobs_seed() -> None:
    """`seed` in its summary is the best member's."""
    members = {"seed": 2, "seeds": [1, 2], "absolute_metrics": [0.0, 4.0]}
    jobs = [ended("0.9", seed, absolute_metric=float(seed), **members) for seed in (1, 2)]
    (row,) = sweep.over_seeds(jobs, ["gamma"])
    assert (row["seeds"], row["IQM"]) == (2, 1.5)
