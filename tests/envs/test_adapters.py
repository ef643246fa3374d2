"""What makes many episodes of one environment, the contract's check, and other libraries."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import loops
import numpy as np
import pytest
from conftest import small_config
from files import CONFIGS, commented, composed
from flax import struct
from gymnasium import spaces
from rollouts import rollout

import jaxppo
from jaxppo import check_env, envs
from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import installing
from jaxppo.config.parse import known_keys, parse
from jaxppo.config.schema import EnvConfig
from jaxppo.envs import contract
from jaxppo.extras.drawings import drawing
from jaxppo.launch import environments
from jaxppo.networks.building import find_action_mask
from jaxppo.runtime.run import jobs, loop
from jaxppo.types import Box, Discrete

ROOT = Path(__file__).resolve().parents[2]


def own(name: str, **settings: Any) -> EnvConfig:
    return EnvConfig(target=name if "." in name else f"own_envs.{name}", **settings)


# Action 1 terminates, and 4 steps truncate: the second environment terminates after 2 steps, then
# after 4
ACTIONS = np.zeros((9, 2), np.int32)
ACTIONS[[1, 5], 1] = 1
TIMES = np.array([[1, 1], [2, 2], [3, 1], [4, 2], [1, 3], [2, 4], [3, 1], [4, 2], [1, 3]])


def test_the_clock_truncates_and_the_successor_is_what_the_step_led_to() -> None:
    opening, steps = rollout(envs.make(own("Count")), ACTIONS)
    np.testing.assert_array_equal(steps.final_observation[..., 0], TIMES)
    np.testing.assert_array_equal(steps.reward, TIMES)
    np.testing.assert_array_equal(steps.truncated, TIMES == 4)
    np.testing.assert_array_equal(steps.terminated, ACTIONS == 1)
    over = steps.truncated | steps.terminated
    np.testing.assert_array_equal(steps.obs[..., 0], np.where(over, 0, TIMES))
    start = opening[:, 1]
    for obs, final, ends in zip(steps.obs, steps.final_observation, over, strict=True):
        np.testing.assert_array_equal(final[:, 1], start)  # of the episode that the step was in
        np.testing.assert_array_equal(obs[:, 1] == start, ~ends)
        start = obs[:, 1]


class Keys:
    """Each step is an episode; observations are drawn from the keys."""

    observation_space, action_space, time_limit = Box((1,), "float32"), Discrete(2), 1

    def reset(self, key: jax.Array) -> Any:
        drawn = jax.random.uniform(key, (1,))
        return drawn, drawn

    def step(self, key: jax.Array, state: Any, action: Any) -> Any:
        return *self.reset(key), 0.0, False, False


def test_a_reset_has_another_key_than_the_step_before() -> None:
    _, steps = rollout(envs.make(own("test_adapters.Keys")), np.zeros((9, 8), np.int32))
    drawn = [*steps.obs.ravel(), *steps.final_observation.ravel()]
    assert len(set(drawn)) == len(drawn)


def test_optimistic_resets_share_an_opening_only_where_more_end() -> None:
    optimistic, each = (
        envs.make(own("Count", resets=x, reset_ratio=4)) for x in ("optimistic", "each")
    )
    for ending, distinct in ((range(8), 2), ([2, 7], 2), ([5], 1)):  # of 8 / 4 openings
        actions = np.zeros((1, 8), np.int32)
        actions[0, list(ending)] = 1
        for env, num in ((optimistic, distinct), (each, len(ending))):
            opening, steps = rollout(env, actions)
            after = steps.obs[-1, steps.terminated[-1], 1]
            assert len(after) == len(ending)
            assert len(set(after)) == num
            assert not set(after) & set(opening[:, 1])
    env = envs.make(EnvConfig(params={"max_steps_in_episode": 1}, resets="optimistic"))  # gymnax's
    keys, stay = jax.random.split(jax.random.key(0), 32), jnp.zeros(32, jnp.int32)
    _, step = jax.jit(lambda keys: env.step(keys, env.reset(keys)[0], stay))(keys)
    assert len(np.unique(np.asarray(step.obs), axis=0)) == 2


def test_cached_resets_are_those_of_the_first_episodes() -> None:
    env = envs.make(own("Count", resets="cached"))
    opening, steps = rollout(env, np.ones((1, 64), np.int32))
    after = set(steps.obs[-1, :, 1])
    assert after < set(opening[:, 1])
    assert len(after) > 20  # of 64 drawn from 64, 40 or so


@pytest.mark.parametrize("resets, typed", [("optimistic", True), ("cached", False)])
def test_copies_of_a_start_have_futures_of_their_own(resets: str, typed: bool) -> None:
    """Of 64 environments in one step, and of each of them in later episodes."""
    config = own("Drawing", resets=resets, reset_ratio=64, kwargs={"typed": typed})
    actions = np.zeros((60, 64), np.int32)
    actions[::2] = 1
    _, steps = rollout(envs.make(config), actions)
    starts, followers = steps.obs[:-1:2, :, 1], steps.obs[1::2, :, 1]
    assert all(len(set(row)) < 64 for row in starts)
    assert len(np.unique(followers)) > 0.99 * followers.size


WRONG = {  # what breaks the contract -> the promise, and part of the finding
    "WideState": ("forms", "float32[4]"),
    "Entries": ("forms", "['x']"),
    "FlagOfOne": ("forms", "terminated"),
    "FourValues": ("forms", "4 values"),
    "Branches": ("forms", "TracerBoolConversionError"),
    "NotANumber": ("values", "NaN"),
    "Random": ("determinism", ""),
    "NoSpace": ("made", "action_space is 2"),
    "NotAnEnvironment": ("made", "own_envs.NotAnEnvironment"),
    "Masked": ("mask", "action_mask"),
    "MaskOfThree": ("runs", "(3,)"),
    "broken_envs.SixValues": ("forms", "6 values"),
    "broken_envs.ObsOnly": ("made", "reset_env"),
    "broken_envs.NoSuccessor": ("forms", "final_observation"),
    "broken_envs.Unpacks": ("forms", "broken_envs.py"),
    "broken_envs.Discount": ("forms", "NotImplementedError"),
    "broken_envs.NoTime": ("forms", "time"),
    "broken_envs.Forgets": ("successor", "final_observation"),
    "broken_envs.Confuses": ("ends", "terminated and not truncated"),
    "broken_envs.Endless": ("ends", "went on past"),
}


@pytest.mark.long
@pytest.mark.parametrize("target", WRONG)
def test_what_breaks_the_contract_is_told(target: str) -> None:
    checks = contract.check(own(target), 16)
    found = [(each.name, line) for each in checks for line in each.findings]
    promise, words = WRONG[target]
    assert any(name == promise and words in line for name, line in found), found
    assert {name for name, _ in found} == {promise}
    assert not any("\n" in line for _, line in found)


@pytest.mark.parametrize(
    "form, named", [((9.0, (3,)), False), ((9.0, (2,), int), False), ((9.0, (1, 2), int), True)]
)
def test_a_space_that_says_other_forms_than_observations_is_told(form: Any, named: bool) -> None:
    """With both, by the check and by a run, which takes those of the observation."""
    config = own("broken_envs.Declares", kwargs={"entries": {"x": form}, "named": named})
    says = f"{np.dtype(np.int32 if form[2:] else np.float32)}{[*form[1]]}"
    (wrong,) = (line for each in contract.check(config, 8) for line in each.findings)
    assert contract.glance(config) == [wrong]
    for words in ("observation_space" + "['x']" * named, says, "float32[2]"):
        assert words in wrong


@pytest.mark.parametrize(
    "entries, said",
    [
        ({"x": (jnp.ones(3), (3,))}, r"float32\[3\].*float32\[2\]"),
        ({"x": (1.0, (2,)), "y": (1.0, (2,))}, "'y'"),
        ({"x": (jnp.ones(3), (2,))}, "bounds of "),
    ],
)
def test_bounds_of_another_shape_or_entry_than_the_observation_are_refused(
    entries: dict[str, Any], said: str
) -> None:
    kwargs = {"entries": entries, "named": "y" in entries}
    with pytest.raises(ConfigError, match=said):
        envs.make(own("broken_envs.Declares", kwargs=kwargs))


@pytest.mark.long_but(1)
@pytest.mark.parametrize("name", [None, "Catch-bsuite", "FourRooms-misc"])
def test_spaces_of_libraries_are_not_refused(name: str | None) -> None:
    """Two of gymnax's own say another type: a line to look at, as nobody here can mend it."""
    for each in [name] if name else set(envs.registered("gymnax")) - {"MNISTBandit-bsuite"}:
        made: Any = envs.make(EnvConfig(name=each))
        says_other = each in ("Catch-bsuite", "FourRooms-misc")
        assert len(made.misdeclared) == says_other, each
    if name:
        _, forms, *_ = contract.check(EnvConfig(name=name), 2)
        assert (forms.findings, forms.hints) == ([], made.misdeclared)


