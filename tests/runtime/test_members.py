"""Members of one program: each is the run that it would be alone."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import NETWORK, on_devices, small_config
from runs import QUIET, jobs_of

from jaxppo.config.fields import ConfigError
from jaxppo.config.plan import plan
from jaxppo.config.schema import Config
from jaxppo.deploy.policy import load
from jaxppo.launch.sweeping import as_programs, groups
from jaxppo.runtime.programs import compile, population
from jaxppo.runtime.programs.build import build, program_key
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.run import loop
from jaxppo.runtime.run.caller import Caller
from jaxppo.runtime.run.compiling import TooLargeError
from jaxppo.runtime.run.events import aggregate
from jaxppo.runtime.run.jobs import Job, TrainingError
from jaxppo.runtime.run.members import Members
from jaxppo.runtime.run.selection import Selection
from jaxppo.runtime.sinks import Recorder

pytestmark = pytest.mark.usefixtures("share_programs")

PBT = {"size": 4, "selection": "pbt", "hyperparameters": {"actor_lr": [1e-4, 1e-2]}}
HALVING = {**PBT, "selection": "halving"}
ON = {
    **dict.fromkeys(("normalize_observations", "normalize_values", "normalize_rewards"), True),
    "num_minibatches": 2,
    "target_kl": 100.0,  # finite in all, so that those of one form are one program
}


def coin(**changes: Any) -> Config:
    """Episodes of random length, everything random used, statistics on; few programs."""
    arch = {"total_num_envs": 16, "num_updates": 4, "num_eval_episodes": 7, "update_batch_size": 2}
    given = {
        "arch": {**arch, **changes.pop("arch", {})},
        "system": {**ON, **changes.pop("system", {})},
        "env": {"target": "envs.Coin"},
        "network": NETWORK,
        "logger": QUIET,
        **changes,
    }
    return small_config(**given)


def events_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def same(one: list[dict[str, Any]], other: list[dict[str, Any]], rtol: float = 2e-4) -> None:
    """Equal events, but for the clock, up to the order of sums."""
    assert [event["event"] for event in one] == [event["event"] for event in other]
    for left, right in zip(one, other, strict=True):
        assert set(left) == set(right)
        for name in set(left) - {"seconds", "steps_per_second"}:
            if isinstance(left[name], float) and isinstance(right[name], float):
                np.testing.assert_allclose(left[name], right[name], rtol, 2e-5, err_msg=name)
            else:
                assert left[name] == right[name], name


def alone(config: Config, folder: Path) -> list[dict[str, Any]]:
    """The events of a run by itself."""
    folder.mkdir(parents=True)
    loop.run(config, folder)
    return events_of(folder)


@pytest.mark.long
def test_a_member_is_the_run_that_it_would_be_alone(tmp_path: Path) -> None:
    """Seeds and numbers differ; what each logs, evaluates and returns does not."""
    fast = {"actor_lr": 0.05, "decay_learning_rates": False, "target_kl": 1e-7}
    configs = [
        coin(),
        coin(arch={"seed": 7}, system={"clip_eps": 0.01, "ent_coef": 0.1, "gamma": 0.5}),
        coin(arch={"seed": 7}, system={**fast, "max_grad_norm": 1e-3}),
    ]
    screen = Recorder([])
    results = loop.run_together(jobs_of(tmp_path / "all", configs), caller=Caller(screens=[screen]))
    for i, config in enumerate(configs):
        events = alone(config, tmp_path / f"alone_{i}")
        same(events_of(tmp_path / "all" / str(i)), events)
        np.testing.assert_allclose(results[i], events[-1]["episode_return"], rtol=1e-5)
    firsts = [events_of(tmp_path / "all" / str(i))[0] for i in range(3)]
    assert len({event["actor_loss"] for event in firsts}) == 3
    assert firsts[2]["gradient_steps"] < firsts[0]["gradient_steps"] == 4  # its own limit of KL
    evaluation = next(event for event in screen.events if event["event"] == "eval")
    assert list(evaluation["returns_by_settings"]) == Members(jobs_of(tmp_path, configs)).labels()


@pytest.mark.long
def test_members_play_games_against_their_own_older_policies(tmp_path: Path) -> None:
    env = {"target": "own_games.Nim", "opponent": "pool", "num_opponents": 2, "random_moves": 2}
    config = coin(env=env, arch={"num_seeds": 2, "max_eval_steps": 12})
    (tmp_path / "all").mkdir()
    loop.run(config, tmp_path / "all")
    for member in population.members(config):
        name = f"seed_{member.arch.seed}"
        same(events_of(tmp_path / "all" / name), alone(member, tmp_path / "alone" / name))


@pytest.mark.long
def test_parameters_of_an_environment_are_data_of_its_members(tmp_path: Path) -> None:
    """They train and evaluate with their own, also after a resume, and as they would alone."""
    winds = (0.0, 1.0, -2.0)
    configs = [coin(env={"target": "own_envs.Windy", "params": {"wind": x}}) for x in winds]
    assert groups(configs) == [[0, 1, 2]]
    jobs = jobs_of(tmp_path / "all", configs)
    loop.run_together(jobs, caller=Caller(on_block=lambda _: True))  # stops after one block
    jobs = [dataclasses.replace(job, resume=True) for job in jobs]
    results = loop.run_together(jobs)
    for i, (wind, config) in enumerate(zip(winds, configs, strict=True)):
        events = alone(config, tmp_path / f"alone_{i}")
        found = [e for e in events_of(tmp_path / "all" / str(i)) if e["event"] != "resume"]
        for kind in ("train", "eval", "absolute"):
            same(*([e for e in each if e["event"] == kind] for each in (found, events)))
        np.testing.assert_allclose(results[i], wind * events[-1]["episode_length"], rtol=1e-6)
        episodes = load(tmp_path / "all" / str(i), trust=["own_envs"]).evaluate(70)
        np.testing.assert_allclose(np.mean(episodes.returns), results[i])


def test_parameters_that_shape_a_program_are_no_data() -> None:
    """An integer that is a shape, a time limit, the bounds of actions, and a switch."""

    def own(target: str, **params: Any) -> Config:
        return coin(env={"target": target, "params": params})

    def listed(name: str, **params: Any) -> Config:
        return coin(env={"name": name, "target": None, "params": params})

    assert groups([listed("CartPole-v1", length=x) for x in (0.25, 0.5)]) == [[0, 1]]
    assert groups([listed("CartPole-v1", max_steps_in_episode=x) for x in (9, 10)]) == [[0], [1]]
    assert groups([listed("Pendulum-v1", max_torque=x) for x in (1.0, 2.0)]) == [[0], [1]]
    assert groups([own("own_envs.Windy", wind=1.0), own("own_envs.Windy", count=4)]) == [[0], [1]]


def test_what_keeps_jobs_in_programs_of_their_own_is_named() -> None:
    """But not what their program takes as data."""

    def config(i: int, **more: Any) -> Config:
        return coin(arch__seed=i, system__gamma=1 - i / 9, **more)

    def wide(i: int) -> Config:
        torso = {**NETWORK["actor_torso"], "layer_sizes": [8 * i]}
        return config(i, system__epochs=i, network={**NETWORK, "actor_torso": torso})

    named = {"system.epochs", "network.actor_torso.layer_sizes"}
    said = as_programs([wide(1), wide(2)])
    assert {*re.findall(r"(?:system|network)\.[\w.]+\w", said)} == named
    assert as_programs([config(1), config(2)]) == "as 2 programs"


def test_members_are_named_by_the_settings_in_which_they_differ() -> None:
    configs = [coin(arch={"num_seeds": 2}, system={"gamma": gamma}) for gamma in (0.9, 0.99)]
    found = Members([Job(config, None) for config in configs]).labels()
    assert found == ["system.gamma=0.9"] * 2 + ["system.gamma=0.99"] * 2
    seeds = [Job(coin(arch={"seed": seed}), None) for seed in (1, 2)]
    assert set(Members(seeds).labels()) == {""}


def test_one_score_has_no_interval() -> None:
    scores = [1.0, 3.0]
    events = [
        {"event": "eval", "seed": i, "episode_return": x, "length_min": x, "length_max": x}
        for i, x in enumerate(scores)
    ]
    two, one = aggregate(events), aggregate(events[1:])
    assert [two[name] for name in ("episode_return", "length_min", "length_max")] == [2.0, 1.0, 3.0]
    assert (two["member_return_low"], two["member_return_high"]) == (1.0, 3.0)
    assert (one["member_return_low"], one["member_return_high"]) == (None, None)
    assert (one["member_return_iqm"], one["member_return_std"]) == (3.0, 0.0)
    assert (one["member_return_min"], one["member_return_max"]) == (3.0, 3.0)
    ends = [
        {"event": "end", "seed": i, "status": "finished", "steps": 8, "absolute_metric": score}
        for i, score in enumerate((None, 2.0))
    ]
    end = aggregate(ends)
    assert (end["absolute_metric_low"], end["absolute_metric_high"]) == (None, None)
    assert end["absolute_metric_iqm"] == 2.0
    old, new = ends[0], {**ends[1], "final_return": 4.0}  # a checkpoint of before has no such key
    assert aggregate([new, old])["final_return"] == 4.0


@pytest.mark.parametrize("scores", [(math.nan, 1.0, 3.0), (1.0, math.nan, 3.0)])
def test_members_whose_episodes_told_nothing_are_left_out(scores: tuple[float, ...]) -> None:
    """Also of the run's result; as in events of training, where such a number is None."""
    common = {"episode_return": 0.0, "eval_metric": "time"}
    events = [{"event": "eval", "seed": i, "env/time": x, **common} for i, x in enumerate(scores)]
    found = aggregate(events)
    assert found["env/time"] == found["member_score_iqm"] == 2.0
    assert (found["member_score_min"], found["member_score_max"]) == (1.0, 3.0)
    diverged = [{**event, "episode_return": x} for event, x in zip(events, scores, strict=True)]
    assert math.isnan(aggregate(diverged)["member_return_iqm"])  # an environment told NaN
    none = aggregate(events[:1] if math.isnan(scores[0]) else events[1:2])
    assert math.isnan(none["env/time"])
    config = coin(arch={"num_seeds": 3, "eval_metric": "time"}, env={"metrics": ["time"]})
    members = Members([Job(config, None)])
    for member, score in zip(members.all, scores, strict=True):
        member.result = score
    assert members.results() == [2.0]


