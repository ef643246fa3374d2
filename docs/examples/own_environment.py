"""Train in an environment of your own, given as an object.

The environment has two spaces, a time limit, and `reset` and `step` for a single environment. The
package vectorises it, counts time and resets ended episodes; see docs/environments.md.
"""

import jax
import jax.numpy as jnp

import jaxppo
from jaxppo.types import Box, Discrete


class Docking:
    """Bring a spacecraft to rest at position 0 by thrust to the left, none, or to the right."""

    observation_space = Box((2,), "float32")  # position and velocity
    action_space = Discrete(3)
    time_limit = 60

    def __init__(self, thrust: float = 0.05) -> None:
        self.thrust = thrust

    def reset(self, key):
        position = jax.random.uniform(key, minval=-1.0, maxval=1.0)
        state = jnp.stack([position, 0.0])
        return state, state  # state, observation

    def step(self, key, state, action):
        velocity = state[1] + self.thrust * (action - 1)
        position = state[0] + velocity
        state = jnp.stack([position, velocity])
        lost = jnp.abs(position) > 2.0
        reward = jnp.where(lost, -60.0, -jnp.abs(position))
        return state, state, reward, lost, False  # ... terminated, truncated


env = Docking(thrust=0.04)
settings = {
    "arch": {"total_timesteps": 1e5, "total_num_envs": 64, "num_evaluation": 5},
    "system": {"actor_lr": 2e-3, "critic_lr": 2e-3, "num_minibatches": 4},
}
result = jaxppo.train(settings, env=env)
for steps, score in zip(
    result.evaluations["steps"], result.evaluations["episode_return"], strict=True
):
    print(f"{steps:7,d} steps: return {score:6.2f}")

state, observation = env.reset(jax.random.key(2))
for step in range(21):
    if step % 5 == 0:
        print(f"step {step:2d}: position {state[0]:+.2f}, velocity {state[1]:+.2f}")
    action, _ = result.policy.act(observation)
    state, observation, *_ = env.step(None, state, action)
print(f"absolute metric: {result.absolute_metric:.2f}")
