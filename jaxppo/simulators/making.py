"""Make one Gymnasium environment from settings, and check it."""

import contextlib
import importlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxppo.config.messages import raised
from jaxppo.simulators.faults import ANY_ERROR


def from_registry(
    name: str, module: str | None, kwargs: Mapping[str, Any], wrappers: Sequence[Any], **more: Any
) -> Any:
    """Return a registered environment, wrapped; its own checks of every step are left out."""
    import gymnasium

    if module is not None:
        importlib.import_module(module)
    return wrapped(gymnasium.make(name, disable_env_checker=True, **{**kwargs, **more}), wrappers)


def from_callable(
    make: Callable[..., Any], kwargs: Mapping[str, Any], wrappers: Sequence[Any], **more: Any
) -> Any:
    """Return what a class or function makes, wrapped."""
    return wrapped(make(**{**kwargs, **more}), wrappers)


def wrapped(env: Any, wrappers: Sequence[Any]) -> Any:
    """Apply wrappers in turn: import paths, or dicts of an import path `_target_` and arguments."""
    for wrapper in wrappers:
        given = {"_target_": wrapper} if isinstance(wrapper, str) else dict(wrapper)
        env = attribute(given.pop("_target_"))(env, **given)
    return env


_QUIET = threading.Lock()  # the handler of warnings is of the whole process


@contextlib.contextmanager
def without_repeats() -> Iterator[None]:
    """Leave out MuJoCo's warnings: the first environment that was made has printed its model's."""
    mujoco = sys.modules.get("mujoco")
    if mujoco is None:
        yield
        return
    with _QUIET:
        before = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(lambda text: None)
        try:
            yield
        finally:
            mujoco.set_mju_user_warning(before)


def problems(env: Any) -> list[str]:
    """Return what Gymnasium's own checker finds in an environment: nothing, or the first error."""
    from gymnasium.utils.env_checker import check_env

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as of bounds that are infinite
            check_env(env, skip_render_check=True, skip_close_check=True)  # it asks for a `spec`
    except ANY_ERROR as error:  # an environment may raise anything
        return [raised(error)]
    return []


def close(env: Any) -> None:
    """Close an environment or an object of several, if it can be, whatever it raises."""
    try:
        getattr(env, "close", lambda: None)()
    except ANY_ERROR:  # its results no longer matter
        return


def attribute(path: str) -> Any:
    """Import what an import path names."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
