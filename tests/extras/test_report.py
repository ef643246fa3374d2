"""Reports: what directories hold, how runs are grouped, and the page that comes of it."""

import csv
import html
import itertools
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from jaxppo import report
from jaxppo.analysis import charts, comparison, runs
from jaxppo.config.fields import ConfigError
from jaxppo.extras import report as page_report
from jaxppo.extras.report import Reporting, cautions
from jaxppo.extras.report import report as write_page
from jaxppo.runtime.run.events import aggregate
from jaxppo.runtime.store.checkpoint import MANIFEST

BASE: dict[str, Any] = {
    "arch": {"seed": 1, "num_seeds": 1, "total_timesteps": 300, "compile_cache": None},
    "system": {"gamma": 0.99, "actor_lr": 1e-3},
    "env": {"name": "CartPole-v1", "kwargs": {}, "mask": []},
    "network": {"actor_torso": {"_target_": "jaxppo.networks.torsos.MLP", "activation": "tanh"}},
    "population": {"size": None, "selection": "none"},
    "checkpoint": {"enabled": True},
}


def make(folder: Path, scores: list[float | None], absolute: Any = 0, **changes: Any) -> Path:
    """A finished run; `changes` are settings, `group__key=value`, or `typed`, `choices`, `status`.

    Without a summary where `absolute` is "none yet".
    """
    typed, choices = changes.pop("typed", []), changes.pop("choices", {})
    status = changes.pop("status", "finished")
    config = json.loads(json.dumps(BASE))
    put(config, changes)
    (folder / ".hydra").mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(config), folder / "config.yaml")
    OmegaConf.save(OmegaConf.create(typed), folder / ".hydra" / "overrides.yaml")
    told = {"hydra": {"job": {"config_name": "ff_ppo"}, "runtime": {"choices": choices}}}
    OmegaConf.save(OmegaConf.create(told), folder / ".hydra" / "hydra.yaml")
    write(folder, config["arch"]["seed"], scores, absolute, status)
    return folder


def put(config: dict[str, Any], changes: dict[str, Any]) -> None:
    """Change settings; a key such as `group__key` is that of an inner dict."""
    for name, value in changes.items():
        *path, key = name.split("__")
        inner = config
        for part in path:
            inner = inner[part]
        inner[key] = value


def write(folder: Path, seed: int, scores: list[float | None], absolute: Any, status: str) -> None:
    folder.mkdir(exist_ok=True)
    events = [
        {"event": "eval", "seed": seed, "steps": 100 * (i + 1), "seconds": i, "episode_return": s}
        for i, s in enumerate(scores)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in events))
    if absolute != "none yet":
        summary = {"event": "end", "seed": seed, "status": status, "absolute_metric": absolute}
        made = {"seconds": 61.0, "machine": "2 cores of a processor", "versions": {"jax": "0.0.0"}}
        (folder / "summary.json").write_text(json.dumps({**summary, **made}))


def compared(*places: Path, **bounds: Any) -> comparison.Comparison:
    return comparison.compare(runs.find([str(place) for place in places])[0], bounds)


def shape(found: comparison.Comparison) -> dict[str, dict[str, list[int]]]:
    """Seeds by group and task."""
    return {g.label: {t: [r.seed for r in own] for t, own in g.runs.items()} for g in found.groups}


# What directories hold


def test_a_run_is_found_wherever_it_lies_and_once(tmp_path: Path) -> None:
    make(tmp_path / "sweep" / "10", [1.0, 2.0], 1.5)
    make(tmp_path / "sweep" / "9", [1.0], 0.5, arch__seed=2)
    sweep = tmp_path / "sweep"
    found, notes = runs.find([str(tmp_path), str(sweep / "9"), str(sweep)])
    assert [run.folder for run in found] == [sweep / "9", sweep / "10"]
    assert [(run.seed, run.score, run.steps, run.seconds) for run in found] == [
        (2, 0.5, 100, 61.0),
        (1, 1.5, 200, 61.0),
    ]
    assert notes == []


