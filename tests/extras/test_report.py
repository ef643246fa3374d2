"""Reports: what directories hold, how runs are grouped, and the page that comes of it."""

import json
import os
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from cli import CARTPOLE
from omegaconf import OmegaConf

from jaxppo import report
from jaxppo.analysis import charts, comparison, runs
from jaxppo.config.fields import ConfigError
from jaxppo.config.parse import parse
from jaxppo.config.stored import keep_config, plain
from jaxppo.extras import page as elements
from jaxppo.extras.report import cautions
from jaxppo.launch.composing import composed, plain_settings
from jaxppo.runtime.run.events import aggregate
from jaxppo.runtime.run.loop import run

MANIFEST = f"checkpoints/{100:012}/manifest.json"
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


def test_the_summary_of_another_environment_is_of_before() -> None:
    """The run was resumed in another environment, and stopped before its first event there."""
    log = [{"event": "eval", "steps": 200}, {"event": "resume", "steps": 200, "new_environment": 1}]
    assert runs.is_of_before({"steps": 200}, log)
    assert not runs.is_of_before({"steps": 400}, log)
    assert not runs.is_of_before({}, log)


def test_a_summary_of_several_seeds_is_not_older_than_its_run_if_one_failed() -> None:
    ends = [
        {"event": "end", "seed": seed, "steps": steps, "status": status, "absolute_metric": None}
        for seed, steps, status in ((1, 100, "NaN"), (2, 400, "finished"))
    ]
    log = [{"event": "eval", "steps": 100 * i} for i in range(5)]
    assert not runs.is_of_before(aggregate(ends), log)
    assert runs.is_of_before({**aggregate(ends), "steps": 300}, log)


