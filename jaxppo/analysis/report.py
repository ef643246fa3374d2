"""Runs compared on one HTML page."""

import dataclasses
import itertools
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxppo.analysis import page, runs
from jaxppo.analysis.charts import (
    STYLES,
    Bar,
    Line,
    Points,
    draw_bars,
    draw_curves,
    draw_profiles,
    draw_setting,
    rounded,
)
from jaxppo.analysis.comparison import (
    FEW,
    Comparison,
    Estimate,
    Group,
    better,
    compare,
    curve,
    overall,
    text,
    whole,
)
from jaxppo.analysis.runs import UNFINISHED, Run
from jaxppo.config.fields import ConfigError, setting
from jaxppo.config.messages import count
from jaxppo.ops.aggregates import NUM_RESAMPLES, iqm, profile, profile_interval
from jaxppo.runtime.directories import output_folder
from jaxppo.runtime.sinks.console import print_lines

PAGE = "index.html"


SHOWN = 25  # rows of a table that are not folded away


MAX_PANELS = 24  # of hyperparameters


MAX_PAIRED = 4  # groups of which each is set against each other, and not the best alone


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reporting:
    """Compare runs on one page: python -m jaxppo.report DIR... [key=value]

    DIR is a run, a sweep, or any directory above some. Runs that differ in their seed alone are a
    group; environments are tasks. Writes index.html, which needs nothing beside it, and its
    pictures as PNGs.
    """

    runs: list[str] = setting([], "directories")
    out: str | None = setting(None, "the directory to write to; null: report in the first DIR")
    bounds: dict[str, Any] = setting(
        {},
        "returns that become 0 and 1 where tasks are averaged, such as bounds.CartPole-v1=[0,500]; "
        "of tasks not named here, the lowest and the highest score of these runs",
    )


def report(settings: Reporting) -> None:
    """Write the page and say what it shows."""
    if not settings.runs:
        raise ConfigError("no directory named: python -m jaxppo.report DIR...")
    found, notes = runs.find(settings.runs)
    comparison = compare(found, settings.bounds)
    out = output_folder(settings.out or Path(settings.runs[0]) / "report")
    what = (
        f"{count(found, 'run')}, {count(comparison.groups, 'group')}, "
        f"{count(comparison.tasks, 'task')}"
    )
    warnings = cautions(comparison)
    parts = [
        page.paragraph(f"{what}, from {', '.join(settings.runs)}", "soft"),
        page.listing([*warnings, *notes]),
        *(make(comparison, out) for make in SECTIONS),
    ]
    (out / PAGE).write_text(page.page("Comparison of runs", *parts), "utf-8")
    print_lines(f"{out / PAGE}: {what}", *warnings, *notes)


def cautions(comparison: Comparison) -> list[str]:
    """What a reader should know before looking at any number."""
    every = _runs(comparison)
    lines = []
    open_ended = [run for run in every if run.status == UNFINISHED]
    if open_ended:
        lines.append(
            f"{len(open_ended)} of {count(every, 'run')} not finished (running, or ended early): "
            "what is there is used."
        )
    for group, task, own in _cells(comparison):
        failed = [run for run in own if run.failed]
        if failed:
            lines.append(
                f"{len(failed)} of {count(own, 'run')} failed and left out of scores, which "
                f"flatters the rest: {group.label} on {task}: {failed[0].status}"
            )
    best = [run for run in every if run.by_best and run.score is not None]
    if best:
        lines.append(
            f"{count(best, 'run')} without an absolute metric: the best evaluation stands for it, "
            "which is the highest of several and so too high."
        )
    sizes = [len(group.scores(task)) for group, task, _ in _cells(comparison)]
    if 1 in sizes:
        lines.append(
            f"{count([s for s in sizes if s == 1], 'group')} with one run on a task: no interval "
            "there."
        )
    if any(1 < size < FEW for size in sizes):
        lines.append(f"Intervals over fewer than {FEW} runs are narrower than they should be.")
    for task in comparison.tasks:
        lengths = {run.steps for _, t, own in _cells(comparison) if t == task for run in own}
        if lengths and max(lengths) > 1.02 * min(lengths):
            lines.append(
                f"{task}: runs trained for different numbers of steps, {min(lengths):,} to "
                f"{max(lengths):,}; each is judged at its own end."
            )
    versions = Counter(_versions(run) for run in every if run.versions)
    if len(versions) > 1:
        told = "; ".join(f"{name} ({count(range(n), 'run')})" for name, n in versions.items())
        lines.append(f"Runs are of different versions: {told}.")
    return lines


