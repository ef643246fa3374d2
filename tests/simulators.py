"""Environments with known values, in JAX and in Gymnasium, and others that fail."""

import os
import subprocess
import sys
import time
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxppo.types import Box, Discrete

LENGTH, LIMIT = 5, 7  # an episode ends at LENGTH if its first action was 1, else at LIMIT


class Twin:
    """In JAX: the time, the first action, and whether the episode ends early."""

    observation_space = Box((3,), "float32")
    action_space = Discrete(2)
    time_limit = LIMIT

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = jnp.zeros(2, jnp.int32)
        return state, self._see(state)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        time, first = state
        first = jnp.where(time == 0, action, first)
        state = jnp.stack([time + 1, first])
        terminated = (first == 1) & (time + 1 >= LENGTH)
        reward = jnp.float32(action) * (time + 1) - 0.5
        odd = jnp.where(state[0] % 2 == 1, 10.0 * state[0], jnp.nan)
        told = {"action": action, "late": {"time": state[0], "odd": odd}}
        return state, self._see(state), reward, terminated, jnp.array(False), told

    def _see(self, state: Any) -> jax.Array:
        time, first = state
        return jnp.stack([time, first, time * first]).astype(jnp.float32)


class Known(gymnasium.Env):
    """The same in Gymnasium; `number` tells environments apart."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, limit: int = LIMIT, render_mode: str | None = None) -> None:
        self.limit, self.render_mode = limit, render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.first = 0, 0
        return self._see(), {}

    def step(self, action: Any) -> Any:
        if self.time == 0:
            self.first = int(action)
        self.time += 1
        reward = float(action) * self.time - 0.5
        terminated = self.first == 1 and self.time >= LENGTH
        late = {"time": self.time, **({"odd": [10 * self.time]} if self.time % 2 else {})}
        info = {"action": np.int64(action), "late": late, "name": "known", "seen": self._see()}
        return self._see(), reward, terminated, self.time >= self.limit, info

    def render(self) -> Any:
        if self.render_mode is None:
            return None
        return np.full((48, 64, 3), 20 * self.time, np.uint8)

    def _see(self) -> np.ndarray:
        return np.array([self.time, self.first, self.time * self.first], np.float32)


class Steered(Known):
    """Its actions are two integers from -2 to 5, which its reward is."""

    action_space = spaces.Box(-2, 5, (2,), np.int8)  # type: ignore[assignment]

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        obs, _, *rest = super().step(action[0])
        return obs, 10.0 * action[0] + action[1], *rest


class Where(Known):
    """Its reward is the number of the process in which it steps."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return (obs, float(os.getpid()), *rest)


class Lucky(Known):
    """Tells `success` only where an episode terminates."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        info = {"success": True, "far": 3} if terminated else {"far": 3}
        return obs, reward, terminated, truncated, info


class Wide(gymnasium.Env):
    """Has 64 bits: observes `first`, twice that, and so on; its actions must be in their space."""

    observation_space = spaces.Box(0, 2**40, (1,), np.int64)
    action_space = spaces.Box(-0.1, 0.7, (2,), np.float64)

    def __init__(self, first: int) -> None:
        self.value = first

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.array([self.value]), {}

    def step(self, action: Any) -> Any:
        if not self.action_space.contains(action):
            raise ValueError(f"{action}")
        self.value *= 2
        return np.array([self.value]), 0.0, False, False, {}


class Refusing(Known):
    """Takes no other action than 0."""

    def step(self, action: Any) -> Any:
        if action:
            raise ValueError("no")
        return super().step(action)


class Failing(Known):
    """Fails at its third step in the way `how`, once for each process or for each environment."""

    def __init__(self, how: str, where: str) -> None:
        super().__init__()
        self.how, self.where, self.steps = how, where, 0

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        self.steps += 1
        if self.steps != 3:
            return obs, reward, *rest
        try:
            open(self.where, "x").close()  # fails only once
        except FileExistsError:
            return obs, reward, *rest
        match self.how:
            case "raises":
                raise ValueError("the arm is stuck\nin two lines")
            case "nan":
                return obs * np.nan, reward, *rest
            case "reward":
                return obs, float("inf"), *rest
            case "shape":
                return obs[:2], reward, *rest
            case "dtype":
                return obs.astype(complex), reward, *rest
            case "quits":
                sys.exit(0)
            case "nothing":
                return obs, None, *rest
            case "array":
                return obs, np.ones(1), *rest
            case "four":
                return obs, reward, *rest[1:]
            case "exits":
                os._exit(7)
            case "hangs":
                time.sleep(1000)
        raise AssertionError(self.how)


class Starting(Known):
    """Fails in the reset with a given seed, in the way `how`; observes its seed."""

    def __init__(self, how: str, failing: int) -> None:
        super().__init__()
        self.how, self.failing = how, failing

    def reset(self, **given: Any) -> Any:
        if given["seed"] == self.failing:
            if self.how == "exits":
                os._exit(7)
            raise ValueError
        obs, info = super().reset(**given)
        return obs * 0 + (given["seed"] or 0) % 1000, info


class Slow(Known):
    """Takes too long to be made."""

    def __init__(self) -> None:
        if sys.argv[0] == "-c":  # in a process of simulators
            time.sleep(1000)


class Outside(Known):
    """Its observations leave its space."""

    observation_space = spaces.Box(0, 3, (3,), np.float32)


class Unseeded(Known):
    """Its rewards do not come from the seed."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, time.perf_counter(), *rest


