"""Brax's PPO on a row of `benchmarks.brax_returns`; prints the mean return."""

import functools
import json
import sys

from brax import envs
from brax.training.agents.ppo import networks, train

import benchmarks.peers.brax_on_jax  # noqa: F401

work = json.loads(sys.argv[1])
made = {"backend": work["backend"]} if work["backend"] else {}
layers = tuple(work["layers"])
unroll = work["unroll_length"]
reported = []
train.train(
    envs.get_environment(work["name"], **made),
    num_timesteps=work["steps"],
    num_evals=2,
    num_eval_envs=work["episodes"],
    deterministic_eval=True,
    episode_length=work["episode_length"],
    num_envs=work["num_envs"],
    unroll_length=unroll,
    batch_size=work["num_envs"] * work["rollout_length"] // unroll // work["minibatches"],
    num_minibatches=work["minibatches"],
    num_updates_per_batch=work["epochs"],
    learning_rate=work["learning_rate"],
    entropy_cost=work["entropy"],
    discounting=work["discount"],
    gae_lambda=0.95,
    reward_scaling=work["reward_scale"],
    clipping_epsilon=0.3,
    max_grad_norm=0.5,
    normalize_observations=True,
    seed=work["seed"],
    network_factory=functools.partial(
        networks.make_ppo_networks,
        policy_hidden_layer_sizes=layers,
        value_hidden_layer_sizes=layers,
    ),
    progress_fn=lambda steps, metrics: reported.append((steps, metrics)),
)
steps, metrics = reported[-1]
assert steps == work["steps"], f"trained {steps} steps, not {work['steps']}"
print(float(metrics["eval/episode_reward"]))
