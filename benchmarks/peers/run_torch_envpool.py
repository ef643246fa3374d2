"""A plain PPO in PyTorch on EnvPool, on a row of `benchmarks.simulators`, timed block by block.

One file, as researchers copy them. EnvPool resets in the step after an end; those steps count as
steps, and the loss leaves them out.
"""

import json
import sys
import time

import envpool
import numpy as np
import torch
from torch import nn

from benchmarks.blocks import serve

work = json.loads(sys.argv[1])
torch.set_num_threads(1)
N, T = work["num_envs"], work["rollout_length"]
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2
env = envpool.make_gymnasium(work["name"], num_envs=N, seed=0, num_threads=1)
space = env.action_space
discrete = hasattr(space, "n")
size = int(np.prod(env.observation_space.shape))


def mlp(out):
    """Two layers of 64."""
    return nn.Sequential(
        *(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))
    )


actor, critic = mlp(int(space.n) if discrete else space.shape[0]), mlp(1)
log_std = nn.Parameter(torch.zeros(() if discrete else space.shape))
params = [*actor.parameters(), *critic.parameters(), log_std]
adam = torch.optim.Adam(params, lr=2.5e-4, eps=1e-5)


def policy(x):
    """The distribution over actions."""
    if discrete:
        return torch.distributions.Categorical(logits=actor(x), validate_args=False)
    normal = torch.distributions.Normal(actor(x), log_std.exp(), validate_args=False)
    return torch.distributions.Independent(normal, 1, validate_args=False)


def taken(action):
    """An action as EnvPool takes it."""
    found = action.numpy()
    return found.astype(np.int32) if discrete else found.clip(space.low, space.high).astype("f8")


obs = torch.from_numpy(np.asarray(env.reset()[0], np.float32))
ended = np.zeros(N, bool)


def update():
    """Collect a rollout and learn from it."""
    global obs, ended
    seen, acted, logs, values = [], [], [], []
    rewards, terms, ends, lives = (np.zeros((T, N), np.float32) for _ in range(4))
    with torch.no_grad():
        for t in range(T):
            found = policy(obs)
            action = found.sample()
            seen.append(obs)
            acted.append(action)
            logs.append(found.log_prob(action))
            values.append(critic(obs)[:, 0])
            raw, rewards[t], terms[t], truncated, _ = env.step(taken(action))
            lives[t] = ~ended
            ended = (terms[t] > 0) | truncated
            ends[t] = ended
            obs = torch.from_numpy(np.asarray(raw, np.float32))
        value = torch.stack([*values, critic(obs)[:, 0]]).numpy()
    advantage, carry = np.zeros((T, N), np.float32), np.zeros(N, np.float32)
    for t in reversed(range(T)):
        delta = rewards[t] + GAMMA * value[t + 1] * (1 - terms[t]) - value[t]
        carry = lives[t] * (delta + GAMMA * LAMBDA * (1 - ends[t]) * carry)
        advantage[t] = carry
    flat = [torch.stack(x).flatten(0, 1) for x in (seen, acted, logs)]
    gains = torch.from_numpy(advantage).flatten()
    targets = gains + torch.from_numpy(value[:-1]).flatten()
    live = np.flatnonzero(lives)
    for _ in range(work["epochs"]):
        np.random.shuffle(live)
        for rows in np.array_split(live, work["minibatches"]):
            x, a, old = (part[rows] for part in flat)
            gain = gains[rows]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            found = policy(x)
            ratio = (found.log_prob(a) - old).exp()
            surrogate = torch.min(gain * ratio, gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
            error = (critic(x)[:, 0] - targets[rows]).square().mean()
            loss = 0.5 * error - surrogate - 0.01 * found.entropy().mean()
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(params, 0.5)
            adam.step()


update()
start = time.perf_counter()
update()
updates = max(1, round(2.0 / (time.perf_counter() - start)))
serve(lambda: [update() for _ in range(updates)], updates * N * T, 0.0)
