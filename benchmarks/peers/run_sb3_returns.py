"""stable-baselines3 on a row of `benchmarks.simulator_returns`; prints the mean return."""

import json
import sys

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

work = json.loads(sys.argv[1])
torch.set_num_threads(1)


def atari(clip=False):
    """The game of the row; rewards are clipped to their sign in training."""
    from gymnasium.wrappers import TransformReward

    from benchmarks import simulator_returns

    env = simulator_returns.atari(work["name"])
    return TransformReward(env, lambda reward: max(-1.0, min(1.0, reward))) if clip else env


clipped = {"env_kwargs": {"clip": True}} if work.get("atari") else {}
name = atari if work.get("atari") else work["name"]
envs = make_vec_env(name, work["num_envs"], seed=work["seed"], **clipped)
test = make_vec_env(name, 1, seed=work["seed"] + 10_000)
if work.get("normalize"):
    envs = VecNormalize(envs)
sizes = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh}
ppo = PPO(
    "CnnPolicy" if work.get("atari") else "MlpPolicy",
    envs,
    n_steps=work["rollout_length"],
    batch_size=work["num_envs"] * work["rollout_length"] // work["minibatches"],
    n_epochs=work["epochs"],
    learning_rate=work["learning_rate"],
    policy_kwargs=None if work.get("atari") else sizes,
    seed=work["seed"],
    device="cpu",
)
ppo.learn(work["steps"])
if work.get("normalize"):
    test = VecNormalize(test, training=False, norm_reward=False)
    test.obs_rms = envs.obs_rms
mean, _ = evaluate_policy(ppo, test, work.get("episodes", 100), deterministic=True)
print(mean)
