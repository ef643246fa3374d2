"""The search for hyperparameters: its budget, its verdict, its files, and a planted optimum."""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir

from jaxppo.config.fields import ConfigError
from jaxppo.config.parse import parse
from jaxppo.config.schema import Config, PopulationConfig
from jaxppo.extras import tuning
from jaxppo.extras.tuning import Tuning, is_better, tune, with_values
from jaxppo.launch.composing import compose, config_dir, plain_settings
from jaxppo.runtime.programs.population import members as members_of
from jaxppo.runtime.run.jobs import Job
from jaxppo.runtime.run.members import Members
from jaxppo.runtime.sinks import Event

SMALL = [
    *("env.target=envs.Copy", "env.name=null", "arch.total_num_envs=16", "arch.num_updates=20"),
    *("arch.num_evaluation=4", "arch.num_eval_episodes=64", "arch.compiler=quick"),
    *("system.rollout_length=4", "system.num_minibatches=1", "system.epochs=2"),
    *("system.decay_learning_rates=false", "network=mlp_shared"),
]
STEPS = 16 * 4 * 20  # of one run


@pytest.mark.parametrize("command", tuning.COMMANDS)
def test_bounds_are_inside_the_rules_of_their_settings(command: str) -> None:
    config = compose(command, ["env=cartpole"])
    ranges = config.system.searched()
    rates = {f.name for f in dataclasses.fields(config.system) if f.metadata.get("rate")}
    assert rates <= set(ranges)
    for side in (0, 1):
        changed = {name: bounds[side] for name, bounds in ranges.items()}
        parse({"system": {**dataclasses.asdict(config.system), **changed}})
    assert all(low < high for low, high in ranges.values())


OF_ALL = {"gamma", "max_grad_norm"}
OF_PPO = {*OF_ALL, "actor_lr", "critic_lr", "gae_lambda", "ent_coef"}
OF_PQN = {*OF_ALL, "learning_rate", "q_lambda"}
EPSILONS = {"epsilon_end", "epsilon_fraction"}


@pytest.mark.parametrize(
    "command, typed, expected",
    [
        ("ff_ppo", ["algorithm=reinforce.Reinforce"], OF_ALL),
        ("ff_ppo", [], {*OF_PPO, "clip_eps"}),
        ("ff_ppo", ["objective=dpo"], OF_PPO),
        ("ff_ppo", ["objective=penalty"], OF_PPO),
        ("ff_ppo", ["objective=dpo", "clip_value_loss=true"], {*OF_PPO, "clip_eps"}),
        (
            "ff_ppo",
            ["objective=jaxppo.algorithms.objectives.penalty_objective"],
            {*OF_PPO, "clip_eps"},
        ),
        ("ff_pqn", [], {*OF_PQN, *EPSILONS}),
        ("ff_pqn", ["epsilon_start=0", "epsilon_end=0"], OF_PQN),
        ("ff_pqn", ["epsilon_end=0"], {*OF_PQN, "epsilon_fraction"}),
    ],
)
def test_only_what_a_program_reads_is_searched(
    command: str, typed: list[str], expected: set[str]
) -> None:
    found = compose(command, [f"system.{each}" for each in typed]).system.searched()
    assert set(found) == expected


def test_rates_that_adapt_begin_between_their_bounds() -> None:
    """Those that were typed; what a search samples and writes is taken."""
    adapts = ["adapt_learning_rates=true", "decay_learning_rates=false", "lr_min=1.2345e-4"]
    config = compose("ff_ppo", [*SMALL, *(f"system.{each}" for each in adapts)])
    ranges = searched(config)
    assert ranges["actor_lr"] == [1.2345e-4, 1e-2]
    low = {name: bounds[0] for name, bounds in ranges.items()}
    with_values(config, tuning.rounded(low, ranges, {"gamma"})).system.check()
    assert len(members_of(tuning._population(config, ranges, 4, "halving", [low]))) == 4


def test_values_keep_three_digits_of_what_matters() -> None:
    values = {"gamma": 0.99876543, "actor_lr": 1.23456e-4, "clip_eps": 0.49999, "ent_coef": 0.98765}
    ranges = {"gamma": [0.9, 0.999], "actor_lr": [1.3e-4, 1.0], "clip_eps": [0.05, 0.5]}
    ranges |= {"ent_coef": [0.0, 2.0]}
    expected = {"gamma": 0.99877, "actor_lr": 1.3e-4, "clip_eps": 0.5, "ent_coef": 0.988}
    assert tuning.rounded(values, ranges, {"gamma"}) == expected


def searched(config: Config) -> tuning.Ranges:
    return {name: list(bounds) for name, bounds in config.system.searched().items()}


