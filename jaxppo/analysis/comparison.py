"""Runs side by side: groups that differ in more than the seed, tasks, and numbers over them.

A task is an environment with its settings. A group is all runs of the same other settings, over all
tasks; runs of a group and a task differ in their seed alone. Scores are absolute metrics where
runs have them (`runs.Run.score`).
"""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxppo.analysis import runs
from jaxppo.analysis.runs import Run
from jaxppo.config.fields import ConfigError
from jaxppo.ops.aggregates import improvement, improvement_interval, interval, intervals, iqm

Bounds = tuple[float, float]
ABSENT = "(none)"  # the value of a key that other runs have
DEFAULT = "(default)"  # one that is left as it is, where tasks have different ones
MAX_LABEL = 48  # letters of a group's name with whole keys
FEW = 5  # runs below which a bootstrap interval is noticeably too narrow


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of the same settings."""

    label: str
    values: dict[str, Any]  # of the settings that name groups
    runs: dict[str, list[Run]]  # of each task that it has

    def scores(self, task: str) -> NDArray[np.float64]:
        """Of the runs of a task that have one, `[N]`."""
        found = [run.score for run in self.runs.get(task, [])]
        return np.asarray([score for score in found if score is not None], np.float64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """Evaluations of the runs of one group and task."""

    steps: list[int]  # [S]
    iqm: list[float]  # [S] over those runs that were evaluated there
    low: list[float]  # of the interval, at the first points, where all runs were
    high: list[float]
    num_whole: int  # points, from the first on, at which all runs were


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Groups, best first, on tasks."""

    tasks: list[str]
    groups: list[Group]
    keys: list[str]  # of the settings that name groups
    tied: list[str]  # of others that differ, which those keys determine
    bounds: dict[str, Bounds]  # of each task's scores, that become 0 and 1
    given: frozenset[str]  # tasks whose bounds were given; of others the lowest and highest score

    @property
    def normalized(self) -> bool:
        """Whether scores of several groups are compared within bounds: of several tasks."""
        return len(self.tasks) > 1 or bool(self.given)

    def strata(self, group: Group) -> list[NDArray[np.float64]]:
        """Scores of each task that the group has scores in, normalised where that is needed."""
        return [self.scaled(task, group) for task in self.tasks if group.scores(task).size]

    def scaled(self, task: str, group: Group) -> NDArray[np.float64]:
        """Scores of a task; 0 and 1 are its bounds where there are several."""
        scores = group.scores(task)
        if not self.normalized:
            return scores
        low, high = self.bounds[task]
        return (scores - low) / (high - low) if high > low else np.ones_like(scores)

    def pairs(
        self, first: Group, second: Group
    ) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Scores of both in each task in which both have some."""
        both = [(first.scores(task), second.scores(task)) for task in self.tasks]
        return [(x, y) for x, y in both if x.size and y.size]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number over runs and its 95% interval; of too few runs for one, None."""

    value: float
    interval: tuple[float, float] | None


def overall(strata: Sequence[NDArray[np.float64]]) -> Estimate | None:
    """The IQM over all tasks' runs, resampled within each task; None without scores."""
    if not strata:
        return None
    value = float(iqm(np.concatenate(strata)))
    enough = any(stratum.size > 1 for stratum in strata)
    return Estimate(value=value, interval=interval(strata) if enough else None)


def better(
    pairs: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]],
) -> Estimate | None:
    """Probability that a run of the first scores higher than one of the second."""
    if not pairs:
        return None
    enough = any(max(x.size, y.size) > 1 for x, y in pairs)
    return Estimate(
        value=improvement(pairs), interval=improvement_interval(pairs) if enough else None
    )


def curve(group: Sequence[Run]) -> Curve:
    """The learning curve of runs that differ in their seed."""
    seen = [run.evaluations for run in group if run.evaluations]
    steps = sorted(set().union(*seen))
    whole = list(itertools.takewhile(lambda step: all(step in each for each in seen), steps))
    low = high = np.empty(0)
    if len(seen) > 1 and whole:
        low, high = intervals([[each[step] for step in whole] for each in seen])
    return Curve(
        steps=steps,
        iqm=[float(iqm([each[step] for each in seen if step in each])) for step in steps],
        low=low.tolist(),
        high=high.tolist(),
        num_whole=len(whole),
    )


def whole(group: Group, comparison: Comparison) -> str:
    """The group's label, and how many tasks it has scores in where these are not all."""
    num, of = len(comparison.strata(group)), len(comparison.tasks)
    return group.label if num == of else f"{group.label} ({num} of {of} tasks)"