@pytest.mark.long
def test_commands_say_which_runs_were_resumed(
    launch: Any, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume with the same settings gives the same bits, so the command stays true."""
    own = [*CARTPOLE, "arch.num_updates=1", "arch.num_evaluation=1", "arch.absolute_metric=false"]
    own += ["system.target_kl=.inf", "logger.plot=false", "logger.console=false"]
    assert launch(*own, "hydra.run.dir=runs/1", run=run).status == 0
    shutil.copytree("runs/1", "runs/2")
    assert launch("resume=runs/1", "logger.every=1", "resume_allow=[logger]", run=run).status == 0
    changes = ("arch.num_updates=2", "system.gamma=0.5", "resume_allow=[system.gamma]")
    assert launch("resume=runs/2", *changes, run=run).status == 0
    run_main(monkeypatch, "runs", "out=page")
    text = (cwd / "page" / "index.html").read_text()
    first, second = (Path("runs") / str(i) for i in (1, 2))
    assert f"# resumed since, with other settings: {second / 'config.yaml'}" in text
    assert str(first / "config.yaml") not in text


@pytest.mark.parametrize(
    "typed, changes",
    [
        (["arch.num_updates=2"], {"arch__num_updates": 3}),
        (["env.params={gravity:5,length:2}"], {"env__params": {"gravity": 5}}),
        (["env.params={gravity:5}"], {"env__params": {}}),
        ([], {"network__input_layer__dtype": "uint8"}),
        (["population=pbt"], {"population__hyperparameters__actor_lr": [1e-5, 1e-4]}),
    ],
)
@pytest.mark.parametrize("command", ["ff_ppo", "ff_pqn"])
def test_settings_are_compared_with_those_at_the_start(
    tmp_path: Path, command: str, typed: list[str], changes: dict[str, Any]
) -> None:
    """Hydra's file also has settings of other algorithms, and a sink affects no result."""
    start, taken = composed(command, ["env=cartpole", *typed])
    (tmp_path / ".hydra").mkdir()
    groups = [str(key) for key in start if key != "hydra"]
    OmegaConf.save(OmegaConf.masked_copy(start, groups), tmp_path / ".hydra" / "config.yaml")
    stored = plain(parse(plain_settings(start, taken)))
    keep_config(parse({**stored, "logger": {**stored["logger"], "plot": False}}), tmp_path)
    assert not runs.has_other_settings(tmp_path)
    put(stored, changes)
    keep_config(parse(stored), tmp_path)
    assert runs.has_other_settings(tmp_path)


def test_an_id_with_a_dot_is_a_whole_name(tmp_path: Path) -> None:
    for name in ("Foo-0.5-v0", "Bar-1.5-v0"):
        make(tmp_path / name, [1.0], 1.0, env__name=name)
    assert compared(tmp_path).tasks == ["Bar-1.5-v0", "Foo-0.5-v0"]


def test_environments_with_one_class_name_are_two_tasks(tmp_path: Path) -> None:
    for package in ("pkg_a", "pkg_b"):
        make(tmp_path / package, [1.0], 1.0, env__target=f"{package}.Walk")
    assert compared(tmp_path).tasks == ["pkg_a.Walk", "pkg_b.Walk"]


def test_runs_with_an_object_of_python_differ_in_their_seed_only(tmp_path: Path) -> None:
    for seed in (1, 2):
        path = f"jaxppo.config.given.Walk_{seed:012x}"
        make(tmp_path / str(seed), [1.0], 1.0, arch__seed=seed, env__target=path)
    assert list(shape(compared(tmp_path)).values()) == [{"Walk": [1, 2]}]


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
    assert [re.sub(f"^{tmp_path}/", "", note)[:42] for note in notes] == [
        "a/metrics.jsonl: its last line is damaged ",
        "b/summary.json: damaged; the run is taken ",
        "c: left out: while parsing a flow sequence",
        "d: left out: config.yaml holds no settings",
        "e: nothing was written yet",
    ]


@pytest.mark.parametrize(
    "values",
    [
        *(f'"steps": {x}' for x in ("null", '"300"', "true", "[300]", "NaN", "Infinity", "-5")),
        *(f'"steps": 300, "episode_return": {x}' for x in ('"abc"', "true", "[1]")),
        '"steps": 300, "member_returns": ["abc"]', '"steps": 300, "member_returns": 7',
        '"steps": 300, "seed": "one"',
    ],
)  # fmt: skip
def test_an_event_without_the_numbers_that_it_needs_is_damaged(tmp_path: Path, values: str) -> None:
    """The steps of the absolute metric of several seeds are a mean."""
    log = make(tmp_path / "run", [1.0], "none yet") / "metrics.jsonl"
    with log.open("a") as file:
        file.write(f'{{"event": "eval", {values}}}\n')
        file.write('{"event": "absolute", "steps": 150.5, "episode_return": 2.0}\n')
    ((run,), notes) = runs.find([str(tmp_path)])
    assert (run.evaluations, run.steps) == ({100: 1.0}, 150)
    assert notes == [f"{log}: 1 of 3 lines are damaged and left out"]


@pytest.mark.parametrize("values", ['"steps": "x"', '"steps": -1', '"absolute_metric": "abc"'])
def test_a_summary_without_the_numbers_that_it_needs_is_damaged(
    tmp_path: Path, values: str
) -> None:
    file = make(tmp_path / "run", [1.0], 3.0) / "summary.json"
    file.write_text(f'{{"status": "finished", {values}}}')
    ((run,), notes) = runs.find([str(tmp_path)])
    assert (run.status, run.score) == ("unfinished", 1.0)
    assert notes == [f"{file}: damaged; the run is taken as unfinished"]


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "summary.json", "config.yaml", ".hydra/hydra.yaml", MANIFEST]
)
def test_a_pipe_in_place_of_a_file_is_left_out(tmp_path: Path, name: str) -> None:
    """Nothing writes to it, so reading it would wait for ever."""
    make(tmp_path / "one", [1.0], 3.0)
    file = make(tmp_path / "other", [2.0], "none yet", arch__seed=2) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    found, notes = runs.find([str(tmp_path)])
    assert found[0].score == 3.0
    assert len(found) == (1 if name == "config.yaml" else 2)
    if "/" not in name:
        assert f"{name}" in notes[0]
        assert "is not a file" in notes[0]
    for each in found:
        runs.composed(each.home)


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


def test_a_run_that_its_caller_stopped_has_not_failed(tmp_path: Path) -> None:
    home = make(tmp_path / "a", [1.0], 3.0, status="stopped at step 96")
    (run,), _ = runs.find([str(home)])
    assert (run.failed, run.score) == (False, 3.0)


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
    (note,) = [note for note in notes if "counted once" in note]
    assert note == f"{tmp_path}/a: also in {tmp_path}/b, {tmp_path}/c; counted once"


