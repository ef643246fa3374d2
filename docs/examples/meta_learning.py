"""Learn the entropy coefficient of PPO by an outer loop over whole training runs.

The outer loop is the cross-entropy method. Every round draws 12 coefficients, trains an agent with
each, and moves the distribution towards those that learnt fastest. All rounds are one
`jax.lax.scan` around the function of `make_train`: one program with 60 whole training runs.
"""

from functools import partial

import jax
import jax.numpy as jnp

import jaxppo

NUM_ROUNDS, NUM_RUNS, NUM_ELITES = 5, 12, 3
run = jaxppo.make_train(
    [
        "env=catch",
        "arch.total_timesteps=2e4",
        "arch.evaluate_first=false",
        "arch.num_evaluation=1",
        "arch.absolute_metric=false",
        "arch.compiler=quick",  # compiles faster and runs slower: for runs of seconds
        "system.num_minibatches=4",
    ]
)


def speed(key: jax.Array, log_coef: jax.Array) -> jax.Array:
    """Train with the entropy coefficient `10 ** log_coef`; return the mean return in training."""
    output = run(key, run.hyperparameters.replace(ent_coef=10.0**log_coef))
    return jnp.nanmean(output.metrics["episode_return"])  # NaN: no episode ended in that update


def improve(search: tuple[jax.Array, jax.Array], key: jax.Array):
    """Run one round of the cross-entropy method on the mean and standard deviation of log_coef."""
    mean, std = search
    draw_key, train_key = jax.random.split(key)
    tried = mean + std * jax.random.normal(draw_key, (NUM_RUNS,))
    scores = jax.vmap(speed)(jax.random.split(train_key, NUM_RUNS), tried)
    elites = tried[jax.lax.top_k(scores, NUM_ELITES)[1]]
    return (jnp.mean(elites), jnp.std(elites) + 0.1), (mean, std, jnp.mean(scores))


@partial(jax.jit, compiler_options=run.compiler_options)
def learn(key: jax.Array):
    """Return the rounds' means, standard deviations and scores, starting from ent_coef = 1."""
    return jax.lax.scan(improve, (0.0, 1.0), jax.random.split(key, NUM_ROUNDS))


(mean, _), rounds = learn(jax.random.key(0))
print("round  ent_coef  std of log10  mean return in training")
for number, row in enumerate(zip(*rounds, strict=True)):
    print(f"{number:5d}  {10 ** row[0]:8.4f}  {row[1]:12.2f}  {row[2]:23.2f}")
print(f"learnt ent_coef: {10**mean:.4f}")