def compare(found: Sequence[Run], bounds: Mapping[str, Any]) -> Comparison:
    """Sort runs into groups and tasks; `ConfigError` on bounds that cannot be."""
    names = _task_names(found)
    tasks = sorted(set(names))
    typed = {home: runs.typed(home) for home in dict.fromkeys(run.home for run in found)}
    differing = _differing(names, found, typed)
    usual = _usual(names, found, differing, typed)
    classes = [
        tuple(_value(run, key, usual.get((name, key), _NOTHING)) for key in differing)
        for run, name in zip(found, names, strict=True)
    ]
    keys, values = _telling(found, classes, differing, typed)
    labels = _labels(found, classes, values, typed)
    groups = []
    for own, of_key in values.items():
        members = [
            (name, run) for name, run, c in zip(names, found, classes, strict=True) if c == own
        ]
        groups.append(
            Group(
                label=labels[own],
                values=of_key,
                runs={
                    task: sorted((run for name, run in members if name == task), key=_order)
                    for task in sorted({name for name, _ in members})
                },
            )
        )
    result = Comparison(
        tasks=tasks,
        groups=groups,
        keys=keys,
        tied=[key for key in differing if key not in keys],
        bounds=_bounds(tasks, groups, bounds),
        given=frozenset(bounds),
    )
    return dataclasses.replace(result, groups=sorted(groups, key=lambda g: _rank(result, g)))


def text(value: Any) -> str:
    """A setting's value, a float to four digits."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _order(run: Run) -> tuple[int, str]:
    return run.seed, str(run.folder)


def _rank(comparison: Comparison, group: Group) -> tuple[float, float, float, str]:
    """Groups with scores in more tasks come first, then by IQM, and where these are equal, mean."""
    strata = comparison.strata(group)
    scores = np.concatenate(strata) if strata else np.asarray([-math.inf])
    return -len(strata), -float(iqm(scores)), -float(np.mean(scores)), group.label


def _task_names(found: Sequence[Run]) -> list[str]:
    """The task of each run: its environment's name, and settings that others of it differ in."""
    short = [_environment(run) for run in found]
    names = []
    for run, name in zip(found, short, strict=True):
        others = [r.env for r, n in zip(found, short, strict=True) if n == name]
        keys = [key for key in _union(others) if key not in _NAMES and _varies(others, key)]
        more = "".join(f", {key}={text(run.env.get(key, ABSENT))}" for key in keys)
        names.append(f"{name}{more}")
    return names


_NAMES = ("name", "target", "module")


def _environment(run: Run) -> str:
    """The class of an import path, before which no name is read; else a library's id."""
    return str(run.env.get("target") or run.env.get("name") or "?").rpartition(".")[2]