def test_runs_that_write_no_results_are_left_out_and_said(tmp_path: Path) -> None:
    """A log of before, when logger.json was true, counts."""
    for name in ("one", "seeds", "before"):
        make(tmp_path / name, [1.0], 1.0, logger={"json": False})
    for name in ("one", "seeds"):
        (tmp_path / name / "metrics.jsonl").unlink()
        (tmp_path / name / "summary.json").unlink()
    (tmp_path / "seeds" / "seed_1").mkdir()
    (tmp_path / "seeds" / "seed_2").mkdir()
    config = OmegaConf.load(tmp_path / "seeds" / "config.yaml")
    config.arch.num_seeds = 2
    OmegaConf.save(config, tmp_path / "seeds" / "config.yaml")
    found, notes = runs.find([str(tmp_path)])
    assert [run.folder.name for run in found] == ["before"]
    why = "left out: logger.json=false, so it has no metrics.jsonl and no summary.json"
    assert sorted(notes) == [f"{tmp_path}/one: {why}", f"{tmp_path}/seeds: {why}"]
    with pytest.raises(ConfigError, match=r"no run there .*one: left out: logger\.json=false"):
        runs.find([str(tmp_path / "one")])


def test_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text("arch: {}")
    with pytest.raises(ConfigError, match="no run there or below; a run's directory holds"):
        runs.find([str(tmp_path)])
    with pytest.raises(ConfigError, match="nowhere: no such directory"):
        runs.find([str(tmp_path), str(tmp_path / "nowhere")])


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
    assert shape(compared(tmp_path)) == {"defaults": both, "system.actor_lr=0.0001": both}
    make(tmp_path / "2", [1.0], 1.0, env__name="A-v1", system__actor_lr=1e-3, arch__seed=2,
         typed=["env=A-v1", "system.actor_lr=1e-3"])  # fmt: skip
    assert shape(compared(tmp_path)) == {
        "system.actor_lr=0.0001": both,
        "system.actor_lr=0.001": {"A-v1": [1, 2]},
        "defaults": {"B-v1": [1]},
    }


def test_groups_have_names_of_their_own(tmp_path: Path) -> None:
    """What was typed for one group only is left out of the names of others, if they differ."""
    make(tmp_path / "0", [1.0], 3.0, system__gamma=0.9, typed=["system.gamma=0.9"])
    for score, gamma in ((2.0, 0.95), (1.0, 0.99)):
        make(tmp_path / str(gamma), [1.0], score, system__gamma=gamma)
    assert list(shape(compared(tmp_path))) == [f"system.gamma={x}" for x in (0.9, 0.95, 0.99)]
    make(tmp_path / "1", [1.0], 0.0, system__actor_lr=0.1, typed=["system.actor_lr=0.1"])
    assert list(shape(compared(tmp_path))) == [
        *(f"system.gamma={gamma}" for gamma in (0.9, 0.95, 0.99)),
        "system.actor_lr=0.1",
    ]


def test_names_made_longer_are_still_apart() -> None:
    """Two groups show no setting at first; what one of them gets is another's name already."""
    values = {(0,): {"a": 1, "b": 1}, (1,): {"a": 2, "b": 1}, (2,): {"a": 1, "b": 2}}
    shown: dict[Any, dict[str, Any]] = {(0,): {}, (1,): {}, (2,): {"a": 1}}
    comparison._tell_apart(shown, values)
    assert shown == {(0,): {"a": 1, "b": 1}, (1,): {"a": 2}, (2,): {"a": 1, "b": 2}}


def test_choices_name_what_they_stand_for(tmp_path: Path) -> None:
    for name, activation in (("mlp", "tanh"), ("cnn", "relu")):
        make(tmp_path / name, [1.0], 1.0, choices={"network": name}, typed=[f"network={name}"],
             network__actor_torso__activation=activation)  # fmt: skip
    found = compared(tmp_path)
    assert list(shape(found)) == ["network=cnn", "network=mlp"]
    assert found.tied == ["network.actor_torso.activation"]


def test_settings_of_an_environment_make_tasks(tmp_path: Path) -> None:
    make(tmp_path / "0", [1.0], 1.0)
    make(tmp_path / "1", [1.0], 1.0, env__mask=[1, 3])
    make(tmp_path / "2", [1.0], 1.0, env__name=None, env__target="my.envs.Maze")
    assert compared(tmp_path).tasks == ["CartPole-v1, mask=[1, 3]", "CartPole-v1, mask=[]", "Maze"]


