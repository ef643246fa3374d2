"""Training with simulators: numbers of the same environment in JAX, actors, faults, resuming."""

import contextlib
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
import numpy as np
import pytest
from gymnasium import spaces
from simulators import Calendar, Failing, Known, Nested, Unseen

import jaxppo
from jaxppo.config.fields import ConfigError
from jaxppo.config.importing import is_installed
from jaxppo.config.schema import EnvConfig
from jaxppo.deploy import export
from jaxppo.envs import contract
from jaxppo.envs.actor_settings import env_config
from jaxppo.extras.films import film, with_frames
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.run.jobs import TrainingError, prepare
from jaxppo.runtime.run.loop import run
from jaxppo.runtime.simulated import actors, remote
from jaxppo.runtime.simulated.actors import Actor, Threads
from jaxppo.runtime.simulated.evaluation import episode_seeds
from jaxppo.simulators.faults import RestartWarning, SimulatorError

SMALL = [
    *("arch.total_num_envs=4", "system.rollout_length=8", "system.num_minibatches=2"),
    *("arch.num_updates=6", "arch.num_evaluation=2", "arch.num_eval_episodes=6"),
    *("arch.max_eval_steps=20", "system.epochs=2", "arch.compiler=quick"),
]
KNOWN, TWIN = "env.target=simulators.Known", "env.target=simulators.Twin"
TRUST = ["trust=[simulators]"]


def policy_gradient(agent: Any, steps: Any, distribution: Any, log_prob: jax.Array) -> jax.Array:
    """As `system.objective=test_simulated.policy_gradient`."""
    return -log_prob * steps.advantage


def train(*settings: str, **given: Any) -> Any:
    return jaxppo.train([*SMALL, *settings], progress=False, **given)


def same(one: Any, other: Any, *, rtol: float = 0) -> None:
    for x, y in zip(
        jax.tree.leaves(one.policy.policy), jax.tree.leaves(other.policy.policy), strict=True
    ):
        np.testing.assert_allclose(*map(np.asarray, map(jaxppo_data, (x, y))), rtol, 0)
    for name in ("episode_return", "episode_length", "unfinished"):
        np.testing.assert_array_equal(one.evaluations[name], other.evaluations[name])
    assert one.absolute_metric == other.absolute_metric


def jaxppo_data(x: Any) -> Any:
    return jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x


@pytest.fixture(scope="module")
def calendar() -> Any:
    """A run in `Calendar`."""
    return train("env.target=simulators.Calendar", "arch.num_updates=2", "arch.num_evaluation=1")


CASES = {
    "ppo": [],
    "statistics": [
        "system.normalize_observations=true",
        "system.normalize_rewards=true",
        "system.obs_norm_warmup_steps=64",
        *("arch.evaluation_greedy=false", "system.gae_lambda=0.9"),
    ],
    "recurrent": ["network=gru", "system.sequence_length=4", "arch.update_batch_size=2"],
    "bfloat16": ["arch.precision=bf16"],
}


@pytest.fixture(scope="module")
def known() -> Any:
    """A run in `Known`, with which others are compared."""
    return train(KNOWN)


@pytest.fixture(scope="module")
def twin() -> Any:
    """A run in the same environment in JAX."""
    return train(TWIN)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.long if case == "recurrent" else ()) for case in CASES],
)
def test_a_simulator_gives_the_numbers_of_the_same_environment_in_jax(
    case: str, known: Any, twin: Any
) -> None:
    """It has no random numbers of its own; ends, successors and keys must be those of JAX."""
    rounds = case == "recurrent" and jax.__version_info__ >= (0, 12)  # other fused operations
    if settings := CASES[case]:
        twin, known = train(TWIN, *settings), train(KNOWN, *settings)
    same(twin, known, rtol=1e-4 if rounds else 0)


def test_pqn_gives_the_numbers_of_the_same_environment_in_jax() -> None:
    given = dict(command="ff_pqn")
    same(train(TWIN, **given), train(KNOWN, **given))


@pytest.mark.long
def test_seeds_give_the_numbers_of_the_same_environment_in_jax() -> None:
    seeds = "arch.num_seeds=2"
    one, other = (train(target, seeds) for target in (TWIN, KNOWN))
    returns = (each.evaluations["episode_return"] for each in (one, other))
    np.testing.assert_array_equal(*returns)


def test_processes_and_an_actor_without_lag_change_nothing(known: Any) -> None:
    same(known, train(KNOWN, "env.processes=2"))
    same(known, train(KNOWN, "env.processes=2", "env.isolated=true"))
    same(known, train(KNOWN, "arch.actors=1", "arch.max_policy_lag=0"))