def test_a_limit_and_a_data_type_may_be_of_numpy_or_python() -> None:
    assert repr(envs.make(own("Given", kwargs={"time_limit": np.int64(5)})).time_limit) == "5"
    config = small_config(env={"target": "own_envs.Masked", "kwargs": {}})
    env = envs.make(config.env)
    env.observation_space = {"x": Box((2,), "float32"), "action_mask": Box((2,), bool)}
    assert find_action_mask(config, env) == "action_mask"


@pytest.mark.long
@pytest.mark.parametrize("target, resets", [("Count", "optimistic"), ("envs.Mixed", "each")])
def test_what_keeps_the_contract_is_found_to(target: str, resets: str) -> None:
    checks = contract.check(own(target, resets=resets), 16)
    assert [each.findings for each in checks] == [[]] * 8, checks
    assert not any(each.hints for each in checks)


def test_few_steps_find_nothing_wrong_and_say_what_was_not_checked() -> None:
    """Fewer than those of the run that is traced again; an episode starts without an action."""
    checks = contract.check(dataclasses.replace(own("envs.Clock"), extras=["last_action"]), 2)
    assert [line for each in checks for line in each.findings] == []
    assert [each.name for each in checks if each.hints] == ["successor"]


@pytest.mark.parametrize(
    "target, words",
    [
        ("broken_envs.Counts", "self.steps"),
        ("broken_envs.Draws", "another function each time"),
        ("broken_envs.Outside", "observation"),
        ("broken_envs.Raises", "env.target=broken_envs.Raises"),
        ("broken_envs.InheritedLimit", "env.params.max_steps_in_episode"),
        ("envs.Masked", None),
        ("own_envs.Count", None),
    ],
)
def test_a_glance_finds_what_a_second_shows(target: str, words: str | None) -> None:
    found = contract.glance(own(target))
    assert (words is None) == (found == []), found
    assert words is None or any(words in line for line in found)