class Nested(gymnasium.Env):
    """Every kind of space at once; the action must come in its own form."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (4, 4, 1), np.uint8),
            "pair": spaces.Tuple(
                (spaces.Discrete(3, start=-1), spaces.Box(-1, 1, (2,), np.float64))
            ),
            "bits": spaces.MultiBinary(3),
            "action_mask": spaces.MultiBinary(5),
        }
    )
    action_space = spaces.Discrete(5, start=2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._see(), {}

    def step(self, action: Any) -> Any:
        assert type(action) is int
        assert action in (2, 6)  # the mask forbids the others
        self.time += 1
        return self._see(), 1.0, False, self.time >= 4, {}

    def _see(self) -> dict[str, Any]:
        return {
            "image": np.full((4, 4, 1), self.time, np.uint8),
            "pair": (np.int64(self.time % 3 - 1), np.full(2, 0.5)),
            "bits": np.array([1, 0, 1], np.int8),
            "action_mask": np.array([1, 0, 0, 0, 1], np.int8),
        }


class Calendar(gymnasium.Env):
    """All of its integers start above or below 0."""

    observation_space = spaces.Dict(
        {"day": spaces.Discrete(7, start=1), "pair": spaces.MultiDiscrete([3, 2], start=[5, -1])}
    )
    action_space = spaces.Tuple(
        (spaces.Discrete(4, start=-3), spaces.MultiDiscrete([2, 3], start=[1, 100]))
    )

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._see(), {}

    def step(self, action: Any) -> Any:
        first, (second, third) = action
        self.time += 1
        return self._see(), float(first + 10 * second + third), False, self.time >= 5, {}

    def render(self) -> Any:
        return np.zeros((48, 64, 3), np.uint8)

    def _see(self) -> dict[str, Any]:
        pair = self.np_random.integers([5, -1], [8, 1])
        return {"day": self.np_random.integers(1, 8), "pair": pair}


class Same(gymnasium.Wrapper):
    """Changes nothing."""


class Server(Known):
    """It starts a process, which sleeps; `ends`: whether `close` asks it to end, and waits."""

    def __init__(self, seconds: str, ends: bool) -> None:
        super().__init__()
        self.ends, self.process = ends, subprocess.Popen(["sleep", seconds])

    def close(self) -> None:
        if self.ends:
            self.process.terminate()
            self.process.wait()


class Tensor:
    """An array of a library that is not NumPy, with no more than DLPack asks for."""

    def __init__(self, x: Any, device: tuple[int, int] | None = None) -> None:
        self.x, self.device = np.asarray(x), device

    def __dlpack__(self, **given: Any) -> Any:
        if self.device is not None:
            raise BufferError("no copy to the host")
        return self.x.__dlpack__(**given)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device or self.x.__dlpack_device__()


def from_dlpack(x: Any) -> Tensor:
    """As `torch.from_dlpack`."""
    return Tensor(np.from_dlpack(x))


class KnownWorlds:
    """`num_envs` of `Known` in one object, in arrays of some kind; they count their resets."""

    observation_space, action_space, time_limit = Known.observation_space, Known.action_space, LIMIT
    resets = 0

    def __init__(self, num_envs: int, kind: str = "numpy", *, in_place: bool = False) -> None:
        self.num_envs, self.in_place = num_envs, in_place
        self.memory: dict[int, np.ndarray] = {}
        self.form = {"numpy": np.asarray, "tensor": Tensor, "jax": jnp.asarray}[kind]

    def reset(self, seed: int) -> Any:
        KnownWorlds.resets += 1
        assert type(seed) is int
        self.state = np.zeros((2, self.num_envs), np.float32)
        return self.form(self._see()), {}

    def step(self, actions: Any) -> Any:
        assert type(actions) is type(self.form(np.zeros(1)))
        actions = np.from_dlpack(actions)
        time, first = self.state
        first = np.where(time == 0, actions, first)
        self.state = np.stack([time + 1, first]).astype(np.float32)
        reward = (actions * self.state[0] - 0.5).astype(np.float32)
        terminated = (first == 1) & (self.state[0] >= LENGTH)
        truncated = self.state[0] >= LIMIT
        final, time = self._see(), self.state[0].copy()
        late = {"time": self.form(time), "odd": self.form(10 * time), "_odd": time % 2 == 1}
        self.state[:, terminated | truncated] = 0
        found = self._see(), reward, terminated, truncated, final
        if self.in_place:  # as simulators on GPUs do, which write all steps into the same memory
            found = tuple(map(self._written, range(5), found))
        return *map(self.form, found), {"action": actions, "late": late}

    def _written(self, number: int, x: np.ndarray) -> np.ndarray:
        if number not in self.memory:
            # JAX reads the memory of others without a copy only if it is aligned
            raw = np.zeros(x.nbytes + 64, np.uint8)
            start = -raw.ctypes.data % 64
            self.memory[number] = raw[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
        self.memory[number][...] = x
        return self.memory[number]

    def _see(self) -> np.ndarray:
        time, first = self.state
        return np.stack([time, first, time * first], 1)


class Fixed(KnownWorlds):
    """Has its own number of worlds."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(4)


