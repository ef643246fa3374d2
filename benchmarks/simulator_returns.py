"""Returns of this system and of stable-baselines3 on the same simulators at the same settings.

    python -m benchmarks.simulator_returns                      # all rows
    python -m benchmarks.simulator_returns CartPole-v1 Hopper-v5 --seeds 3

Every run has 8 environments, a constant learning rate and no tuning. The policy after the last
update is then evaluated without noise on 100 episodes (Atari: 20). Results are appended to
benchmarks/results/simulator_returns.jsonl (ignored by git).
"""

import importlib
import os
from typing import Any

from benchmarks.blocks import torsos
from benchmarks.returns import compare, last_evaluation, of_peer
from benchmarks.simulators import IMAGE_NETWORK

CLASSIC = {"rollout_length": 128, "minibatches": 4, "epochs": 4, "learning_rate": 2.5e-4}
MUJOCO = {"rollout_length": 256, "minibatches": 32, "epochs": 10, "learning_rate": 3e-4}
ROWS: dict[str, dict[str, Any]] = {  # environment -> work
    "CartPole-v1": {**CLASSIC, "steps": 102_400},
    "Acrobot-v1": {**CLASSIC, "steps": 307_200},
    "Hopper-v5": {**MUJOCO, "steps": 1_001_472, "normalize": True},
    "HalfCheetah-v5": {**MUJOCO, "steps": 1_001_472, "normalize": True},
    "ALE/Boxing-v5": {**CLASSIC, "steps": 204_800, "atari": True, "episodes": 20},
}


def __getattr__(name: str) -> Any:
    """`atari`: makes an Atari game with the usual preprocessing, channels last."""
    if name != "atari":
        raise AttributeError(name)
    import gymnasium
    import numpy as np
    from gymnasium import wrappers

    gymnasium.register_envs(importlib.import_module("ale_py"))

    class ChannelsLast(gymnasium.ObservationWrapper[Any, Any, Any]):
        """Moves the stacked frames from the first axis to the last."""

        def __init__(self, env: Any) -> None:
            super().__init__(env)
            frames, height, width = env.observation_space.shape
            self.observation_space = gymnasium.spaces.Box(0, 255, (height, width, frames), np.uint8)

        def observation(self, observation: Any) -> Any:
            return np.moveaxis(np.asarray(observation), 0, -1)

    def atari(name: str) -> Any:
        game = gymnasium.make(name, frameskip=1, repeat_action_probability=0.0)
        seen = wrappers.AtariPreprocessing(game, noop_max=30, frame_skip=4)
        return ChannelsLast(wrappers.FrameStackObservation(seen, 4))

    return atari


def settings_of(name: str, work: dict[str, Any], seed: int) -> list[str]:
    """Our command line for a row; what differs from our defaults is stable-baselines3's way."""
    normalize = str(work.get("normalize", False)).lower()
    env = [f"env.name={name}"]
    network = torsos([64, 64], "tanh")
    if work.get("atari"):
        env = [
            "env.target=benchmarks.simulator_returns.atari",
            f"env.kwargs.name='{name}'",
            *("arch.max_eval_steps=27000", "system.reward_clip=1"),
        ]
        network = IMAGE_NETWORK
    return [
        *("env=gymnasium", *env, "env.processes=2", f"arch.seed={seed}"),
        *("arch.total_num_envs=8", f"arch.total_timesteps={work['steps']}"),
        *("arch.num_evaluation=1", "arch.absolute_metric=false"),
        f"arch.num_eval_episodes={work.get('episodes', 100)}",
        *(f"system.rollout_length={work['rollout_length']}", f"system.epochs={work['epochs']}"),
        f"system.num_minibatches={work['minibatches']}",
        f"system.actor_lr={work['learning_rate']}",
        f"system.critic_lr={work['learning_rate']}",
        *("system.decay_learning_rates=false", "system.ent_coef=0.0", "system.clip_together=true"),
        "system.standardize_advantages=minibatch",
        "system.vf_coef=1.0",  # our value loss is half the squared error; they weight it by 0.5
        *(f"system.normalize_observations={normalize}", "system.obs_norm_share=1"),
        f"system.normalize_rewards={normalize}",
        *(["system.reward_clip=10"] if work.get("normalize") else []),
        *network,
    ]


def ours(name: str, work: dict[str, Any], seeds: int) -> list[float]:
    """Train each seed and return the mean returns of the last policies."""
    each = (last_evaluation(settings_of(name, work, seed)) for seed in range(seeds))
    return [float(last["episode_return"]) for last in each]


def theirs(name: str, work: dict[str, Any], seeds: int) -> list[float]:
    """The same with stable-baselines3."""
    from benchmarks.peers.__main__ import install

    python = os.environ.get("PEERS_PYTHON") or install("sb3_gymnasium", "")
    return of_peer(python, "run_sb3_returns", {"name": name, "num_envs": 8, **work}, seeds)


if __name__ == "__main__":
    systems = {"jaxppo": ours, "stable-baselines3": theirs}
    compare(__doc__.partition("\n")[0], "simulator_returns.jsonl", ROWS, systems)
