"""Train in JAX, then act in an environment of Gymnasium.

A trained policy takes NumPy observations as well, so it acts in any loop whose observations and
actions fit its environment. Install Gymnasium with `pip install gymnasium`.
"""

import gymnasium
import jax

import jaxppo

NUM_EPISODES = 5
result = jaxppo.train(
    [
        "env=cartpole",
        "arch.total_timesteps=6e4",
        "arch.total_num_envs=32",
        "arch.num_evaluation=5",
        "system.num_minibatches=4",
        "system.actor_lr=3e-3",
        "system.critic_lr=3e-3",
        "system.gae_lambda=0.95",
    ]
)
print(f"absolute metric in the CartPole of training: {result.absolute_metric:.1f}")

act = jax.jit(result.policy.act)  # act(observation, key) would sample
env = gymnasium.make("CartPole-v1")
for episode in range(NUM_EPISODES):
    observation, _ = env.reset(seed=episode)
    total, over = 0.0, False
    while not over:
        action, _ = act(observation)  # the second value is the memory, if the network has one
        observation, reward, terminated, truncated, _ = env.step(int(action))
        total, over = total + reward, terminated or truncated
    print(f"episode {episode} in Gymnasium's CartPole-v1: return {total:.0f}")
