"""What environments tell besides the reward: added up over episodes, and used to choose."""

import dataclasses
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import alone, build, small_config
from gymnax.environments import environment, spaces

import jaxppo
from jaxppo.algorithms.acting import collect
from jaxppo.algorithms.evaluation import evaluate
from jaxppo.analysis import runs
from jaxppo.analysis.comparison import compare
from jaxppo.deploy import evaluation
from jaxppo.types import Box, Discrete

LIMIT = 5
KINDS = {
    **{"score": "last", "gain": "sum", "inner.speed": "mean", "inner.high": "max"},
    **{"rare": "last", "odd": "mean"},
}
METRICS = [name if kind == "last" else f"{name}:{kind}" for name, kind in KINDS.items()]


def tells(time: Any, action: Any, xp: Any = jnp) -> dict[str, Any]:
    """What the step with number `time`, from 1, tells."""
    return {
        "score": action * time - 2,
        "gain": action == 1,
        "inner": {"speed": time * action, "high": 7 * time * (action + 1) % 5 - 8.0},
        "rare": xp.where(time == 3, 10.0 + action, xp.nan),
        "odd": xp.where(time % 2 == 1, 1.0 * time, xp.nan),
        "board": xp.zeros((2, 2)),
    }


class Own:
    """Observation [t]; action 1 terminates at even steps, the fifth step truncates."""

    observation_space = Box((1,), "float32", 0.0, 10.0)
    action_space = Discrete(2)
    time_limit = LIMIT

    def reset(self, key: jax.Array) -> Any:
        return jnp.int32(0), jnp.zeros(1)

    def step(self, key: jax.Array, state: jax.Array, action: jax.Array) -> Any:
        time = state + 1
        terminated = (action == 1) & (time % 2 == 0)
        obs = time.astype(jnp.float32)[None]
        return time, obs, jnp.float32(1), terminated, jnp.array(False), tells(time, action)


class Gymnax(environment.Environment[Any, Any]):
    """The same with gymnax's interface."""

    @property
    def default_params(self) -> environment.EnvParams:
        return environment.EnvParams(max_steps_in_episode=LIMIT)

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        return jnp.zeros(1), environment.EnvState(time=jnp.int32(0))

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        time, obs, *rest, _, told = Own().step(key, state.time, action)
        return obs, environment.EnvState(time=time), *rest, told

    def action_space(self, params: Any = None) -> Any:
        return spaces.Discrete(2)

    def observation_space(self, params: Any) -> Any:
        return spaces.Box(0.0, 10.0, (1,))


def in_episode(actions: Sequence[int]) -> dict[str, float]:
    """What the steps of an episode add up to, in float64; NaN if none told a number."""
    steps = [tells(time, action, np) for time, action in enumerate(actions, 1)]
    found = {}
    for name, kind in KINDS.items():
        outer, _, inner = name.partition(".")
        values = [float(step[outer][inner] if inner else step[outer]) for step in steps]
        values = [x for x in values if not np.isnan(x)]
        how = {"last": lambda x: x[-1], "sum": sum, "mean": np.mean, "max": max}[kind]
        found[name] = how(values) if values else np.nan
    return found


@pytest.mark.parametrize("target", [pytest.param("Own", marks=pytest.mark.long), "Gymnax"])
def test_numbers_add_up_over_episodes_that_cross_rollouts(target: str) -> None:
    """Rollouts of three steps; episodes of two to five, that terminate or are truncated."""
    env = {"target": f"test_env_metrics.{target}", "metrics": METRICS}
    built, state, _ = build(small_config(env=env, system__rollout_length=3))
    system, state = alone(built, state)
    step, acting, agent = jax.jit(partial(collect, system)), state.acting, state.agent
    running: list[list[int]] = [[] for _ in range(system.num_envs)]
    ends, missing = {True: 0, False: 0}, 0
    for _ in range(16):
        acting, rollout = step(agent, acting)
        over: list[dict[str, float]] = []
        steps = jax.tree.map(np.asarray, rollout.steps)
        for time, env_number in np.ndindex(3, system.num_envs):
            running[env_number].append(int(steps.action[time, env_number]))
            terminated = bool(steps.terminated[time, env_number])
            if terminated or steps.truncated[time, env_number]:
                ends[terminated] += 1
                over.append(in_episode(running[env_number]))
                running[env_number] = []
        assert int(rollout.ended.count) == len(over)
        for name in KINDS:
            told = [each[name] for each in over if not np.isnan(each[name])]
            missing += len(over) - len(told)
            assert float(rollout.ended.told[name]) == len(told)
            np.testing.assert_allclose(rollout.ended.metrics[name], sum(told), 1e-6, 1e-6)
    assert min(*ends.values(), missing) > 5


