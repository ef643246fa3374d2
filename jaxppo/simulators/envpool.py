"""Environments of EnvPool, which its own threads step in C++."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxppo.config.messages import raised
from jaxppo.simulators.faults import SimulatorError
from jaxppo.simulators.spaces import Arrays, Leaf, batch_of
from jaxppo.simulators.told import lookup


class EnvPool:
    """`pool.Simulators` of one pool, which `make(seeds)` makes at the first reset.

    EnvPool takes seeds only then: later episodes go on with the random numbers of their
    environment. EnvPool starts the next episode in the step after an end, whatever its action. That
    step is taken at once, so it is not one of the run's. `reset` would start a new game, where
    with `episodic_life` the next life comes.
    """

    restarts = 0  # a fault cannot be told from outside

    def __init__(
        self,
        make: Callable[[list[int]], Any],
        num: int,
        observations: Sequence[Leaf],
        actions: Sequence[Leaf],
        metrics: Sequence[str] = (),
    ) -> None:
        self.arrays = Arrays(num, observations, actions, None, metrics)
        self._make, self._leaves = make, list(observations)
        self._pool: Any = None
        self._actions = list(actions)

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Start episodes in some environments."""
        chosen = np.asarray(rows, np.int32)
        try:
            if self._pool is None:
                full = np.zeros(len(self.arrays.reward), np.int64)
                full[chosen] = seeds
                self._pool = self._make((full % (2**31 - 1)).tolist())
                chosen = np.arange(len(full), dtype=np.int32)
            obs, info = self._pool.reset(chosen)
        except Exception as error:
            raise SimulatorError(f"EnvPool raises {raised(error)}") from error
        self._write(self.arrays.obs, obs, info["env_id"])

    def step(self, actions: Sequence[np.ndarray], rows: np.ndarray | None = None) -> None:
        """Step all environments, or only `rows` `[N]` bool and then start nothing."""
        arrays = self.arrays
        chosen = np.arange(len(arrays.reward)) if rows is None else np.flatnonzero(rows)
        obs, reward, terminated, truncated, info = self._step(actions, chosen)
        numbers = info["env_id"]
        self._write(arrays.obs, obs, numbers)
        self._write(arrays.final, obs, numbers)
        arrays.reward[numbers] = reward
        arrays.terminated[numbers], arrays.truncated[numbers] = terminated, truncated
        for name, array in arrays.metrics.items():
            array[numbers] = lookup(info, name)
        over = numbers[terminated | truncated]
        if rows is None and over.size:
            obs, *_, info = self._step(actions, over)
            self._write(arrays.obs, obs, info["env_id"])

    def _step(self, actions: Sequence[np.ndarray], chosen: np.ndarray) -> Any:
        try:
            given = self._given([x[chosen] for x in actions])
            return self._pool.step(given, chosen.astype(np.int32))
        except Exception as error:
            raise SimulatorError(f"EnvPool raises {raised(error)}") from error

    def _given(self, actions: Sequence[np.ndarray]) -> Any:
        """Return a batch of actions in EnvPool's form: one array, or a dict of arrays."""
        pairs = zip(self._actions, actions, strict=True)
        found = {leaf.path[-1:]: batch_of(leaf.space, [x]) for leaf, x in pairs}
        return found[()] if () in found else {name: x for (name,), x in found.items()}

    def _write(self, arrays: Sequence[np.ndarray], obs: Any, numbers: np.ndarray) -> None:
        for leaf, array in zip(self._leaves, arrays, strict=True):
            array[numbers] = leaf.read(obs)

    def abandon(self) -> None:
        """Do nothing: EnvPool's environments are in this process."""

    def close(self) -> None:
        """Close the pool."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
