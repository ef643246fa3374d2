"""Ranges of an environment's parameters: `env.randomize` and `env.curriculum`."""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.config.fields import ConfigError, check
from jaxppo.config.schema import BOTH_SEATS, EnvConfig

Bounds = tuple[float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Range:
    """Bounds between which a parameter is drawn; they move linearly from `start` to `end`."""

    start: Bounds
    end: Bounds
    share: float = 1.0  # of the run's updates, after which the bounds are those of `end`
    whole: bool = False  # the parameter is an integer; both bounds are among its values

    @property
    def moves(self) -> bool:
        """Return whether the bounds depend on the progress of the run."""
        return self.start != self.end

    @property
    def constant(self) -> bool:
        """Return whether all values are equal."""
        return self.start == self.end == (self.start[0],) * 2

    def value(self, draw: jax.Array, progress: jax.Array) -> jax.Array:
        """Map uniform draws in [0, 1) to values, at a share `progress` of the run."""
        low, high = (
            self._bound(*ends, progress) for ends in zip(self.start, self.end, strict=True)
        )
        if self.whole:
            low, high = jnp.round(low), jnp.round(high)
            values = jnp.floor(low + draw * (high - low + 1))
            return jnp.clip(values, low, high).astype(jnp.int32)
        return jnp.clip(low + draw * (high - low), low, high)

    def _bound(self, start: float, end: float, progress: jax.Array) -> jax.Array:
        if start == end:
            return jnp.float32(end)
        between = start + (end - start) * (progress / self.share)
        return jnp.where(progress >= self.share, jnp.float32(end), between)


def ranges(name: str, params: Any, config: EnvConfig) -> dict[str, Range]:
    """Return the ranges that the settings give to fields of `params`, a dataclass.

    `ConfigError` for unknown names, for fields that are no numbers, and for wrong bounds.
    """
    found = {}
    for field in sorted({*config.randomize, *config.curriculum}):
        key = f"env.{'curriculum' if field in config.curriculum else 'randomize'}"
        check_known(key, field, name, [each.name for each in dataclasses.fields(params)])
        default = getattr(params, field)
        if type(default) not in (int, float) or field == "max_steps_in_episode":
            raise ConfigError(
                f"{key}.{field}: only numbers can be drawn, and no time limit; {field} of {name} "
                f"is {default}; leave it out, or set env.params.{field}"
            )
        kind = kind_of(params, field) or int
        if field in config.curriculum:
            found[field] = _moving(field, kind, config)
        else:
            bounds = _bounds(f"{key}.{field}", config.randomize[field], kind, number=False)
            found[field] = Range(start=bounds, end=bounds, whole=kind is int)
        _check_used(key, field, config)
    return found


def kind_of(params: Any, name: str) -> type | None:
    """Return the type of a parameter that is a number, int or float.

    None if it is no number, or a whole one that is declared as something else, such as Any.
    """
    (declared,) = (field.type for field in dataclasses.fields(params) if field.name == name)
    found = type(getattr(params, name))
    if found is float or (found is int and declared in (float, "float")):
        return float
    return int if found is int and declared in (int, "int") else None


def check_known(key: str, name: str, owner: str, known: Iterable[str]) -> None:
    """Raise `ConfigError` if `owner` has no parameter `name`; it names a similar one, or all."""
    if name not in (names := list(known)):
        near = difflib.get_close_matches(name, names, 1, 0.6)
        way_out = (
            f"did you mean {key}.{near[0]}?" if near else f"it has {', '.join(names) or 'none'}"
        )
        raise ConfigError(f"{key}.{name}: {owner} has no such parameter; {way_out}")


def evaluation_config(config: EnvConfig) -> EnvConfig:
    """Return the settings of the environment in which policies are evaluated.

    Curricula are at their end. With `env.randomize_evaluation=fixed` nothing is drawn. Games start
    without random moves, and their opponent is a fixed one.
    """
    drawn, params = dict(config.randomize), dict(config.params)
    for name, entry in config.curriculum.items():
        end = entry.get("end", drawn.get(name))
        if isinstance(end, list):
            drawn[name] = end
        else:
            params[name] = end
    if config.randomize_evaluation == "fixed":
        drawn = {}
    opponent = config.evaluation_opponent
    if opponent is None:
        opponent = "random" if config.opponent in BOTH_SEATS else config.opponent
    return dataclasses.replace(
        config, params=params, randomize=drawn, curriculum={}, opponent=opponent, random_moves=0
    )


def _moving(name: str, kind: type, config: EnvConfig) -> Range:
    """Return the range of a curriculum."""
    key, entry = f"env.curriculum.{name}", config.curriculum[name]
    drawn = {"end": config.randomize[name]} if name in config.randomize else {}
    known = {"start", "end", "share"} - {*drawn}
    given = {**drawn, **entry} if isinstance(entry, Mapping) and {*entry} <= known else {}
    if not {"start", "end"} <= {*given}:
        other = "" if not drawn else f"; env.randomize.{name} gives its end"
        raise ConfigError(
            f"{key}={entry}: must be {{start: 5, end: 9.8, share: 0.5}}, where bounds [low, high] "
            f"may be the ends, and share may be left out{other}"
        )
    start, end = (_bounds(f"{key}.{part}", given[part], kind) for part in ("start", "end"))
    share = check(f"{key}.share", given.get("share", 1.0), float, {"above": 0, "high": 1})
    return Range(start=start, end=end, share=share, whole=kind is int)


def _bounds(key: str, value: Any, kind: type, *, number: bool = True) -> Bounds:
    """Return bounds [low, high]; also of a `number`, if that is allowed."""
    if number and not isinstance(value, list):
        value = [value, value]
    if not isinstance(value, list) or len(value) != 2:
        also = "a number or " if number else ""
        raise ConfigError(f"{key}={value}: must be {also}bounds [low, high], such as [8, 12]")
    low, high = (check(key, bound, kind, {}) for bound in value)
    if low > high:
        raise ConfigError(f"{key}={value}: low must be at most high; turn them round")
    return low, high


def _check_used(key: str, name: str, config: EnvConfig) -> None:
    """Raise `ConfigError` if `env.params` sets a parameter, but no episode uses this value."""
    fixed = config.randomize_evaluation == "fixed"
    end = config.curriculum.get(name, {}).get("end")
    drawn = name in config.randomize or isinstance(end, list)
    if name in config.params and not (fixed and drawn):
        way_out = "leave one of them out"
        if drawn:
            way_out += ", or set env.randomize_evaluation=fixed to evaluate with this value"
        raise ConfigError(
            f"env.params.{name}={config.params[name]} and {key}.{name}: no episode would use "
            f"the first; {way_out}"
        )
