"""What Gymnasium's environments tell besides the reward: the numbers in their `info`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxppo.simulators.faults import ANY_ERROR, ReturnedError


def lookup(info: Mapping[str, Any], name: str) -> Any:
    """Return what `info` holds by a name, such as episode.r of a dict in it; None: nothing."""
    if name in info:
        return info[name]
    for key, part in info.items():
        if isinstance(part, Mapping) and name.startswith(f"{key}."):
            return lookup(part, name[len(key) + 1 :])
    return None


def number(info: Mapping[str, Any], name: str) -> float:
    """Return a number of `info`; NaN if it is not there, `ReturnedError` if it is none."""
    value = lookup(info, name)
    if value is None:
        return float("nan")
    if not is_number(value):
        raise ReturnedError(f"info {name} is {type(value).__name__}, and must be a number")
    return float(np.asarray(value).item())


def is_number(value: Any) -> bool:
    """Return whether `value` is one number or flag, also in an array."""
    array = np.asarray(value)
    return array.size == 1 and array.dtype.kind in "biuf"


def names(info: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of all numbers in `info`."""
    for key, value in info.items():
        if isinstance(value, Mapping):
            yield from names(value, f"{prefix}{key}.")
        elif is_number(value):
            yield f"{prefix}{key}"


def names_of(env: Any, wanted: Iterable[str], most: int = 1000) -> list[str] | None:
    """Return what an environment tells in an episode of random actions.

    It ends early once all `wanted` names were told. None if the episode raises, or does not end
    within `most` steps: then nothing is known of its end.
    """
    found: dict[str, Any] = {}
    try:
        env.action_space.seed(0)
        env.reset(seed=0)
        for _ in range(most):
            *_, terminated, truncated, info = env.step(env.action_space.sample())
            found |= dict.fromkeys(names(info))
            if terminated or truncated or all(name in found for name in wanted):
                return [*found]
    except ANY_ERROR:  # an environment may raise anything; the run says so
        return None
    return None
