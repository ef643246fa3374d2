"""Worlds that one object steps together: of a vector environment of Gymnasium, or of a class.

Its arrays are NumPy's, or have `__dlpack__` (PyTorch, Warp, CuPy, JAX). Actions come in the same
kind of arrays, on the same device.
"""

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from jaxppo.config.messages import raised
from jaxppo.config.schema import TEAM_RETURN
from jaxppo.simulators.faults import ANY_ERROR, Fault, ReturnedError, in_function, shown, values_of
from jaxppo.simulators.group import VALUES
from jaxppo.simulators.making import close, without_repeats
from jaxppo.simulators.spaces import Arrays, Leaf, array_of, batch_of, write
from jaxppo.simulators.told import lookup

OWN_STEP = "observation, reward, terminated, truncated, final observation, info"
_CPU = 1, 3  # kinds of devices in DLPack: the host's memory, also if it is pinned


class Batch:
    """The rows `rows` of `arrays`, all worlds of one object that `make(num_envs=N)` makes.

    With `num_agents` each agent of a world has a row.

    As `group.Group`, but any fault concerns all worlds: with `restart` the object is made anew.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        rows: Sequence[int],
        arrays: Arrays,
        observations: Sequence[Leaf],
        *,
        restart: bool,
        num_agents: int = 1,
    ) -> None:
        self._num_agents = num_agents
        self._make, self._rows, self._arrays = make, list(rows), arrays
        self._leaves, self._restart = list(observations), restart
        self._part = slice(self._rows[0], self._rows[-1] + 1)
        self._floats = [i for i, leaf in enumerate(observations) if leaf.dtype.startswith("float")]
        self._keep: Any = None
        self._make_object()

    def _make_object(self) -> None:
        with without_repeats():
            env = self._make(num_envs=len(self._rows) // self._num_agents)
        self._worlds, self._space, self._steps = worlds_of(env), spaces_of(env)[1], 0
        self._like: Callable[[np.ndarray], Any] | None = None
        # Of each metric, which worlds have told it since their episode started
        self._told = {name: np.zeros(len(self._rows), bool) for name in self._arrays.metrics}

    def reset(self) -> list[Fault]:
        """Start an episode in each world that `arrays.stepping` chooses."""
        chosen = self._arrays.stepping[self._part]
        try:
            if chosen.any():
                self._start(chosen)
        except ANY_ERROR as error:
            if self._worlds.each and not chosen.all() and self._restart:
                raise  # the other episodes would be lost without a step in which they are truncated
            fault = self._fault("reset", error)
            if self._restart:
                self._remake()
            return [fault]
        return []

    def step(self, *, resets: bool) -> list[Fault]:
        """Step all worlds by `arrays.action`; those that `arrays.stepping` leaves out do not count.

        `obs` and `final` are as in `Group.step`.
        """
        arrays, part = self._arrays, self._part
        stepping = arrays.stepping[part]
        if not stepping.any():
            return []
        before = [x[part].copy() for x in arrays.obs] if self._restart else []
        self._steps += 1
        try:
            actions = batch_of(self._space, [x[part] for x in arrays.action])
            if self._num_agents > 1:
                actions = mapped(lambda x: x.reshape(-1, self._num_agents, *x.shape[1:]), actions)
            self._read(self._worlds.step(mapped(self._like, actions), resets))
            if not resets:
                for obs, final in zip(arrays.obs, arrays.final, strict=True):
                    obs[part] = final[part]
            faults = self._nonfinite(stepping)
        except ANY_ERROR as error:
            faults = [self._fault("step", error)]
        if faults and self._restart:
            arrays.cut(part, before)
            self._remake()
        return faults

    def keep(self, keep: Any) -> bool:
        """Give observations of steps to `keep`, a `Resident`, instead of `arrays`, if that can be.

        It can be for an object of a user's class, unless faults restart it. Call it after `reset`.
        """
        if type(self._worlds) is Worlds and not self._restart:
            first = [leaf.read(self._first) for leaf in self._leaves]
            if keep.fits(first):
                self._keep = keep
        return self._keep is not None

    def close(self) -> None:
        """Close the object, whatever it raises."""
        self._worlds.close()

    def _start(self, chosen: np.ndarray) -> None:
        arrays, part = self._arrays, self._part
        obs = self._worlds.reset(chosen, arrays.seed[part])
        for known in self._told.values():
            known[chosen] = False
        if self._like is None:
            self._like = _as_arrays_like(_first(obs))
        self._first = obs
        self._write(arrays.obs, obs, chosen)
        if any(not np.isfinite(arrays.obs[i][part][chosen]).all() for i in self._floats):
            raise ReturnedError("returns an observation that is not finite")

    def _read(self, returned: Sequence[Any]) -> None:
        """Write what a step returned; `final` is read only where an episode ended."""
        arrays, part = self._arrays, self._part
        obs, reward, terminated, truncated, final, info = returned
        flags = {"reward": reward, "terminated": terminated, "truncated": truncated}
        for name, value in flags.items():
            getattr(arrays, name)[part] = _numbers(name, value, len(self._rows))
        arrays.alive[part] = self._worlds.alive
        over = arrays.terminated[part] | arrays.truncated[part]
        final = obs if final is None else final
        if self._keep is None:
            self._write(arrays.obs, obs, np.ones_like(over))
            for array, found in zip(arrays.final, arrays.obs, strict=True):
                array[part] = found[part]
            if over.any():
                self._write(arrays.final, final, over)
            seen = [x[i][part] for x in (arrays.obs, arrays.final) for i in self._floats]
            finite = [np.isfinite(x).all(tuple(range(1, x.ndim))) for x in seen]
            self._finite = np.all([np.isfinite(arrays.reward[part]), *finite], 0)
        else:
            found = self._keep(self._parts(obs), self._parts(final), over)
            self._finite = found & np.isfinite(arrays.reward[part])
        for name, known in self._told.items():
            found = _told(info, name, len(self._rows))
            arrays.metrics[name][part] = found
            known |= ~np.isnan(found)
            if name != TEAM_RETURN and not known[over & arrays.stepping[part]].all():
                raise ReturnedError(
                    f"an episode ends, and its info has never told {name} of env.metrics"
                )
            known[over] = False

    def _parts(self, obs: Any) -> list[Any]:
        """Return the arrays of an observation `[N, ...]` as `keep` takes them."""
        form, num = self._keep.read, len(self._rows)
        return [array_of(leaf, obs, (num, *leaf.shape), form) for leaf in self._leaves]

    def _write(self, arrays: Sequence[np.ndarray], obs: Any, chosen: np.ndarray) -> None:
        """Write the chosen rows of an observation `[N, ...]`."""
        obs, num = mapped(_on_host, obs), len(self._rows)
        for leaf, array in zip(self._leaves, arrays, strict=True):
            into = array[self._part]
            found = into if chosen.all() else np.empty_like(into)
            write(leaf, found, obs, (num, *leaf.shape))
            if found is not into:
                into[chosen] = found[chosen]

    def _nonfinite(self, chosen: np.ndarray) -> list[Fault]:
        """Return a fault of the first chosen row whose reward or observation is not finite."""
        bad = ~self._finite & chosen
        if not bad.any():
            return []
        row = self._rows[int(bad.argmax())]
        reward = self._arrays.reward[row]
        what = "an observation that is not finite"
        if not np.isfinite(reward):
            what = f"the reward {reward}"
        return [Fault(row, self._steps, f"returns {what}")]

    def _fault(self, function: str, error: BaseException) -> Fault:
        return Fault(self._rows[0], self._steps, in_function(function, error), self._rows[-1])

    def _remake(self) -> None:
        self.close()
        self._make_object()
        self._arrays.change_seeds(self._part)
        self._start(np.ones(len(self._rows), bool))


class Worlds:
    """An object of a user's class: it starts episodes itself, and returns the true successors."""

    each = False  # whether `reset` starts single worlds, each with its seed; else all by one seed
    late = False  # whether episodes of training end one step late
    num_agents = 1  # of a world
    alive: Any = True  # which rows acted in the last step
    tells = True  # whether the info of a step is that of the episode, also where it ends

    def __init__(self, env: Any) -> None:
        self._env = env

    def reset(self, chosen: np.ndarray, seeds: np.ndarray) -> Any:
        """Start episodes of `chosen` `[N]` bool, or of all; return the observation `[N, ...]`."""
        seed = int(seeds[chosen][0])
        return values_of(self._env.reset(seed=seed), VALUES["reset"])[0]

    def step(self, actions: Any, resets: bool) -> Sequence[Any]:
        """Return observation, reward, terminated, truncated, last observation of episodes, info.

        The last observation is None if it is the observation. With `resets`, where an episode ended
        the observation is that of the next one.
        """
        return values_of(self._env.step(actions), OWN_STEP)

    def close(self) -> None:
        """Close the object, whatever it raises."""
        close(self._env)


