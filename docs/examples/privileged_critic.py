"""Let the critic see what the actor may not: the state of a simulation, used in training only.

The actor sees where cart and pole are, and remembers the past to infer how fast they move. It is
trained twice: with a critic that sees the same, and with one that sees the velocities too.
"""

import gymnax

import jaxppo
from jaxppo.types import Box, Discrete

CARTPOLE, PARAMS = gymnax.make("CartPole-v1")


class HiddenVelocities:
    """CartPole with two entries in its observation: what a camera sees, and the whole state."""

    action_space = Discrete(2)
    time_limit = 500

    def __init__(self):
        self.observation_space = {"camera": Box((2,), "float32"), "state": Box((4,), "float32")}

    def observe(self, state):
        return {"camera": state[::2], "state": state}  # positions and angles; all

    def reset(self, key):
        observed, state = CARTPOLE.reset_env(key, PARAMS)
        return state, self.observe(observed)

    def step(self, key, state, action):
        observed, state, reward, done, _ = CARTPOLE.step_env(key, state, action, PARAMS)
        failed = done & (state.time < self.time_limit)
        return state, self.observe(observed), reward, failed, False


for entry in ("camera", "state"):
    result = jaxppo.train(
        [
            "network=gru",
            "network/input_layer=concatenate",
            "network.input_layer.keys=[camera]",
            "+network/input_layer@network.critic_input=concatenate",
            f"network.critic_input.keys=[{entry}]",
            "arch.total_timesteps=6e4",
            "arch.total_num_envs=64",
            "arch.num_seeds=4",
            "arch.num_evaluation=3",
            "arch.num_eval_episodes=16",
            "arch.absolute_metric=false",
            "system.num_minibatches=4",
            "system.actor_lr=2e-3",
            "system.critic_lr=2e-3",
        ],
        command="rec_ppo",
        env=HiddenVelocities(),
        progress=False,
    )
    scores = " ".join(f"{score:5.0f}" for score in result.evaluations["episode_return"].mean(0))
    print(f"the critic sees the {entry:6}  mean return over training: {scores}")