def absolute_metrics(comparison: Comparison, out: Path) -> str:
    """The table of results."""
    names = ["group", *(["task"] if len(comparison.tasks) > 1 else [])]
    names += ["runs", "steps", "mean ± std", "IQM", "95% interval", "lowest, highest", "wall time"]
    rows = []
    for group, task, own in _cells(comparison):
        scores = group.scores(task)
        estimate = overall([scores] if scores.size else [])
        rows.append(
            [
                *([group.label, task] if len(comparison.tasks) > 1 else [group.label]),
                f"{_of(len(scores), len(own))} (seeds {_ranges(run.seed for run in own)})",
                _span([run.steps for run in own], "{:,}".format),
                _mean(scores),
                rounded(estimate.value) if estimate else "-",
                _interval(estimate),
                _span(scores.tolist(), rounded) if scores.size else "-",
                _span([run.seconds for run in own if run.seconds is not None], _duration),
            ]
        )
    numbers = frozenset(names) - {"group", "task", "runs"}
    shown = page.table(page.Table(names=names, rows=rows[:SHOWN], numbers=numbers))
    if len(rows) > SHOWN:
        rest = page.table(page.Table(names=names, rows=rows[SHOWN:], numbers=numbers))
        shown += page.folded(f"{len(rows) - SHOWN} more rows", rest)
    every = _runs(comparison)
    made = sorted({_versions(run) for run in every if run.versions})
    machines = sorted({run.machine for run in every if run.machine})
    return page.section(
        "Absolute metrics",
        page.paragraph(
            "Each run's best policy, evaluated anew over ten times the episodes. The best group "
            "comes first. The spread is over runs, wall time that of the whole program, which may "
            "have trained several runs at once.",
            "soft",
        ),
        shown,
        page.paragraph(
            f"Versions: {'; '.join(made) or 'not recorded'}. Machine: "
            f"{'; '.join(machines) or 'not recorded'}.",
            "soft",
        ),
    )


def iqms(comparison: Comparison, out: Path) -> str:
    """The IQM of each group over all tasks."""
    groups = [group for group in _drawn(comparison) if comparison.strata(group)]
    if not groups:
        return ""
    estimates = [overall(comparison.strata(group)) for group in groups]
    bars = [
        Bar(label=whole(group, comparison), value=e.value, interval=e.interval, style=number)
        for number, (group, e) in enumerate(zip(groups, estimates, strict=True))
        if e is not None
    ]
    title = f"IQM, {_tasks(comparison)}"
    draw_bars(out / "iqm.png", bars, title=title, xlabel=_unit(comparison))
    alt = f"{title}: " + "; ".join(f"{b.label}: {_told(b.value, b.interval)}" for b in bars)
    parts = [page.figure(out / "iqm.png", alt, caption=_left_out(comparison))]
    if len(groups) > 1:
        parts += [improvements(comparison, groups, out)]
    parts += [profiles(comparison, groups, out)]
    return page.section(
        "Over all runs" if len(comparison.tasks) == 1 else "Over all tasks",
        page.paragraph(_scale(comparison), "soft"),
        page.figures(parts),
    )


def improvements(comparison: Comparison, groups: Sequence[Group], out: Path) -> str:
    """How likely a run of one group is to beat one of another."""
    many = len(groups) > MAX_PAIRED
    bars = []
    for first, second in itertools.combinations(range(len(groups)), 2):
        estimate = better(comparison.pairs(groups[first], groups[second]))
        if estimate is None or (many and first > 0):
            continue
        ours, theirs = groups[first].label, groups[second].label
        bars.append(
            Bar(
                label=f"over {theirs}" if many else f"{ours}\nover {theirs}",
                value=estimate.value,
                interval=estimate.interval,
                style=second if many else first,
            )
        )
    if not bars:
        return ""
    title = "Probability of improvement" + (f" of {groups[0].label}" if many else "")
    path = out / "improvement.png"
    draw_bars(path, bars, title=title, xlabel="P(first scores higher)", even=0.5)
    told = "; ".join(f"{' '.join(b.label.split())}: {_told(b.value, b.interval)}" for b in bars)
    caption = "That a run of the first scores higher than one of the second; at 0.5 neither does."
    return page.figure(path, f"{title}: {told}", caption=caption)