def test_a_resumed_run_that_goes_on_is_not_judged_by_its_former_end(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", [1.0, 2.0], 1.5)
    file = folder / "summary.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "steps": 100}))
    ((run,), _) = runs.find([str(folder)])
    assert (run.status, run.absolute, run.score, run.steps) == (runs.UNFINISHED, None, 2.0, 200)
    file.write_text(json.dumps({**json.loads(file.read_text()), "steps": 200}))
    ((run,), _) = runs.find([str(folder)])
    assert (run.status, run.score) == ("finished", 1.5)


def test_a_summary_is_of_before_if_its_run_went_on_or_changed_its_environment() -> None:
    log = [{"event": "eval", "steps": 200}, {"event": "resume", "steps": 200, "new_environment": 1}]
    assert runs.is_of_before({"steps": 200}, log)
    assert not runs.is_of_before({"steps": 400}, log)
    assert not runs.is_of_before({}, log)
    ends = [
        {"event": "end", "seed": seed, "steps": steps, "status": status, "absolute_metric": None}
        for seed, steps, status in ((1, 100, "NaN"), (2, 400, "finished"))
    ]
    log = [{"event": "eval", "steps": 100 * i} for i in range(5)]
    assert not runs.is_of_before(aggregate(ends), log)
    assert runs.is_of_before({**aggregate(ends), "steps": 300}, log)


@pytest.mark.parametrize(
    "changes, tasks",
    [
        ([{"env__name": f"{x}-v0"} for x in ("Foo-0.5", "Bar-1.5")], ["Bar-1.5-v0", "Foo-0.5-v0"]),
        ([{"env__target": f"{x}.Walk"} for x in ("pkg_a", "pkg_b")], ["pkg_a.Walk", "pkg_b.Walk"]),
        (  # other settings of an environment
            [{}, {"env__mask": [1, 3]}, {"env__name": None, "env__target": "mine.Maze"}],
            ["CartPole-v1", "CartPole-v1, mask=[1, 3]", "Maze"],
        ),
        (  # what was typed is always named
            [
                {"env__params": {"length": 0.5}, "typed": ["env.params={length:0.5}"]},
                {"env__params": {"length": 1.0}, "typed": ["env.params.length=1.0"]},
                {},
            ],
            ["CartPole-v1", "CartPole-v1, params.length=0.5", "CartPole-v1, params.length=1"],
        ),
        (  # of settings that differ together, one
            [{}, {"env__library": "gymnasium", "env__kwargs": {"max_episode_steps": 500}}],
            ["CartPole-v1, library=gymnasium", "CartPole-v1, library=gymnax"],
        ),
    ],
)
def test_environments_are_tasks(
    tmp_path: Path, changes: list[dict[str, Any]], tasks: list[str]
) -> None:
    for number, each in enumerate(changes):
        make(tmp_path / str(number), [1.0], 1.0, **each)
    assert compared(tmp_path).tasks == tasks


def test_seeds_of_one_run_are_runs_with_their_own_end(tmp_path: Path) -> None:
    home = make(tmp_path / "many", [5.0], 5.0, arch__num_seeds=3)
    write(home / "seed_1", 1, [1.0], 1.0, "finished")
    write(home / "seed_2", 2, [2.0, None], None, "NaN in loss; stopped")
    write(home / "seed_10", 10, [3.0], "none yet", "")
    write(home / "seed_old", 7, [9.0], 9.0, "finished")  # of somebody else
    found, _ = runs.find([str(home)])
    assert [(r.seed, r.score, r.failed) for r in found] == [
        (1, 1.0, False),
        (2, None, True),
        (10, 3.0, False),
    ]
    assert found[2].by_best
    assert [run.seed for run in runs.find([str(home / "seed_2")])[0]] == [2]
    write(home / "seed_2", 2, [2.0], 4.0, "stopped at step 96")  # by its caller
    ((run,), _) = runs.find([str(home / "seed_2")])
    assert (run.failed, run.score) == (False, 4.0)


def test_a_population_is_one_run_and_its_best_member(tmp_path: Path) -> None:
    home = make(tmp_path / "pbt", [], 7.0, population__size=2, arch__seed=4)
    members = [
        {"event": "eval", "seed": seed, "steps": 100, "episode_return": score}
        for seed, score in ((4, 1.0), (5, 3.0))
    ]
    (home / "metrics.jsonl").write_text(json.dumps(aggregate(members)) + "\n")
    write(home / "seed_4", 4, [1.0], 1.0, "finished")
    summary = {"event": "end", "seed": 5, "status": "finished", "absolute_metric": 7.0}
    (home / "summary.json").write_text(json.dumps(summary))  # 5 is the best member's
    (run,), _ = runs.find([str(home)])
    assert (run.seed, run.score, run.evaluations) == (4, 7.0, {100: 3.0})


def test_what_is_damaged_is_left_out_and_said(tmp_path: Path) -> None:
    with (make(tmp_path / "a", [1.0, 2.0], "none yet") / "metrics.jsonl").open("a") as file:
        file.write('{"event": "eval", "ste')
    (make(tmp_path / "b", [1.0], 3.0) / "summary.json").write_text('{"status": "fini')
    (make(tmp_path / "c", [1.0], 3.0) / "config.yaml").write_text("arch: [1")
    (make(tmp_path / "d", [1.0], 3.0) / "config.yaml").write_text("other: 1")
    (make(tmp_path / "e", [], "none yet") / "metrics.jsonl").unlink()
    found, notes = runs.find([str(tmp_path)])
    assert [(r.folder.name, r.score, r.status) for r in found] == [
        ("a", 2.0, "unfinished"),
        ("b", 1.0, "unfinished"),
        ("e", None, "unfinished"),
    ]
    files = ("a/metrics.jsonl", "b/summary.json", "c", "d", "e")
    assert len(notes) == len(files)
    assert all(map(str.startswith, notes, (f"{tmp_path}/{file}: " for file in files)))


def test_the_evaluation_before_training_begins_a_curve_and_is_no_score(tmp_path: Path) -> None:
    first = {"event": "eval", "seed": 1, "steps": 0, "seconds": 0, "episode_return": 9.0}
    for name, seed in (("a", 1), ("b", 2)):
        home = make(tmp_path / name, [1.0, 2.0], None, arch__seed=seed)
        log = home / "metrics.jsonl"
        log.write_text(json.dumps({**first, "seed": seed}) + "\n" + log.read_text())
    found, _ = runs.find([str(tmp_path)])
    assert [run.score for run in found] == [2.0, 2.0]
    assert comparison.curve(found).x == [0, 100, 200]
    make(tmp_path / "c", [1.0, 2.0], None, arch__seed=3)
    found, _ = runs.find([str(tmp_path)])
    assert comparison.curve(found).x == [100, 200]
    assert comparison.curve(found).partial == []


def test_copies_of_a_run_are_one_run(tmp_path: Path) -> None:
    """A copy has the settings and the evaluations; equal scores alone make no copy.

    The same command typed again gives the same evaluations, but at other times.
    """
    first = make(tmp_path / "a", [1.0, 2.0], 1.5)
    for name in ("b", "c"):
        shutil.copytree(first, tmp_path / name)
    log = tmp_path / "c" / "metrics.jsonl"
    again = [{**json.loads(line), "seconds": 99.0} for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps(event) + "\n" for event in again))
    make(tmp_path / "gamma", [1.0, 2.0], 1.5, system__gamma=0.5)
    make(tmp_path / "seed", [1.0, 2.0], 1.5, arch__seed=2)
    for name in ("empty", "empty too"):
        make(tmp_path / name, [], "none yet")
    found, notes = runs.find([str(tmp_path)])
    assert [run.folder.name for run in found] == ["a", "seed", "empty", "gamma", "empty too"]
    assert any(all(f"{tmp_path}/{name}" in note for name in "abc") for note in notes)


