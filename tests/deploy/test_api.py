"""The Python interface: compose, train, make_train."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import flax.linen as nn
import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import close, on_devices, refused, small_config
from envs import Clock, Coin, Params
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from own_envs import Count
from runs import logged

import jaxppo
from jaxppo.config import given
from jaxppo.config.fields import ConfigError
from jaxppo.config.parse import keywords, known_keys
from jaxppo.config.schema import Config
from jaxppo.config.stored import keep_config
from jaxppo.deploy.result import Result, arrays
from jaxppo.envs import make
from jaxppo.runtime.hosts.signals import Interrupts
from jaxppo.runtime.run import loop
from jaxppo.runtime.run.jobs import TrainingError
from jaxppo.runtime.store.checkpoint import newest

LOUD = {"console": False}


def coin(**changes: Any) -> Config:
    return small_config(**{"env": {"target": "envs.Coin"}, "logger": LOUD, **changes})


# The run that most tests look at or equal: an evaluation before, and four blocks of two updates
EIGHT = coin(arch={"num_updates": 8, "num_evaluation": 4, "evaluate_first": True})
STEPS = [0, 64, 128, 192, 256]


def with_updates(num: int) -> Config:
    """`EIGHT` with another number of updates, two a block."""
    arch = dataclasses.replace(EIGHT.arch, num_updates=num, num_evaluation=num // 2)
    return dataclasses.replace(EIGHT, arch=arch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """`EIGHT`, written to files."""
    return jaxppo.train(EIGHT, run_dir=tmp_path_factory.mktemp("whole") / "run")


def returns(found: Result) -> list[float]:
    numbers: list[float] = found.evaluations["episode_return"].tolist()
    return numbers


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    found, _ = newest(folder)
    assert found is not None
    return found.arrays


@pytest.mark.long
def test_train_is_the_command_lines_run_to_the_bit(
    whole: Result,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Also in memory, where nothing is written until it is saved; and what is saved goes on."""
    assert whole.run_dir is not None
    (tmp_path / "by_command").mkdir()
    (tmp_path / "here").mkdir()
    metric = loop.run(EIGHT, tmp_path / "by_command")
    capfd.readouterr()
    monkeypatch.chdir(tmp_path / "here")
    in_memory = jaxppo.train(EIGHT)
    assert not list((tmp_path / "here").iterdir())
    assert capfd.readouterr() == ("", "")  # no bar where nobody would see it move
    assert (in_memory.run_dir, in_memory.status) == (None, "finished")
    saved = in_memory.save(tmp_path / "saved")
    assert in_memory.absolute_metric == whole.absolute_metric == metric
    expected = logged(tmp_path / "by_command")
    assert expected
    for folder in (whole.run_dir, saved):
        assert logged(folder) == expected
        assert {p.name for p in folder.iterdir()} == {
            p.name for p in (tmp_path / "by_command").iterdir()
        }
        for name, array in arrays_of(tmp_path / "by_command").items():
            np.testing.assert_array_equal(arrays_of(folder)[name], array, err_msg=name)
    evaluations = [e for e in expected["metrics.jsonl"] if e["event"] == "eval"]
    assert in_memory.evaluations["steps"].tolist() == STEPS
    assert returns(in_memory) == [event["episode_return"] for event in evaluations]
    assert in_memory.metrics["steps"].tolist() == STEPS[1:]
    with pytest.raises(ConfigError, match=r"run_dir=.*saved"):
        in_memory.save(saved)
    more = jaxppo.train({"arch.num_updates": 12, "trust": ["envs"]}, resume=saved)
    assert more.evaluations["steps"].tolist() == [*STEPS, 320, 384]
    assert returns(more)[:5] == returns(whole)
    again = jaxppo.train({"trust": ["envs"]}, resume=saved)  # there is nothing left to do
    assert (again.absolute_metric, again.status) == (more.absolute_metric, "finished")


