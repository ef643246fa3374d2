"""A group of Gymnasium environments that step one after another, in one process."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxppo.simulators.faults import ANY_ERROR, Fault, ReturnedError, in_function, shown, values_of
from jaxppo.simulators.making import close, without_repeats
from jaxppo.simulators.spaces import Arrays, Leaf, actions_of, write
from jaxppo.simulators.told import names, number

VALUES = {  # what functions of Gymnasium's environments return
    "reset": "observation, info",
    "step": "observation, reward, terminated, truncated, info",
}
_NOTHING = object()  # in place of what `step` returned, if it raised


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
                with without_repeats():
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
        self._untold: dict[int, set[str]] = {}  # metrics that the episode has not told so far
        self._floats = [i for i, leaf in enumerate(observations) if leaf.dtype.startswith("float")]

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
            before = [x[part].copy() for x in arrays.obs]
        rows = [
            row for row, now in zip(self._rows, arrays.stepping[part].tolist(), strict=True) if now
        ]
        actions = actions_of(self._space, [x[part] for x in arrays.action])
        for row in rows:
            arrays.current[self._rows[0]] = row
            returned = _NOTHING
            try:
                self._steps[row] += 1
                returned = self._envs[row].step(actions[row - part.start])
                if self._steps[row] == 1:  # not at every step, since this takes a microsecond
                    _check_step(returned)
                obs, reward, terminated, truncated, info = returned
                self._write(row, obs)
                if arrays.metrics:
                    self._tell(row, info, over=terminated or truncated)
                arrays.reward[row] = float(reward)
                arrays.terminated[row] = terminated
                arrays.truncated[row] = truncated
            except ANY_ERROR as error:
                faults.append(self._fault(row, _told("step", error, returned)))
        faults += self._nonfinite([row for row in rows if all(row != f.row for f in faults)])
        for final, obs in zip(arrays.final, arrays.obs, strict=True):
            final[part] = obs[part]
        if self._restart:
            for fault in faults:
                arrays.cut(fault.row, [x[fault.row - part.start] for x in before])
                self._remake(fault.row)
        if resets:
            over = arrays.terminated[part] | arrays.truncated[part]
            for row in (self._part.start + int(i) for i in np.flatnonzero(over)):
                if arrays.stepping[row] and all(row != fault.row for fault in faults):
                    faults += self._try_to_start(row, None)
        return faults

    def close(self) -> None:
        """Close the environments, whatever they raise."""
        for env in self._envs.values():
            close(env)

    def _try_to_start(self, row: int, seed: int | None) -> list[Fault]:
        """Start an episode; if that fails, return the fault; with `restart` make it anew."""
        try:
            self._start(row, seed)
        except ANY_ERROR as error:
            fault = self._fault(row, _told("reset", error))
            if self._restart:
                self._remake(row)
            return [fault]
        return []

    def _start(self, row: int, seed: int | None) -> None:
        self._arrays.current[self._rows[0]] = row
        self._untold[row] = set(self._arrays.metrics)
        obs, info = values_of(self._envs[row].reset(seed=seed), VALUES["reset"])
        if info is not None and not isinstance(info, Mapping):  # two parts of an observation
            raise ReturnedError(f"the second value is {shown(info)}, and must be the info")
        self._write(row, obs)
        if any(not np.isfinite(self._arrays.obs[i][row]).all() for i in self._floats):
            raise ReturnedError("returns an observation that is not finite")

    def _write(self, row: int, obs: Any) -> None:
        """Write an observation; `ReturnedError` if it is not one of the space."""
        if self._plain and type(obs) is np.ndarray:
            array = self._arrays.obs[0]
            if obs.dtype == array.dtype and obs.shape == array.shape[1:]:
                array[row] = obs
                return
        for leaf, array in zip(self._leaves, self._arrays.obs, strict=True):
            write(leaf, array[row : row + 1], obs, leaf.shape)

    def _tell(self, row: int, info: Mapping[str, Any], *, over: bool) -> None:
        """Write what a step tells; `ReturnedError` if an episode ends without a metric."""
        untold = self._untold[row]
        for name, array in self._arrays.metrics.items():
            array[row] = number(info, name)
            if not np.isnan(array[row]):
                untold.discard(name)
        if over and untold:
            known = ", ".join(names(info)) or "nothing"
            raise ReturnedError(
                f"the episode ends, and its info has never told {min(untold)} of env.metrics; it "
                f"tells {known}"
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

    def _fault(self, row: int, what: str) -> Fault:
        return Fault(row, self._steps[row], what)

    def _remake(self, row: int) -> None:
        close(self._envs[row])
        with without_repeats():
            self._envs[row] = self._make()
        self._steps[row] = 0
        self._arrays.change_seeds(slice(row, row + 1))
        self._start(row, int(self._arrays.seed[row]))


def _check_step(returned: Any) -> None:
    """Raise `ReturnedError` if the reward is no number, or a flag is neither true nor false."""
    _, reward, *flags, _ = values_of(returned, VALUES["step"])
    if np.ndim(reward) or not hasattr(reward, "__float__"):
        raise ReturnedError(f"reward is {shown(reward)}, and must be a number")
    for name, flag in zip(("terminated", "truncated"), flags, strict=True):
        value = np.asarray(flag)
        if value.size != 1 or value.dtype.kind not in "biuf":
            raise ReturnedError(f"{name} is {shown(flag)}, and must be true or false")


def _told(function: str, error: BaseException, returned: Any = _NOTHING) -> str:
    """Say what an environment has raised, or returned wrongly."""
    try:
        if returned is not _NOTHING:
            _check_step(returned)
    except ReturnedError as wrong:
        error = wrong
    last = traceback.extract_tb(error.__traceback__)[-1]
    if "values to unpack" in str(error) and "gymnasium" in Path(last.filename).parts:  # a wrapper
        return f"{function}: must return {VALUES[function]}: {error}"
    return in_function(function, error)
