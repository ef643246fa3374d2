"""Flat arrays of the observations and actions of Gymnasium's spaces."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from jaxppo.config.messages import raised
from jaxppo.simulators.faults import ReturnedError

NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32"}  # JAX has no 64 bits


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of an observation or an action."""

    path: tuple[Any, ...]  # keys of dicts and indices of tuples, from the outside
    space: Any  # of Gymnasium; not a dict or tuple
    shape: tuple[int, ...]
    dtype: str  # as JAX sees it

    @property
    def name(self) -> str:
        """Return the path in words; empty if there is only one array."""
        return "".join(f"[{key!r}]" for key in self.path)

    @property
    def kind(self) -> str:
        """Return the name of the Gymnasium class of which the space is, also for subclasses."""
        kinds = spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box
        return next(kind.__name__ for kind in kinds if isinstance(self.space, kind))

    @property
    def is_integers(self) -> bool:
        """Return whether the space is a `Box` of integers, which actions count from its `low`."""
        return _is_integers(self.space)

    @property
    def is_plain(self) -> bool:
        """Return whether `read` returns the observation itself."""
        return not self.path and _start(self.space) is None

    def read(self, tree: Any) -> Any:
        """Return this array of an observation."""
        for key in self.path:
            tree = tree[key]
        return tree if _start(self.space) is None else np.asarray(tree) - self.space.start


def array_of(leaf: Leaf, tree: Any, shape: tuple[int, ...], form: Callable[[Any], Any]) -> Any:
    """Return an array of an observation as `form` gives it; `ReturnedError` unless of `shape`."""
    try:
        value = form(leaf.read(tree))
    except (KeyError, IndexError, TypeError) as error:
        raise ReturnedError(f"observation{leaf.name} is not there ({raised(error)})") from error
    if value.shape != shape:
        raise ReturnedError(
            f"observation{leaf.name} has shape {value.shape}, the space says {shape}"
        )
    return value


def write(leaf: Leaf, into: np.ndarray, tree: Any, shape: tuple[int, ...]) -> None:
    """Write an array of an observation; `ReturnedError` if it is not one of `shape` and the space.

    `into` is `[N, ...]`; an observation of one environment has no such axis.
    """
    value = array_of(leaf, tree, shape, np.asarray)
    try:
        np.copyto(into, value, casting="same_kind")
    except TypeError:
        raise ReturnedError(
            f"observation{leaf.name} is {value.dtype.name}, the space says {leaf.space.dtype.name}"
        ) from None
    narrowed = value.dtype.kind in "iu" and value.dtype != into.dtype
    if narrowed and np.any(into != value):
        raise ReturnedError(
            f"observation{leaf.name} has integers that {into.dtype.name} does not have"
        )


class UnsupportedSpaceError(TypeError):
    """A space has no arrays of fixed shape. The message names it."""


def tree(space: Any, path: tuple[Any, ...] = ()) -> Any:
    """Return the arrays of a space as dicts and tuples of `Leaf`; entries of dicts are sorted."""
    if isinstance(space, spaces.Dict):
        return {key: tree(space[key], (*path, key)) for key in sorted(space.spaces)}
    if isinstance(space, spaces.Tuple):
        return tuple(tree(part, (*path, index)) for index, part in enumerate(space.spaces))
    if isinstance(space, spaces.Discrete):
        return Leaf(path, space, (), "int32")
    if isinstance(space, spaces.MultiDiscrete):
        return Leaf(path, space, space.shape, "int32")
    if isinstance(space, spaces.MultiBinary | spaces.Box):
        return Leaf(path, space, space.shape, NARROW.get(str(space.dtype), str(space.dtype)))
    raise UnsupportedSpaceError(" ".join(str(space).split()))


def actions_of(space: Any, arrays: Sequence[np.ndarray]) -> list[Any]:
    """Return the actions of `space` in arrays `[N, ...]`, one for each of `N` environments."""
    if isinstance(space, spaces.Discrete):
        return (arrays[0] + space.start).tolist()
    return [_action_of(space, iter(parts)) for parts in zip(*arrays, strict=True)]