class KnownVector(gymnasium.vector.VectorEnv):
    """The same as a vector environment that is not Gymnasium's own, with arrays of final ones."""

    single_observation_space, single_action_space = Known.observation_space, Known.action_space

    def __init__(self, num_envs: int, mode: Any) -> None:
        self.num_envs, self.metadata = num_envs, {"autoreset_mode": mode}
        self.of = KnownWorlds(num_envs)
        self.ended = np.zeros(num_envs, bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        if seed is not None:
            assert mask.all()
            self.of.reset(seed)
        self.of.state[:, mask] = 0
        self.ended &= ~mask
        return self.of._see(), {}

    def step(self, actions: Any) -> Any:
        assert not self.ended.any()
        before = self.of.state
        obs, reward, terminated, truncated, final, info = self.of.step(actions)
        if self.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.SAME_STEP:
            return obs, reward, terminated, truncated, {"final_obs": final}
        self.ended = terminated | truncated
        self.of.state = np.where(self.ended, before * 0 + final.T[:2], self.of.state)
        return final, reward, terminated, truncated, info


class FailingWorlds(KnownWorlds):
    """Fails at its third step in the way `how`, once."""

    def __init__(self, num_envs: int, how: str, where: str) -> None:
        super().__init__(num_envs)
        self.how, self.where, self.steps = how, where, 0

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, final, info = super().step(action)
        self.steps += 1
        if self.steps != 3 or os.path.exists(self.where):
            return obs, reward, terminated, truncated, final, info
        open(self.where, "x").close()
        match self.how:
            case "raises":
                raise ValueError("the arms are stuck\nin two lines")
            case "nan":
                obs[1] = np.nan
            case "reward":
                reward[1] = np.inf
            case "shape":
                obs = obs[:1]
            case "dtype":
                obs = obs.astype(complex)
            case "list":
                reward = reward.tolist()
            case "flags":
                terminated = terminated[:, None]
            case "device":
                obs = Tensor(obs, (2, 0))
            case "five":
                return obs, reward, terminated, truncated, info
            case "exits":
                os._exit(7)
            case "hangs":
                time.sleep(1000)
        return obs, reward, terminated, truncated, final, info