class _Agents(Worlds):
    """An object whose worlds have `num_agents` agents `A`: one row for each, `N = W A`.

    Its arrays are `[W, A, ...]`; reward and flags may be `[W]`, for all agents. An agent that ends
    before its world pads: it is not alive, and each of its steps terminates without a reward.
    """

    tells = False  # what a world tells belongs to no single row

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.num_agents = int(env.num_agents)
        self._shape = int(env.num_envs), self.num_agents

    def reset(self, chosen: np.ndarray, seeds: np.ndarray) -> Any:
        self._left, self._total = np.ones(self._shape, bool), np.zeros(self._shape[0], np.float32)
        return mapped(self._rows, super().reset(chosen, seeds))

    def step(self, actions: Any, resets: bool) -> Sequence[Any]:
        obs, *found, final, _ = super().step(actions, resets)
        final, alive = obs if final is None else final, self._left
        names = "reward", "terminated", "truncated"
        reward, terminated, truncated = map(self._each, names, found)
        terminated, truncated = terminated.astype(bool), truncated.astype(bool)
        reward = np.where(alive, reward, 0).astype(np.float32)
        left = alive & ~terminated & ~truncated
        over = ~left.any(1)
        self._total += reward.sum(1)
        first = alive & (np.cumsum(alive, 1) == 1) & over[:, None]  # tells for its world
        told = np.where(first, self._total[:, None], np.nan)
        self._total[over], left[over] = 0, True
        self.alive, self._left = alive.reshape(-1), left
        values = reward, terminated | ~alive, truncated & alive
        final = mapped(partial(_finite, ~alive.reshape(-1)), mapped(self._rows, final))
        obs = mapped(partial(_finite, ~left.reshape(-1)), mapped(self._rows, obs))
        return obs, *(x.reshape(-1) for x in values), final, {TEAM_RETURN: told.reshape(-1)}

    def _each(self, name: str, x: Any) -> np.ndarray:
        """Return numbers of each agent, `[W, A]`."""
        x = _on_host(x)
        if x.shape not in (self._shape[:1], self._shape):
            raise ReturnedError(
                f"{name} has shape {x.shape}, and must have {self._shape}, or {self._shape[:1]} "
                "for all agents"
            )
        each: np.ndarray = np.broadcast_to(x.reshape(*x.shape, *(1,) * (2 - x.ndim)), self._shape)
        return each

    def _rows(self, x: Any) -> np.ndarray:
        """Map `[W, A, ...]` to `[N, ...]`."""
        x = _on_host(x)
        if x.shape[:2] != self._shape:
            raise ReturnedError(f"observation has shape {x.shape}, and must begin {self._shape}")
        rows: np.ndarray = x.reshape(-1, *x.shape[2:])
        return rows