@pytest.mark.long
def test_policies_are_those_of_the_files(tmp_path: Path) -> None:
    config = coin(arch={"num_seeds": 2, "seed": 5, "num_updates": 8, "num_evaluation": 4})
    found = jaxppo.train(config, run_dir=tmp_path / "run")
    assert found.seeds == [5, 6]
    steps = set()
    for seed, which in ((5, "best"), (6, "best"), (6, "latest")):
        here = found.policy_of(seed, which)
        there = jaxppo.load(tmp_path / "run", which, seed=seed, trust=["envs"])
        steps.add(here.steps)
        assert here.steps == there.steps
        close(here.policy.params, there.policy.params)
    assert len(steps) > 1  # the best was not the latest
    best = jaxppo.load(tmp_path / "run", trust=["envs"])
    assert found.policy.config.arch.seed == best.config.arch.seed
    np.testing.assert_array_equal(found.policy.evaluate(8).returns, best.evaluate(8).returns)
    assert found.evaluations["episode_return"].shape == (2, 4)
    assert found.absolute_metric == pytest.approx(np.mean(list(found.absolute_metrics.values())))
    with pytest.raises(ConfigError, match="seed=4"):
        found.policy_of(4)


@pytest.mark.long
def test_on_block_sees_each_block_and_may_stop_the_run(tmp_path: Path) -> None:
    seen, kept = [], []

    def on_block(block: Any) -> bool:
        action, _ = block.policy.act(np.zeros(block.policy.system.env.observation_space.shape))
        assert np.shape(action) == ()
        seen.append((block.steps, block.evaluation["steps"], block.train["steps"]))
        kept.append(dataclasses.replace(block))
        for event in (block.train, block.evaluation):
            event.clear()  # a caller's own copy
        return bool(block.steps >= 128)

    found = jaxppo.train(EIGHT, run_dir=tmp_path / "run", on_block=on_block)
    assert [each for each in seen if each[0]] == [(64 * i,) * 3 for i in (1, 2)]
    assert found.status == "stopped at step 128"
    assert found.evaluations["steps"].tolist() == [0, 64, 128]
    assert found.absolute_metric is not None
    assert jaxppo.load(tmp_path / "run", "latest", trust=["envs"]).steps == 128
    with pytest.raises(ConfigError, match="read it before on_block returns"):
        _ = kept[-2].policy  # of a block that is over


@pytest.mark.long
def test_what_on_block_raises_or_returns_wrongly_reaches_the_caller() -> None:
    def on_block(_: Any) -> bool:
        raise FileNotFoundError("mine")

    with pytest.raises(FileNotFoundError, match=r"^mine$"):
        jaxppo.train(EIGHT, on_block=on_block)
    with pytest.raises(ConfigError, match=r"^on_block: .*array\("):
        jaxppo.train(EIGHT, on_block=lambda _: np.ones(2, bool))


