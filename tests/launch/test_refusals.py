"""Mistakes on the command line: each is refused in one line that names the key."""

import functools
import shlex
import typing
from pathlib import Path
from typing import Any
from urllib.error import URLError

import envs
import gymnax.utils.load_mnist
import jax
import jax.numpy as jnp
import pytest
from cli import Outcome
from gymnax.environments import spaces
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from jaxppo.config.fields import ConfigError
from jaxppo.config.parse import parse
from jaxppo.launch import composing
from jaxppo.launch.door import config_dir
from jaxppo.launch.errors import explain
from jaxppo.launch.sweeping import check_sweep, check_sweeper
from jaxppo.runtime.run.jobs import prepare
from jaxppo.runtime.store import directories


def yes(agent: Any, steps: Any, distribution: Any, log_prob: jax.Array) -> jax.Array:
    return log_prob > 0


def averaged(agent: Any, steps: Any, distribution: Any, log_prob: jax.Array) -> jax.Array:
    """No objective, since it gives one number for all steps."""
    return jnp.mean(log_prob)


def unbounded() -> envs.Takes:
    """An environment that takes any two floats."""
    return envs.Takes(spaces.Box(-float("inf"), float("inf"), (2,)))


@pytest.fixture(autouse=True)
def broken_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raises.py").write_text('raise RuntimeError("no licence found")\n')
    monkeypatch.syspath_prepend(tmp_path)


def assert_names(line: str, keys: str) -> None:
    """One line with each of `keys`, which bars part."""
    assert len(line.splitlines()) == 1, line
    assert "Traceback" not in line
    for key in keys.split("|"):
        assert key in line


@functools.cache
def of_files(groups: tuple[str, ...]) -> Any:
    """The settings of files, composed once."""
    return OmegaConf.create(composing.plain_settings(*composing.composed("ff_ppo", groups)))


def prepared(typed: str) -> None:
    """Prepare a run by what is typed, without Hydra but for the choice of files."""
    words = shlex.split(typed)
    groups = tuple(word for word in words if "." not in word.partition("=")[0].partition("@")[0])
    settings = of_files(groups).copy()
    for override in OverridesParser.create().parse_overrides([w for w in words if w not in groups]):
        value = override.value()
        OmegaConf.update(settings, override.key_or_group, value, merge=False, force_add=True)
    prepare(parse(typing.cast(dict[str, Any], OmegaConf.to_container(settings, resolve=True))))


