"""stable-baselines3 on one size, timed block by block: started by `benchmarks.peers`."""

import sys

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.blocks import serve, size_of

size = size_of(sys.argv[1])
layers = list(size.layers)
ppo = PPO(
    "MlpPolicy",
    make_vec_env("CartPole-v1", size.num_envs),
    n_steps=size.rollout_length,
    batch_size=size.steps_per_update // size.num_minibatches,
    n_epochs=size.num_epochs,
    learning_rate=3e-4,
    policy_kwargs={
        "net_arch": {"pi": layers, "vf": layers},
        "activation_fn": {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[size.activation],
    },
    device="cpu" if not torch.cuda.is_available() else "auto",
)
ppo.learn(size.steps_per_update)
steps = max(1, 16_384 // size.steps_per_update) * size.steps_per_update
serve(lambda: ppo.learn(steps, reset_num_timesteps=False), steps, 0.0)
