"""The Python interface: compose, train, make_train."""

import dataclasses
import os
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
from conftest import NETWORK, SMALL, on_devices, small_config
from envs import Clock, Coin, Params
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from own_envs import Count
from runs import logged

import jaxppo
from jaxppo.algorithms.whole import TrainOutput
from jaxppo.config import given
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config
from jaxppo.deploy.result import Block, Result, arrays
from jaxppo.envs import make
from jaxppo.runtime.hosts.signals import Interrupts
from jaxppo.runtime.run import loop
from jaxppo.runtime.run.jobs import TrainingError
from jaxppo.runtime.store.checkpoint import newest

LOUD = {"console": False}


def coin(**changes: Any) -> Config:
    return small_config(**{"env": {"target": "envs.Coin"}, "logger": LOUD, **changes})


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    found, _ = newest(folder)
    assert found is not None
    return found.arrays


def test_train_is_the_command_lines_run_to_the_bit(tmp_path: Path) -> None:
    config = coin(arch={"evaluate_first": True})
    (tmp_path / "by_command").mkdir()
    metric = loop.run(config, tmp_path / "by_command")
    in_memory = jaxppo.train(config)
    on_disk = jaxppo.train(config, run_dir=tmp_path / "on_disk")
    saved = in_memory.save(tmp_path / "saved")
    assert in_memory.absolute_metric == on_disk.absolute_metric == metric
    assert in_memory.run_dir is None
    assert on_disk.run_dir == tmp_path / "on_disk"
    expected = logged(tmp_path / "by_command")
    assert expected
    for folder in (tmp_path / "on_disk", saved):
        assert logged(folder) == expected
        assert {p.name for p in folder.iterdir()} == {
            p.name for p in (tmp_path / "by_command").iterdir()
        }
        for name, array in arrays_of(tmp_path / "by_command").items():
            np.testing.assert_array_equal(arrays_of(folder)[name], array, err_msg=name)
    evaluations = [e for e in expected["metrics.jsonl"] if e["event"] == "eval"]
    assert in_memory.evaluations["steps"].tolist() == [0, 64, 128]
    assert in_memory.evaluations["episode_return"].tolist() == [
        event["episode_return"] for event in evaluations
    ]
    assert in_memory.metrics["steps"].tolist() == [64, 128]


def test_nothing_is_written_without_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = jaxppo.train(coin(logger={}))
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")  # no bar where nobody would see it move
    assert found.status == "finished"
    assert repr(found).startswith("Result(absolute metric ")


@pytest.mark.long
def test_policies_are_those_of_the_files(tmp_path: Path) -> None:
    found = jaxppo.train(coin(arch={"num_seeds": 3, "seed": 5}), run_dir=tmp_path / "run")
    assert found.seeds == [5, 6, 7]
    for which in ("best", "latest"):
        for seed in found.seeds:
            here = found.policy_of(seed, which)
            there = jaxppo.load(tmp_path / "run", which, seed=seed, trust=["envs"])
            assert here.steps == there.steps
            for one, other in zip(
                jax.tree.leaves(here.policy.params),
                jax.tree.leaves(there.policy.params),
                strict=True,
            ):
                np.testing.assert_array_equal(one, other)
    best = jaxppo.load(tmp_path / "run", trust=["envs"])
    assert found.policy.config.arch.seed == best.config.arch.seed
    np.testing.assert_array_equal(found.policy.evaluate(8).returns, best.evaluate(8).returns)
    assert found.evaluations["episode_return"].shape == (3, 2)
    assert found.absolute_metric == pytest.approx(np.mean(list(found.absolute_metrics.values())))
    with pytest.raises(ConfigError, match="seed=4: is none of 5, 6, 7"):
        found.policy_of(4)


@pytest.mark.long
def test_a_saved_run_goes_on_as_if_it_had_been_written(tmp_path: Path) -> None:
    short = jaxppo.train(coin(arch={"num_updates": 4}))
    folder = short.save(tmp_path / "saved")
    longer = jaxppo.train({"arch.num_updates": 8, "trust": ["envs"]}, resume=folder)
    assert longer.evaluations["steps"].tolist() == [64, 128, 192, 256]
    assert longer.evaluations["episode_return"][:2].tolist() == (
        short.evaluations["episode_return"].tolist()
    )
    with pytest.raises(ConfigError, match="holds a run already"):
        short.save(folder)