@pytest.mark.long
@pytest.mark.parametrize(
    "target, name, words",
    [
        ("broken_envs.Beyond", "indices", "shape (3,): index 3"),
        ("broken_envs.LimitInDone", "ends", "the time limit of 5 steps"),
        ("Late", "ends", "the time limit of 4 steps"),
        ("Arrivals", "indices", "not checked"),
        ("LateLimit", "ends", "not checked at the time limit of 99 steps"),
    ],
)
def test_what_may_be_meant_is_looked_at(target: str, name: str, words: str) -> None:
    """And said, without an exit status of 1."""
    checks = contract.check(own(target), 16)
    (found,) = (each for each in checks if each.hints)
    assert found.name == name
    assert words in found.hints[0]
    assert not any(each.findings for each in checks)


@pytest.mark.long
def test_what_ends_with_its_time_limit_is_right() -> None:
    """A task that ends after as many steps; one of a single step, with gymnax's own limit."""
    for config in (EnvConfig(name="DeepSea-bsuite"), own("broken_envs.Bandit")):
        assert contract.glance(config) == []


@pytest.mark.long
def test_the_documented_example_is_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its code, and its command line, from where the page says them."""
    text = (ROOT / "docs" / "environments.md").read_text()
    (code,) = re.findall(r"```python[^\n]*\n(.*?)```", text, re.S)
    (tmp_path / "my_package.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    (command,) = re.findall(r"python -m jaxppo\.check_env (.*)", text)
    check_env.report(command.split())
    assert all(line.startswith("ok ") for line in capsys.readouterr().out.splitlines())


def test_the_executable_says_what_is_wrong_and_exits_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        check_env.report(["env.target=own_envs.FlagOfOne", "steps=8"])
    assert end.value.code == 1
    made, wrong = capsys.readouterr().out.splitlines()
    assert (made.split()[:2], wrong.split()[:2]) == (["ok", "made"], ["WRONG", "forms"])
    with pytest.raises(SystemExit):  # what training refuses
        check_env.report(["env.target=own_envs.Given", "env.kwargs={time_limit:null}", "steps=8"])
    *right, wrong = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok ") for line in right)
    assert wrong.startswith("WRONG  trains       arch.max_eval_steps=null")
    for typed in ("steps=0", "steps=many"):
        with pytest.raises(ConfigError, match=typed):
            check_env.report([typed])


@pytest.mark.long
def test_an_environment_of_ones_own_trains_and_plays_again(tmp_path: Path) -> None:
    env = {"target": "own_envs.Count", "resets": "cached"}
    result = loop.run(small_config(env=env, arch__num_eval_episodes=6), tmp_path)
    policy = jaxppo.load(tmp_path, trust=["own_envs"])
    assert float(np.mean(policy.evaluate(6).returns)) == pytest.approx(result)
    with pytest.raises(ConfigError, match=r"env\.target=own_envs\.Count"):
        jaxppo.load(tmp_path)
    with pytest.raises(ConfigError, match=r"Count.*frame\(state\)"):
        drawing(policy.system.env)


def test_a_library_that_is_missing_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is a folder of its name, which Python imports."""
    for library in sorted(set(envs.PACKAGES) - {"gymnax"}):
        for spec in (None, ModuleSpec(library, None)):
            monkeypatch.setattr(importlib.util, "find_spec", lambda name, spec=spec: spec)
            with pytest.raises(ConfigError) as error:
                envs.make(EnvConfig(library=library, name="some"))
            assert f"env.library={library}" in str(error.value)
            assert installing(library) in str(error.value)


def found(name: str) -> ModuleSpec:
    """Where a fake module is."""
    return ModuleSpec(name, None, origin=f"/here/{name}.py")


def pretend(monkeypatch: pytest.MonkeyPatch, library: str, **modules: Any) -> None:
    """Put fake modules in the place of a library's, under a new adapter."""
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**module))
    monkeypatch.setattr(importlib.util, "find_spec", found)
    adapter = f"jaxppo.envs.{library}"
    monkeypatch.setitem(sys.modules, adapter, ModuleType(adapter))
    monkeypatch.setattr(envs, library, None, raising=False)
    del sys.modules[adapter]


def make_of(library: str, name: str, **kwargs: Any) -> Any:
    return envs.make(EnvConfig(library=library, name=name, kwargs=kwargs))


@pytest.mark.parametrize("ask", [envs.registered, functools.partial(make_of, name="some")])
def test_a_module_of_a_librarys_name_is_named(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "pgx", pgx={})
    with pytest.raises(ConfigError, match=r"^env\.library=pgx: .*/here/pgx\.py"):
        ask("pgx")