class Torso(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.tanh(nn.Dense(self.width)(x))


@pytest.mark.long
def test_environments_and_modules_are_given_as_objects(
    whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_name = {"target": None, "name": "CartPole-v1"}
    config = dataclasses.replace(with_updates(4), env=dataclasses.replace(EIGHT.env, **by_name))
    by_object = jaxppo.train(config, env=Coin(), run_dir=tmp_path / "run")
    assert returns(by_object) == returns(whole)[:3]
    with monkeypatch.context() as patch:
        patch.setattr(given, "_given", {})  # as in another process
        with pytest.raises(ConfigError, match=r"was an object in Python.*give it again"):
            jaxppo.load(tmp_path / "run")
    resumed = jaxppo.train({"arch.num_updates": 8}, resume=tmp_path / "run", env=Coin())
    assert returns(resumed)[:3] == returns(whole)[:3]
    assert len(returns(resumed)) > 3
    again = jaxppo.load(tmp_path / "run", env=Coin())
    np.testing.assert_array_equal(again.evaluate(8).returns, resumed.policy.evaluate(8).returns)


def test_modules_in_two_places_are_two_modules() -> None:
    torso = Torso(8)
    run = jaxppo.make_train(coin(), network={"actor_torso": torso, "critic_torso": torso})
    params = jax.eval_shape(run.system.algorithm.init, jax.random.key(0))
    for name in ("actor_torso", "critic_torso"):
        assert params[name]["Dense_0"]["kernel"].shape[-1] == 8
    env = Clock()
    three = env.default_params.replace(max_steps_in_episode=3)
    assert jaxppo.make_train(coin(), env=(env, three)).system.env.params == three


@pytest.mark.long
def test_a_thread_and_two_runs_in_a_process(whole: Result) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(jaxppo.train(EIGHT)))
    thread.start()
    here = jaxppo.train(EIGHT)
    thread.join()
    assert found[0].absolute_metric == here.absolute_metric == whole.absolute_metric


@pytest.mark.long
def test_ctrl_c_leaves_what_was_done(
    whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "train_block", interrupted(loop.train_block, at=3))
    handler = signal.getsignal(signal.SIGINT)
    found = jaxppo.train(EIGHT, run_dir=tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is handler
    assert found.status.startswith("SIGINT: stopped at step ")
    assert found.absolute_metric is None
    assert found.evaluations["steps"].tolist() == STEPS[:3]
    assert found.policy.steps in STEPS[1:3]
    monkeypatch.undo()
    gone_on = jaxppo.train({"trust": ["envs"]}, resume=tmp_path / "run")
    assert returns(gone_on) == returns(whole)
    assert gone_on.absolute_metric == whole.absolute_metric


def interrupted(train: Any, at: int) -> Any:
    """The training of a block, which a Ctrl-C interrupts in block number `at`."""
    calls = []

    def call(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            signal.raise_signal(signal.SIGINT)
        return train(*args)

    return call


def test_a_second_ctrl_c_is_not_held_back() -> None:
    interrupts = Interrupts()
    with interrupts.listen():
        signal.raise_signal(signal.SIGINT)
        assert interrupts.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    interrupts = Interrupts()
    with interrupts.listen(), interrupts.ending(lambda: ""), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # where nothing could be saved


@pytest.mark.long
def test_a_failed_run_raises_with_what_it_gave(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="NaN or infinity") as caught:
        jaxppo.train(coin(system={"actor_lr": 1e38, "critic_lr": 1e38}))
    assert caught.value.result.status == str(caught.value)
    with pytest.raises(ConfigError, match=r"^save: "):
        caught.value.result.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_curves_of_members_are_aligned_by_their_steps() -> None:
    def log(*steps: int) -> list[dict[str, Any]]:
        return [{"event": "eval", "steps": step, "episode_return": step + 0.5} for step in steps]

    found = arrays("eval", [log(0, 10, 20), log(0, 20)])
    np.testing.assert_array_equal(found["steps"], [[0, 10, 20], [0, np.nan, 20]])
    np.testing.assert_array_equal(found["episode_return"], [[0.5, 10.5, 20.5], [0.5, np.nan, 20.5]])
    assert arrays("eval", [log(0, 10)])["steps"].tolist() == [0, 10]


class Side(Count):
    """Changes an attribute, and shows more than its space says."""

    num_steps = 0

    def step(self, *args: Any) -> Any:
        self.num_steps += 1
        state, obs, *rest = super().step(*args)
        return state, obs + 1000.0, *rest


def test_problems_of_an_environment_are_warnings() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jaxppo.make_train(coin(), env=Side())
    lines = [str(each.message) for each in caught if each.filename == __file__]
    assert "num_steps" in lines[0]
    assert "1003" in lines[1]
    assert not any("\n" in line for line in lines)
    with pytest.raises(UserWarning, match=r"self\.num_steps"):
        jaxppo.train(coin(), env=Side())


@pytest.mark.long
def test_an_environment_is_checked_where_a_caller_is_traced() -> None:
    def evaluations(key: jax.Array) -> Any:
        return jaxppo.make_train(coin(), env=Clock())(key).evaluations

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert jax.tree.leaves(jax.eval_shape(evaluations, jax.random.key(0)))


def test_what_is_given_is_its_own_in_every_run() -> None:
    first = given.with_given(coin(), Clock(), None, resumes=False)
    second = given.with_given(coin(), Clock(), None, resumes=False)
    assert first.env.target != second.env.target
    assert make(first.env).name == make(second.env).name == "Clock"
    stored = jaxppo.compose("ff_ppo", ["env=cartpole"])
    with pytest.raises(ConfigError, match=r"env: .*resume_allow=\[env\]"):
        given.with_given(stored, Clock(), None, resumes=True)


@pytest.mark.parametrize(
    "arguments, key",
    [
        ({"env": "cartpole"}, "env=cartpole"),
        ({"config": "env=cartpole"}, "'env=cartpole': settings"),
        ({"config": ["hydra.run.dir=here"]}, "hydra.run.dir=here"),
        ({"config": ["env=cartpol"]}, "env=cartpol: no such choice; did you mean env=cartpole"),
        ({"config": ["arch.total_timesteps=1"]}, "arch.total_timesteps=1"),
        ({"config": ["--help"]}, "--help"),
        ({"config": {"logger.tensorboard": True}}, "logger.tensorboard"),
        ({"config": ["resume=nowhere"]}, "resume=nowhere: is not the directory of a run"),
        ({"resume": "nowhere"}, "resume=nowhere: is not the directory of a run"),
        ({"config": coin(), "run_dir": 3}, "run_dir=3: must be a directory"),
        ({"network": "gru"}, "network=gru"),
        ({"network": {"actor_torso": Torso}}, "flax module"),
        ({"config": {"env": {"kwargs": {"size": 3}}}, "env": Coin()}, "env.kwargs.size=3"),
        (
            {"config": ["network.actor_torso.size=3"], "network": {"actor_torso": Torso(4)}},
            "actor_torso.size=3",
        ),
        ({"env": (Clock(), Params(), 3)}, "a tuple holds an environment and its parameters"),
        ({"env": (Clock(), Params)}, "dataclass with values"),
        ({"config": coin(), "command": "ff_pqn"}, "command=ff_pqn"),
        ({"config": coin(), "on_block": lambda: None}, "on_block=<function"),
        ({"config": coin(), "on_block": 3}, "on_block=3"),
    ],
)
def test_mistakes_are_errors_of_one_line(arguments: Any, key: str) -> None:
    with refused(re.escape(key)):
        jaxppo.train(**arguments)


class Ragged(Clock):
    """Its reset fails."""

    def reset_env(self, *args: Any) -> Any:
        raise ValueError("mine")


class Wide(Torso):
    """Has another shape than its input."""

    def __call__(self, x: jax.Array) -> jax.Array:
        raise ValueError("mine")


@pytest.mark.parametrize(
    "given_, name",
    [
        ({"env": Ragged()}, "Ragged"),
        ({"env": (Ragged(), Params())}, "Ragged"),
        ({"network": {"actor_torso": Wide(3)}}, "Wide"),
    ],
)
def test_objects_are_named_in_errors_as_the_caller_knows_them(given_: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        jaxppo.train(coin(), **given_)
    assert given.HOME not in str(caught.value)


def test_mistakes_of_whole_runs_are_errors_of_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^key: must be a typed key"):
        jaxppo.make_train(coin())(jax.random.PRNGKey(0))
    for config, key in (
        (dataclasses.replace(coin(), resume="here"), "resume=here"),
        (dataclasses.replace(coin(), init_from="here"), "init_from=here"),
        (coin(arch__num_seeds=2), r"arch\.num_seeds=2"),
    ):
        with pytest.raises(ConfigError, match=f"^{key}"):
            jaxppo.make_train(config)
    with pytest.raises(ConfigError, match=r"^command=pqn"):
        jaxppo.compose("pqn")


def test_a_notebook_shows_a_mistake_as_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    shell.run_cell("import jaxppo\njaxppo.compose('ff_ppo', ['env=cartpol'])")
    (line,) = "".join(capsys.readouterr()).strip().splitlines()
    assert line.startswith("ConfigError: env=cartpol:")
    assert len(repr(jaxppo.make_train(coin()))) < 200


def test_a_command_is_not_taken_for_a_function() -> None:
    with pytest.raises(AttributeError, match=r"python -m jaxppo\.clear_cache is a command"):
        jaxppo.__getattr__("clear_cache")  # which may have been imported, and then is a module
    with pytest.raises(AttributeError, match=r"no attribute 'ops'$"):
        jaxppo.__getattr__("ops")


def test_what_is_no_run_to_load_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^run=3: must be a directory"):
        jaxppo.load(3)  # type: ignore[arg-type]
    run_dir = tmp_path / "sweep" / "0"
    (run_dir / "checkpoints").mkdir(parents=True)
    keep_config(coin(checkpoint={"enabled": False}), run_dir)
    for path, words in (
        (tmp_path / "nope", "no such directory"),
        (run_dir / "config.yaml", "not a directory"),
        (tmp_path / "sweep", f"such as {run_dir}"),
        (run_dir / "checkpoints", f"give the run, {run_dir}"),
        (run_dir, "checkpoint.enabled=true"),
    ):
        for which in ("best", 64):
            with refused(re.escape(words)):
                jaxppo.load(path, which)


def test_settings_of_a_dict_are_those_of_a_list() -> None:
    nested = {"env": "cartpole", "arch": {"total_timesteps": 1e6, "compile_cache": None}}
    flat = ["env=cartpole", "arch.total_timesteps=1e6", "arch.compile_cache=null"]
    assert jaxppo.compose("ff_ppo", nested) == jaxppo.compose("ff_ppo", flat)
    given = {
        "env": "cartpole",
        "system": {"max_grad_norm": float("inf"), "gamma": jnp.float32(0.5)},
        "env.params.gravity": 15,
        "trust": ["a", "b"],
        "arch": {"seed": np.int64(7), "absolute_metric": np.bool_(0)},
        "network.actor_torso.layer_sizes": np.array([8, 4]),
        "logger": {"wandb_project": "2024", "wandb_tags": ["true", "1e3", "a b", "plain"]},
    }
    found = jaxppo.compose("ff_ppo", given)
    assert (found.system.max_grad_norm, found.system.gamma) == (float("inf"), 0.5)
    assert (found.env.params, found.trust) == ({"gravity": 15}, ["a", "b"])
    assert (found.arch.seed, found.arch.absolute_metric) == (7, False)
    assert found.network.actor_torso["layer_sizes"] == [8, 4]
    assert found.logger.wandb_project == "2024"
    assert found.logger.wandb_tags == ["true", "1e3", "a b", "plain"]
    deleted = jaxppo.compose("ff_ppo", ["~network.actor_head.continuous"]).network.actor_head
    assert deleted == {"_target_": "jaxppo.networks.heads.follow"}


@pytest.fixture(scope="module")
def program() -> Any:
    """`EIGHT` as one function, and as a program of a key and hyperparameters."""
    run = jaxppo.make_train(EIGHT)
    return run, jax.jit(run)


@pytest.mark.long
def test_a_whole_run_is_the_run_of_its_seed(program: Any, whole: Result) -> None:
    run, call = program
    out = call(jax.random.key(42), run.hyperparameters)
    np.testing.assert_allclose(out.evaluations.episode_return, returns(whole), rtol=1e-5)
    np.testing.assert_allclose(out.absolute_metric, whole.absolute_metric, rtol=1e-5)
    steps = np.asarray(out.evaluations.updates) * run.steps_per_update
    assert steps.tolist() == whole.evaluations["steps"].tolist() == STEPS
    latest = whole.policy_of(42, "latest").policy.params
    close(out.policy.params, latest, rtol=1e-4, atol=1e-5)
    for name in ("total_loss", "entropy", "actor_gradient_norm", "critic_gradient_norm"):
        means = np.asarray(out.metrics[name]).reshape(4, 2).mean(axis=1)
        np.testing.assert_allclose(means, whole.metrics[name], rtol=1e-4, err_msg=name)
    of_clock = {"steps", "updates", "seconds", "steps_per_second"}
    assert set(out.metrics) >= set(whole.metrics) - of_clock
    assert out.evaluations.returns.shape == (5, EIGHT.arch.num_eval_episodes)
    acting = run.trained(out)
    assert acting.steps == whole.policy.steps
    assert run.trained(out, "latest").steps == STEPS[-1]
    with pytest.raises(ConfigError, match=r"^output: has 2 rows"):
        run.trained(jax.tree.map(lambda x: jnp.stack([x, x]), out))
    obs = np.zeros(acting.system.env.observation_space.shape, np.float32)
    np.testing.assert_array_equal(acting.act(obs)[0], whole.policy.act(obs)[0])


@pytest.mark.long
def test_rows_of_vmap_are_runs_alone_and_grids_change_one_number(program: Any) -> None:
    run, call = program
    keys = jax.random.split(jax.random.key(0), 2)
    grid = run.hyperparameters.replace(actor_lr=jnp.asarray([1e-4, 1e-2]))
    assert grid.critic_lr.shape == (2,)
    assert grid.num_updates.dtype == jnp.int32
    both = jax.jit(jax.vmap(jax.vmap(run, (0, None)), (None, 0)))(keys, grid)
    for row, rate in enumerate((1e-4, 1e-2)):
        for column in range(2):
            out = call(keys[column], run.hyperparameters.replace(actor_lr=jnp.float32(rate)))
            got = jax.tree.map(lambda x, at=(row, column): x[at], both)
            for name in ("metrics", "evaluations"):
                close(getattr(got, name), getattr(out, name), rtol=1e-3, atol=1e-4)
    moved = [np.asarray(x) for x in jax.tree.leaves(both.policy.params["actor_head"])]
    assert all((x[0] != x[1]).any() for x in moved)


def test_another_hydra_program_goes_on_after_a_composition(tmp_path: Path) -> None:
    """Also after one that fails, and with the behaviour of its own version."""
    (tmp_path / "theirs.yaml").write_text("x: 1\n")
    with hydra.initialize_config_dir(str(tmp_path), version_base="1.2"):
        outer = hydra.compose("theirs", return_hydra_config=True)
        HydraConfig.instance().set_config(outer)
        assert jaxppo.compose("rec_ppo", ["env=cartpole"]).env.name == "CartPole-v1"
        with pytest.raises(ConfigError, match="no such choice"):
            jaxppo.make_train(["env=cartpoel"])
        assert hydra.compose("theirs", ["x=3"]) == {"x": 3}
        assert HydraConfig.get() == outer.hydra
        assert str(hydra.version.getbase()) == "1.2"
    assert not GlobalHydra.instance().is_initialized()


SHARDED = """
import jax, numpy as np
from jax.sharding import Mesh, PartitionSpec
import jaxppo
from conftest import close, small_config

arch = {"num_updates": 2, "absolute_metric": False}
run = jaxppo.make_train(small_config(env={"target": "envs.Coin"}, arch=arch))

def rounds(key, _):  # in the caller's own scan
    key, own = jax.random.split(key)
    return key, run(own)

def scanned(key):
    return jax.lax.scan(rounds, key, None, 2)[1]

keys = jax.random.split(jax.random.key(0), 4)
mesh = Mesh(np.asarray(jax.devices()), ("device",))
spec = PartitionSpec("device")
sharded = jax.jit(jax.shard_map(
    jax.vmap(scanned), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
))(keys)
alone = jax.jit(run)
for row in (0, 3):
    key, first = jax.random.split(keys[row])
    for column, own in enumerate((first, jax.random.split(key)[1])):
        found = jax.tree.map(lambda x: x[row, column], sharded)
        expected = alone(own)
        for part in ("metrics", "evaluations"):
            close(getattr(found, part), getattr(expected, part), rtol=1e-3, atol=1e-4)
assert np.isnan(sharded.absolute_metric).all()
print("done")
"""


@pytest.mark.long
def test_a_whole_run_works_over_devices_and_in_a_callers_scan() -> None:
    assert on_devices(2, SHARDED).splitlines()[-1] == "done"


TYPED = """
from typing import Any

import jax

import jaxppo
from jaxppo import Block, Result
from jaxppo.algorithms.objectives import hyperparameters
from jaxppo.config.fields import traced


@hyperparameters(bound=traced(3.0, "a bound", low=1))
def mine(agent: Any, steps: Any, distribution: Any, log_prob: jax.Array) -> jax.Array:
    return log_prob


def late(block: Block) -> bool:
    return block.steps > 1000


def main() -> Result:
    config = jaxppo.compose("ff_ppo", env="cartpole", total_timesteps=1e6, gamma=0.9, seed=None)
    return jaxppo.train(config, on_block=late)
"""


def test_keywords_are_the_settings_of_the_same_name() -> None:
    """Also of a group, of a list, and beside settings as text."""
    typed = [
        *("env=cartpole", "env.params.max_steps_in_episode=7", "arch.total_timesteps=1e6"),
        *("population=pbt", "population.size=4", "system.gamma=0.9", "logger.wandb_tags=[a,b]"),
    ]
    keywords = jaxppo.compose(
        "rec_ppo",
        ["env.params.max_steps_in_episode=7"],
        env="cartpole",
        total_timesteps=1e6,
        population="pbt",
        population_size=4,
        gamma=0.9,
        logger_wandb_tags=["a", "b"],
    )
    assert keywords == jaxppo.compose("rec_ppo", typed)


def test_a_whole_run_refuses_a_number_that_breaks_its_rule() -> None:
    """One that is traced cannot be looked at."""
    whole = jaxppo.make_train(coin())
    for wrong in (-1.0, jnp.array([1e-3, -1.0]), jnp.nan):
        with pytest.raises(ConfigError, match=r"^hyperparameters\.actor_lr=(-1.0|nan): must be "):
            whole(jax.random.key(0), whole.hyperparameters.replace(actor_lr=wrong))
    right = whole.hyperparameters.replace(actor_lr=1e-3)
    jax.eval_shape(whole, jax.random.key(0), right)


def test_each_setting_has_one_keyword() -> None:
    known = keywords()
    assert len(set(known.values())) == len(known)
    assert set(known_keys()) <= set(known.values())


@pytest.mark.parametrize(
    "keyword, near",
    [
        ("total_timestep", "total_timesteps"),
        ("lr", "actor_lr and critic_lr"),
        ("n_envs", "total_num_envs"),
        ("env_id", "env_name"),
    ],
)
def test_an_unknown_keyword_is_refused_with_a_known_one(keyword: str, near: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{keyword}: no such keyword; did you mean {near}\?$"):
        jaxppo.compose("ff_ppo", **{keyword: 1})


@pytest.mark.slow
def test_a_users_program_is_typed(tmp_path: Path) -> None:
    """A misspelt name and a wrong call of a decorated objective are errors; the rest is none."""
    root = Path(__file__).resolve().parents[2]
    wrong = '\njaxppo.trian(["env=cartpole"])\nmine(3)\nlate(3)\n'
    wrong += 'jaxppo.compose(gamma="high")\njaxppo.compose(gama=0.9)\n'
    (tmp_path / "bad.py").write_text(TYPED + wrong)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "bad.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(root), "MYPY_CACHE_DIR": str(root / ".mypy_cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    kinds = [line.rpartition("[")[2].rstrip("]") for line in lines]
    assert kinds == ["attr-defined", "call-arg", "arg-type", "arg-type", "call-arg"], lines
