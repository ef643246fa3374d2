"""Schedules: settings of `system` that change over the run, such as an entropy coefficient."""

import dataclasses
import difflib
import math
from typing import Any

from jaxppo.config.fields import ConfigError, check, setting, variable_names


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """How one number changes over the run. It starts at the setting's own value."""

    kind: str = setting(
        "linear",
        "form of the change",
        choices=("constant", "linear", "cosine", "exponential", "warmup_linear"),
    )
    end: float = setting(0.0, "value at the end")
    share: float = setting(1.0, "share of the run after which the value stays", above=0, high=1)
    warmup: float = setting(
        0.1,
        "warmup_linear: share of the run in which the value rises from zero to the setting's own",
        above=0,
        high=1,
    )


def find_schedules(system: Any) -> dict[str, Schedule]:
    """Return the schedules of `system.schedules`; `ConfigError` if one is wrong.

    A setting that follows a scheduled one, being null, follows its schedule too.
    """
    fields = {field.name: field for field in dataclasses.fields(system)}
    names = variable_names(system)
    found = {}
    for name, raw in system.schedules.items():
        key = f"system.schedules.{name}"
        if name not in names:
            near = difflib.get_close_matches(name, names, 1, 0.0)[0]
            raise ConfigError(
                f"{key}: no number that can follow a schedule; did you mean {near}? (of "
                f"{', '.join(names)})"
            )
        found[name] = _schedule(key, raw, system, fields[name])
    for name in names:
        leader = fields[name].metadata.get("follows")
        if leader in found and getattr(system, name) is None:
            found.setdefault(name, found[leader])
    return dict(sorted(found.items()))


def _schedule(key: str, raw: Any, system: Any, field: Any) -> Schedule:
    """Return one schedule; `ConfigError` if it is wrong."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{key}={raw}: must hold keys, such as {{kind: linear, end: 0.0}}")
    rules = {each.name: each.metadata for each in dataclasses.fields(Schedule)}
    bounds = {**field.metadata, "infinite": False}
    values = {}
    for name, value in raw.items():
        if name not in rules:
            near = difflib.get_close_matches(str(name), list(rules), 1, 0.0)[0]
            raise ConfigError(f"{key}.{name}: no such key; did you mean {near}?")
        rule = bounds if name == "end" else rules[name]
        values[name] = check(f"{key}.{name}", value, str if name == "kind" else float, rule)
    schedule = Schedule(**values)
    used = {"constant": {"kind"}, "warmup_linear": set(rules)}
    for name in raw:
        if name not in used.get(schedule.kind, set(rules) - {"warmup"}):
            raise ConfigError(
                f"{key}.{name}: has no effect with kind={schedule.kind}; leave it out, or take "
                "another kind"
            )
    if schedule.kind != "constant":
        check(f"{key}.end", schedule.end, float, bounds)
        if problem := _problem(schedule, system, field):
            raise ConfigError(f"{key}: {problem}")
    return schedule


def _problem(schedule: Schedule, system: Any, field: Any) -> str:
    """Return why a schedule does not fit the setting that it changes; "" if it does."""
    name, start, rule = f"system.{field.name}", getattr(system, field.name), field.metadata
    if start is None and "follows" not in rule:
        return f"{name}=null is off; set it to the first value"
    if start is not None and not math.isfinite(start):
        return f"{name}={start} is its start, which must be a finite number"
    if schedule.kind == "exponential" and min(schedule.end, 1.0 if start is None else start) <= 0:
        return (
            f"exponential needs a start and an end above zero, but {name}={start} and "
            f"end={schedule.end}; take linear or cosine"
        )
    if schedule.kind == "warmup_linear" and ("above" in rule or rule.get("low", 0) > 0):
        return f"warmup_linear starts at 0, which {name} may not be; take linear or cosine"
    if schedule.kind == "warmup_linear" and schedule.warmup >= schedule.share:
        return f"warmup={schedule.warmup} must be below share={schedule.share}, the end of the fall"
    if rule.get("rate") and system.decay_learning_rates:
        return "needs system.decay_learning_rates=false, which is a schedule of its own"
    return ""


NUMBERS = ("end", "share", "warmup")  # of a schedule; each is a hyperparameter


def hyperparameter(name: str, number: str) -> str:
    """Return the hyperparameter that holds a number of the schedule of `name`."""
    return f"schedule_{name}_{number}"


def schedule_numbers(system: Any) -> dict[str, float]:
    """Return the numbers of all schedules, by the names of their hyperparameters."""
    return {
        hyperparameter(name, number): getattr(schedule, number)
        for name, schedule in find_schedules(system).items()
        for number in NUMBERS
    }
