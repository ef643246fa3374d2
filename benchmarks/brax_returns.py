"""Returns of this system and of Brax's own PPO in Brax's environments at the same settings.

    .venv-adapters/bin/python -m benchmarks.brax_returns                # all rows; make adapters
    .venv-adapters/bin/python -m benchmarks.brax_returns ant fast --seeds 3

Both have the same networks, rollouts, minibatches and Adam steps, and a constant learning rate.
Nothing was tuned. What differs: Brax cuts a rollout into pieces of `unroll_length` steps, computes
advantages within a piece and shuffles pieces; this system uses the whole rollout and shuffles
steps. Each has its own initial weights and its own standard deviation of the policy. The policy
after the last update is then evaluated without noise on 128 episodes. Results are appended to
benchmarks/results/brax_returns.jsonl (ignored by git).
"""

import sys
from typing import Any

from benchmarks.blocks import torsos
from benchmarks.returns import compare, last_evaluation, of_peer

WALKING: dict[str, Any] = {
    "backend": "positional",
    "episode_length": 1000,
    "steps": 1_015_808,
    "num_envs": 64,
    "rollout_length": 256,
    "unroll_length": 32,
    "minibatches": 64,
    "epochs": 4,
    "learning_rate": 3e-4,
    "entropy": 1e-3,
    "discount": 0.97,
    "reward_scale": 1.0,
    "layers": [64, 64],
    "episodes": 128,
}
ROWS: dict[str, dict[str, Any]] = {  # environment -> work
    "ant": {**WALKING, "reward_scale": 10.0},
    "halfcheetah": {**WALKING, "discount": 0.95},
    "humanoid": {**WALKING, "reward_scale": 0.1},
    "walker2d": WALKING,
    "fast": {  # Brax's own test of its PPO
        **WALKING,
        "backend": None,
        "episode_length": 128,
        "steps": 33_280,
        "rollout_length": 40,
        "unroll_length": 5,
        "minibatches": 8,
        "entropy": 1e-2,
        "discount": 0.95,
        "layers": [32, 32, 32, 32],
    },
}


def settings_of(name: str, work: dict[str, Any], seeds: int) -> list[str]:
    """Our command line for a row."""
    return [
        *("env.library=brax", f"env.name={name}"),
        f"env.kwargs.episode_length={work['episode_length']}",
        *([f"env.kwargs.backend={work['backend']}"] if work["backend"] else []),
        *(f"arch.num_seeds={seeds}", f"arch.total_num_envs={work['num_envs']}"),
        *(f"arch.total_timesteps={work['steps']}", "arch.num_evaluation=1"),
        *("arch.absolute_metric=false", f"arch.num_eval_episodes={work['episodes']}"),
        *(f"system.rollout_length={work['rollout_length']}", f"system.epochs={work['epochs']}"),
        f"system.num_minibatches={work['minibatches']}",
        f"system.actor_lr={work['learning_rate']}",
        f"system.critic_lr={work['learning_rate']}",
        f"system.gamma={work['discount']}",
        f"system.ent_coef={work['entropy']}",
        f"system.reward_scale={work['reward_scale']}",
        *("system.decay_learning_rates=false", "system.clip_together=true", "system.vf_coef=0.5"),
        *("system.standardize_advantages=minibatch", "system.clip_eps=0.3"),
        *("system.normalize_observations=true", "system.obs_norm_share=1"),
        "system.normalize_rewards=false",
        *("network/actor_head=tanh_normal",),
        *torsos(work["layers"], "silu"),
    ]


def ours(name: str, work: dict[str, Any], seeds: int) -> list[float]:
    """The return of the last policy of each seed; the seeds are one program."""
    last = last_evaluation(settings_of(name, work, seeds))
    assert last["steps"] == work["steps"], last
    returns = last.get("member_returns", [last["episode_return"]])
    return [float(x) for x in returns]


def theirs(name: str, work: dict[str, Any], seeds: int) -> list[float]:
    """The same with Brax, one run after another."""
    return of_peer(sys.executable, "run_brax_returns", {"name": name, **work}, seeds)


if __name__ == "__main__":
    systems = {"jaxppo": ours, "Brax": theirs}
    compare(__doc__.partition("\n")[0], "brax_returns.jsonl", ROWS, systems)
