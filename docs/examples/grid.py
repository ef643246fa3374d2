"""Train a grid of seeds and learning rates as one program, and print a table.

The function of `make_train` takes hyperparameters as its second argument. Two `jax.vmap`, one
inside the other, map it over a grid: the inner one over keys, the outer one over learning rates.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jaxppo
from jaxppo.ops.aggregates import interval, iqm

run = jaxppo.make_train(
    [
        "env=cartpole",
        "arch.total_timesteps=2.5e4",
        "arch.total_num_envs=32",
        "arch.evaluate_first=false",  # only one evaluation, at the end
        "arch.num_evaluation=1",
        "arch.absolute_metric=false",
        "arch.compiler=quick",  # compiles faster and runs slower: for runs of seconds
        "system.num_minibatches=4",
        "system.gae_lambda=0.95",
    ]
)

keys = jax.random.split(jax.random.key(0), 4)
rates = jnp.logspace(-4, -2, 8)
grid = run.hyperparameters.replace(actor_lr=rates, critic_lr=rates)  # all arrays [8]
over_seeds = jax.vmap(run, (0, None))
over_rates = jax.vmap(over_seeds, (None, 0))
output = jax.jit(over_rates, compiler_options=run.compiler_options)(keys, grid)

scores = np.asarray(output.evaluations.episode_return[:, :, -1])  # [rates, seeds]
print("learning rate  IQM of return  95% interval    each seed")
for rate, row in zip(rates, scores, strict=True):
    low, high = interval([row])
    each = " ".join(f"{score:5.0f}" for score in row)
    print(f"{rate:13.5f}  {iqm(row):13.1f}  [{low:5.1f}, {high:5.1f}]  {each}")
print(f"best learning rate: {rates[np.argmax(iqm(scores))]:.5f}")