@pytest.mark.parametrize(
    "key, values",
    [
        ("processes", (2, 4)),
        ("isolated", (False, True)),
        ("on_error", ("stop", "restart")),
        ("step_timeout", (None, 10.0)),
    ],
)
def test_how_simulators_are_run_makes_no_tasks_and_no_groups(
    tmp_path: Path, key: str, values: tuple[Any, Any]
) -> None:
    for seed, value in enumerate(values):
        make(tmp_path / str(seed), [1.0], 1.0, arch__seed=seed, typed=[f"env.{key}={value}"],
             **{f"env__{key}": value})  # fmt: skip
    assert shape(compared(tmp_path)) == {"all runs": {"CartPole-v1": [0, 1]}}


def test_settings_about_the_machine_make_no_groups(tmp_path: Path) -> None:
    cluster = {"coordinator": "host:1000", "num_processes": 2, "process_id": 0}
    for seed, distributed in enumerate([{}, None, cluster, {**cluster, "coordinator": "host:1"}]):
        make(tmp_path / str(seed), [1.0], 1.0, arch__seed=seed, arch__distributed=distributed,
             arch__target="h100" if seed else None)  # fmt: skip
    assert shape(compared(tmp_path)) == {"all runs": {"CartPole-v1": [0, 1, 2, 3]}}


def test_a_class_of_ones_own_is_a_task_whatever_name_stands_beside_it(tmp_path: Path) -> None:
    for number, target in enumerate([None, "my_package.Walk", "my_package.Swim"]):
        make(tmp_path / str(number), [1.0], 1.0, env__target=target)
    assert compared(tmp_path).tasks == ["CartPole-v1", "Swim", "Walk"]


def test_what_a_run_does_not_name_is_as_by_default(tmp_path: Path) -> None:
    make(tmp_path / "old", [1.0], 1.0)
    make(tmp_path / "new", [1.0], 1.0, arch__seed=2, env__library="gymnax", system__epochs=4)
    assert shape(compared(tmp_path)) == {"all runs": {"CartPole-v1": [1, 2]}}


def test_scores_of_several_tasks_are_normalised_by_their_bounds(tmp_path: Path) -> None:
    for number, (task, score) in enumerate([("A-v1", 10.0), ("A-v1", 30.0), ("B-v1", 2.0)]):
        make(tmp_path / str(number), [0.0], score, env__name=task, arch__seed=number)
    found = compared(tmp_path)
    (group,) = found.groups
    np.testing.assert_allclose(np.concatenate(found.strata(group)), [0.0, 1.0, 1.0])
    found = compared(tmp_path, **{"A-v1": [0, 40], "B-v1": [0, 8]})
    np.testing.assert_allclose(np.concatenate(found.strata(group)), [0.25, 0.75, 0.25])
    for pair in ([3, 3], "high", [1, 2, 3], [0, np.inf], [-np.inf, 500], [0, np.nan]):
        with pytest.raises(
            ConfigError, match=r"bounds\.A-v1=.*two finite numbers, the lower first"
        ):
            compared(tmp_path, **{"A-v1": pair})
    with pytest.raises(ConfigError, match=r"bounds\.C-v1: no such task .* of A-v1, B-v1"):
        compared(tmp_path, **{"C-v1": [0, 1]})


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
    np.testing.assert_array_equal(
        group.scores("CartPole-v1"), [6.0, 4.0]
    )  # not the one that failed


def test_one_evaluation_that_is_not_finite_takes_the_band_of_its_step_only(tmp_path: Path) -> None:
    """The IQM of two runs is their mean; the interval's ends are the runs themselves."""
    make(tmp_path / "0", [0.0, 2.0, None, 6.0, 8.0], 8.0, arch__seed=0)
    make(tmp_path / "1", [2.0, 4.0, 5.0, 7.0, 9.0], 9.0, arch__seed=1)
    whole = compared(tmp_path)
    (group,) = whole.groups
    found = comparison.curve(group.runs["CartPole-v1"])
    assert found.y == [1.0, 3.0, 5.0, 6.5, 8.5]
    assert found.partial == [300]
    np.testing.assert_array_equal(found.low, [0.0, 2.0, np.nan, 6.0, 8.0])
    np.testing.assert_array_equal(found.high, [2.0, 4.0, np.nan, 7.0, 9.0])
    lines = charts.lines_of(whole, "CartPole-v1", [0])
    spots = charts.draw_curves(tmp_path / "curve.png", lines, title="")
    assert [spot.rows[0][0].partition("  ")[0] for spot in spots] == [
        *("1.00 [0.000, 2.00]", "3.00 [2.00, 4.00]", "5.00"),
        *("6.50 [6.00, 7.00]", "8.50 [8.00, 9.00]"),
    ]


