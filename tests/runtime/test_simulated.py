"""Training with simulators: numbers of the same environment in JAX, actors, faults, resuming."""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import on_devices
from gymnasium import spaces
from simulators import Calendar, Failing, Known, KnownWorlds, Nested

import jaxppo
from jaxppo import envs
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.deploy import export
from jaxppo.envs import contract
from jaxppo.envs.actor_settings import env_config
from jaxppo.extras.films import with_frames
from jaxppo.runtime.run.jobs import TrainingError, prepare
from jaxppo.runtime.run.loop import run
from jaxppo.runtime.simulated import actors, remote
from jaxppo.runtime.simulated.actors import Actor, Threads
from jaxppo.runtime.simulated.evaluation import _EpisodeQueue, episode_seeds
from jaxppo.runtime.simulated.resident import Resident
from jaxppo.runtime.simulated.training import RaceWarning, Training, env_seeds
from jaxppo.simulators.faults import RestartWarning, SimulatorError

SMALL = [
    *("arch.total_num_envs=4", "system.rollout_length=8", "system.num_minibatches=2"),
    *("arch.num_updates=6", "arch.num_evaluation=2", "arch.num_eval_episodes=6"),
    *("arch.max_eval_steps=20", "system.epochs=2", "arch.compiler=quick"),
    *("system.normalize_observations=false", "system.obs_norm_share=1"),
]
KNOWN, TWIN = "env.target=simulators.Known", "env.target=simulators.Twin"
LOCKSTEP = "arch.actors=1", "arch.max_policy_lag=0"
WORLDS = "env.batch=true", "env.target=simulators.KnownWorlds"
SAME_STEP = (
    "+env.kwargs.vectorization_mode=sync",
    "+env.kwargs.vector_kwargs={autoreset_mode: SameStep}",
)
METRICS = "env.metrics=[late.time:mean,late.odd:sum,action:max]"


def policy_gradient(agent: Any, steps: Any, distribution: Any, log_prob: jax.Array) -> jax.Array:
    """As `system.objective=test_simulated.policy_gradient`."""
    return -log_prob * steps.advantage


def train(*settings: str, **given: Any) -> Any:
    return jaxppo.train([*SMALL, *settings], progress=False, **given)


def same(one: Any, other: Any, *, rtol: float = 0, atol: float = 0) -> None:
    for x, y in zip(
        jax.tree.leaves(one.policy.policy), jax.tree.leaves(other.policy.policy), strict=True
    ):
        np.testing.assert_allclose(*map(np.asarray, map(jaxppo_data, (x, y))), rtol, atol)
    told = [name for name in one.evaluations if name.startswith("env/")]
    for name in ("episode_return", "episode_length", "unfinished", *told):
        np.testing.assert_array_equal(one.evaluations[name], other.evaluations[name])
    for name in told:
        np.testing.assert_array_equal(one.metrics[name], other.metrics[name])
    assert one.absolute_metric == other.absolute_metric


def jaxppo_data(x: Any) -> Any:
    return jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x


@pytest.fixture(scope="module")
def calendar() -> Any:
    """A run in `Calendar`."""
    return train("env.target=simulators.Calendar", "arch.num_updates=2", "arch.num_evaluation=1")


RECURRENT = [
    *("network=gru", "system.sequence_length=4", "arch.update_batch_size=2"),
    *("system.normalize_observations=true", "system.normalize_rewards=true"),
    *("system.obs_norm_warmup_steps=64", "arch.evaluation_greedy=false", "system.gae_lambda=0.9"),
    METRICS,
]


@pytest.fixture(scope="module")
def known() -> Any:
    """A run in `Known`, with which others are compared."""
    return train(KNOWN, METRICS)


@pytest.fixture(scope="module")
def twin() -> Any:
    """A run in the same environment in JAX."""
    return train(TWIN, METRICS)


def test_a_simulator_gives_the_numbers_of_the_same_environment_in_jax(
    known: Any, twin: Any
) -> None:
    """It has no random numbers of its own; ends, successors and keys must be those of JAX."""
    same(twin, known)
    both = (run.policy.play(episodes=8) for run in (twin, known))
    for one, other in zip(*both, strict=True):
        assert len(one.rewards) == 5
        jax.tree.map(np.testing.assert_array_equal, vars(one), vars(other))


@pytest.mark.long
def test_memories_and_statistics_have_the_numbers_of_jax_with_actors_too() -> None:
    """An actor goes on with the episodes and memories of the warm-up, which ends within them."""
    rounds = jax.__version_info__ >= (0, 12)  # other fused operations
    known = train(KNOWN, *RECURRENT)
    same(train(TWIN, *RECURRENT), known, rtol=1e-4 if rounds else 0)
    actor = ("arch.actors=1", "arch.max_policy_lag=0", "env.processes=2")
    same(known, train(KNOWN, *RECURRENT, *actor))


