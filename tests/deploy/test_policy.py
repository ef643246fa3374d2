"""Policies of runs: which they are, how they act, and what they refuse."""

import copy
import dataclasses
import json
import pickle
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import close, refused, small_config
from envs import FarAim
from runs import coin, events_of, fresh, some

import jaxppo
from jaxppo import evaluate
from jaxppo.algorithms.acting import unroll
from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import BoundsWarning
from jaxppo.deploy.policy import TrainedPolicy, with_env
from jaxppo.extras.films import film
from jaxppo.runtime.run import loop
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.policies import row_of
from jaxppo.types import Discrete

load = partial(jaxppo.load, trust=["envs"])
near = partial(close, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `envs.Aim` with all its checkpoints."""
    folder: Path = tmp_path_factory.mktemp("alone")
    loop.run(some("envs.Aim", checkpoint={"share": 1.0}), folder)
    return folder


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three seeds with a memory and statistics, whose evaluations are sampled."""
    folder: Path = tmp_path_factory.mktemp("several")
    loop.run(coin("memory", num_seeds=3, evaluation_greedy=False), folder)
    return folder


@pytest.fixture(scope="module")
def remembering() -> TrainedPolicy:
    return fresh(some("envs.Echo", memory=True))


def observations(policy: TrainedPolicy, num: int = 3) -> Any:
    reset = jax.jit(policy.system.env.reset)(jax.random.split(jax.random.key(0), num))
    return jax.tree.map(np.asarray, reset[1])


def row(tree: Any, i: int) -> Any:
    return jax.tree.map(lambda x: x[i], tree)


def summary(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return found


@pytest.mark.long
def test_episodes_are_those_of_the_absolute_metric(alone: Path) -> None:
    policy = load(alone)
    returns = policy.evaluate(50).returns
    assert returns.shape == (50,)
    assert np.mean(returns, dtype=np.float64) == summary(alone)["absolute_metric"]
    np.testing.assert_array_equal(policy.evaluate(7).returns, returns[:7])


@pytest.mark.long
def test_one_of_several_members(several: Path) -> None:
    """Its policy, settings and episodes are its own, also by the directory of its seed."""
    (absolute,) = events_of(several, "absolute")
    latest, _ = checkpoint.newest(several)
    assert latest is not None
    for seed, score in zip(absolute["seeds"], absolute["member_returns"], strict=True):
        policy = load(several, seed=seed)
        assert policy.config.arch.seed == seed
        for path, leaf in jax.tree.leaves_with_path(policy.policy.params):
            rows = latest.arrays[f"[1].params{jax.tree_util.keystr(path)}"]
            np.testing.assert_array_equal(leaf, rows[seed - 42])
        if seed > 42:  # a first row is right by chance
            np.testing.assert_allclose(policy.evaluate(50).returns.mean(), score, rtol=1e-5)
            near(load(several / f"seed_{seed}").policy.params, policy.policy.params)
    assert load(several).config.arch.seed in summary(several)["seeds"]
    with pytest.raises(ConfigError, match="seed=9"):
        load(several, seed=9)


def test_the_best_member_is_one_that_is_left_and_has_not_failed() -> None:
    """Halving has dropped seed 10; 12 has failed; 11 was never evaluated."""
    seeds = (10, 11, 12, 13)
    scores, failures = (9.0, None, 8.0, 3.0), (None, None, "diverged", None)
    facts: Any = SimpleNamespace(
        slots=[3, 1, 2],
        members=[
            {"best": {"episode_return": score}, "failure": failure}
            for score, failure in zip(scores, failures, strict=True)
        ],
    )
    assert row_of(facts, seeds, None) == 0
    assert [row_of(facts, seeds, seed) for seed in (13, 11, 12)] == [0, 1, 2]
    with pytest.raises(ConfigError, match="seed=10"):
        row_of(facts, seeds, 10)


@pytest.mark.slow
def test_winners_of_halving_can_be_loaded(tmp_path: Path) -> None:
    loop.run(coin("halving"), tmp_path)
    (seed,) = [s for s in range(42, 46) if summary(tmp_path / f"seed_{s}")["status"] == "finished"]
    policy, score = load(tmp_path), summary(tmp_path)["absolute_metric"]
    assert policy.config.arch.seed == seed
    np.testing.assert_allclose(policy.evaluate(50).returns.mean(), score, rtol=1e-5)


def test_which_policy(alone: Path) -> None:
    """The best by evaluation, the latest, and any that stayed."""
    latest, _ = checkpoint.newest(alone)
    assert latest is not None
    best = load(alone)
    assert best.steps == latest.facts["members"][0]["best"]["steps"]
    assert load(alone, "latest").steps == latest.steps
    stored = checkpoint.steps_in(alone / "checkpoints")
    for steps in {stored[0], best.steps}:
        policy = load(alone, steps)
        assert policy.steps == steps
        found = checkpoint.read(checkpoint.path_of(alone, steps))
        for path, leaf in jax.tree.leaves_with_path(policy.policy.params):
            name = f"[0].agent.policy.params{jax.tree_util.keystr(path)}"
            np.testing.assert_array_equal(leaf, found.arrays[name][0])
        if steps == best.steps:
            near(policy.policy.params, best.policy.params)


@pytest.mark.long
@pytest.mark.parametrize(
    "config", [some("envs.Masked"), some("envs.Mixed", memory=True)], ids=["mask", "memory"]
)
def test_acting_is_that_of_training(config: Any) -> None:
    """Greedy and sampled, one or many, with statistics, mask and memory, step by step."""
    policy = fresh(config)
    env = policy.system.env
    state, obs = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 3))
    step_env = jax.jit(env.step)

    @jax.jit
    def expected(carry: Any, obs: Any, reset: jax.Array, key: jax.Array) -> Any:
        """The memory after a step, and the actions, greedy and drawn."""
        add_time = jax.tree.map(lambda x: x[None], (obs, reset))
        carry, output = unroll(policy.system, policy.policy, carry, *add_time)
        now = jax.tree.map(lambda x: x[0], output.distribution)
        drawn = now.sample_and_log_prob(seed=key)[0]
        return carry, now.to_action(now.mode()), now.to_action(drawn)

    carry, expected_carry = None, policy.system.algorithm.network.initial_carry(3)
    reset = jnp.ones(3, bool)
    for step in range(3):
        key = jax.random.fold_in(jax.random.key(1), step)
        greedy, after = policy.act(obs, carry=carry, reset=reset)
        drawn, _ = policy.act(obs, key, carry=carry, reset=reset)
        expected_carry, *actions = expected(expected_carry, obs, reset, key)
        near([greedy, drawn, after], [*actions, expected_carry])
        mine = None if carry is None else row(carry, step)
        single, own = policy.act(row(obs, step), carry=mine, reset=reset[step])
        near((single, own), row((greedy, after), step))
        carry = after
        state, found = step_env(jax.random.split(key, 3), state, drawn)
        obs, reset = found.obs, found.terminated | found.truncated