def test_budget_is_divided_and_not_exceeded() -> None:
    config = compose("ff_ppo", SMALL)
    ranges = searched(config)

    def divided(steps: int) -> tuning.Budget:
        return tuning.divide(Tuning(budget=steps, seeds=10), config, ranges)

    # Twenty runs confirm, six play the finals, and two evolve. Of four members one update each is
    # 1/20 of a run: four of them train for 5 updates, two for 5 more, and one for the last 10.
    least = STEPS * (20 + 6 + 2) + (4 * 5 + 2 * 5 + 1 * 10) * 16 * 4
    with pytest.raises(ConfigError, match=rf"at least {least} for 10 seeds and runs of {STEPS} st"):
        divided(least - 1)
    found = divided(least)
    assert (found.num_members, found.num_evolved, found.num_finalists) == (4, 2, 2)
    assert sum(found.steps.values()) == least
    large = divided(20 * least)
    assert (large.num_members, large.num_evolved, large.num_finalists) == (128, 32, 8)
    few = tuning.divide(Tuning(budget=20 * least, members=17), config, ranges)
    assert (few.num_members, few.num_evolved, few.num_finalists) == (16, 17, 8)
    for factor in (1.0, 1.5, 2.0, 3.0, 20.0):
        assert sum(divided(int(factor * least)).steps.values()) <= factor * least


def test_what_evolved_is_the_mean_over_a_member_and_its_ancestors() -> None:
    """Member 0 copied member 1 after a quarter of the steps, and is best at the end."""
    bounds = {"actor_lr": [1e-4, 1.0], "ent_coef": [0.0, 1.0], "gamma": [0.9, 0.999]}
    population = PopulationConfig(size=2, selection="pbt", hyperparameters={**bounds})
    arch = compose("ff_ppo", SMALL)
    members = Members([Job(dataclasses.replace(arch, population=population), None)])
    members[0].score({"steps": 400, "episode_return": 1.0})

    def selection(steps: int, sources: list[int], rates: list[float], bonus: list[float]) -> Event:
        values = {"actor_lr": rates, "ent_coef": bonus, "gamma": [1 - 0.1 * x**0.5 for x in rates]}
        return {
            "event": "selection", "method": "pbt", "steps": steps, "members": [0, 1],
            "sources": sources, "hyperparameters": values,
        }  # fmt: skip

    events = [
        selection(0, [0, 1], [1e-4, 1e-1], [0.0, 0.1]),
        {"event": "eval", "steps": 100},
        selection(100, [1, 1], [1e-3, 1e-1], [0.2, 0.1]),
        selection(300, [0, 1], [1e-2, 1e-1], [0.5, 0.1]),
    ]
    found = tuning._values(members, events, 0, bounds, {"gamma"})
    # 1e-1 for 100 steps as member 1, then 1e-3 for 200 and 1e-2 for 100
    assert found["actor_lr"] == pytest.approx(10 ** -((1 + 3 * 2 + 2) / 4))
    assert found["ent_coef"] == pytest.approx((0.1 + 0.2 * 2 + 0.5) / 4)
    assert 1 - found["gamma"] == pytest.approx(0.1 * found["actor_lr"] ** 0.5)


def test_a_run_that_failed_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose("ff_ppo", SMALL)
    ranges = searched(config)
    members = Members([Job(tuning._population(config, ranges, 4, "halving"), None)])
    members[2].score({"steps": 400, "episode_return": 1.0})
    members[3].score({"steps": 400, "episode_return": float("nan")})
    selected = [{"event": "selection", "method": "halving"}]
    monkeypatch.setattr(tuning, "_train", lambda jobs: (members, selected))
    budget = tuning.Budget(num_members=4, num_evolved=4, num_finalists=4, steps={})
    record = tuning.Record([], 1, {"halving": 1}, {})
    tuning._search(config, ranges, budget, "halving", record)
    best = {name: getattr(members[2].config.system, name) for name in ranges}
    assert record.done["halving"]["best"] == [tuning.rounded(best, ranges, {"gamma", "gae_lambda"})]