@pytest.mark.long
def test_seeds_are_runs_and_their_sum(tmp_path: Path) -> None:
    result = loop.run(coin(arch={"num_seeds": 3, "seed": 5}), tmp_path)
    same(events_of(tmp_path / "seed_6"), alone(coin(arch={"seed": 6}), tmp_path / "alone"))
    seeds = [events_of(tmp_path / f"seed_{seed}") for seed in (5, 6, 7)]
    for number, event in enumerate(events_of(tmp_path)):
        each = [events[number] for events in seeds]
        assert event["members"] == 3
        assert event["seeds"] == [5, 6, 7]
        if event["event"] != "train":
            scores = [one["episode_return"] for one in each]
            assert event["member_returns"] == scores
            np.testing.assert_allclose(event["episode_return"], np.mean(scores))
            np.testing.assert_allclose(event["member_return_std"], np.std(scores))
            assert event["member_return_min"] == min(scores)
            assert event["member_return_max"] == max(scores)
            assert event["member_return_low"] <= event["member_return_iqm"]
            assert event["member_return_iqm"] <= event["member_return_high"]
            for name, over in (("min", min), ("max", max)):  # over episodes of all members
                worst = [one[f"episode_return_{name}"] for one in each]
                assert event[f"episode_return_{name}"] == over(worst)
        else:
            np.testing.assert_allclose(event["entropy"], np.mean([one["entropy"] for one in each]))
            assert event["ratio_min"] == min(one["ratio_min"] for one in each)
            assert event["ratio_max"] == max(one["ratio_max"] for one in each)
            assert event["episodes"] == sum(one["episodes"] for one in each)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "finished"
    np.testing.assert_allclose(summary["absolute_metric"], result)
    np.testing.assert_allclose(result, np.mean(summary["absolute_metrics"]))
    last = [events[-2] for events in seeds]
    assert [event["event"] for event in last] == ["eval"] * 3
    np.testing.assert_allclose(
        summary["final_return"], np.mean([event["episode_return"] for event in last])
    )