@pytest.mark.long
def test_on_block_sees_each_block_and_may_stop_the_run(tmp_path: Path) -> None:
    seen = []

    def on_block(block: Any) -> bool:
        action, _ = block.policy.act(np.zeros(block.policy.system.env.observation_space.shape))
        seen.append(
            (block.steps, block.evaluation["steps"], block.train["steps"], np.shape(action))
        )
        return block.steps >= 96

    config = coin(arch={"num_updates": 6, "num_evaluation": 6})
    found = jaxppo.train(config, run_dir=tmp_path / "run", on_block=on_block)
    assert [each[:3] for each in seen] == [(32 * i,) * 3 for i in (1, 2, 3)]
    assert found.status == "stopped at step 96"
    assert found.absolute_metric is not None
    assert jaxppo.load(tmp_path / "run", "latest", trust=["envs"]).steps == 96
    gone_on = jaxppo.train({"trust": ["envs"]}, resume=tmp_path / "run")
    alone = jaxppo.train(config)
    assert gone_on.evaluations["episode_return"].tolist() == (
        alone.evaluations["episode_return"].tolist()
    )


def test_what_on_block_raises_reaches_the_caller() -> None:
    def on_block(_: Any) -> bool:
        raise FileNotFoundError("mine")

    with pytest.raises(FileNotFoundError, match=r"^mine$"):
        jaxppo.train(coin(), on_block=on_block)


class Torso(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.tanh(nn.Dense(self.width)(x))


@pytest.mark.long
def test_environments_and_modules_are_given_as_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_path = jaxppo.train(coin())
    config = small_config(logger=LOUD, env={"target": None, "name": "CartPole-v1"})
    by_object = jaxppo.train(config, env=Coin(), run_dir=tmp_path / "run")
    assert by_object.evaluations["episode_return"].tolist() == (
        by_path.evaluations["episode_return"].tolist()
    )
    with monkeypatch.context() as patch:
        patch.setattr(given, "_given", {})  # as in another process
        with pytest.raises(ConfigError, match=r"was an object in Python.*give it again"):
            jaxppo.load(tmp_path / "run")
    resumed = jaxppo.train({"arch.num_updates": 8}, resume=tmp_path / "run", env=Coin())
    assert resumed.events[""][0]["event"] in ("eval", "train")
    assert len(resumed.evaluations["steps"]) == 4
    again = jaxppo.load(tmp_path / "run", env=Coin())
    np.testing.assert_array_equal(again.evaluate(8).returns, resumed.policy.evaluate(8).returns)
    torso = Torso(8)
    module = jaxppo.train(coin(), network={"actor_torso": torso, "critic_torso": torso})
    params = module.policy.policy.params
    assert params["actor_torso"]["Dense_0"]["kernel"].shape[-1] == 8
    assert "critic_torso" in params  # a module in two places is two modules
    with pytest.raises(ConfigError, match="network=torso: no such layer; one of input_layer"):
        jaxppo.train(coin(), network={"torso": torso})


@pytest.mark.long
def test_a_thread_and_two_runs_in_a_process() -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(jaxppo.train(coin())))
    thread.start()
    here = jaxppo.train(coin())
    thread.join()
    assert found[0].absolute_metric == here.absolute_metric == jaxppo.train(coin()).absolute_metric