def _union(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """All keys, in the order in which they first come."""
    return list(dict.fromkeys(key for each in settings for key in each))


def _varies(settings: Iterable[Mapping[str, Any]], key: str) -> bool:
    return len({each.get(key, ABSENT) for each in settings}) > 1


def _differing(
    tasks: Sequence[str], found: Sequence[Run], typed: Mapping[Path, Mapping[str, str]]
) -> list[str]:
    """Settings that differ between runs of one task, or that a user made differ between tasks.

    What an environment's own file sets differs between tasks alone: it is how each is best trained.
    """
    by_task = [
        [run.settings for run, name in zip(found, tasks, strict=True) if name == task]
        for task in sorted(set(tasks))
    ]
    every = [run.settings for run in found]
    told = _union(typed.values())
    return [
        key
        for key in _union(every)
        if any(_varies(settings, key) for settings in by_task)
        or (_is_typed(key, told) and _varies(every, key))
    ]


def _is_typed(key: str, typed: Iterable[str]) -> bool:
    """Whether a setting, or a choice that it is part of, is among what was typed."""
    for told in typed:
        group, _, place = told.partition("@")
        if key == told or (_is_choice(told) and f"{key}.".startswith(f"{_part(group, place)}.")):
            return True
    return False


def _part(group: str, place: str) -> str:
    """The settings that a choice fills: `network.actor_torso`, say."""
    return place or group.replace("/", ".")


def _usual(
    tasks: Sequence[str],
    found: Sequence[Run],
    differing: Sequence[str],
    typed: Mapping[Path, Mapping[str, str]],
) -> dict[tuple[str, str], Any]:
    """Values of (task, setting) that are always left as they are, if each task has its own.

    Runs that leave them belong together, whichever number suits each task.
    """
    left: dict[str, dict[str, set[Any]]] = {}
    told = set()
    for run, task in zip(found, tasks, strict=True):
        for key in differing if typed[run.home] else ():
            value = run.settings.get(key, ABSENT)
            if _is_typed(key, typed[run.home]):
                told.add((task, key, value))
            else:
                left.setdefault(key, {}).setdefault(task, set()).add(value)
    return {
        (task, key): value
        for key, by_task in left.items()
        if all(len(values) == 1 for values in by_task.values())
        and len(set().union(*by_task.values())) > 1
        and not any((t, key, value) in told for t, values in by_task.items() for value in values)
        for task, (value,) in by_task.items()
    }


def _value(run: Run, key: str, usual: Any) -> Any:
    value = run.settings.get(key, ABSENT)
    return DEFAULT if value == usual else value


_NOTHING = object()  # equal to no setting's value


def _telling(
    found: Sequence[Run],
    classes: Sequence[tuple[Any, ...]],
    differing: Sequence[str],
    typed_in: Mapping[Path, Mapping[str, str]],
) -> tuple[list[str], dict[tuple[Any, ...], dict[str, Any]]]:
    """Settings that tell all groups apart, and the values of each group.

    Those that a user typed, such as `network=gru`, and where these do not suffice, as few others
    as do: what else differs follows from them.
    """
    first = {own: run for run, own in zip(reversed(found), reversed(classes), strict=True)}
    typed = _union(typed_in[run.home] for run in first.values())
    chosen: dict[tuple[Any, ...], dict[str, str]] = {}
    if any(_is_choice(key) for key in typed):
        chosen = {own: runs.composed(run.home)[1] for own, run in first.items()}
    candidates: dict[str, dict[tuple[Any, ...], Any]] = {
        key: {own: choices.get(key, ABSENT) for own, choices in chosen.items()}
        for key in typed
        if chosen and _is_choice(key)
    }
    for key in [*(key for key in typed if key in differing), *differing]:
        candidates[key] = {own: own[differing.index(key)] for own in first}
    keys: list[str] = []
    num_told = 1
    for key, values in candidates.items():
        told = {tuple(candidates[k][own] for k in (*keys, key)) for own in first}
        if (key in typed and len(set(values.values())) > 1) or len(told) > num_told:
            keys.append(key)
            num_told = len(told)
    return keys, {own: {key: candidates[key][own] for key in keys} for own in first}


def _labels(
    found: Sequence[Run],
    classes: Sequence[tuple[Any, ...]],
    values: Mapping[tuple[Any, ...], Mapping[str, Any]],
    typed: Mapping[Path, Mapping[str, str]],
) -> dict[tuple[Any, ...], str]:
    """Names of groups: the settings that tell them apart, but for what nobody typed for a group.

    Long names have the last parts of keys alone, where these are no less clear.
    """
    told: dict[tuple[Any, ...], set[str]] = {own: set() for own in values}
    for run, own in zip(found, classes, strict=True):
        told[own] |= set(typed[run.home])
    somewhere = set().union(*told.values())
    shown = {
        own: {k: v for k, v in of_key.items() if k in told[own] or k not in somewhere}
        for own, of_key in values.items()
    }

    def name(own: tuple[Any, ...], keys: Mapping[str, str]) -> str:
        return ", ".join(f"{keys[k]}={text(v)}" for k, v in shown[own].items())

    keys = _union(values.values())
    last = Counter(key.rpartition(".")[2] for key in keys)
    short = {
        key: key if last[key.rpartition(".")[2]] > 1 else key.rpartition(".")[2] for key in keys
    }
    if max(len(name(own, {key: key for key in keys})) for own in values) <= MAX_LABEL:
        short = {key: key for key in keys}
    nothing = "defaults" if len(values) > 1 else "all runs"
    return {own: name(own, short) or nothing for own in values}


def _is_choice(key: str) -> bool:
    """Whether a key names one of Hydra's groups, of those that may tell experiments apart."""
    group = key.partition("@")[0].partition("/")[0]
    return group in ("network", "population", "system", "arch") and ("/" in key or "." not in key)


def _bounds(
    tasks: Sequence[str], groups: Sequence[Group], given: Mapping[str, Any]
) -> dict[str, Bounds]:
    """Of each task: those given, or the lowest and the highest score."""
    for task, pair in given.items():
        if task not in tasks:
            raise ConfigError(
                f"bounds.{task}: no such task among these runs, which are of {', '.join(tasks)}"
            )
        numbers = isinstance(pair, list) and all(type(x) in (int, float) for x in pair)
        if not numbers or len(pair) != 2 or not pair[0] < pair[1]:
            raise ConfigError(
                f"bounds.{task}={pair}: must be two numbers, the lower first, such as [0,500]"
            )
    found = {}
    for task in tasks:
        scores = np.concatenate([group.scores(task) for group in groups])
        low, high = given.get(task) or ((scores.min(), scores.max()) if scores.size else (0.0, 1.0))
        found[task] = (float(low), float(high))
    return found