@pytest.mark.parametrize("most, limit", [(0, None), (2**31 - 1, None), (200, 200)])
def test_what_envpool_writes_for_no_bound_is_none(
    most: int, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    space, settings = spaces.Box(0, 1, (2,), np.float32), {"max_episode_steps": most}
    space.low[1] = np.finfo(np.float32).tiny

    def make(name: str, **_: Any) -> Any:
        config = SimpleNamespace(**settings, max_num_players=2 if name == "Two" else 1)
        shown = {"observation_space": space, "action_space": spaces.Discrete(2)}
        return SimpleNamespace(spec=SimpleNamespace(config=config), close=list, **shown)

    module = {"list_all_envs": lambda: ["One", "Two"], "make_gymnasium": make}
    pretend(monkeypatch, "envpool", envpool=module)
    env = make_of("envpool", "One")
    assert env.time_limit == limit
    assert env.observation_space.low == (0, -np.inf)
    with pytest.raises(ConfigError, match=r"^env\.name=Two"):
        make_of("envpool", "Two")


@struct.dataclass
class Walked:
    """What Brax and Playground call a state; `done` at step 4 and from 9 on."""

    reward: jax.Array
    done: jax.Array
    obs: jax.Array
    metrics: Any = dataclasses.field(default_factory=dict)


class Walking:
    action_size = 1

    def reset(self, key: jax.Array) -> Walked:
        return Walked(*jnp.zeros(2), jnp.zeros(1))

    def step(self, state: Walked, action: jax.Array) -> Walked:
        time = state.obs + 1
        done = ((time == 4) | (time >= 9))[0].astype(jnp.float32)
        return Walked(reward=action[0] * time[0], done=done, obs=time)


class Settings(dict[str, Any]):
    __getattr__ = dict.__getitem__


BRAX = {"_envs": {"Walk": Walking}, "get_environment": lambda name: Walking()}
REGISTRY = {
    "ALL_ENVS": ("Walk",),
    "get_default_config": lambda name: Settings(episode_length=1000, action_repeat=1),
    "load": lambda name, config: Walking(),
}
FAKES: dict[str, Any] = {
    "brax": {"brax": {"envs": SimpleNamespace(**BRAX)}},
    "playground": {"mujoco_playground": {"registry": SimpleNamespace(**REGISTRY)}},
}


@pytest.mark.parametrize("library", FAKES)
def test_an_action_is_repeated_as_by_braxs_wrapper(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewards are summed, all steps count for the limit, and only the last one's end counts."""
    pretend(monkeypatch, library, **FAKES[library])
    actions = np.ones((6, 2, 1), np.float32)
    for length, end, flag in ((1000, 2, "terminated"), (8, 2, "truncated")):
        env = make_of(library, "Walk", action_repeat=3, episode_length=length)
        _, steps = rollout(env, actions)
        np.testing.assert_array_equal(steps.reward[:, 0], [6, 15, 24] * 2)
        np.testing.assert_array_equal(steps.final_observation[:, 0, 0], [3, 6, 9] * 2)
        np.testing.assert_array_equal(getattr(steps, flag)[:, 0], np.arange(6) % 3 == end)
    with pytest.raises(ConfigError, match=r"^env\.kwargs\.action_repeat=0"):
        make_of(library, "Walk", action_repeat=0)


@struct.dataclass
class Moment:
    """What the libraries below call a state or a step: the time, which is the reward too."""

    observation: jax.Array
    reward: jax.Array
    over: jax.Array

    discount = property(lambda self: 1.0 - self.over)
    info = extras = property(lambda self: {})
    state = property(lambda self: SimpleNamespace(goal_encoding=np.ones(1)))

    def last(self) -> jax.Array:
        return self.over

    is_termination = last


def begin(*_: Any) -> Moment:
    return Moment(observation=jnp.zeros(1), reward=jnp.zeros(()), over=jnp.bool_(False))


def advance(now: Moment, action: jax.Array, limit: Any = np.inf) -> Moment:
    """The next moment; action 1 ends an episode, and so does the limit."""
    time = now.reward + 1
    return Moment(observation=time[None], reward=time, over=(action == 1) | (time >= limit))


@struct.dataclass
class CraftaxParams:
    max_timesteps: int = 4


class OfCraftax:
    num_actions, default_params = 2, CraftaxParams()

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        return begin().observation, begin()

    def step_env(self, key: jax.Array, state: Moment, action: Any, params: Any) -> Any:
        state = advance(state, action, params.max_timesteps)
        return state.observation, state, state.reward, state.over, {}


class OfJumanji:
    def __init__(self, time_limit: int = 4) -> None:
        self.time_limit, self.action_spec = time_limit, Spec()

    def reset(self, key: jax.Array) -> Any:
        return begin(), begin()

    def step(self, state: Moment, action: jax.Array) -> Any:
        return (advance(state, action, self.time_limit),) * 2


class Spec:
    num_values, dtype = 2, jnp.int32


@struct.dataclass
class XLandParams:
    max_steps: int = 4


OF_NAVIX = {"action_set": (0, 1), "max_steps": 4, "reset": begin, "_step": advance}
OF_XLAND = {
    "num_actions": lambda params: 2,
    "reset": begin,
    "step": lambda params, state, action: advance(state, action),
}
ENDING: dict[str, dict[str, Any]] = {  # library -> its modules
    "craftax": {
        "craftax": {},
        "craftax.craftax_env": {"make_craftax_env_from_name": lambda *_, **__: OfCraftax()},
    },
    "jumanji": {
        "jumanji": {"specs": SimpleNamespace(DiscreteArray=Spec)},
        "jumanji.registration": {
            "make": lambda name, **kwargs: OfJumanji(**kwargs),
            "registered_environments": lambda: ["Walk"],
        },
    },
    "navix": {
        "navix": {"registry": lambda: ["Walk"], "make": lambda name: SimpleNamespace(**OF_NAVIX)}
    },
    "xminigrid": {
        "xminigrid": {
            "registered_environments": lambda: ["Walk"],
            "make": lambda name: (SimpleNamespace(**OF_XLAND), XLandParams()),
            "benchmarks": SimpleNamespace(DATA_PATH=""),
        }
    },
}


@pytest.mark.parametrize("library", ENDING)
def test_a_librarys_limit_truncates_and_its_task_terminates(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Craftax and Jumanji end an episode at their limit as if the task had ended."""
    pretend(monkeypatch, library, **ENDING[library])
    name = "Craftax-Symbolic-v1" if library == "craftax" else "Walk"
    _, steps = rollout(make_of(library, name), ACTIONS)
    np.testing.assert_array_equal(steps.final_observation[..., 0], TIMES)
    np.testing.assert_array_equal(steps.reward, TIMES)
    np.testing.assert_array_equal(steps.truncated, TIMES == 4)
    np.testing.assert_array_equal(steps.terminated, ACTIONS == 1)


class OfJaxMARL:
    """Each agent observes its number and the time, and gets what it does."""

    agents, max_steps = ("a", "b"), 4

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def reset(self, key: jax.Array) -> Any:
        return self.observe(jnp.zeros(())), jnp.zeros(())

    def step_env(self, key: jax.Array, time: jax.Array, actions: Any) -> Any:
        time = time + 1
        done = dict.fromkeys(self.agents, False) | {"__all__": time >= self.max_steps}
        return self.observe(time), time, actions, done, {}

    def observe(self, time: jax.Array) -> Any:
        return {agent: jnp.stack([i + 1.0, time]) for i, agent in enumerate(self.agents)}

    def get_avail_actions(self, time: jax.Array) -> Any:
        return {"a": jnp.array([1, 0]), "b": jnp.array([0, 0])}


def test_agents_of_jaxmarl_have_their_own_observations_rewards_and_masks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mask that allows nothing allows all; all agents are truncated at the limit."""
    module = SimpleNamespace(make=lambda name: OfJaxMARL())
    monkeypatch.setitem(sys.modules, "jaxmarl", module)
    env = envs.make(own("jaxppo.envs.jaxmarl.JaxMARL", kwargs={"name": "Two"}))
    actions = np.array([[0, 1, 1, 0]] * 5, np.int32)  # of two worlds
    _, steps = rollout(env, actions)
    np.testing.assert_array_equal(steps.reward, actions)
    last = steps.final_observation
    times = np.broadcast_to([[1], [2], [3], [4], [1]], (5, 4))
    np.testing.assert_array_equal(last["observation"][..., 1], times)
    np.testing.assert_array_equal(last["observation"][0, :, 0], [1, 2, 1, 2])
    np.testing.assert_array_equal(last["privileged_state"][0, :2], [[1, 1, 2, 1], [2, 1, 1, 1]])
    np.testing.assert_array_equal(last["action_mask"][0, :2], [[True, False], [True, True]])
    np.testing.assert_array_equal(steps.truncated, times == 4)
    assert not steps.terminated.any()


def test_a_download_that_fails_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "playground", **FAKES["playground"])

    def load(*_: Any, **__: Any) -> None:
        raise subprocess.CalledProcessError(128, ["git", "clone"])

    monkeypatch.setattr(sys.modules["mujoco_playground"].registry, "load", load)
    with pytest.raises(ConfigError, match=r"^env\.name=Walk: .*mujoco_playground"):
        make_of("playground", "Walk")


def test_an_environment_of_a_library_that_fails_asks_for_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, "brax", **FAKES["brax"])
    monkeypatch.setattr(Walking, "step", lambda *_: jnp.clip(1, a_minimum=0))
    with pytest.raises(ConfigError, match=r"^env\.name=Walk: .*versions of brax and jax"):
        make_of("brax", "Walk")


NESTED = sorted(
    p.relative_to(CONFIGS / "env").as_posix()[:-5] for p in CONFIGS.glob("env/*/*.yaml")
)
FIRST = [env for env in NESTED if env == min(x for x in NESTED if x.startswith(env.split("/")[0]))]


@pytest.mark.parametrize(
    "env", [env if env in FIRST else pytest.param(env, marks=pytest.mark.slow) for env in NESTED]
)
def test_a_librarys_file_changes_known_settings(env: str) -> None:
    config = parse(composed(f"env={env}")).env
    assert config.library == env.partition("/")[0]
    assert env in environments.tuned()[config.library, config.name]
    for key, _ in commented(f"env/{env}.yaml"):
        assert key in known_keys() or key.startswith(
            ("defaults.", "env.kwargs.", "network.", "system.schedules.")
        )


# Environments beyond those of the files, and settings with which some of their episodes end.
FURTHER = [
    *(f"brax/{name} env.kwargs.backend=spring" for name in ("hopper", "halfcheetah")),
    "brax/ant env.kwargs.backend=generalized env.kwargs.episode_length=20",
    "jumanji/snake +env.kwargs.time_limit=40",
    "jumanji/snake +env.kwargs.num_rows=3 +env.kwargs.num_cols=3",  # where it is soon trapped
    *(f"jumanji/maze env.name={name}" for name in ("RubiksCube-v0", "Cleaner-v0")),
    *(
        f"jumanji/maze env.name={name} arch.max_eval_steps=100"  # which have no time limit
        for name in ("Minesweeper-v0", "TSP-v1", "Knapsack-v1", "MultiCVRP-v0")
    ),
    "navix/empty env.name=Navix-DoorKey-6x6-v0 +env.kwargs.observation_fn=symbolic_first_person",
    "craftax/classic +env.params.max_timesteps=60",
    "xminigrid/empty env.name=MiniGrid-DoorKey-5x5",
    "pgx/connect_four env.name='2048' env.metrics=[]",  # a game for one tells no results
    *(f"pgx/tic_tac_toe env.name={name}" for name in ("backgammon", "kuhn_poker")),
    *(f"pgx/connect_four env.opponent={name} env.random_moves=5" for name in ("self", "pool")),
    "playground/cartpole_balance +env.kwargs.episode_length=20",
    "playground/cartpole_balance +env.kwargs.episode_length=20 +env.kwargs.impl=warp",
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [*NESTED, *FURTHER])
@pytest.mark.filterwarnings("default")  # of the libraries' own
def test_a_librarys_environment_keeps_the_contract(settings: str) -> None:
    library = settings.partition("/")[0]
    pytest.importorskip(envs.PACKAGES[library], reason=f"{installing(library)}, or make adapters")
    config = parse(composed(*f"env={settings}".split()))
    checks = contract.check(config.env)
    assert not any(each.findings for each in checks), checks
    if re.search("limit=|length=|max_timesteps=", settings):  # short: the clock's ends alone
        (ends,) = (each.seen for each in checks if each.name == "ends")
        assert re.search("[1-9][0-9]* truncated", ends)
    assert jobs.prepare(config)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CartpoleBalance", "CheetahRun"])  # without and with contacts
@pytest.mark.filterwarnings("default")
def test_warp_simulates_what_jax_does(name: str) -> None:
    """Over the ends of episodes too, in two update batches of environments."""
    pytest.importorskip("mujoco_playground", reason=installing("playground"))
    playground = importlib.import_module("jaxppo.envs.playground")
    keys = jax.random.split(jax.random.key(0), (2, 3))
    found = []
    for impl in ("jax", "warp"):
        kwargs = {"impl": impl, "episode_length": 6}
        env = playground.make(EnvConfig(library="playground", name=name, kwargs=kwargs))
        size = env.action_space.shape[0]
        actions = jnp.sin(jnp.arange(10 * 3 * size)).reshape(10, 3, size)

        def play(keys: jax.Array, env: Any = env, actions: jax.Array = actions) -> Any:
            def step(state: Any, action: jax.Array) -> Any:
                return env.step(keys, state, action)

            state, obs = env.reset(keys)
            return obs, jax.lax.scan(step, state, actions)[1]

        found.append(jax.jit(jax.vmap(play))(keys))
    ours, theirs = map(jax.tree.leaves, found)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(
            np.asarray(one, np.float64), np.asarray(other, np.float64), rtol=1e-3, atol=1e-3
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, kwargs",
    [
        *((name, {}) for name in ("animal_shogi", "backgammon", "chess", "connect_four")),
        *((name, {}) for name in ("gardner_chess", "go_9x9", "go_19x19", "hex", "kuhn_poker")),
        *((name, {}) for name in ("leduc_holdem", "othello", "shogi", "tic_tac_toe")),
        *(("go_9x9", kwargs) for kwargs in ({"size": 5}, {"komi": 0.5})),
    ],
)
@pytest.mark.filterwarnings("default")
def test_players_move_in_turn_unless_the_game_says_otherwise(
    name: str, kwargs: dict[str, Any]
) -> None:
    """In random games from the rules alone; each can be drawn."""
    pytest.importorskip("pgx", reason=installing("pgx"))
    env: Any = envs.make(EnvConfig(library="pgx", name=name, kwargs=kwargs))
    game, num = env.one, 16

    def advance(state: Any, key: jax.Array) -> Any:
        logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
        action = jax.random.categorical(key, logits)
        after = jax.vmap(game.step)(jax.random.split(key, num), state, action)[0]
        over = state.terminated | state.truncated | after.terminated | after.truncated
        same = jax.vmap(game.turn)(after) == jax.vmap(game.turn)(state)
        return after, (~over, same)

    start = jax.vmap(game.reset)(jax.random.split(jax.random.key(0), num))[0]
    keys = jax.random.split(jax.random.key(1), 60)
    last, (goes_on, same) = jax.jit(lambda x: jax.lax.scan(advance, x, keys))(start)
    assert (same & goes_on).any() == (not env.alternates)
    assert goes_on.any()
    if name == "go_9x9":
        assert env.action_space.num_values == kwargs.get("size", 9) ** 2 + 1
    if "size" not in kwargs:
        assert "<svg" in game.svg(jax.tree.map(lambda x: x[0], last))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["connect_four", "kuhn_poker", "othello", "tic_tac_toe"])
