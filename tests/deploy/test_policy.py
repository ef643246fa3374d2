"""Policies of runs: which they are, how they act, and what they may name."""

import dataclasses
import json
import pickle
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import NETWORK, small_config
from envs import FarAim
from runs import coin, fresh, some

import jaxppo
from jaxppo import evaluate
from jaxppo.algorithms.acting import unroll
from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import BoundsWarning
from jaxppo.config.schema import Config
from jaxppo.config.stored import plain
from jaxppo.config.trust import check_trust
from jaxppo.deploy.policy import with_env
from jaxppo.extras.films import film
from jaxppo.runtime.run import loop
from jaxppo.runtime.store import checkpoint
from jaxppo.types import Policy


def head(name: str) -> dict[str, str]:
    return {"_target_": f"jaxppo.networks.heads.{name}"}


@pytest.fixture
def trained(tmp_path: Path) -> Callable[[Config], Path]:
    """`trained(config)`: the directory of such a run."""

    def call(config: Config) -> Path:
        folder = tmp_path / "run"
        folder.mkdir()
        loop.run(config, folder)
        return folder

    return call


load = partial(jaxppo.load, trust=["envs"])


def absolute_metric(run_dir: Path) -> float:
    return float(json.loads((run_dir / "summary.json").read_text())["absolute_metric"])


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(coin(), marks=pytest.mark.slow),
        *(coin("memory"), some("envs.Masked"), coin(evaluation_greedy=False)),
    ],
    ids=["statistics", "memory", "mask", "sampled"],
)
def test_episodes_are_those_of_the_absolute_metric(trained: Any, config: Config) -> None:
    run_dir = trained(config)
    policy = load(run_dir)
    num = 10 * config.arch.num_eval_episodes
    returns = policy.evaluate(num).returns
    assert returns.shape == (num,)
    assert np.mean(returns, dtype=np.float64) == absolute_metric(run_dir)
    fewer = policy.evaluate(7)
    np.testing.assert_array_equal(fewer.returns, returns[:7])


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [some("envs.Echo"), some("envs.Masked"), some("envs.Parts"), some("envs.Mixed"),
     some("envs.Aim"), some("envs.Echo", memory=True)],
    ids=["vector", "mask", "multi-discrete", "dict", "continuous", "memory"],
)  # fmt: skip
def test_acting_is_that_of_training(config: Config) -> None:
    """Greedy and sampled, one or many, with statistics, mask and memory, step by step."""
    policy = fresh(config)
    env = policy.system.env
    state, obs = env.reset(jax.random.split(jax.random.key(0), 3))
    carry, expected_carry = None, policy.system.algorithm.network.initial_carry(3)
    reset = jnp.ones(3, bool)
    for step in range(4):
        key = jax.random.fold_in(jax.random.key(1), step)
        greedy, after = policy.act(obs, carry=carry, reset=reset)
        drawn, _ = policy.act(obs, key, carry=carry, reset=reset)
        add_time = jax.tree.map(lambda x: x[None], (obs, reset))
        expected_carry, output = unroll(policy.system, policy.policy, expected_carry, *add_time)
        now = jax.tree.map(lambda x: x[0], output.distribution)
        close(greedy, now.to_action(now.mode()))
        close(drawn, now.to_action(now.sample_and_log_prob(seed=key)[0]))
        close(after, expected_carry)
        for i in range(3):
            mine = None if carry is None else jax.tree.map(lambda x, i=i: x[i], carry)
            single, own = policy.act(
                jax.tree.map(lambda x, i=i: np.asarray(x[i]), obs), carry=mine, reset=reset[i]
            )
            close(single, jax.tree.map(lambda x, i=i: x[i], greedy))
            close(own, jax.tree.map(lambda x, i=i: x[i], after))
        carry = after
        state, found = env.step(jax.random.split(key, 3), state, drawn)
        obs, reset = found.obs, found.terminated | found.truncated


def close(one: Any, other: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-5, 1e-6), one, other)