@pytest.mark.parametrize(
    "missing, solid, pale",
    [
        ([], [1, 2, 3, 4, 5], []),
        ([3], [1, 2, 4, 5], [2, 3, 4]),
        ([4, 5], [1, 2, 3], [3, 4, 5]),
        ([1, 2, 3, 4, 5], [], [1, 2, 3, 4, 5]),
    ],
)
def test_pale_points_are_those_at_which_runs_are_missing(
    missing: list[float], solid: list[float], pale: list[float]
) -> None:
    """The dotted line also reaches the whole points beside them."""
    drawn: list[list[float]] = []

    class Axes(mock.MagicMock):
        def plot(self, x: Any, y: Any, **look: Any) -> None:
            drawn.append([a for a, b in zip(x, y, strict=True) if np.isfinite(b)])

    x = [1.0, 2.0, 3.0, 4.0, 5.0]
    charts._draw_lines(Axes(), [charts.Line(x=x, y=x, partial=missing, label="", style=0)])
    assert drawn == [solid, *([pale] if pale else [])]


# The page


class Page(HTMLParser):
    """What a browser would ask for, and whether every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.alts: list[str] = []
        self.sections: list[str] = []
        self.links: list[str] = []
        self.scripts: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert not {"src", "onload", "onerror"} & set(given) or tag == "img"
        assert (given.get("href") or "#").startswith("#")
        assert tag not in ("link", "iframe", "object")
        if given.get("id"):
            self.sections.append(given["id"] or "")
        if "href" in given:
            self.links.append(given["href"] or "")
        if tag == "img":
            self.sources.append(given["src"] or "")
            self.alts.append(given["alt"] or "")
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["report", *map(str, arguments)])
    report.main()


def test_page_stands_alone_and_says_what_is_amiss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A path with an equals sign, text that would be markup, runs that failed or go on."""
    place = tmp_path / "a=<script>b"
    for number, (gamma, absolute, status) in enumerate(
        [
            (0.9, 100.0, "finished"),
            (0.9, 200.0, "finished"),
            (0.99, 150.0, "finished"),
            (0.99, None, "NaN in <b>loss</b>"),
            (0.99, "none yet", ""),
        ]
    ):
        make(
            place / str(number), [50.0, 120.0], absolute, status=status, arch__seed=number,
            system__gamma=gamma, typed=["env=cartpole", f"system.gamma={gamma}", "+x='<i>'"],
        )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    run_main(monkeypatch, place)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "report/index.html: 5 runs, 2 groups, 1 task" in printed.out
    content = (tmp_path / "report" / "index.html").read_text("utf-8")
    page = Page()
    page.feed(content)
    assert page.open == []
    pngs = sorted(path.name for path in (tmp_path / "report").glob("*.png"))
    assert pngs == [
        *("curves_CartPole_v1.png", "improvement.png", "iqm.png", "profiles.png"),
        "setting_system_gamma_CartPole_v1.png",
    ]
    assert len(page.sources) == len(pngs)
    assert all(source.startswith("data:image/png;base64,iVBOR") for source in page.sources)
    assert all(page.alts)
    assert "url(" not in content
    assert page.scripts == [elements.SCRIPT]
    assert page.links == [f"#{name}" for name in page.sections]
    assert page.sections[0] == "absolute-metrics"
    # The values of the first evaluation, over all runs with that gamma
    assert "100 steps50.00 [50.00, 50.00]  system.gamma=0.9" in page.text
    for line in (
        "1 of 5 runs not finished",
        "1 of 3 runs failed and left out of scores",
        "system.gamma=0.99 on CartPole-v1: NaN in <b>loss</b>",
        "python -m jaxppo.ff_ppo -m env=cartpole system.gamma=0.9",
        "150.0 ± 50.0",
        "100.0 to 200.0 (3%)",  # the range of two runs
        "Versions: jax 0.0.0. Machine: 2 cores of a processor.",
        str(place),
    ):
        assert line in page.text, line
    (improvement,) = [alt for alt in page.alts if alt.startswith("Probability")]
    assert "system.gamma=0.9 over system.gamma=0.99: 0.500" in improvement