@pytest.mark.long
@pytest.mark.parametrize("command", ["ff_pqn", "ff_reppo"])
def test_other_algorithms_have_the_returns_of_jax(command: str) -> None:
    two = "arch.num_seeds=2"
    one, other = (train(target, two, command=command) for target in (TWIN, KNOWN))
    returns = (each.evaluations["episode_return"] for each in (one, other))
    np.testing.assert_array_equal(*returns)


@pytest.mark.long
def test_processes_change_nothing(known: Any) -> None:
    same(known, train(KNOWN, METRICS, "env.processes=2"))


@pytest.mark.parametrize(
    "settings",
    [
        (),
        pytest.param(
            ("+env.kwargs.kind=jax", "env.processes=2", *LOCKSTEP), marks=pytest.mark.long
        ),
    ],
)
def test_a_batch_simulator_gives_the_numbers_of_single_ones(
    known: Any, settings: tuple[str, ...]
) -> None:
    same(known, train(*WORLDS, METRICS, *settings))


OF_AGENTS = (
    *("arch.total_num_envs=6", "system.normalize_observations=true", "arch.num_eval_episodes=5"),
    "system.normalize_rewards=true",
)
PARALLEL = (
    "env.target=jaxppo.simulators.pettingzoo.Parallel",
    "+env.kwargs.make=worlds.StillParallel",
)


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        ("env.target=worlds.StillWorlds", "env.extras=[agent]"),
        (*PARALLEL, *LOCKSTEP, "network=gru", "system.sequence_length=4"),
    ],
)
def test_worlds_with_agents_have_the_numbers_of_jax(settings: tuple[str, ...]) -> None:
    """Agents that end before their world pad, and are counted by world in evaluations."""
    same_too = [x for x in settings if x.startswith(("network", "system", "env.extras"))]
    twin = train("env.target=worlds.Still", *OF_AGENTS, *same_too)
    there = train("env.batch=true", *settings, *OF_AGENTS)
    assert (twin.evaluations["env/team_return"] > twin.evaluations["episode_return"]).all()
    same(twin, there, atol=1e-12)  # variances of what is constant


IN_PLACE = "+env.kwargs={kind: tensor, in_place: true}"