@pytest.mark.filterwarnings("default")
def test_one_answer_of_an_opponent_is_all_that_a_game_in_turn_needs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pgx", reason=installing("pgx"))
    games = importlib.import_module("jaxppo.envs.pgx")

    def play() -> Any:
        env = envs.make(EnvConfig(library="pgx", name=name))

        def advance(carry: Any, key: jax.Array) -> Any:
            state, obs = carry
            logits = jnp.where(obs["action_mask"], 0.0, -jnp.inf)
            action = jax.random.categorical(key, logits)
            state, step = env.step(jax.random.split(key, len(action)), state, action)
            return (state, step.obs), (step, state.inner.current_player != state.seat)

        start = env.reset(jax.random.split(jax.random.key(0), 32))
        keys = jax.random.split(jax.random.key(1), 40)
        return jax.tree.map(np.asarray, jax.jit(lambda x: jax.lax.scan(advance, x, keys)[1])(start))

    step, waits = play()
    assert step.terminated.any()
    assert not waits.any()
    monkeypatch.setattr(games, "ALTERNATING", set())
    jax.tree.map(np.testing.assert_array_equal, (step, waits), play())


@pytest.mark.filterwarnings("default")
def test_pgxs_network_of_a_game_takes_legal_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    pgx: Any = pytest.importorskip("pgx", reason=installing("pgx"))

    def network(model_id: str) -> Any:
        """All but sure of the last move of its board."""
        num = {"othello_v0": 65, "hex_v0": 12}[model_id]
        return lambda obs: (jnp.broadcast_to(1e3 * jnp.arange(num), (len(obs), num)), None)

    def make(name: str) -> Any:
        return envs.make(EnvConfig(library="pgx", name=name, evaluation_opponent="baseline"))

    monkeypatch.setattr(pgx, "make_baseline_model", network)
    games = envs.make_for_evaluation(
        EnvConfig(library="pgx", name="othello", evaluation_opponent="baseline"), make("othello")
    )
    keys = jax.random.split(jax.random.key(0), 8)
    mask = np.asarray(jax.random.bernoulli(keys[0], 0.3, (8, 65)))
    obs = {"observation": jnp.zeros((8, 8, 8, 2), bool), "action_mask": mask}
    found = np.asarray(games._choose(obs, keys))  # type: ignore[attr-defined]
    np.testing.assert_array_equal(found, 64 - np.argmax(mask[:, ::-1], axis=1))
    with pytest.raises(ConfigError, match=r"^env\.evaluation_opponent=baseline: fails"):
        make("hex")
    with pytest.raises(ConfigError, match=r"baseline: Pgx has none for tic_tac_toe"):
        make("tic_tac_toe")
    monkeypatch.setattr(pgx, "make_baseline_model", lambda model_id: sys.exit(1))
    with pytest.raises(ConfigError, match=r"baseline: cannot be read .*baselines/othello_v0\.ckpt"):
        make("othello")