def test_runs_that_write_no_results_are_left_out_and_said(tmp_path: Path) -> None:
    """A log of before, when logger.json was true, counts."""
    for name in ("one", "before"):
        make(tmp_path / name, [1.0], 1.0, logger={"json": False})
    (tmp_path / "one" / "metrics.jsonl").unlink()
    (tmp_path / "one" / "summary.json").unlink()
    found, (note,) = runs.find([str(tmp_path)])
    assert [run.folder.name for run in found] == ["before"]
    assert "logger.json=false" in note
    with pytest.raises(ConfigError, match=r"logger\.json=false"):
        runs.find([str(tmp_path / "one")])


# Groups and tasks


def test_runs_that_differ_in_their_seed_are_a_group_named_by_what_others_differ_in(
    tmp_path: Path,
) -> None:
    for number, (seed, gamma) in enumerate([(1, 0.9), (2, 0.9), (1, 0.99)]):
        make(
            tmp_path / str(number), [1.0], 10 * gamma, arch__seed=seed, system__gamma=gamma,
            arch__compile_cache=str(number),
        )  # fmt: skip
    found = compared(tmp_path)
    assert shape(found) == {
        "system.gamma=0.99": {"CartPole-v1": [1]},
        "system.gamma=0.9": {"CartPole-v1": [1, 2]},
    }
    assert not found.normalized


