"""The command line as a person meets it: runs, sweeps, help, and each mistake in one line."""

import contextlib
import fcntl
import importlib
import importlib.metadata
import json
import os
import pty
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import envs
import gymnax.utils.load_mnist
import jax
import jax.numpy as jnp
import pytest
from cli import BY_CLASS, BY_ID, CARTPOLE, ROOT, SMALL, Outcome
from gymnax.environments import spaces
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

import jaxppo
from jaxppo.config.fields import MAX_FLOAT, ConfigError, as_argument, as_override, quoted
from jaxppo.config.messages import installing
from jaxppo.config.parse import help_text, known_keys, parse
from jaxppo.config.schema import Config
from jaxppo.config.stored import keep_config
from jaxppo.deploy.evaluation import Evaluation
from jaxppo.deploy.export import Export
from jaxppo.extras.films import Rendering
from jaxppo.extras.report import Reporting
from jaxppo.extras.tuning import split
from jaxppo.launch import command_line, composing, sweeping
from jaxppo.launch.composing import config_dir, plain_settings
from jaxppo.launch.errors import explain
from jaxppo.launch.sweeping import check_sweep, check_sweeper
from jaxppo.runtime.run.compiling import TooLargeError
from jaxppo.runtime.run.jobs import Job, TrainingError
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.directories import only_run_in

REFUSAL_LIMIT = 30  # seconds; about 5 on a core that is free
OF_TESTS = "env.name=null env.target=envs."


def yes(agent: Any, steps: Any, distribution: Any, log_prob: jax.Array) -> jax.Array:
    return log_prob > 0


def averaged(agent: Any, steps: Any, distribution: Any, log_prob: jax.Array) -> jax.Array:
    """No objective, since it gives one number for all steps."""
    return jnp.mean(log_prob)


def unbounded() -> envs.Takes:
    """An environment that takes any two floats, as `env.target=test_cli.unbounded`."""
    return envs.Takes(spaces.Box(-float("inf"), float("inf"), (2,)))


FIVE_STEPS = "arch.max_eval_steps=5"  # before the reward of an evaluation turns NaN


def assert_refused(outcome: Outcome, expected: str, cwd: Path) -> None:
    """Status 2, one line with every fragment of `expected` (bars part them), nothing left."""
    assert outcome.out == ""
    assert len(outcome.err.splitlines()) == 1, outcome.err
    assert outcome.err.endswith("\n")
    assert "Traceback" not in outcome.err
    for fragment in expected.split("|"):
        assert fragment in outcome.err
    assert outcome.status == 2
    assert sorted(cwd.rglob("*")) == []