OWN_LOOPS = [
    "gymnax CartPole-v1 max_steps_in_episode=40",
    "brax fast episode_length=9 action_repeat=4",
    "brax inverted_pendulum episode_length=12 backend=positional",
    "playground CartpoleSwingup episode_length=9 action_repeat=2",
    "craftax Craftax-Classic-Symbolic-v1 max_timesteps=15",
    "jumanji Snake-v1 num_rows=3 num_cols=3",
    "jumanji MultiCVRP-v0",
    "jumanji PacMan-v1 time_limit=12",
    "navix Navix-Dynamic-Obstacles-5x5-v0 max_steps=15",
    "xminigrid MiniGrid-DoorKey-5x5 max_steps=12",
    "pgx 2048",
]
LIMITS = ("max_steps_in_episode", "episode_length", "max_timesteps", "time_limit", "max_steps")


@pytest.mark.slow
@pytest.mark.parametrize("case", OWN_LOOPS)
@pytest.mark.filterwarnings("default")
def test_first_episodes_are_those_of_the_librarys_own_loop(case: str) -> None:
    """Rewards, ends and observations, under the same actions."""
    library, name, *given = case.split()
    pytest.importorskip(envs.PACKAGES[library], reason="make adapters")
    settings = dict(each.split("=") for each in given)
    kwargs = {key: int(x) if x.isdigit() else x for key, x in settings.items()}
    in_params = library in ("gymnax", "craftax", "xminigrid")
    config = EnvConfig(
        library=library, name=name, **{"params" if in_params else "kwargs": dict(kwargs)}
    )
    limit = next((kwargs.pop(key) for key in LIMITS if key in kwargs), None)
    if library == "jumanji" and limit:
        kwargs["time_limit"] = limit
    start, advance = map(jax.jit, getattr(loops, library)(name, limit, **kwargs))
    env = envs.make(config)
    keys = jax.random.split(jax.random.key(3), 3)
    state, obs = jax.jit(env.reset)(keys)
    step = jax.jit(env.step)
    theirs = [start(key) for key in keys]
    over = np.zeros(3, bool)
    for number in range(400):
        action = np.stack([loops.fixed(env.action_space, 3 * number + row) for row in range(3)])
        keys = jax.random.split(jax.random.key(number), 3)
        state, found = step(keys, state, action)
        for row in np.flatnonzero(~over):
            same(theirs[row][1], obs, row)
            *theirs[row], reward, ends = advance(keys[row], theirs[row][0], action[row])
            np.testing.assert_allclose(found.reward[row], reward, 1e-4, 1e-6)
            same(theirs[row][1], found.final_observation, row)
            assert bool(found.terminated[row] | found.truncated[row]) == bool(ends)
            assert not ends or found.truncated[row] == (number + 1 == env.time_limit)
            over[row] = ends
        obs = found.obs
        if over.all():
            return
    raise AssertionError("an episode did not end")