def test_acting_holds_under_jit_and_vmap_and_reads_statistics(alone: Path) -> None:
    policy = load(alone)
    obs = observations(policy, 6)
    actions, _ = policy.act(obs)
    np.testing.assert_array_equal(jax.jit(lambda x: policy.act(x)[0])(obs), actions)
    np.testing.assert_array_equal(jax.vmap(lambda x: policy.act(x)[0])(obs), actions)
    statistics = policy.policy.obs_statistics
    other = dataclasses.replace(
        policy.policy, obs_statistics=dataclasses.replace(statistics, mean=statistics.mean + 100.0)
    )
    assert not np.allclose(dataclasses.replace(policy, policy=other).act(obs)[0], actions)


@pytest.mark.long
def test_another_environment_of_the_same_kind(several: Path) -> None:
    shorter = load(several, env={"params": {"max_steps_in_episode": 2}})
    assert shorter.evaluate(5).lengths.max() == 2
    with pytest.raises(ConfigError, match=r"env\.params\.max_stps.*it has max_steps_in_episode"):
        load(several, env={"params": {"max_stps": 1}})


def test_an_entry_of_another_environment_leaves_the_others() -> None:
    settings = small_config(env__randomize={"gravity": [8.0, 12.0]})
    more = with_env(settings, {"randomize": {"mass": [1.0, 2.0]}})
    assert more.env.randomize == {"gravity": [8.0, 12.0], "mass": [1.0, 2.0]}
    assert with_env(settings, {"randomize": {}}).env.randomize == {}
    for name, value in (("params", None), ("kwargs", 3), ("randomize", [1]), ("curriculum", 3)):
        with pytest.raises(ConfigError, match=rf"env\.{name}=.*: must"):
            with_env(settings, {name: value})