def test_each_member_keeps_its_own_best(tmp_path: Path) -> None:
    """Policies stand in as their block's number; 9 is better than all, infinity than none."""
    config = coin(arch={"num_seeds": 4})
    planned, members = plan(config, 1), Members([Job(config, tmp_path)])
    layout = Layout(planned, build(config, planned), (0, 1, 2, 3))
    best: Any = {"params": np.zeros((1, 4, 2))}
    for block, scores in enumerate(
        ([1.0, 5.0, 3.0, math.inf], [2.0, 4.0, math.nan, 9.0], [2.0, 6.0, 2.0, -math.inf]), 1
    ):
        better = [
            members[i].score({"episode_return": score, "steps": block})
            for i, score in enumerate(scores)
        ]
        policy: Any = {"params": np.full((1, 4, 2), block)}
        best = layout.choose(np.array(better), policy, best)
    np.testing.assert_array_equal(np.asarray(best["params"])[0, :, 0], [2, 3, 1, 2])
    assert [members[i].facts.best["steps"] for i in range(4)] == [2, 3, 1, 2]
    assert [members[i].facts.last["steps"] for i in range(4)] == [3, 3, 3, 3]
    assert [members[i].final["final_return"] for i in range(4)] == [2.0, 6.0, 2.0, -math.inf]