def test_statistics_are_applied_and_change_what_it_does(trained: Any) -> None:
    policy = load(trained(coin(num_updates=8)))
    moved = dataclasses.replace(
        policy.policy.obs_statistics, mean=policy.policy.obs_statistics.mean + 100.0
    )
    other = dataclasses.replace(policy, policy=dataclasses.replace(
        policy.policy, obs_statistics=moved))  # fmt: skip
    obs = policy.system.env.reset(jax.random.split(jax.random.key(0), 2))[1]
    with_them = unroll_values(policy.system, policy.policy, obs)
    without = unroll_values(other.system, other.policy, obs)
    assert not np.allclose(with_them, without)


def unroll_values(built: Any, policy: Policy, obs: Any) -> np.ndarray:
    add_time = jax.tree.map(lambda x: x[None], obs)
    carry = built.algorithm.network.initial_carry(2)
    _, output = unroll(built, policy, carry, add_time, jnp.ones((1, 2), bool))
    return np.asarray(output.value.mean())


@pytest.mark.long
def test_acting_holds_under_jit_and_vmap(trained: Any) -> None:
    policy = load(trained(some("envs.Echo")))
    obs = policy.system.env.reset(jax.random.split(jax.random.key(0), 6))[1]
    alone, _ = policy.act(obs)
    np.testing.assert_array_equal(jax.jit(lambda x: policy.act(x)[0])(obs), alone)
    np.testing.assert_array_equal(jax.vmap(lambda x: policy.act(x)[0])(obs), alone)


@pytest.mark.long
def test_which_policy(trained: Any) -> None:
    """The best by evaluation, the latest, and any that stayed."""
    run_dir = trained(coin(num_updates=8))
    latest, _ = checkpoint.newest(run_dir)
    assert latest is not None
    best = load(run_dir)
    assert best.steps == latest.facts["members"][0]["best"]["steps"]
    assert load(run_dir, "latest").steps == latest.steps
    for steps in checkpoint.steps_in(run_dir / "checkpoints"):
        policy = load(run_dir, steps)
        assert policy.steps == steps
        found = checkpoint.read(checkpoint.path_of(run_dir, steps))
        for path, leaf in jax.tree.leaves_with_path(policy.policy.params):
            name = f"[0].agent.policy.params{jax.tree_util.keystr(path)}"
            np.testing.assert_array_equal(leaf, found.arrays[name][0])
        if steps == best.steps:
            close(policy.policy.params, best.policy.params)


@pytest.mark.long
def test_one_of_several_members(trained: Any) -> None:
    run_dir = trained(coin("seeds"))
    events = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    (absolute,) = [event for event in events if event["event"] == "absolute"]
    latest, _ = checkpoint.newest(run_dir)
    assert latest is not None
    for seed, score in zip(absolute["seeds"], absolute["member_returns"], strict=True):
        policy = load(run_dir, seed=seed)
        assert policy.config.arch.seed == seed
        np.testing.assert_allclose(policy.evaluate(50).returns.mean(), score, rtol=1e-5)
        for path, leaf in jax.tree.leaves_with_path(policy.policy.params):
            rows = latest.arrays[f"[1].params{jax.tree_util.keystr(path)}"]
            np.testing.assert_array_equal(leaf, rows[seed - 42])
        same = load(run_dir / f"seed_{seed}")
        close(same.policy.params, policy.policy.params)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert load(run_dir).config.arch.seed in summary["seeds"]
    with pytest.raises(ConfigError, match=r"seed=9: is none of 42, 43, 44"):
        load(run_dir, seed=9)


@pytest.mark.long
def test_winners_of_halving_can_be_loaded(trained: Any) -> None:
    run_dir = trained(coin("halving"))
    (seed,) = [
        s for s in range(42, 46)
        if json.loads((run_dir / f"seed_{s}" / "summary.json").read_text())["status"] == "finished"
    ]  # fmt: skip
    policy = load(run_dir)
    assert policy.config.arch.seed == seed
    np.testing.assert_allclose(
        policy.evaluate(50).returns.mean(), absolute_metric(run_dir), rtol=1e-5
    )