class _Vector(Worlds):
    """A vector environment of Gymnasium."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.each = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)

    def reset(self, chosen: np.ndarray, seeds: np.ndarray) -> Any:
        if not self.each:
            return super().reset(chosen, seeds)
        each = [int(x) if now else None for x, now in zip(seeds, chosen, strict=True)]
        return self._start(chosen, seed=each)

    def _start(self, chosen: np.ndarray, **seeds: Any) -> Any:
        """Start single worlds."""
        returned = self._env.reset(options={"reset_mask": chosen.copy()}, **seeds)
        return values_of(returned, VALUES["reset"])[0]

    def _step(self, actions: Any) -> Any:
        return values_of(self._env.step(actions), VALUES["step"])


class _SameStep(_Vector):
    """It starts the next episode in the step that ends one."""

    tells = False

    def step(self, actions: Any, resets: bool) -> Sequence[Any]:
        *found, info = self._step(actions)
        if not np.any(_on_host(found[2]) | _on_host(found[3])):
            return *found, None, {}
        final = info.get("final_obs")
        if final is None:
            raise ReturnedError("an episode ended, and the info has no final_obs")
        if isinstance(final, np.ndarray) and final.dtype == object:  # one for each world, or None
            single = self._env.single_observation_space
            one = next(x for x in final if x is not None)
            rows = [one if x is None else x for x in final]
            final = concatenate(single, rows, create_empty_array(single, len(rows)))
        return *found, final, {}


class _Masked(_Vector):
    """It starts the next episodes of the worlds that it is told to."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._over: Any = np.False_

    def reset(self, chosen: np.ndarray, seeds: np.ndarray) -> Any:
        self._over = self._over & ~chosen if self.each else np.False_
        return super().reset(chosen, seeds)

    def step(self, actions: Any, resets: bool) -> Sequence[Any]:
        if self._over.any():  # worlds in which an evaluation plays no more episodes
            self._start(self._over)
        obs, reward, terminated, truncated, info = self._step(actions)
        self._over = np.asarray(_on_host(terminated) | _on_host(truncated), bool)
        if not resets or not self._over.any():
            return obs, reward, terminated, truncated, None, info
        over, self._over = self._over, np.False_
        final = copy.deepcopy(obs)
        return self._start(over), reward, terminated, truncated, final, info


