"""Train a policy in one environment and continue training it in another.

The other has a motor that pushes the wrong way. The new run begins with the parameters and the
observation statistics of the old one; its optimiser and its budget are new.
"""

import tempfile

import jaxppo

SETTINGS = {
    "env": "cartpole",
    "arch": {"total_timesteps": 8e4, "total_num_envs": 32, "num_evaluation": 5},
    "system": {"actor_lr": 3e-3, "critic_lr": 3e-3, "num_minibatches": 4, "gae_lambda": 0.95},
}
REVERSED = {"force_mag": -10.0}  # by default 10

source = jaxppo.train(SETTINGS)
print(f"source: {source.absolute_metric:.1f} after {source.policy.steps:,} steps")

with tempfile.TemporaryDirectory() as folder:
    run_dir = source.save(f"{folder}/run")
    same_policy = jaxppo.load(run_dir, env={"params": REVERSED})
    before = same_policy.evaluate(128).returns.mean()
    print(f"source's policy with a reversed motor: {before:.1f}")

    target = jaxppo.train({**SETTINGS, "env.params": REVERSED, "init_from": str(run_dir)})

for steps, score in zip(
    target.evaluations["steps"], target.evaluations["episode_return"], strict=True
):
    print(f"{steps:7,d} steps: return {score:5.1f}")
print(f"target: {target.absolute_metric:.1f} after {target.policy.steps:,} steps")