@pytest.mark.long
def test_another_environment_of_the_same_kind(trained: Any) -> None:
    run_dir = trained(small_config(
        env={"name": "CartPole-v1", "target": None}, logger={"console": False, "plot": False},
        arch={"num_eval_episodes": 4},
    ))  # fmt: skip
    longer = load(run_dir, env={"params": {"max_steps_in_episode": 7}})
    assert longer.evaluate(5).lengths.max() == 7
    with pytest.raises(ConfigError, match=r"env\.params\.gravty: .* did you mean"):
        load(run_dir, env={"params": {"gravty": 1.0}})


@pytest.mark.long
@pytest.mark.parametrize(
    "call, words",
    [
        (lambda run_dir: load(run_dir, "newest"), "which=newest: must be best, latest"),
        (lambda run_dir: load(run_dir, 7), r"which=7: .* no checkpoint .* has 64, 128"),
        (lambda run_dir: load(run_dir.parent), r"has no checkpoints"),
        (lambda run_dir: load(run_dir).act(np.zeros(5)), r"shapes \[\(5,\)\], but"),
        (lambda run_dir: load(run_dir).act({"a": np.zeros(3)}), "observation: is a dict, but"),
        (
            lambda run_dir: load(run_dir).act(np.zeros((0, 2))),
            "observation: must hold at least one",
        ),
        (lambda run_dir: load(run_dir).act("hello"), "observation: is str where"),
        (lambda run_dir: load(run_dir, which="7e0"), "which=7: .* has no checkpoint of that"),
        (lambda run_dir: load(run_dir, which="7.5"), "which=7.5: must be best, latest or a number"),
        (lambda run_dir: load(run_dir, which="inf"), "which=inf: must be best, latest or a number"),
        (lambda run_dir: load(run_dir, which=np.int64(7)), "which=7: .* has no checkpoint of that"),
        (lambda run_dir: load(run_dir, seed="42"), "seed='42': is none of 42"),
        (lambda run_dir: load(run_dir, trust="envs"), r"trust='envs': must be a list, such as \["),
        (
            lambda run_dir: load(run_dir).act(np.zeros((3, 2)), reset=[True, False]),
            r"reset: has shape \(2,\) for 3 observations",
        ),
        (
            lambda run_dir: load(run_dir).act(
                np.zeros((3, 2)), jax.random.split(jax.random.key(0), 2)
            ),
            r"key: has shape \(2,\) for 3 observations",
        ),
        (lambda run_dir: load(run_dir).evaluate(0), "episodes=0: must be an integer, at least 1"),
        (lambda run_dir: load(run_dir).play(episodes=2.5), "episodes=2.5: must be an integer"),
        (lambda run_dir: film(load(run_dir), episodes=0), "episodes=0: must be an integer, at"),
        (lambda run_dir: film(load(run_dir), max_frames=0), "max_frames=0: must be an integer"),
        (
            lambda run_dir: load(run_dir, env={"target": "envs.Coin"}, trust=["envs"]),
            "env=envs.Coin: its observations or actions do not fit the policy",
        ),
        (lambda run_dir: load(run_dir).act(np.zeros(3, complex)), "is complex.* returns float32"),
    ],
)
def test_mistakes_are_one_line(trained: Any, call: Any, words: str) -> None:
    run_dir = trained(some("envs.Aim", checkpoint={"share": 1.0}))
    with pytest.raises(ConfigError, match=words) as error:
        call(run_dir)
    assert "\n" not in str(error.value)


@pytest.mark.long
def test_policies_are_pickled_by_their_settings_and_arrays(trained: Any) -> None:
    policy = load(trained(some("envs.Aim", checkpoint={"share": 1.0})), trust=["envs"])
    again = pickle.loads(pickle.dumps(policy))
    assert repr(again) == repr(policy)
    assert repr(policy).startswith("TrainedPolicy(envs.Aim, seed ")
    np.testing.assert_array_equal(again.evaluate(5).returns, policy.evaluate(5).returns)
    x = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(
        again.act(x, jax.random.key(0))[0], policy.act(x, jax.random.key(0))[0]
    )