def profiles(comparison: Comparison, groups: Sequence[Group], out: Path) -> str:
    """Performance profiles."""
    strata = [comparison.strata(group) for group in groups]
    every = np.concatenate([scores for own in strata for scores in own])
    low, high = float(every.min()), float(every.max())
    if comparison.normalized:
        low, high = min(low, 0.0), max(high, 1.0)
    margin = 0.03 * (high - low) or 0.5
    levels = np.linspace(low - margin, high + margin, 201)
    lines = []
    for number, (group, own) in enumerate(zip(groups, strata, strict=True)):
        enough = any(scores.size > 1 for scores in own)
        band = profile_interval(own, levels) if enough else ((), ())
        lines.append(
            Line(
                label=whole(group, comparison),
                x=levels.tolist(),
                y=profile(own, levels).tolist(),
                low=list(band[0]),
                high=list(band[1]),
                num_whole=len(levels),
                style=number,
            )
        )
    title = f"Performance profiles, {_tasks(comparison)}"
    draw_profiles(out / "profiles.png", lines, title=title, xlabel=_unit(comparison))
    middle = float(np.median(every))
    shares = "; ".join(f"{line.label}: {np.interp(middle, line.x, line.y):.0%}" for line in lines)
    alt = f"{title}. Share of runs above {rounded(middle)}: {shares}"
    return page.figure(
        out / "profiles.png", alt, caption="A curve further up and to the right is better."
    )


def learning_curves(comparison: Comparison, out: Path) -> str:
    """A picture a task, of the groups that have runs of it."""
    parts = []
    for task in comparison.tasks:
        here = [group for group in comparison.groups if task in group.runs]
        styles = {id(group): number for number, group in enumerate(comparison.groups)}
        if len(comparison.groups) > len(STYLES):  # each picture has its own
            here.sort(key=lambda group: -_middle(group.scores(task)))
            styles = {id(group): number for number, group in enumerate(here)}
        lines, faint = [], []
        for group in here:
            found, style = curve(group.runs[task]), styles[id(group)]
            if style >= len(STYLES):
                faint.append((found.steps, found.iqm))
                continue
            lines.append(
                Line(
                    label=group.label,
                    x=found.steps,
                    y=found.iqm,
                    low=found.low,
                    high=found.high,
                    num_whole=found.num_whole,
                    style=style,
                )
            )
        path = out / f"curves_{_slug(task)}.png"
        draw_curves(path, lines, faint, title=task, ylabel="evaluation return, IQM and 95%")
        ends = "; ".join(
            f"{line.label}: {rounded(line.y[-1])} at {line.x[-1]:,.0f} steps"
            for line in lines
            if line.x
        )
        grey = f"The best {len(STYLES)} groups here; {len(faint)} more in grey." if faint else ""
        parts.append(page.figure(path, f"Learning curves on {task}. {ends}", caption=grey))
    own = " Each picture has colours of its own." if len(comparison.groups) > len(STYLES) else ""
    return page.section(
        "Learning curves",
        page.paragraph(
            "IQM over runs of the mean return of each evaluation, and its interval. Pale dots: not "
            f"all runs of the group got that far.{own}",
            "soft",
        ),
        page.figures(parts),
    )


def _middle(scores: NDArray[np.float64]) -> float:
    return float(iqm(scores)) if scores.size else -math.inf