# What is typed, and what its one line has to say.
UNKNOWN = {
    "system.gama=0.9": "system.gama: no such key; did you mean system.gamma?",
    "system.clip_epss=0.1": "system.clip_epss: no such key; did you mean system.clip_eps?",
    "clip_eps=0.1": "clip_eps: no such key; did you mean system.clip_eps?",
    "arch.gamma=0.9": "arch.gamma: no such key; did you mean system.gamma?",
    "arch.num_envs=8": "arch.num_envs: no such key; did you mean arch.total_num_envs?",
    "system.lr=1e-3": "system.lr: no such key; did you mean system.actor_lr?",
    "lr=1e-3": "lr: no such key; did you mean system.actor_lr?",
    "n_steps=5": "n_steps: no such key; did you mean system.rollout_length?",
    "foo=1": "foo: no such key; did you mean ",
    "foo.bar=1": "foo.bar: no such key; did you mean ",
    "+system.foo=1": "system.foo: no such key; did you mean system.",
    "+foo=1": "foo: no such key; did you mean ",
    "+logger.tensorbord=true": "logger.tensorbord: no such key; did you mean logger.tensorboard?",
    "logger.wandb_projct=x": "logger.wandb_projct: no such key; did you mean logger.wandb_project?",
    "network.actor_torso.layer_size=[3]": (
        "network.actor_torso.layer_size: no such key; did you mean network.actor_torso.layer_sizes?"
    ),
    "network.actor_torso={layer_size:[3]}": (
        "network.actor_torso.layer_size: no such key; did you mean network.actor_torso.layer_sizes?"
    ),
    "network.activation=relu": "network.activation: no such key; did you mean network.",
    "network.torso.layer_sizes=[3]": (
        "network.torso.layer_sizes: no such key; did you mean network."
    ),
}
WRONG = {
    # types
    "env=": "env=: env takes the name of one of its files, see --help; for several, -m env=",
    "env=[cartpole,acrobot]": "env=[cartpole,acrobot]: env takes the name of one of its files",
    "network/torso@network.actor_torso=[1]": "network/torso takes the name of one of its files",
    "arch.seed=1,2": "arch.seed=1,2: must be one value|-m (--multirun), or a loop in Python",
    "system.gamma=two": "system.gamma=two: must be a number",
    "system.gamma=true": "system.gamma=True: must be a number",
    "system.gamma=[0.9]": "system.gamma=[0.9]: must be a number",
    "system.gamma='{a: 1}'": "system.gamma={'a': 1}: must be a number",
    "system.gamma=": "system.gamma=: must be a number",
    "system.gamma=null": "system.gamma=null: must be a number",
    "system.gamma=???": "system.gamma",
    "system.epochs=true": "system.epochs=True: must be an integer",
    "system.epochs=1.5": "system.epochs=1.5: must be an integer",
    "arch.seed=abc": "arch.seed=abc: must be an integer",
    "arch.total_timesteps=100k": "arch.total_timesteps=100k: must be an integer (1e7 is one)",
    "arch.total_timesteps=many": "arch.total_timesteps=many: must be an integer|or null",
    "arch.evaluation_greedy=1": "arch.evaluation_greedy=1: must be true or false",
    "arch.evaluation_greedy=yes": "arch.evaluation_greedy=yes: must be true or false",
    "env.name=5": "env.name=5: must be text or null, not int; "
    "in quotes it is text: \"env.name='5'\"",
    "env.params=3": "env.params=3: must be keys and values",
    "env.kwargs=null": "env.kwargs=null: must be keys and values",
    "env.kwargs=[3]": "env.kwargs=[3]: the file's value is of another kind; see --cfg job",
    "population.hyperparameters=3": "population.hyperparameters=3: must be keys and values",
    "arch.compile_cache=''": "arch.compile_cache=",
    "logger.console=0": "logger.console=0: must be true or false",
    "network.actor_torso=[64]": "network.actor_torso=[64]",
    "system.objective=null": "system.objective=null: must be ",
    "system.standardize_advantages=true": "system.standardize_advantages=True: must be ",
    "arch.precision=16": "arch.precision=16: must be ",
    "system.clip_eps_high=high": "system.clip_eps_high=high: must be a number or null",
    "env.extras=step": "env.extras=step: must be a list of names, such as [one,two]",
    "env.extras=null": "env.extras=null: must be a list of names, such as [one,two]",
    "env.extras=[1]": "env.extras=[1]: must be a list of names",
    "env.extras='{step: true}'": "env.extras={step: true}",
    "env.mask=1": "env.mask=1: must be a list of integers, such as [1,3]",
    "env.mask=[velocity]": "env.mask=['velocity']: must be a list of integers, such as [1,3]",
    "env.action_mask=5": "env.action_mask=5: must be text or null",
    "env.action_mask=''": "env.action_mask='': must be text that is not empty",
    # choices
    "system.objective=clipped": (
        "system.objective=clipped: no such choice, and no import path such as my_module.mine; did "
        "you mean clip?|(of clip, penalty, dpo, reinforce)"
    ),
    "system.objective=no_such_module.mine": "no_such_module cannot be imported|PYTHONPATH",
    "system.objective=misspelt.mine": "misspelt cannot be imported|SyntaxError",
    "system.objective=.mine": "system.objective=.mine: an import path such as my_module.my_name",
    "system.objective=math.tau": "system.objective=math.tau: module math has no function tau|clip",
    "system.objective=math.sqrt": (
        "system.objective=math.sqrt: fails on a minibatch"
        "|objective(agent, steps, distribution, log_prob)"
    ),
    "system.objective=test_cli.yes": "system.objective=test_cli.yes: gives bool|no gradient",
    "system.objective=test_cli.averaged": (
        "system.objective=test_cli.averaged: gives () for|not average"
    ),
    "system.algorithm=nope": (
        "system.algorithm=nope: no such choice, and no import path such as my_module.mine; did "
        "you mean pqn?"
    ),
    "system.algorithm=os.path": "system.algorithm=os.path: module os has no class path|one of ppo",
    "system.algorithm=json.JSONDecoder": (
        "system.algorithm=json.JSONDecoder: must be a class that extends "
        "jaxppo.algorithms.algorithm.Algorithm|or one of ppo"
    ),
    "system.algorithm=misspelt.Mine": "misspelt cannot be imported|SyntaxError|PYTHONPATH",
    "system.algorithm=test_configs.Own system.clip_eps=0.3": (
        "system.clip_eps: system.algorithm=test_configs.Own has no such setting; leave it out"
    ),
    "system.algorithm=test_configs.Own +system.learning_rate=-1": (
        "system.learning_rate=-1.0: must be at least 0"
    ),
    "system.advantages=gea": "system.advantages=gea: no such choice; did you mean gae?|vtrace",
    "system.standardize_advantages=batches": (
        "system.standardize_advantages=batches: no such choice; did you mean batch?"
        "|(of batch, minibatch, none)"
    ),
    "system.value_loss=l2": "system.value_loss=l2: no such choice|(of squared, huber)",
    "arch.precision=fp16": (
        "arch.precision=fp16: no such choice; did you mean bf16?|(of float32, tf32, bf16, highest)"
    ),
    # rules
    "system.gamma=1.0001": "system.gamma=1.0001: must be at least 0 and at most 1|nearest|: 1",
    "system.gamma=-0.1": "system.gamma=-0.1: must be at least 0 and at most 1|nearest|: 0",
    "system.gamma=nan": "system.gamma=nan: must be a finite number",
    "system.gamma=inf": "system.gamma=inf: must be a finite number",
    "system.gae_lambda=1.5": "system.gae_lambda=1.5: must be at least 0 and at most 1",
    "system.gae_lambda=nan": "system.gae_lambda=nan: must be a finite number",
    "system.actor_lr=-1e-3": "system.actor_lr=-0.001: must be at least 0",
    "system.actor_lr=nan": "system.actor_lr=nan: must be a finite number",
    "system.critic_lr=-1": "system.critic_lr=-1.0: must be at least 0",
    "system.ent_coef=-0.1": "system.ent_coef=-0.1: must be at least 0",
    "system.vf_coef=-0.5": "system.vf_coef=-0.5: must be at least 0",
    "system.clip_eps=0": "system.clip_eps=0.0: must be above 0",
    "system.clip_eps_high=0": "system.clip_eps_high=0.0: must be above 0",
    "system.advantages=vtrace": "system.advantages=vtrace|system.recompute_targets=true|gae",
    "system.recompute_targets=true system.normalize_values=true": (
        "system.recompute_targets=true|system.normalize_values=true|false"
    ),
    "system.standardize_advantages=minibatch arch.total_num_envs=1 system.num_minibatches=32": (
        "system.standardize_advantages=minibatch|system.num_minibatches=32|batch"
    ),
    "system.kl_coef=-1": "system.kl_coef=-1.0: must be at least 0",
    "system.target_kl=0": "system.target_kl=0.0: must be above 0",
    "system.huber_delta=0": "system.huber_delta=0.0: must be above 0",
    "system.huber_delta=inf": "system.huber_delta=inf",
    "system.reward_clip=-1": "system.reward_clip=-1.0: must be above 0",
    "system.value_norm_decay=2": (
        "system.value_norm_decay=2.0: must be at least 0 and at most 1|nearest|: 1"
    ),
    "system.max_grad_norm=0": "system.max_grad_norm=0.0: must be above 0",
    "system.max_grad_norm=-1": "system.max_grad_norm=-1.0: must be above 0",
    "system.max_grad_norm=nan": "system.max_grad_norm=nan",
    "system.reward_scale=nan": "system.reward_scale=nan: must be a finite number",
    "system.reward_scale=inf": "system.reward_scale=inf: must be a finite number",
    "system.rollout_length=0": "system.rollout_length=0: must be at least 1",
    "system.rollout_length=-4": "system.rollout_length=-4: must be at least 1",
    "system.epochs=0": "system.epochs=0: must be at least 1",
    "system.num_minibatches=0": "system.num_minibatches=0: must be at least 1",
    "system.obs_norm_warmup_steps=-1": "system.obs_norm_warmup_steps=-1: must be at least 0",
    "system.obs_norm_warmup_steps=64": (
        "system.obs_norm_warmup_steps=64|system.normalize_observations=true"
    ),
    "system.adapt_kl_coef=true": (
        "system.adapt_kl_coef=true needs system.objective=penalty, not clip|set it to false"
    ),
    "system.objective=penalty system.adapt_kl_coef=true system.kl_coef=0": (
        "system.adapt_kl_coef=true needs|a system.kl_coef above 0, not 0.0|set it to false"
    ),
    "system.objective=dpo system.clip_eps_high=0.3": (
        "system.clip_eps_high=0.3 needs system.objective=clip, not dpo|set it to null"
    ),
    "arch.seed=-1": "arch.seed=-1: must be at least 0",
    "arch.seed=4294967296": "arch.seed=4294967296|at most 4294967295",
    "arch.total_num_envs=0": "arch.total_num_envs=0: must be at least 1",
    "arch.total_num_envs=-4": "arch.total_num_envs=-4: must be at least 1",
    "arch.update_batch_size=0": "arch.update_batch_size=0: must be at least 1",
    "arch.total_timesteps=0": "arch.total_timesteps=0: must be at least 1",
    "arch.num_updates=0": "arch.num_updates=0: must be at least 1",
    "arch.num_evaluation=0": "arch.num_evaluation=0: must be at least 1",
    "arch.num_eval_episodes=0": "arch.num_eval_episodes=0: must be at least 1",
    "arch.max_eval_steps=0": "arch.max_eval_steps=0: must be at least 1",
    # sizes that do not go together
    "arch.total_num_envs=10 arch.update_batch_size=4": (
        "arch.total_num_envs=10 is not a multiple of 4|arch.update_batch_size=4|: 8"
    ),
    "arch.total_num_envs=3 arch.update_batch_size=4": "arch.total_num_envs=3|: 4",
    "system.num_minibatches=7": "system.num_minibatches=7 does not divide|32768|: 8",
    "arch.total_timesteps=10": "arch.total_timesteps=10|one update of 32768 steps",
    "arch.total_timesteps=null": "arch.total_timesteps=null|arch.num_updates=null",
    "arch.num_evaluation=1000": "arch.num_evaluation=1000 is more than 31 updates|at most 31",
    "resume_allow=[nonsense]": "resume_allow: nonsense: no such key; did you mean ",
    "arch.num_updates=5": "arch.num_evaluation=10 is more than 5 updates|arch.num_updates",
    # more than the machine's integers and floats hold
    "arch.total_num_envs=1e12 arch.total_timesteps=1e18": "arch.total_num_envs",
    "system.rollout_length=1e12 arch.total_timesteps=1e18": "system.rollout_length",
    "system.epochs=1e12": "system.epochs=1000000000000",
    "arch.num_updates=1e12": "arch.num_updates=1000000000000|2147483647",
    "arch.max_eval_steps=1e12": "arch.max_eval_steps=1000000000000",
    "arch.num_eval_episodes=1e12": "arch.num_eval_episodes=1000000000000",
    "system.actor_lr=1e39": "system.actor_lr=1e+39",
    "system.reward_scale=1e39": "system.reward_scale=1e+39",
}
ENVIRONMENT = {
    "envs=cartpole": "envs: no such key; did you mean env=NAME, or env.KEY=VALUE?",
    "archs=default": "archs: no such key; did you mean arch=NAME",
    "arch.num_seeds=1000000": "arch.num_seeds=1000000: must be|at most 65536",
    "arch.total_num_envs=134217728 arch.total_timesteps=1e10 arch.num_evaluation=1": (
        "arch.total_num_envs=134217728|4,294,967,296 transitions|at most 2,147,483,647"
    ),
    "env=cartpol": "env=cartpol: no such choice; did you mean env=cartpole?|breakout",
    "env=null": "env=null",
    "env.name=Cartpole-v1": "env.name=Cartpole-v1: no such gymnax environment|CartPole-v1",
    "env.name=cartpole": "env.name=cartpole: no such gymnax environment|CartPole-v1",
    "env.name=Breakout": "env.name=Breakout: no such gymnax environment|Breakout-MinAtar",
    "env.name=": "env.name=",
    "env.name=null": "env.name=|env.target=",
    "env.target=my.Env": "env.target=my.Env: my cannot be imported|PYTHONPATH",
    "env.name=null env.target=Env": "env.target=Env|my_module.my_name",
    "env.name=null env.target=no_such_package.Env": "env.target=no_such_package|PYTHONPATH",
    "env.name=null env.target=math.Env": "env.target=math.Env: module math has no class Env",
    "env.name=null env.target=math.pi": "math.pi: module math has no class pi",
    "env.name=null env.target=os.getcwd": "os.getcwd: cannot be made",
    "env.module=no_such_module": "env.module=no_such_module: no_such_module cannot be|PYTHONPATH",
    "env.module=.relative": "env.module=.relative: .relative cannot be imported",
    "env.module=''": "env.module=",
    "env.module=misspelt": "env.module=misspelt: misspelt cannot be imported|SyntaxError",
    "env.module=raises": "env.module=raises: raises cannot be imported|no licence found",
    "env.name=null env.target=raises.Env": "env.target=raises.Env: raises cannot|no licence found",
    "env.kwargs.rows=3": "env.kwargs={'rows': 3}|unexpected keyword argument 'rows'",
    "env.kwargs={rows:3}": "env.kwargs={'rows': 3}|unexpected keyword argument 'rows'",
    "env.params={gravty:3}": "env.params.gravty: |did you mean env.params.gravity?",
    "env=deep_sea +env.kwargs.size=0": "DeepSea-bsuite|env.kwargs={'size': 0}",
    "+env.params.gravty=3": "env.params.gravty: |did you mean env.params.gravity?",
    "+env.params.gravity=strong": "CartPole-v1|gravity",
    "+env.params.max_steps_in_episode=0": "max_steps_in_episode=0",
    "+env.params.max_steps_in_episode=1.5": "max_steps_in_episode=1.5",
    # what is shown besides the observation, and what masks actions
    "env.extras=[last_actions]": (
        "env.extras=[last_actions]: there is no input last_actions"
        "|the choices: last_action, last_reward, step"
    ),
    "env.extras=[step,steps]": "env.extras=[step, steps]: there is no input steps",
    f"{OF_TESTS}Counted env.extras=[step]": "env.extras=[step]: envs.Counted|leave step out",
    "env.mask=[1,4]": "env.mask=[1,4]: the observation of CartPole-v1 has entries 0 to 3, and no 4",
    "env.mask=[-1]": "env.mask=[-1]: the observation of CartPole-v1 has entries 0 to 3, and no -1",
    "env=breakout env.mask=[1]": "env.mask=[1]: the observation of Breakout-MinAtar is no vector",
    "env=t_maze env.kwargs.delay=0": "TMaze|delay=0 must be an integer, at least 1",
    "env.action_mask=legal": (
        "env.action_mask=legal: the observation of CartPole-v1 is not a dict|null"
    ),
    f"{OF_TESTS}Masked env.action_mask=legal": (
        "env.action_mask=legal: the observation of envs.Masked has no such entry"
        "|observation, action_mask|null"
    ),
    f"{OF_TESTS}Masked env.action_mask=observation": (
        "env.action_mask=observation|envs.Masked|float32|booleans or integers|null"
    ),
    f"{OF_TESTS}Remote": "envs.Remote|download",
}
NETWORK = {
    "network=transformer": "network=transformer: no such choice|mlp, mlp_shared",
    "network=null": "network=null",
    "network/torso=mlp": "network/torso|network/torso@network.",
    "network/torso@network.actor_torso=transformer": (
        "network/torso|=transformer: no such choice|(of chain, cnn, impala, mlp, noisy_mlp)"
    ),
    "population.size=1": "population.size=1: must be at least 2",
    "population.selection=pbt": "population.selection=pbt needs a population.size|population=pbt",
    "population=pbt population.hyperparameters.actor_lr=[1e-2,1e-4]": "must ascend; such as",
    "population=pbt +population.hyperparameters.epochs=[1,4]": "epochs: not a number of system",
    "population=pbt population.hyperparameters={actor_lr:[1e-2,1e-4]}": "must ascend; such as",
    "population=pbt population.hyperparameters={epochs:[1,4]}": "epochs: not a number of system",
    "population=pbt arch.num_seeds=2": "arch.num_seeds=2: the members of a population",
    "population=pbtt": "population=pbtt: no such choice; did you mean population=pbt?",
    "arch.num_seeds=0": "arch.num_seeds=0: must be at least 1",
    "network.actor_memory=gru": "keys and values|network/memory@network.actor_memory=NAME",
    "network.critic_head=scalar": "keys and values|network/critic_head=NAME",
    "network/memory=lstm": "network/memory: name a branch, such as network/memory@network.",
    "network/memory@network.actor_memory=lstm": "has none there|plus sign: +network/memory@",
    "network=lstm": (
        "network.actor_memory: a memory learns nothing from sequences of one step"
        "|as jaxppo.rec_ppo does|network=mlp"
    ),
    "network=lstm system.sequence_length=null network/memory@network.actor_memory=lsm": (
        "network/memory=lsm: no such choice; did you mean network/memory=lstm?|gru, gtrxl, lru"
    ),
    "network=lstm system.sequence_length=null network.actor_memory.cell=rnn": (
        "network.actor_memory|cell=rnn is none of lstm, optimized_lstm, gru, mgu, simple"
    ),
    "network=lstm system.sequence_length=null network.actor_memory.size=0": (
        "network.actor_memory|size=0 must be an integer, at least 1"
    ),
    "network=lru system.sequence_length=null network.critic_memory.max_radius=1": (
        "network.critic_memory|max_radius=1: must be"
    ),
    "network=gtrxl system.sequence_length=null network.actor_memory.num_heads=5": (
        "network.actor_memory|size=64 must be a multiple of num_heads=5"
    ),
    "network=lstm system.sequence_length=5": "=5 does not divide system.rollout_length=32|: 4",
    "network=lstm system.sequence_length=4 system.burn_in=1 system.microbatch_size=2": (
        "system.microbatch_size=2 is less than one sequence of 3 transitions"
    ),
    "network=lstm system.sequence_length=null system.burn_in=32": (
        "system.burn_in=32 leaves nothing to learn from in sequences of 32 steps; at most 31"
    ),
    "+network.actor_torso.activation=relu": (
        "+network.actor_torso.activation: is in the file already|without the plus sign"
    ),
    "+network/torso@network.actor_torso=cnn": (
        "+network/torso@network.actor_torso: is in the file already|without the plus sign"
    ),
    "network/torso@network.actor_torso=null": "network/torso@network.actor_torso=null: a group",
    "network.critic_torso.channels=[3]": (
        "network.critic_torso.channels: the layer there, if any, has no such key|--cfg job"
    ),
    "network=lru system.sequence_length=8 network.actor_memory.min_radus=0.5": (
        "network.actor_memory.min_radus: no such key; did you mean network.actor_memory.min_radius?"
    ),
    "network=lru system.sequence_length=8 network.actor_memory.min_radius=low": (
        "network.actor_memory|min_radius=low must be a number"
    ),
    "network=lstm system.sequence_length=8 network.actor_memory.cell=[lstm]": (
        "network.actor_memory|cell=['lstm'] is none of lstm"
    ),
    "network=lstm system.sequence_length=null system.recompute_carries=true": (
        "system.recompute_carries=true has nothing to do|a shorter system.sequence_length"
    ),
    "system.burn_in=3": "system.burn_in=3: the network has no memory|0|network=lstm",
    "system.recompute_carries=true": (
        "system.recompute_carries=true: the network has no memory|false"
    ),
    "network=lstm system.sequence_length=null arch.total_num_envs=8": (
        "system.num_minibatches=16 does not divide 8 sequences of 32 steps|: 8"
    ),
    "system.sequence_length=8 network.actor_memory._target_=jaxppo.networks.torsos.MLP": (
        "network.actor_memory"
    ),
    "env=breakout network=lstm_shared network/input_layer=image system.sequence_length=null "
    "network.shared_torso=null": "network.shared_memory|a memory takes features|put a torso",
    "network/actor_head=gaussian": (
        "network/actor_head=gaussian: no such choice; did you mean network/actor_head="
        "|(of auto, beta, categorical, multi_categorical, normal, tanh_normal)"
    ),
    "network/critic_head=categoricl": (
        "network/critic_head=categoricl: no such choice; "
        "did you mean network/critic_head=categorical? (of categorical, scalar)"
    ),
    "network/input_layer=flaten": "did you mean network/input_layer=flatten?|concatenate|fuse",
    # heads and the actions they take
    "network/actor_head=beta": "network.actor_head|a beta head|Box|not Discrete(num_values=2)",
    "network/actor_head=multi_categorical": "network.actor_head|MultiDiscrete|not Discrete",
    "env=pendulum network/actor_head=categorical": (
        "network.actor_head|a categorical head takes Discrete actions, not Box(shape=(1,)"
    ),
    "env.name=null env.target=test_cli.unbounded network/actor_head=tanh_normal": (
        "network.actor_head|a tanh-normal head needs finite bounds|use network/actor_head=normal"
    ),
    "env.name=null env.target=test_cli.unbounded network/actor_head=beta": (
        "network.actor_head|a beta head needs finite bounds|use network/actor_head=normal"
    ),
    f"{OF_TESTS}Mixed network/actor_head=tanh_normal": "network.actor_head|network/actor_head=auto",
    "network.actor_head.continuous=gaussian": (
        "network.actor_head|continuous=gaussian|tanh_normal, normal, beta"
    ),
    "env=pendulum network/actor_head=normal network.actor_head.initial_std=0": (
        "network.actor_head|initial_std=0 must be above min_std=0.001"
    ),
    "network/critic_head=categorical network.critic_head.low=20": (
        "network.critic_head|low=20 must be below high=10.0"
    ),
    "network/critic_head=categorical system.clip_value_loss=true": (
        "system.clip_value_loss=true|network/critic_head=scalar"
    ),
    "network/critic_head=categorical system.value_loss=huber": (
        "system.value_loss=huber|network/critic_head=scalar"
    ),
    # layers and the observations they take
    "network/torso@network.actor_torso=cnn": (
        "network.actor_torso|CartPole-v1|a convolution takes images|not shape (1, 1, 4)"
        "|network/input_layer=image|network=mlp"
    ),
    "network=cnn": "network|CartPole-v1|an image|not of shape (4,)|network.input_layer",
    "network/input_layer=image": "network|an image|not of shape (4,)|network.input_layer",
    "env=breakout network.shared_torso.kernel_sizes=[11]": (
        "network|kernel_sizes=[11]|an image of 10x10"
    ),
    "env=breakout network.shared_torso.strides=[1,1]": (
        "network.shared_torso|strides=[1, 1] must hold one number for each of channels=[16]"
    ),
    "network/input_layer=fuse": "network|key='image'|network.input_layer",
    "network/torso@network.actor_torso=chain network.actor_torso.layers=[64]": (
        "network.actor_torso|layers.0=64|_target_"
    ),
    "network.critic_head=null": "network.critic_head=null",
    "network.input_layer=null": "network.input_layer=null",
    "network.critic_head._target_=jaxppo.networks.torsos.MLP": "network.critic_head",
    "network.actor_head._target_=jaxppo.networks.heads.ScalarHead": "network.actor_head",
    "+network.actor_torso.units=3": "network.actor_torso|unexpected keyword argument 'units'",
    "network.actor_torso.layer_sizes=[0]": "network.actor_torso|layer_sizes=[0]",
    "network.actor_torso.layer_sizes=[1.5]": "network.actor_torso|layer_sizes=[1.5]",
    "network.actor_torso.layer_sizes=64": "network.actor_torso|layer_sizes=64",
    "network.actor_torso.layer_sizes=null": "network.actor_torso|layer_sizes=",
    "network.actor_torso.activation=tahn": "network.actor_torso|activation=tahn|tanh",
    "network.actor_torso.layer_norm=maybe": "network.actor_torso|layer_norm=maybe",
    "network.actor_torso._target_=jaxppo.networks.torsos.RNN": "network.actor_torso|torsos.RNN",
    "network.actor_torso._target_=torsos": "network.actor_torso|torsos",
    "~network.actor_torso._target_": "network.actor_torso|_target_",
    "network/input_layer=select": "network|key='observation'|network.input_layer",
}
SYNTAX = {
    "system.gamma={": "system.gamma={: not an override|key=value",
    "system.gamma": "system.gamma: not an override|key=value",
    "system.gamma 0.9": "system.gamma: not an override|key=value",
    "system.gamma: 0.9": "system.gamma:|key=value",
    "--system.gamma=0.9": "--system.gamma=0.9",
    "--gamma 0.9": "--gamma: no such flag|key=value",
    "-x": "-x: no such flag",
    "hydra.rundir=out": "hydra.rundir: no such key|--hydra-help",
    "=5": "=5",
    "+arch=2": "arch=2",
    "logger=false": "logger=false",
    "a=b=c": "a=b=c|key=value",
    "network.actor_torso.layer_sizes=[64": "network.actor_torso.layer_sizes=[64|key=value",
    "network.actor_torso.layer_sizes.x=64": "network.actor_torso.layer_sizes",
    "env.extras.step=true": "env.extras",
    "network.actor_torso.layer_sizes=64,64": "network.actor_torso.layer_sizes=64,64|[",
    "system..gamma=0.9": "system..gamma=0.9",
    "system=null": "system=null",
    "hydra.run.dir=null": "hydra.run.dir=null",
    "arch=defualt": "arch=defualt: no such choice; did you mean arch=default?",
    "system.gamma=0.9,0.99": "system.gamma=0.9,0.99|--multirun",
    "arch.total_timesteps=1,000,000": "arch.total_timesteps=1,000,000",
    "system.gamma='${system.no_such}'": "system.gamma|system.no_such",
    "system.gamma='${system.gamma}'": "system.gamma",
}
SWEEPS = {
    "-m system.gamma=0.9,2": "system.gamma=2.0: must be at least 0 and at most 1",
    "-m system.gamma=0.9,high": "system.gamma=high: must be a number",
    "-m system.gamma=choice(0.9,2)": "system.gamma=2.0",
    "-m system.gama=0.9,0.99": "system.gama: no such key; did you mean system.gamma?",
    "-m arch.seed=1,2 system.gamma=2": "system.gamma=2.0",
    "-m arch.seed=1,2 env.name=Cartpole-v1": "env.name=Cartpole-v1|CartPole-v1",
    "-m env=cartpole,cartpol": "env=cartpol: no such choice; did you mean env=cartpole?",
    "-m env.name=CartPole-v1,Cartpole-v1": "env.name=Cartpole-v1|CartPole-v1",
    "-m network.actor_torso.layer_sizes=[8],[0]": "network.actor_torso|layer_sizes=[0]",
    "-m arch.seed=range(199) system.gamma=0.9,3": "system.gamma=3.0",
    "-m system.objective=clip,ppo": "system.objective=ppo: no such choice|clip, penalty",
    "-m network/actor_head=auto,beta": "network.actor_head|a beta head|not Discrete",
    "-m system.algorithm=ppo,nope": "system.algorithm=nope: no such choice",
    "-m system.algorithm=test_configs.Own +system.learning_rate=0.1,-1": (
        "system.learning_rate=-1.0: must be at least 0"
    ),
    "-m system.num_minibatches=4,7": "system.num_minibatches=7 does not divide",
}
REFUSALS = {**UNKNOWN, **WRONG, **ENVIRONMENT, **NETWORK, **SYNTAX, **SWEEPS}