def test_ctrl_c_leaves_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop.Blocks, "train", slow(loop.Blocks.train, at=3))
    config = coin(arch={"num_updates": 8, "num_evaluation": 8})
    handler = signal.getsignal(signal.SIGINT)
    found = jaxppo.train(config, run_dir=tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is handler
    assert found.status.startswith("SIGINT: stopped at step ")
    assert found.absolute_metric is None
    assert found.evaluations["steps"].tolist() == [32, 64]
    assert found.policy.steps in (32, 64)
    monkeypatch.undo()
    gone_on = jaxppo.train({"trust": ["envs"]}, resume=tmp_path / "run")
    alone = jaxppo.train(config)
    assert gone_on.absolute_metric == alone.absolute_metric


def slow(train: Any, at: int) -> Any:
    """The training of a block, which a Ctrl-C interrupts in block number `at`."""
    calls = []

    def interrupted(self: Any, state: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            signal.raise_signal(signal.SIGINT)
        return train(self, state)

    return interrupted


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


def test_a_finished_run_is_its_result_again(tmp_path: Path) -> None:
    first = jaxppo.train(coin(), run_dir=tmp_path / "run")
    again = jaxppo.train({"trust": ["envs"]}, resume=tmp_path / "run")
    assert again.absolute_metric == first.absolute_metric
    assert again.status == "finished"


def test_a_block_that_is_over_says_so_and_keeps_its_steps() -> None:
    kept: list[Any] = []
    jaxppo.train(coin(arch={"num_updates": 6, "num_evaluation": 3}), on_block=kept.append)
    assert [block.steps for block in kept] == [64, 128, 192]
    with pytest.raises(ConfigError, match="read it before on_block returns"):
        _ = kept[0].policy


def test_curves_of_members_are_aligned_by_their_steps() -> None:
    def log(*steps: int) -> list[dict[str, Any]]:
        return [{"event": "eval", "steps": step, "episode_return": step + 0.5} for step in steps]

    found = arrays("eval", [log(0, 10, 20), log(0, 20)])
    np.testing.assert_array_equal(found["steps"], [[0, 10, 20], [0, np.nan, 20]])
    np.testing.assert_array_equal(found["episode_return"], [[0.5, 10.5, 20.5], [0.5, np.nan, 20.5]])
    assert arrays("eval", [log(0, 10)])["steps"].tolist() == [0, 10]


def test_parameters_come_with_an_environment_in_a_tuple() -> None:
    env = Clock()
    params = env.default_params.replace(max_steps_in_episode=3)
    run = jaxppo.make_train(coin(), env=(env, params))
    assert run.system.env.params == params


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
    assert "Side: step or reset changes self.num_steps" in lines[0]
    assert "observation goes from 0 to 1003, outside of Box" in lines[1]
    assert all(line.endswith("; python -m jaxppo.check_env checks more") for line in lines)
    assert not any("\n" in line for line in lines)
    with pytest.raises(UserWarning, match=r"Side: step or reset changes self\.num_steps"):
        jaxppo.train(coin(), env=Side())


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
    with pytest.raises(
        ConfigError, match=r"env: the stored run has a registered.*resume_allow=\[env\]"
    ):
        given.with_given(stored, Clock(), None, resumes=True)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"env": "cartpole"}, 'jaxppo.train(["env=cartpole"])'),
        ({"config": "env=cartpole"}, 'settings are a list, such as ["env=cartpole"]'),
        ({"config": 5}, "5: settings are a list"),
        ({"config": ["hydra.run.dir=here"]}, "jaxppo.train takes run_dir=DIR"),
        ({"config": {"arch": 5}}, "arch=5: a group takes the name"),
        ({"network": "gru"}, "network=gru: takes flax modules by layer name"),
        ({"network": {"actor_torso": Torso}}, "must be a flax module, such as MyTorso()"),
        ({"on_block": 5}, "on_block=5: must be a function"),
        (
            {"config": coin(), "on_block": lambda _: 3.5},
            "on_block: must return True, False or None, not 3.5",
        ),
        (
            {"config": coin(), "on_block": lambda _: np.ones(2, bool)},
            "on_block: must return True, False or None, not array([ True,  True])",
        ),
        ({"config": ["resume=a"], "resume": "b"}, "resume=b: is in the settings too"),
        (
            {"config": {"env": {"kwargs": {"size": 3}}}, "env": Coin()},
            "env.kwargs.size=3: has no effect with env=OBJECT",
        ),
        (
            {"config": ["network.actor_torso.size=3"], "network": {"actor_torso": Torso(4)}},
            "size=3: has no effect with network={'actor_torso': MODULE}; leave one",
        ),
        ({"env": (Clock(), Params(), 3)}, "3): a tuple holds an environment and its parameters"),
        ({"env": ()}, "env=(): a tuple holds an environment and its parameters"),
        ({"env": (Clock(), {"g": 2.0})}, "Clock: its parameters are {'g': 2.0}, but must be a"),
        ({"env": (Clock(), Params)}, "but must be a dataclass with values, such as its default"),
        ({"network": {"initialization": Torso(4)}}, "network=initialization: no such layer"),
    ],
)
def test_mistakes_of_arguments_are_errors_of_one_line(arguments: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        jaxppo.train(**arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_whole_run_takes_typed_keys_and_begins() -> None:
    with pytest.raises(ConfigError, match="key: must be a typed key"):
        jaxppo.make_train(coin())(jax.random.PRNGKey(0))
    policy = jaxppo.train(coin()).policy
    observation = np.zeros(policy.system.env.observation_space.shape)
    for key in (0, jax.random.PRNGKey(0)):
        with pytest.raises(ConfigError, match="key: must be a typed key"):
            policy.act(observation, key)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="resume=here: make_train begins a run"):
        jaxppo.make_train(dataclasses.replace(coin(), resume="here"))
    with pytest.raises(ConfigError, match=r"arch\.target=h200: make_train compiles"):
        jaxppo.make_train(coin(arch__target="h200"))


def test_what_is_no_run_to_load_is_said(tmp_path: Path) -> None:
    run_dir = tmp_path / "sweep" / "0"
    jaxppo.train(coin(checkpoint={"enabled": False}), run_dir=run_dir)
    (run_dir / "checkpoints").mkdir()
    for path, words in (
        (tmp_path / "nope", "nope: no such directory"),
        (run_dir / "config.yaml", "config.yaml: is not a directory"),
        (tmp_path / "sweep", f"has no checkpoints; name one of its runs, such as {run_dir}"),
        (run_dir / "checkpoints", f"has no checkpoints; give the run, {run_dir}"),
        (run_dir, "has no checkpoints; give the directory of a run that was trained with"),
    ):
        for which in ("best", 64):
            with pytest.raises(ConfigError) as caught:
                jaxppo.load(path, which)
            assert words in str(caught.value)


@pytest.mark.parametrize(
    "settings, words",
    [
        (["env=cartpol"], "env=cartpol: no such choice; did you mean env=cartpole"),
        ({"arch": {"seed": -1}}, "arch.seed=-1: must be at least 0"),
        (["arch.total_timesteps=1"], "arch.total_timesteps=1 is less than one update"),
        (["env.nam=x"], "env.nam: no such key; did you mean env.name"),
        (["--help"], "settings are key=value"),
        ({"logger.tensorboard": True}, "writes files; give run_dir"),
        (["env=cartpole", "arch.plan_only=true"], "is for the command line"),
        (["resume=nowhere"], "nowhere/config.yaml: cannot be read"),
    ],
)
def test_mistakes_are_errors_of_one_line(settings: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        jaxppo.train(settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="command=pqn: no such command"):
        jaxppo.compose("pqn")


def test_a_key_can_be_deleted_as_on_the_command_line() -> None:
    head = jaxppo.compose("ff_ppo", ["~network.actor_head.continuous"]).network.actor_head
    assert head == {"_target_": "jaxppo.networks.heads.follow"}


@pytest.mark.long
def test_a_failed_run_raises_with_what_it_gave(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="NaN or infinity") as caught:
        jaxppo.train(coin(system={"actor_lr": 1e38, "critic_lr": 1e38}))
    assert caught.value.result.status == str(caught.value)
    with pytest.raises(ConfigError, match=r"save: there is nothing to go on with: .*NaN"):
        caught.value.result.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_of_a_dict_are_those_of_a_list() -> None:
    nested = {"env": "cartpole", "arch": {"total_timesteps": 1e6, "compile_cache": None}}
    flat = ["env=cartpole", "arch.total_timesteps=1e6", "arch.compile_cache=null"]
    assert jaxppo.compose("ff_ppo", nested) == jaxppo.compose("ff_ppo", flat)
    more = {
        "system": {"max_grad_norm": float("inf")},
        "env.params.gravity": 15,
        "trust": ["a", "b"],
    }
    found = jaxppo.compose("ff_ppo", {"env": "cartpole", **more})
    assert found.system.max_grad_norm == float("inf")
    assert found.env.params == {"gravity": 15}
    assert found.trust == ["a", "b"]
    numbers = {"arch.seed": np.int64(7), "system.gamma": jnp.float32(0.5), "env": "cartpole"}
    arrays = {"network.actor_torso.layer_sizes": np.array([8, 4])}
    found = jaxppo.compose("ff_ppo", {**numbers, **arrays, "arch.absolute_metric": np.bool_(0)})
    assert (found.arch.seed, found.system.gamma, found.arch.absolute_metric) == (7, 0.5, False)
    assert found.network.actor_torso["layer_sizes"] == [8, 4]
    texts = {"logger": {"wandb_project": "2024", "wandb_tags": ["true", "1e3", "a b", "plain"]}}
    found = jaxppo.compose("ff_ppo", {"env": "cartpole", **texts})
    assert found.logger.wandb_project == "2024"
    assert found.logger.wandb_tags == ["true", "1e3", "a b", "plain"]


def outputs(out: TrainOutput) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves((out.metrics, out.evaluations))]


def test_a_whole_run_is_the_run_of_its_seed() -> None:
    changes = {"arch": {"evaluate_first": True, "num_updates": 6, "num_evaluation": 2, "seed": 3}}
    config = coin(**changes)
    run = jaxppo.make_train(config)
    out = jax.jit(run)(jax.random.key(3))
    found = jaxppo.train(config)
    np.testing.assert_allclose(
        out.evaluations.episode_return, found.evaluations["episode_return"], rtol=1e-5
    )
    np.testing.assert_allclose(out.absolute_metric, found.absolute_metric, rtol=1e-5)
    steps = np.asarray(out.evaluations.updates) * run.steps_per_update
    assert steps.tolist() == found.evaluations["steps"].tolist() == [0, 96, 192]
    for one, other in zip(
        jax.tree.leaves(out.policy.params),
        jax.tree.leaves(found.policy_of(3, "latest").policy.params),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    for name in ("total_loss", "entropy", "actor_gradient_norm", "critic_gradient_norm"):
        means = np.asarray(out.metrics[name]).reshape(2, 3).mean(axis=1)
        np.testing.assert_allclose(means, found.metrics[name], rtol=1e-4, err_msg=name)
    assert set(out.metrics) >= set(found.metrics) - {
        "steps",
        "updates",
        "seconds",
        "steps_per_second",
    }
    assert out.evaluations.returns.shape == (3, config.arch.num_eval_episodes)
    acting = run.trained(out)
    assert acting.steps == found.policy.steps
    assert run.trained(out, "latest").steps == found.evaluations["steps"][-1]
    with pytest.raises(ConfigError, match=r"output: has 2 rows; give one: jax\.tree\.map"):
        run.trained(jax.tree.map(lambda x: jnp.stack([x, x]), out))
    obs = np.zeros(acting.system.env.observation_space.shape, np.float32)
    np.testing.assert_array_equal(acting.act(obs)[0], found.policy.act(obs)[0])


def test_rows_of_vmap_are_runs_alone_and_grids_change_one_number() -> None:
    run = jaxppo.make_train(coin(arch={"num_updates": 2, "absolute_metric": False}))
    keys = jax.random.split(jax.random.key(0), 3)
    grid = run.hyperparameters.replace(actor_lr=jnp.asarray([1e-4, 1e-2]))
    assert grid.critic_lr.shape == (2,)
    assert grid.num_updates.dtype == jnp.int32
    both = jax.jit(jax.vmap(jax.vmap(run, (0, None)), (None, 0)))(keys, grid)
    alone = jax.jit(run)
    for row, rate in enumerate((1e-4, 1e-2)):
        for column in range(3):
            out = alone(keys[column], run.hyperparameters.replace(actor_lr=rate))
            got = jax.tree.map(lambda x, at=(row, column): x[at], both)
            for one, other in zip(outputs(got), outputs(out), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    assert np.isnan(both.absolute_metric).all()
    moved = [np.asarray(x) for x in jax.tree.leaves(both.policy.params["actor_head"])]
    assert all((x[0] != x[1]).any() for x in moved)


def test_a_whole_run_is_of_one_agent() -> None:
    with pytest.raises(ConfigError, match=r"arch.num_seeds=2: make_train makes one agent"):
        jaxppo.make_train(coin(arch__num_seeds=2))
    assert jaxppo.make_train(coin(), env=Clock()).system.env.time_limit is not None


def test_the_package_shows_what_there_is() -> None:
    assert sorted(dir(jaxppo)) == sorted([*jaxppo.__all__, "__version__"])
    for name in jaxppo.__all__:
        assert getattr(jaxppo, name).__doc__
    assert {jaxppo.ConfigError, jaxppo.Result, jaxppo.Block} == {ConfigError, Result, Block}
    assert SMALL["network"] is NETWORK


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
from conftest import small_config

run = jaxppo.make_train(small_config(env={"target": "envs.Coin"}, arch={"num_updates": 2}))
keys = jax.random.split(jax.random.key(0), 4)
mesh = Mesh(np.asarray(jax.devices()), ("device",))
spec = PartitionSpec("device")
mapped = jax.shard_map(
    jax.vmap(run), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
)
sharded, together = jax.jit(mapped)(keys), jax.jit(jax.vmap(run))(keys)
for one, other in zip(jax.tree.leaves(sharded.metrics), jax.tree.leaves(together.metrics)):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

def rounds(key, _):  # in the caller's own scan
    key, own = jax.random.split(key)
    return key, run(own).absolute_metric

found = jax.jit(lambda key: jax.lax.scan(rounds, key, None, 2)[1])(jax.random.key(1))
key, first = jax.random.split(jax.random.key(1))
np.testing.assert_allclose(found[0], jax.jit(run)(first).absolute_metric, rtol=1e-5)
print("done")
"""


@pytest.mark.long
def test_a_whole_run_works_over_devices_and_in_a_callers_scan() -> None:
    assert on_devices(2, SHARDED).splitlines()[-1] == "done"


TYPED = """
from typing import Any

import jax

import jaxppo
from jaxppo import Block, ConfigError, Result
from jaxppo.algorithms.objectives import hyperparameters
from jaxppo.algorithms.ppo_data import Steps
from jaxppo.config.fields import traced
from jaxppo.types import AgentState


@hyperparameters(bound=traced(3.0, "a bound", low=1))
def mine(agent: AgentState, steps: Steps, distribution: Any, log_prob: jax.Array) -> jax.Array:
    return log_prob * steps.advantage


def late(block: Block) -> bool:
    return block.steps > 1000


def main() -> Result:
    try:
        return jaxppo.train(["env=cartpole"], on_block=late)
    except ConfigError as error:
        raise SystemExit(str(error)) from error
"""


@pytest.mark.long
def test_a_users_program_is_typed(tmp_path: Path) -> None:
    """A misspelt name and a wrong call of a decorated objective are errors; the rest is none."""
    root = Path(__file__).resolve().parents[2]
    (tmp_path / "good.py").write_text(TYPED)
    wrong = '\njaxppo.trian(["env=cartpole"])\nmine(3)\nlate(3)\n'
    (tmp_path / "bad.py").write_text(TYPED + wrong)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "good.py", "bad.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(root), "MYPY_CACHE_DIR": str(root / ".mypy_cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert all(line.startswith("bad.py:") for line in lines), lines
    kinds = [line.rpartition("[")[2].rstrip("]") for line in lines]
    assert kinds == ["attr-defined", "call-arg", "arg-type", "arg-type"], lines