@pytest.mark.long
def test_other_bounds_of_actions_are_one_line(trained: Any, monkeypatch: Any, capsys: Any) -> None:
    """Where a policy is loaded, and in a command that loads one."""
    run_dir = trained(some("envs.Aim"))
    load(run_dir, env={"target": "envs.Aim"})
    for env in (FarAim(), {"target": "envs.FarAim"}):
        with pytest.warns(BoundsWarning, match="20.*trained with.*10.*are stretched"):
            load(run_dir, env=env)
    arguments = [f"run={run_dir}", "env.target=envs.FarAim", "trust=[envs]", "episodes=1"]
    monkeypatch.setattr(sys, "argv", ["evaluate", *arguments])
    evaluate.main()
    assert re.fullmatch(r"env=envs\.FarAim: its action_space.*\n", capsys.readouterr().err)


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e300])
def test_an_observation_that_is_not_finite_is_refused(value: float) -> None:
    """An entry is named; an action before the first is no mistake; a program cannot tell."""
    policy = fresh(some("envs.Echo", env__extras=["last_action", "last_reward"]))
    obs = jax.tree.map(np.asarray, policy.system.env.reset(jax.random.split(jax.random.key(0)))[1])
    policy.act(obs)
    assert obs["last_action"].min() == -1
    wrong = {**obs, "last_reward": np.array([[0.0], [value]])}
    for call in (policy.act, policy.describe):
        with pytest.raises(ConfigError, match=r"^observation\['last_reward'\]: is .* where envs"):
            call(wrong)
    with pytest.raises(ConfigError, match=r"^observation\['last_action'\]: is -2 where .* -1 to 2"):
        policy.act({**obs, "last_action": obs["last_action"] - 1})
    jax.jit(policy.act)({**obs, "last_reward": np.full((2, 1), np.nan)})