@pytest.fixture(scope="module")
def judged() -> Any:
    """A run of two seeds that `score` judges."""
    return train(*TOLD, "arch.eval_metric=score", "arch.num_seeds=2")


SMALL = [
    *("arch.total_num_envs=8", "system.rollout_length=3", "system.num_minibatches=2"),
    *("arch.num_updates=6", "arch.num_evaluation=3", "arch.num_eval_episodes=8"),
    *("system.epochs=2", "arch.compiler=quick", "arch.evaluation_greedy=false"),
]
TOLD = ["env.target=test_env_metrics.Own", f"env.metrics=[{','.join(METRICS)}]"]


def train(*settings: str, **given: Any) -> Any:
    return jaxppo.train([*SMALL, *settings], progress=False, **given)


@pytest.mark.long
def test_episodes_that_are_played_have_the_numbers_of_their_steps(judged: Any) -> None:
    """Of recorded episodes, and of the evaluation that plays the same."""
    policy = judged.policy
    evaluated = policy.evaluate(12)
    for i, episode in enumerate(policy.play(episodes=12)):
        wanted = in_episode([int(x) for x in episode.actions])
        for name in KINDS:
            np.testing.assert_allclose(episode.metrics[name], wanted[name], 1e-6)
            assert episode.metrics[name] == evaluated.metrics[name][i] or np.isnan(wanted[name])
        told = [tells(t, int(a), np)["rare"] for t, a in enumerate(episode.actions, 1)]
        np.testing.assert_array_equal(episode.told["rare"], told)


def test_what_is_cut_off_counts_so_far() -> None:
    env = {"target": "test_env_metrics.Own", "metrics": METRICS}
    settings = small_config(env=env, arch__max_eval_steps=2, arch__evaluation_greedy=False)
    built, state, _ = build(settings)
    system, state = alone(built, state)
    keys = jax.random.split(jax.random.key(3), 16)
    found = jax.jit(partial(evaluate, system))(state.agent.policy, keys)
    assert not found.finished.all()
    assert np.isnan(found.metrics["rare"]).all()
    np.testing.assert_array_equal(found.metrics["odd"], 1.0)
    assert set(np.asarray(found.metrics["gain"]).tolist()) == {0.0, 1.0, 2.0}


@pytest.mark.long
def test_members_have_the_numbers_of_runs_alone(judged: Any) -> None:
    for row, seed in enumerate(judged.seeds):
        one = train(*TOLD, "arch.eval_metric=score", f"arch.seed={seed}")
        for mine, theirs in ((one.evaluations, judged.evaluations), (one.metrics, judged.metrics)):
            for name in KINDS:
                np.testing.assert_array_equal(mine[f"env/{name}"], theirs[f"env/{name}"][row])
        assert one.absolute_metric == judged.absolute_metrics[seed]


@pytest.mark.long
def test_events_of_members_have_scores_and_returns(judged: Any) -> None:
    scores = judged.evaluations["env/score"]
    events = [event for event in judged.events[""] if event["event"] == "eval"]
    np.testing.assert_array_equal(np.transpose([e["member_scores"] for e in events]), scores)
    returns = np.transpose([e["member_returns"] for e in events])
    np.testing.assert_array_equal(returns, judged.evaluations["episode_return"])
    trained = scores[:, 1:].max(1)  # the untrained policy is never the best
    assert judged.policy.config.arch.seed == judged.seeds[int(np.argmax(trained))]


class Torn(Own):
    """One step, whose reward is the action, and whose success is the other one."""

    time_limit = 1

    def step(self, key: jax.Array, state: jax.Array, action: jax.Array) -> Any:
        time, obs = state + 1, jnp.zeros(1)
        told = {"success": 1 - action}
        return time, obs, jnp.float32(action), jnp.array(True), jnp.array(False), told


