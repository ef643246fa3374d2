"""Comparison of runs: groups, tasks, and statistics over them.

A task is an environment with its settings. A group is all runs, over all tasks, that have the same
other settings. Runs of one group and task differ only in their seed. Scores are absolute metrics
if runs have them (`runs.Run.score`).
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxppo.analysis import runs
from jaxppo.analysis.runs import Run
from jaxppo.config.fields import ConfigError
from jaxppo.ops.aggregates import improvement, improvement_interval, interval, intervals, iqm

Array = NDArray[np.float64]
Interval = tuple[float, float]
ABSENT = "(none)"  # shown for a key that only other runs have
DEFAULT = "(default)"  # shown for a setting left at its default, if defaults differ between tasks
ALGORITHM = "system.algorithm"
MAX_LABEL = 48  # letters of the longest group name that still has whole keys
FEW = 5  # with fewer runs, a bootstrap interval is noticeably too narrow


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of the same settings."""

    label: str
    values: dict[str, Any]  # of the settings that name groups
    runs: dict[str, list[Run]]  # task -> its runs

    def scores(self, task: str) -> Array:
        """Return the scores of a task's runs, `[N]`; runs without a score are left out."""
        found = [run.score for run in self.runs.get(task, [])]
        return np.asarray([score for score in found if score is not None], np.float64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """A curve with a band, such as the learning curve of the runs of one group and task."""

    x: Sequence[float]  # [S] such as steps
    y: Sequence[float]  # [S] such as the IQM over the runs that were evaluated at that step
    low: Sequence[float] = ()  # [S] of the band, NaN at `partial` points; empty without a band
    high: Sequence[float] = ()
    partial: Sequence[float] = ()  # those of `x` at which not all runs were evaluated


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Groups, best first, on tasks."""

    tasks: list[str]
    groups: list[Group]
    keys: list[str]  # of the settings that name groups
    tied: list[str]  # keys of other settings that differ; those in `keys` determine them
    bounds: dict[str, Interval]  # task -> the scores that become 0 and 1
    given: frozenset[str]  # tasks with bounds from the user; others: lowest and highest score

    @property
    def normalized(self) -> bool:
        """Whether scores are normalised: with several tasks, or with given bounds."""
        return len(self.tasks) > 1 or bool(self.given)

    def judge(self, task: str) -> str:
        """Return the name of the score of a task: return, or the runs' arch.eval_metric."""
        own = next(group.runs[task] for group in self.groups if task in group.runs)
        return str(own[0].env.get("eval_metric", "return"))

    @property
    def averaged(self) -> list[str]:
        """Return the tasks that are averaged: those whose scores differ, or that have bounds."""
        return [
            t for t in self.tasks if not self.normalized or self.bounds[t][0] < self.bounds[t][1]
        ]

    @property
    def whole(self) -> list[Group]:
        """Return the groups with scores on all tasks that are averaged; only these compare."""
        num = len(self.averaged)
        return [group for group in self.groups if num and len(self.strata(group)) == num]

    def strata(self, group: Group) -> list[Array]:
        """Return a group's scores by task, for averaged tasks with scores; normalised if needed."""
        every = [(task, group.scores(task)) for task in self.averaged]
        if not self.normalized:
            return [scores for _, scores in every if scores.size]
        ends = {task: np.asarray(self.bounds[task]) for task in self.averaged}
        return [(x - ends[t][0]) / np.ptp(ends[t]) for t, x in every if x.size]

    def budget(self, task: str) -> int:
        """Return the steps that all groups of a task have trained for.

        Groups without a finished run count only if no group has one.
        """
        every = [group.runs[task] for group in self.groups if task in group.runs]
        done = [[run for run in own if run.status == runs.FINISHED] for own in every]
        return min(max(run.steps for run in own) for own in [*filter(None, done)] or every)

    def sweeps(self) -> list[tuple[str, dict[float, str]]]:
        """Return each parameter of an environment in which alone some tasks differ.

        Its key comes with value -> task, in the order of the values.
        """
        found: dict[Any, dict[float, str]] = {}
        for task in self.tasks:
            env = next(group.runs[task][0].env for group in self.groups if task in group.runs)
            for key, value in env.items():
                if type(value) in (int, float):
                    others = frozenset((k, repr(v)) for k, v in env.items() if k != key)
                    found.setdefault((key, others), {})[float(value)] = task
        return [(key, dict(sorted(own.items()))) for (key, _), own in found.items() if len(own) > 1]

    def pairs(self, first: Group, second: Group) -> list[tuple[Array, Array]]:
        """Return the scores of both groups for each task in which both have scores."""
        both = [(first.scores(task), second.scores(task)) for task in self.tasks]
        return [(x, y) for x, y in both if x.size and y.size]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """A statistic over runs with its 95% interval; None if there are too few runs for one."""

    value: float
    interval: Interval | None


def overall(strata: Sequence[Array]) -> Estimate:
    """Return the IQM over all tasks' runs, resampled within each task."""
    enough = any(stratum.size > 1 for stratum in strata)
    return Estimate(value=middle(strata), interval=interval(strata) if enough else None)


def middle(strata: Sequence[Array]) -> float:
    """Return the IQM over the runs of all tasks; without scores, minus infinity."""
    scores = np.concatenate(strata) if strata else np.empty(0)
    return float(iqm(scores)) if scores.size else -math.inf


def better(pairs: Sequence[tuple[Array, Array]]) -> Estimate:
    """Return the probability that a run of the first group scores higher than one of the second."""
    enough = any(max(x.size, y.size) > 1 for x, y in pairs)
    return Estimate(
        value=improvement(pairs), interval=improvement_interval(pairs) if enough else None
    )


def curve(group: Sequence[Run], until: float = math.inf) -> Curve:
    """Return the learning curve of runs that differ only in their seed, up to a step."""
    logs = [run.evaluations for run in group if run.evaluations]
    steps = sorted(step for step in set().union(*logs) if step <= until)
    if not all(0 in log for log in logs):  # with arch.evaluate_first=false
        steps = [step for step in steps if step > 0]
    whole = np.asarray([all(step in log for log in logs) for step in steps], bool)
    low = high = np.empty(0)
    if len(logs) > 1 and whole.any():
        low, high = np.full((2, len(steps)), np.nan)
        shared = [step for step, every in zip(steps, whole, strict=True) if every]
        low[whole], high[whole] = intervals([[log[step] for step in shared] for log in logs])
    return Curve(
        x=steps,
        y=[float(iqm([log[step] for log in logs if step in log])) for step in steps],
        low=low.tolist(),
        high=high.tolist(),
        partial=np.asarray(steps)[~whole].tolist(),
    )


def compare(found: Sequence[Run], bounds: Mapping[str, Any]) -> Comparison:
    """Sort runs into groups and tasks; `ConfigError` on invalid bounds."""
    names = _task_names(found)
    tasks = sorted(set(names))
    differing = _differing(names, found)
    # An algorithm has files of its own for environments
    kinds = [(task, run.settings.get(ALGORITHM)) for task, run in zip(names, found, strict=True)]
    defaults = _task_defaults(kinds, found, differing)

    def value(run: Run, kind: Any, key: str) -> Any:
        own = run.settings.get(key, ABSENT)
        return DEFAULT if (kind, key) in defaults and own == defaults[kind, key] else own

    # The class of a run: its values of the settings that differ. Each class becomes a group.
    classes = [
        tuple(value(run, kind, key) for key in differing)
        for run, kind in zip(found, kinds, strict=True)
    ]
    keys, values = _naming(found, classes, differing)
    labels = _labels(keys, values)
    by_class: dict[tuple[Any, ...], dict[str, list[Run]]] = {own: {} for own in values}
    for name, run, own in sorted(zip(names, found, classes, strict=True), key=_order):
        by_class[own].setdefault(name, []).append(run)
    groups = [
        Group(label=labels[own], values=values[own], runs=by_task)
        for own, by_task in by_class.items()
    ]
    given = _given(tasks, bounds)
    result = Comparison(
        tasks=tasks,
        groups=groups,
        keys=keys,
        tied=[key for key in differing if key not in keys],
        bounds=_bounds(tasks, groups, given),
        given=frozenset(given),
    )
    return dataclasses.replace(result, groups=sorted(groups, key=lambda g: _rank(result, g)))


def text(value: Any) -> str:
    """Return a setting's value as text, with all digits of a float."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    is_short = isinstance(value, float) and float(f"{value:g}") == value
    return f"{value:g}" if is_short else str(value)


def _order(member: tuple[str, Run, Any]) -> tuple[str, int, str]:
    task, run, _ = member
    return task, run.seed, str(run.folder)


def _rank(comparison: Comparison, group: Group) -> tuple[float, float, float, str]:
    """Return a sort key: scores in more tasks first, then higher IQM, then higher mean."""
    strata = comparison.strata(group)
    mean = float(np.mean(np.concatenate(strata))) if strata else -math.inf
    return -len(strata), -middle(strata), -mean, group.label


def _task_names(found: Sequence[Run]) -> list[str]:
    """Return the task of each run: environment name, and settings in which its runs differ."""
    short = [_environment(run) for run in found]
    targets = [run.env.get("target") for run in found]
    pairs = set(zip(short, targets, strict=True))
    shared = {name for name, num in Counter(name for name, _ in pairs).items() if num > 1}
    short = [
        str(target or name) if name in shared else name
        for name, target in zip(short, targets, strict=True)
    ]
    typed = tuple(key for key in _union(run.typed for run in found) if key.startswith("env."))
    words: dict[str, dict[str, dict[Any, str]]] = {}
    for name in {*short}:
        same = [run.env for run, other in zip(found, short, strict=True) if other == name]
        words[name] = {
            key: _values_in_names(key, {env.get(key, ABSENT) for env in same})
            for key in _telling(same, typed)
        }
    return [
        name + "".join(own[run.env.get(key, ABSENT)] for key, own in words[name].items())
        for run, name in zip(found, short, strict=True)
    ]


_NAMES = ("name", "target", "module")
_EMPTY = (ABSENT, None, "[]", "{}")


def _telling(envs: Sequence[Mapping[str, Any]], typed: Sequence[str]) -> list[str]:
    """Return the keys that tell environments of one name apart: typed ones, and those needed."""

    def is_typed(key: str) -> bool:
        return any(f"env.{key}.".startswith(f"{name}.") for name in typed)

    every = _union(envs)
    parents = {parent for parent in every if any(key.startswith(f"{parent}.") for key in every)}
    keys = [key for key in every if key not in {*_NAMES, *parents} and _varies(envs, key)]
    columns = {
        key: [env.get(key, ABSENT) for env in envs]
        for key in sorted(keys, key=lambda key: not is_typed(key))
    }
    return _distinguishing(columns, [key for key in keys if is_typed(key)])


def _distinguishing(columns: Mapping[str, Sequence[Any]], always: Collection[str]) -> list[str]:
    """Return the keys of `always`, and others only while they tell more rows of columns apart."""
    chosen: list[str] = []
    num_distinct = 1
    for key in columns:
        distinct = set(zip(*(columns[k] for k in (*chosen, key)), strict=True))
        if key in always or len(distinct) > num_distinct:
            chosen.append(key)
            num_distinct = len(distinct)
    return chosen


def _values_in_names(key: str, values: set[Any]) -> dict[Any, str]:
    """Return value -> what it adds to a task's name; nothing for a setting that is empty."""
    empty = [value for value in values if value in _EMPTY]
    return {x: "" if [x] == empty else f", {key}={text(x)}" for x in values}


def _environment(run: Run) -> str:
    """Return the class name of an import path if there is one, else the library's id."""
    target = run.env.get("target")
    return str(target).rpartition(".")[2] if target else str(run.env.get("name") or "?")


def _union(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return all keys in order of first appearance."""
    return list(dict.fromkeys(key for each in settings for key in each))


def _varies(settings: Iterable[Mapping[str, Any]], key: str) -> bool:
    return len({each.get(key, ABSENT) for each in settings}) > 1


def _differing(tasks: Sequence[str], found: Sequence[Run]) -> list[str]:
    """Return keys that differ between runs of one task, or that differ and a user typed.

    Settings from an environment's own file differ only between tasks: they are tuned for each.
    """
    by_task = [
        [run.settings for run, name in zip(found, tasks, strict=True) if name == task]
        for task in sorted(set(tasks))
    ]
    every = [run.settings for run in found]
    typed_keys = _union(run.typed for run in found)
    return [
        key
        for key in _union(every)
        if any(_varies(settings, key) for settings in by_task)
        or (_is_typed(key, typed_keys) and _varies(every, key))
    ]


def _is_typed(key: str, typed: Iterable[str]) -> bool:
    """Return whether a user typed this key or chose the config group that contains it."""
    for name in typed:
        group, _, place = name.partition("@")
        part = place or group.replace("/", ".")  # such as `network.actor_torso`
        if key == name or (_is_choice(name) and f"{key}.".startswith(f"{part}.")):
            return True
    return False


def _task_defaults(
    kinds: Sequence[Any], found: Sequence[Run], differing: Sequence[str]
) -> dict[tuple[Any, str], Any]:
    """Return (kind, key) -> default, for settings whose default differs between kinds.

    A kind is a task and an algorithm. Runs that keep the defaults belong to one group, although
    their numbers differ.
    """
    untyped: dict[str, dict[Any, set[Any]]] = {}
    typed_values = set()
    for run, kind in zip(found, kinds, strict=True):
        for key in differing if run.typed else ():
            value = run.settings.get(key, ABSENT)
            if _is_typed(key, run.typed):
                typed_values.add((kind, key, value))
            else:
                untyped.setdefault(key, {}).setdefault(kind, set()).add(value)
    return {
        (kind, key): value
        for key, by_kind in untyped.items()
        if key != ALGORITHM
        and all(len(values) == 1 for values in by_kind.values())
        and len(set().union(*by_kind.values())) > 1
        and not any((k, key, v) in typed_values for k, (v,) in by_kind.items())
        for kind, (value,) in by_kind.items()
    }


def _naming(
    found: Sequence[Run], classes: Sequence[tuple[Any, ...]], differing: Sequence[str]
) -> tuple[list[str], dict[tuple[Any, ...], dict[str, Any]]]:
    """Return keys that distinguish all groups, and each group's values of them.

    The algorithm comes first, then typed keys that differ, such as `network`. Other keys are added
    only while they distinguish more groups: the rest follows from them.
    """
    first = {own: run for run, own in zip(reversed(found), reversed(classes), strict=True)}
    typed_keys = _union(run.typed for run in first.values())
    chosen = [key for key in typed_keys if _is_choice(key)]
    always = [ALGORITHM] * (ALGORITHM in differing)
    choices = [runs.composed(run.home)[1] for run in first.values()] if chosen else []
    of_choice = {key: [made.get(key, ABSENT) for made in choices] for key in chosen}
    columns = {
        key: of_choice.get(key) or [own[differing.index(key)] for own in first]
        for key in dict.fromkeys(
            [*always, *chosen, *(key for key in typed_keys if key in differing), *differing]
        )
    }
    told = [key for key in (*always, *typed_keys) if len({*columns.get(key, ())}) > 1]
    keys = _distinguishing(columns, told)
    return keys, {own: {key: columns[key][i] for key in keys} for i, own in enumerate(first)}


def _labels(
    keys: Sequence[str], values: Mapping[tuple[Any, ...], Mapping[str, Any]]
) -> dict[tuple[Any, ...], str]:
    """Return names of groups: their settings; in long names, the last parts of unique keys."""

    def names(short: Mapping[str, str]) -> dict[tuple[Any, ...], str]:
        return {
            own: ", ".join(f"{short[k]}={text(v)}" for k, v in settings.items()) or "all runs"
            for own, settings in values.items()
        }

    whole = names({key: key for key in keys})
    if max(map(len, whole.values())) <= MAX_LABEL:
        return whole
    last = {key: key.rpartition(".")[2] for key in keys}
    uses = Counter(last.values())
    return names({key: key if uses[part] > 1 else part for key, part in last.items()})


def _is_choice(key: str) -> bool:
    """Return whether a key names a Hydra config group that can distinguish experiments."""
    group = key.partition("@")[0].partition("/")[0]
    return group in ("network", "population", "system", "arch") and ("/" in key or "." not in key)


def _given(tasks: Sequence[str], bounds: Mapping[str, Any]) -> dict[str, Any]:
    """Return task -> bounds; those of an environment are for all tasks that it names."""
    found: dict[str, Any] = {}
    for name in sorted(bounds, key=len):  # the whole name of a task is longer
        pair = bounds[name]
        own = [task for task in tasks if f"{task}, ".startswith(f"{name}, ")]
        if not own:
            raise ConfigError(
                f"bounds.{name}: no such task among these runs, which are of {', '.join(tasks)}; "
                "names with = or . need quotes: 'bounds={\"NAME\":[0,500]}'"
            )
        numbers = isinstance(pair, list) and all(
            type(x) in (int, float) and math.isfinite(x) for x in pair
        )
        if not numbers or len(pair) != 2 or not pair[0] < pair[1]:
            raise ConfigError(
                f"bounds.{name}={pair}: must be two finite numbers, the lower first, such as "
                "[0,500]"
            )
        found |= dict.fromkeys(own, pair)
    return found


def _bounds(
    tasks: Sequence[str], groups: Sequence[Group], given: Mapping[str, Any]
) -> dict[str, Interval]:
    """Return the bounds of each task: the given ones, or the lowest and highest score."""
    found: dict[str, Interval] = {}
    for task in tasks:
        scores = np.concatenate([group.scores(task) for group in groups])
        low, high = given.get(task) or ((scores.min(), scores.max()) if scores.size else (0.0, 1.0))
        found[task] = (float(low), float(high))
    return found