def hyperparameters(comparison: Comparison, out: Path) -> str:
    """A panel for each setting that differs and each task."""
    few = len(comparison.groups) <= len(STYLES)
    parts: list[str] = []
    for key, task in itertools.product(comparison.keys, comparison.tasks):
        by_value: dict[Any, list[tuple[float, int | None]]] = {}
        for number, group in enumerate(comparison.groups):
            style = number if few else None
            for run in group.runs.get(task, []):
                if run.score is not None:
                    value = run.settings.get(key, group.values[key])
                    by_value.setdefault(value, []).append((run.score, style))
        if len(by_value) < 2:
            continue
        if len(parts) == MAX_PANELS:
            parts.append(page.paragraph(f"No more than {MAX_PANELS} panels are drawn.", "soft"))
            break
        numeric = all(type(value) in (int, float) for value in by_value)
        columns = [
            _points(float(value) if numeric else text(value), by_value[value])
            for value in sorted(by_value, key=None if numeric else text)
        ]
        path = out / f"setting_{_slug(key)}_{_slug(task)}.png"
        title = f"{key}, {task}" if len(comparison.tasks) > 1 else key
        draw_setting(path, columns, title=title, xlabel=key, ylabel="score")
        told = "; ".join(
            f"{c.value:.4g}: {rounded(c.middle)}" if numeric else f"{c.value}: {rounded(c.middle)}"
            for c in columns[:20]
        )
        parts.append(page.figure(path, f"Scores on {task} against {key}. IQM at {told}"))
    if not parts:
        return ""
    more = f" and {len(comparison.tied) - 6} more" if len(comparison.tied) > 6 else ""
    tied = f" These differ too, and follow from them: {', '.join(comparison.tied[:6])}{more}."
    return page.section(
        "Hyperparameters",
        page.paragraph(
            f"A mark is a run{', in the colour of its group' if few else ''}; the bar is the IQM "
            "at that value over all other settings, with its interval."
            f"{tied if comparison.tied else ''}",
            "soft",
        ),
        page.figures(parts),
    )


def populations(comparison: Comparison, out: Path) -> str:
    """Pictures that population-based runs left."""
    found = [run for run in _runs(comparison) if run.picture is not None]
    parts = []
    for number, run in enumerate(found[:4]):
        copy = out / f"population_{number}.png"
        copy.write_bytes(run.picture.read_bytes() if run.picture else b"")
        parts.append(
            page.figure(
                copy,
                f"Lineage and hyperparameters of the population in {run.folder}",
                caption=str(run.folder),
                wide=True,
            )
        )
    if not parts:
        return ""
    more = f" {len(found) - 4} more are in their runs' directories." if len(found) > 4 else ""
    return page.section(
        "Populations",
        page.paragraph(
            "A population is one run, judged by its best member; its learning curve is the best "
            f"member's at each evaluation.{more}",
            "soft",
        ),
        page.figures(parts),
    )


def settings(comparison: Comparison, out: Path) -> str:
    """How to run each group again, and where its runs are."""
    parts = []
    for group in comparison.groups[:SHOWN]:
        commands = [line for task in group.runs for line in _commands(group.runs[task])]
        parts += [page.heading(group.label), page.code("\n".join(commands))] if commands else []
    if len(comparison.groups) > SHOWN:
        parts.append(page.paragraph(f"Of the {SHOWN} best groups.", "soft"))
    rows = [
        [
            str(run.folder),
            group.label,
            task,
            str(run.seed),
            f"{run.steps:,}",
            "-" if run.score is None else rounded(run.score) + (" (best)" if run.by_best else ""),
            run.status,
        ]
        for group, task, own in _cells(comparison)
        for run in own
    ]
    names = ["run", "group", "task", "seed", "steps", "score", "status"]
    numbers = frozenset({"seed", "steps", "score"})
    every = page.table(page.Table(names=names, rows=rows, numbers=numbers))
    return page.section("Settings and runs", *parts, page.folded(f"All runs ({len(rows)})", every))


def method(comparison: Comparison, out: Path) -> str:
    """How the numbers are made."""
    return page.section(
        "How the numbers are made",
        page.paragraph(
            "IQM is the mean without the lowest and the highest quarter of runs, each rounded "
            f"down. Intervals are 95% percentile bootstrap intervals of {NUM_RESAMPLES:,} "
            "resamples of runs, drawn within each task, with the same draws every time. A "
            "performance profile is the share of runs above each score, mean over tasks. The "
            "probability of improvement is that of a run of one group against one of another on "
            "the same task, mean over tasks, with ties as one half (Mann-Whitney). After Agarwal "
            "et al. 2021, arXiv 2108.13264; absolute metrics after Gorsane et al. 2022, arXiv "
            "2209.10485.",
            "soft",
        ),
    )


SECTIONS: tuple[Callable[[Comparison, Path], str], ...] = (
    absolute_metrics,
    iqms,
    learning_curves,
    hyperparameters,
    populations,
    settings,
    method,
)