def test_settings_of_environments_files_do_not_tell_groups_apart(tmp_path: Path) -> None:
    """Tasks with learning rates of their own, and one that was typed for both."""
    for task, usual in (("A-v1", 1e-3), ("B-v1", 2e-3)):
        make(tmp_path / task / "0", [1.0], 1.0, env__name=task, system__actor_lr=usual,
             typed=[f"env={task}"])  # fmt: skip
        make(tmp_path / task / "1", [1.0], 0.0, env__name=task, system__actor_lr=1e-4,
             typed=[f"env={task}", "system.actor_lr=1e-4"])  # fmt: skip
    both = {"A-v1": [1], "B-v1": [1]}
    assert shape(compared(tmp_path)) == {
        "system.actor_lr=(default)": both,
        "system.actor_lr=0.0001": both,
    }
    make(tmp_path / "2", [1.0], 1.0, env__name="A-v1", system__actor_lr=1e-3, arch__seed=2,
         typed=["env=A-v1", "system.actor_lr=1e-3"])  # fmt: skip
    assert shape(compared(tmp_path)) == {
        "system.actor_lr=0.0001": both,
        "system.actor_lr=0.001": {"A-v1": [1, 2]},
        "system.actor_lr=0.002": {"B-v1": [1]},
    }


def test_choices_name_what_they_stand_for(tmp_path: Path) -> None:
    for name, activation in (("mlp", "tanh"), ("cnn", "relu")):
        make(tmp_path / name, [1.0], 1.0, choices={"network": name}, typed=[f"network={name}"],
             network__actor_torso__activation=activation)  # fmt: skip
    found = compared(tmp_path)
    assert list(shape(found)) == ["network=cnn", "network=mlp"]
    assert found.tied == ["network.actor_torso.activation"]


@pytest.mark.parametrize(
    "changes",
    [
        [{}, {"env__processes": 4, "env__isolated": True, "env__step_timeout": 10.0}],
        [{}, {"env__library": "gymnax", "system__epochs": 4}],  # what is as by default
        [{"env__target": f"jaxppo.config.given.CartPole-v1_{i:012x}"} for i in (1, 2)],
    ],
)
def test_runs_that_differ_in_no_result_are_one_group(
    tmp_path: Path, changes: list[dict[str, Any]]
) -> None:
    for seed, each in enumerate(changes):
        make(tmp_path / str(seed), [1.0], 1.0, arch__seed=seed, **each)
    assert shape(compared(tmp_path)) == {"all runs": {"CartPole-v1": [0, 1]}}


def test_scores_of_several_tasks_are_normalised_by_their_bounds(tmp_path: Path) -> None:
    for number, (task, score) in enumerate([("A-v1", 10.0), ("A-v1", 30.0), ("B-v1", 2.0)]):
        make(tmp_path / str(number), [0.0], score, env__name=task, arch__seed=number)
    found = compared(tmp_path)
    (group,) = found.groups
    np.testing.assert_allclose(np.concatenate(found.strata(group)), [0.0, 1.0])
    assert (found.averaged, found.whole) == (["A-v1"], [group])  # one score has no scale
    found = compared(tmp_path, **{"A-v1": [0, 40], "B-v1": [0, 8]})
    np.testing.assert_allclose(np.concatenate(found.strata(group)), [0.25, 0.75, 0.25])
    for pair in ([3, 3], "high", [1, 2, 3], [0, np.inf], [-np.inf, 500], [0, np.nan]):
        with pytest.raises(ConfigError, match=r"bounds\.A-v1="):
            compared(tmp_path, **{"A-v1": pair})
    with pytest.raises(ConfigError, match=r"bounds\.C-v1"):
        compared(tmp_path, **{"C-v1": [0, 1]})


