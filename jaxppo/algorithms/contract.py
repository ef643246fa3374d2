"""Checks of what the functions of an algorithm return, made when they are traced."""

from collections.abc import Iterable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from jaxppo.algorithms.metrics import leaves
from jaxppo.config.fields import ConfigError
from jaxppo.types import Acted, AgentState


def check_groups(
    algorithm: Any, parts: Iterable[str], groups: dict[str, str], rates: dict[str, Any]
) -> None:
    """Raise `ConfigError` unless `groups` and `rates` have the names of `group_names`.

    Each of the `parts` of the parameters needs a group.
    """
    known = set(algorithm.group_names)
    if missing := sorted(set(parts) - set(groups)):
        _refuse(algorithm, "groups", f"leaves out {missing[0]}, a part of the parameters")
    if unknown := sorted(set(groups.values()) - known):
        _refuse(algorithm, "groups", f"returns {unknown[0]}, which is not in group_names")
    if set(rates) != known:
        wanted = f"group_names ({', '.join(algorithm.group_names)})"
        _refuse(algorithm, "rates", f"must return one for each of {wanted}, not {', '.join(rates)}")


def check_targets(algorithm: Any, lead: tuple[int, ...], found: Any) -> tuple[Any, Any, Any]:
    """Return the results of `targets`; `ConfigError` if types, or shapes (`lead`), are wrong."""
    if not (isinstance(found, tuple) and len(found) == 3):
        _refuse(algorithm, "targets", "must return (agent, steps, target_metrics)")
    _check_agent(algorithm, "targets", found[0])
    if not all(hasattr(found[1], name) for name in ("obs", "reset")):
        _refuse(algorithm, "targets", "its steps must be a dataclass with fields obs and reset")
    for path, x in jax.tree.leaves_with_path(found[1]):
        if jnp.shape(x)[:2] != lead:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            _refuse(algorithm, "targets", f"{name} is {[*jnp.shape(x)]}, and must be [T, B, ...]")
    _check_metrics(algorithm, "targets", found[2], algorithm.target_metrics)
    agent, steps, metrics = found
    return agent, steps, metrics


def check_loss(algorithm: Any, found: Any) -> tuple[jax.Array, Any]:
    """Return the results of `loss`; `ConfigError` if their types or shapes are wrong."""
    if not (isinstance(found, tuple) and len(found) == 2):
        _refuse(algorithm, "loss", "must return (loss, loss_metrics)")
    if jnp.shape(found[0]) != ():
        shape = [*jnp.shape(found[0])]
        _refuse(algorithm, "loss", f"returns a loss {shape}, and must return a scalar: average it")
    _check_metrics(algorithm, "loss", found[1], algorithm.loss_metrics)
    loss, metrics = found
    return loss, metrics


def check_finish(algorithm: Any, found: Any) -> tuple[AgentState, Any]:
    """Return the results of `finish`; `ConfigError` if their types or shapes are wrong."""
    if not (isinstance(found, tuple) and len(found) == 2):
        _refuse(algorithm, "finish", "must return (agent, finish_metrics)")
    _check_agent(algorithm, "finish", found[0])
    _check_metrics(algorithm, "finish", found[1], algorithm.finish_metrics)
    agent, metrics = found
    return agent, metrics


def check_acted(algorithm: Any, found: Any) -> Acted:
    """Return the result of `act`; `ConfigError` if it is no `Acted`."""
    if not isinstance(found, Acted):
        _refuse(algorithm, "act", f"must return jaxppo.types.Acted, not {type(found).__name__}")
    return found


def _check_agent(algorithm: Any, method: str, found: Any) -> None:
    if not isinstance(found, AgentState):
        _refuse(algorithm, method, f"its agent is a {type(found).__name__}, not an AgentState")


def _check_metrics(algorithm: Any, method: str, found: Any, wanted: type) -> None:
    if not isinstance(found, wanted):
        kind = type(found).__name__
        _refuse(algorithm, method, f"its metrics are a {kind}, not a {wanted.__name__}")
    for name, _, x in leaves(found):
        if jnp.shape(x) != ():
            _refuse(algorithm, method, f"{name} is {[*jnp.shape(x)]}, and must be a scalar")


def _refuse(algorithm: Any, method: str, why: str) -> NoReturn:
    kind = type(algorithm)
    raise ConfigError(
        f"system.algorithm={kind.__module__}.{kind.__qualname__}: {method}: {why}; see "
        "docs/algorithms.md"
    )