@pytest.mark.long
@pytest.mark.parametrize("typed", REFUSALS)
def test_mistake_is_refused_in_one_line(launch: Any, cwd: Path, typed: str) -> None:
    outcome = launch(*shlex.split(typed))
    assert_refused(outcome, REFUSALS[typed], cwd)
    assert "++" in typed or "++" not in outcome.err  # which the command line writes itself


@pytest.mark.long
@pytest.mark.parametrize(
    "typed", ["system.clip_epss=0.1", "network/actor_head=beta", "-m system.gamma=0.9,2"]
)
def test_mistake_is_refused_in_seconds(command: Any, cwd: Path, typed: str) -> None:
    assert_refused(command(*shlex.split(typed), limit=REFUSAL_LIMIT), REFUSALS[typed], cwd)


def test_swept_hyperparameters_are_checked_by_their_rule_alone(
    launch: Any, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first job is built before a sweep over traced numbers begins."""
    prepared = []

    def prepare(config: Config) -> Any:
        prepared.append(config.system.gamma)
        raise ConfigError("seen: enough")

    monkeypatch.setattr("jaxppo.launch.sweeping.prepare", prepare)
    assert "seen: enough" in launch("-m", "system.gamma=0.9,0.95,0.99").err
    assert prepared == [0.9]
    monkeypatch.setattr("jaxppo.launch.sweeping.prepare", lambda c: prepared.append(c.system.gamma))
    launch("-m", "system.gamma=0.95,0.99,2")  # refused, before any job is built
    launch("-m", "system.gamma=0.95,0.99", "hydra.sweep.dir=/dev/null/no")
    assert 0.99 not in prepared


def test_lists_and_dicts_are_swept(launch: Any, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = []

    def prepare(config: Config) -> None:
        prepared.append((config.env.mask, config.system.optimizer_kwargs))
        if len(prepared) == 3:
            raise ConfigError("seen: enough")

    monkeypatch.setattr("jaxppo.launch.sweeping.prepare", prepare)
    swept = "env.mask=[1],[3]", "system.optimizer_kwargs={b1: 0.5},{b1: 0.9}"
    assert "seen: enough" in launch("-m", *swept).err
    assert prepared == [([1], {"b1": 0.5}), ([3], {"b1": 0.5}), ([1], {"b1": 0.9})]


def test_environment_that_cannot_be_downloaded_is_refused(
    launch: Any, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*arguments: Any) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr(gymnax.utils.load_mnist, "_download", offline)
    expected = "MNISTBandit-bsuite|download|Name or service not known|another environment"
    assert_refused(launch("env.name=MNISTBandit-bsuite"), expected, cwd)


@pytest.fixture(scope="module")
def settings() -> DictConfig:
    """What `--cfg job` prints."""
    with initialize_config_dir(version_base="1.3", config_dir=str(config_dir())):
        return compose("ff_ppo")


@pytest.mark.long
@pytest.mark.parametrize("typed", UNKNOWN)
def test_suggested_key_exists(launch: Any, settings: DictConfig, typed: str) -> None:
    suggested = re.search(r"did you mean (\S+)\?", launch(*shlex.split(typed)).err)
    assert suggested is not None
    assert OmegaConf.select(settings, suggested[1], default="absent") != "absent"


@pytest.mark.long_but(2)
@pytest.mark.parametrize(
    "overrides, key",
    [
        (["hydra.run.dir={file}"], "hydra.run.dir"),
        (["hydra.run.dir={file}/below"], "hydra.run.dir"),
        (["-m", "arch.seed=1,2", "hydra.sweep.dir={file}/below"], "hydra.sweep.dir"),
        (["arch.compile_cache={file}"], "arch.compile_cache"),
        (["arch.compile_cache={file}/below"], "arch.compile_cache"),
        (["arch.profile={file}"], "arch.profile"),
    ],
)
def test_file_in_the_place_of_a_directory_is_refused(
    launch: Any, cwd: Path, tmp_path: Path, overrides: list[str], key: str
) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    file.chmod(0o755)
    assert_refused(launch(*(o.format(file=file) for o in overrides)), f"{key}={file}", cwd)
    assert file.read_text() == "not a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
@pytest.mark.parametrize("key", ["hydra.run.dir", "arch.compile_cache"])
def test_directory_that_cannot_be_written_is_refused(
    launch: Any, cwd: Path, tmp_path: Path, key: str
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    assert_refused(launch(f"{key}={locked}"), f"{key}={locked}", cwd)
    assert_refused(launch(f"{key}={locked}/below"), f"{key}={locked}", cwd)


@pytest.mark.parametrize("file", ["metrics.jsonl", "checkpoints/000000000064"])
def test_directory_that_holds_a_run_is_refused(
    launch: Any, cwd: Path, tmp_path: Path, file: str
) -> None:
    earlier = tmp_path / "earlier"
    (earlier / file).parent.mkdir(parents=True)
    (earlier / file).write_text("{}\n")
    outcome = launch(f"hydra.run.dir={earlier}")
    assert_refused(outcome, f"hydra.run.dir={earlier}: holds a run already", cwd)
    assert [str(p.relative_to(earlier)) for p in earlier.rglob("*") if p.is_file()] == [file]


@pytest.mark.long
def test_a_used_directory_of_a_sweep_is_refused(launch: Any, cwd: Path) -> None:
    """Before anything in it changes; job 0 once kept its log and got the new settings."""
    typed = [*SWEEP, "hydra/launcher=basic"]
    assert launch(*typed, run=recorder([])).status == 0
    before = {path: path.read_bytes() for path in cwd.rglob("*") if path.is_file()}
    assert before
    outcome = launch(*[word.replace("0.9,", "0.5,") for word in typed])
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith("hydra.sweep.dir=sweep: holds a sweep already (")
    after = {path: path.read_bytes() for path in cwd.rglob("*") if path.is_file()}
    assert after == before


def test_a_directory_that_another_process_holds_is_refused(launch: Any, cwd: Path) -> None:
    for typed, folder in ((SWEEP, "sweep"), (("hydra.run.dir=run",), "run")):
        (cwd / folder).mkdir()
        with only_run_in(cwd / folder):
            outcome = launch(*typed)
            assert (outcome.status, outcome.out) == (2, "")
            assert f"{folder}: process {os.getpid()} is writing there" in outcome.err
            assert [path.name for path in (cwd / folder).iterdir()] == [".lock"]


def recorder(seen: list[Config]) -> Callable[[Config, Path], float]:
    """In place of a run: keeps its settings."""

    def run(config: Config, run_dir: Path, *, resume: bool = False) -> float:
        assert run_dir.is_dir()
        seen.append(config)
        return 0.0

    return run


@pytest.mark.long
@pytest.mark.parametrize(
    "typed, key, value",
    [
        ("arch.total_timesteps=1e7", "arch.total_timesteps", 10_000_000),
        ("arch.total_timesteps=1_000_000", "arch.total_timesteps", 1_000_000),
        ("arch.total_timesteps=3e9", "arch.total_timesteps", 3_000_000_000),
        ("arch.seed=4294967295", "arch.seed", 2**32 - 1),
        ("arch.compile_cache=null", "arch.compile_cache", None),
        ("system.max_grad_norm=.inf", "system.max_grad_norm", float("inf")),
        ("system.max_grad_norm=inf", "system.max_grad_norm", float("inf")),
        ("system.gamma=1", "system.gamma", 1.0),
        ("system.actor_lr=0", "system.actor_lr", 0.0),
        ("system.reward_scale=-1", "system.reward_scale", -1.0),
        ("env=cartpole", "env.name", "CartPole-v1"),
        ("env=catch", "env.name", "Catch-bsuite"),
        ("env.name=Catch-bsuite", "env.name", "Catch-bsuite"),
        ("env=cartpole env.params.gravity=20", "env.params", {"gravity": 20}),
        ("env=cartpole +env.params.gravity=20", "env.params", {"gravity": 20}),
        ("env=t_maze env.kwargs.delay=3", "env.kwargs", {"delay": 3}),
        ("env=catch +env.kwargs.rows=6", "env.kwargs", {"rows": 6}),
        ("env=catch env.kwargs={rows:6}", "env.kwargs", {"rows": 6}),
        ("env=cartpole env.params={gravity:20}", "env.params", {"gravity": 20}),
        (
            "population.hyperparameters={gamma:[0.9,0.99]}",
            "population.hyperparameters",
            {"gamma": [0.9, 0.99]},
        ),
        ("env=cartpole system.algorithm=test_configs.Own", "system.gamma", 0.98),
        (
            "system.algorithm=test_configs.Own +system.learning_rate=0.1",
            "system.learning_rate",
            0.1,
        ),
        ("network=mlp_shared", "network.actor_torso", None),
        ("env=pendulum", "env.name", "Pendulum-v1"),
        ("env.name=Reacher-misc", "env.name", "Reacher-misc"),
        ("env.extras=[]", "env.extras", []),
        ("env.extras=[last_reward,step]", "env.extras", ["last_reward", "step"]),
        ("env.action_mask=null", "env.action_mask", None),
        (f"{OF_TESTS}Masked env.extras=[step]", "env.action_mask", "action_mask"),
        ("arch.precision=bf16", "arch.precision", "bf16"),
        ("system.standardize_advantages=none", "system.standardize_advantages", "none"),
        ("system.objective=dpo", "system.objective", "dpo"),
        ("system.objective=penalty system.adapt_kl_coef=true", "system.adapt_kl_coef", True),
        ("system.clip_eps_high=0.28", "system.clip_eps_high", 0.28),
        ("system.clip_eps_high=null", "system.clip_eps_high", None),
        ("system.target_kl=.inf", "system.target_kl", float("inf")),
        ("system.reward_clip=5", "system.reward_clip", 5.0),
        ("network/critic_head=categorical", "system.value_loss", "squared"),
        (
            "env.name=null env.target=test_cli.unbounded",
            "network.actor_head",
            {"_target_": "jaxppo.networks.heads.follow", "continuous": "tanh_normal"},
        ),
    ],
)
def test_setting_is_taken(launch: Any, typed: str, key: str, value: Any) -> None:
    seen: list[Config] = []
    assert launch(*shlex.split(typed), run=recorder(seen)) == Outcome(0, "", "")
    group, name = key.split(".")
    (config,) = seen
    taken = getattr(getattr(config, group), name)
    assert taken == value
    assert type(taken) is type(value)


COMBINATIONS = [(1, 0.9), (1, 0.99), (2, 0.9), (2, 0.99)]
SWEEP = ("-m", "arch.seed=1,2", "system.gamma=0.9,0.99", "hydra.sweep.dir=sweep")


@pytest.fixture
def earlier(cwd: Path) -> Path:
    """The directory of a run that was stopped before its first checkpoint."""
    run_dir = cwd / "earlier run"
    (run_dir / ".hydra").mkdir(parents=True)
    told = ["env=cartpole", "system.gamma=0.9", "arch.total_timesteps=400000"]
    OmegaConf.save(OmegaConf.create(told), run_dir / ".hydra" / "overrides.yaml")
    with initialize_config_dir(version_base="1.3", config_dir=str(config_dir())):
        settings = OmegaConf.to_container(compose("ff_ppo", told), resolve=True)
    keep_config(parse(settings), run_dir)  # type: ignore[arg-type]
    return run_dir


RESUMED = {  # what is typed together with resume= -> what is said, or what the run is told
    "": {},
    "env=cartpole system.gamma=0.9": {},  # as it was typed the first time
    "arch.total_timesteps=5e5": {"arch.total_timesteps": 500_000},
    "system.gamma=0.99": "system.gamma=0.99 (was 0.9)|resume_allow=[system.gamma]",  # the default
    "system.gamma=0.99 'resume_allow=[system.gamma]'": {"system.gamma": 0.99},
    "system.gamma=0.99 system.epochs=1 'resume_allow=[system]'": {
        "system.gamma": 0.99, "system.epochs": 1,
    },
    "system.epochs=1 logger.plot=false 'resume_allow=[logger]'": "system.epochs=1 (was ",
    "arch.total_timesteps=35e4": "arch.total_timesteps=350000 (was 400000, 13 updates)",
    "arch.num_updates=12": "arch.num_updates=12 (was null, 13 updates)",  # of 1024 x 32 steps
    "arch.num_updates=13": {"arch.num_updates": 13},
    "arch.num_updates=12 'resume_allow=[arch]'": {"arch.num_updates": 12},
    "system.clip_eps_high=0.3": "system.clip_eps_high=0.3 (was null)",
    "'resume_allow=[nonsense]'": "resume_allow: nonsense: no such key; did you mean ",
    "'resume_allow=[system.gama]'": (
        "resume_allow: system.gama: no such key; did you mean system.gamma?"
    ),
    "'resume_allow=[log,env.params.gravity,network.actor_torso.layer_sizes]'": {},
    "env=catch": "env.name=Catch-bsuite (was CartPole-v1)",
    "env.name=null env.target=corridor.Corridor 'resume_allow=[env]'": "trust=[corridor]",
    "system.gama=0.5": "system.gama: no such key",
    "system.gamma=2": "system.gamma=2.0: must be",
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("typed", RESUMED)
def test_a_resumed_run_keeps_its_settings(
    launch: Any, cwd: Path, earlier: Path, shell: dict[str, str], typed: str
) -> None:
    expected, seen, before = RESUMED[typed], [], sorted(earlier.rglob("*"))
    outcome = launch(f"resume='{earlier}'", *shlex.split(typed), run=recorder(seen))
    if isinstance(expected, str):
        assert (outcome.status, outcome.out) == (2, "")
        assert len(outcome.err.splitlines()) == 1
        assert all(words in outcome.err for words in expected.split("|"))
        assert seen == []
    else:
        assert (outcome.status, outcome.err) == (0, "")
        (config,) = seen
        told = {"system.gamma": 0.9, "arch.total_timesteps": 400_000, "env.name": "CartPole-v1"}
        for key, value in {**told, **expected}.items():
            group, name = key.split(".")
            assert getattr(getattr(config, group), name) == value
        assert config.resume == str(earlier)
    assert sorted(earlier.rglob("*")) == before
    assert sorted(cwd.iterdir()) == [earlier]


@pytest.mark.parametrize(
    "typed, expected",
    [
        ("arch.total_timesteps=5e5", "arch.total_timesteps=500000|the run has arch.num_updates=16"),
        ("arch.total_timesteps=6e5 arch.num_updates=null", None),
        ("arch.total_timesteps=1e4 arch.num_updates=null", "arch.num_updates=null (was 16)"),
        ("arch.num_updates=17", 17),
        ("arch.num_updates=15", "arch.num_updates=15 (was 16)"),
    ],
)
def test_the_budget_of_a_run_by_updates_only_grows(
    launch: Any, earlier: Path, typed: str, expected: Any
) -> None:
    with initialize_config_dir(version_base="1.3", config_dir=str(config_dir())):
        told = compose("ff_ppo", ["env=cartpole", "arch.num_updates=16"])
    (earlier / "config.yaml").unlink()
    keep_config(parse(plain_settings(told, [])), earlier)
    outcome = launch(f"resume='{earlier}'", *typed.split(), run=recorder(seen := []))
    if isinstance(expected, str):
        assert (outcome.status, outcome.out, seen) == (2, "", [])
        assert all(words in outcome.err for words in expected.split("|"))
    else:
        assert (outcome.status, outcome.err) == (0, "")
        assert seen[0].arch.num_updates == expected


@pytest.mark.parametrize(
    "typed, words",
    [
        ("resume=nowhere", "resume=nowhere: is not the directory of a run"),
        ("-m resume=nowhere", "resume=nowhere: resumes one run at a time"),
        ("++resume=nowhere", "resume=nowhere: is not the directory of a run"),
    ],
)
def test_what_cannot_be_resumed_is_refused(launch: Any, cwd: Path, typed: str, words: str) -> None:
    assert_refused(launch(*typed.split()), words, cwd)


NAMES = (  # of directories, which Hydra or YAML would take for something else
    *('lr=0.1,a(1)[2]{3}#4 #5 it\'s "tëst"', "2024_01", "1.10", "true", "a: b", "'it"),
    *("++system.gamma=0.9", "\\${x}", "back\\x"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_path_is_text_in_every_command(
    launch: Any, cwd: Path, earlier: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    earlier.rename(cwd / name)
    outcome = launch(f"resume={name}", run=recorder(seen := []))
    assert outcome == Outcome(0, "", "")
    assert seen[0].resume == name
    settings = [as_override("resume", name)]  # as jaxppo.train(resume=name) has it
    assert jaxppo.compose("ff_ppo", settings).resume == name
    for kind in (Evaluation, Rendering, Export, Reporting):
        for field in {"run", "out", "record"} & set(kind.__dataclass_fields__):
            for typed in (name, quoted(name)):
                monkeypatch.setattr(sys, "argv", ["", f"{field}={typed}"])
                command_line.command(kind, seen.append)
                assert getattr(seen[-1], field) == name
    assert split([f"out={name}"])[0].out == name
    monkeypatch.setattr(sys, "argv", ["", name, f"{name}/", "out=x"])
    command_line.command(Reporting, seen.append, places="runs")
    assert seen[-1].runs == [name, f"{name}/"]
    if "${" not in name:  # of a new run these may have interpolations
        typed = [f"{key}={name}/new" for key in ("hydra.run.dir", "arch.profile")]
        assert launch(*typed, run=recorder(seen)).status == 0
        assert (cwd / name / "new").is_dir()
        assert seen[-1].arch.profile == f"{name}/new"


@pytest.mark.parametrize("typed", [("-m", "hydra.sweep.dir=sweep"), ()])
def test_a_directory_is_named_by_what_was_typed(
    launch: Any, cwd: Path, monkeypatch: pytest.MonkeyPatch, typed: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sweeping, "run_together", lambda jobs, fit: [0.0] * len(jobs))
    place = "hydra.sweep.subdir" if typed else "hydra.run.dir"
    name = f"{place}=${{hydra.job.override_dirname}}"
    outcome = launch(*typed, name, "arch.seed=1", "system.gamma=0.9", run=recorder([]))
    assert (outcome.status, outcome.err) == (0, "")
    assert (cwd / ("sweep" if typed else ".") / "system.gamma=0.9,arch.seed=1").is_dir()


def test_a_run_is_resumed_only_where_it_is(launch: Any, cwd: Path, earlier: Path) -> None:
    """Not in another directory with its settings."""
    outcome = launch(f"++resume='{earlier}'", run=recorder(seen := []))
    assert (outcome.status, outcome.err) == (0, "")
    assert seen[0].resume == str(earlier)
    (cwd / "own.yaml").write_text(f"defaults: [ff_ppo, _self_]\nresume: '{earlier}'\n")
    outcome = launch(f"--config-dir={cwd}", "--config-name=own", run=recorder(seen := []))
    assert (outcome.status, seen) == (2, [])
    assert "must be on the command line, as resume=DIR" in outcome.err
    outcome = launch(f"resume='{earlier}'", "~system.gamma", run=recorder(seen := []))
    assert "~system.gamma: a run keeps its settings; set it to null" in outcome.err
    outcome = launch(f"resume='{earlier}'", "hydra.run.dir=other", run=recorder(seen := []))
    assert (outcome.status, seen) == (2, [])
    assert "hydra.run.dir=other: a resumed run stays in its directory" in outcome.err


@pytest.mark.long
def test_a_run_is_resumed_evaluated_and_says_so(command: Any, cwd: Path) -> None:
    """The whole way, as a person types it."""
    of = [*CARTPOLE, "arch.num_updates=4", "arch.num_evaluation=4", "checkpoint.share=1"]
    assert command(*of, "hydra.run.dir=whole").status == 0
    shutil.copytree(cwd / "whole", cwd / "run")
    manifest = cwd / "run" / "checkpoints" / f"{128:012}" / "manifest.json"
    manifest.write_text(manifest.read_text()[:200])  # as a full disk might leave it
    (cwd / "run" / "summary.json").unlink()
    outcome = command("resume=run")
    assert (outcome.status, outcome.err) == (0, "")
    assert "000000000128: manifest.json cannot be read" in outcome.out
    whole, again = (
        [{k: v for k, v in e.items() if k not in ("seconds", "steps_per_second")} for e in found]
        for found in (events(cwd / "whole"), events(cwd / "run"))
    )
    assert again == whole
    assert summary(cwd / "run")["absolute_metric"] == summary(cwd / "whole")["absolute_metric"]
    newest = sorted((cwd / "run" / "checkpoints").glob("*[0-9]"))[-1] / "manifest.json"
    whole_manifest = newest.read_text()
    newest.write_text(whole_manifest[:200])
    found = command("run=run", module="evaluate")
    assert found.status == 0
    (line,) = found.err.splitlines()
    assert "manifest.json cannot be read" in line
    assert line.endswith("; skipped")
    newest.write_text(whole_manifest)
    found = command("run=run", module="evaluate")
    assert (found.status, found.err) == (0, "")
    assert f"return {summary(cwd / 'run')['absolute_metric']:.2f} " in found.out
    assert "over 20 episodes" in found.out
    assert command("run=run", "episodes=0", module="evaluate") == Outcome(
        2, "", "episodes=0: must be at least 1; the nearest that is: 1\n"
    )


@pytest.mark.parametrize(
    "typed, words",
    [
        ("-m hydra/sweeper=optuna", f"hydra-optuna-sweeper; {installing('optuna')}"),
        ("-m hydra/launcher=jaxppo_ray", f"hydra-ray-launcher; {installing('ray')}"),
        ("-m hydra/launcher=jaxppo_slurm", f"hydra-submitit-launcher; {installing('slurm')}"),
    ],
)
def test_a_plugin_that_is_missing_is_named(
    launch: Any, cwd: Path, monkeypatch: pytest.MonkeyPatch, typed: str, words: str
) -> None:
    monkeypatch.setattr(composing, "is_installed", lambda _: False)
    assert_refused(launch(*typed.split(), "arch.seed=1,2"), f"{typed[3:]}: needs {words}", cwd)


def test_the_list_of_commands_is_whole(command: Any) -> None:
    shown = command(module="__main__").out
    entries = [path.stem for path in (ROOT / "jaxppo").glob("*.py") if "main()" in path.read_text()]
    listed = re.findall(r"^  (\w+)  ", shown, re.MULTILINE)
    assert sorted(listed) == sorted({*entries, "envs"} - {"__main__"})


def test_every_command_says_its_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [*(ROOT / "jaxppo").glob("*.py"), ROOT / "jaxppo" / "envs" / "__main__.py"]
    for file in (file for file in files if "def main()" in file.read_text()):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        monkeypatch.setattr(sys, "argv", ["", "--version"])
        importlib.import_module(module).main()
        expected = f"jaxppo {jaxppo.__version__}, jax {jax.__version__}\n"
        assert capsys.readouterr() == (expected, ""), module


def test_sweep_runs_every_combination(launch: Any, cwd: Path) -> None:
    seen: list[Config] = []
    outcome = launch(*SWEEP, "hydra/launcher=basic", run=recorder(seen))
    assert (outcome.status, outcome.err) == (0, "")
    assert [(config.arch.seed, config.system.gamma) for config in seen] == COMBINATIONS
    jobs = sorted(path.name for path in (cwd / "sweep").iterdir() if path.is_dir())
    assert jobs == ["0", "1", "2", "3"]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[list[Config]]:
    """The jobs that are trained together, which return their number in the sweep."""
    seen: list[list[Config]] = []

    def run_together(jobs: list[Job], *, fit: bool) -> list[float | TrainingError]:
        assert fit == (len(jobs) > 1)
        if fit and len(jobs) > 4:
            raise TooLargeError
        assert {job.group for job in jobs} == {job.run_dir.parent.name for job in jobs}
        seen.append([job.config for job in jobs])
        return [
            TrainingError("diverged") if job.config.arch.seed == 13 else float(job.run_dir.name)
            for job in jobs
        ]

    monkeypatch.setattr(sweeping, "run_together", run_together)
    return seen


@pytest.mark.long
def test_sweep_is_one_program_for_each_shape(
    launch: Any, cwd: Path, programs: list[list[Config]]
) -> None:
    outcome = launch(*SWEEP)
    assert (outcome.status, outcome.err) == (0, "")
    assert [[(c.arch.seed, c.system.gamma) for c in jobs] for jobs in programs] == [COMBINATIONS]
    programs.clear()
    sweep = ("-m", "system.epochs=1,2", "arch.seed=1,2", "env=cartpole,catch")
    assert launch(*sweep, "hydra.sweep.dir=other").status == 0
    found = [{(c.system.epochs, c.env.name) for c in jobs} for jobs in programs]
    assert len(found) == 4
    assert all(len(shape) == 1 for shape in found)
    assert [len(jobs) for jobs in programs] == [2, 2, 2, 2]
    assert sorted((cwd / "other" / "7").iterdir()) == [cwd / "other" / "7" / ".hydra"]


@pytest.mark.long
def test_sweep_that_does_not_fit_is_split(
    launch: Any, cwd: Path, programs: list[list[Config]]
) -> None:
    outcome = launch("-m", "arch.seed=range(1,10)", "hydra.sweep.dir=sweep")
    assert (outcome.status, outcome.err) == (0, "")
    assert [[c.arch.seed for c in jobs] for jobs in programs] == [[1, 2, 3, 4], [5, 6], [7, 8, 9]]


def test_failed_job_of_a_sweep_is_reported(
    launch: Any, cwd: Path, programs: list[list[Config]]
) -> None:
    outcome = launch("-m", "arch.seed=1,13,2", "hydra.sweep.dir=sweep")
    assert outcome.status == 1
    assert outcome.err.splitlines()[-1] == "diverged"
    assert "arch.seed=13" in outcome.err
    assert [[c.arch.seed for c in jobs] for jobs in programs] == [[1, 13, 2]]
    assert "3 jobs in sweep" in outcome.out
    assert len((cwd / "sweep" / "sweep.csv").read_text().splitlines()) == 1 + 3


@pytest.mark.parametrize(
    "error, status, words",
    [
        (TrainingError("diverged"), 1, "diverged"),
        (KeyboardInterrupt(), 130, "interrupted; what was written so far stays"),
    ],
)
def test_a_sweep_that_ends_early_has_its_report(
    launch: Any, cwd: Path, error: BaseException, status: int, words: str
) -> None:
    """And its directory is free for another process."""

    def run(config: Config, run_dir: Path) -> float:
        if config.arch.seed == 2:
            raise error
        return 0.0

    sweep = ("-m", "arch.seed=1,2", "hydra.sweep.dir=sweep", "hydra/launcher=basic")
    outcome = launch(*sweep, run=run)
    assert outcome.status == status
    assert outcome.err.splitlines()[-1] == words
    assert "2 jobs in sweep" in outcome.out
    assert len((cwd / "sweep" / "sweep.csv").read_text().splitlines()) == 1 + 2
    with only_run_in(cwd / "sweep"):
        pass


def test_a_sweep_of_plans_has_no_report(launch: Any, cwd: Path) -> None:
    sweep = ("-m", "arch.seed=1,2", "arch.plan_only=true", "hydra.sweep.dir=sweep")
    outcome = launch(*sweep, "hydra/launcher=basic", run=recorder(seen := []))
    assert (outcome.status, outcome.err, len(seen)) == (0, "", 2)
    assert "2 jobs in sweep" not in outcome.out
    assert not (cwd / "sweep" / "sweep.csv").exists()


@pytest.mark.parametrize(
    "typed, seeds",
    [
        ("env=cartpole -m arch.seed=1,2 hydra.sweep.dir=sweep hydra/launcher=basic", [1, 2]),
        ("arch.seed=3 --config-name ff_pqn system.gamma=0.9", [3]),
    ],
)
def test_flags_stand_anywhere(launch: Any, typed: str, seeds: list[int]) -> None:
    outcome = launch(*typed.split(), run=recorder(seen := []))
    assert (outcome.status, outcome.err) == (0, "")
    assert [config.arch.seed for config in seen] == seeds


@pytest.mark.parametrize(
    "typed, message",
    [
        ("system.gamma=interval(0.5,0.9)", "system.gamma=interval(0.5,0.9): an interval needs a"),
        ("system.gamma=interval(0.9,1.02)", "system.gamma=1.02: must be at least 0 and at most 1"),
        ("system.gamma=interval(0.99,0.9)", "from 0.99 to 0.9 must end above its start"),
        ("system.clip_epss=interval(0.1,0.4)", "system.clip_epss: no such key; did you mean"),
        ("system.epochs=interval(1,4)", "must be an integer (1e7 is one), not float"),
        ("system.epochs=int(interval(0,4))", "system.epochs=0: must be at least 1"),
        ("system.actor_lr=tag(log,interval(0,1))", "must start above 0, since it has the tag log"),
        ("direction=minimize", "hydra.sweeper.direction=minimize: would look for the lowest"),
        ("n_jobs=0", "hydra.sweeper.n_jobs=0: must be an integer, at least 1"),
        ("subdir=${x}", "hydra.sweep.subdir=${x}: Optuna may try the same values twice; add"),
    ],
)
def test_studies_are_checked_before_they_start(typed: str, message: str) -> None:
    sweeper: Any = {
        "_target_": "a.optuna.Sweeper",
        "direction": "maximize",
        "n_trials": 4,
        "n_jobs": 2,
    }
    subdir = typed.removeprefix("subdir=") if typed.startswith("subdir") else "${hydra.job.num}"
    if typed.startswith(("direction", "n_jobs", "subdir")):
        sweeper |= OmegaConf.to_container(OmegaConf.from_dotlist([typed]))
        typed = "system.epochs=int(interval(1,4))"
    if "an interval needs" in message:
        sweeper["_target_"] = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"

    def check() -> None:
        check_sweeper(OmegaConf.create(sweeper), [typed], subdir)
        check_sweep("ff_ppo", ["env=cartpole", f"++{typed}"])

    initialize = initialize_config_dir(version_base=None, config_dir=str(config_dir()))
    with initialize, pytest.raises(ConfigError, match=re.escape(message)):
        check()


def test_intervals_of_a_file_are_checked_too() -> None:
    target = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
    sweeper = {"_target_": target, "params": {"system.gamma": "interval(0.9,1)"}}
    with pytest.raises(ConfigError, match=r"system.gamma=interval\(0.9,1\): an interval needs"):
        check_sweeper(OmegaConf.create(sweeper), [])


@pytest.mark.filterwarnings("ignore")  # of Optuna's own
def test_a_study_of_optuna_goes_on_past_a_failed_trial(
    launch: Any, cwd: Path, programs: list[list[Config]]
) -> None:
    """Its batches are programs; a failure is the worst of all finite scores."""
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="pip install '.[optuna]'")
    study = ("hydra.sweeper.direction=maximize", "hydra.sweeper.n_trials=6")
    outcome = launch(
        *("-m", "hydra/sweeper=optuna", *study, "hydra.sweeper.n_jobs=3"),
        *("arch.seed=choice(13)", "hydra.sweep.dir=sweep"),
    )
    assert outcome.status == 0
    assert [len(jobs) for jobs in programs] == [3, 3]
    found = OmegaConf.load(cwd / "sweep" / "optimization_results.yaml")
    assert found.best_value == -MAX_FLOAT


@pytest.mark.parametrize("swept", ["arch.seed=1,2", "system.epochs=1,2"])
def test_jobs_of_a_sweep_have_directories_of_their_own(
    launch: Any, cwd: Path, programs: list[list[Config]], swept: str
) -> None:
    outcome = launch("-m", swept, "hydra.sweep.dir=sweep", "hydra.sweep.subdir=x")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith("hydra.sweep.subdir=x: two jobs would have the directory")
    assert programs == []
    assert sorted(path.name for path in (cwd / "sweep").iterdir()) == [".lock", "multirun.yaml"]


def test_jobs_of_a_later_batch_have_directories_of_their_own(
    launch: Any, cwd: Path, programs: list[list[Config]]
) -> None:
    """What Hydra recorded of the earlier job stays."""
    batches = ("hydra.sweeper.max_batch_size=1", "hydra.sweep.dir=sweep")
    (cwd / "sweep" / "1").mkdir(parents=True)
    (cwd / "sweep" / "1" / "metrics.jsonl").write_text("")
    outcome = launch("-m", "arch.seed=1,2", *batches)
    assert outcome.status == 2
    assert outcome.err.startswith("hydra.sweep.subdir=${hydra.job.num}: two jobs would have")
    assert [job.name for job in (cwd / "sweep" / "1").iterdir()] == ["metrics.jsonl"]
    assert len(programs) == 1


def test_populations_of_a_sweep_do_not_mix(
    launch: Any, cwd: Path, programs: list[list[Config]]
) -> None:
    assert launch("-m", "population=pbt", "arch.seed=1,2", "hydra.sweep.dir=sweep").status == 0
    assert [len(jobs) for jobs in programs] == [1, 1]


@pytest.mark.parametrize("overrides", [[], ["env=cartpole", "system.gamma=0.9"]])
def test_cfg_job_prints_the_settings(launch: Any, cwd: Path, overrides: list[str]) -> None:
    outcome = launch("--cfg", "job", *overrides)
    assert (outcome.status, outcome.err) == (0, "")
    settings = OmegaConf.create(outcome.out)
    assert [
        key for key in known_keys(["ppo"]) if OmegaConf.select(settings, key, default="-") == "-"
    ] == []
    assert settings.system.gamma == (0.9 if overrides else 0.99)
    assert sorted(cwd.rglob("*")) == []


def test_help_explains_every_key(launch: Any, cwd: Path) -> None:
    outcome = launch("--help")
    assert (outcome.status, outcome.err) == (0, "")
    assert help_text("ppo") in outcome.out
    explained = dict(re.findall(r"^  (\w+(?:\.\w+)?) +(\S.*)$", help_text("ppo"), re.MULTILINE))
    assert sorted(explained) == sorted(known_keys(["ppo"]))
    assert sorted(cwd.rglob("*")) == []


def test_help_begins_with_ten_settings_and_has_colours_only_on_terminals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = composing.help_of("ppo")
    first = plain.partition("Settings that matter first:\n")[2].partition("\n\n")[0]
    keys = re.findall(r"^  ([\w.]+)=", first, re.MULTILINE)
    assert len(keys) == 10
    assert set(keys) - {"env", "network", "hydra.run.dir"} <= set(known_keys(["ppo"]))
    assert "system.learning_rate=" in composing.help_of("pqn")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = composing.help_of("ppo")
    assert "\x1b[36march.seed\x1b[0m" in shown
    assert re.sub(r"\x1b\[\d+m", "", shown) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert composing.help_of("ppo") == plain


def test_help_lists_the_choices(launch: Any) -> None:
    text = launch("--help").out
    layers = [
        f"network/{path.name}" for path in (ROOT / "configs/network").iterdir() if path.is_dir()
    ]
    for group in ("env", "network", *layers):
        listed = re.search(rf"^{group}=(.*)$", text, re.MULTILINE)
        assert listed is not None
        folder = ROOT / "configs" / group
        nested = "**/*.yaml" if group == "env" else "*.yaml"  # env's libraries have folders
        files = (file.relative_to(folder).with_suffix("") for file in folder.glob(nested))
        assert sorted(listed[1].split(", ")) == sorted(file.as_posix() for file in files)


def events(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def summary(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / "summary.json").read_text()))


def test_run_from_an_empty_directory(
    command: Any, shell: dict[str, str], cwd: Path, tmp_path: Path, home: Path
) -> None:
    shell["XDG_CACHE_HOME"] = str(tmp_path / "cache")  # the first run of a library's, too
    more = ["arch.evaluate_first=true", "hydra.run.dir=run"]
    outcome = command(*CARTPOLE, "system.critic_lr=${system.actor_lr}", *more)
    assert outcome.err == ""
    assert outcome.status == 0
    assert "[HYDRA]" not in outcome.out
    assert outcome.out.splitlines()[-2].startswith("absolute metric")
    run_dir = cwd / "run"
    assert sorted(path.name for path in run_dir.iterdir() if path.name != ".hydra") == [
        ".lock", "checkpoints", "config.yaml", "learning_curve.png", "metrics.jsonl",
        "summary.json",
    ]  # fmt: skip

    text = (run_dir / "config.yaml").read_text()
    assert "${" not in text
    config = OmegaConf.create(text)
    assert config.env.name == "CartPole-v1"
    assert config.arch.num_updates == 2
    assert config.system.critic_lr == config.system.actor_lr

    found = events(run_dir)
    assert [(event["event"], event["steps"]) for event in found[:5]] == [
        ("eval", 0), ("train", 32), ("eval", 32), ("train", 64), ("eval", 64),
    ]  # fmt: skip
    (absolute,) = found[5:]
    best = max(found[2:5:2], key=lambda event: event["episode_return"])
    assert (absolute["event"], absolute["steps"]) == ("absolute", best["steps"])
    assert [event["updates"] for event in found if event["event"] == "train"] == [1, 2]
    assert [event["episodes"] for event in found if event["event"] != "train"] == [2, 2, 2, 20]
    assert [event["seconds"] for event in found] == sorted(event["seconds"] for event in found)

    end = summary(run_dir)
    assert end["status"] == "finished"
    assert end["steps"] == 64
    assert end["absolute_metric"] == absolute["episode_return"]
    assert re.fullmatch(r"(1 core|(?!1 )\d+ cores) of .+", end["machine"])
    assert end["versions"]["jax"] == importlib.metadata.version("jax")
    assert (end["best_episode_return"], end["best_steps"]) == (
        best["episode_return"],
        best["steps"],
    )
    assert f"{absolute['episode_return']:.2f}" in outcome.out.splitlines()[-2]
    assert (run_dir / "learning_curve.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert list((home / ".cache" / "jaxppo").iterdir()), "no compiled program was kept"

    again = command(*CARTPOLE, "hydra.run.dir=run", limit=REFUSAL_LIMIT)
    assert (again.status, again.out) == (2, "")
    assert "hydra.run.dir=run: holds a run already" in again.err
    assert events(run_dir) == found


@pytest.mark.long
def test_sweep_over_seeds_trains_each(command: Any, cwd: Path) -> None:
    outcome = command("-m", *CARTPOLE, "arch.seed=1,2", "hydra.sweep.dir=sweep")
    assert (outcome.status, outcome.err) == (0, "")
    jobs = sorted(path for path in (cwd / "sweep").iterdir() if path.is_dir())
    assert [path.name for path in jobs] == ["0", "1"]
    assert [summary(job)["seed"] for job in jobs] == [1, 2]
    assert [summary(job)["status"] for job in jobs] == ["finished"] * 2
    assert [OmegaConf.load(job / "config.yaml").arch.seed for job in jobs] == [1, 2]
    losses = [[event["total_loss"] for event in events(job)[:3:2]] for job in jobs]
    assert losses[0] != losses[1]


@pytest.mark.long
def test_plan_only_prints_the_plan_and_stops(command: Any, launch: Any, cwd: Path) -> None:
    outcome = command(
        *CARTPOLE, "arch.num_updates=null", "arch.total_timesteps=100", "arch.plan_only=true",
        "hydra.run.dir=run",
    )  # fmt: skip
    assert (outcome.status, outcome.err) == (0, "")
    for words in ("32 steps", "4 updates = 128 steps", "100 asked for", "GFLOP", "MiB"):
        assert words in outcome.out
    assert "absolute metric" not in outcome.out
    written = {path.name for path in (cwd / "run").iterdir()}
    assert not written & {"metrics.jsonl", "summary.json", "learning_curve.png"}
    seen: list[Config] = []
    launch("hydra.run.dir=run", run=recorder(seen))
    assert len(seen) == 1, "the directory of a plan is free for the run"


@pytest.mark.long
def test_environment_of_the_users_own_class(command: Any, cwd: Path) -> None:
    budget = ["arch.num_updates=1", "arch.num_evaluation=1"]
    outcome = command(*BY_CLASS, *SMALL, *budget, FIVE_STEPS, "hydra.run.dir=run")
    assert (outcome.status, outcome.err) == (0, "")
    evaluation, absolute = events(cwd / "run")[1:]
    assert evaluation["episode_return"] == absolute["episode_return"] == 5.0
    assert evaluation["unfinished"] == 2
    assert absolute["unfinished"] == 20
    last = outcome.out.splitlines()[-2]
    assert last.startswith("absolute metric: 5.00")
    assert "20 of 20 episodes unfinished after 5 steps" in last


@pytest.mark.long
def test_reward_of_a_registered_id_that_turns_nan_stops_the_run(command: Any, cwd: Path) -> None:
    budget = ["arch.num_updates=2", "arch.num_evaluation=2"]
    outcome = command(*BY_ID, *SMALL, *budget, FIVE_STEPS, "hydra.run.dir=run")
    assert outcome.status == 1
    (line,) = outcome.err.splitlines()
    assert "reward" in line
    assert "step 64" in line
    found = events(cwd / "run")
    assert [event["event"] for event in found] == ["train", "eval", "train"]
    assert found[1]["episode_return"] == 5.0
    assert found[2]["total_loss"] is None  # JSON has no NaN
    end = summary(cwd / "run")
    assert end["status"] == line
    assert (end["best_episode_return"], end["best_steps"]) == (5.0, 32)
    assert end["absolute_metric"] is None
    assert (cwd / "run" / "learning_curve.png").is_file()


def terminal_output(
    arguments: list[str], cwd: Path, env: dict[str, str], rows: int = 24, columns: int = 100
) -> tuple[int, str]:
    """Exit status and all that a terminal of this size receives."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxppo.ff_ppo", *arguments],
        cwd=cwd,
        env=env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    received = b""
    with process, contextlib.suppress(OSError):  # the end of a terminal is an error on Linux
        while chunk := os.read(ours, 4096):
            received += chunk
    os.close(ours)
    return process.returncode, received.decode()