def same(theirs: Any, ours: Any, row: int) -> None:
    """Compare an observation with the row of another; entries that the first has not are left."""
    if isinstance(theirs, dict):
        for key, part in theirs.items():
            same(part, ours[key], row)
    else:
        np.testing.assert_allclose(np.asarray(ours)[row], np.asarray(theirs), 1e-4, 1e-4)


OF_SIMULATORS = [
    "gymnasium CartPole-v1",
    "gymnasium HalfCheetah-v5 max_episode_steps=20",
    "envpool CartPole-v1",
    "envpool HalfCheetah-v4 max_episode_steps=20",
    "envpool Breakout-v5 episodic_life=1",
]


@pytest.mark.slow
@pytest.mark.parametrize("case", OF_SIMULATORS)
@pytest.mark.filterwarnings("default")
def test_steps_of_simulators_are_those_of_the_librarys_own_loop(case: str) -> None:
    """Over several episodes of two environments, which end in different steps."""
    library, name, *given = case.split()
    pytest.importorskip(library)
    if "Cheetah" in name:
        pytest.importorskip("mujoco")
    kwargs = {key: int(x) for key, _, x in (each.partition("=") for each in given)}
    env = make_of(library, name, **kwargs)
    actions = [
        np.stack([loops.fixed(env.action_space, 2 * number + row) for row in range(2)])
        for number in range(400)
    ]
    rows = [
        getattr(loops, library)(name, 5 + row, [each[row] for each in actions], **kwargs)
        for row in range(2)
    ]
    with contextlib.closing(env.make(2)) as pool:
        pool.reset([0, 1], [5, 6])
        arrays = pool.arrays
        for action, *steps in zip(actions, *rows, strict=True):
            pool.step([action])
            for row, wanted in enumerate(steps):
                found = (arrays.final[0], arrays.reward, arrays.terminated, arrays.truncated)
                for one, other in zip((*found, arrays.obs[0]), wanted, strict=True):
                    np.testing.assert_allclose(one[row], other, 1e-6)
    ends = [[step[2] or step[3] for step in steps] for steps in rows]
    assert all(sum(each) > 5 for each in ends)
    assert ends[0] != ends[1] or "Cheetah" in name  # a row ends while the other goes on


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_worlds_of_xland_have_goals_of_a_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each episode draws one, or all have that of a number; without any they are refused."""
    benchmarks = pytest.importorskip("xminigrid.benchmarks", reason="make adapters")
    core = {name: importlib.import_module(f"xminigrid.core.{name}") for name in ("goals", "rules")}
    tiles = jnp.asarray([[3, 1], [6, 2]], jnp.uint8)
    wanted = jnp.stack([core["goals"].AgentHoldGoal(tile=tile).encode() for tile in tiles])
    found = {"goals": wanted, "init_tiles": tiles[:, None], "num_rules": jnp.zeros(2, int)}
    found["rules"] = jnp.stack([core["rules"].EmptyRule().encode()[None]] * 2)
    benchmarks.save_bz2_pickle(found, str(tmp_path / "trivial_21k"))
    monkeypatch.setattr(benchmarks, "DATA_PATH", str(tmp_path))
    name, of_it = "XLand-MiniGrid-R1-9x9", {"benchmark": "trivial-21k"}

    def goals(**kwargs: Any) -> Any:
        env, keys = make_of("xminigrid", name, max_steps=1, **kwargs), jax.random.key(0)
        keys = jax.random.split(keys, (6, 32))
        state, _ = env.reset(keys[0])
        shown = []
        for each in keys[1:]:
            state, _ = env.step(each, state, jnp.zeros(32, int))
            shown.append(state.inner.state.goal_encoding[:, 1])
        return np.stack(shown)

    assert (goals(**of_it, ruleset_id=1) == 6).all()
    drawn = goals(**of_it)
    assert set(drawn.ravel()) == {3, 6}
    assert (drawn != drawn[0]).any()
    for world, kwargs, words in (
        (name, {}, "has no goal.*env.kwargs.benchmark.*trivial-21k"),
        ("MiniGrid-Playground", {}, "has no goal.*another environment"),
        (name, {**of_it, "ruleset_id": 2}, "ruleset_id=2: must be at least 0 and at most 1"),
        (name, {"ruleset_id": 2}, "ruleset_id=2: needs env.kwargs.benchmark"),
    ):
        with pytest.raises(ConfigError, match=words):
            make_of("xminigrid", world, **kwargs)