@pytest.mark.long
def test_actors_go_on_with_the_episodes_of_the_warm_up() -> None:
    """Also with their memories: the last warm-up rollout ends within episodes."""
    warm = (KNOWN, *CASES["statistics"], "network=gru", "system.sequence_length=4")
    same(train(*warm), train(*warm, "arch.actors=1", "arch.max_policy_lag=0"))


def test_actors_are_reproducible_and_the_lag_is_logged(tmp_path: Path) -> None:
    lagging = (KNOWN, "arch.actors=2", "arch.max_policy_lag=2", "logger.every=1")
    first = train(*lagging, run_dir=tmp_path / "first")
    same(first, train(*lagging))
    events = events_of(tmp_path / "first", "train")
    # A rollout begins with the policy of at most two updates before, and never waits for one
    assert [event["policy_lag_max"] for event in events] == [0, 1, 2, 2, 2, 2]
    assert [event["policy_lag"] for event in events] == [0, 1, 2, 2, 2, 2]
    for event in events:
        shares = [value for name, value in event.items() if name.endswith("_share")]
        assert len(shares) == 5
        assert all(0 <= share <= 1.01 for share in shares)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    ("command", "network"), [("ff_ppo", "network=mlp_shared"), ("ff_pqn", "network=mlp")]
)
def test_values_of_older_policies_are_not_kept(command: str, network: str, lag: int) -> None:
    """Targets need those of the parameters that learn, in the value normalisation of now."""
    actors = (network, "arch.actors=1", f"arch.max_policy_lag={lag}")
    algorithm: Any = prepare(jaxppo.compose(command, [*SMALL, KNOWN, *actors]))[1].algorithm
    assert algorithm.keeps_values == (lag == 0)