class _NextStep(_Vector):
    """It starts the next episode in the step after an end, whatever its action.

    That step is one of the run's, since the other worlds step too. So the episode seems to end one
    step late: its last observation stays for a step without a reward, which then ends it.
    """

    late, tells = True, False

    def reset(self, chosen: np.ndarray, seeds: np.ndarray) -> Any:
        self._last = super().reset(chosen, seeds)
        none = np.zeros(len(chosen), bool)
        self._ended = none, none
        return self._last

    def step(self, actions: Any, resets: bool) -> Sequence[Any]:
        last, ended = copy.deepcopy(self._last), self._ended
        self._last, reward, *now, _ = self._step(actions)
        if not resets:
            return self._last, reward, *now, None, {}
        self._ended = _on_host(now[0]).copy(), _on_host(now[1]).copy()
        return self._last, reward, *ended, last, {}


_OF_MODES: dict[Any, type[_Vector]] = {
    AutoresetMode.SAME_STEP: _SameStep,
    AutoresetMode.NEXT_STEP: _NextStep,
    AutoresetMode.DISABLED: _Masked,
}


def worlds_of(env: Any) -> Worlds:
    """Return what steps an object; `TypeError` if it is none that steps several worlds."""
    if isinstance(env, VectorEnv):
        mode = env.metadata.get("autoreset_mode")
        kind = _OF_MODES.get(mode)
        if kind is None:
            raise TypeError(
                f"its metadata['autoreset_mode'] is {mode!r}, and must be an AutoresetMode of "
                "gymnasium.vector"
            )
        if kind is _NextStep and isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            kind = _Masked  # these do what they are told in every mode
        return kind(env)
    for part in ("num_envs", "observation_space", "action_space", "reset", "step"):
        if not hasattr(env, part):
            raise TypeError(
                f"{type(env).__name__} is no simulator of several worlds, since it has no {part}"
            )
    num = getattr(env, "num_agents", 1)
    if not isinstance(num, int) or num < 1:
        raise TypeError(f"its num_agents={num!r} must be an integer, at least 1")
    return _Agents(env) if num > 1 else Worlds(env)