OF_TESTS = "env.name=null env.target=envs."
OWN = "env.name=null env.target=test_refusals.unbounded"
DISTRIBUTIONAL = "jaxppo.algorithms.distributional_ppo.DistributionalPPO"
TORSO, CRITIC = "network.actor_torso", "network/critic_head=categorical"
SETTINGS = {  # what is typed, and what the line must name: settings that do not fit each other
    "system.objective=no_such_module.mine": "system.objective|no_such_module",
    "system.objective=math.sqrt": "system.objective=math.sqrt|distribution, log_prob",
    "system.objective=test_refusals.yes": "system.objective=test_refusals.yes|bool",
    "system.objective=test_refusals.averaged": "system.objective=test_refusals.averaged|()",
    # a gradient that would be biased
    "system.objective=reinforce": "system.objective=reinforce|system.epochs=4|importance_weights",
    "system.importance_weights=true": "system.importance_weights=true|system.objective=reinforce",
    "env=gymnasium arch.actors=1 system.objective=reinforce system.epochs=1": (
        "system.objective=reinforce|arch.max_policy_lag=1|system.importance_weights"
    ),
    "system.value_clip_eps=0.1": "system.value_clip_eps=0.1|system.clip_value_loss=true",
    "system.objective=clip_dimensions system.log_ratio_clip=1": "system.log_ratio_clip|clip_dim",
    "system.min_loss_change=0.1 system.epochs=2": "system.min_loss_change=0.1|system.epochs=2",
    "system.obs_min_std=2 system.obs_max_std=1": "system.obs_min_std=2.0|system.obs_max_std=1.0",
    "system.schedules.log_ratio_clip.end=1": "system.schedules.log_ratio_clip|null",
    # environments
    "env=gymnasium env.name=CartPole-v9": "env.name=CartPole-v9|CartPole-v1|goes into env.module)",
    "env.name=null env.target=os.getcwd": "os.getcwd",
    "env.name=null env.target=raises.Env": "env.target=raises.Env|no licence found",
    f"{OF_TESTS}Masked env.action_mask=observation": "env.action_mask=observation|float32",
    "env.metrics=[success]": "env.metrics=[success]|CartPole-v1|discount",
    f"{OF_TESTS}Clock env.metrics=[success]": "env.metrics=[success]|none",
    f"{OF_TESTS}Shown env.metrics=[shown]": "env.metrics=[shown]|shown.weight",
    f"{OF_TESTS}Shown env.metrics=[weight] env.randomize.weight=[1,2]": "env.metrics=[weight]",
    "env.metrics=[discount:median]": "env.metrics=[discount:median]|last, sum, mean, max",
    "env.metrics=[discount,discount:sum]": "env.metrics|discount|twice",
    "arch.eval_metric=success": "arch.eval_metric=success|env.metrics=[success]|null",
    "env.metrics=[discount] arch.eval_metric=success": "arch.eval_metric=success|discount",
    # populations
    "population.selection=pbt": "population.selection=pbt|population.size",
    # memories
    "network=lru system.sequence_length=8 network.actor_memory.min_radius=low": "min_radius=low",
    "network=gtrxl system.sequence_length=8 network.actor_memory.num_heads=5": "num_heads=5",
    "env=breakout network=lstm_shared network/input_layer=image system.sequence_length=null "
    "network.shared_torso=null": "network.shared_memory",
    # heads and the actions they take
    "network/actor_head=multi_categorical": "network.actor_head|MultiDiscrete|not Discrete",
    f"{OWN} network/actor_head=tanh_normal": "network.actor_head|network/actor_head=normal",
    f"{OF_TESTS}Mixed network/actor_head=tanh_normal": "network.actor_head|auto",
    f"{CRITIC} system.clip_value_loss=true": "system.clip_value_loss=true|network/critic_head",
    f"{CRITIC} system.value_loss=huber": "system.value_loss=huber|network/critic_head",
    f"system.algorithm={DISTRIBUTIONAL}": "DistributionalPPO|network/critic_head=categorical",
    f"{CRITIC} system.algorithm={DISTRIBUTIONAL} system.normalize_values=true": (
        "system.normalize_values=true|DistributionalPPO"
    ),
    # layers and the observations they take
    f"network/torso@{TORSO}=cnn": f"{TORSO}|CartPole-v1|network/input_layer=image",
    "network=cnn": "network.input_layer|(4,)",
    "env=breakout network.shared_torso.kernel_sizes=[11]": "network|kernel_sizes=[11]|10x10",
    "env=breakout network.shared_torso.strides=[1,1]": "network.shared_torso|strides=[1, 1]",
    "network/input_layer=select": "network.input_layer|key='observation'",
    f"network/torso@{TORSO}=chain {TORSO}.layers=[64]": f"{TORSO}|layers.0=64|_target_",
    "network.critic_head=null": "network.critic_head=null",
    "network.critic_head._target_=jaxppo.networks.torsos.MLP": "network.critic_head",
    "network.actor_head._target_=jaxppo.networks.heads.ScalarHead": "network.actor_head",
    f"{TORSO}.layer_sizes=64": f"{TORSO}|layer_sizes=64",
    f"{TORSO}._target_=jaxppo.networks.torsos.RNN": f"{TORSO}|torsos.RNN",
}


@pytest.mark.long
@pytest.mark.parametrize("typed", SETTINGS)
def test_settings_that_do_not_fit_are_refused(typed: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        prepared(typed)
    assert_names(str(refusal.value), SETTINGS[typed])


def test_environment_that_cannot_be_downloaded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*arguments: Any) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr(gymnax.utils.load_mnist, "_download", offline)
    with pytest.raises(ConfigError) as refusal:
        prepared("env.name=MNISTBandit-bsuite")
    assert_names(str(refusal.value), "MNISTBandit-bsuite|Name or service not known")


HYDRAS = {  # what Hydra refuses, in our words
    "system.gama=0.9": "system.gama|system.gamma?",
    "clip_eps=0.1": "system.clip_eps?",
    "foo=1": "foo",
    "envs=cartpole": "env=NAME",
    "+system.foo=1": "system.foo",
    f"{TORSO}.layer_size=[3]": f"{TORSO}.layer_sizes?",
    "network=lru network.actor_memory.min_radus=0.5": "network.actor_memory.min_radius?",
    "network.critic_torso.channels=[3]": "network.critic_torso.channels",
    "env=": "env=",
    "env=[cartpole,acrobot]": "env=[cartpole,acrobot]",
    f"network/torso@{TORSO}=[1]": "network/torso",
    "arch.seed=1,2": "arch.seed=1,2|-m",
    "arch.seed=range(5)": "arch.seed=range(5): must be one value|-m",
    "env=cartpole,acrobot": "env=cartpole,acrobot: must be one file|-m",
    f"network/torsoo@{TORSO}=mlp": "network/torsoo: no such group|network/torso?",
    "'env = cartpole'": "env = cartpole|no space",
    "'env.params={length:0.5'": "env.params={length:0.5: not|brackets closed",
    "system.gamma=???": "system.gamma",
    "env=cartpol": "env=cartpol|env=cartpole?",
    "env=ant": "env=ant|env=brax/ant?",
    "env=CartPole-v1": "env=CartPole-v1|env=cartpole?",
    "env=Pong-misc": "env=Pong-misc|env=gymnax env.name=Pong-misc?",
    "env=brax/ants": "env=brax/ants|env=brax/ant?",
    "env=HalfCheetah-v5": "env=gymnasium env.name=HalfCheetah-v5",
    "system.learning_rate=1": "system.learning_rate|system.actor_lr",
    f"network/torso@{TORSO}=transformer": "network/torso|chain, cnn",
    f"network/torso@{TORSO}=null": f"network/torso@{TORSO}=null",
    "network/torso=mlp": "network/torso@network.",
    "network.actor_memory=gru": "network/memory@network.actor_memory=NAME",
    "network/memory@network.actor_memory=lstm": "+network/memory@network.actor_memory",
    f"+{TORSO}.activation=relu": f"+{TORSO}.activation",
    f"+network/torso@{TORSO}=cnn": f"+network/torso@{TORSO}",
    "system.gamma={": "system.gamma={",
    "system.gamma": "system.gamma|key=value",
    "+arch=2": "arch=2",
    f"{TORSO}.layer_sizes=64,64": f"{TORSO}.layer_sizes=64,64|[",
    "system=null": "system=null",
}