@pytest.mark.parametrize("memory", [True, False])
def test_acting_is_one_program(memory: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Each JAX operation beside it would take as long as the whole program."""
    policy = fresh(some("envs.Echo", memory=memory))
    reset = policy.system.env.reset(jax.random.split(jax.random.key(0), 1))
    obs = jax.tree.map(lambda x: np.asarray(x[0]), reset[1])
    _, carry = policy.act(obs)
    jax.clear_caches()
    with jax.log_compiles():
        policy.act(obs, carry=carry, reset=False)
    found = [line for line in caplog.messages if line.startswith("Compiling")]
    assert [line.split()[1] for line in found] == ["jit(_act)"]


def test_parts_of_observations_have_one_batch_size() -> None:
    policy = fresh(some("envs.Masked"))
    obs = policy.system.env.reset(jax.random.split(jax.random.key(0), 3))[1]
    first, *others = jax.tree.leaves(obs)
    assert others
    unequal = jax.tree.unflatten(jax.tree.structure(obs), [first[:2], *others])
    with pytest.raises(ConfigError, match="observation: has shapes"):
        policy.act(unequal)


@pytest.mark.parametrize("memory", [True, False])
def test_a_memory_that_does_not_fit_is_refused(memory: bool) -> None:
    policy = fresh(some("envs.Echo", memory=memory))
    state = policy.system.env.reset(jax.random.split(jax.random.key(0), 3))
    obs = jax.tree.map(np.asarray, state[1])
    alone = jax.tree.map(lambda x: x[0], obs)
    carry = policy.act(obs)[1]
    doubles = jax.tree.map(lambda x: np.asarray(x, np.float64), carry)  # as read from a file
    close(policy.act(obs, carry=doubles)[0], policy.act(obs, carry=carry)[0])
    jax.jit(lambda x, memory: policy.act(x, carry=memory))(obs, carry)
    given = [{"a": np.zeros(3)}, 0, "memory"]
    given += [policy.initial_carry(n) for n in (None, 1, 5)] if memory else []
    for wrong in given:
        with pytest.raises(ConfigError, match=r"^carry: is no memory for a batch of 3; .*carry\(3"):
            policy.act(obs, carry=wrong)
    if memory:
        for wrong in (policy.initial_carry(n) for n in (1, 3)):
            with pytest.raises(ConfigError, match=r"^carry: is no memory for one observation; p"):
                policy.describe(alone, carry=wrong)
        whole = jax.tree.map(lambda x: x.astype(int), policy.initial_carry())
        policy.act(alone, carry=whole)  # integers become floats


EVIL = {
    "a module of the user": ("env", {"target": "envs.Coin", "name": None}, "env.target=envs.Coin"),
    "a module to import": ("env", {"module": "antigravity"}, "env.module=antigravity"),
    "another library": (
        "network",
        {**NETWORK, "actor_torso": {"_target_": "os.system", "command": "touch pwned"}},
        "network.actor_torso._target_=os.system",
    ),
    "an algorithm of the user": (
        "system",
        {"algorithm": "antigravity.Fly"},
        "system.algorithm=antigravity.Fly",
    ),
    "an objective of the user": (
        "system",
        {"objective": "antigravity.fly"},
        "system.objective=antigravity.fly",
    ),
    "what a trusted module imported": (
        "network",
        {**NETWORK, "actor_torso": {"_target_": "jaxppo.networks.torsos.jnp.save", "file": "x"}},
        "torsos.jnp.save",
    ),
    "jaxppo outside of algorithms, environments and networks": (
        "network",
        {
            **NETWORK,
            "actor_torso": {"_target_": "jaxppo.runtime.store.checkpoint._remove", "path": "x"},
        },
        "jaxppo.runtime.store.checkpoint._remove",
    ),
    "inside a layer": (
        "network",
        {**NETWORK, "actor_torso": {
            "_target_": "jaxppo.networks.torsos.MLP",
            "layer_sizes": [{"_target_": "os.system", "command": "touch pwned"}],
        }},
        "=os.system",
    ),
    "a name that begins like a trusted one": (
        "network",
        {**NETWORK, "actor_torso": {"_target_": "optaxes.run"}},
        "optaxes.run",
    ),
}  # fmt: skip


@pytest.mark.parametrize("evil", EVIL)
def test_a_strangers_run_executes_nothing(
    trained: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, evil: str
) -> None:
    """The settings in a manifest with good hashes, and those of config.yaml."""
    group, value, words = EVIL[evil]
    config = coin()
    settings = plain(config)
    settings["env"] |= {"name": "CartPole-v1", "target": None}
    settings[group] |= value
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is not among what a stored run may name") as error:
        check_trust(settings, [])
    assert words in str(error.value)
    assert "trust=[" in str(error.value)
    assert not (tmp_path / "pwned").exists()
    assert "antigravity" not in sys.modules


def test_optimisers_of_optax_need_no_trust() -> None:
    settings = plain(coin())
    settings["env"]["target"] = None
    settings["system"]["optimizer"] = "optax.adabelief"
    check_trust(settings, [])


def test_an_entry_of_another_environment_leaves_the_others() -> None:
    settings = small_config(env__randomize={"gravity": [8.0, 12.0]})
    more = with_env(settings, {"randomize": {"mass": [1.0, 2.0]}})
    assert more.env.randomize == {"gravity": [8.0, 12.0], "mass": [1.0, 2.0]}
    assert with_env(settings, {"randomize": {}}).env.randomize == {}
    for name, value in (("params", None), ("kwargs", 3), ("randomize", [1]), ("curriculum", 3)):
        with pytest.raises(ConfigError, match=rf"env\.{name}=.*: must"):
            with_env(settings, {name: value})


@pytest.mark.long
def test_trust_is_given_by_name(trained: Any) -> None:
    """Runs of a user's own environment are read where the user says so."""
    run_dir = trained(coin())
    manifest = next((run_dir / "checkpoints").glob("*/manifest.json"))
    assert json.loads(manifest.read_text())["config"]["env"]["target"] == "envs.Coin"
    with pytest.raises(ConfigError, match=r"env\.target=envs\.Coin.*trust=\[envs\]"):
        jaxppo.load(run_dir)
    assert jaxppo.load(run_dir, trust=["envs"]).system.env.name == "envs.Coin"
    for manifest in (run_dir / "checkpoints").glob("*/manifest.json"):
        facts = checkpoint.read_manifest(manifest.parent)
        facts["config"]["system"]["algorithm"] = "antigravity.Fly"
        manifest.write_text(checkpoint.sealed(facts))
    with pytest.raises(ConfigError, match=r"system\.algorithm=antigravity\.Fly.*trust=\[antigr"):
        load(run_dir)
    assert "antigravity" not in sys.modules
