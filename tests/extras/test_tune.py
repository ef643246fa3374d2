"""The search for hyperparameters: its budget, its verdict, its files, and a planted optimum."""

import dataclasses
import json
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
from jaxppo.launch.composing import compose, plain_settings
from jaxppo.launch.door import config_dir
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


@pytest.mark.parametrize("command", [name for name in tuning.COMMANDS if name.startswith("ff")])
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
OF_REPPO = {*OF_ALL, "actor_lr", "critic_lr", "multiplier_lr", "q_lambda", "kl_bound"}


@pytest.mark.parametrize(
    "command, typed, expected",
    [
        ("ff_ppo", ["algorithm=reinforce.Reinforce"], OF_ALL),
        ("ff_ppo", [], {*OF_PPO, "clip_eps"}),
        ("ff_ppo", ["objective=dpo"], OF_PPO),
        ("ff_pqn", [], {*OF_PQN, "epsilon_end", "epsilon_fraction"}),
        ("ff_pqn", ["epsilon_start=0", "epsilon_end=0"], OF_PQN),
        ("ff_reppo", [], OF_REPPO),
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
    with pytest.raises(ConfigError, match=f"at least {least} "):
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
    "command, typed",
    [
        ("ff_ppo", ["env=cartpole_no_velocity", "env.params.gravity=9", "network=mlp_shared"]),
        ("rec_ppo", ["env=t_maze", "network=gru"]),
        ("ff_pqn", ["env=asterix", "system.epochs=4"]),
        ("ff_reppo", ["env=pendulum", "system.epochs=4"]),  # whose file changes layers too
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


class Trainings:
    """Trains, or returns what the same jobs gave before."""

    def __init__(self, train: Any) -> None:
        self.train, self.num = train, 0
        self.known: dict[str, tuple[Any, Path | None]] = {}

    def __call__(self, jobs: Any) -> Any:
        key = repr([job.config for job in jobs])
        folder = jobs[0].run_dir and jobs[0].run_dir.parent
        if key not in self.known:
            self.num += 1
            found, copy = self.train(jobs), None
            if folder is not None:
                copy = folder.parents[1] / f"copy {self.num}"
                shutil.copytree(folder, copy)
            self.known[key] = found, copy
        found, copy = self.known[key]
        if copy is not None:
            shutil.copytree(copy, folder, dirs_exist_ok=True)
        return found


@pytest.mark.long
def test_search_finds_a_planted_optimum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only large learning rates solve the environment in the steps that there are.

    After an interruption the same command asks for the same trainings, and for no other ones.
    """
    out, trainings = tmp_path / "out", Trainings(tuning._train)
    monkeypatch.setattr(tuning, "_train", trainings)
    planted = ["system.actor_lr=1e-5", "arch.evaluation_greedy=false"]

    def search(*more: str) -> dict[str, Any]:
        tune([*SMALL, "budget=3e4", "seeds=5", f"out={out}", *more])
        found: dict[str, Any] = json.loads((out / "tuning.json").read_text())
        return found

    found = search(*planted)
    assert found["hyperparameters"]["actor_lr"] > 1e-3
    assert found["tuned"]["iqm"] > 0.7 > 0.5 > found["general"]["iqm"]
    assert found["verdict"].startswith("better")
    assert found["verdict"] in capsys.readouterr().out
    phases = {phase["phase"]: phase for phase in found["phases"]}
    assert list(phases) == ["halving", "evolution", "finals", "confirmation"]
    assert phases["confirmation"]["steps"] == 10 * STEPS
    assert sum(phase["steps"] for phase in found["phases"]) <= found["budget"] == 30_000
    assert found["verdict"] in (out / "configs" / "env" / "tuned.yaml").read_text()
    assert (out / "report" / "index.html").exists()
    for more in ((), planted):  # it holds a search of other arguments, and one that finished
        with pytest.raises(ConfigError, match="out="):
            search(*more)
    for num_phases, verdict in ((4, found["verdict"]), (1, "not confirmed")):
        shutil.rmtree(out / "report")  # interrupted after so many phases
        cut = {**found, "phases": found["phases"][:num_phases], "verdict": verdict}
        (out / "tuning.json").write_text(json.dumps(cut))
        again = search(*planted)
        for phase in (*found["phases"], *again["phases"]):
            phase["seconds"] = 0
        assert again == found
        assert (out / "report" / "index.html").exists()
    assert trainings.num == 4


def test_a_search_that_finds_nothing_better_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {0: [0.9, 0.8, 0.7, 0.6, 0.5], 1: [0.95, 0.8, 0.7, 0.6, 0.5]}
    monkeypatch.setattr(tuning, "_train", lambda jobs: (None, []))
    monkeypatch.setattr(tuning, "_scores", lambda _, job: scores[job])
    record = tuning.Record([], 1, {"confirmation": 1}, {}, hyperparameters={"actor_lr": 0.1})
    tuning._confirm(compose("ff_ppo", SMALL), 5, tmp_path, record)
    assert record.verdict.startswith("NOT better")
    assert record.tuned is not None
    assert record.tuned["scores"] == scores[1]