def test_final_is_of_a_trained_policy_and_has_the_number_that_judges(tmp_path: Path) -> None:
    (member,) = Members([Job(coin(), tmp_path)]).all
    assert member.final == {"final_return": None}
    member.score({"episode_return": 1.0, "steps": 0}, trained=False)
    assert member.final == {"final_return": None}
    member.score({"episode_return": 1.0, "steps": 8, "eval_metric": "far", "env/far": 3.0})
    assert member.final == {"final_return": 1.0, "final_score": 3.0}


@pytest.mark.long
def test_a_diverging_member_is_its_own_failure(tmp_path: Path) -> None:
    bad = {"actor_lr": 1e30, "critic_lr": 1e30, "decay_learning_rates": False}
    configs = [coin(), coin(system=bad), coin(arch={"seed": 2})]
    results = loop.run_together(jobs_of(tmp_path, configs))
    assert isinstance(results[1], TrainingError)
    assert "NaN or infinity" in str(results[1])
    same(events_of(tmp_path / "2"), alone(configs[2], tmp_path / "alone"))
    assert [event["event"] for event in events_of(tmp_path / "1")] == ["train"]
    assert json.loads((tmp_path / "1" / "summary.json").read_text())["status"] != "finished"
    assert json.loads((tmp_path / "0" / "summary.json").read_text())["status"] == "finished"


@pytest.mark.long
def test_members_that_need_more_memory_than_there_is_do_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_of(tmp_path, [coin(arch={"seed": seed}) for seed in range(3)])
    monkeypatch.setattr(compile, "memory_limit", lambda *_: 1000)
    with pytest.raises(TooLargeError, match="3 members need"):
        loop.run_together(jobs, fit=True)
    assert not any(list(job.run_dir.iterdir()) for job in jobs)  # they can begin again
    with pytest.raises(ConfigError, match=r"arch\.total_num_envs=16: the program needs 0\.0 GiB"):
        loop.run(coin(), tmp_path)
    monkeypatch.setattr(compile, "memory_limit", lambda *_: None)
    assert all(isinstance(x, float) for x in loop.run_together(jobs, fit=True))