@pytest.mark.parametrize("settings", [(), pytest.param(("arch.actors=2",), marks=pytest.mark.long)])
def test_observations_stay_where_the_simulator_puts_them(
    settings: tuple[str, ...], known: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They never come to the host, although the simulator overwrites them in each step."""
    kept = []
    call = Resident.__call__
    monkeypatch.setattr(Resident, "__call__", lambda *given: kept.append(1) or call(*given))
    there = train(*WORLDS, METRICS, IN_PLACE, *settings)
    assert kept
    same(known if not settings else train(KNOWN, METRICS, *settings), there)


SHOWN: dict[str, Any] = {
    "hidden and stacked": {"mask": [1], "frame_stack": 3},
    "extended": {"extras": ["last_action", "last_reward", "step"], "frame_stack": 2},
}


@pytest.mark.parametrize("target", ["Known", "KnownWorlds"])
@pytest.mark.parametrize("shown", SHOWN)
def test_observations_are_shown_as_those_of_the_same_environment_in_jax(
    target: str, shown: str
) -> None:
    """Also where an evaluation steps some environments alone, which start nothing."""
    given = {"name": None, **SHOWN[shown]}
    if target == "Known" and "extras" in given:  # it does not tell its time limit
        given["extras"] = given["extras"][:2]
    twin = envs.make(EnvConfig(target="simulators.Twin", **given))
    batch = target == "KnownWorlds"
    env: Any = envs.make(EnvConfig(target=f"simulators.{target}", batch=batch, **given))
    assert env.observation_space == twin.observation_space
    draw, step = np.random.default_rng(0), jax.jit(twin.step)
    keys = jax.random.split(jax.random.key(0), 3)

    def same_leaves(tree: Any, arrays: Any, rows: Any = slice(None)) -> None:
        for x, y in zip(jax.tree.leaves(tree), arrays, strict=True):
            np.testing.assert_array_equal(np.asarray(x)[rows], y[rows])

    with contextlib.closing(env.make(3)) as found:
        state, obs = twin.reset(keys)
        found.reset(range(3), range(3))
        same_leaves(obs, found.arrays.obs)
        for number in range(50):
            alone = None if number < 30 else np.array([True, False, False])
            action = draw.integers(0, 2, 3).astype(np.int32)
            found.step([action], alone)
            state, taken = step(keys, state, action)
            rows = slice(None) if alone is None else alone
            same_leaves(taken.final_observation, found.arrays.final, rows)
            same_leaves(
                taken.obs if alone is None else taken.final_observation, found.arrays.obs, rows
            )
            if alone is not None and (taken.terminated | taken.truncated)[0]:
                return
    raise AssertionError("no episode ended")


@pytest.mark.long
def test_a_run_with_shown_observations_has_the_numbers_of_jax() -> None:
    """In training, evaluation and recordings."""
    settings = ["env.extras=[last_action,last_reward]", "network/input_layer=concatenate"]
    twin, worlds = (train(*of, *settings) for of in ((TWIN,), WORLDS))
    same(twin, worlds)
    both = (one.policy.play(episodes=8) for one in (twin, worlds))
    for one, other in zip(*both, strict=True):
        jax.tree.map(np.testing.assert_array_equal, vars(one), vars(other))


def test_episodes_of_a_wave_start_together() -> None:
    """Of two environments, which play five episodes of these lengths, the last of them cut."""
    queue = _EpisodeQueue(1, 2, 5, {}, in_waves=True)
    lengths, waves = np.array([[3, 1, 2, 2, 9]]), []
    while queue.playing.any():
        if queue.begins.any():
            waves.append(queue.numbers.tolist())
        ended = queue.of_episodes(lengths) == queue.steps + 1
        queue.count(np.ones(2), ended, np.zeros(2, int), {}, 4)
    assert waves == [[0, 1], [2, 3], [4]]
    assert queue.lengths.tolist() == queue.returns.tolist() == [[3, 1, 2, 2, 4]]
    assert queue.finished.tolist() == [[True, True, True, True, False]]


@pytest.mark.long
def test_a_profile_prints_phases_and_leaves_the_run_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    returns = []
    for more in ([], [f"arch.profile={tmp_path / 'trace'}"]):
        config = jaxppo.compose(
            "ff_ppo", [*SMALL, KNOWN, "arch.actors=2", "logger.plot=false", *more]
        )
        folder = tmp_path / str(len(returns))
        folder.mkdir()
        run(config, folder)
        returns.append([event["episode_return"] for event in events_of(folder, "eval")])
    assert returns[0] == returns[1]
    table = capsys.readouterr().out
    for phase in ("act", "environment", "learn", "actors wait", "learner waits"):
        assert re.search(rf"^  {phase} .* ms .*%$", table, re.MULTILINE)


@pytest.mark.long
def test_actors_are_reproducible_and_the_lag_is_logged(tmp_path: Path) -> None:
    lagging = (KNOWN, "arch.actors=2", "arch.max_policy_lag=2", "logger.every=1")
    first = train(*lagging, run_dir=tmp_path / "first")
    same(first, train(*lagging, "logger.details=true", run_dir=tmp_path / "again"))
    for event in events_of(tmp_path / "again", "train"):
        assert event["policy_lag_min"] <= event["policy_lag"]
        for who in ("actor", "learner"):
            assert 0 <= event[f"{who}_wait_min"] <= event[f"{who}_wait_max"] < 60
    events = events_of(tmp_path / "first", "train")
    # A rollout begins with the policy of at most two updates before, and never waits for one
    assert [event["policy_lag_max"] for event in events] == [0, 1, 2, 2, 2, 2]
    assert [event["policy_lag"] for event in events] == [0, 1, 2, 2, 2, 2]
    for event in events:
        shares = [value for name, value in event.items() if name.endswith("_share")]
        assert len(shares) == 5
        assert all(0 <= share <= 1.01 for share in shares)


ELSEWHERE = """
import sys
import jax
import numpy as np
import jaxppo
from jaxppo.runtime.hosts import devices

asked = []
devices.host_cpu = lambda: asked.append(1) or jax.devices()[1]
here, there = (
    jaxppo.train([*sys.argv[1:], f"arch.act_on={place}"], progress=False)
    for place in ("device", "cpu")
)
assert asked and here.policy.num_devices == 2
params = (run.policy.policy.params for run in (here, there))
for one, other in zip(*map(jax.tree.leaves, params)):
    np.testing.assert_array_equal(one, other)
"""


@pytest.mark.long
def test_actions_may_be_computed_on_another_device() -> None:
    """One device acts for both parts `D` of the learner."""
    settings = (KNOWN, *RECURRENT, "arch.actors=2", "arch.total_num_envs=8")
    on_devices(2, ELSEWHERE, *SMALL, *settings)


class Uneven(Known):
    """The first two are slower than the others."""

    made = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.02 if next(Uneven.made) < 2 else 0.0

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        return super().step(action)


@pytest.mark.long
def test_whoever_is_first_fills_the_batch(tmp_path: Path) -> None:
    """Each rollout continues its own actor's episodes, also after one that was too old."""
    Uneven.made = itertools.count()
    settings = ["arch.actors=3", "arch.actors_wait=first", "arch.actors_per_update=2"]
    settings += ["arch.max_policy_lag=1", "arch.num_updates=40", "logger.every=1"]
    with pytest.warns(RaceWarning):
        train(*settings, env=lambda: Uneven(), run_dir=tmp_path / "run", command="rec_ppo")
    events = events_of(tmp_path / "run", "train")
    assert len(events) == 40
    assert all(event["policy_lag_max"] <= 1 for event in events)
    assert sum(event["discarded_rollouts"] for event in events) > 0
    lengths = [event["episode_length"] for event in events if event["episodes"]]
    assert len(lengths) > 30
    assert all(5 <= length <= 7 for length in lengths)


@pytest.mark.long
def test_selected_members_learn_from_none_but_themselves(tmp_path: Path) -> None:
    """They collect anew: with one step an update, the first rollout has a ratio of 1.

    So a run that goes on from there is the one that was not stopped.
    """
    settings = [KNOWN, "arch.actors=2", "arch.max_policy_lag=1", "logger.every=1"]
    settings += ["population.size=4", "population.selection=pbt", "system.epochs=1"]
    settings += ["population.hyperparameters={actor_lr:[0.02,0.2]}", "system.num_minibatches=1"]
    whole = train(*settings, run_dir=tmp_path / "whole")
    events = events_of(tmp_path / "whole" / "seed_42", "train")
    changed = [event["ratio_max"] > 1 + 1e-5 for event in events]
    assert changed == [False, True, True] * 2
    train(*settings, run_dir=tmp_path / "half", on_block=lambda _: True)
    resumed = jaxppo.train(["trust=[simulators]"], resume=tmp_path / "half", progress=False)
    same(whole, resumed)


@pytest.mark.parametrize("command", ["ff_ppo", "ff_pqn", "ff_reppo"])
def test_values_of_older_policies_are_not_kept(command: str) -> None:
    """Targets need those of the parameters that learn, in the value normalisation of now."""
    network = "network=mlp_shared" if command == "ff_ppo" else "network=mlp"
    for lag in (0, 1):
        settings = [*SMALL, KNOWN, network, "arch.actors=1", f"arch.max_policy_lag={lag}"]
        algorithm: Any = prepare(jaxppo.compose(command, settings))[1].algorithm
        assert algorithm.keeps_values == (lag == 0)


def events_of(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_wrappers_are_applied_from_the_inside() -> None:
    clip = {"_target_": "gymnasium.wrappers.TimeLimit", "max_episode_steps": 3}
    wrappers = [clip, "simulators.Same"]
    env: Any = envs.build(EnvConfig(target="simulators.Known", wrappers=wrappers))
    with contextlib.closing(env.make(1)) as found:
        found.reset([0], [0])
        for step in range(1, 7):
            found.step([np.zeros(1, int)])
            assert found.arrays.truncated.tolist() == [step % 3 == 0]


def test_what_makes_no_environments_for_a_run_is_refused() -> None:
    one, lock = Known(), threading.Lock()
    for env, settings, words in (
        (one, (), "env: is one environment, and a run needs several"),
        (KnownWorlds(4), ("env.batch=true",), "^env: KnownWorlds is one object"),
        (lambda: one, (), "returns the same environment again; it must make a new"),
        (lambda: 3, (), "int: is no Gymnasium environment"),
        (lambda: (lock, Known())[1], ("env.processes=2",), "cannot be sent to another process"),
    ):
        with pytest.raises((ConfigError, TrainingError), match=words):
            train(*settings, env=env)


@pytest.mark.long
def test_nested_spaces_masks_and_images_with_a_users_objective() -> None:
    """It is checked on a rollout of zeros, since the environment cannot be stepped by a program."""
    objective = "system.objective=test_simulated.policy_gradient"
    result = train("env.target=simulators.Nested", "arch.num_updates=3", objective)
    assert result.absolute_metric == 4.0
    assert result.policy.evaluate(5).returns.tolist() == [4.0] * 5
    assert result.policy.act(Nested().reset()[0])[0] in (2, 6)


def test_a_policy_has_the_numbers_of_the_environment(calendar: Any) -> None:
    """Played by hand, its episodes are those that it plays itself; a film repeats them."""
    policy, env = calendar.policy, Calendar()
    (played,) = policy.play(episodes=1)
    (seed,) = episode_seeds(policy.episode_keys(np.array([0])))
    seen, rewards = env.reset(seed=int(seed))[0], []
    for step in range(5):
        action = jax.tree.map(np.asarray, policy.act(seen)[0])
        under_jit = jax.jit(lambda x: policy.act(x)[0])(seen)
        now = jax.tree.map(lambda x, i=step: x[i], (played.observations, played.actions))
        for one in (action, under_jit):
            jax.tree.map(np.testing.assert_array_equal, (seen, one), now)
        np.testing.assert_allclose(policy.describe(seen).values, played.values[step], rtol=1e-5)
        assert env.action_space.contains(jax.tree.map(lambda x: x.astype(np.int64), action))
        seen, reward, *_ = env.step(action)
        rewards.append(reward)
    np.testing.assert_array_equal(played.rewards, rewards)
    jax.tree.map(np.testing.assert_array_equal, played.final_observation, seen)
    raw = played.actions[0] + 3, played.actions[1] - np.array([1, 100])
    jax.tree.map(np.testing.assert_array_equal, played.raw_actions, raw)


def test_an_exported_policy_has_the_numbers_of_the_environment(calendar: Any) -> None:
    policy = calendar.policy
    inputs = {"observation": export.signature(policy)["observation"]}
    content, outputs = export.export_acting(policy, inputs, ["cpu"])
    seen = jax.tree.map(lambda *x: np.stack(x), *(Calendar().reset(seed=i)[0] for i in range(8)))
    seen = jax.tree.map(lambda x: x.astype(np.int32), seen)
    found = jax.export.deserialize(bytearray(content)).call(seen)
    jax.tree.map(np.testing.assert_array_equal, found, policy.act(seen)[0])
    ends = {row["name"]: (row["low"], row["high"]) for row in export._rows(policy, inputs)}
    assert ends == {"observation['day']": (1, 7), "observation['pair']": ([5, -1], [7, 0])}
    ends = {row["low"] for row in export._rows(policy, {"action": outputs["action"]})[:1]}
    assert ends == {-3}


def test_an_integer_outside_of_its_space_is_refused(calendar: Any) -> None:
    for wrong, words in (
        ({"day": 99}, "day'.*99"),
        ({"day": np.int64(2**40)}, "day'.*1099511627776"),
        ({"pair": np.array([5, -2])}, "pair'.*-2"),
    ):
        with pytest.raises(ConfigError, match=words):
            calendar.policy.act({"day": 1, "pair": np.array([5, 0]), **wrong})


def test_films_repeat_the_recorded_episode(known: Any) -> None:
    policy = known.policy
    (played,) = policy.play(episodes=1)
    frames = with_frames(policy, 0, played, 500).states
    assert [frames[step].max() for step in range(played.length + 1)] == list(range(0, 101, 20))


@pytest.mark.parametrize(
    "target, wrong",
    [
        ("Nested", {}),
        ("Failing", {"runs": "environment 0 at its step 3: returns an observation that is not"}),
        ("KnownWorlds", {}),
        ("Outside", {"values": "observation goes from 0 to 6, outside of Box"}),
        ("Unseeded", {"determinism": "two plays from one seed differ", "gymnasium": "Assertion"}),
    ],
)
def test_an_environment_is_checked(target: str, wrong: dict[str, str], tmp_path: Path) -> None:
    """By playing it, and by Gymnasium's own checker if every action is legal."""
    failing = {"how": "nan", "where": str(tmp_path / "failed")} if target == "Failing" else {}
    given: Any = {"kwargs": failing, "batch": target == "KnownWorlds", "on_error": "restart"}
    config = EnvConfig(target=f"simulators.{target}", **given)
    assert contract.glance(config) == []  # a run checks every step
    checks = contract.check(config, 12)
    said = {each.name: each.findings + each.hints for each in checks}
    assert {name: lines for name, lines in said.items() if lines}.keys() == wrong.keys(), said
    for name, words in wrong.items():
        assert words in said[name][0]
    assert ("gymnasium" in said) == (target not in ("Nested", "Failing", "KnownWorlds"))


def test_the_fault_of_one_of_several_actors_names_it() -> None:
    class Fails:
        def collect(self, *_: Any, **__: Any) -> Any:
            raise SimulatorError("environment 3 at its step 1: raises ValueError")

    threads = Threads([Fails(), Fails()], 0)  # type: ignore[list-item]
    threads.start()
    threads.publish(0, None)
    with pytest.raises(SimulatorError, match=r"^actor 0: environment 3 at"):
        list(threads.get())
    threads.close()


def test_each_rollout_has_the_policy_of_its_lag_and_actors_come_in_order() -> None:
    class Echoes:
        def __init__(self, number: int) -> None:
            self.number = number

        def collect(self, policy: Any, version: int, **_: Any) -> Any:
            return self.number, policy, version

    threads = Threads([Echoes(0), Echoes(1)], 1)  # type: ignore[list-item]
    for version in range(3):
        threads.publish(version, f"policy {version}")
    threads._policies[0] = "policy 0"  # which is no longer needed then
    assert [threads._choose(rollout) for rollout in range(5)] == [0, 0, 1, 2, None]
    threads.start()
    found = [list(threads.get()) for _ in range(3)]
    assert found == [[(i, (i, f"policy {v}", v)) for i in range(2)] for v in (0, 0, 1)]
    threads.close()


def test_environments_have_seeds_of_their_own_in_each_agent_and_after_each_resume() -> None:
    every = [env_seeds(seed, update, 50) for seed in (1, 2) for update in (0, 3)]
    assert len(np.unique(every)) == 4 * 50


def test_actors_that_hang_do_not_keep_a_run_from_ending(monkeypatch: Any) -> None:
    class Hangs(Actor):
        def __init__(self) -> None:
            self.stopping, self.ended = False, threading.Event()

        def collect(self, *_: Any, **__: Any) -> Any:
            self.ended.wait()
            raise SimulatorError("ended")

        def abandon(self) -> None:
            self.ended.set()

    monkeypatch.setattr(actors, "CLOSING_SECONDS", 0.2)
    threads = Threads([Hangs()], 0)
    threads.start()
    threads.publish(0, None)
    threads.close()
    assert not threads._threads[0].is_alive()


@pytest.mark.long
def test_a_fault_in_the_first_reset_names_the_actor_too() -> None:
    made: list[int] = []

    class Late(Known):
        def __init__(self) -> None:
            super().__init__()
            made.append(1)
            self.number = len(made)

        def reset(self, **given: Any) -> Any:
            if self.number == len(made) > 4:  # the last of the second actor
                raise ValueError("stuck")
            return super().reset(**given)

    with pytest.raises(TrainingError, match="actor 1: environment 1 at its step 0: reset raises"):
        train("arch.actors=2", "arch.evaluate_first=false", env=lambda: Late())


@pytest.mark.long
@pytest.mark.parametrize(
    "actors, target, named",
    [(1, "Failing", "environment 0 at its"), (0, "FailingWorlds", "environments 0 to 3 at their")],
)
def test_a_fault_ends_the_run_with_a_result_and_a_checkpoint(
    actors: int, target: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kwargs = f"+env.kwargs={{how:raises,where:{tmp_path / 'failed'}}}"
    settings = [f"env.target=simulators.{target}", kwargs, "arch.evaluate_first=false"]
    settings += [f"arch.actors={actors}", f"env.batch={target == 'FailingWorlds'}"]
    words = f"{named} step 3: raises ValueError: the"
    with pytest.raises(TrainingError, match=words) as error:
        train(*settings, run_dir=tmp_path / "run")
    assert error.value.result is not None
    assert error.value.result.status == str(error.value)
    assert error.value.result.policy.act(np.zeros(3, np.float32))[0] in (0, 1)
    config = jaxppo.compose("ff_ppo", [*SMALL, *settings])
    run(config, tmp_path / "run", resume=True)  # it fails only once
    assert "their episodes start anew" in capsys.readouterr().out
    assert [event["steps"] for event in events_of(tmp_path / "run", "eval")] == [96, 192]


@pytest.mark.long
def test_restarts_are_counted_in_training_evaluation_and_episodes(tmp_path: Path) -> None:
    """An environment that fails is made anew, and its episode ends at the observation before."""
    mark = tmp_path / "failed"
    make = partial(Failing, "nan", str(mark))
    settings = ("env.on_error=restart", "arch.evaluate_first=false")
    policy = train(*settings, env=make, run_dir=tmp_path / "run").policy
    for kind, counts in (("train", [1, 1]), ("eval", [0, 0])):
        events = events_of(tmp_path / "run", kind)
        assert [event["env_restarts"] for event in events] == counts
    mark.unlink()
    with pytest.warns(RestartWarning, match="^environments made anew after faults: 1; "):
        policy.evaluate(6)
    mark.unlink()
    with pytest.warns(RestartWarning, match="^environments made anew after faults: 1; "):
        episodes = policy.play(episodes=6)
    (cut,) = [each for each in episodes if each.length == 3]
    assert cut.final_observation[0] == 2


def test_restarts_before_a_selection_are_counted_too() -> None:
    """A selection makes the actors anew."""
    plan = SimpleNamespace(devices_per_member=1, update_batch_size=1)
    layout: Any = SimpleNamespace(
        system=SimpleNamespace(num_envs=4), plan=plan, arrange_split=lambda seeds: seeds
    )
    state: Any = SimpleNamespace(agent=SimpleNamespace(update=jnp.zeros((1, 1), jnp.int32)))
    config = jaxppo.compose("ff_ppo", [*SMALL, KNOWN, "arch.actors=2"])
    actor: Any = SimpleNamespace(restarts=2, close=lambda: None)
    training = Training(layout, [config], None, None, None, lambda number, seeds: actor)
    for expected in (4, 8):
        training._restart(state)
        assert training.report()["env_restarts"] == expected


def test_actors_in_threads_leave_python_to_processes() -> None:
    for settings, isolated in (
        ("env.processes=2", False),
        ("env.processes=2 arch.actors=1", True),
        ("env.processes=2 arch.actors=1 arch.actors_on=ray", False),
        ("arch.actors=1", False),
    ):
        config = jaxppo.compose("ff_ppo", [*SMALL, KNOWN, *settings.split()])
        assert env_config(config).isolated is isolated


SIMULATORS_ONLY = ["env.batch=true", "env.wrappers=[a.B]", "arch.actors=1", "arch.act_on=cpu"]
REFUSED = [
    "env.isolated=true",
    "env.mask=[3]",
    "env.extras=[steps]",
    "arch.max_policy_lag=2",
    "env.step_timeout=2",
    "arch.actors=3",
    "arch.actors_wait=first",
    "arch.actors_per_update=2 arch.actors=2",
    "arch.actors_per_update=3 arch.actors=4 arch.actors_wait=first",
]


@pytest.mark.parametrize(
    "env, settings",
    [*(("env=cartpole", each) for each in SIMULATORS_ONLY), *((KNOWN, each) for each in REFUSED)],
)
def test_what_does_not_fit_is_refused(env: str, settings: str) -> None:
    """The first setting is what does not fit the environment."""
    key = settings.partition("=")[0].replace(".", "[.]")
    with pytest.raises(ConfigError, match=f"^{key}="):
        prepare(jaxppo.compose("ff_ppo", [*SMALL, env, *settings.split()]))


class Showing(Known):
    def __init__(self, space: spaces.Space) -> None:
        super().__init__()
        self.observation_space = space


MASK = {"action_mask": spaces.MultiBinary(3)}


@pytest.mark.parametrize(
    "space, words",
    [
        (spaces.Dict(), "its observation space is empty"),
        (spaces.Dict(MASK), "env.action_mask=action_mask: is all"),
        (spaces.Dict(MASK, x=spaces.Discrete(2)), "env.action_mask=action_mask: the action mask h"),
    ],
)
def test_observations_without_entries_and_masks_that_do_not_fit(space: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        train(env=lambda: Showing(space))


@pytest.mark.parametrize(
    "settings, key",
    [
        (("env.name=CartPole-v7",), "env.name=CartPole-v7: no such"),
        (("env.name=CartPole-v1", "+env.kwargs.colour=red"), "env.name=CartPole-v1: cannot"),
        (("env.name=CartPole-v1", "env.wrappers=[nowhere.Wrapper]"), "env.wrappers=nowhere"),
        (("env.name=CartPole-v7", "env.batch=true"), "env.name=CartPole-v7: no such"),
        ((KNOWN, "env.batch=true"), "env.target=simulators.Known: cannot .*num_envs"),
        *(
            (
                ("env.name=CartPole-v1", "env.batch=true", "env.metrics=[x]", *mode),
                r"env.metrics=\[x\].* next episode",
            )
            for mode in ((), SAME_STEP)
        ),
        (("env.target=simulators.Fixed", "env.batch=true"), "simulators.Fixed: has num_envs=4"),
        (
            ("env.target=simulators.KnownVector", "env.batch=true", "+env.kwargs.mode=null"),
            "simulators.KnownVector: .*autoreset_mode",
        ),
        (
            ("env.target=gymnasium.make_vec", "+env.kwargs.id=CartPole-v1"),
            "gymnasium.make_vec: .*env.batch=true",
        ),
        (("env.name=CartPole-v1", "env.metrics=[success]"), r"env.metrics=\[success\].*none"),
        (
            (KNOWN, "env.metrics=[seen]"),
            r"env.metrics=\[seen\].* tells action, late.time, late.odd",
        ),
    ],
)
def test_names_that_are_not_there_are_refused(settings: tuple[str, ...], key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}"):
        train("env.library=gymnasium", *settings)


def test_a_simulator_is_in_no_program_of_the_caller() -> None:
    with pytest.raises(ConfigError, match="is not written in JAX"):
        jaxppo.make_train([*SMALL, KNOWN])


def command(run_dir: Path, *settings: str) -> subprocess.Popen[str]:
    tests = Path(__file__).parents[1]
    return subprocess.Popen(
        [sys.executable, "-m", "jaxppo.ff_ppo", *SMALL, *settings, f"hydra.run.dir={run_dir}"],
        env={
            **os.environ,
            "JAX_NUM_CPU_DEVICES": "1",
            "PYTHONPATH": f"{tests}{os.pathsep}{run_dir.parent}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.long
def test_a_signal_ends_a_run_whose_simulator_hangs(tmp_path: Path) -> None:
    """With a checkpoint of the last update: here of none."""
    mark = tmp_path / "hangs"
    failing = ("env.target=simulators.Failing", f"+env.kwargs={{how:hangs,where:{mark}}}")
    found = command(tmp_path / "run", *failing, "arch.evaluate_first=false", "arch.actors=1")
    while not mark.exists():
        assert found.poll() is None
        time.sleep(0.1)
    out = terminated(found)
    assert "SIGTERM: stopped at once, saved at step 0; to go on: resume=" in out


@pytest.mark.slow
def test_actors_on_ray_give_the_numbers_of_threads_and_are_replaced(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    actors = (KNOWN, "arch.actors=2")
    for name in ("threads", "ray"):
        command(tmp_path / name, *actors, f"arch.actors_on={name}").communicate()
    one, other = (events_of(tmp_path / name, "eval") for name in ("threads", "ray"))
    assert len(one) == 3
    returns = ([event["episode_return"] for event in events] for events in (one, other))
    np.testing.assert_array_equal(*returns)
    settings = (*actors, "arch.actors_on=ray", "arch.num_updates=4000", "logger.every=100")
    found = command(tmp_path / "killed", *settings)
    while not (pids := hosts_of_ray()) or not events_so_far(tmp_path / "killed", "train"):
        time.sleep(0.1)
    os.kill(pids[0], signal.SIGKILL)
    assert "absolute metric: " in found.communicate()[0]
    assert events_of(tmp_path / "killed", "train")[-1]["env_restarts"] == 2


def terminated(found: Any) -> str:
    """What a command has printed after a SIGTERM, with the status of one."""
    found.send_signal(signal.SIGTERM)
    out: str = found.communicate(timeout=60)[0]
    assert found.returncode == 128 + signal.SIGTERM
    return out


LICENSED = """
import pathlib, simulators

class Licensed(simulators.Known):
    def __init__(self):
        super().__init__()
        if pathlib.Path("/proc/self/cmdline").read_text().startswith("ray::"):
            raise RuntimeError("no licence here")
"""


@pytest.mark.slow
def test_runs_with_actors_on_ray_end_as_others_do(tmp_path: Path) -> None:
    """On a machine with fewer cores than actors, too."""
    pytest.importorskip("ray")
    settings = ("arch.actors=4", "arch.actors_on=ray", "arch.num_updates=40000")
    found = command(tmp_path / "ended", KNOWN, *settings, "logger.every=20")
    while not events_so_far(tmp_path / "ended", "train"):
        assert found.poll() is None
        time.sleep(0.1)
    out = terminated(found)
    assert "saved; to go on: resume=" in out
    assert "SIGTERM received" not in out  # Ray's handler
    assert "os.fork" not in out
    assert list((tmp_path / "ended" / "checkpoints").glob("0*"))
    (tmp_path / "licensed.py").write_text(LICENSED)
    found = command(tmp_path / "licensed", "env.target=licensed.Licensed", *settings)
    *_, last = found.communicate(timeout=120)[0].splitlines()
    assert found.returncode == 1
    assert re.fullmatch(r"actor \d: the process on Ray cannot start: .*: no licence here", last)


def fake_ray(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(**functions))
    monkeypatch.setattr(remote, "_is_own", False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_a_cluster_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(address: str, **_: Any) -> None:
        raise ConnectionError(f"nobody at {address}\nsee the log")

    fake_ray(monkeypatch, is_initialized=lambda: False, init=init)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(ConfigError, match=r"^RAY_ADDRESS=10\.0\.0\.1:6379"):
        remote.connect(1)


def test_only_an_own_cluster_lets_actors_share_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """And none changes what a signal does."""
    addresses, claimed = [], []

    def init(address: str, **_: Any) -> None:
        addresses.append(address)
        signal.signal(signal.SIGTERM, lambda *_: None)
        warnings.warn("os.fork() was called. That is bad", RuntimeWarning, stacklevel=1)

    def as_remote(num_cpus: int, **_: Any) -> Any:
        claimed.append(num_cpus)
        return lambda host: SimpleNamespace(remote=lambda *_: None)

    fake_ray(
        monkeypatch,
        is_initialized=lambda: False,
        init=init,
        cluster_resources=lambda: {"CPU": 3.0},
        remote=as_remote,
    )
    nothing: Any = None
    before = signal.getsignal(signal.SIGTERM)
    remote.connect(4)
    remote.RemoteActor(nothing, nothing, 0, np.zeros(1, int))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    remote.connect(3)
    with pytest.warns(remote.ClusterWarning, match=r"^arch\.actors=4: .* which has 3;"):
        remote.connect(4)
    remote.RemoteActor(nothing, nothing, 0, np.zeros(1, int))
    assert signal.getsignal(signal.SIGTERM) is before
    assert addresses == ["local", "10.0.0.1:6379", "10.0.0.1:6379"]
    assert claimed == [0, 1]


@pytest.mark.parametrize(
    ("in_init", "num_made", "message"),
    [
        (True, 1, "the process on Ray cannot start: RuntimeError: no licence"),
        (False, 4, "the process on Ray died 3 times .*; the last error: RuntimeError: no licence"),
    ],
)
def test_the_death_of_an_actor_on_ray_is_explained(
    in_init: bool, num_made: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(Exception):
        actor_init_failed = in_init

    def get(_: Any) -> Any:
        raise Died("The actor died\n  in a file\nRuntimeError: no licence\n\n")

    call = SimpleNamespace(remote=lambda *_: None)
    made: list[Any] = []

    def make(*given: Any) -> Any:
        made.append(given)
        return SimpleNamespace(start=call, collect=call)

    fake_ray(
        monkeypatch,
        get=get,
        remote=lambda **_: lambda host: SimpleNamespace(remote=make),
        exceptions=SimpleNamespace(RayActorError=Died, RayTaskError=Died),
    )
    nothing: Any = None
    actor = remote.RemoteActor(nothing, nothing, 0, np.zeros(1, int))
    with pytest.raises(SimulatorError, match=f"^{message}$"):
        actor.collect(None, 0)
    assert len(made) == num_made


def events_so_far(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    return events_of(run_dir, kind) if (run_dir / "metrics.jsonl").exists() else []


def hosts_of_ray() -> list[int]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if file.read_text().startswith("ray::_Host"):
                found.append(int(file.parent.name))
    return found


@pytest.mark.long
def test_a_fault_in_an_evaluation_is_named_too(tmp_path: Path) -> None:
    make = partial(Failing, "reward", str(tmp_path / "failed"))
    with pytest.raises(TrainingError, match="at its step 3: returns the reward inf"):
        train(env=make)