def test_page_of_one_run_has_no_intervals_and_is_the_same_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path / "run", [1.0, 2.0], 1.5)
    pages = []
    for out in ("one", "two"):
        run_main(monkeypatch, run, f"out={tmp_path / out}")
        pages.append((tmp_path / out / "index.html").read_bytes())
    assert pages[0] == pages[1]
    text = pages[0].decode()
    assert "1 group with one run on a task: no interval there." in text
    assert "Probability of improvement" not in text
    assert not (run / "report").exists()


def test_unequal_numbers_of_runs_on_tasks_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 12 runs, the IQM leaves out the lowest three; two of them are all runs of a task."""
    scores = {"Easy-v1": np.linspace(0.90, 0.99, 10), "Hard-v1": [0.01, 0.02]}
    for task, own in scores.items():
        for seed, score in enumerate(own):
            make(tmp_path / task / str(seed), [0.0], float(score), env__name=task, arch__seed=seed)
    run_main(
        monkeypatch, tmp_path, f"out={tmp_path / 'page'}", "bounds.Easy-v1=[0,1]",
        "bounds.Hard-v1=[0,1]",
    )  # fmt: skip
    text = (tmp_path / "page" / "index.html").read_text()
    assert (
        "all runs: 10 runs on Easy-v1 and 2 runs on Hard-v1; every run has the same weight" in text
    )
    assert "all tasks have the same weight" not in text
    assert "In the IQM, every run has the same weight; in profiles" in text
    shutil.rmtree(tmp_path / "Easy-v1")
    for seed, score in enumerate(scores["Easy-v1"][:2]):
        make(tmp_path / "Easy-v1" / str(seed), [0.0], score, env__name="Easy-v1", arch__seed=seed)
    assert not [line for line in cautions(compared(tmp_path)) if "Easy-v1" in line]


def test_a_seed_that_is_there_twice_is_said(tmp_path: Path) -> None:
    for place, seed, score in (("a", 1, 2.0), ("b", 1, 3.0), ("c", 2, 3.0)):
        make(tmp_path / place, [score], score, arch__seed=seed)
    lines = [line for line in cautions(compared(tmp_path)) if "have seed" in line]
    (line,) = lines
    assert line.endswith("several runs have seed 1, with different results; each counts as one.")
    shutil.rmtree(tmp_path / "b")
    make(tmp_path / "failed", [4.0], None, arch__seed=1, status="non-finite loss")
    assert not [line for line in cautions(compared(tmp_path)) if "have seed" in line]


def test_shares_of_the_profile_are_of_whole_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, score in enumerate((9.325, 10.75, 14.475)):
        make(tmp_path / str(seed), [0.0], score, arch__seed=seed)
    run_main(monkeypatch, tmp_path, f"out={tmp_path / 'page'}")
    text = (tmp_path / "page" / "index.html").read_text()
    assert "Share of runs above 10.75: all runs: 33%" in text


def test_single_runs_have_no_std(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, gamma in enumerate((0.9, 0.95, 0.99)):
        make(tmp_path / str(number), [1.0], 100.0 + number, system__gamma=gamma)
    run_main(monkeypatch, tmp_path, f"out={tmp_path / 'page'}")
    text = (tmp_path / "page" / "index.html").read_text()
    assert "<span>101.0</span>" in text
    assert not re.search("<span>[^<]*±", text)


@pytest.mark.parametrize(
    "values, words",
    [
        ((0.99, 0.9, "tanh"), ["0.99", "0.9", "tanh"]),
        ((0.00023948273, 0.0071829374), ["0.00024", "0.0072"]),
        ((0.00023948273, 0.00023991234), ["0.000239", "0.00024"]),
        ((0.000239999, 0.00024), ["0.000239999", "0.00024"]),
        ((1024, True, None), ["1024", "true", "null"]),
    ],
)
def test_numbers_are_rounded_to_what_differs(values: tuple[Any, ...], words: list[str]) -> None:
    assert list(comparison.texts(values).values()) == words


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["nowhere"], "nowhere: no such directory; name directories of runs or of sweeps"),
        (["."], ".: no run there or below; a run's directory holds config.yaml"),
        (["out=x"], "no directory named: python -m jaxppo.report DIR..."),
        (["--out", "."], "--out: settings are key=value, without dashes; see -h"),
        (["oot=x", "."], "oot: no such key; did you mean out?"),
        (["run", "out=run/config.yaml"], "out=run/config.yaml: cannot be made (File exists)"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if "run" in arguments:
        make(tmp_path / "run", [1.0], 1.0)
    with pytest.raises(SystemExit) as stopped:
        run_main(monkeypatch, *arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert line in error