@pytest.mark.parametrize("typed", HYDRAS)
def test_what_hydra_refuses_is_said_in_our_words(typed: str) -> None:
    words = shlex.split(typed)
    with pytest.raises(Exception) as refusal:
        composing.compose("ff_ppo", words)
    line = " ".join(str(explain(refusal.value)).split())
    assert_names(line, HYDRAS[typed])
    assert "++" not in line  # which the command line writes itself


LAUNCHED = {  # one of each kind as a command, with what only commands know
    "network/actor_head=beta": "network.actor_head",
    "system.gamma 0.9": "system.gamma",
    "--gamma 0.9": "--gamma",
    "hydra.rundir=out": "hydra.rundir",
    "hydra.run.dir=null": "hydra.run.dir=null",
    f"{TORSO}.layer_sizes.x=64": f"{TORSO}.layer_sizes",
    "-m system.gamma=0.9,2": "system.gamma=2.0",
    "-m resume=nowhere": "resume=nowhere",
}


@pytest.mark.parametrize("typed", LAUNCHED)
def test_a_command_refuses_with_status_2_and_writes_nothing(
    launch: Any, cwd: Path, typed: str
) -> None:
    outcome = launch(*shlex.split(typed))
    assert_refused(outcome, LAUNCHED[typed], cwd)


def assert_refused(outcome: Outcome, keys: str, cwd: Path) -> None:
    """Status 2, one line with every key, nothing left."""
    assert (outcome.status, outcome.out) == (2, "")
    assert_names(outcome.err, keys)
    assert list(cwd.iterdir()) == []


SWEPT = {
    "system.gamma=0.9,high": "system.gamma=high",
    "arch.seed=1,2 env.name=Cartpole-v1": "env.name=Cartpole-v1",
    f"{TORSO}.layer_sizes=[8],[0]": f"{TORSO}|layer_sizes=[0]",
    "system.algorithm=ppo,nope": "system.algorithm=nope",
    "system.num_minibatches=4,7": "system.num_minibatches=7",
    "system.gamma=interval(0.9,1.02)": "system.gamma=1.02",
    "system.gamma=interval(0.99,0.9)": "system.gamma|from 0.99 to 0.9",
    "system.clip_epss=interval(0.1,0.4)": "system.clip_eps?",
    "system.epochs=interval(1,4)": "system.epochs|integer",
    "system.actor_lr=tag(log,interval(0,1))": "system.actor_lr|log",
}


@pytest.mark.parametrize("typed", SWEPT)
def test_sweeps_and_studies_are_checked_before_they_start(typed: str) -> None:
    words = [f"++{each}" if each.startswith("system.") else each for each in typed.split()]
    initialize = initialize_config_dir(version_base=None, config_dir=str(config_dir()))
    with initialize, pytest.raises(ConfigError) as refusal:
        check_sweep("ff_ppo", ["env=cartpole", *words])
    assert_names(str(refusal.value), SWEPT[typed])


BASIC = {"_target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"}


@pytest.mark.parametrize(
    "sweeper, typed, key",
    [
        (BASIC, ["system.gamma=interval(0.5,0.9)"], "system.gamma=interval(0.5,0.9)"),
        ({**BASIC, "params": {"system.gamma": "interval(0.9,1)"}}, [], "system.gamma="),
        ({"_target_": "a.optuna.Sweeper", "direction": "minimize"}, [], "hydra.sweeper.direction="),
    ],
)
def test_a_sweeper_that_cannot_do_it_is_refused(sweeper: Any, typed: list[str], key: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_sweeper(OmegaConf.create(sweeper), typed)
    assert_names(str(refusal.value), key)


@pytest.mark.parametrize(
    "key, check",
    [
        ("out", directories.output_folder),
        ("run_dir", functools.partial(directories.check_run_dir, "run_dir")),
    ],
)
def test_a_directory_that_cannot_be_written_to_is_refused(
    key: str, check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root may write anywhere, the system's answer is made up."""
    monkeypatch.setattr(directories.os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match=rf"^{key}={tmp_path}: .*written to"):
        check(tmp_path)