def events_of(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_a_function_of_the_caller_makes_the_environments(known: Any) -> None:
    same(known, train(env=lambda: Known()))
    same(known, train(env=Known))
    with pytest.raises(ConfigError, match="env: is one environment, and a run needs several"):
        train(env=Known())
    one = Known()
    with pytest.raises(
        TrainingError, match="returns the same environment again; it must make a new"
    ):
        train(env=lambda: one)
    with pytest.raises(ConfigError, match="int: is no Gymnasium environment, since it has no obs"):
        train(env=lambda: 3)
    lock = threading.Lock()
    with pytest.raises(TrainingError, match=r"cannot be sent to another process \(TypeError: .*"):
        train("env.processes=2", env=lambda: (lock, Known())[1])


@pytest.mark.long
def test_a_function_of_the_caller_goes_to_processes(known: Any) -> None:
    same(known, train("env.processes=1", env=lambda: Known()))


def test_nested_spaces_masks_and_images(tmp_path: Path) -> None:
    result = train("env.target=simulators.Nested", "arch.num_updates=3")
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
    assert film(policy, episodes=1).length == 5


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


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"day": 99}, r"observation\['day'\]: is 99 where .*Calendar returns 1 to 7"),
        ({"day": np.int64(2**40)}, r"observation\['day'\]: is 1099511627776 where"),
        ({"pair": np.array([5, -2])}, r"observation\['pair'\]: is -2 where .* -1 to 0"),
    ],
)
def test_an_integer_outside_of_its_space_is_refused(calendar: Any, wrong: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        calendar.policy.act({"day": 1, "pair": np.array([5, 0]), **wrong})
    assert "\n" not in str(error.value)


def test_recorded_episodes_are_those_of_the_same_environment_in_jax(known: Any, twin: Any) -> None:
    both = (run.policy.play(episodes=8) for run in (twin, known))
    for one, other in zip(*both, strict=True):
        assert len(one.rewards) == 5
        jax.tree.map(np.testing.assert_array_equal, vars(one), vars(other))


@pytest.mark.long
def test_films_repeat_the_recorded_episode(known: Any) -> None:
    policy = known.policy
    (played,) = policy.play(episodes=1)
    frames = with_frames(policy, 0, played, 500).states
    assert [frames[step].max() for step in range(played.length + 1)] == list(range(0, 101, 20))
    assert film(policy, episodes=2).length == played.length
    with pytest.raises(ConfigError, match="gives no picture"):
        film(train(env=lambda: Known()).policy, episodes=1)
    with pytest.raises(ConfigError, match=r"its render\(\) raises NotImplementedError$"):
        film(train(env=lambda: Unseen()).policy, episodes=1)


def test_wrappers_are_applied_from_the_inside() -> None:
    clip = "{_target_:gymnasium.wrappers.TimeLimit,max_episode_steps:3}"
    result = train(KNOWN, f"env.wrappers=[{clip},simulators.Same]")
    assert result.evaluations["episode_length"].tolist() == [3.0] * 3


@pytest.mark.parametrize(
    "target, wrong",
    [
        ("Known", {}),
        ("Nested", {}),
        ("Failing", {"runs": "environment 0 at its step 3: returns an observation that is not"}),
        ("Outside", {"values": "observation goes from 0 to 6, outside of Box"}),
        ("Unseeded", {"determinism": "two plays from one seed differ", "gymnasium": "Assertion"}),
    ],
)
def test_an_environment_is_checked(target: str, wrong: dict[str, str], tmp_path: Path) -> None:
    """By playing it, and by Gymnasium's own checker if every action is legal."""
    failing = {"how": "nan", "where": str(tmp_path / "failed")} if target == "Failing" else {}
    config = EnvConfig(target=f"simulators.{target}", kwargs=failing, on_error="restart")
    assert contract.glance(config) == []  # a run checks every step
    checks = contract.check(config, 12)
    said = {each.name: each.findings + each.hints for each in checks}
    assert {name: lines for name, lines in said.items() if lines}.keys() == wrong.keys(), said
    for name, words in wrong.items():
        assert words in said[name][0]
    assert ("gymnasium" in said) == (target not in ("Nested", "Failing"))


def test_the_fault_of_one_of_several_actors_names_it() -> None:
    class Fails:
        def collect(self, *_: Any, **__: Any) -> Any:
            raise SimulatorError("environment 3 at its step 1: raises ValueError")

    threads = Threads([Fails(), Fails()], 0)  # type: ignore[list-item]
    threads.publish(0, None)
    with pytest.raises(SimulatorError, match=r"^actor 0: environment 3 at"):
        threads.get()
    threads.close()


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
    threads.publish(0, None)
    threads.close()
    assert not threads._threads[0].is_alive()


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


def test_a_fault_leaves_a_result(tmp_path: Path) -> None:
    make = partial(Failing, "raises", str(tmp_path / "failed"))
    with pytest.raises(TrainingError) as error:
        train("arch.evaluate_first=false", env=make)
    assert error.value.result is not None
    assert error.value.result.status == str(error.value)
    assert error.value.result.policy.act(np.zeros(3, np.float32))[0] in (0, 1)


def test_a_recorded_episode_ends_with_its_own_observation(tmp_path: Path) -> None:
    """An environment that fails is made anew, and its episode ends at the observation before."""
    policy = train("env.on_error=restart", env=lambda: Known()).policy
    make = partial(Failing, "raises", str(tmp_path / "failed"))
    with pytest.warns(RestartWarning):
        episodes = policy.play(env=make, episodes=4)
    cut = [each for each in episodes if each.length == 3]
    assert len(cut) == 1
    assert cut[0].final_observation[0] == 2


@pytest.mark.parametrize("actors", [0, 1])
def test_a_fault_ends_the_run_with_a_checkpoint(actors: int, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    kwargs = f"+env.kwargs={{how:raises,where:{tmp_path / 'failed'}}}"
    settings = ["env.target=simulators.Failing", kwargs, "arch.evaluate_first=false"]
    settings.append(f"arch.actors={actors}")
    with pytest.raises(TrainingError, match="environment 0 at its step 3: raises ValueError: the"):
        train(*settings, run_dir=run_dir)
    resumed = jaxppo.train(TRUST, resume=run_dir, progress=False)  # it fails only once
    assert resumed.evaluations["steps"].tolist() == [96, 192]


def test_a_fault_in_an_evaluation_is_named_too(tmp_path: Path) -> None:
    make = partial(Failing, "reward", str(tmp_path / "failed"))
    with pytest.raises(TrainingError, match="at its step 3: returns the reward inf"):
        train(env=make)


def test_a_restart_is_counted(tmp_path: Path) -> None:
    given = dict(env=partial(Failing, "nan", str(tmp_path / "failed")), run_dir=tmp_path / "run")
    train("env.on_error=restart", "arch.evaluate_first=false", **given)
    assert [event["env_restarts"] for event in events_of(tmp_path / "run", "train")] == [1, 1]
    assert [event["env_restarts"] for event in events_of(tmp_path / "run", "eval")] == [0, 0]


def test_a_restart_in_an_evaluation_is_told(tmp_path: Path) -> None:
    make = partial(Failing, "nan", str(tmp_path / "failed"))
    result = train("env.on_error=restart", env=make, run_dir=tmp_path / "run")
    found = [event["env_restarts"] for event in events_of(tmp_path / "run", "eval")]
    assert found == [1, 0, 0]
    (tmp_path / "failed").unlink()
    with pytest.warns(RestartWarning, match="^environments made anew after faults: 1; "):
        result.policy.evaluate(6)
    (tmp_path / "failed").unlink()
    with pytest.warns(RestartWarning, match="^environments made anew after faults: 1; "):
        result.policy.play(episodes=6)


def test_a_resume_starts_episodes_anew_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(KNOWN, run_dir=tmp_path, on_block=lambda block: True)
    assert run(jaxppo.compose("ff_ppo", [*SMALL, KNOWN]), tmp_path, resume=True) == 12.5
    assert "simulators have no state that is stored: their episodes start anew" in (
        capsys.readouterr().out
    )
    steps = [event["steps"] for event in events_of(tmp_path, "eval")]
    assert steps == [0, 96, 192]


@pytest.mark.parametrize(
    ("settings", "isolated"),
    [
        ("env.processes=2", False),
        ("env.processes=2 env.isolated=true", True),
        ("env.processes=2 arch.actors=1", True),
        ("env.processes=2 arch.actors=1 arch.actors_on=ray", False),
        ("arch.actors=1", False),
    ],
)
def test_actors_in_threads_leave_python_to_processes(settings: str, isolated: bool) -> None:
    config = jaxppo.compose("ff_ppo", [*SMALL, KNOWN, *settings.split()])
    assert env_config(config).isolated is isolated


@pytest.mark.parametrize(
    "setting",
    [
        *("env.processes=2", "env.isolated=true", "env.on_error=restart", "env.step_timeout=1"),
        *("env.wrappers=[a.B]", "arch.actors=1", "arch.actors_on=ray", "arch.max_policy_lag=2"),
    ],
)
def test_an_environment_in_jax_takes_no_settings_of_simulators(setting: str) -> None:
    key = setting.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"^{key}=.*: CartPole-v1 is written in JAX, so it"):
        prepare(jaxppo.compose("ff_ppo", [*SMALL, setting]))


REFUSED = {
    "env.isolated=true": "env.isolated=true: needs processes in which the environments step",
    "env.mask=[0]": "env.mask=[0]: is for environments written in JAX",
    "env.extras=[step]": "env.extras=['step']: is for environments written in JAX",
    "arch.max_policy_lag=2": "arch.max_policy_lag=2: needs arch.actors=N",
    "env.step_timeout=2": "env.step_timeout=2.0: only a process of its own can be stopped",
    "arch.actors=3": "arch.actors=3: does not divide the 4 environments",
    "arch.actors=1 population.size=5 population.selection=pbt "
    "population.hyperparameters={actor_lr:[1e-4,1e-2]}": "arch.actors=1: cannot be used wi",
    "arch.compiler=thorough arch.plan_only=true arch.target=h100": "arch.target=h100: is for",
    "arch.profile=/tmp/none": "arch.profile=/tmp/none: is for environments written in JAX",
}


@pytest.mark.parametrize("settings", REFUSED)
def test_what_does_not_fit_is_refused(settings: str) -> None:
    if "arch.target" in settings and not is_installed(devices.COMPILERS["gpu"]):
        pytest.skip("needs the compiler of the extra aot-cuda")
    with pytest.raises(ConfigError) as caught:
        prepare(jaxppo.compose("ff_ppo", [*SMALL, KNOWN, *settings.split()]))
    assert str(caught.value).startswith(REFUSED[settings])


class Showing(Known):
    def __init__(self, space: spaces.Space) -> None:
        super().__init__()
        self.observation_space = space


MASK = {"action_mask": spaces.MultiBinary(3)}


@pytest.mark.parametrize(
    "space, error",
    [
        (spaces.Box(0, 1, (0,)), "Showing: its observation space is empty; it needs an entry"),
        (spaces.Dict(), "Showing: its observation space is empty; it needs an entry"),
        (spaces.Dict(MASK), "env.action_mask=action_mask: is all that Showing shows"),
        (spaces.Dict(MASK, x=spaces.Discrete(2)), "env.action_mask=action_mask: the action mask h"),
    ],
)
def test_observations_without_entries_and_masks_that_do_not_fit(space: Any, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        train(env=lambda: Showing(space))
    assert str(caught.value).startswith(error)


def test_registered_names_and_other_errors() -> None:
    for settings, error in {
        ("env.name=CartPole-v7",): "env.name=CartPole-v7: no such gymnasium environment",
        ("env.name=CartPole-v1", "+env.kwargs.colour=red"): "env.name=CartPole-v1: cannot be made",
        ("env.name=CartPole-v1", "env.wrappers=[nowhere.Wrapper]"): "env.wrappers=nowhere",
    }.items():
        with pytest.raises(ConfigError) as caught:
            train("env.library=gymnasium", *settings)
        assert str(caught.value).startswith(error)
    with pytest.raises(ConfigError, match=r"arch.actors=1: .*is written in JAX"):
        train("arch.actors=1")
    with pytest.raises(ConfigError, match="is not written in JAX"):
        jaxppo.make_train([*SMALL, KNOWN])


@pytest.mark.long
def test_a_registered_environment_learns() -> None:
    with contextlib.suppress(ImportError):
        result = train(
            *("env.library=gymnasium", "env.name=CartPole-v1", "arch.total_num_envs=8"),
            *("system.rollout_length=64", "arch.num_updates=40", "system.epochs=4"),
            "arch.max_eval_steps=null",
        )
        assert result.absolute_metric > 150


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
@pytest.mark.parametrize("actors", [0, 1])
def test_a_signal_ends_a_run_whose_simulator_hangs(actors: int, tmp_path: Path) -> None:
    """With a checkpoint of the last update: here of none."""
    mark = tmp_path / "hangs"
    failing = ("env.target=simulators.Failing", f"+env.kwargs={{how:hangs,where:{mark}}}")
    found = command(
        tmp_path / "run", *failing, "arch.evaluate_first=false", f"arch.actors={actors}"
    )
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
        found = command(tmp_path / name, *actors, f"arch.actors_on={name}")
        assert "policy of step 96)\n" in found.communicate()[0], name
    one, other = (events_of(tmp_path / name, "eval") for name in ("threads", "ray"))
    assert [event["episode_return"] for event in one] == [
        event["episode_return"] for event in other
    ]
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


def test_a_cluster_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(address: str, **_: Any) -> None:
        raise ConnectionError(f"nobody at {address}\nsee the log")

    fake_ray(monkeypatch, is_initialized=lambda: False, init=init)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(
        ConfigError, match=r"^RAY_ADDRESS=10\.0\.0\.1:6379: there is no Ray cluster"
    ):
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
    remote.RemoteActor(nothing, nothing, 0, 4, np.zeros(1, int))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    remote.connect(3)
    with pytest.warns(remote.ClusterWarning, match=r"^arch\.actors=4: .* which has 3;"):
        remote.connect(4)
    remote.RemoteActor(nothing, nothing, 0, 4, np.zeros(1, int))
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
    actor = remote.RemoteActor(nothing, nothing, 0, 1, np.zeros(1, int))
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_envpool_learns_and_hands_over_true_ends(tmp_path: Path) -> None:
    pytest.importorskip("envpool")
    settings = ("env.library=envpool", "env.name=CartPole-v1", "arch.max_eval_steps=null")
    system = prepare(jaxppo.compose("ff_ppo", [*SMALL, *settings]))[1]
    env: Any = system.env
    pool = env.make(3)
    pool.reset([0, 1, 2], [5, 6, 7])
    lengths = np.zeros(3, int)
    for _ in range(100):
        before = pool.arrays.obs[0].copy()
        pool.step([np.ones(3, int)])  # pushes to the right until the pole falls
        lengths += 1
        over = pool.arrays.terminated
        # The pole of an ended episode has fallen; the next one begins upright
        assert (np.abs(pool.arrays.final[0][over, 2]) > 0.2).all()
        assert (np.abs(pool.arrays.obs[0][over]) <= 0.05).all()
        assert (np.abs(pool.arrays.final[0][:, 0] - before[:, 0]) < 0.2).all()
        assert (pool.arrays.reward == 1).all()
        assert (lengths[over] > 5).all()
        lengths[over] = 0
    pool.close()
    result = train(*settings, "system.rollout_length=64", "arch.num_updates=60", "system.epochs=4")
    assert result.absolute_metric > 100


def test_a_users_objective_trains_with_simulators() -> None:
    """It is checked on a rollout of zeros, since the environment cannot be stepped by a program."""
    result = train("system.objective=test_simulated.policy_gradient", "arch.num_updates=2")
    assert np.isfinite(result.absolute_metric)