def batch_of(space: Any, arrays: Sequence[np.ndarray]) -> Any:
    """Return one batch of actions of `space`: dicts and tuples of arrays `[N, ...]`, in copies."""
    return _action_of(space, iter(arrays))


def _action_of(space: Any, parts: Iterator[Any]) -> Any:
    """Return an action of `space`, or a batch, from its arrays in the order of `tree`."""
    if isinstance(space, spaces.Dict):
        entries = {key: _action_of(space[key], parts) for key in sorted(space.spaces)}
        return {key: entries[key] for key in space.spaces}
    if isinstance(space, spaces.Tuple):
        return tuple(_action_of(part, parts) for part in space.spaces)
    value = next(parts)
    if isinstance(space, spaces.Discrete) and not np.ndim(value):
        return int(value) + int(space.start)
    if _is_integers(space):
        return (value + space.low.astype(np.int64)).astype(space.dtype)
    found = np.array(value, space.dtype)  # a copy, which the environment may keep
    if found.dtype == np.float64 and isinstance(space, spaces.Box):
        for bound in (space.low, space.high):  # such as 0.1, which in float32 is above 0.1
            np.copyto(found, bound, where=value == bound.astype(np.float32))
    return found if _start(space) is None else found + space.start


def _is_integers(space: Any) -> bool:
    return isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer)


def _start(space: Any) -> Any:
    """Return the smallest integer of a discrete space if it is not 0."""
    start = getattr(space, "start", None)
    return start if start is not None and np.any(start) else None


class Arrays:
    """Arrays of `N` environments: zeros, or in one `buffer`, which several processes may share.

    Observations and actions are lists of arrays `[N, ...]`, one for each leaf.
    """

    def __init__(
        self,
        num: int,
        observations: Sequence[Leaf],
        actions: Sequence[Leaf],
        buffer: Any = None,
        metrics: Sequence[str] = (),
    ) -> None:
        self.size = 0  # bytes of a buffer for all arrays

        def take(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
            if buffer is None:
                found: np.ndarray = np.zeros((num, *shape), dtype)
            else:
                found = np.ndarray((num, *shape), dtype, buffer=buffer, offset=self.size)
            self.size += -(-found.nbytes // 64) * 64
            return found

        self.obs = [take(leaf.shape, leaf.dtype) for leaf in observations]
        self.final = [take(leaf.shape, leaf.dtype) for leaf in observations]
        self.action = [take(leaf.shape, leaf.dtype) for leaf in actions]
        self.reward = take((), np.float32)
        self.terminated = take((), bool)
        self.truncated = take((), bool)
        self.alive = take((), bool)  # of several agents in a world: which of them acted
        self.stepping = take((), bool)  # which environments the next command is for
        self.seed = take((), np.int64)  # of the next reset; -1: the environment goes on drawing
        self.current = take((), np.int64)  # row 0 of a process: the row that it steps now
        self.metrics = {name: take((), np.float32) for name in metrics}  # NaN: not told

    def cut(self, rows: Any, last: Sequence[np.ndarray]) -> None:
        """Truncate the episodes of `rows` without a reward, at the observations `last`."""
        self.reward[rows], self.terminated[rows], self.truncated[rows] = 0.0, False, True
        for array in self.metrics.values():
            array[rows] = np.nan
        for final, obs in zip(self.final, last, strict=True):
            final[rows] = obs

    def change_seeds(self, rows: slice) -> None:
        """Give environments that are made anew other seeds."""
        self.seed[rows] = [next_seed(seed) for seed in self.seed[rows]]


def next_seed(seed: Any) -> int:
    """Return the seed of an environment that is made anew, given the last one."""
    return int(np.random.SeedSequence(int(seed)).generate_state(1)[0]) & 0x7FFFFFFF
