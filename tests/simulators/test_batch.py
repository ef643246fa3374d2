"""Worlds that one object steps together: the bits of single environments, arrays, faults."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from simulators import LENGTH, LIMIT, FailingWorlds, Known, KnownVector, KnownWorlds, Tensor, Wide
from test_simulators import parts_of

from jaxppo.simulators import batch
from jaxppo.simulators.batch import Batch, spaces_of
from jaxppo.simulators.faults import SimulatorError
from jaxppo.simulators.pool import Pool


def started(make: Any, num: int = 3, **settings: Any) -> Pool:
    one = make(num_envs=1)
    spaces = gymnasium.Env()
    spaces.observation_space, spaces.action_space = spaces_of(one)
    found = Pool(make, num, *parts_of(spaces), kind=Batch, **settings)
    found.reset(range(num), range(100, 100 + num))
    return found


def singles(make: Any, num: int = 3) -> Pool:
    found = Pool(make, num, *parts_of(make()))
    found.reset(range(num), range(100, 100 + num))
    return found


def steps(found: Pool, num: int, action: int) -> None:
    for _ in range(num):
        found.step([np.full(3, action)])


def results(found: Pool) -> list[np.ndarray]:
    arrays = found.arrays
    flags = arrays.reward, arrays.terminated, arrays.truncated
    return [x.copy() for x in (*arrays.obs, *arrays.final, *flags)]


def same_steps(one: Pool, other: Pool, num: int) -> int:
    """Step both by the same actions, compare all, and return how many episodes ended."""
    draw, ended = np.random.default_rng(0), 0
    for _ in range(60):
        action = draw.integers(0, 2, num)
        for each in (one, other):
            each.step([action])
        for x, y in zip(results(one), results(other), strict=True):
            np.testing.assert_array_equal(x, y)
        ended += int((one.arrays.terminated | one.arrays.truncated).sum())
    return ended


VECTORS = [
    *((mode, "sync") for mode in AutoresetMode),
    pytest.param(AutoresetMode.SAME_STEP, "async", marks=pytest.mark.long),
]


@pytest.mark.parametrize("mode, kind", VECTORS)
def test_a_vector_environment_gives_the_bits_of_single_ones(mode: Any, kind: str) -> None:
    """In training and in an evaluation, where single worlds start, each with its own seed."""
    name = "CartPole-v1"
    own: dict[str, Any] = {"autoreset_mode": mode}
    if kind == "async":
        own["context"] = "spawn"  # as a run does: this process has threads of JAX
    given = {"vectorization_mode": kind, "vector_kwargs": own}
    make = partial(gymnasium.make_vec, name, max_episode_steps=25, **given)
    one = singles(partial(gymnasium.make, name, max_episode_steps=25))
    other = started(make)
    assert same_steps(one, other, 3) > 5
    for each in (one, other):
        each.reset([0, 1, 2], [7, 8, 9])
    playing = np.array([True, True, False])
    for step in range(60):
        for each in (one, other):
            each.step([np.full(3, step % 2)], playing)
        for x, y in zip(results(one), results(other), strict=True):
            np.testing.assert_array_equal(x[playing], y[playing])
        over = (one.arrays.terminated | one.arrays.truncated) & playing
        if over.any():
            for each in (one, other):
                each.reset(np.flatnonzero(over), 20 + step + np.arange(over.sum()))
        np.testing.assert_array_equal(one.arrays.obs[0][:2], other.arrays.obs[0][:2])
    other.close()


class Telling(KnownWorlds):
    """Tells `odd` where the first action of an episode is 1; the last world never does."""

    def step(self, actions: Any) -> Any:
        *found, _ = super().step(actions)
        told = np.where(self.state[1] == 1, 1.0, np.nan)
        told[-1] = np.nan
        return *found, {"odd": told}


def test_each_episode_that_counts_must_tell_its_metrics() -> None:
    found, counts = started(Telling, metrics=["odd"]), np.array([True, True, False])
    for _ in range(LENGTH - 1):
        found.step([np.ones(3, int)], counts)
    assert found.arrays.metrics["odd"][:2].tolist() == [1.0, 1.0]
    found.reset(range(3), range(3))  # a new episode has told nothing
    for _ in range(LIMIT - 1):
        found.step([np.zeros(3, int)], counts)
    with pytest.raises(SimulatorError, match="odd"):
        found.step([np.zeros(3, int)], counts)
    found.close()


OWN = {
    **{kind: partial(KnownWorlds, kind=kind) for kind in ("numpy", "tensor", "jax")},
    "same step": partial(KnownVector, mode=AutoresetMode.SAME_STEP),
    "disabled": partial(KnownVector, mode=AutoresetMode.DISABLED),
}


@pytest.mark.parametrize("kind", OWN)
def test_an_object_of_its_own_gives_the_bits_of_single_environments(kind: str) -> None:
    assert same_steps(singles(Known), started(OWN[kind]), 3) > 20


def test_processes_share_the_worlds() -> None:
    found = started(KnownWorlds, 3, num_processes=2, isolated=True)
    assert same_steps(singles(Known), found, 3) > 20
    found.close()


def test_an_end_of_the_next_step_mode_comes_one_step_late() -> None:
    """Each step is that of a single CartPole from the same state, but for a pause after an end."""
    limit, single = 12, gymnasium.make("CartPole-v1").unwrapped
    made: list[Any] = []

    def make(num_envs: int) -> Any:
        made.append(gymnasium.make_vec("CartPole-v1", num_envs, max_episode_steps=limit))
        return made[-1]

    found, draw = started(make, 6), np.random.default_rng(0)
    arrays, env = found.arrays, made[-1].unwrapped
    ended: list[Any] = [None] * 6  # the flags of an end that has not been told yet
    times, told = np.zeros(6, int), []
    for _ in range(80):
        before, seen = env.state.copy(), arrays.obs[0].copy()
        action = draw.integers(0, 2, 6)
        found.step([action])
        for row in range(6):
            flags = bool(arrays.terminated[row]), bool(arrays.truncated[row])
            if ended[row] is not None:
                assert flags == ended[row]
                assert arrays.reward[row] == 0
                np.testing.assert_array_equal(arrays.final[0][row], seen[row])
                np.testing.assert_array_equal(arrays.obs[0][row], env.state[:, row].astype("f4"))
                assert (np.abs(arrays.obs[0][row]) <= 0.05).all()
                told.append(flags)
                ended[row], times[row] = None, 0
                continue
            single.state, single.steps_beyond_terminated = before[:, row], None
            obs, reward, terminated, *_ = single.step(action[row])
            times[row] += 1
            np.testing.assert_array_equal(arrays.final[0][row], obs)
            np.testing.assert_array_equal(arrays.obs[0][row], obs)
            assert (arrays.reward[row], *flags) == (reward, False, False)
            if terminated or times[row] >= limit:
                ended[row] = terminated, bool(times[row] >= limit)
    assert {(True, False), (False, True)} <= set(told)


def test_an_evaluation_of_the_next_step_mode_has_ends_in_time() -> None:
    found = started(partial(gymnasium.make_vec, "CartPole-v1", max_episode_steps=5), 2)
    for step in range(1, 6):
        found.step([np.array([0, 1]) ^ step % 2], np.array([True, True]))
        assert (found.arrays.truncated == (step == 5)).all()
    np.testing.assert_array_equal(found.arrays.obs[0], found.arrays.final[0])


def test_arrays_of_the_same_device_are_not_copied() -> None:
    import jax

    for x in (Tensor(np.arange(8.0)), jax.numpy.arange(8)):
        assert np.shares_memory(batch._on_host(x), np.from_dlpack(x))
    actions = np.arange(8)
    given = batch._as_arrays_like(Tensor(actions))(actions)
    assert np.shares_memory(given.x, actions)  # type: ignore[attr-defined]


class Wider:
    """Worlds whose actions must be in a space of 64 bits."""

    observation_space, action_space = Wide.observation_space, Wide.action_space

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def reset(self, seed: int) -> Any:
        return np.full((self.num_envs, 1), 2**30), {}

    def step(self, actions: Any) -> Any:
        assert all(map(self.action_space.contains, actions))
        seen, none = np.full((self.num_envs, 1), 2**40), np.zeros(self.num_envs)
        return seen, none, none, none, seen, {}


def test_64_bits_become_32_or_a_fault() -> None:
    with pytest.raises(SimulatorError, match="step: observation has integers that"):
        started(Wider).step([np.full((3, 2), [0.7, -0.1], np.float32)])


FAULTS = {
    "raises": "environments 0 to 2 at their step 3: raises ValueError: the arms are stuck",
    "nan": "environment 1 at its step 3: returns an observation that is not finite",
    "reward": "environment 1 at its step 3: returns the reward inf",
    "shape": "environments 0 to 2 at their step 3: step: observation has shape (1, 3)",
    "dtype": "environments 0 to 2 at their step 3: step: observation is complex128",
    "list": "environments 0 to 2 at their step 3: step: returns list [-0.5",
    "flags": "environments 0 to 2 at their step 3: step: terminated is bool of shape (3, 1)",
    "device": "environments 0 to 2 at their step 3: step: Tensor on the DLPack device (2, 0)",
    "five": "environments 0 to 2 at their step 3: step: returns 5 values",
    "exits": "environment 0: its process ended with status 7",
    "hangs": "environment 0: its step took more than env.step_timeout=1 seconds",
}
OF_PROCESS = {"exits": {"num_processes": 1}, "hangs": {"num_processes": 1, "timeout": 1.0}}


@pytest.mark.parametrize(
    "how", [pytest.param(x, marks=[pytest.mark.long] if x in OF_PROCESS else []) for x in FAULTS]
)
def test_a_fault_is_one_line_and_a_restart_truncates_all(how: str, tmp_path: Path) -> None:
    settings: Any = OF_PROCESS.get(how, {})
    make = partial(FailingWorlds, how=how, where=str(tmp_path / "failed"))
    found = started(make, **settings)
    with pytest.raises(SimulatorError) as caught:
        steps(found, 3, action=0)
    found.close()
    assert str(caught.value).startswith(FAULTS[how])
    assert "\n" not in str(caught.value)
    (tmp_path / "failed").unlink()
    found = started(make, restart=True, **settings)
    steps(found, 3, action=0)
    arrays = found.arrays
    assert (found.restarts, arrays.truncated.all(), arrays.terminated.any()) == (1, True, False)
    assert (arrays.reward == 0).all()
    assert (arrays.final[0][:, 0] == 2).all()
    assert (arrays.obs[0][:, 0] == 0).all()
    steps(found, 1, action=0)
    assert (arrays.obs[0][:, 0] == 1).all()
    found.close()


def test_a_fault_of_a_world_that_plays_no_more_episodes_does_not_count(tmp_path: Path) -> None:
    found = started(partial(FailingWorlds, how="nan", where=str(tmp_path / "failed")))
    for _ in range(3):
        found.step([np.zeros(3, int)], np.array([True, False, True]))
    assert (tmp_path / "failed").exists()


class Starts(KnownWorlds):
    """Fails in the reset with a given seed."""

    def reset(self, seed: int) -> Any:
        if seed == 100:
            raise OSError("no licence")
        return super().reset(seed)


def test_a_fault_in_a_reset_is_named_or_restarts() -> None:
    with pytest.raises(SimulatorError, match=r"^environments 0 to 2 at .* 0: reset raises OSError"):
        started(Starts)
    assert started(Starts, restart=True).restarts == 1


class Silent(KnownVector):
    def step(self, actions: Any) -> Any:
        *found, _ = super().step(actions)
        return *found, {}


def test_same_step_mode_without_final_observations_is_a_fault() -> None:
    found = started(partial(Silent, mode=AutoresetMode.SAME_STEP))
    with pytest.raises(SimulatorError, match="step: an episode ended, and the info has no final_o"):
        steps(found, LENGTH, action=1)