LEARNS = [
    *("env.target=test_env_metrics.Torn", "env.metrics=[success]", "system.actor_lr=0.002"),
    *("arch.total_num_envs=32", "arch.num_updates=12", "arch.num_eval_episodes=256"),
]
FIRST, LAST = 4 * 96, 12 * 96  # steps of the first evaluation and of the last


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Runs that the return judges, and the success; the second has files."""
    sinks = ("logger.marl_eval=true", "logger.tensorboard=true")
    folder = tmp_path_factory.mktemp("torn") / "run"
    return {
        "return": train(*LEARNS),
        "success": train(*LEARNS, "arch.eval_metric=success", *sinks, run_dir=folder),
    }


@pytest.mark.long
def test_another_policy_is_the_best_by_another_number(torn: Any) -> None:
    """The better the return, the worse the success: the first evaluation is best by success."""
    assert {name: run.policy.steps for name, run in torn.items()} == {
        "return": LAST,
        "success": FIRST,
    }
    for name, run in torn.items():
        (absolute,) = (event for event in run.events[""] if event["event"] == "absolute")
        success = absolute["env/success"]
        np.testing.assert_allclose(absolute["episode_return"], 1 - success, 1e-6)
        assert run.absolute_metric == (success if name == "success" else 1 - success)
    assert torn["return"].absolute_metric > 0.7
    assert 0.1 < torn["success"].absolute_metric < 0.7


@pytest.mark.long
def test_a_whole_run_chooses_the_same_policy(torn: Any) -> None:
    run = jaxppo.make_train([*SMALL, *LEARNS, "arch.eval_metric=success"])
    output = run(jax.random.key(42))
    assert run.trained(output).steps == FIRST
    other = torn["success"]
    np.testing.assert_allclose(output.absolute_metric, other.absolute_metric, 0.02)
    told, evaluated = (x["env/success"] for x in (output.metrics, other.evaluations))
    np.testing.assert_allclose(output.evaluations.metrics["success"].mean(1), evaluated, atol=0.02)
    np.testing.assert_allclose(told, 1 - output.metrics["episode_return"], 1e-5)


@pytest.mark.long
def test_members_are_selected_by_it() -> None:
    """Of a member that hardly learns and one that learns fast, halving keeps the first."""
    population = [
        *("population=halving", "population.size=2", "population.reduction=2"),
        "population.hyperparameters={actor_lr:[1e-6,1e-1]}",
        "population.start=[{actor_lr:1e-6},{actor_lr:3e-2}]",
    ]
    result = train(*LEARNS, *population, "arch.eval_metric=success")
    assert result.policy.config.arch.seed == 42
    assert list(result.absolute_metrics) == [42]


@pytest.mark.long
def test_being_told_changes_nothing_of_what_is_learnt(torn: Any) -> None:
    one, other = torn["return"], train(LEARNS[0], *LEARNS[2:])
    pairs = (x.policy.policy.params for x in (one, other))
    jax.tree.map(np.testing.assert_array_equal, *pairs)
    assert "env/success" in one.evaluations
    assert "env/success" not in other.evaluations


@pytest.mark.long
def test_files_and_sinks_have_it(torn: Any) -> None:
    result = torn["success"]
    folder = result.run_dir
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["eval_metric"] == "success"
    assert summary["absolute_metric"] == result.absolute_metric
    assert summary["best_score"] == result.evaluations["env/success"][1:].max()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all("env/success" in line for line in lines)
    (found,) = json.loads((folder / "marl_eval.json").read_text())["test_env_metrics"].values()
    rows = next(iter(found.values()))["seed_42"]
    assert rows["absolute_metrics"]["mean_success"] == [result.absolute_metric]
    (events,) = (folder / "tensorboard").iterdir()
    assert b"eval/env/success" in events.read_bytes()


@pytest.mark.long
def test_a_command_has_it(torn: Any, tmp_path: Path, capsys: Any) -> None:
    folder, file = torn["success"].run_dir, tmp_path / "episodes.npz"
    trust = ["test_env_metrics"]
    evaluation.evaluate(
        evaluation.Evaluation(run=str(folder), episodes=16, record=str(file), trust=trust)
    )
    recorded = np.load(file)
    np.testing.assert_array_equal(recorded["metrics/success"], 1 - recorded["returns"])
    np.testing.assert_array_equal(recorded["told/success"], 1 - recorded["rewards"])
    assert f"success {recorded['metrics/success'].mean():.4g}" in capsys.readouterr().out


@pytest.mark.long
def test_runs_that_other_numbers_judge_are_other_tasks(torn: Any) -> None:
    (run,), _ = runs.find([str(torn["success"].run_dir)])
    other = dataclasses.replace(run, env={**run.env})
    del other.env["eval_metric"]
    assert run.score == torn["success"].absolute_metric
    assert list(run.evaluations.values()) == torn["success"].evaluations["env/success"].tolist()
    assert len(compare([run, other], {}).tasks) == 2
