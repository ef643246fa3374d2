"""A group of Gymnasium environments that step one after another, in one process."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxppo.simulators.faults import ANY_ERROR, Fault, in_words
from jaxppo.simulators.spaces import Arrays, Leaf, actions_of


class Group:
    """Environments of the rows `rows` of `arrays`.

    After a fault, an environment is made anew if `restart` is set. The step with the fault then
    counts as truncated, without a reward, and its successor is the observation before it.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        rows: Sequence[int],
        arrays: Arrays,
        observations: Sequence[Leaf],
        *,
        restart: bool,
    ) -> None:
        self._make, self._rows, self._arrays = make, list(rows), arrays
        self._leaves = list(observations)
        self._restart = restart
        self._part = slice(self._rows[0], self._rows[-1] + 1)  # rows follow one another
        self._envs: dict[int, Any] = {}
        try:
            for row in self._rows:
                self._envs[row] = make()
            if len({id(getattr(x, "unwrapped", x)) for x in self._envs.values()}) < len(self._rows):
                raise ValueError(
                    "the function returns the same environment again; it must make a new one"
                )
        except BaseException:
            self.close()
            raise
        self._space = self._envs[self._rows[0]].action_space
        self._plain = len(self._leaves) == 1 and self._leaves[0].is_plain
        self._steps = dict.fromkeys(self._rows, 0)
        self._floats = [i for i, leaf in enumerate(observations) if leaf.dtype.startswith("float")]
        self._before = [x[self._part].copy() for x in arrays.obs]

    def reset(self) -> list[Fault]:
        """Start an episode in each environment that `arrays.stepping` chooses."""
        faults: list[Fault] = []
        for row in self._rows:
            if self._arrays.stepping[row]:
                faults += self._try_to_start(row, int(self._arrays.seed[row]))
        return faults

    def step(self, *, resets: bool) -> list[Fault]:
        """Step each environment that `arrays.stepping` chooses, by its row of `arrays.action`.

        With `resets`, an environment whose episode ends starts the next: `obs` is then its first
        observation and `final` the last one of the episode; else both are the last one.
        """
        arrays, part, faults = self._arrays, self._part, []
        if self._restart:
            for copy, obs in zip(self._before, arrays.obs, strict=True):
                copy[:] = obs[part]
        rows = [
            row for row, now in zip(self._rows, arrays.stepping[part].tolist(), strict=True) if now
        ]
        actions = actions_of(self._space, [x[part] for x in arrays.action])
        for row in rows:
            arrays.current[self._rows[0]] = row
            try:
                self._steps[row] += 1
                action = actions[row - part.start]
                obs, reward, terminated, truncated, _ = self._envs[row].step(action)
                self._write(row, obs)
                arrays.reward[row] = float(reward)
                arrays.terminated[row] = terminated
                arrays.truncated[row] = truncated
            except ANY_ERROR as error:
                faults.append(self._fault(row, error))
        faults += self._nonfinite([row for row in rows if all(row != f.row for f in faults)])
        for final, obs in zip(arrays.final, arrays.obs, strict=True):
            final[part] = obs[part]
        if self._restart:
            for fault in faults:
                self._replace(fault.row)
        if resets:
            over = arrays.terminated[part] | arrays.truncated[part]
            for row in (self._part.start + int(i) for i in np.flatnonzero(over)):
                if arrays.stepping[row] and all(row != fault.row for fault in faults):
                    faults += self._try_to_start(row, None)
        return faults

    def close(self) -> None:
        """Close the environments, whatever they raise."""
        for env in self._envs.values():
            _close(env)

    def _try_to_start(self, row: int, seed: int | None) -> list[Fault]:
        """Start an episode; if that fails, return the fault; with `restart` make it anew."""
        try:
            self._start(row, seed)
        except ANY_ERROR as error:
            fault = self._fault(row, error, "reset ")
            if self._restart:
                self._remake(row)
            return [fault]
        return []

    def _start(self, row: int, seed: int | None) -> None:
        self._arrays.current[self._rows[0]] = row
        obs, _ = self._envs[row].reset(seed=seed)
        self._write(row, obs)
        if any(not np.isfinite(self._arrays.obs[i][row]).all() for i in self._floats):
            raise FloatingPointError("returns an observation that is not finite")

    def _write(self, row: int, obs: Any) -> None:
        """Write an observation; raise if its shape or data type is not that of the space."""
        if self._plain and type(obs) is np.ndarray:
            array = self._arrays.obs[0]
            if obs.dtype == array.dtype and obs.shape == array.shape[1:]:
                array[row] = obs
                return
        for leaf, array in zip(self._leaves, self._arrays.obs, strict=True):
            value = np.asarray(leaf.read(obs))
            if value.shape != leaf.shape:
                raise ValueError(
                    f"observation{leaf.name} has shape {value.shape}, the space says {leaf.shape}"
                )
            try:
                np.copyto(array[row : row + 1], value, casting="same_kind")
            except TypeError:
                raise TypeError(
                    f"observation{leaf.name} is {value.dtype.name}, the space says "
                    f"{leaf.space.dtype.name}"
                ) from None
            narrowed = value.dtype.kind in "iu" and value.dtype != array.dtype
            if narrowed and np.any(array[row] != value):
                raise OverflowError(
                    f"observation{leaf.name} has integers that {array.dtype.name} does not have"
                )

    def _nonfinite(self, rows: Sequence[int]) -> list[Fault]:
        """Return faults of the rows whose reward or observation is not finite."""
        arrays, part = self._arrays, self._part
        floats = [arrays.obs[i] for i in self._floats]
        if all(np.isfinite(x[part]).all() for x in (arrays.reward, *floats)):
            return []
        faults = []
        for row in rows:
            if not np.isfinite(arrays.reward[row]):
                faults.append(self._fault(row, f"returns the reward {arrays.reward[row]}"))
            elif any(not np.isfinite(x[row]).all() for x in floats):
                faults.append(self._fault(row, "returns an observation that is not finite"))
        return faults

    def _fault(self, row: int, what: BaseException | str, where: str = "") -> Fault:
        if isinstance(what, BaseException):
            what = f"{where}raises {in_words(what)}"
        return Fault(row, self._steps[row], what)

    def _replace(self, row: int) -> None:
        """Make an environment anew, and end its episode at the observation before the fault."""
        arrays = self._arrays
        arrays.reward[row], arrays.terminated[row], arrays.truncated[row] = 0.0, False, True
        for final, before in zip(arrays.final, self._before, strict=True):
            final[row] = before[row - self._part.start]
        self._remake(row)

    def _remake(self, row: int) -> None:
        _close(self._envs[row])
        self._envs[row] = self._make()
        self._steps[row] = 0
        self._arrays.seed[row] = next_seed(self._arrays.seed[row])
        self._start(row, int(self._arrays.seed[row]))


def next_seed(seed: Any) -> int:
    """Return the seed of an environment that is made anew, given the last one."""
    return int(np.random.SeedSequence(int(seed)).generate_state(1)[0]) & 0x7FFFFFFF


def _close(env: Any) -> None:
    try:
        env.close()
    except ANY_ERROR:  # its results no longer matter
        return