def _cells(comparison: Comparison) -> list[tuple[Group, str, list[Run]]]:
    """Groups, best first, with each of their tasks."""
    return [(group, task, own) for group in comparison.groups for task, own in group.runs.items()]


def _runs(comparison: Comparison) -> list[Run]:
    """Of all groups and tasks."""
    return [run for _, _, own in _cells(comparison) for run in own]


def _drawn(comparison: Comparison) -> list[Group]:
    """The groups that have a colour of their own."""
    return comparison.groups[: len(STYLES)]


def _left_out(comparison: Comparison) -> str:
    num = len(comparison.groups) - len(STYLES)
    return f"The best {len(STYLES)} groups; {num} more are in the table." if num > 0 else ""


def _tasks(comparison: Comparison) -> str:
    tasks = comparison.tasks
    return tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"


def _unit(comparison: Comparison) -> str:
    return "normalised score" if comparison.normalized else "score"


def _scale(comparison: Comparison) -> str:
    """What scores are measured in."""
    if not comparison.normalized:
        return "Scores are returns."
    bounds = "; ".join(
        f"{task}: {rounded(low)} to {rounded(high)}{' (given)' if task in comparison.given else ''}"
        for task, (low, high) in comparison.bounds.items()
    )
    return (
        "Scores are normalised, so that tasks count alike: 0 and 1 are the lowest and the highest "
        f"score of a run on this page, but where bounds were given; these numbers mean nothing on "
        f"another page. bounds.TASK=[low,high] gives others. {bounds}."
    )


def _mean(scores: NDArray[np.float64]) -> str:
    if not scores.size:
        return "-"
    mean = float(scores.mean())
    return f"{rounded(mean)} ± {rounded(float(scores.std()), mean)}"


def _points(value: float | str, found: Sequence[tuple[float, int | None]]) -> Points:
    scores = np.asarray([score for score, _ in found])
    estimate = overall([scores])
    assert estimate is not None
    return Points(
        value=value,
        scores=scores.tolist(),
        styles=[style for _, style in found],
        middle=estimate.value,
        interval=estimate.interval,
    )


def _commands(own: Sequence[Run]) -> list[str]:
    """Shell commands that train these runs, as they were typed but for the seed."""
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in own:
        # Hydra's own settings are of where it ran, and those of a stranger's run may name code
        typed = (
            line
            for line in runs.overrides(run.home)
            if not line.lstrip("+~").startswith(("arch.seed=", "hydra"))
        )
        found.setdefault(tuple(typed), []).append(run)
    commands = []
    for lines, same in found.items():
        name, _ = runs.composed(same[0].home)
        if name is None:
            continue
        first = {run.home: run.seed for run in reversed(same)}  # of several seeds, the lowest
        seeds = ",".join(map(str, sorted(set(first.values()))))
        sweep = ["-m"] if "," in seeds else []
        words = shlex.join([f"jaxppo.{name}", *sweep, *lines, f"arch.seed={seeds}"])
        commands.append(f"python -m {words}")
    return commands


def _versions(run: Run) -> str:
    return ", ".join(f"{name} {run.versions[name]}" for name in run.versions)


def _of(num: int, of: int) -> str:
    return str(of) if num == of else f"{num} of {of}"


def _interval(estimate: Estimate | None) -> str:
    if estimate is None or estimate.interval is None:
        return "-"
    return f"{rounded(estimate.interval[0])} to {rounded(estimate.interval[1])}"


def _told(value: float, interval: tuple[float, float] | None) -> str:
    estimate = Estimate(value=value, interval=interval)
    return rounded(value) + (f" ({_interval(estimate)})" if interval else "")


def _span(values: Sequence[Any], shown: Callable[[Any], str]) -> str:
    """The lowest and the highest, or both at once."""
    if not values:
        return "-"
    low, high = shown(min(values)), shown(max(values))
    return low if low == high else f"{low} to {high}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _ranges(numbers: Iterable[int]) -> str:
    """1, 2, 3, 5 as 1-3, 5."""
    ordered = sorted(set(numbers))
    parts = []
    for _, run in itertools.groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]):
        row = [number for _, number in run]
        parts.append(str(row[0]) if len(row) == 1 else f"{row[0]}-{row[-1]}")
    return ", ".join(parts)


def _slug(name: str) -> str:
    """What file names may hold of a name."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:80]