def test_better_needs_every_run_and_more_than_chance() -> None:
    low, high = [1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]
    assert is_better(low, high, 5)
    assert not is_better(high, low, 5)
    assert not is_better(low, low, 5)
    assert not is_better(low, [1.1, 2.1, 3.1, 4.1, 5.1], 5)  # a higher IQM, by chance
    assert not is_better(low, high[1:], 5)  # one of its runs failed
    assert is_better([], high, 5)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["budget=1e3"], r"budget=1000: at least \d+ for 10 seeds"),
        (["budget=abc"], r"budget=abc: must be an integer"),
        (["seeds=1"], r"seeds=1: must be at least 2"),
        (["command=ff_dqn"], r"command=ff_dqn: no such choice"),
        (["name=a/b"], r"name=a/b: must be letters"),
        (["env=cartpole", "name=cartpole"], r"name=cartpole: configs/env has such a file already;"),
        (["env.name=Nowhere-v0"], r"Nowhere-v0"),
        (["arch.num_seeds=4"], r"arch\.num_seeds=4: leave it out; take seeds=N"),
        (["arch.absolute_metric=false"], r"arch\.absolute_metric=false: is not for"),
        (["population=pbt"], r"population: is not for jaxppo\.tune"),
        (["network/torso@network.critic_torso=mlp"], r"take network=NAME"),
    ],
)
def test_mistake_is_refused_before_anything_is_written(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        tune([*arguments, f"out={tmp_path / 'out'}"])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command, typed",
    [
        ("ff_ppo", ["env.name=Acrobot-v1", "arch.total_timesteps=2e6"]),
        ("ff_ppo", ["env=cartpole_no_velocity", "env.params.gravity=9", "network=mlp_shared"]),
        ("ff_ppo", ["env=asterix", "system.epochs=2"]),
        ("rec_ppo", ["env=t_maze", "network=gru"]),
        ("ff_pqn", ["env=cartpole", "arch.total_num_envs=64"]),
        ("ff_pqn", ["env=asterix", "system.epochs=4"]),
    ],
)
def test_written_file_gives_the_settings_that_were_confirmed(
    command: str, typed: list[str], tmp_path: Path
) -> None:
    general = compose(command, typed)
    values = {name: high for name, (_, high) in searched(general).items()}
    best = with_values(general, values)
    shutil.copytree(config_dir(), tmp_path / "configs")
    tuning.write_files(tmp_path / "configs", "mine", command, typed, best, ["Found."])
    network = [each for each in typed if each.startswith("network=")]
    choice = ["env=mine", *(network if command.startswith("rec") else [])]
    with initialize_config_dir(version_base="1.3", config_dir=str(tmp_path / "configs")):
        found = parse(plain_settings(hydra_compose(command, choice), choice))
    assert found == best


def searched_for(tmp_path: Path, *more: str) -> dict[str, Any]:
    """What tuning.json holds after a search."""
    tune([*SMALL, "budget=3e4", "seeds=5", f"out={tmp_path / 'out'}", *more])
    found: dict[str, Any] = json.loads((tmp_path / "out" / "tuning.json").read_text())
    return found


@pytest.mark.long
def test_search_finds_a_planted_optimum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only large learning rates solve the environment in the steps that there are.

    After an interruption the same command comes to the same end.
    """
    planted = ["system.actor_lr=1e-5", "arch.evaluation_greedy=false"]
    found = searched_for(tmp_path, *planted)
    assert found["hyperparameters"]["actor_lr"] > 1e-3
    assert found["tuned"]["iqm"] > 0.7 > 0.5 > found["general"]["iqm"]
    assert re.fullmatch(
        r"better than the starting settings over 5 fresh seeds: IQM \S+ \[.*\]; starting settings "
        r"\S+ \[.*\] \(95% intervals\)",
        found["verdict"],
    )
    shown = capsys.readouterr().out
    assert found["verdict"] in shown
    assert "10 runs, 2 groups, 1 task" in shown
    phases = {phase["phase"]: phase for phase in found["phases"]}
    assert list(phases) == ["halving", "evolution", "finals", "confirmation"]
    assert phases["confirmation"]["steps"] == 10 * STEPS
    assert sum(phase["steps"] for phase in found["phases"]) <= found["budget"] == 30_000
    out = tmp_path / "out"
    assert found["verdict"] in (out / "configs" / "env" / "tuned.yaml").read_text()
    assert (out / "report" / "index.html").exists()
    with pytest.raises(ConfigError, match="holds a search of other arguments"):
        searched_for(tmp_path)
    with pytest.raises(ConfigError, match="holds a finished search"):
        searched_for(tmp_path, *planted)
    shutil.rmtree(out / "report")  # interrupted after the confirmation: nothing trains again
    assert searched_for(tmp_path, *planted) == found
    assert (out / "report" / "index.html").exists()
    shown = capsys.readouterr().out
    assert "goes on after halving, evolution, finals, confirmation\n" in shown
    assert found["verdict"] in shown
    shutil.rmtree(out / "report")
    cut = {**found, "phases": found["phases"][:1], "verdict": "not confirmed"}  # in the second
    (out / "tuning.json").write_text(json.dumps(cut))
    again = searched_for(tmp_path, *planted)
    assert "goes on after halving\nevolution: " in capsys.readouterr().out
    for phase in (*found["phases"], *again["phases"]):
        phase.pop("seconds")
    assert again == found


@pytest.mark.long
def test_search_says_so_where_general_settings_are_as_good(tmp_path: Path) -> None:
    found = searched_for(tmp_path, "system.actor_lr=1e-2")
    assert found["general"]["iqm"] > 0.95
    assert found["verdict"].startswith("NOT better")