def test_bounds_of_an_environment_are_those_of_all_its_tasks(tmp_path: Path) -> None:
    for number, changes in enumerate(({}, {"env__mask": [1]}, {"env__name": "CartPole-v10"})):
        make(tmp_path / str(number), [0.0], 5.0, **changes)
    given = {"CartPole-v1": [0, 500], "CartPole-v1, mask=[1]": [0, 100]}
    found = compared(tmp_path, **given)
    assert found.bounds == {
        **{"CartPole-v1": (0.0, 500.0), "CartPole-v1, mask=[1]": (0.0, 100.0)},
        "CartPole-v10": (5.0, 5.0),
    }
    assert found.given == {*given}
    assert compared(tmp_path, **{"CartPole-v1": [0, 500]}).given == {*given}


def test_only_groups_with_all_tasks_are_compared_over_tasks(tmp_path: Path) -> None:
    """The one with the easy task alone would have the best mean."""
    scores = {(0.9, "A-v1"): 1.0, (0.9, "B-v1"): 2.0, (0.5, "A-v1"): 3.0, (0.5, "B-v1"): 6.0}
    scores[0.99, "A-v1"] = 9.0
    for number, ((gamma, task), score) in enumerate(scores.items()):
        make(tmp_path / str(number), [0.0], score, env__name=task, system__gamma=gamma)
    found = compared(tmp_path)
    assert [group.values["system.gamma"] for group in found.whole] == [0.5, 0.9]
    assert "system.gamma=0.99 (1 of 2)" in page_report._left_out(found)


def test_algorithms_name_groups_and_their_own_defaults_do_not(tmp_path: Path) -> None:
    """Each has its own gamma in each environment's file. The budgets alone tell them apart too."""
    budgets = {"ppo": 500, "pqn": 300}
    for number, (algorithm, task, gamma) in enumerate(
        [("ppo", "A", 0.9), ("ppo", "B", 0.98), ("pqn", "A", 0.99), ("pqn", "B", 0.95)]
    ):
        make(
            tmp_path / str(number), [0.0], 1.0, env__name=task, system__algorithm=algorithm,
            system__gamma=gamma, arch__total_timesteps=budgets[algorithm],
            typed=["env=x", f"arch.total_timesteps={budgets[algorithm]}"],
        )  # fmt: skip
    assert shape(compared(tmp_path)) == {
        f"system.algorithm={name}, arch.total_timesteps={budget}": {"A": [1], "B": [1]}
        for name, budget in budgets.items()
    }


def test_curves_end_where_the_shortest_group_does(tmp_path: Path) -> None:
    """A group that has only begun does not shorten the others'."""
    make(tmp_path / "long", [1.0, 2.0, 3.0], 3.0, system__gamma=0.5)
    make(tmp_path / "short", [1.0, 2.0], 2.0, system__gamma=0.9)
    make(tmp_path / "begun", [1.0], "none yet", system__gamma=0.99)
    found = compared(tmp_path)
    assert found.budget("CartPole-v1") == 200
    ends = {line.label: line.x[-1] for line in charts.lines_of(found, "CartPole-v1", 200)}
    values = {"0.5": 200, "0.9": 200, "0.99": 100}
    assert ends == {f"system.gamma={gamma}": end for gamma, end in values.items()}