def test_what_shapes_no_array_shapes_no_program() -> None:
    one = program_key(coin())
    for same_program in (
        coin(arch={"seed": 1}),
        coin(system={"actor_lr": 1.0, "gamma": 0.1, "reward_scale": 3.0, "clip_eps_high": 0.4}),
        coin(system={"target_kl": 0.1}),
        coin(arch={"num_seeds": 4}),
    ):
        assert program_key(same_program) == one
    for other in (
        coin(system={"epochs": 1}),
        coin(system={"target_kl": math.inf}),
        coin(arch={"num_updates": 5}),
        coin(env={"target": "envs.Clock"}),
        coin(network={**NETWORK, "actor_torso": None}),
        coin(logger={"every": 1}),  # its windows are part of the state
    ):
        assert program_key(other) != one


@pytest.mark.parametrize(
    "members, devices, each, shards",
    [(1, 4, 1, 4), (4, 4, 1, 1), (8, 4, 2, 1), (6, 4, 6, 4), (3, 1, 3, 1)],
)
def test_members_are_sharded_over_devices_where_they_divide(
    members: int, devices: int, each: int, shards: int
) -> None:
    found = plan(coin(arch={"num_seeds": members}), devices)
    assert (found.members_per_device, found.devices_per_member) == (each, shards)
    assert found.num_envs * shards * 2 == 16
    assert found.shards_members == (shards < devices)
    assert found.steps_per_update == 16 * 8


SCRIPT = """
import sys
from pathlib import Path
from programs import share_programs
from runs import jobs_of
from runtime.test_members import HALVING, PBT, coin
from jaxppo.runtime.run import loop

folder, shared = Path(sys.argv[1]), share_programs._get_wrapped_function()()
next(shared)
three = [coin(arch={"seed": seed}) for seed in (1, 2, 3)]
loop.run_together(jobs_of(folder / "shared", three))  # all members on all devices
loop.run_together(jobs_of(folder / "alone", three[:1]))
for name, population in (("halving", HALVING), ("pbt", PBT)):  # two members on each device
    loop.run_together(jobs_of(folder / name, [coin(population=population)]))
"""


@pytest.mark.long
def test_members_over_devices_equal_runs_alone(tmp_path: Path) -> None:
    """Those with a device of their own equal runs on one; those that share them, runs on two."""
    found = tmp_path / "two"
    on_devices(2, SCRIPT, str(found))
    same(events_of(found / "shared/0"), events_of(found / "alone/0"))
    halved = events_of(found / "halving/0")
    (drop,) = [e for e in halved if e["event"] == "selection" and e["steps"]]
    assert len(drop["members"]) == 2  # one on each device
    number = drop["members"][-1]
    kept = alone(population.members(coin(population=HALVING))[number], tmp_path / "kept")
    same(events_of(found / f"halving/0/seed_{42 + number}"), kept)
    same(events_of(found / "pbt/0"), alone(coin(population=PBT), tmp_path / "pbt"))


@pytest.mark.long
def test_losers_of_halving_end_and_winners_go_on_as_they_were(tmp_path: Path) -> None:
    changes = {"arch": {"num_evaluation": 4}, "population": HALVING}
    result = loop.run(coin(**changes), tmp_path)
    members = population.members(coin(**changes))
    events = events_of(tmp_path)
    selections = [e for e in events if e["event"] == "selection"]
    assert [len(event["members"]) for event in selections] == [4, 2, 1]
    first = next(e for e in events if e["event"] == "eval")["member_returns"]
    assert set(selections[1]["members"]) == set(population.rank(first)[:2])
    counts = {
        i: len([e for e in events_of(tmp_path / f"seed_{42 + i}") if e["event"] == "eval"])
        for i in range(4)
    }
    assert sorted(counts.values()) == [1, 1, 2, 4]
    winner = max(counts, key=lambda i: counts[i])
    expected = alone(members[winner], tmp_path / "alone")
    np.testing.assert_allclose(expected[-1]["episode_return"], result, rtol=1e-5)
    same(events_of(tmp_path / f"seed_{42 + winner}"), expected)
    loser = min(counts, key=lambda i: counts[i])
    summary = json.loads((tmp_path / f"seed_{42 + loser}" / "summary.json").read_text())
    assert "dropped by successive halving at step 128" in summary["status"]


