"""stable-baselines3 on a row of `benchmarks.simulators`, timed block by block."""

import json
import sys
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks.blocks import serve

work = json.loads(sys.argv[1])
of_images = work["name"] == "images"
if not of_images:
    torch.set_num_threads(1)  # two were slower on two cores


def slow():
    """CartPole whose step takes 1 ms longer."""
    from gymnasium.wrappers import TimeLimit

    from benchmarks.simulators import Slow

    return TimeLimit(Slow(), 500)


def images():
    """Frames that cost nothing."""
    from benchmarks.simulators import Images

    return Images()


name = {"slow": slow, "slow-wide": slow, "images": images}.get(work["name"], work["name"])
envs = make_vec_env(name, work["num_envs"])
if work["normalize"]:
    envs = VecNormalize(envs)
sizes = [work["width"]] * 2
steps = work["num_envs"] * work["rollout_length"]
layers = {"net_arch": {"pi": sizes, "vf": sizes}, "activation_fn": torch.nn.Tanh}
ppo = PPO(
    "CnnPolicy" if of_images else "MlpPolicy",
    envs,
    n_steps=work["rollout_length"],
    batch_size=steps // work["minibatches"],
    n_epochs=work["epochs"],
    learning_rate=2.5e-4,
    policy_kwargs={} if of_images else layers,
    device="cpu",
)
ppo.learn(steps)
start = time.perf_counter()
ppo.learn(steps, reset_num_timesteps=False)
updates = max(1, round(2.0 / (time.perf_counter() - start)))
serve(lambda: ppo.learn(updates * steps, reset_num_timesteps=False), updates * steps, 0.0)