def test_scores_over_a_parameter_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only that one differs: not the run with a mask."""
    for number, (length, seed) in enumerate(itertools.product((1.0, 0.25), (1, 2))):
        params = {"length": length, "gravity": 9.8}
        make(tmp_path / str(number), [0.0], 10 * length + seed, env__params=params, arch__seed=seed)
    make(tmp_path / "masked", [0.0], 7.0, env__params=params, env__mask=[1], arch__seed=1)
    found = compared(tmp_path)
    ((key, tasks),) = found.sweeps()
    assert (key, [*tasks]) == ("params.length", [0.25, 1.0])
    drawn: list[Any] = []

    def draw_lines(paths: Any, lines: Any, **labels: Any) -> None:
        drawn.append((lines, labels["xlabel"], labels["title"]))
        charts.draw_lines(paths, lines, **labels)

    monkeypatch.setattr(page_report, "draw_lines", draw_lines)
    page_report.parameters(found, page_report.Files(tmp_path, ["pdf", "svg"]))
    (((line,), xlabel, title),) = drawn
    assert (xlabel, title) == ("env.params.length", "CartPole-v1")
    assert (line.x, line.y) == ([0.25, 1.0], [4.0, 11.5])
    assert (line.low, line.high) == ((3.5, 11.0), (4.5, 12.0))
    starts = {p.suffix: p.read_bytes()[:5] for p in tmp_path.glob("parameter_*")}
    assert starts == {".png": b"\x89PNG\r", ".pdf": b"%PDF-", ".svg": b"<?xml"}


def test_pictures_keep_all_names_and_have_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is no formula of matplotlib's, and no label that it hides."""
    seen = {}
    real = charts.save

    def save(figure: Any, path: Path, *more: Any, **options: Any) -> None:
        real(figure, path, *more, **options)
        seen[path.name] = [text.get_text().strip() for x in figure.legends for text in x.texts]

    monkeypatch.setattr(charts, "save", save)
    for gravity in (10, -10):
        for name in ("jaxppo.networks.torsos.MLP", "my_module.Torso"):
            kwargs = {"gravity": gravity}
            layer = {"_target_": name, "activation": "tanh"}
            folder = tmp_path / f"{name}{gravity}"
            make(folder, [1], env__kwargs=kwargs, network__actor_torso=layer)
    found = compared(tmp_path)
    page_report.learning_curves(found, page_report.Files(tmp_path, []))
    assert len(seen) == len(found.tasks) == 2
    names = {"_target_=jaxppo.networks.torsos.MLP", "_target_=my_module.Torso"}
    assert all({*texts} == names for texts in seen.values())
    line = charts.Line(label="_$a", style=0, x=[0, 1], y=[0, 1])
    charts.draw_lines([tmp_path / "line.png"], [line], title=r"$a$, $\frac$")
    assert seen["line.png"] == [r"_\$a"]


def test_tables_are_written_as_csv_with_the_last_evaluations(tmp_path: Path) -> None:
    for seed, (scores, absolute) in enumerate([([9.0, 3.0], 8.0), ([5.0, 5.0], 6.0)]):
        make(tmp_path / str(seed), scores, absolute, arch__seed=seed)
    make(tmp_path / "failed", [5.0, None], None, arch__seed=2, status="NaN in loss")
    write_page(Reporting(runs=[str(tmp_path)], out=str(tmp_path / "out")))
    tables = {}
    for name in ("results", "runs"):
        with (tmp_path / "out" / f"{name}.csv").open(newline="") as file:
            tables[name] = [*csv.DictReader(file)]
    (row,) = tables["results"]
    assert (row["group"], row["task"], row["runs"]) == ("all runs", "CartPole-v1", "2")
    assert (float(row["mean"]), float(row["std"]), float(row["final_mean"])) == (7.0, 1.0, 4.0)
    found = [(row["seed"], row["score"], row["final"]) for row in tables["runs"]]
    assert found == [("0", "8.0", "3.0"), ("1", "6.0", "5.0"), ("2", "", "")]
    with pytest.raises(ConfigError, match=r"formats=\[gif\]"):
        write_page(Reporting(runs=[str(tmp_path)], formats=["gif"]))


def test_a_band_is_where_all_runs_were_evaluated(tmp_path: Path) -> None:
    """Medians of three; IQM of two is their mean; a null is as if it had not been."""
    make(tmp_path / "0", [0.0, 2.0, 6.0], 6.0, arch__seed=0)
    make(tmp_path / "1", [2.0, 4.0], "none yet", arch__seed=1)
    make(tmp_path / "2", [7.0, None, 8.0], None, arch__seed=2, status="NaN; stopped")
    (group,) = compared(tmp_path).groups
    found = comparison.curve(group.runs["CartPole-v1"])
    assert found.x == [100, 200, 300]
    assert found.y == [3.0, 3.0, 7.0]
    assert found.partial == [200, 300]
    np.testing.assert_array_equal(found.low, [0.0, np.nan, np.nan])
    np.testing.assert_array_equal(found.high, [7.0, np.nan, np.nan])
    assert group.scores("CartPole-v1").tolist() == [6.0, 4.0]  # not of the one that failed


