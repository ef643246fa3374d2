"""Frame stacks: the last observations of an episode, against a plain loop over the steps."""

import types
from typing import Any

import numpy as np
import pytest
from rollouts import rollout

from jaxppo import envs
from jaxppo.config.parse import parse
from jaxppo.envs.forms import bound_of
from jaxppo.envs.frames import Frames
from jaxppo.types import Box, Discrete

B, T, N = 3, 25, 3


def make(**env: Any) -> Any:
    return envs.make(parse({"env": {"name": None, "target": "envs.Clock", **env}}).env)


@pytest.mark.parametrize("terminates", [True, False], ids=["terminated", "truncated"])
def test_stacks_are_those_of_a_plain_loop(terminates: bool) -> None:
    params = {"params": {"max_steps_in_episode": 7, "terminates": terminates}}
    actions = np.zeros((T, B), np.int32)
    first, steps = rollout(make(**params), actions)
    stacked_first, stacked = rollout(make(frame_stack=N, **params), actions)
    ended = 0
    for b in range(B):
        frames = [first[b]] * N
        np.testing.assert_array_equal(stacked_first[b], np.concatenate(frames))
        for t in range(T):
            final = np.concatenate([*frames[1:], steps.final_observation[t, b]])
            np.testing.assert_array_equal(stacked.final_observation[t, b], final)
            over = steps.terminated[t, b] or steps.truncated[t, b]
            ended += over
            frames = [steps.obs[t, b]] * N if over else [*frames[1:], steps.obs[t, b]]
            np.testing.assert_array_equal(stacked.obs[t, b], np.concatenate(frames))
    assert ended >= 2 * B
    np.testing.assert_array_equal(stacked.reward, steps.reward)


def test_spaces_of_stacks() -> None:
    assert make(frame_stack=4).observation_space.shape == (8,)
    assert make(frame_stack=4, action_mask=None).observation_space.shape == (8,)
    space, plain = (make(target="envs.Picture", frame_stack=n).observation_space for n in (2, 1))
    assert space.shape == (*plain.shape[:-1], 2 * plain.shape[-1])
    bounded = envs.make(parse({"env": {"name": "CartPole-v1", "frame_stack": 2}}).env)
    assert np.asarray(bounded.observation_space.low).shape in ((), (8,))
    low, high = np.zeros((5, 1)), np.arange(5.0)[:, None]  # which are broadcast
    one = Box((5, 3), "float32", bound_of(low), bound_of(high))
    named = {"name": "one", "action_space": Discrete(2), "time_limit": None, "pool_size": 0}
    env: Any = types.SimpleNamespace(**named, observation_space=one, num_agents=1, pads=False)
    space = Frames(env, 2, "action_mask").observation_space
    assert space.shape == (5, 6)
    np.testing.assert_array_equal(np.asarray(space.high), np.broadcast_to(high, (5, 6)))


def test_integers_masks_and_extras_are_not_stacked() -> None:
    space = make(target="envs.Echo", frame_stack=2).observation_space
    assert isinstance(space["shown"], Discrete)
    assert space["count"].shape == (4,)
    masked, plain = (make(target="envs.Masked", frame_stack=n).observation_space for n in (2, 1))
    assert masked["action_mask"] == plain["action_mask"]
    assert masked["observation"].shape == (2 * plain["observation"].shape[0],)
    space = make(frame_stack=2, extras=["step"]).observation_space
    assert (space["observation"].shape, space["step"].shape) == ((4,), (1,))