def test_a_copied_member_goes_on_as_its_source_with_other_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters, optimiser and statistics are the source's; environments and keys are not."""
    seen = []
    real = Selection.exploit

    def exploit(self: Selection, layout: Layout, state: Any, scores: Any, *rest: Any) -> Any:
        numbers = self.numbers
        diverged, _ = real(self, layout, state, {**scores, 3: math.nan}, *rest)
        self.numbers = numbers
        old, new = (layout.gather_split(x.acting) for x in (state, diverged))
        np.testing.assert_array_equal(new.obs, old.obs[[0, 1, 2, 0]])
        np.testing.assert_array_equal(new.discounted_return, old.discounted_return[[0, 1, 2, 0]])
        np.testing.assert_array_equal(new.key, old.key)
        after, chosen = real(self, layout, state, scores, *rest)
        agents = layout.gather_agents(state.agent), layout.gather_agents(after.agent)
        seen.append((*agents, self.numbers))
        before, now = (layout.gather_agents(x.acting.obs) for x in (state, after))
        np.testing.assert_array_equal(before, now)
        return after, chosen

    monkeypatch.setattr(Selection, "exploit", exploit)
    monkeypatch.setattr("jaxppo.runtime.run.selection.sources", lambda *_: [0, 1, 1, 0])
    bounds = {"actor_lr": [1e-4, 1e-2], "clip_eps": [0.1, 0.3]}
    loop.run(coin(population={**PBT, "hyperparameters": bounds}), tmp_path)
    ((before, after, numbers),) = seen
    for part in ("policy.params", "opt_state", "policy.obs_statistics", "algorithm_state"):
        old, new = before, after
        for name in part.split("."):
            old, new = getattr(old, name), getattr(new, name)
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[[0, 1, 1, 0]], y), old, new)
    old, new = before.hyperparameters, after.hyperparameters
    for name in ("actor_lr", "clip_eps", "clip_eps_high"):
        row, was = getattr(new, name), getattr(old, name)
        np.testing.assert_allclose(row[:2], was[:2])
        assert np.all(row[2:] != was[[1, 0]])
    np.testing.assert_allclose(new.actor_lr, numbers["actor_lr"], rtol=1e-6)
    np.testing.assert_allclose(new.clip_eps, new.clip_eps_high)
    np.testing.assert_array_equal(new.critic_lr, old.critic_lr)
    was, now = (jax.random.key_data(x.policy.noise_key) for x in (before, after))
    np.testing.assert_array_equal(was, now)
    assert len(np.unique(now, axis=0)) == 4
    start, selection = [e for e in events_of(tmp_path) if e["event"] == "selection"]
    assert start["sources"] == [0, 1, 2, 3]
    assert selection["sources"] == [0, 1, 1, 0]
    assert selection["hyperparameters"] == numbers


@pytest.mark.long
def test_a_diverged_member_of_a_population_becomes_a_copy(tmp_path: Path) -> None:
    settings = {**PBT, "hyperparameters": {"actor_lr": [1e-4, 1e30]}, "resample": 0.0}
    config = coin(population=settings, system={"decay_learning_rates": False})
    members = population.members(config)
    assert max(member.system.actor_lr for member in members) > 1e20
    result = loop.run(config, tmp_path)
    assert math.isfinite(result)
    (selection,) = [e for e in events_of(tmp_path) if e["event"] == "selection" and e["steps"]]
    assert selection["sources"] != [0, 1, 2, 3]