# The page


def test_page_stands_alone_and_says_what_is_amiss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path with an equals sign, text that would be markup, runs that failed or go on."""
    place, failure = tmp_path / "a=<script>b", "NaN in <b>loss</b>"
    rows = [(0.9, 100.0), (0.9, 200.0), (0.99, 150.0), (0.99, None), (0.99, "none yet")]
    for number, (gamma, absolute) in enumerate(rows):
        make(
            place / str(number), [50.0, 120.0], absolute, arch__seed=number, system__gamma=gamma,
            typed=["env=cartpole", f"system.gamma={gamma}", "+x='<i>'"],
            status={None: failure, "none yet": ""}.get(absolute, "finished"),
        )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["report", str(place)])
    report.main()
    content = (tmp_path / "report" / "index.html").read_text("utf-8")
    text = html.unescape(re.sub("<[^>]*>", "", content))
    pngs = list((tmp_path / "report").glob("*.png"))
    sources = re.findall(r' (?:src|href)="([^"#]+)"', content)
    assert len(sources) == len(pngs) == 5
    assert all(source.startswith("data:image/png;base64,iVBOR") for source in sources)
    assert "url(" not in content
    assert "<script" not in content
    command = "python -m jaxppo.ff_ppo -m env=cartpole system.gamma=0.9"
    amiss = ("1 of 5 runs", "1 of 3 runs", failure)  # one goes on, one has failed
    assert all(found in text for found in (*amiss, "150.0 ± 50.0", command, str(place)))


def test_page_of_one_run_is_the_same_every_time(tmp_path: Path) -> None:
    """And has no standard deviation."""
    run = make(tmp_path / "run", [1.0, 2.0], 101.0)
    pages = []
    for out in ("one", "two"):
        write_page(Reporting(runs=[str(run)], out=str(tmp_path / out)))
        pages.append((tmp_path / out / "index.html").read_bytes())
    assert pages[0] == pages[1]
    assert b">101.0<" in pages[0]
    assert not (run / "report").exists()


def test_unequal_numbers_of_runs_on_tasks_and_seeds_twice_are_said(tmp_path: Path) -> None:
    for task, num in (("Easy-v1", 10), ("Hard-v1", 2)):
        for seed in range(num):
            make(tmp_path / task / str(seed), [0.0], 0.1 * seed, env__name=task, arch__seed=seed)
    assert any("10 runs on Easy-v1" in line for line in cautions(compared(tmp_path)))
    for seed in range(2, 10):
        shutil.rmtree(tmp_path / "Easy-v1" / str(seed))
    assert not [line for line in cautions(compared(tmp_path)) if "Easy-v1" in line]
    make(tmp_path / "failed", [4.0], None, env__name="Easy-v1", arch__seed=1, status="NaN")
    assert not [line for line in cautions(compared(tmp_path)) if "seed 1" in line]
    make(tmp_path / "again", [4.0], 4.0, env__name="Easy-v1", arch__seed=1)
    assert [line for line in cautions(compared(tmp_path)) if "seed 1" in line]


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", ".hydra/hydra.yaml", MANIFEST])
def test_a_pipe_in_place_of_a_file_is_left_out(tmp_path: Path, name: str) -> None:
    """Nothing writes to it, so reading it would wait for ever."""
    make(tmp_path / "one", [1.0], 3.0)
    file = make(tmp_path / "other", [2.0], "none yet", arch__seed=2) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    found, _ = runs.find([str(tmp_path)])
    assert found[0].score == 3.0
    assert len(found) in (1, 2)
    for each in found:
        runs.composed(each.home)


def test_a_tournament_that_is_damaged_leaves_the_rest_of_a_report(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", [1.0])
    row = {"run": "a", "steps": 1, "elo": 10**400, "points": 0.5, "low": 0.0, "high": 1.0}
    huge = json.dumps({"game": "x", "games": 2, "policies": [row]})
    for text in ("{", "[]", "[" * 10**5, huge, huge.replace("elo", "")):
        (folder / "tournament.json").write_text(text)
        write_page(Reporting(runs=[str(folder)], out=str(tmp_path / "page")))
        assert "tournament.json: damaged" in (tmp_path / "page" / "index.html").read_text()