def test_other_bounds_of_actions_are_one_line(alone: Path, monkeypatch: Any, capsys: Any) -> None:
    """Where a policy is loaded, and in a command that loads one."""
    load(alone, env={"target": "envs.Aim"})
    for env in (FarAim(), {"target": "envs.FarAim"}):
        with pytest.warns(BoundsWarning, match="20.*10"):
            load(alone, env=env)
    arguments = [f"run={alone}", "env.target=envs.FarAim", "trust=[envs]", "episodes=1"]
    monkeypatch.setattr(sys, "argv", ["evaluate", *arguments])
    evaluate.main()
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_policies_are_pickled_by_their_settings_and_arrays(alone: Path) -> None:
    policy = load(alone)
    again = pickle.loads(pickle.dumps(policy))
    assert repr(again) == repr(policy)
    np.testing.assert_array_equal(again.evaluate(5).returns, policy.evaluate(5).returns)
    x, key = np.ones((3, 2), np.float32), jax.random.key(0)
    np.testing.assert_array_equal(again.act(x, key)[0], policy.act(x, key)[0])


@pytest.mark.parametrize(
    "call, key",
    [
        (lambda run: load(run, "newest"), "which=newest"),
        (lambda run: load(run, 7), r"which=7: .*64, 128"),
        (lambda run: load(run, "7e0"), "which=7:"),
        (lambda run: load(run, "inf"), "which=inf"),
        (lambda run: load(run, np.int64(7)), "which=7:"),
        (lambda run: load(run, seed="42"), "seed='42'"),
        (lambda run: load(run, trust="envs"), "trust='envs'"),
        (lambda run: jaxppo.load(run), r"env\.target=envs\.Aim.*trust=\[envs\]"),
        (lambda run: load(run, env={"target": "envs.Coin"}), "env=envs.Coin"),
        (lambda run: load(run).evaluate(0), "episodes=0"),
        (lambda run: load(run).play(episodes=2.5), "episodes=2.5"),
        (lambda run: film(load(run), max_frames=0), "max_frames=0"),
    ],
)
def test_mistakes_of_loading_are_one_line(alone: Path, call: Any, key: str) -> None:
    with refused(key):
        call(alone)


def test_an_observation_that_does_not_fit_is_refused() -> None:
    aim, masked = fresh(some("envs.Aim")), fresh(some("envs.Masked"))
    first, *others = jax.tree.leaves(seen := observations(masked))
    unequal = jax.tree.unflatten(jax.tree.structure(seen), [first[:2], *others])
    for policy, obs, more, key in (
        (aim, np.zeros(5), {}, "observation"),
        (aim, {"a": np.zeros(3)}, {}, "observation"),
        (aim, np.zeros((0, 2)), {}, "observation"),
        (aim, "hello", {}, "observation"),
        (aim, np.zeros(2, complex), {}, "observation"),
        (masked, unequal, {}, "observation"),
        (aim, np.zeros((3, 2)), {"reset": [True, False]}, "reset"),
        (aim, np.zeros((3, 2)), {"key": jax.random.split(jax.random.key(0), 2)}, "key"),
        (aim, np.zeros(2), {"key": 0}, "key: must be a typed key"),
        (aim, np.zeros(2), {"key": jax.random.PRNGKey(0)}, "key: must be a typed key"),
    ):
        with refused(f"^{key}"):
            policy.act(obs, **more)