def spaces_of(env: Any) -> tuple[Any, Any]:
    """Return the observation space and the action space of one world."""
    names = "observation_space", "action_space"
    if isinstance(env, VectorEnv):
        names = "single_observation_space", "single_action_space"
    return getattr(env, names[0]), getattr(env, names[1])


def mapped(function: Any, tree: Any) -> Any:
    """Return a tree of dicts and tuples with each array replaced by the function of it."""
    if isinstance(tree, Mapping):
        return {key: mapped(function, x) for key, x in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(mapped(function, x) for x in tree)
    return function(tree)


def _first(tree: Any) -> Any:
    """Return the first array of a tree."""
    while isinstance(tree, Mapping | tuple | list):
        tree = next(iter(tree.values() if isinstance(tree, Mapping) else tree))
    return tree


def _finite(where: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return rows `[N, ...]`, 0 for NaN where an agent pads: NaN there is no fault."""
    zeros = np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
    return np.where(where.reshape(-1, *(1,) * (x.ndim - 1)), zeros, x)


def _on_host(x: Any) -> np.ndarray:
    """Return an array in NumPy, without a copy if it is in the host's memory."""
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    if not hasattr(x, "__dlpack__"):
        raise ReturnedError(f"returns {shown(x)}, and must return arrays (with __dlpack__)")
    device = x.__dlpack_device__()
    try:
        return np.from_dlpack(x) if device[0] in _CPU else np.from_dlpack(x, device="cpu")
    except Exception as error:  # whatever its library raises
        raise ReturnedError(
            f"{type(x).__name__} on the DLPack device {device} cannot be read: {raised(error)}"
        ) from error


def _as_arrays_like(example: Any) -> Callable[[np.ndarray], Any]:
    """Return a function that turns NumPy's arrays into those of the library of `example`."""
    if isinstance(example, np.ndarray | np.generic) or not hasattr(example, "__dlpack__"):
        return lambda x: x
    library: Any
    if hasattr(example, "__array_namespace__"):
        library = example.__array_namespace__()
    else:
        library = importlib.import_module(type(example).__module__.partition(".")[0])
    on: dict[str, Any] = {}
    if example.__dlpack_device__()[0] not in _CPU:
        on = {"device": example.device}
    return lambda x: library.from_dlpack(x, **on)


def _told(info: Mapping[str, Any], name: str, num: int) -> np.ndarray:
    """Return numbers `[N]` of an info; NaN where it tells none, as `_name` of Gymnasium says."""
    value, group = lookup(info, name), name.rpartition(".")
    if value is None:
        return np.full(num, np.nan)
    there = lookup(info, f"{group[0]}{group[1]}_{group[2]}")
    found = _numbers(f"info {name}", value, num).astype(float)
    return found if there is None else np.where(_on_host(there), found, np.nan)


def _numbers(name: str, value: Any, num: int) -> np.ndarray:
    """Return a reward or flags `[N]`; `ReturnedError` if they are not numbers of that shape."""
    found = _on_host(value)
    if found.shape != (num,) or found.dtype.kind not in "biuf":
        raise ReturnedError(
            f"{name} is {found.dtype.name} of shape {found.shape}, and must be numbers of shape "
            f"({num},)"
        )
    return found