@pytest.mark.long
@pytest.mark.parametrize(
    "how, words",
    [
        ("env=cartpol >&-", "env=cartpol: no such choice"),
        ("arch.plan_only=true >&- 2>&-", None),
        ("arch.plan_only=true > /dev/full", "standard output or a file of the run: No space"),
        ("--help > /dev/full", "standard output or a file of the run: No space"),
    ],
)
def test_an_output_that_is_closed_or_full_is_no_traceback(
    cwd: Path, shell: dict[str, str], how: str, words: str | None
) -> None:
    line = f"{sys.executable} -m jaxppo.ff_ppo {shlex.join(CARTPOLE)} {how}"
    done = subprocess.run(line, shell=True, cwd=cwd, env=shell, capture_output=True, text=True)
    if words is None:
        assert done.returncode == 0
    else:
        assert done.returncode != 0
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "variables, words",
    [
        ({"JAX_PLATFORMS": "cuda"}, "JAX_PLATFORMS=cuda: there is no such device here; unset it"),
        ({"JAX_PLATFORMS": "gpuu"}, "JAX_PLATFORMS=gpuu: there is no such device here; unset it"),
        ({"JAX_ENABLE_X64": "1"}, "JAX_ENABLE_X64: jaxppo computes in 32 bits; unset it"),
        ({"JAX_DISABLE_JIT": "1"}, "JAX_DISABLE_JIT: jaxppo runs compiled programs only; unset it"),
    ],
)
def test_what_a_machine_has_not_is_said_in_one_line(
    cwd: Path, shell: dict[str, str], variables: dict[str, str], words: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jaxppo.ff_ppo", *CARTPOLE],
        cwd=cwd, env={**shell, **variables}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(words)
    assert list(cwd.iterdir()) == []


@pytest.mark.long
def test_a_working_directory_that_is_gone_is_said(cwd: Path, shell: dict[str, str]) -> None:
    line = f"rmdir {cwd}; {sys.executable} -m jaxppo.ff_ppo env=cartpole"
    done = subprocess.run(line, shell=True, cwd=cwd, env=shell, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "the working directory does not exist any more; change to another\n"


@pytest.mark.parametrize(
    "error, words",
    [
        (MemoryError(), "no memory is left; lower arch.total_num_envs"),
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory, 9 bytes\nat x"),
            "RESOURCE_EXHAUSTED: Out of memory, 9 bytes; lower arch.total_num_envs",
        ),
        (FileNotFoundError(2, "No such file or directory", "x.csv"), "x.csv: cannot be read (No"),
        (FileNotFoundError(2, "No such", "no/x.csv"), "no/x.csv: there is no directory no; name"),
        (OSError(28, "No space left on device", "x.csv"), "x.csv: cannot be written (No space"),
        (PermissionError(13, "Permission denied", "/nowhere/x"), "/nowhere/x: cannot be written"),
    ],
)
def test_what_the_system_refuses_is_one_line(error: Exception, words: str) -> None:
    line = explain(error)
    assert line is not None
    assert line.startswith(words)
    assert "\n" not in line


def test_running_out_of_memory_is_what_it_is_taken_for() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        jnp.zeros(2**45).block_until_ready()
    assert "lower arch.total_num_envs" in str(explain(error.value))


@pytest.mark.parametrize(
    "folder", ["runs/1", "my runs/a(b)", "it's", "a=b,c", "back\\slash", "end\\", "${x}", "ü"]
)
def test_what_to_type_is_quoted_for_shell_and_hydra(folder: str) -> None:
    (typed,) = shlex.split(as_argument("resume", Path(folder)))
    override = OverridesParser.create().parse_override(typed)
    assert (override.key_or_group, override.value()) == ("resume", folder)


@pytest.mark.long
def test_a_signal_is_answered_whatever_the_budget(cwd: Path, shell: dict[str, str]) -> None:
    """Within ten seconds, though a block of 5e9 steps takes hours; then the run goes on."""
    small = [word for word in CARTPOLE if "num_updates" not in word]
    typed = [*small, "arch.total_timesteps=5e9", "arch.num_evaluation=10", "hydra.run.dir=my run"]
    seen: list[int] = []
    wait = 6.0
    while len(seen) < 2:
        arguments = ["resume='my run'"] if (cwd / "my run").exists() else typed
        child = subprocess.Popen(
            [sys.executable, "-m", "jaxppo.ff_ppo", *arguments],
            cwd=cwd, env=shell, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout is not None
        while "compiled in" not in child.stdout.readline():
            assert child.poll() is None
        time.sleep(wait)  # beyond the first call, which no line tells of
        start = time.monotonic()
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=60)
        assert time.monotonic() - start < 10
        assert child.returncode == 128 + signal.SIGTERM
        if err.startswith("SIGTERM: stopped at once"):  # still beginning, with nothing to save
            wait *= 2
            continue
        first, last = err.splitlines()
        assert first == "SIGTERM: saving a checkpoint, then stopping"
        assert last.endswith(f"saved; to go on: {as_argument('resume', cwd / 'my run')}")
        seen += [checkpoint.steps_in(cwd / "my run" / "checkpoints")[-1]]
    assert 0 < seen[0] < seen[1] < 5e8


@pytest.mark.long
def test_terminal_shows_a_progress_bar(cwd: Path, shell: dict[str, str]) -> None:
    shell = {name: v for name, v in shell.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    status, received = terminal_output([*CARTPOLE, "hydra.run.dir=run"], cwd, shell)
    assert status == 0
    assert "Traceback" not in received
    assert "\x1b[2K" in received, "nothing was ever redrawn"
    assert "64 steps" in received
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", received)
    assert re.search(r"━.*100%.*64 steps .* steps/s.*return", plain)
    assert plain.strip().splitlines()[-2].startswith("absolute metric")