def test_an_observation_that_is_not_finite_is_refused() -> None:
    """An entry is named; an action before the first is no mistake; a program cannot tell."""
    policy = fresh(some("envs.Echo", env__extras=["last_action", "last_reward"]))
    obs = observations(policy, 2)
    policy.act(obs)
    assert obs["last_action"].min() == -1
    for value in (np.nan, -np.inf, 1e300):
        for call in (policy.act, policy.describe):
            with pytest.raises(ConfigError, match=r"^observation\['last_reward'\]"):
                call({**obs, "last_reward": np.array([[0.0], [value]])})
    with pytest.raises(ConfigError, match=r"^observation\['last_action'\]: is -2"):
        policy.act({**obs, "last_action": obs["last_action"] - 1})
    jax.jit(policy.act)({**obs, "last_reward": np.full((2, 1), np.nan)})


@pytest.mark.long
def test_integers_are_those_of_the_environment() -> None:
    """Spaces may count from another number than 0; values outside of them are refused."""
    policy, obs = fresh(some("envs.Echo")), observations(fresh(some("envs.Echo")))
    moved = copy.copy(policy.system.env)
    moved.observation_space = {**moved.observation_space, "shown": Discrete(3, start=3)}
    moved.action_space = Discrete(moved.action_space.num_values, start=-5)
    other = dataclasses.replace(policy, system=dataclasses.replace(policy.system, env=moved))
    obs["shown"] = np.arange(3)
    for key in (None, jax.random.key(3)):
        action, _ = policy.act(obs, key)
        np.testing.assert_array_equal(
            other.act({**obs, "shown": obs["shown"] + 3}, key)[0], action - 5
        )
    for shown in (2, 6):
        with pytest.raises(ConfigError, match=rf"^observation\['shown'\]: is {shown} .* 3 to 5"):
            other.act({**obs, "shown": np.array([3, shown, 4])})


@pytest.mark.long
def test_acting_is_one_program(
    remembering: TrainedPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    """Each JAX operation beside it would take as long as the whole program."""
    obs = row(observations(remembering), 0)
    _, carry = remembering.act(obs)
    jax.clear_caches()
    with jax.log_compiles():
        remembering.act(obs, carry=carry, reset=False)
    found = [line for line in caplog.messages if line.startswith("Compiling")]
    assert [line.split()[1] for line in found] == ["jit(_act)"]


@pytest.mark.long
@pytest.mark.parametrize("memory", [True, False])
def test_a_memory_that_does_not_fit_is_refused(remembering: TrainedPolicy, memory: bool) -> None:
    policy = remembering if memory else fresh(some("envs.Echo"))
    obs = observations(policy)
    alone = row(obs, 0)
    carry = policy.act(obs)[1]
    doubles = jax.tree.map(lambda x: np.asarray(x, np.float64), carry)  # as read from a file
    near(policy.act(obs, carry=doubles)[0], policy.act(obs, carry=carry)[0])
    given = [{"a": np.zeros(3)}, 0, "memory"]
    given += [policy.initial_carry(n) for n in (None, 1, 5)] if memory else []
    for wrong in given:
        with pytest.raises(ConfigError, match=r"^carry: .*carry\(3"):
            policy.act(obs, carry=wrong)
    if memory:
        for wrong in (policy.initial_carry(n) for n in (1, 3)):
            with pytest.raises(ConfigError, match=r"^carry: .*one observation"):
                policy.describe(alone, carry=wrong)
        whole = jax.tree.map(lambda x: x.astype(int), policy.initial_carry())
        policy.act(alone, carry=whole)  # integers become floats
