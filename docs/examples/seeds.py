"""Train many seeds as one program, and report the interquartile mean (IQM) with its 95% interval.

`make_train` returns a whole training run as a pure function of a key, so `jax.vmap` over 16 keys
trains 16 agents at once.
"""

import jax
import numpy as np

import jaxppo
from jaxppo.ops.aggregates import interval, intervals, iqm

NUM_SEEDS = 16
run = jaxppo.make_train(
    [
        "env=cartpole",
        "arch.total_timesteps=5e4",
        "arch.total_num_envs=32",
        "arch.num_evaluation=5",
        "arch.num_eval_episodes=8",
        "arch.compiler=quick",  # compiles faster and runs slower: for runs of seconds
        "system.num_minibatches=4",
        "system.actor_lr=3e-3",
        "system.critic_lr=3e-3",
        "system.gae_lambda=0.95",
    ]
)

# jax.random.key(3) gives the same run as arch.seed=3 on the command line
keys = jax.vmap(jax.random.key)(np.arange(NUM_SEEDS))
train = jax.jit(jax.vmap(run), compiler_options=run.compiler_options)
output = train(keys)  # every array has one more leading axis: [NUM_SEEDS, ...]

steps = output.evaluations.updates[0] * run.steps_per_update  # [evaluations], alike in all seeds
curves = output.evaluations.episode_return  # [NUM_SEEDS, evaluations]
low, high = intervals(curves)
print("  steps    IQM  95% interval")
for row in zip(steps, iqm(curves, axis=0), low, high, strict=True):
    print("{:7,d}  {:5.1f}  [{:.1f}, {:.1f}]".format(*row))

scores = output.absolute_metric  # [NUM_SEEDS], of the best policy of each seed in new episodes
left, right = interval([scores])
print(f"absolute metric of {NUM_SEEDS} seeds: IQM {iqm(scores):.1f} [{left:.1f}, {right:.1f}]")
